-- Queries over workers, nodes, handlers, limits, and counts of jobs and errors.

-- name: workers
SELECT w.id, w.host, w.boot_id, w.pid, w.version, w.cpu_slots, w.io_slots, w.draining, w.disk_low, w.started_at,
       w.heartbeat_at,
       (SELECT count(*) FROM worker_job_queue r WHERE r.status = 'running' AND r.worker_id = w.id), w.node_slots
  FROM worker w ORDER BY w.started_at, w.id;

-- name: absent_workers
-- Workers without a row that still have running jobs. An invalid time counts as 1970.
SELECT q.worker_id, '', '', 0, '', 0, 0, 0, 0, min(q.started_at),
       max(ifnull(max(strftime('%Y-%m-%d %H:%M:%f', q.heartbeat_at)), ''), '1970-01-01 00:00:00.000'), count(*)
  FROM worker_job_queue q
 WHERE q.status = 'running' AND NOT EXISTS (SELECT 1 FROM worker w WHERE w.id = q.worker_id)
 GROUP BY q.worker_id ORDER BY q.worker_id;

-- name: nodes
SELECT name, worker_id, state, slots, version, reason, draining FROM node ORDER BY name;

-- name: work_on_nodes
SELECT a.node, q.id
  FROM worker_job_queue q CROSS JOIN worker_job_attempt a ON a.job_id = q.id AND a.fence = q.fence AND a.node IS NOT NULL
 WHERE q.status = 'running' ORDER BY q.id;

-- name: limits
SELECT kind, name, most FROM job_limit ORDER BY kind, name;

-- name: missing_handlers
SELECT DISTINCT h.job_type, h.class, h.missing, h.missing_remedy FROM handler h JOIN worker w ON w.id = h.worker_id
 WHERE h.missing IS NOT NULL AND w.heartbeat_at > :stale_before
 ORDER BY h.job_type, h.missing;

-- name: payload_schemas
SELECT DISTINCT h.payload_schema FROM handler h JOIN worker w ON w.id = h.worker_id
 WHERE h.job_type = :job_type AND w.heartbeat_at > :stale_before;

-- name: choices
SELECT DISTINCT h.choices FROM handler h JOIN worker w ON w.id = h.worker_id
 WHERE h.choices IS NOT NULL AND w.heartbeat_at > :stale_before;

-- name: count_by_status
-- Live, failed and cancelled jobs are counted by index; completed jobs, usually most of the table, are the difference
-- to the total.
SELECT count(*),
       (SELECT count(*) FROM worker_job_queue WHERE status = 'pending'),
       (SELECT count(*) FROM worker_job_queue WHERE status = 'running'),
       (SELECT count(*) FROM worker_job_queue WHERE status = 'failed'),
       (SELECT count(*) FROM worker_job_queue WHERE status = 'cancelled')
  FROM worker_job_queue;

-- name: oldest_ready
-- The time since which the oldest ready job waits: its run_at, or its created_at. All ready rows are read only if the
-- first inserted one had a run_at.
SELECT (SELECT CASE WHEN ifnull(o.run_at, '') <= o.created_at THEN o.created_at
                    ELSE (SELECT min(max(r.created_at, ifnull(r.run_at, ''))) FROM worker_job_queue r INDEXED BY job_ready
                           WHERE r.status = 'pending' AND r.held = 0) END
          FROM worker_job_queue o
         WHERE o.id = (SELECT f.id FROM (SELECT id, min(created_at) FROM worker_job_queue INDEXED BY job_ready
                                          WHERE status = 'pending' AND held = 0) f));

-- name: counts_by_type
SELECT job_type, sum(status = 'pending' AND held = 0), sum(status = 'pending' AND held <> 0), sum(status = 'running'),
       sum(status = 'completed'), sum(status = 'failed'), sum(status = 'cancelled')
  FROM worker_job_queue GROUP BY job_type ORDER BY job_type;

-- name: live_by_type
SELECT job_type, sum(status = 'pending' AND held = 0), sum(status = 'pending' AND held <> 0), sum(status = 'running')
  FROM worker_job_queue WHERE status IN ('pending', 'running') GROUP BY job_type ORDER BY job_type;

-- name: pending_by_platform
SELECT platform, count(*) FROM worker_job_queue
 WHERE status = 'pending' AND (:owner IS NULL OR owner = :owner) GROUP BY platform ORDER BY platform;

-- name: errors
SELECT e.error_code, e.job_type, e.jobs, e.newest_id,
       (SELECT n.error_message FROM worker_job_queue n WHERE n.id = e.newest_id),
       (SELECT n.error_remedy FROM worker_job_queue n WHERE n.id = e.newest_id),
       (SELECT n.name FROM worker_job_queue n WHERE n.id = e.newest_id), e.newest_at
  FROM (SELECT error_code, job_type, count(*) AS jobs, max(id) AS newest_id, max(completed_at) AS newest_at
          FROM worker_job_queue q INDEXED BY job_failed
         WHERE status = 'failed' AND completed_at >= :since AND (:owner IS NULL OR owner = :owner)
           -- Leave out jobs whose work was done since: a newer generation was published, or the source was fetched
           -- again.
           AND (:codes IS NULL
                OR ((q.generation IS NULL
                     OR NOT EXISTS (SELECT 1 FROM document d
                                     WHERE d.id = q.document_id AND d.current_generation > q.generation))
                    AND NOT EXISTS (SELECT 1 FROM worker_job_queue n
                                     WHERE n.source_key = q.source_key AND n.source_key IS NOT NULL AND n.id > q.id
                                       AND n.job_type = q.job_type AND n.owner = q.owner
                                       AND n.status = 'completed')))
           -- Leave out jobs that a retry would refuse, because newer work replaces them.
           AND (:codes IS NULL
                OR (error_code IN (SELECT value FROM json_each(:codes))
                    AND (q.generation IS NULL
                         OR EXISTS (SELECT 1 FROM document d
                                     WHERE d.id = q.document_id AND d.index_generation = q.generation))
                    AND NOT EXISTS (SELECT 1 FROM worker_job_queue l
                                     WHERE l.unique_key = q.unique_key AND l.unique_key IS NOT NULL
                                       AND l.status IN ('pending', 'running'))))
         GROUP BY error_code, job_type) e
 ORDER BY e.jobs DESC, e.error_code, e.job_type;

-- name: jobs_without_handler
-- Jobs that were snoozed because the machine lacks a capability.
WITH {levels}
SELECT a.error_code, q.job_type, count(*), max(q.id), a.error_message, a.error_remedy, q.name, max(a.ended_at)
  FROM level CROSS JOIN worker_job_queue q INDEXED BY job_due ON q.priority = level.priority
 CROSS JOIN worker_job_attempt a ON a.job_id = q.id AND a.fence = q.fence AND a.outcome = 'snoozed'
 WHERE q.status = 'pending' AND q.held & 3 AND a.error_code = 'CAPABILITY_MISSING'
 GROUP BY q.job_type, a.error_message ORDER BY q.job_type, a.error_message;

-- name: documents_in_line
-- Documents whose reading has not begun, oldest first: the first few of each of 50 owners, found by one seek per owner.
WITH RECURSIVE own(owner) AS (
    SELECT ifnull(:owner, (SELECT min(f.owner) FROM document f WHERE f.index_status = 'queued'))
     UNION ALL
    SELECT (SELECT min(n.owner) FROM document n WHERE n.index_status = 'queued' AND n.owner > own.owner)
      FROM own WHERE own.owner IS NOT NULL AND :owner IS NULL LIMIT 50)
SELECT d.id
  FROM own CROSS JOIN document d
    ON d.id IN (SELECT q.id FROM document q WHERE q.index_status = 'queued' AND q.owner = own.owner ORDER BY q.id LIMIT :most)
 WHERE own.owner IS NOT NULL ORDER BY d.id LIMIT :most;

-- name: ready_by_type
-- Ready jobs of each type, counted up to :most, found by one seek per type. char(1114111) is the greatest character.
WITH RECURSIVE type(name) AS (
    SELECT min(f.job_type) FROM worker_job_queue f INDEXED BY job_ready WHERE f.status = 'pending' AND f.held = 0
     UNION ALL
    SELECT (SELECT min(n.job_type) FROM worker_job_queue n INDEXED BY job_ready
             WHERE n.status = 'pending' AND n.held = 0 AND n.job_type > type.name)
      FROM type WHERE type.name IS NOT NULL)
SELECT name,
       (SELECT count(*) FROM (SELECT 1 FROM worker_job_queue c INDEXED BY job_ready
                               WHERE c.status = 'pending' AND c.held = 0 AND c.job_type = type.name
                                 AND c.owner BETWEEN ifnull(:owner, '') AND ifnull(:owner, char(1114111)) LIMIT :most))
  FROM type WHERE name IS NOT NULL;

-- name: rests
SELECT source, until, ifnull(reason, '') FROM source_rest WHERE until > :now ORDER BY until, source;

-- name: hours_of_work
SELECT hour || ':00:00.000', job_type, completed, failed, pages, seconds, longest_seconds, waited_seconds,
       longest_wait_seconds
  FROM hour_of_work WHERE hour >= :since ORDER BY hour, job_type;
