-- What people do to jobs, and what is forgotten in time.

-- name: begin_action
INSERT INTO worker_action (at, actor, verb) VALUES (:now, :actor, :verb) RETURNING id;

-- name: row_of
SELECT status, {row_json} FROM worker_job_queue WHERE id = :job_id;

-- name: remember
INSERT OR REPLACE INTO worker_action_item (action_id, job_id, before, after)
VALUES (:action_id, :job_id, :before, :after);

-- name: cancel
-- A pending job ends; a running one is asked, and ends when its processes are gone (P7).
UPDATE worker_job_queue
   SET cancel_requested_at = ifnull(cancel_requested_at, :now),
       status = CASE status WHEN 'pending' THEN 'cancelled' ELSE status END,
       completed_at = CASE status WHEN 'pending' THEN :now END,
       held = 0
 WHERE id = :job_id AND status IN ('pending', 'running');

-- name: cancel_now
-- The worker that reads it of the open attempt gives no grace.
UPDATE worker_job_attempt
   SET without_grace = 1
 WHERE job_id = :job_id AND ended_at IS NULL
   AND EXISTS (SELECT 1 FROM worker_job_queue q
                WHERE q.id = :job_id AND q.status = 'running' AND q.cancel_requested_at IS NOT NULL);

-- name: retry
-- The same move that a person makes by hand; the table resets the rest.
UPDATE worker_job_queue SET status = 'pending' WHERE id = :job_id;

-- name: broken_need
SELECT needs_id, ifnull(needs_status, 'deleted') FROM v_waits WHERE job_id = :job_id AND is_broken;

-- name: live_twin
SELECT l.id FROM worker_job_queue q JOIN worker_job_queue l ON l.unique_key = q.unique_key
 WHERE q.id = :job_id AND l.unique_key IS NOT NULL AND l.status IN ('pending', 'running');

-- name: delete
DELETE FROM worker_job_queue WHERE id = :job_id AND status <> 'running';

-- name: priority
UPDATE worker_job_queue SET priority = :priority WHERE id = :job_id AND status = 'pending';

-- name: action_to_undo
SELECT id FROM worker_action
 WHERE undone_at IS NULL AND verb <> 'remove' AND (:action_id IS NULL OR id = :action_id)
 ORDER BY id DESC LIMIT 1;

-- name: action_items
SELECT job_id, before, after FROM worker_action_item
 WHERE action_id = :action_id AND job_id > :after_id AND undone_at IS NULL ORDER BY job_id LIMIT :most;

-- name: item_undone
UPDATE worker_action_item SET undone_at = :now WHERE action_id = :action_id AND job_id = :job_id;

-- name: restore_row
UPDATE worker_job_queue
   SET {restored_columns},
       held = CASE WHEN json_extract(:before, '$.status') = 'pending'
                   THEN CASE WHEN json_extract(:before, '$.run_at') IS NULL THEN 0
                             WHEN json_extract(:before, '$.held') & 3 THEN json_extract(:before, '$.held') & 3 ELSE 1 END
                        | EXISTS (SELECT 1 FROM v_waits WHERE job_id = :job_id AND NOT is_met) * 4
                        | (concurrency_key IS NOT NULL) * 8
                   ELSE 0 END
 WHERE id = :job_id;

-- name: restore_deleted_row
INSERT INTO worker_job_queue (id, {restored_names}) SELECT :job_id, {restored_values};

-- name: hold_again
-- What an INSERT cannot know: that its time is a retry's, and what it waits for.
UPDATE worker_job_queue
   SET held = CASE WHEN held & 3 AND json_extract(:before, '$.held') & 3
                   THEN (held & ~3) | (json_extract(:before, '$.held') & 3) ELSE held END
              | EXISTS (SELECT 1 FROM v_waits w WHERE w.job_id = :job_id AND NOT w.is_met) * 4
 WHERE id = :job_id AND status = 'pending';

-- name: document_regains_job
UPDATE document SET index_status = 'queued', error_code = NULL, error_message = NULL
 WHERE index_status = 'failed' AND error_code = 'JOB_DELETED'
   AND EXISTS (SELECT 1 FROM worker_job_queue q
                WHERE q.id = :job_id AND q.status = 'pending' AND q.document_id = document.id
                  AND q.generation = document.index_generation);

-- name: settle_again
INSERT OR IGNORE INTO worker_job_settled (job_id)
SELECT :job_id WHERE EXISTS (SELECT 1 FROM worker_job_dependency WHERE needs_id = :job_id)
 UNION
SELECT needs_id FROM worker_job_dependency WHERE job_id = :job_id;

-- name: undone
UPDATE worker_action SET undone_at = :now, undone_by = :actor
 WHERE id = :action_id
   AND NOT EXISTS (SELECT 1 FROM worker_action_item WHERE action_id = :action_id AND undone_at IS NULL);

-- name: pause
INSERT INTO pause (scope, name, since, until, reason) VALUES (:scope, :name, :now, :until, :reason)
    ON CONFLICT (scope, name) DO UPDATE SET until = excluded.until, reason = excluded.reason;

-- name: unpause
DELETE FROM pause WHERE scope = :scope AND name = :name RETURNING scope;

-- name: prune
DELETE FROM worker_job_queue WHERE id = :job_id AND completed_at IS NOT NULL;

-- name: prune_logs
-- Lines are in the order of their times.
DELETE FROM worker_job_log
 WHERE id IN (SELECT id FROM worker_job_log ORDER BY id LIMIT :most) AND at < :before
RETURNING id;

-- name: old_action_items
SELECT i.action_id, i.job_id, i.after IS NULL AND i.undone_at IS NULL
  FROM worker_action a JOIN worker_action_item i ON i.action_id = a.id
 WHERE a.at < :before ORDER BY a.id LIMIT :most;

-- name: forget_action_item
DELETE FROM worker_action_item WHERE action_id = :action_id AND job_id = :job_id;

-- name: forget_action_documents
DELETE FROM worker_action_document
 WHERE (action_id, document_id) IN (SELECT i.action_id, i.document_id
                                      FROM worker_action a JOIN worker_action_document i ON i.action_id = a.id
                                     WHERE a.at < :before LIMIT :most)
RETURNING document_id;

-- name: forget_old_actions
DELETE FROM worker_action
 WHERE at < :before AND NOT EXISTS (SELECT 1 FROM worker_action_item WHERE action_id = worker_action.id)
   AND NOT EXISTS (SELECT 1 FROM worker_action_document WHERE action_id = worker_action.id);

-- name: forget_attempts
DELETE FROM worker_job_attempt WHERE job_id = :job_id;

-- name: forget_events
DELETE FROM worker_job_event WHERE job_id = :job_id;

-- name: forget_log
DELETE FROM worker_job_log WHERE job_id = :job_id;

-- name: forget_needs
DELETE FROM worker_job_dependency WHERE job_id = :job_id;

-- name: forget_checkpoint
DELETE FROM checkpoint WHERE job_id = :job_id;
