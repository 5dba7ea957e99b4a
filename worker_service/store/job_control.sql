-- Bulk changes by users.

-- name: job_to_change
SELECT status, priority,
       -- A job with a requested cancellation counts as cancelled, since this is the only way it can end.
       iif(cancel_requested_at IS NULL, status, 'cancelled') || ' ' || fence || ' ' || priority,
       cancel_requested_at IS NOT NULL,
       job_type || ifnull(' ' || name, '')
  FROM worker_job_queue WHERE id = :job_id;

-- name: begin_action
INSERT INTO worker_action (at, actor, verb, batch_id) VALUES (:now, :actor, :verb, :batch_id) RETURNING id;

-- name: add_action_item
INSERT INTO worker_action_item (action_id, item_id, left_as, priority_before)
VALUES (:action_id, :item_id, :left_as, :priority_before);

-- name: cancel
-- A pending job ends at once. A running job is requested to stop, and ends when its processes are gone (P7).
UPDATE worker_job_queue
   SET cancel_requested_at = ifnull(cancel_requested_at, :now),
       status = CASE status WHEN 'pending' THEN 'cancelled' ELSE status END,
       completed_at = CASE status WHEN 'pending' THEN :now END,
       held = 0
 WHERE id = :job_id AND status IN ('pending', 'running');

-- name: cancel_now
-- The worker reads this column of the open attempt and kills the processes without a grace period.
UPDATE worker_job_attempt
   SET without_grace = 1
 WHERE job_id = :job_id AND ended_at IS NULL
   AND EXISTS (SELECT 1 FROM worker_job_queue q
                WHERE q.id = :job_id AND q.status = 'running' AND q.cancel_requested_at IS NOT NULL);

-- name: retry
-- The same UPDATE works by hand. The trigger job_by_hand resets the other columns.
UPDATE worker_job_queue SET status = 'pending' WHERE id = :job_id;

-- name: broken_dependency
SELECT iif(n.owner <> q.owner, 'a job of another owner', 'job ' || w.needs_id), ifnull(w.needs_status, 'deleted')
  FROM v_waits w JOIN worker_job_queue q ON q.id = w.job_id LEFT JOIN worker_job_queue n ON n.id = w.needs_id
 WHERE w.job_id = :job_id AND w.is_broken;

-- name: live_with_same_key
SELECT iif(l.owner <> q.owner, 'a job of another owner', 'job ' || l.id)
  FROM worker_job_queue q JOIN worker_job_queue l ON l.unique_key = q.unique_key
 WHERE q.id = :job_id AND l.unique_key IS NOT NULL AND l.status IN ('pending', 'running');

-- name: delete
DELETE FROM worker_job_queue WHERE id = :job_id AND status <> 'running';

-- name: priority
UPDATE worker_job_queue SET priority = :priority WHERE id = :job_id AND status IN ('pending', 'running');

-- name: dismiss
DELETE FROM failure WHERE job_id = :job_id;

-- name: undismiss
INSERT INTO failure (item, job_id, owner, code)
SELECT item, job_id, owner, code FROM v_failed WHERE job_id = :job_id
    ON CONFLICT DO NOTHING;

-- name: bring_forward
UPDATE worker_job_queue SET run_at = NULL
 WHERE id IN (SELECT value FROM json_each(:ids)) AND status = 'pending' AND run_at IS NOT NULL
RETURNING id;

-- name: batch_priority
UPDATE batch SET priority = :priority
 WHERE id IN (SELECT value FROM json_each(:batch_ids))
   AND (:owners = '[]' OR owner IN (SELECT value FROM json_each(:owners)));

-- name: pause
INSERT INTO pause (scope, name, since, until, reason) VALUES (:scope, :name, :now, :until, :reason)
    ON CONFLICT (scope, name) DO UPDATE SET until = excluded.until, reason = excluded.reason;

-- name: unpause
DELETE FROM pause WHERE scope = :scope AND name = :name RETURNING 1;

-- name: drain_node
UPDATE node SET draining = :is_draining WHERE name = :name RETURNING 1;

-- name: undoable_verb
SELECT verb FROM worker_action
 WHERE id = :action_id AND undone_at IS NULL AND verb IN ('cancel', 'retry', 'priority', 'dismiss');

-- name: action_items
SELECT item_id, left_as, priority_before FROM worker_action_item WHERE action_id = :action_id ORDER BY item_id;

-- name: mark_undone
UPDATE worker_action SET undone_at = :now, undone_by = :actor WHERE id = :action_id;
