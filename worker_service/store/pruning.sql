-- Prunes old rows.

-- name: prune
DELETE FROM worker_job_queue WHERE id = :job_id AND completed_at IS NOT NULL;

-- name: prune_logs
-- The order of ids is the order of times.
DELETE FROM worker_job_log
 WHERE id IN (SELECT id FROM worker_job_log ORDER BY id LIMIT :most) AND at < :before
RETURNING id;

-- name: forget_action_items
DELETE FROM worker_action_item
 WHERE (action_id, item_id) IN (SELECT i.action_id, i.item_id
                                  FROM worker_action a JOIN worker_action_item i ON i.action_id = a.id
                                 WHERE a.at < :before LIMIT :most)
RETURNING item_id;

-- name: forget_old_actions
DELETE FROM worker_action
 WHERE at < :before AND NOT EXISTS (SELECT 1 FROM worker_action_item WHERE action_id = worker_action.id);

-- name: forget_hours
DELETE FROM hour_of_work WHERE hour < :before RETURNING 1;
