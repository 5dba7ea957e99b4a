-- Checks of the search index, preparation of a restored database, and the audit.

-- name: differences_of_index
-- Number of stored pages that are not in the index, and of pages in the index that are not stored.
SELECT (SELECT count(*) FROM page_result r WHERE NOT EXISTS (SELECT 1 FROM page_text_docsize s WHERE s.id = r.id)),
       (SELECT count(*) FROM page_text_docsize s WHERE NOT EXISTS (SELECT 1 FROM page_result r WHERE r.id = s.id));

-- name: empty_index
INSERT INTO page_text (page_text) VALUES ('delete-all');

-- name: results_not_indexed
SELECT id FROM page_result r
 WHERE id > :after AND NOT EXISTS (SELECT 1 FROM page_text_docsize s WHERE s.id = r.id)
 ORDER BY id LIMIT :most;


-- ── Preparation of a restored database ──────────────────────────────────────────────────────────────────────────

-- name: begin_numbers
-- Adds the tables that have never had a row.
INSERT INTO sqlite_sequence (name, seq)
SELECT s.name, 0 FROM sqlite_schema s
 WHERE s.type = 'table' AND s.sql LIKE '%AUTOINCREMENT%'
   AND s.name NOT IN (SELECT q.name FROM sqlite_sequence q);

-- name: raise_number
UPDATE sqlite_sequence SET seq = max(seq, :to) WHERE name = :name;

-- name: raise_numbers
-- No job and no document gets an id that was used after the backup.
UPDATE sqlite_sequence SET seq = seq + :by;

-- name: record_restore
-- Attempts after the restore get higher fences than any attempt since the backup.
INSERT INTO restored (at, fence)
SELECT :now, :by + max(:above, ifnull((SELECT max(fence) FROM worker_job_queue), 0),
                       ifnull((SELECT max(fence) FROM restored), 0));


-- ── The audit: each statement audit_… returns pairs of a promise and a sentence about the row that breaks it ────────
-- A row copied from the original table may have ended before events were recorded: it has fence 0 and no events.

-- name: audit_now
SELECT 'P13', 'job ' || id || ' is running on worker ' || worker_id || ', which has no row' FROM worker_job_queue q
 WHERE status = 'running' AND NOT EXISTS (SELECT 1 FROM worker w WHERE w.id = q.worker_id)
 UNION ALL
SELECT 'P8', count(*) || ' jobs of type ' || q.job_type || ' run, and ' || l.most || ' may'
  FROM worker_job_queue q JOIN job_limit l ON l.kind = 'type' AND l.name = q.job_type
 WHERE q.status = 'running' GROUP BY q.job_type, l.most HAVING count(*) > l.most
 LIMIT :most;

-- name: audit_batches
SELECT 'P12', 'job ' || q.id || ' of batch ' || b.id || ', which is ' || b.state || ', is pending and '
       || iif(q.held & 16, 'held by it', 'not held by it')
  FROM batch b JOIN worker_job_queue q ON q.batch_id = b.id AND q.status = 'pending'
 WHERE (q.held & 16 <> 0) <> (b.state IN ('stopped', 'waiting'))
 UNION ALL
SELECT 'P3', 'batch ' || b.id || ' is ' || b.state || ', and job ' || min(q.id) || ' of it is ' || q.status
  FROM batch b JOIN worker_job_queue q ON q.batch_id = b.id AND q.status IN ('pending', 'running')
 WHERE b.state IN ('done', 'failed') GROUP BY b.id
 UNION ALL
SELECT 'P3', 'nothing of batch ' || b.id || ' is left to do, and it has not ended'
  FROM batch b
 WHERE b.state = 'active' AND NOT EXISTS (SELECT 1 FROM batch_unsettled u WHERE u.batch_id = b.id)
   AND EXISTS (SELECT 1 FROM worker_job_queue q WHERE q.batch_id = b.id)
   AND NOT EXISTS (SELECT 1 FROM worker_job_queue q WHERE q.batch_id = b.id AND q.status IN ('pending', 'running'))
   AND NOT EXISTS (SELECT 1 FROM batch_document a JOIN document d ON d.id = a.document_id
                    WHERE a.batch_id = b.id AND d.index_status IN ('queued', 'indexing'))
 LIMIT :most;

-- name: audit_chain
-- P1, P2: each event starts at the status where the one before it ended, the first at pending. The fence grows by one
-- at each start; after a restore it continues from the fence in `restored`.
SELECT 'P1', 'job ' || job_id || ': event ' || id || ' goes from ' || from_status || ' to ' || to_status
       || ' with fence ' || fence || ', after ' || was || ' with fence ' || fence_was
  FROM (SELECT id, job_id, fence, from_status, to_status,
               lag(to_status, 1, CASE WHEN fence = 0 AND to_status = 'pending' THEN from_status ELSE 'pending' END)
                   OVER job AS was,
               lag(fence, 1, 0) OVER job AS fence_was
          FROM worker_job_event
        WINDOW job AS (PARTITION BY job_id ORDER BY id))
 WHERE from_status <> was
    OR (fence <> fence_was + (to_status = 'running')
        AND NOT (to_status = 'running' AND fence > fence_was AND fence - 1 IN (SELECT r.fence FROM restored r)))
 LIMIT :most;

-- name: audit_rows
-- P4: status and fence of the row are those of its last event. P5: a completed job has a completed attempt.
SELECT 'P4', 'job ' || q.id || ' is ' || q.status || ' with fence ' || q.fence
       || CASE WHEN e.id IS NULL THEN ', and nothing tells how' ELSE
               ', and its last event says ' || e.to_status || ' with fence ' || e.fence END
  FROM worker_job_queue q
  LEFT JOIN worker_job_event e ON e.id = (SELECT max(l.id) FROM worker_job_event l WHERE l.job_id = q.id)
 WHERE CASE WHEN e.id IS NULL THEN q.fence <> 0 OR q.status = 'running'
            ELSE q.status <> e.to_status OR q.fence <> e.fence END
 UNION ALL
SELECT 'P5', 'job ' || q.id || ' is completed, and none of its attempts is'
  FROM worker_job_queue q
 WHERE q.status = 'completed' AND q.fence > 0
   AND NOT EXISTS (SELECT 1 FROM worker_job_attempt a WHERE a.job_id = q.id AND a.outcome = 'completed')
 LIMIT :most;

-- name: audit_attempts
-- P1, P5: each attempt has one start and one end, and the end leads to the status that its outcome implies.
SELECT CASE WHEN ends > 1 AND outcome = 'completed' THEN 'P5' ELSE 'P1' END,
       'attempt ' || fence || ' of job ' || job_id || ' (' || ifnull(outcome, 'open') || ') has ' || starts
       || ' starts and ' || ends || ' ends in the events, the last to ' || ifnull(ended_to, 'nowhere')
  FROM (SELECT a.job_id, a.fence, a.outcome,
               ifnull(sum(e.to_status = 'running'), 0) AS starts, ifnull(sum(e.from_status = 'running'), 0) AS ends,
               max(CASE WHEN e.from_status = 'running' THEN e.to_status END) AS ended_to
          FROM worker_job_attempt a
          LEFT JOIN worker_job_event e ON e.job_id = a.job_id AND e.fence = a.fence
         GROUP BY a.job_id, a.fence)
 WHERE starts <> 1 OR ends <> (outcome IS NOT NULL)
    OR ended_to <> CASE WHEN outcome IN ('completed', 'failed', 'cancelled') THEN outcome ELSE 'pending' END
 LIMIT :most;

-- name: audit_strays
-- P1: each start and end in the events belongs to an attempt.
SELECT 'P1', 'event ' || e.id || ' of job ' || e.job_id || ' is about attempt ' || e.fence || ', which is not there'
  FROM worker_job_event e
 WHERE 'running' IN (e.from_status, e.to_status)
   AND NOT EXISTS (SELECT 1 FROM worker_job_attempt a WHERE a.job_id = e.job_id AND a.fence = e.fence)
 LIMIT :most;

-- name: audit_caps
-- P6: retries and requeues since the last retry by a user are capped. Lowering max_retries by hand below the number of
-- retries already made is reported too.
SELECT 'P6', 'job ' || q.id || ' had ' || retries || ' retries of ' || q.max_retries || ' and ' || requeues
       || ' requeues of ' || :requeues_max || ', and counts ' || q.retry_count || ' and ' || q.requeue_count
  FROM (SELECT a.job_id, sum(a.outcome = 'retry') AS retries, sum(a.outcome = 'requeued') AS requeues
          FROM worker_job_attempt a
         WHERE a.outcome IN ('retry', 'requeued')
           AND a.fence > ifnull((SELECT max(e.fence) FROM worker_job_event e
                                  WHERE e.job_id = a.job_id AND e.to_status = 'pending'
                                    AND e.from_status IN ('completed', 'failed', 'cancelled')), 0)
         GROUP BY a.job_id) c
  JOIN worker_job_queue q ON q.id = c.job_id
 WHERE retries > q.max_retries OR requeues > :requeues_max OR retries > q.retry_count OR requeues > q.requeue_count
 LIMIT :most;

-- name: audit_cancels
-- P7: a job with a requested cancellation is running or cancelled. A retry by a user withdraws the request.
SELECT 'P7', 'job ' || id || ' was asked to stop at ' || cancel_requested_at || ', and is ' || status
  FROM worker_job_queue
 WHERE cancel_requested_at IS NOT NULL AND status NOT IN ('running', 'cancelled')
 LIMIT :most;

-- name: audit_keys
-- P8: jobs with the same concurrency_key do not overlap. The greatest integer is the end of a job that still runs.
SELECT 'P8', 'job ' || job_id || ' began at event ' || begun || ', while another with the concurrency_key ' || key
       || ' ran until ' || iif(others_until = 9223372036854775807, 'now', 'event ' || others_until)
  FROM (SELECT key, job_id, begun,
               max(ended) OVER (PARTITION BY key ORDER BY begun
                                ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS others_until
          FROM (SELECT q.concurrency_key AS key, q.id AS job_id, b.id AS begun,
                       ifnull((SELECT min(e.id) FROM worker_job_event e WHERE e.job_id = q.id AND e.id > b.id),
                              9223372036854775807) AS ended
                  FROM worker_job_queue q
                 CROSS JOIN worker_job_event b ON b.job_id = q.id AND b.to_status = 'running'
                 WHERE q.concurrency_key IS NOT NULL))
 WHERE others_until > begun
 LIMIT :most;

-- name: audit_generations
-- P11: live jobs of an older generation have a requested cancellation, and no page has a generation above the newest.
SELECT 'P11', 'job ' || q.id || ' works for generation ' || q.generation || ' of document ' || q.document_id
       || ', whose newest is ' || d.index_generation
  FROM worker_job_queue q JOIN document d ON d.id = q.document_id
 WHERE q.status IN ('pending', 'running') AND q.cancel_requested_at IS NULL AND q.generation <> d.index_generation
 UNION ALL
SELECT 'P11', 'document ' || d.id || ' has pages of generation ' || p.generation || ', and its newest is ' || d.index_generation
  FROM document d
  JOIN page p ON p.document_id = d.id AND p.generation > d.index_generation
 GROUP BY d.id, p.generation
 LIMIT :most;

-- name: audit_documents
-- P11: a queued or indexing document has a live job of its newest generation. Success means that the newest generation
-- is the current one.
SELECT 'P11', 'document ' || d.id || ' is ' || d.index_status || ', and no job of its generation lives'
  FROM document d
 WHERE d.index_status IN ('queued', 'indexing')
   AND NOT EXISTS (SELECT 1 FROM document_unsettled u WHERE u.document_id = d.id)
   AND NOT EXISTS (SELECT 1 FROM worker_job_queue q
                    WHERE q.document_id = d.id AND q.generation = d.index_generation
                      AND q.status IN ('pending', 'running'))
 UNION ALL
SELECT 'P11', 'document ' || d.id || ' is ' || d.index_status || ', and people read generation '
       || ifnull(d.current_generation, 0) || ' of ' || d.index_generation
  FROM document d
 WHERE (d.index_status = 'success') <> (d.current_generation IS d.index_generation)
 LIMIT :most;

-- name: audit_published
-- P5: a successful document has a file, each page has its result, and each file was published by a completed attempt.
SELECT 'P5', 'document ' || d.id || ' is a success, and has no file'
  FROM document d
 WHERE d.index_status = 'success' AND NOT EXISTS (SELECT 1 FROM file f WHERE f.document_id = d.id)
 UNION ALL
SELECT 'P5', 'page ' || p.number || ' of document ' || p.document_id || ' has no result'
  FROM page p WHERE NOT EXISTS (SELECT 1 FROM page_result r WHERE r.id = p.result_id)
 UNION ALL
SELECT 'P5', 'file ' || f.id || ' was published by attempt ' || f.fence || ' of job ' || f.job_id || ', which is '
       || ifnull(a.outcome, 'open')
  FROM file f JOIN worker_job_attempt a ON a.job_id = f.job_id AND a.fence = f.fence
 WHERE a.outcome IS NOT 'completed'
 LIMIT :most;

-- name: audit_passages
-- P11: each passage with vectors belongs to a document, and each vector to a passage, once per model.
SELECT 'P11', 'passage ' || s.number || ' of document ' || s.document_id || ' has no document or no vector'
  FROM passage s
 WHERE NOT EXISTS (SELECT 1 FROM passage_embedding e WHERE e.id = s.embedding_id)
    OR NOT EXISTS (SELECT 1 FROM document d WHERE d.id = s.document_id)
 UNION ALL
SELECT 'P11', 'vector ' || e.id || ' belongs to no passage'
  FROM passage_embedding e WHERE NOT EXISTS (SELECT 1 FROM passage s WHERE s.embedding_id = e.id)
 UNION ALL
SELECT 'P11', 'passage ' || s.number || ' of document ' || s.document_id || ' has several vectors of one model'
  FROM passage s JOIN passage_embedding e ON e.id = s.embedding_id
 GROUP BY s.document_id, s.generation, s.number, e.model HAVING count(DISTINCT e.id) > 1
 LIMIT :most;
