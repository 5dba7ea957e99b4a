-- Rows of workers, their handlers and nodes, and limits.

-- name: register
INSERT INTO worker (id, host, boot_id, pid, version, cpu_slots, io_slots, node_slots, started_at, heartbeat_at)
VALUES (:id, :host, :boot_id, :pid, :version, :cpu_slots, :io_slots, :node_slots, :now, :now)
    ON CONFLICT (id) DO UPDATE SET host = excluded.host, boot_id = excluded.boot_id, pid = excluded.pid, cpu_slots = excluded.cpu_slots, io_slots = excluded.io_slots,
       node_slots = excluded.node_slots, version = excluded.version, draining = 0, disk_low = 0, heartbeat_at = excluded.heartbeat_at;

-- name: forget_handlers
DELETE FROM handler WHERE worker_id = :worker_id;

-- name: register_handler
INSERT INTO handler (worker_id, job_type, class, missing, missing_remedy, at_most_once, payload_schema, timeout_seconds,
                     choices)
VALUES (:worker_id, :job_type, :job_class, :missing, :missing_remedy, :at_most_once, :payload_schema,
        :timeout_seconds, :choices);

-- name: deregister
DELETE FROM worker
 WHERE id = :worker_id
   AND NOT EXISTS (SELECT 1 FROM worker_job_queue WHERE status = 'running' AND worker_id = :worker_id)
RETURNING id;

-- name: set_worker_state
UPDATE worker SET draining = :draining, disk_low = :disk_low WHERE id = :worker_id RETURNING id;

-- name: set_slots
UPDATE worker SET cpu_slots = :slots WHERE id = :worker_id RETURNING id;

-- name: set_node_slots
UPDATE worker SET node_slots = :slots WHERE id = :worker_id RETURNING id;

-- name: save_node
INSERT INTO node (name, worker_id, state, slots, version, reason)
VALUES (:name, :worker_id, :state, :slots, :version, :reason)
    ON CONFLICT (name) DO UPDATE
   SET worker_id = excluded.worker_id, state = excluded.state, slots = excluded.slots, version = excluded.version,
       reason = excluded.reason;

-- name: forget_nodes
-- A node that drains keeps its row while it is away, so that it still drains when it comes back.
DELETE FROM node WHERE draining = 0 AND name NOT IN (SELECT value FROM json_each(:names));

-- name: forget_nodes_of_dead_workers
DELETE FROM node WHERE draining = 0 AND worker_id NOT IN (SELECT id FROM worker);

-- name: mark_absent_nodes_down
UPDATE node SET worker_id = :worker_id, state = 'down', slots = 0, reason = 'it is not in the cluster'
 WHERE name NOT IN (SELECT value FROM json_each(:names))
   AND (worker_id, state, slots) IS NOT (:worker_id, 'down', 0);

-- name: mark_nodes_of_worker_down
UPDATE node SET state = 'down', slots = 0, reason = 'its daemon has ended' WHERE worker_id = :worker_id;

-- name: forget_limits
DELETE FROM job_limit WHERE kind = :kind;

-- name: set_limit
INSERT INTO job_limit (kind, name, most) VALUES (:kind, :name, :most);

-- name: set_payload_limit
INSERT INTO job_limit (kind, name, most) VALUES ('payload', 'bytes', :most)
    ON CONFLICT DO UPDATE SET most = excluded.most WHERE most <> excluded.most;

-- name: unknown_types
-- The types of ready jobs for which no live worker has a handler.
WITH RECURSIVE {lanes}
SELECT DISTINCT job_type FROM lane
 WHERE NOT EXISTS (SELECT 1 FROM handler h JOIN worker w ON w.id = h.worker_id
                    WHERE h.job_type = lane.job_type AND w.heartbeat_at > :stale_before)
 ORDER BY job_type;

-- name: fail_unknown
-- Fails jobs that became ready before :since. A job becomes ready when it is inserted, becomes due, or is put back.
UPDATE worker_job_queue
   SET status = 'failed', held = 0, completed_at = :now, error_code = 'UNKNOWN_TYPE',
       error_message = 'no worker that lives has had a handler for ' || job_type || ' since ' || :since,
       error_remedy = 'install it, or correct the job type, then retry'
 WHERE id IN (SELECT q.id FROM worker_job_queue q INDEXED BY job_ready
               WHERE q.status = 'pending' AND q.held = 0 AND q.job_type = :job_type
                 AND max(q.created_at, ifnull(q.run_at, ''),
                         ifnull((SELECT max(e.at) FROM worker_job_event e
                                  WHERE e.job_id = q.id AND e.to_status = 'pending'), '')) <= :since
               LIMIT :most)
   AND NOT EXISTS (SELECT 1 FROM handler h JOIN worker w ON w.id = h.worker_id
                    WHERE h.job_type = :job_type AND w.heartbeat_at > :stale_before)
RETURNING id;
