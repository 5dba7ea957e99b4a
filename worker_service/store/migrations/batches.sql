-- Batches were numbers that jobs had: each becomes a row. Nobody is told of what ended long ago, for no trigger is there.
INSERT INTO batch (id, owner, state, created_at, ended_at)
SELECT batch_id, CASE WHEN min(owner) = max(owner) THEN min(owner) ELSE '' END,
       CASE WHEN max(status IN ('pending', 'running')) THEN 'active'
            WHEN max(status IN ('failed', 'cancelled')) THEN 'failed' ELSE 'done' END,
       min(created_at), CASE WHEN NOT max(status IN ('pending', 'running')) THEN max(completed_at) END
  FROM worker_job_queue WHERE batch_id BETWEEN 0 AND 1000000000000 GROUP BY batch_id;

INSERT INTO batch_document (batch_id, document_id)
SELECT DISTINCT q.batch_id, q.document_id
  FROM worker_job_queue q JOIN batch b ON b.id = q.batch_id JOIN document d ON d.id = q.document_id;
