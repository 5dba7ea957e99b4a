-- Why a pending job has not started. gates.sql has the gates that the claim also uses.

-- name: next_turn
-- The job that a worker's next claim takes: among the heads of the open lanes, the owner with the fewest running jobs
-- comes first, then the owner served longest ago (P9), then priority, age, id.
WITH RECURSIVE {lanes}
SELECT lane.head FROM lane
 WHERE EXISTS (SELECT 1 {may_start})
 ORDER BY (SELECT count(*) FROM worker_job_queue r WHERE r.status = 'running' AND r.owner = lane.owner), {owner_turn},
          lane.priority, lane.created_at, lane.head LIMIT 1;

-- fragment: first_line
nullif(substr(a.error_message, 1, instr(a.error_message || char(10), char(10)) - 1), '')

-- name: explain
-- The predicates of the claim, evaluated one by one for the job, its lane and each worker. The owner of a job sees no
-- ids of other owners' jobs.
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
    SELECT 7, 'WAITS_FOR',
           group_concat(iif(n.owner <> q.owner, 'a job of another owner', 'job ' || v.needs_id)
                        || ' (' || ifnull(v.needs_status, 'deleted') || ')', ', '),
           ''
      FROM v_waits v JOIN worker_job_queue q ON q.id = v.job_id LEFT JOIN worker_job_queue n ON n.id = v.needs_id
     WHERE v.job_id = :job_id AND NOT v.is_met AND q.held & 4 HAVING count(*) > 0
     UNION ALL
    SELECT 9, 'KEY_BUSY',
           iif(r.owner <> q.owner, 'a job of another owner', 'job ' || r.id) || ' runs with the same concurrency_key ' || r.concurrency_key,
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

-- name: gates_of_ready_lanes
-- The gates of each lane with ready jobs, for each worker.
WITH RECURSIVE {lanes}
SELECT lane.job_type, lane.owner, lane.source, g.value ->> 0 AS rank, g.value ->> 1, g.value ->> 2, '', NULL
  FROM lane, json_each((SELECT json_group_array(json_array(rank, code, detail))
                          FROM (SELECT 99 AS rank, '' AS code, '' AS detail UNION ALL {lane_gates}))) g
 UNION ALL
SELECT lane.job_type, lane.owner, lane.source, g.value ->> 0, g.value ->> 1, g.value ->> 2, g.value ->> 3, w.id
  FROM lane, worker w, json_each((SELECT json_group_array(json_array(rank, code, detail, remedy)) FROM ({worker_gates}))) g
 ORDER BY 1, 2, 3, 4;

-- name: rests_of_snoozed_jobs
-- Resting sources of jobs that their handler has snoozed. Such jobs are held and so are in no ready lane.
WITH {levels}
SELECT 'SOURCE_RESTING', {rest_detail}
  FROM source_rest s
 WHERE s.until > :now
   AND EXISTS (SELECT 1 FROM level CROSS JOIN worker_job_queue q INDEXED BY job_due ON q.priority = level.priority
                CROSS JOIN worker_job_attempt a ON a.job_id = q.id AND a.fence = q.fence AND a.outcome = 'snoozed'
                WHERE q.status = 'pending' AND q.held & 3 AND q.run_at > :now AND q.source = s.source)
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

-- name: count_ahead
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
