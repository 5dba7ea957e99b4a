-- Queries over attempts, events, log lines and actions.

-- name: attempts
SELECT job_id, fence, worker_id, started_at, ended_at, outcome, error_code, error_message, error_remedy, signal,
       cpu_seconds, memory_peak_bytes, pid, pid_started, sandbox, heard_at, node
  FROM worker_job_attempt WHERE job_id = :job_id ORDER BY fence;

-- name: events
SELECT id, job_id, fence, from_status, to_status, at FROM worker_job_event WHERE job_id = :job_id ORDER BY id;

-- name: newest_events
SELECT id, job_id, fence, from_status, to_status, at FROM worker_job_event ORDER BY id DESC LIMIT :most;

-- name: logs
SELECT id, job_id, fence, at, line FROM worker_job_log
 WHERE job_id = :job_id AND id > :after_id ORDER BY id LIMIT :most;

-- name: actions
SELECT a.id, a.at, a.actor, a.verb, a.undone_at,
       iif(a.verb IN ('cancel', 'retry', 'delete', 'priority', 'dismiss'), n.items, 0), iif(a.verb = 'remove', n.items, 0),
       CASE WHEN a.verb IN ('make_token', 'remove_token')
            THEN (SELECT group_concat(left_as, ', ') FROM worker_action_item i WHERE i.action_id = a.id)
            WHEN a.verb IN ('add_schedule', 'change_schedule', 'remove_schedule')
            THEN (SELECT 'schedule ' || ifnull(left_as ->> '$.before.name', left_as ->> '$.after.name')
                    FROM worker_action_item i WHERE i.action_id = a.id)
            ELSE '' END,
       a.batch_id
  FROM worker_action a
  JOIN (SELECT id, (SELECT count(*) FROM worker_action_item i WHERE i.action_id = id) AS items FROM worker_action) n USING (id)
 ORDER BY a.id DESC LIMIT :most;

-- name: newest_event
SELECT id, job_id FROM worker_job_event ORDER BY id DESC LIMIT 1;

-- name: job_of_event
SELECT job_id FROM worker_job_event WHERE id = :id;

-- name: events_after
-- Events with facts about their jobs, of one owner or of all.
SELECT e.id, e.at, e.job_id, e.from_status, e.to_status, q.job_type, q.owner, q.name, q.batch_id, q.document_id,
       q.error_code
  FROM worker_job_event e CROSS JOIN worker_job_queue q ON q.id = e.job_id
 WHERE e.id > :after_id AND e.id <= :upto AND (:owner IS NULL OR q.owner = :owner)
 ORDER BY e.id LIMIT :most;
