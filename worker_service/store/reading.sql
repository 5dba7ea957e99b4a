-- Queries over jobs, workers and events. The gates are the fragments of the claim in leases.sql.

-- name: next_turn
-- The job that a worker's next claim takes: among the heads of the open lanes, the owner with the fewest running jobs
-- comes first, then the owner served longest ago (P9), then priority, age, id.
WITH RECURSIVE {lanes}
SELECT lane.head FROM lane
 WHERE EXISTS (SELECT 1 {may_start})
 ORDER BY (SELECT count(*) FROM worker_job_queue r WHERE r.status = 'running' AND r.owner = lane.owner), {served},
          lane.priority, lane.created_at, lane.head LIMIT 1;

-- name: get
SELECT {job_columns} FROM worker_job_queue WHERE id = :job_id;

-- fragment: first_line
nullif(substr(a.error_message, 1, instr(a.error_message || char(10), char(10)) - 1), '')

-- name: explain
-- The predicates of the claim, evaluated one by one for the job, its lane and each worker.
WITH lane AS (SELECT job_type, owner, source FROM worker_job_queue WHERE id = :job_id)
SELECT rank, code, detail, remedy, NULL AS worker_id FROM (
    -- CAPABILITY_MISSING: the machine lacks what this job needs, and the job tries again from time to time.
    SELECT iif(a.error_code = 'CAPABILITY_MISSING', 12, 5) AS rank,
           iif(a.error_code = 'CAPABILITY_MISSING', a.error_code, 'NOT_YET') AS code,
           'it starts ' || iif(a.fence, 'again ', '') || 'at ' || q.run_at
           || ifnull(', after ' || a.error_code || ifnull(': ' || {first_line}, ''), '') AS detail,
           iif(a.error_code = 'CAPABILITY_MISSING', ifnull(a.error_remedy, ''), '') AS remedy
      FROM worker_job_queue q
      LEFT JOIN worker_job_attempt a ON a.job_id = q.id AND a.fence = q.fence AND a.outcome = 'snoozed'
     WHERE q.id = :job_id AND q.held & 1 AND q.run_at > :now
     UNION ALL
    SELECT 6, 'BACKOFF', 'retry ' || q.retry_count || ' of ' || q.max_retries || ' starts at ' || q.run_at
                         || ifnull(', after ' || a.error_code || ifnull(': ' || {first_line}, ''), ''),
           ''
      FROM worker_job_queue q
      LEFT JOIN worker_job_attempt a ON a.job_id = q.id AND a.fence = q.fence AND a.outcome = 'retry'
     WHERE q.id = :job_id AND q.held & 2 AND q.run_at > :now
     UNION ALL
    SELECT 3, CASE b.state WHEN 'waiting' THEN 'BATCH_WAITING' ELSE 'BATCH_STOPPED' END,
           'batch ' || b.id || ifnull(' (' || nullif(b.name, '') || ')', '')
           || CASE WHEN b.replaced_by IS NOT NULL
                   THEN ' was replaced by batch ' || b.replaced_by || ' of the same owner, and resumes when that ends'
                   WHEN b.state = 'waiting'
                   THEN ' waits' || ifnull(' for batch ' || (SELECT min(a.id) FROM batch a
                                                              WHERE a.owner = b.owner AND a.state = 'active')
                                           || ' of the same owner', '')
                   ELSE ' was ' || ifnull(b.note, 'stopped') END,
           ''
      FROM worker_job_queue q NOT INDEXED CROSS JOIN batch b ON b.id = q.batch_id
     WHERE q.id = :job_id AND q.held & 16
     UNION ALL
    SELECT 7, 'WAITS_FOR', group_concat('job ' || v.needs_id || ' (' || ifnull(v.needs_status, 'deleted') || ')', ', '),
           ''
      FROM v_waits v JOIN worker_job_queue q ON q.id = v.job_id
     WHERE v.job_id = :job_id AND NOT v.is_met AND q.held & 4 HAVING count(*) > 0
     UNION ALL
    SELECT 9, 'KEY_BUSY', 'job ' || r.id || ' runs with the same concurrency_key ' || r.concurrency_key,
           ''
      FROM worker_job_queue q JOIN worker_job_queue r ON r.concurrency_key = q.concurrency_key
     WHERE q.id = :job_id AND r.concurrency_key IS NOT NULL AND r.status = 'running')
 UNION ALL
SELECT g.value ->> 0, g.value ->> 1, g.value ->> 2, '', NULL
  FROM lane, json_each((SELECT json_group_array(json_array(rank, code, detail)) FROM ({lane_gates}))) g
 UNION ALL
SELECT g.value ->> 0, g.value ->> 1, g.value ->> 2, g.value ->> 3, w.id
  FROM lane, worker w, json_each((SELECT json_group_array(json_array(rank, code, detail, remedy)) FROM ({worker_gates}))) g
 ORDER BY 1, 3;

-- name: standing
-- The gates of each lane with ready jobs, for each worker.
WITH RECURSIVE {lanes}
SELECT lane.job_type, lane.owner, lane.source, g.value ->> 0 AS rank, g.value ->> 1, g.value ->> 2, '', NULL
  FROM lane, json_each((SELECT json_group_array(json_array(rank, code, detail))
                          FROM (SELECT 99 AS rank, '' AS code, '' AS detail UNION ALL {lane_gates}))) g
 UNION ALL
SELECT lane.job_type, lane.owner, lane.source, g.value ->> 0, g.value ->> 1, g.value ->> 2, g.value ->> 3, w.id
  FROM lane, worker w, json_each((SELECT json_group_array(json_array(rank, code, detail, remedy)) FROM ({worker_gates}))) g
 ORDER BY 1, 2, 3, 4;

-- name: put_off_by_a_rest
-- Resting sources of jobs that their handler has snoozed. Such jobs are held and so are in no ready lane.
WITH level(priority) AS (VALUES (1), (2), (3), (4), (5), (6), (7), (8), (9), (10))
SELECT 'SOURCE_RESTING', {its_rest}
  FROM source_rest s
 WHERE s.until > :now
   AND EXISTS (SELECT 1 FROM level CROSS JOIN worker_job_queue q INDEXED BY job_due ON q.priority = level.priority
                CROSS JOIN worker_job_attempt a ON a.job_id = q.id AND a.fence = q.fence AND a.outcome = 'snoozed'
                WHERE q.status = 'pending' AND q.held & 3 AND q.run_at > :now AND q.source = s.source
                  AND a.error_code IS NOT :watching)
 ORDER BY s.until, s.source;

-- name: workers_for
-- All workers, each with the class in which it would run the job.
SELECT w.id, h.class
  FROM worker w
  LEFT JOIN handler h ON h.worker_id = w.id
                     AND h.job_type = (SELECT job_type FROM worker_job_queue WHERE id = :job_id);

-- fragment: same_lane
FROM worker_job_queue f INDEXED BY job_ready
 WHERE f.status = 'pending' AND f.held = 0
   AND f.job_type = lane.job_type AND f.owner = lane.owner AND f.source = lane.source

-- name: ahead
-- Number of ready jobs before this one by priority and age, counting up to :most in each lane.
WITH RECURSIVE
{lanes},
me AS (SELECT id, priority, created_at FROM worker_job_queue WHERE id = :job_id)
SELECT sum((SELECT count(*) FROM (SELECT 1 {same_lane} AND f.priority < me.priority LIMIT :most))
           + (SELECT count(*) FROM (SELECT 1 {same_lane} AND f.priority = me.priority
                                                         AND f.created_at < me.created_at LIMIT :most))
           + (SELECT count(*) FROM (SELECT 1 {same_lane} AND f.priority = me.priority
                                                         AND f.created_at = me.created_at AND f.id < me.id LIMIT :most)))
  FROM lane, me;

-- name: family
WITH RECURSIVE family(id) AS (
    SELECT value FROM json_each(:ids)
     UNION
    SELECT q.id FROM family CROSS JOIN worker_job_queue q ON q.parent_id = family.id AND q.parent_id IS NOT NULL
)
SELECT id FROM family ORDER BY id;

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

-- name: waits_for
SELECT needs_id, ifnull(needs_status, 'gone') FROM v_waits WHERE job_id = :job_id ORDER BY needs_id;

-- name: pauses
SELECT scope, name, since, until, reason FROM pause WHERE until IS NULL OR until > :now ORDER BY scope, name;

-- name: actions
SELECT a.id, a.at, a.actor, a.verb, a.undone_at,
       iif(a.verb IN ('cancel', 'retry', 'delete', 'priority', 'dismiss'), n.items, 0), iif(a.verb = 'remove', n.items, 0),
       iif(a.verb IN ('make_token', 'remove_token'),
           (SELECT group_concat(left_as, ', ') FROM worker_action_item i WHERE i.action_id = a.id), ''),
       a.batch_id
  FROM worker_action a
  JOIN (SELECT id, (SELECT count(*) FROM worker_action_item i WHERE i.action_id = id) AS items FROM worker_action) n USING (id)
 ORDER BY a.id DESC LIMIT :most;

-- name: database_id
SELECT min(created_at) FROM pagemill_schema;

-- name: counts
-- Live, failed and cancelled jobs are counted by index; completed jobs, usually most of the table, are the difference
-- to the total. The last column is the time since which the oldest ready job waits: its run_at, or its created_at. All
-- ready rows are read only if the first inserted one had a run_at.
SELECT count(*),
       (SELECT count(*) FROM worker_job_queue WHERE status = 'pending'),
       (SELECT count(*) FROM worker_job_queue WHERE status = 'running'),
       (SELECT count(*) FROM worker_job_queue WHERE status = 'failed'),
       (SELECT count(*) FROM worker_job_queue WHERE status = 'cancelled'),
       (SELECT CASE WHEN ifnull(o.run_at, '') <= o.created_at THEN o.created_at
                    ELSE (SELECT min(max(r.created_at, ifnull(r.run_at, ''))) FROM worker_job_queue r INDEXED BY job_ready
                           WHERE r.status = 'pending' AND r.held = 0) END
          FROM worker_job_queue o
         WHERE o.id = (SELECT f.id FROM (SELECT id, min(created_at) FROM worker_job_queue INDEXED BY job_ready
                                          WHERE status = 'pending' AND held = 0) f))
  FROM worker_job_queue;

-- name: workers
SELECT w.id, w.host, w.boot_id, w.pid, w.version, w.cpu_slots, w.io_slots, w.draining, w.disk_low, w.started_at,
       w.heartbeat_at,
       (SELECT count(*) FROM worker_job_queue r WHERE r.status = 'running' AND r.worker_id = w.id), w.node_slots
  FROM worker w ORDER BY w.started_at, w.id;

-- name: nodes
SELECT name, worker_id, state, slots, version, reason, draining FROM node ORDER BY name;

-- name: on_nodes
SELECT a.node, q.id
  FROM worker_job_queue q CROSS JOIN worker_job_attempt a ON a.job_id = q.id AND a.fence = q.fence AND a.node IS NOT NULL
 WHERE q.status = 'running' ORDER BY q.id;

-- name: absent_workers
-- Workers that running jobs name but that have no row, so that nobody sends heartbeats for them. An invalid time counts
-- as 1970.
SELECT q.worker_id, '', '', 0, '', 0, 0, 0, 0, min(q.started_at),
       max(ifnull(max(strftime('%Y-%m-%d %H:%M:%f', q.heartbeat_at)), ''), '1970-01-01 00:00:00.000'), count(*)
  FROM worker_job_queue q
 WHERE q.status = 'running' AND NOT EXISTS (SELECT 1 FROM worker w WHERE w.id = q.worker_id)
 GROUP BY q.worker_id ORDER BY q.worker_id;

-- name: limits
SELECT kind, name, most FROM job_limit ORDER BY kind, name;

-- name: handlers_lacking
SELECT DISTINCT h.job_type, h.class, h.missing, h.missing_remedy FROM handler h JOIN worker w ON w.id = h.worker_id
 WHERE h.missing IS NOT NULL AND w.heartbeat_at > :stale_before
 ORDER BY h.job_type, h.missing;

-- name: time_limit
SELECT coalesce(q.timeout_seconds, h.timeout_seconds)
  FROM worker_job_queue q LEFT JOIN handler h ON h.worker_id = q.worker_id AND h.job_type = q.job_type
 WHERE q.id = :job_id;

-- name: payload_schemas
SELECT DISTINCT h.payload_schema FROM handler h JOIN worker w ON w.id = h.worker_id
 WHERE h.job_type = :job_type AND w.heartbeat_at > :stale_before;

-- name: counts_by_type
SELECT job_type, sum(status = 'pending' AND held = 0), sum(status = 'pending' AND held <> 0), sum(status = 'running'),
       sum(status = 'completed'), sum(status = 'failed'), sum(status = 'cancelled')
  FROM worker_job_queue GROUP BY job_type ORDER BY job_type;

-- name: live_by_type
SELECT job_type, sum(status = 'pending' AND held = 0), sum(status = 'pending' AND held <> 0), sum(status = 'running')
  FROM worker_job_queue WHERE status IN ('pending', 'running') GROUP BY job_type ORDER BY job_type;

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
           AND (NOT :is_open
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

-- name: failures
-- Newest first. `id` is the order in which items first failed.
SELECT f.id, f.job_id, ifnull(d.name, '')
  FROM failure f CROSS JOIN worker_job_queue q ON q.id = f.job_id LEFT JOIN document d ON d.id = q.document_id
 WHERE (:owner IS NULL OR f.owner = :owner) AND (:code IS NULL OR f.code = :code) AND f.id < :before_id
 ORDER BY f.id DESC LIMIT :most;

-- name: failing_jobs
SELECT job_id FROM failure
 WHERE (:owner IS NULL OR owner = :owner) AND (:code IS NULL OR code = :code)
   AND (:ids IS NULL OR job_id IN (SELECT value FROM json_each(:ids)))
 ORDER BY job_id;

-- name: failed_beside
-- These jobs, and the other failed jobs of their documents.
SELECT value FROM json_each(:ids)
 UNION
SELECT q.id FROM json_each(:ids) w CROSS JOIN worker_job_queue f NOT INDEXED ON f.id = w.value
 CROSS JOIN worker_job_queue q INDEXED BY job_by_document
    ON q.document_id = f.document_id AND q.generation = f.generation AND q.document_id IS NOT NULL
 WHERE q.status = 'failed' AND q.error_code IS NOT 'DEPENDENCY_FAILED';

-- name: count_failures
SELECT code, count(*) FROM failure WHERE :owner IS NULL OR owner = :owner GROUP BY code ORDER BY 2 DESC, 1;

-- name: newest_id
SELECT ifnull(max(id), 0) FROM worker_job_queue;

-- name: ended_between
SELECT (SELECT count(*) FROM worker_job_queue WHERE completed_at >= :since AND completed_at < :until),
       (SELECT count(*) FROM worker_job_queue INDEXED BY job_failed
         WHERE status = 'failed' AND completed_at >= :since AND completed_at < :until);

-- name: waits_between
-- For each :every-th job that ended in the period: seconds from its run_at or created_at to its first attempt. The
-- index on completed_at selects the jobs.
SELECT w.seconds
  FROM (SELECT (julianday(a.started_at) - julianday(iif(q.run_at <= a.started_at, q.run_at, q.created_at))) * 86400 AS seconds
          FROM worker_job_queue q
          JOIN worker_job_attempt a
            ON a.job_id = q.id AND a.fence = (SELECT min(f.fence) FROM worker_job_attempt f WHERE f.job_id = q.id)
         WHERE q.completed_at >= :since AND q.completed_at < :until AND q.id % :every = 0) w
 WHERE w.seconds >= 0;

-- fragment: half_is_before
ifnull((SELECT r.created_at FROM page_result r WHERE r.id >= (low + high) / 2 ORDER BY r.id LIMIT 1) < :at, 0)

-- name: first_result_since
-- Finds the first result stored at or after a time by bisection, since ids grow with time and results never change.
WITH RECURSIVE halving (low, high) AS (
    SELECT 0, ifnull(max(id), 0) + 1 FROM page_result
     UNION ALL
    SELECT iif({half_is_before}, (low + high) / 2, low), iif({half_is_before}, high, (low + high) / 2)
      FROM halving WHERE high - low > 1)
SELECT min(high) FROM halving;

-- name: documents_failing
SELECT DISTINCT d.id FROM json_each(:job_ids) w
 CROSS JOIN worker_job_queue q NOT INDEXED ON q.id = w.value
 CROSS JOIN document d ON d.id = q.document_id AND d.index_generation = q.generation
 WHERE d.index_status IN ('queued', 'indexing') ORDER BY d.id;

-- name: watching
SELECT q.id
  FROM json_each(:ids) w CROSS JOIN worker_job_queue q ON q.id = w.value AND q.status = 'pending'
 CROSS JOIN worker_job_attempt a ON a.job_id = q.id AND a.fence = q.fence
 WHERE a.outcome = 'snoozed' AND a.error_code = :code
 ORDER BY q.id;

-- name: jobs_lacking
-- Jobs that were snoozed because the machine lacks a capability.
WITH level(priority) AS (VALUES (1), (2), (3), (4), (5), (6), (7), (8), (9), (10))
SELECT a.error_code, q.job_type, count(*), max(q.id), a.error_message, a.error_remedy, q.name, max(a.ended_at)
  FROM level CROSS JOIN worker_job_queue q INDEXED BY job_due ON q.priority = level.priority
 CROSS JOIN worker_job_attempt a ON a.job_id = q.id AND a.fence = q.fence AND a.outcome = 'snoozed'
 WHERE q.status = 'pending' AND q.held & 3 AND a.error_code = 'CAPABILITY_MISSING'
 GROUP BY q.job_type, a.error_message ORDER BY q.job_type, a.error_message;

-- name: choices
SELECT DISTINCT h.choices FROM handler h JOIN worker w ON w.id = h.worker_id
 WHERE h.choices IS NOT NULL AND w.heartbeat_at > :stale_before;
