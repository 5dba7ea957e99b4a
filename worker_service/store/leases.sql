-- Claims, beats and reports of attempts, and their ends. schema.sql names the bits of `held`.


-- ── Claim ───────────────────────────────────────────────────────────────────────────────────────────────────────

-- fragment: lanes
-- A loose index scan: one seek for each lane, that is, each distinct (job_type, owner, source), however many jobs it
-- has. The head of a lane is its first job. No priority is as high as 11, so the seek lands behind the whole lane. The
-- plus signs make SQLite use all four columns in the seek.
lane(job_type, owner, source, head, priority, created_at, concurrency_key) AS (
SELECT q.job_type, q.owner, q.source, q.id, q.priority, q.created_at, q.concurrency_key
  FROM worker_job_queue q
 WHERE q.id = (SELECT f.id FROM worker_job_queue f INDEXED BY job_ready
                WHERE f.status = 'pending' AND f.held = 0
                ORDER BY f.job_type, f.owner, f.source, f.priority, f.created_at, f.id LIMIT 1)
 UNION ALL
SELECT q.job_type, q.owner, q.source, q.id, q.priority, q.created_at, q.concurrency_key
  FROM lane CROSS JOIN worker_job_queue q
 WHERE q.id = (SELECT n.id FROM worker_job_queue n INDEXED BY job_ready
                WHERE n.status = 'pending' AND n.held = 0
                  AND (n.job_type, n.owner, n.source, n.priority) > (+lane.job_type, +lane.owner, +lane.source, 11)
                ORDER BY n.job_type, n.owner, n.source, n.priority, n.created_at, n.id LIMIT 1))

-- fragment: may_start
-- Condition: this worker may start a job of the lane now, in this class. The first EXISTS is evaluated once for all
-- lanes; if nothing is paused, limited or resting, the gates of the lanes are not evaluated.
FROM worker w
 CROSS JOIN handler mine ON mine.worker_id = w.id AND mine.job_type = lane.job_type AND mine.class = :job_class
 WHERE w.id = :worker_id AND NOT EXISTS ({worker_gates})
   AND NOT ((SELECT EXISTS (SELECT 1 FROM pause) OR EXISTS (SELECT 1 FROM source_rest)
                    OR EXISTS (SELECT 1 FROM job_limit WHERE kind <> 'payload'))
            AND EXISTS ({lane_gates}))

-- fragment: owner_turn
ifnull((SELECT o.served FROM owner_served o WHERE o.owner = lane.owner), 0)

-- fragment: lane_as_bytes
CAST(lane.job_type AS BLOB), CAST(lane.owner AS BLOB), CAST(lane.source AS BLOB), {owner_turn}

-- name: record_turns
-- Numbers from 10^15 on can only have been written by hand and are ignored.
INSERT INTO owner_served (owner, served)
SELECT o.value, ifnull((SELECT max(served) FROM owner_served WHERE served < 1000000000000000), 0) + o.key + 1
  FROM json_each(:owners) o WHERE true
    ON CONFLICT (owner) DO UPDATE SET served = excluded.served
RETURNING CAST(owner AS BLOB), served;

-- name: owner_served_last
SELECT owner FROM owner_served ORDER BY served DESC LIMIT 1;

-- name: lanes_of_worker
-- The lanes of the types that the worker runs in this class: the first job of each, and whether it may be started.
WITH RECURSIVE {lanes}
SELECT lane.priority, CAST(lane.created_at AS BLOB), lane.head, CAST(lane.concurrency_key AS BLOB),
       {lane_as_bytes}, EXISTS (SELECT 1 {may_start})
  FROM lane
 CROSS JOIN handler h ON h.worker_id = :worker_id AND h.job_type = lane.job_type AND h.class = :job_class;

-- name: lanes_of_jobs
-- The same for the lanes of these jobs, whatever their status is now.
SELECT h.priority, CAST(h.created_at AS BLOB), h.id, lane.id, {lane_as_bytes},
       EXISTS (SELECT 1 FROM handler m
                WHERE m.worker_id = :worker_id AND m.job_type = lane.job_type AND m.class = :job_class)
  FROM json_each(:ids) w CROSS JOIN worker_job_queue lane ON lane.id = w.value
  LEFT JOIN worker_job_queue h
    ON h.id = (SELECT f.id FROM worker_job_queue f INDEXED BY job_ready
                WHERE f.status = 'pending' AND f.held = 0
                  AND f.job_type = lane.job_type AND f.owner = lane.owner AND f.source = lane.source
                ORDER BY f.priority, f.created_at, f.id LIMIT 1);

-- name: jobs_behind
SELECT n.priority, CAST(n.created_at AS BLOB), n.id, CAST(n.concurrency_key AS BLOB)
  FROM worker_job_queue o CROSS JOIN worker_job_queue n INDEXED BY job_ready
    ON n.status = 'pending' AND n.held = 0 AND n.job_type = o.job_type AND n.owner = o.owner AND n.source = o.source
   AND (n.priority, n.created_at, n.id) > (+o.priority, +o.created_at, +o.id)
 WHERE o.id = :job_id
 ORDER BY n.priority, n.created_at, n.id LIMIT :most;

-- name: running_by_lane
SELECT CAST(owner AS BLOB), CAST(job_type AS BLOB), count(*) FROM worker_job_queue WHERE status = 'running' GROUP BY 1, 2;

-- name: lane_limits
SELECT kind, CAST(name AS BLOB), most FROM job_limit WHERE kind IN ('type', 'owner');

-- name: class_capacity
-- Number of jobs of this class that may still be started, by the worker's slots and by the class limit (P8).
SELECT min(CASE :job_class WHEN 'cpu' THEN w.cpu_slots WHEN 'io' THEN w.io_slots ELSE w.node_slots END + :prefetched
               - ({running_in_class} AND r.worker_id = w.id AND c.class = :job_class),
           ifnull((SELECT l.most - ({running_in_class} AND c.class = :job_class)
                     FROM job_limit l WHERE l.kind = 'class' AND l.name = :job_class), 1000000))
  FROM worker w WHERE w.id = :worker_id;

-- fragment: levels
-- The index job_due begins with the priority, so queries by run_at seek once for each priority.
level(priority) AS (VALUES (1), (2), (3), (4), (5), (6), (7), (8), (9), (10))

-- fragment: clear_progress
progress_percent = 0, progress_done = NULL, progress_total = NULL, progress_rate = NULL, progress_unit = NULL,
       progress_at = NULL, progress_message = NULL

-- fragment: as_running
status = 'running', fence = max(fence, ifnull((SELECT max(r.fence) FROM restored r), 0)) + 1,
       worker_id = :worker_id, started_at = :now, heartbeat_at = :now,
       {clear_progress}

-- name: has_unsettled_or_due
-- True if a claim must first settle ended jobs or free jobs whose time has come.
WITH {levels}
SELECT {anything_to_settle}
       OR EXISTS (SELECT 1 FROM level CROSS JOIN worker_job_queue q INDEXED BY job_due
                   WHERE q.priority = level.priority AND q.run_at <= :now AND q.status = 'pending' AND q.held & 3);

-- name: record_due_time
-- The guard of `held` refuses to free a job whose run_at is later than this time.
INSERT INTO due_until (id, at) VALUES (1, :now) ON CONFLICT (id) DO UPDATE SET at = excluded.at;

-- name: free_due_jobs
-- Best priority first, and a limited number per call, so that a large backlog does not cause a long transaction.
WITH {levels}
UPDATE worker_job_queue
   SET held = held & ~3
 WHERE id IN (SELECT q.id
                FROM level CROSS JOIN worker_job_queue q INDEXED BY job_due
               WHERE q.priority = level.priority AND q.run_at <= :now AND q.status = 'pending' AND q.held & 3
               LIMIT :most);

-- name: claim_one
-- Claims the job only if it is still ready and may be started.
UPDATE worker_job_queue AS lane
   SET {as_running}
 WHERE id = :id AND status = 'pending' AND held = 0 AND EXISTS (SELECT 1 {may_start})
RETURNING {job_columns};

-- name: claim
-- Needs no guard: the job was chosen under the same write lock. A trigger opens the attempt.
UPDATE worker_job_queue
   SET {as_running}
 WHERE id = :id
RETURNING {job_columns};

-- name: claim_many
-- For many jobs, reading them with a second statement (`claimed_jobs`) takes a sixth less time than RETURNING.
UPDATE worker_job_queue
   SET {as_running}
 WHERE id IN (SELECT value FROM json_each(:ids));

-- name: claimed_jobs
SELECT {job_columns} FROM worker_job_queue WHERE id IN (SELECT value FROM json_each(:ids));

-- name: job_as_bytes
SELECT fence, {job_columns_as_bytes} FROM worker_job_queue WHERE id = :job_id;

-- name: worker_is_known
SELECT id FROM worker WHERE id = :worker_id;


-- ── Beat, report ────────────────────────────────────────────────────────────────────────────────────────────────

-- name: beat
UPDATE worker SET heartbeat_at = :now WHERE id = :worker_id RETURNING id;

-- name: beat_leases
-- The plus makes the planner look up the ids; by status, it would scan the leases once for each running job.
UPDATE worker_job_queue
   SET heartbeat_at = :now
  FROM json_each(:leases) l
 WHERE worker_job_queue.id = l.value ->> 0 AND fence = l.value ->> 1 AND worker_id = :worker_id AND +status = 'running'
RETURNING worker_job_queue.id, fence, cancel_requested_at IS NOT NULL;

-- name: report
-- The percentage of an attempt never falls (P10). The counts belong to a phase of the attempt and are replaced.
UPDATE worker_job_queue
   SET progress_percent = max(progress_percent, :percent), progress_message = ifnull(:message, progress_message),
       progress_done = iif(:has_progress, :done, progress_done),
       progress_total = iif(:has_progress, :total, progress_total),
       progress_rate = iif(:has_progress, :rate, progress_rate),
       progress_unit = iif(:has_progress, :unit, progress_unit),
       progress_at = iif(:has_lines OR :percent > progress_percent OR (:has_progress AND :done IS NOT progress_done)
                         OR :message <> progress_message OR (:message IS NOT NULL AND progress_message IS NULL),
                         :now, progress_at)
 WHERE id = :job_id AND fence = :fence AND worker_id = :worker_id AND status = 'running'
RETURNING id;

-- name: record_child
UPDATE worker_job_attempt
   SET heard_at = :now, pid = ifnull(:pid, pid), pid_started = ifnull(:pid_started, pid_started),
       sandbox = ifnull(:sandbox, sandbox), node = ifnull(:node, node)
 WHERE job_id = :job_id AND fence = :fence AND ended_at IS NULL;

-- name: add_log_lines
INSERT INTO worker_job_log (job_id, fence, at, line) VALUES (?, ?, ?, ?);

-- name: trim_log
DELETE FROM worker_job_log
 WHERE job_id = :job_id
   AND id <= (SELECT id FROM worker_job_log WHERE job_id = :job_id ORDER BY id DESC LIMIT 1 OFFSET :most);


-- ── Ends of an attempt ──────────────────────────────────────────────────────────────────────────────────────────

-- fragment: holds_lease
-- The fence makes a late writer harmless: a worker that has lost its lease matches no row (P2). After a request to
-- cancel, the attempt can only end as cancelled (P7).
EXISTS (SELECT 1 FROM worker_job_queue q
         WHERE q.id = :job_id AND q.fence = :fence AND q.worker_id = :worker_id AND q.status = 'running'
           AND (q.cancel_requested_at IS NOT NULL) = (:outcome = 'cancelled'))

-- name: close_attempt
-- Must be the first statement of every ending: a trigger refuses to change a running job whose attempt is open (P1).
UPDATE worker_job_attempt
   SET ended_at = :now, outcome = :outcome, error_code = :error_code, error_message = :error_message,
       error_remedy = :error_remedy, signal = :signal, cpu_seconds = :cpu_seconds, memory_peak_bytes = :memory_peak_bytes
 WHERE job_id = :job_id AND fence = :fence AND ended_at IS NULL AND {holds_lease}
RETURNING job_id, fence;

-- name: close_completed
-- `close_attempt` with its guards for many jobs at once. NOT INDEXED: look up by rowid instead of scanning running
-- jobs. Values are bound by position, because extracting them from JSON would double the time.
WITH d(job_id, fence, worker_id, signal, cpu_seconds, memory_peak_bytes, pid, pid_started, sandbox, node)
  AS (VALUES {closing_row})
UPDATE worker_job_attempt
   SET ended_at = ?, outcome = 'completed', signal = d.signal, cpu_seconds = d.cpu_seconds,
       memory_peak_bytes = d.memory_peak_bytes, pid = ifnull(d.pid, worker_job_attempt.pid),
       pid_started = ifnull(d.pid_started, worker_job_attempt.pid_started),
       sandbox = ifnull(d.sandbox, worker_job_attempt.sandbox), node = ifnull(d.node, worker_job_attempt.node)
  FROM d
  CROSS JOIN worker_job_queue q NOT INDEXED
    ON q.id = d.job_id AND q.fence = d.fence AND q.worker_id = d.worker_id AND q.status = 'running'
   AND q.cancel_requested_at IS NULL
 WHERE worker_job_attempt.job_id = q.id AND worker_job_attempt.fence = q.fence AND ended_at IS NULL;

-- name: complete
WITH d(job_id, fence, worker_id, result) AS (VALUES {completed_row})
UPDATE worker_job_queue NOT INDEXED
   SET status = 'completed', completed_at = ?, result = d.result, progress_percent = 100,
       error_code = NULL, error_message = NULL, error_remedy = NULL
  FROM d
 WHERE worker_job_queue.id = d.job_id AND worker_job_queue.fence = d.fence AND worker_job_queue.worker_id = d.worker_id
   AND status = 'running' AND cancel_requested_at IS NULL
RETURNING id, fence, worker_id, generation IS NOT NULL;

-- name: has_retry_left
SELECT retry_count < max_retries FROM worker_job_queue
 WHERE id = :job_id AND fence = :fence AND worker_id = :worker_id AND status = 'running';

-- name: requested_cancel
-- Returns a row if the lease holds but the job was asked to stop: whether its document has a newer generation.
SELECT q.generation IS NOT NULL
       AND NOT EXISTS (SELECT 1 FROM document d WHERE d.id = q.document_id AND d.index_generation = q.generation)
  FROM worker_job_queue q
 WHERE q.id = :job_id AND q.fence = :fence AND q.worker_id = :worker_id AND q.status = 'running'
   AND q.cancel_requested_at IS NOT NULL;

-- fragment: ended_early
-- Clears the rate, which is no longer valid, and the progress message.
completed_at = :now, progress_rate = NULL, progress_message = NULL

-- name: fail
UPDATE worker_job_queue
   SET {ended_early}, status = 'failed', error_code = :error_code, error_message = :error_message,
       error_remedy = :error_remedy
 WHERE id = :job_id AND fence = :fence AND status = 'running';

-- fragment: pending_again
status = 'pending', worker_id = NULL, started_at = NULL, heartbeat_at = NULL,
       {clear_progress}

-- name: fail_with_retry
UPDATE worker_job_queue
   SET {pending_again}, retry_count = retry_count + 1, run_at = :run_at,
       held = 2 | (concurrency_key IS NOT NULL) * 8, error_code = :error_code, error_message = :error_message,
       error_remedy = :error_remedy
 WHERE id = :job_id AND fence = :fence AND status = 'running';

-- name: snooze
UPDATE worker_job_queue
   SET {pending_again}, run_at = :run_at, held = 1 | (concurrency_key IS NOT NULL) * 8
 WHERE id = :job_id AND fence = :fence AND status = 'running';

-- name: release
UPDATE worker_job_queue
   SET {pending_again}, run_at = NULL, held = (concurrency_key IS NOT NULL) * 8
 WHERE id = :job_id AND fence = :fence AND status = 'running';

-- name: confirm_cancel
UPDATE worker_job_queue
   SET {ended_early}, status = 'cancelled'
 WHERE id = :job_id AND fence = :fence AND status = 'running';

-- name: confirm_cancel_stale
UPDATE worker_job_queue
   SET {ended_early}, status = 'cancelled', error_code = :error_code, error_message = :error_message,
       error_remedy = :error_remedy
 WHERE id = :job_id AND fence = :fence AND status = 'running';

-- name: stale_work
-- Returns a row if the job's generation is no longer the newest of its document.
SELECT q.document_id, q.generation FROM worker_job_queue q
 WHERE q.id = :job_id AND q.generation IS NOT NULL
   AND NOT EXISTS (SELECT 1 FROM document d WHERE d.id = q.document_id AND d.index_generation = q.generation);

-- fragment: orphan_fate
CASE WHEN q.cancel_requested_at IS NOT NULL THEN 'cancelled'
            WHEN EXISTS (SELECT 1 FROM handler h WHERE h.worker_id = q.worker_id AND h.job_type = q.job_type
                                                   AND h.at_most_once) THEN 'at most once'
            WHEN q.requeue_count >= :requeues_max THEN 'too often'
            ELSE 'pending' END

-- name: orphans
SELECT q.id AS job_id, q.fence, q.worker_id, {orphan_fate} AS fate
  FROM worker_job_queue q
 WHERE q.status = 'running' AND q.worker_id = :worker_id;

-- name: fate_of_orphan
SELECT {orphan_fate} FROM worker_job_queue q
 WHERE q.id = :job_id AND q.fence = :fence AND q.worker_id = :worker_id AND q.status = 'running';

-- name: requeue
UPDATE worker_job_queue
   SET {pending_again}, requeue_count = requeue_count + 1, run_at = NULL,
       held = (concurrency_key IS NOT NULL) * 8
 WHERE id = :job_id AND fence = :fence AND status = 'running';

-- name: has_beaten_since
SELECT 1 FROM worker WHERE id = :worker_id AND heartbeat_at <> :last_beat;

-- name: forget_worker
DELETE FROM worker WHERE id = :worker_id;

-- name: rest_source
INSERT INTO source_rest (source, until, reason) VALUES (:source, :until, :reason)
    ON CONFLICT (source) DO UPDATE SET until = max(until, excluded.until), reason = excluded.reason;


-- ── Questions of the daemon ─────────────────────────────────────────────────────────────────────────────────────

-- name: leases_of
SELECT q.id, q.fence, q.cancel_requested_at IS NOT NULL,
       q.cancel_requested_at IS NOT NULL
       AND EXISTS (SELECT 1 FROM worker_job_attempt a
                    WHERE a.job_id = q.id AND a.fence = q.fence AND a.without_grace),
       EXISTS (SELECT 1 FROM batch b WHERE b.id = q.batch_id AND b.state IN ('stopped', 'waiting'))
  FROM worker_job_queue q
 WHERE q.status = 'running' AND q.worker_id = :worker_id;

-- name: next_deadline
WITH {levels}
SELECT min(at) FROM (
    SELECT (SELECT min(q.run_at) FROM worker_job_queue q INDEXED BY job_due
             WHERE q.priority = level.priority AND q.status = 'pending' AND q.held & 3) AS at
      FROM level
    UNION ALL SELECT :now WHERE {anything_to_settle}
    UNION ALL SELECT until FROM pause WHERE until > :now
    UNION ALL SELECT until FROM source_rest WHERE until > :now);

-- name: has_job_due
WITH {levels}
SELECT EXISTS (SELECT 1 FROM level CROSS JOIN worker_job_queue q INDEXED BY job_due
                WHERE q.priority = level.priority AND q.run_at <= :until AND q.status = 'pending' AND q.held & 3
                  AND NOT q.held & 20
                  AND EXISTS (SELECT 1 FROM handler h
                               WHERE h.worker_id = :worker_id AND h.job_type = q.job_type AND h.missing IS NULL));

-- name: has_no_effects
-- True if there are no checkpoints, and no job, document or batch waits for an ended job.
SELECT NOT EXISTS (SELECT 1 FROM checkpoint) AND NOT ({anything_to_settle});
