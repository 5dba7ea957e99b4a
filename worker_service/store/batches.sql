-- Batches. Triggers in schema.sql act on changes of a batch's state.

-- fragment: batch_columns
id, owner, name, priority, state, round, note, asked, actions, created_at, ended_at, replaced_by

-- name: batch
SELECT {batch_columns} FROM batch WHERE id = :batch_id;

-- name: batches
SELECT {batch_columns} FROM batch
 WHERE (:owners = '[]' OR owner IN (SELECT value FROM json_each(:owners)))
   AND (:states = '[]' OR state IN (SELECT value FROM json_each(:states)))
   AND (:before_id IS NULL OR id < :before_id)
 ORDER BY id DESC LIMIT :most;

-- name: batches_replaced
SELECT count(*) FROM batch WHERE state = 'waiting' AND replaced_by IS NOT NULL;

-- name: batches_with_address
SELECT id, notify FROM batch WHERE id IN (SELECT value FROM json_each(:batch_ids)) AND notify <> '' ORDER BY id;

-- name: add_batch
INSERT INTO batch (owner, name, priority, state, asked, actions, notify, created_at)
VALUES (:owner, :name, :priority, :state, :asked, :actions, :notify, :now)
RETURNING id;

-- name: set_batch_state
-- Changes nothing if state and note are the same. The trigger batch_moved clears a note that is equal to the old one.
UPDATE batch SET state = :state, note = :note WHERE id = :batch_id AND (state <> :state OR note IS NOT :note);

-- name: replace_batch
UPDATE batch SET state = 'waiting', replaced_by = :by, note = 'replaced by batch ' || :by WHERE id = :batch_id;

-- name: batch_left_cancelled
-- The batch that this action has cancelled, if the batch is still stopped and has no later action.
SELECT b.id FROM worker_action a JOIN batch b ON b.id = a.batch_id
 WHERE a.id = :action_id AND a.verb = 'cancel' AND b.state = 'stopped'
   AND NOT EXISTS (SELECT 1 FROM worker_action n WHERE n.batch_id = a.batch_id AND n.id > a.id);

-- name: other_active_batches
SELECT id FROM batch WHERE owner = :owner AND owner <> '' AND state = 'active' AND id <> ifnull(:batch_id, -1) ORDER BY id;

-- name: live_for_submission
-- The range condition lets SQLite use the index. The suffix is the one of `unique_key_in_batch`.
SELECT q.id, q.batch_id FROM worker_job_queue q LEFT JOIN batch b ON b.id = q.batch_id
 WHERE q.unique_key >= :key AND q.unique_key < :key || ':batch;' AND q.unique_key IS NOT NULL
   AND q.status IN ('pending', 'running')
   AND q.unique_key IN (:key, :key || ':batch:' || q.batch_id) AND q.owner = :owner
   AND ifnull(b.state, 'active') <> 'stopped'
 ORDER BY ifnull(b.state, 'active') <> 'active', q.id LIMIT 1;

-- name: live_for_document
SELECT q.id, q.batch_id FROM document d
  JOIN worker_job_queue q ON q.document_id = d.id AND q.generation = d.index_generation
                         AND q.status IN ('pending', 'running')
  JOIN batch b ON b.id = q.batch_id AND b.state = 'waiting'
 WHERE d.id = :document_id ORDER BY q.id LIMIT 1;

-- name: active_batches_of
-- NOT INDEXED: after ANALYZE, SQLite would scan job_by_batch where few jobs have a batch. The search by id remains.
SELECT DISTINCT b.id FROM json_each(:job_ids) w CROSS JOIN worker_job_queue q NOT INDEXED ON q.id = w.value
  JOIN batch b ON b.id = q.batch_id AND b.state = 'active' ORDER BY b.id DESC;

-- name: mark_batch_unsettled
INSERT OR IGNORE INTO batch_unsettled (batch_id) VALUES (:batch_id);

-- name: to_retry_in_batch
-- Leaves out work that newer jobs have done: documents that were read successfully, and files that were fetched again.
SELECT q.id FROM worker_job_queue q
 WHERE q.batch_id = :batch_id AND q.batch_id IS NOT NULL AND q.id > :after_id
   AND q.status IN (SELECT value FROM json_each(:statuses))
   AND (q.generation IS NULL
        OR EXISTS (SELECT 1 FROM document d
                    WHERE d.id = q.document_id AND d.index_generation = q.generation AND d.index_status <> 'success'))
   AND NOT EXISTS (SELECT 1 FROM worker_job_queue n
                    WHERE n.source_key = q.source_key AND n.source_key IS NOT NULL AND n.id > q.id
                      AND n.job_type = q.job_type AND n.owner = q.owner AND n.platform = q.platform
                      AND (n.status IN ('pending', 'running', 'completed') OR n.batch_id = q.batch_id))
 ORDER BY q.id LIMIT :most;

-- name: live_in_batch
SELECT id FROM worker_job_queue
 WHERE batch_id = :batch_id AND batch_id IS NOT NULL AND status IN ('pending', 'running') ORDER BY id;

-- name: remove_batch
DELETE FROM batch WHERE id = :batch_id;

-- name: forget_batch_documents
DELETE FROM batch_document WHERE batch_id = :batch_id;


-- ── Progress of a batch ─────────────────────────────────────────────────────────────────────────────────────────

-- name: batch_jobs
SELECT status, count(*) FROM worker_job_queue WHERE batch_id = :batch_id AND batch_id IS NOT NULL GROUP BY status;

-- name: batch_documents
SELECT d.index_status, count(*)
  FROM batch_document b CROSS JOIN document d ON d.id = b.document_id
 WHERE b.batch_id = :batch_id GROUP BY d.index_status;

-- name: batch_pages
WITH by_state AS (
    SELECT d.index_status IN ('queued', 'indexing') AS is_unread, ifnull(sum(d.pages), 0) AS pages,
           sum(d.pages IS NULL) AS uncounted,
           sum(CASE d.index_status WHEN 'success' THEN ifnull(d.pages, 0)
                    ELSE (SELECT count(*) FROM page p
                           WHERE p.document_id = d.id AND p.generation = d.index_generation) END) AS pages_read,
           sum(ifnull((SELECT f.size FROM file f
                        WHERE f.document_id = d.id AND f.role = 'original' ORDER BY f.id DESC LIMIT 1), 0)) AS size
      FROM batch_document b CROSS JOIN document d ON d.id = b.document_id
     WHERE b.batch_id = :batch_id GROUP BY d.index_status)
SELECT ifnull(sum(pages), 0) AS pages, ifnull(sum(pages_read), 0) AS pages_read,
       ifnull(sum(is_unread * max(0, pages - pages_read)), 0) AS pages_left,
       ifnull(sum(is_unread * uncounted), 0) AS uncounted, ifnull(sum(size), 0) AS size
  FROM by_state;

-- fragment: brought_in
EXISTS (SELECT 1 FROM document d JOIN batch_document b ON b.document_id = d.id AND b.batch_id = :batch_id
         WHERE d.owner = q.owner AND d.platform = q.platform AND d.source_key = q.source_key)

-- name: batch_sources
-- Counts the sources without a document in this batch: with a live job, failed or cancelled, and only cancelled.
WITH source AS (
    SELECT max(q.status IN ('pending', 'running')) AS is_live, max(q.status = 'completed') AS is_there,
           min(q.status <> 'failed') AS is_cancelled FROM worker_job_queue q
     WHERE q.batch_id = :batch_id AND q.batch_id IS NOT NULL AND q.source_key IS NOT NULL AND q.document_id IS NULL
       AND NOT {brought_in}
     GROUP BY q.platform, q.source_key)
SELECT ifnull(sum(is_live), 0), ifnull(sum(NOT is_live AND NOT is_there), 0),
       ifnull(sum(is_cancelled AND NOT is_live AND NOT is_there), 0)
  FROM source;

-- name: batch_documents_cancelled
SELECT count(*) FROM batch_document b CROSS JOIN document d ON d.id = b.document_id
 WHERE b.batch_id = :batch_id AND d.index_status = 'failed' AND d.error_code = 'CANCELLED';

-- name: batch_may_find_more
SELECT EXISTS (SELECT 1 FROM worker_job_queue q
                WHERE q.batch_id = :batch_id AND q.batch_id IS NOT NULL AND q.status IN ('pending', 'running')
                  AND q.document_id IS NULL AND q.source_key IS NULL);

-- name: batch_pages_lately
SELECT count(*), (julianday(:now) - julianday(min(r.created_at))) * 86400
  FROM batch_document b CROSS JOIN document d ON d.id = b.document_id AND d.updated_at >= :since
 CROSS JOIN page p ON p.document_id = d.id AND p.generation = d.index_generation
 CROSS JOIN page_result r ON r.id = p.result_id AND r.created_at >= :since
 WHERE b.batch_id = :batch_id;

-- name: document_being_read
SELECT d.name, (SELECT count(*) FROM page p WHERE p.document_id = d.id AND p.generation = d.index_generation), d.pages
  FROM batch_document b CROSS JOIN document d ON d.id = b.document_id AND d.index_status = 'indexing'
 WHERE b.batch_id = :batch_id ORDER BY d.updated_at DESC, d.id LIMIT 1;
