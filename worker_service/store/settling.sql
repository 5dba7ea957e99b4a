-- Effects of ended jobs on waiting jobs, documents and batches; actions of ended jobs, documents and batches.

-- fragment: anything_to_settle
EXISTS (SELECT 1 FROM worker_job_settled) OR EXISTS (SELECT 1 FROM document_unsettled)
       OR EXISTS (SELECT 1 FROM batch_unsettled)

-- name: nothing_to_settle
SELECT NOT ({anything_to_settle});

-- name: next_settled_job
SELECT job_id FROM worker_job_settled LIMIT 1;

-- name: free_met_dependents
-- Frees jobs whose dependencies are all met.
UPDATE worker_job_queue
   SET held = held & ~4
 WHERE id IN (SELECT q.id FROM worker_job_dependency d CROSS JOIN worker_job_queue q ON q.id = d.job_id
               WHERE d.needs_id = :needs_id AND q.status = 'pending' AND q.held & 4
                 AND NOT EXISTS (SELECT 1 FROM v_waits w WHERE w.job_id = q.id AND NOT w.is_met)
               LIMIT :most)
RETURNING id;

-- name: fail_broken_dependents
-- Fails jobs with a dependency that can no longer be met. The owner of a job sees no ids of other owners' jobs.
UPDATE worker_job_queue
   SET status = 'failed', held = 0, completed_at = :now, error_code = 'DEPENDENCY_FAILED',
       error_message = iif(owner <> (SELECT n.owner FROM worker_job_queue n WHERE n.id = :needs_id),
                           'a job of another owner', 'job ' || :needs_id) || ', which this one waits for, '
                       || ifnull((SELECT CASE n.status WHEN 'failed' THEN 'failed' ELSE 'was cancelled' END
                                    FROM worker_job_queue n WHERE n.id = :needs_id), 'was deleted')
 WHERE id IN (SELECT q.id FROM worker_job_dependency d CROSS JOIN worker_job_queue q ON q.id = d.job_id
               WHERE d.needs_id = :needs_id AND q.status = 'pending' AND q.held & 4
                 AND EXISTS (SELECT 1 FROM v_waits w
                              WHERE w.job_id = q.id AND w.needs_id = :needs_id AND w.is_broken)
               LIMIT :most)
RETURNING id;

-- name: dependents_to_revive
-- Jobs that failed only because of this dependency, which is live or completed again.
SELECT q.id FROM worker_job_dependency d CROSS JOIN worker_job_queue q ON q.id = d.job_id
 WHERE d.needs_id = :needs_id AND q.status = 'failed' AND q.error_code = 'DEPENDENCY_FAILED'
   AND NOT EXISTS (SELECT 1 FROM v_waits w WHERE w.job_id = q.id AND w.is_broken)
   AND NOT EXISTS (SELECT 1 FROM worker_job_queue l
                    WHERE l.unique_key = q.unique_key AND l.unique_key IS NOT NULL
                      AND l.status IN ('pending', 'running'))
 LIMIT :most;

-- name: revive_job
-- The job never started, so its run_at is still valid. Of two jobs with the same unique_key, the index admits one.
UPDATE worker_job_queue
   SET status = 'pending', completed_at = NULL, error_code = NULL, error_message = NULL, error_remedy = NULL, retry_count = 0,
       requeue_count = 0, worker_id = NULL, started_at = NULL, heartbeat_at = NULL,
       held = 4 | (run_at IS NOT NULL) | (concurrency_key IS NOT NULL) * 8
 WHERE id = :job_id;

-- name: forget_settled
DELETE FROM worker_job_settled WHERE job_id = :needs_id;

-- name: unsettled_documents
SELECT document_id FROM document_unsettled LIMIT :most;

-- name: states_of_documents
SELECT id, index_status FROM document WHERE id IN (SELECT value FROM json_each(:document_ids));

-- name: update_document_states
-- A document is queued until the first of its jobs starts, then indexing. It fails when a job fails, is cancelled or is
-- deleted, or when no job is left to publish it. After a success, later changes of its jobs have no effect.
UPDATE document
   SET index_status = f.status, updated_at = :now,
       error_code = CASE WHEN f.status = 'failed' THEN ifnull(f.error_code, document.error_code) END,
       error_message = CASE WHEN f.status = 'failed' THEN iif(f.error_code IS NULL, document.error_message, f.error_message) END,
       error_remedy = CASE WHEN f.status = 'failed' THEN iif(f.error_code IS NULL, document.error_remedy, f.error_remedy) END
  FROM (SELECT d.id,
               CASE WHEN u.lost IS NOT NULL OR e.job_id IS NOT NULL OR d.error_code = 'JOB_DELETED' OR s.live = 0 THEN 'failed'
                    WHEN s.begun THEN 'indexing' ELSE 'queued' END AS status,
               CASE WHEN u.lost IS NOT NULL THEN 'JOB_DELETED' WHEN e.job_id IS NOT NULL THEN e.error_code
                    WHEN d.index_status <> 'failed' THEN 'NOT_PUBLISHED' END AS error_code,
               coalesce(u.lost, e.error_message, 'no job is left that would publish the document') AS error_message,
               CASE WHEN u.lost IS NULL THEN e.error_remedy END AS error_remedy
          FROM json_each(:document_ids) w
         CROSS JOIN document d ON d.id = w.value AND d.index_status IN ('queued', 'indexing', 'failed')
         CROSS JOIN document_unsettled u ON u.document_id = d.id
          LEFT JOIN (SELECT q.document_id, q.generation, sum(q.status IN ('pending', 'running')) AS live,
                            max(q.fence) AS begun
                       FROM worker_job_queue q
                      WHERE q.document_id IN (SELECT value FROM json_each(:document_ids)) AND q.generation IS NOT NULL
                      GROUP BY q.document_id, q.generation) s
            ON s.document_id = d.id AND s.generation = d.index_generation
          LEFT JOIN v_document_error e
            ON e.document_id = d.id
           AND e.job_id = (SELECT o.job_id FROM v_document_error o WHERE o.document_id = d.id LIMIT 1)) f
 WHERE document.id = f.id
RETURNING id, index_status;

-- name: add_document_notices
INSERT OR IGNORE INTO notice (at, kind, owner, document_id, batch_id, generation, code, message, remedy, key)
SELECT :now, 'document.' || s.word, d.owner, d.id,
       (SELECT max(b.batch_id) FROM batch_document b WHERE b.document_id = d.id), d.index_generation,
       d.error_code, d.error_message, d.error_remedy,
       -- Without a key, each failure gets its own notice, also after a retry.
       CASE WHEN s.word <> 'failed' THEN 'document.' || s.word || ':' || d.id || ':' || d.index_generation END
  FROM json_each(:document_ids) w JOIN document d ON d.id = w.value
  JOIN (SELECT 'indexing' AS state, 'started' AS word UNION ALL SELECT 'success', 'ready' UNION ALL SELECT 'failed', 'failed') s
    ON s.state = d.index_status;

-- name: forget_unsettled
DELETE FROM document_unsettled WHERE document_id IN (SELECT value FROM json_each(:document_ids));

-- name: mark_batches_unsettled
INSERT OR IGNORE INTO batch_unsettled (batch_id)
SELECT b.batch_id FROM json_each(:document_ids) w CROSS JOIN batch_document b ON b.document_id = w.value;

-- name: unsettled_batches
SELECT batch_id FROM batch_unsettled LIMIT :most;

-- name: end_batches
-- A batch has ended when it has no live job and none of its documents is queued or indexing, in any batch. These jobs
-- do not make it failed: jobs of an older generation, jobs whose source a newer job has fetched, and jobs of a document
-- that was read successfully.
UPDATE batch
   SET ended_at = :now,
       state = CASE WHEN EXISTS (SELECT 1 FROM worker_job_queue q
                                  WHERE q.batch_id = batch.id AND q.status IN ('failed', 'cancelled')
                                    AND ifnull(q.error_code, '') <> 'STALE_GENERATION'
                                    AND NOT EXISTS (SELECT 1 FROM worker_job_queue n
                                                     WHERE n.source_key = q.source_key AND n.source_key IS NOT NULL
                                                       AND n.id > q.id AND n.batch_id = q.batch_id
                                                       AND n.job_type = q.job_type AND n.owner = q.owner
                                                       AND n.platform = q.platform AND n.status = 'completed')
                                    AND NOT EXISTS (SELECT 1 FROM document d
                                                     WHERE d.id = q.document_id AND q.generation IS NOT NULL
                                                       AND d.index_status = 'success'))
                      OR EXISTS (SELECT 1 FROM batch_document b JOIN document d ON d.id = b.document_id
                                  WHERE b.batch_id = batch.id AND d.index_status = 'failed')
                    THEN 'failed' ELSE 'done' END
 WHERE id IN (SELECT value FROM json_each(:batch_ids)) AND (state = 'active' OR replaced_by IS NOT NULL)
   AND NOT EXISTS (SELECT 1 FROM worker_job_queue q WHERE q.batch_id = batch.id AND q.status IN ('pending', 'running'))
   AND NOT EXISTS (SELECT 1 FROM batch_document b JOIN document d ON d.id = b.document_id
                    WHERE b.batch_id = batch.id AND d.index_status IN ('queued', 'indexing'))
RETURNING id;

-- name: ended_batch
SELECT state, owner, actions FROM batch WHERE id = :batch_id;

-- name: begin_next_batches
-- For each owner of these batches without an active batch, starts one waiting batch. Batches whose replacement is no
-- longer active or waiting come first, the newest replacement first: if A was replaced by B and B by C, then B resumes
-- before A. Next comes the batch that has waited longest for its first start. The first term only affects the order, so
-- a row written by hand that names a waiting batch as its replacement cannot block all of them.
UPDATE batch
   SET state = 'active', note = 'resumed after batch ' || replaced_by
 WHERE id IN (SELECT (SELECT w.id FROM batch w WHERE w.owner = b.owner AND w.state = 'waiting'
                       ORDER BY EXISTS (SELECT 1 FROM batch r
                                         WHERE r.id = w.replaced_by AND r.state IN ('active', 'waiting')),
                                w.replaced_by IS NULL, w.replaced_by DESC, iif(w.replaced_by IS NULL, w.id, -w.id)
                       LIMIT 1)
                FROM json_each(:batch_ids) i JOIN batch b ON b.id = i.value
               WHERE NOT EXISTS (SELECT 1 FROM batch a WHERE a.owner = b.owner AND a.state = 'active'));

-- name: documents_to_hand_over
-- Documents whose live jobs belong to a stopped or waiting batch and that an active batch has requested as well, with
-- the first job of their reading and the values for the active batch. Searched when a batch has stopped, and when an
-- active batch has nothing else left to do.
SELECT d.source_key, d.name, d.platform, d.owner, a.id, a.priority, f.job_type, f.account, f.payload, f.source,
       f.timeout_seconds, f.max_retries, f.source_key
  FROM (SELECT DISTINCT q.document_id
          FROM json_each(:batch_ids) i CROSS JOIN batch b ON b.id = i.value
         CROSS JOIN batch s ON s.owner = b.owner AND s.state IN ('stopped', 'waiting')
                           AND (s.id = b.id OR (b.state = 'active'
                                                AND NOT EXISTS (SELECT 1 FROM worker_job_queue l
                                                                 WHERE l.batch_id = b.id AND l.status IN ('pending', 'running'))))
         CROSS JOIN worker_job_queue q ON q.batch_id = s.id AND q.status IN ('pending', 'running')) w
  JOIN document d ON d.id = w.document_id AND d.index_status IN ('queued', 'indexing')
  JOIN batch a ON a.id = (SELECT max(o.id) FROM batch_document b JOIN batch o ON o.id = b.batch_id AND o.state = 'active'
                           WHERE b.document_id = d.id)
  JOIN worker_job_queue f ON f.id = (SELECT min(q.id) FROM worker_job_queue q
                                      WHERE q.document_id = d.id AND q.generation = d.index_generation)
 ORDER BY d.id;

-- name: forget_unsettled_batches
DELETE FROM batch_unsettled WHERE batch_id IN (SELECT value FROM json_each(:batch_ids));

-- fragment: document_end
CASE d.index_status WHEN 'success' THEN 'success' WHEN 'failed' THEN 'failure' END

-- name: tag_documents
INSERT OR IGNORE INTO document_tag (document_id, tag, owner)
SELECT d.id, t.value, d.owner FROM json_each(:document_ids) w CROSS JOIN document d ON d.id = w.value CROSS JOIN json_each(:tags) t
RETURNING document_id, tag;

-- name: tags_of_documents
SELECT document_id, tag FROM document_tag WHERE document_id IN (SELECT value FROM json_each(:document_ids));

-- name: request_tag_actions
-- Requests the actions of each pair [document, tag]; a repeated request for a generation changes nothing.
INSERT OR IGNORE INTO deferred_action (document_id, generation, on_end, job_type, payload)
SELECT d.id, d.index_generation, r.on_end, r.job_type, r.payload
  FROM json_each(:pairs) w CROSS JOIN document d ON d.id = json_extract(w.value, '$[0]')
 CROSS JOIN tag_action r ON r.tag = json_extract(w.value, '$[1]') AND r.owner IN ('', d.owner) AND r.on_end = {document_end};

-- name: actions_due
SELECT a.id, a.job_type, a.payload, d.id, d.owner, d.name, d.index_status, d.error_code, d.index_generation,
       q.id, (SELECT b.id FROM batch b WHERE b.id = q.batch_id), q.priority
  FROM json_each(:document_ids) w CROSS JOIN document d ON d.id = w.value
 CROSS JOIN deferred_action a ON a.document_id = d.id AND a.generation = d.index_generation AND a.on_end = {document_end}
  LEFT JOIN worker_job_queue q ON q.id = (SELECT max(n.id) FROM worker_job_queue n
                                           WHERE n.document_id = d.id AND n.generation = d.index_generation)
 WHERE a.fired_at IS NULL
 ORDER BY a.id;

-- name: mark_action_fired
UPDATE deferred_action SET fired_at = :now, job_id = :job_id WHERE id = :action_id;

-- name: mark_failure_actions_fired
UPDATE failure_action SET fired_fence = q.fence
  FROM worker_job_queue q
 WHERE q.id = :job_id AND q.status = 'failed'
   AND failure_action.job_id = :job_id AND failure_action.fired_fence IS NOT q.fence
RETURNING CAST(job_type AS BLOB), CAST(payload AS BLOB);

-- name: failed_job
SELECT owner, name, error_code, (SELECT b.id FROM batch b WHERE b.id = q.batch_id), priority
  FROM worker_job_queue q WHERE id = :job_id;

-- name: add_action_notice
INSERT INTO notice (at, kind, owner, job_id, document_id, batch_id, code)
VALUES (:now, 'action.fired', :owner, :job_id, :document_id, :batch_id, :code);
