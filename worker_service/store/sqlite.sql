-- The statements of the SQLite store, verb by verb, in the order of base.py.
-- They run on the SQLite that comes with apsw; only schema.sql must also work on older ones.


-- ── Intake ──────────────────────────────────────────────────────────────────────────────────────────────────────

-- fragment: new_job
INSERT INTO worker_job_queue
       (job_type, platform, account, payload, priority, owner, source, run_at, created_at, max_retries,
        timeout_seconds, unique_key, concurrency_key, batch_id, document_id, generation, parent_id, name, source_key)

-- name: enqueue_rows
-- Twice as fast as a statement for each: AUTOINCREMENT keeps its books once.
{new_job}
VALUES {new_rows};

-- name: enqueue
-- The table decides, never a look before: of two producers with one unique_key, one inserts and one is refused.
{new_job}
VALUES (:job_type, :platform, :account, :payload, :priority, :owner, :source, :run_at, :now, :max_retries,
        :timeout_seconds, :unique_key, :concurrency_key, :batch_id, :document_id, :generation, :parent_id,
        :name, :source_key);

-- name: live_with_unique_key
SELECT id FROM worker_job_queue
 WHERE unique_key = :unique_key AND unique_key IS NOT NULL AND status IN ('pending', 'running');

-- name: wait_for
INSERT INTO worker_job_dependency (job_id, needs_id, needs) VALUES (:job_id, :needs_id, :needs)
    ON CONFLICT DO NOTHING;


-- ── Leases ──────────────────────────────────────────────────────────────────────────────────────────────────────

-- name: register
INSERT INTO worker (id, host, boot_id, pid, version, cpu_slots, io_slots, started_at, heartbeat_at)
VALUES (:id, :host, :boot_id, :pid, :version, :cpu_slots, :io_slots, :now, :now)
    ON CONFLICT (id) DO UPDATE SET host = excluded.host, boot_id = excluded.boot_id, pid = excluded.pid, cpu_slots = excluded.cpu_slots, io_slots = excluded.io_slots,
       version = excluded.version, draining = 0, disk_low = 0, heartbeat_at = excluded.heartbeat_at;

-- name: forget_handlers
DELETE FROM handler WHERE worker_id = :worker_id;

-- name: register_handler
INSERT INTO handler (worker_id, job_type, class, missing, at_most_once, timeout_seconds, payload_schema, choices)
VALUES (:worker_id, :job_type, :job_class, :missing, :at_most_once, :timeout_seconds, :payload_schema, :choices);

-- name: deregister
DELETE FROM worker
 WHERE id = :worker_id
   AND NOT EXISTS (SELECT 1 FROM worker_job_queue WHERE status = 'running' AND worker_id = :worker_id)
RETURNING id;

-- name: set_worker_state
UPDATE worker SET draining = :draining, disk_low = :disk_low WHERE id = :worker_id RETURNING id;

-- name: forget_limits
DELETE FROM job_limit WHERE kind = :kind;

-- name: set_limit
INSERT INTO job_limit (kind, name, most) VALUES (:kind, :name, :most);

-- name: set_payload_limit
INSERT INTO job_limit (kind, name, most) VALUES ('payload', 'bytes', :most)
    ON CONFLICT DO UPDATE SET most = excluded.most WHERE most <> excluded.most;

-- name: free_due
-- Best priority first, a bounded number at a time: a night's backlog falls due without a long transaction.
WITH level(priority) AS (VALUES (1), (2), (3), (4), (5), (6), (7), (8), (9), (10))
UPDATE worker_job_queue
   SET held = held & ~3
 WHERE id IN (SELECT q.id
                FROM level CROSS JOIN worker_job_queue q INDEXED BY job_due
               WHERE q.priority = level.priority AND q.run_at <= :now AND q.status = 'pending' AND q.held & 3
               LIMIT :most);

-- fragment: lanes
-- A loose scan: one seek for each distinct (job_type, owner, source), however many jobs stand in it.
SELECT q.job_type, q.owner, q.source
  FROM worker_job_queue q
 WHERE q.id = (SELECT f.id FROM worker_job_queue f INDEXED BY job_ready
                WHERE f.status = 'pending' AND f.held = 0
                ORDER BY f.job_type, f.owner, f.source LIMIT 1)
 UNION ALL
SELECT q.job_type, q.owner, q.source
  FROM lane CROSS JOIN worker_job_queue q
 WHERE q.id = coalesce(
       (SELECT n.id FROM worker_job_queue n INDEXED BY job_ready
         WHERE n.status = 'pending' AND n.held = 0
           AND n.job_type = lane.job_type AND n.owner = lane.owner AND n.source > lane.source
         ORDER BY n.source LIMIT 1),
       (SELECT n.id FROM worker_job_queue n INDEXED BY job_ready
         WHERE n.status = 'pending' AND n.held = 0 AND n.job_type = lane.job_type AND n.owner > lane.owner
         ORDER BY n.owner, n.source LIMIT 1),
       (SELECT n.id FROM worker_job_queue n INDEXED BY job_ready
         WHERE n.status = 'pending' AND n.held = 0 AND n.job_type > lane.job_type
         ORDER BY n.job_type, n.owner, n.source LIMIT 1))

-- fragment: running_in_class
SELECT count(*) FROM worker_job_queue r CROSS JOIN handler c ON c.worker_id = r.worker_id AND c.job_type = r.job_type
                WHERE r.status = 'running'

-- fragment: worker_gates
-- Why worker w may not start a job of this lane now. The rank is the order in which `why` prints.
SELECT 1 AS rank, 'WORKER_DOWN' AS code, 'worker ' || w.id || ' has not beaten since ' || w.heartbeat_at AS detail
 WHERE w.heartbeat_at <= :stale_before
 UNION ALL
SELECT 3, 'DRAINING', 'worker ' || w.id || ' finishes what it has and claims no more'
 WHERE w.draining
 UNION ALL
SELECT 10, 'SLOTS_FULL', 'all ' || h.class || ' slots of worker ' || w.id || ' are taken'
  FROM handler h
 WHERE h.worker_id = w.id AND h.job_type = lane.job_type
   -- Those that wait behind another one in the same slot take none: the worker that claims knows how many.
   AND ({running_in_class} AND r.worker_id = w.id AND c.class = h.class) - :behind
       >= CASE h.class WHEN 'cpu' THEN w.cpu_slots ELSE w.io_slots END
 UNION ALL
SELECT 11, 'CAPABILITY_MISSING', h.missing
  FROM handler h
 WHERE h.worker_id = w.id AND h.job_type = lane.job_type AND h.missing IS NOT NULL
 UNION ALL
SELECT 12, 'UNKNOWN_TYPE', 'worker ' || w.id || ' has no handler for ' || lane.job_type
 WHERE NOT EXISTS (SELECT 1 FROM handler h WHERE h.worker_id = w.id AND h.job_type = lane.job_type)
 UNION ALL
SELECT 13, 'DISK_LOW', 'worker ' || w.id || ' has too little free disk space to begin anything'
 WHERE w.disk_low

-- fragment: lane_gates
-- Why no worker may start a job of this lane now.
SELECT 2 AS rank, 'PAUSED' AS code,
       CASE p.scope WHEN 'all' THEN 'everything' ELSE p.scope || ' ' || p.name END || ' is paused'
       || ifnull(' until ' || p.until, '') || ifnull(': ' || p.reason, '') AS detail
  FROM pause p
 WHERE (p.scope = 'all' OR p.name = CASE p.scope WHEN 'type' THEN lane.job_type ELSE lane.owner END)
   AND (p.until IS NULL OR p.until > :now)
 UNION ALL
SELECT 7, 'OWNER_BUSY', lane.owner || ' already runs ' || l.most || ' of ' || l.most || ' jobs'
  FROM job_limit l
 WHERE l.kind = 'owner'
   AND l.name = CASE WHEN EXISTS (SELECT 1 FROM job_limit o WHERE o.kind = 'owner' AND o.name = lane.owner)
                     THEN lane.owner WHEN lane.owner <> '' THEN '*' END
   AND l.most <= (SELECT count(*) FROM worker_job_queue r WHERE r.status = 'running' AND r.owner = lane.owner)
 UNION ALL
SELECT 9, 'TYPE_FULL', l.most || ' of ' || l.most || ' jobs of ' || l.kind || ' ' || l.name || ' are running'
  FROM job_limit l
 WHERE l.kind = 'type' AND l.name = lane.job_type
   AND l.most <= (SELECT count(*) FROM worker_job_queue r WHERE r.status = 'running' AND r.job_type = lane.job_type)
 UNION ALL
SELECT 9, 'TYPE_FULL', l.most || ' of ' || l.most || ' jobs of ' || l.kind || ' ' || l.name || ' are running'
  FROM job_limit l
 WHERE l.kind = 'class' AND EXISTS (SELECT 1 FROM handler h WHERE h.job_type = lane.job_type AND h.class = l.name)
   AND l.most <= ({running_in_class} AND c.class = l.name)
 UNION ALL
SELECT 14, 'SOURCE_RESTING', s.source || ' rests until ' || s.until || ifnull(': ' || s.reason, '')
  FROM source_rest s
 WHERE s.source = lane.source AND s.until > :now

-- fragment: open_lanes
-- The lanes that this worker may take a job from now, in this class.
  FROM lane
 CROSS JOIN worker w ON w.id = :worker_id
 CROSS JOIN handler mine ON mine.worker_id = w.id AND mine.job_type = lane.job_type AND mine.class = :job_class
 WHERE NOT EXISTS ({worker_gates}) AND NOT EXISTS ({lane_gates})

-- fragment: owner_running
(SELECT count(*) FROM worker_job_queue r WHERE r.status = 'running' AND r.owner = lane.owner)

-- fragment: served
ifnull((SELECT o.served FROM owner_served o WHERE o.owner = lane.owner), 0)

-- fragment: taken
status = 'running', fence = fence + 1, worker_id = :worker_id, started_at = :now, heartbeat_at = :now,
       progress_percent = 0, progress_message = NULL

-- fragment: whose_turn
-- Who is next for this worker and class: of the open lanes, the first jobs; of their owners, the one with the fewest
-- running, then the one served longest ago (P9); then priority, age, id.
WITH RECURSIVE lane(job_type, owner, source) AS ({lanes}),
head AS (
    SELECT (SELECT f.id FROM worker_job_queue f INDEXED BY job_ready
             WHERE f.status = 'pending' AND f.held = 0
               AND f.job_type = lane.job_type AND f.owner = lane.owner AND f.source = lane.source
             ORDER BY f.priority, f.created_at, f.id LIMIT 1) AS id,
           {owner_running} AS owner_running, {served} AS served
    {open_lanes})
SELECT q.id FROM head CROSS JOIN worker_job_queue q ON q.id = head.id
 ORDER BY head.owner_running, head.served, q.priority, q.created_at, q.id LIMIT 1;

-- name: next_turn
{whose_turn};

-- name: claim_one
UPDATE worker_job_queue
   SET {taken}
 WHERE id = ({whose_turn})
RETURNING {job_columns};

-- name: claim
-- As many turns at once. No limit is passed (P8): how much room type, owner, class and slots have left is counted
-- over the running rows, under the write lock. One statement chooses and takes; its trigger opens the attempts.
WITH RECURSIVE lane(job_type, owner, source) AS ({lanes}),
open AS MATERIALIZED (
    SELECT lane.job_type, lane.owner, lane.source, {owner_running} AS owner_running, {served} AS served,
           ifnull((SELECT l.most - (SELECT count(*) FROM worker_job_queue r
                                     WHERE r.status = 'running' AND r.job_type = lane.job_type)
                     FROM job_limit l WHERE l.kind = 'type' AND l.name = lane.job_type), :most) AS type_room,
           ifnull((SELECT l.most - {owner_running}
                     FROM job_limit l
                    WHERE l.kind = 'owner' AND (l.name = lane.owner OR (l.name = '*' AND lane.owner <> ''))
                    ORDER BY l.name = '*' LIMIT 1), :most) AS owner_room,
           min(:most,
               CASE :job_class WHEN 'cpu' THEN w.cpu_slots ELSE w.io_slots END + :behind
                   - ({running_in_class} AND r.worker_id = w.id AND c.class = :job_class),
               ifnull((SELECT l.most - ({running_in_class} AND c.class = :job_class)
                         FROM job_limit l WHERE l.kind = 'class' AND l.name = :job_class), :most)) AS room
    {open_lanes}),
sample(most) AS (SELECT min(:most, max(1, 2000 / max(1, count(*)))) FROM open),
candidate AS MATERIALIZED (
    SELECT q.id, q.job_type, q.owner, q.source, q.priority, q.created_at, ifnull(q.concurrency_key, q.id) AS key,
           open.served, open.type_room, open.owner_room, open.owner_running,
           row_number() OVER (PARTITION BY q.owner ORDER BY q.priority, q.created_at, q.id) AS nth
      FROM open CROSS JOIN worker_job_queue q
     WHERE q.id IN (SELECT f.id FROM worker_job_queue f INDEXED BY job_ready
                     WHERE f.status = 'pending' AND f.held = 0 AND f.job_type = open.job_type
                       AND f.owner = open.owner AND f.source = open.source
                     ORDER BY f.priority, f.created_at, f.id LIMIT (SELECT most FROM sample))),
turn AS MATERIALIZED (
    SELECT id, job_type, owner, source, type_room,
           row_number() OVER (PARTITION BY key
                              ORDER BY owner_running + nth, served, priority, created_at, id) AS key_nth,
           row_number() OVER (PARTITION BY job_type
                              ORDER BY owner_running + nth, served, priority, created_at, id) AS type_nth,
           row_number() OVER (ORDER BY owner_running + nth, served, priority, created_at, id) AS nth
      FROM candidate WHERE nth <= owner_room)
UPDATE worker_job_queue
   SET {taken}
 WHERE id IN (
    SELECT id FROM turn
     WHERE type_nth <= type_room AND key_nth = 1
       -- Ahead of a free slot only as far as the turns are of types that have one: nobody is overtaken.
       AND nth < ifnull((SELECT min(nth) FROM turn
                          WHERE :only IS NOT NULL AND job_type NOT IN (SELECT value FROM json_each(:only))), nth + 1)
       -- Behind the last one seen of a lane that has more, another of that lane may come first: the next round's.
       AND nth <= ifnull((SELECT min(last) FROM (SELECT max(nth) AS last FROM turn GROUP BY job_type, owner, source
                                                 HAVING count(*) >= (SELECT most FROM sample))), nth)
     ORDER BY nth LIMIT ifnull((SELECT min(room) FROM open), 0))
RETURNING {job_columns};

-- name: worker_is_known
SELECT id FROM worker WHERE id = :worker_id;

-- name: served
-- Skipped where it would change nothing: one owner, served last time as well. A number that nobody can have counted up
-- to, a hand's, does not count.
INSERT INTO owner_served (owner, served)
SELECT o.value, ifnull((SELECT max(served) FROM owner_served WHERE served < 1000000000000000), 0) + o.key + 1
  FROM json_each(:owners) o
 WHERE json_array_length(:owners) > 1
    OR o.value IS NOT (SELECT owner FROM owner_served ORDER BY served DESC LIMIT 1)
    ON CONFLICT (owner) DO UPDATE SET served = excluded.served;

-- name: beat
UPDATE worker SET heartbeat_at = :now WHERE id = :worker_id RETURNING id;

-- name: beat_leases
-- The plus keeps the planner at the ids: by status it would look through the leases once for each running job.
UPDATE worker_job_queue
   SET heartbeat_at = :now
  FROM json_each(:leases) l
 WHERE worker_job_queue.id = l.value ->> 0 AND fence = l.value ->> 1 AND worker_id = :worker_id AND +status = 'running'
RETURNING worker_job_queue.id, fence, cancel_requested_at IS NOT NULL;

-- name: report
-- Progress of an attempt never falls (P10).
UPDATE worker_job_queue
   SET progress_percent = max(progress_percent, :percent), progress_message = ifnull(:message, progress_message)
 WHERE id = :job_id AND fence = :fence AND worker_id = :worker_id AND status = 'running'
RETURNING id;

-- name: heard
UPDATE worker_job_attempt
   SET heard_at = :now, pid = ifnull(:pid, pid), pid_started = ifnull(:pid_started, pid_started),
       sandbox = ifnull(:sandbox, sandbox)
 WHERE job_id = :job_id AND fence = :fence AND ended_at IS NULL;

-- name: log
INSERT INTO worker_job_log (job_id, fence, at, line) VALUES (:job_id, :fence, :now, :line);

-- name: trim_log
DELETE FROM worker_job_log
 WHERE job_id = :job_id
   AND id <= (SELECT id FROM worker_job_log WHERE job_id = :job_id ORDER BY id DESC LIMIT 1 OFFSET :most);

-- fragment: holds_lease
-- The fence makes a late writer harmless: a worker that lost its lease matches no row (P2). After a request to
-- cancel, nothing lands but the end of the cancellation (P7).
EXISTS (SELECT 1 FROM worker_job_queue q
         WHERE q.id = :job_id AND q.fence = :fence AND q.worker_id = :worker_id AND q.status = 'running'
           AND (q.cancel_requested_at IS NOT NULL) = (:outcome = 'cancelled'))

-- name: close_attempt
-- First in every ending of an attempt: the table lets no running row move while its attempt is open (P1).
UPDATE worker_job_attempt
   SET ended_at = :now, outcome = :outcome, error_code = :error_code, error_message = :error_message,
       signal = :signal, cpu_seconds = :cpu_seconds, memory_peak_bytes = :memory_peak_bytes
 WHERE job_id = :job_id AND fence = :fence AND ended_at IS NULL AND {holds_lease}
RETURNING job_id, fence;

-- name: close_completed
-- `close_attempt` and its guards for many at once. NOT INDEXED: by rowid, never through all that run.
UPDATE worker_job_attempt
   SET ended_at = :now, outcome = 'completed', signal = d.value ->> 3, cpu_seconds = d.value ->> 4,
       memory_peak_bytes = d.value ->> 5, pid = ifnull(d.value ->> 7, pid),
       pid_started = ifnull(d.value ->> 8, pid_started), sandbox = ifnull(d.value ->> 9, sandbox)
  FROM json_each(:done) d
  CROSS JOIN worker_job_queue q NOT INDEXED
    ON q.id = d.value ->> 0 AND q.fence = d.value ->> 1 AND q.worker_id = d.value ->> 2 AND q.status = 'running'
   AND q.cancel_requested_at IS NULL
 WHERE worker_job_attempt.job_id = q.id AND worker_job_attempt.fence = q.fence AND ended_at IS NULL
RETURNING job_id, worker_job_attempt.fence;

-- name: complete
UPDATE worker_job_queue NOT INDEXED
   SET status = 'completed', completed_at = :now, result = d.value ->> 6, progress_percent = 100,
       error_code = NULL, error_message = NULL
  FROM json_each(:done) d
 WHERE worker_job_queue.id = d.value ->> 0 AND worker_job_queue.fence = d.value ->> 1 AND status = 'running'
RETURNING id, document_id, generation, owner, platform, name;

-- name: fail
UPDATE worker_job_queue
   SET status = 'failed', completed_at = :now, error_code = :error_code, error_message = :error_message
 WHERE id = :job_id AND fence = :fence AND status = 'running';

-- fragment: pending_again
status = 'pending', worker_id = NULL, started_at = NULL, heartbeat_at = NULL, progress_percent = 0,
       progress_message = NULL

-- name: fail_for_now
UPDATE worker_job_queue
   SET {pending_again}, retry_count = retry_count + 1, run_at = :run_at,
       held = 2 | (concurrency_key IS NOT NULL) * 8, error_code = :error_code, error_message = :error_message
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
   SET status = 'cancelled', completed_at = :now
 WHERE id = :job_id AND fence = :fence AND status = 'running';

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

-- name: requeue
UPDATE worker_job_queue
   SET {pending_again}, requeue_count = requeue_count + 1, run_at = NULL,
       held = (concurrency_key IS NOT NULL) * 8
 WHERE id = :job_id AND fence = :fence AND status = 'running';

-- name: forget_worker
DELETE FROM worker WHERE id = :worker_id;

-- name: rest_source
INSERT INTO source_rest (source, until, reason) VALUES (:source, :until, :reason)
    ON CONFLICT (source) DO UPDATE SET until = max(until, excluded.until), reason = excluded.reason;

-- name: silent_workers
SELECT id, host, boot_id, pid, version, cpu_slots, io_slots FROM worker WHERE heartbeat_at <= :stale_before;

-- name: settled
SELECT job_id FROM worker_job_settled LIMIT 1;

-- name: settle_meet
-- What they waited for is there.
UPDATE worker_job_queue
   SET held = held & ~4
 WHERE id IN (SELECT q.id FROM worker_job_dependency d CROSS JOIN worker_job_queue q ON q.id = d.job_id
               WHERE d.needs_id = :needs_id AND q.status = 'pending' AND q.held & 4
                 AND NOT EXISTS (SELECT 1 FROM v_waits w WHERE w.job_id = q.id AND NOT w.is_met)
               LIMIT :most)
RETURNING id;

-- name: settle_fail
-- What they waited for can no longer come.
UPDATE worker_job_queue
   SET status = 'failed', held = 0, completed_at = :now, error_code = 'DEPENDENCY_FAILED',
       error_message = 'job ' || :needs_id || ', which this one waits for, '
                       || ifnull((SELECT CASE n.status WHEN 'failed' THEN 'failed' ELSE 'was cancelled' END
                                    FROM worker_job_queue n WHERE n.id = :needs_id), 'was deleted')
 WHERE id IN (SELECT q.id FROM worker_job_dependency d CROSS JOIN worker_job_queue q ON q.id = d.job_id
               WHERE d.needs_id = :needs_id AND q.status = 'pending' AND q.held & 4
                 AND EXISTS (SELECT 1 FROM v_waits w
                              WHERE w.job_id = q.id AND w.needs_id = :needs_id AND w.is_broken)
               LIMIT :most)
RETURNING id;

-- name: unknown_types
-- Of the jobs that are ready: the types for which no worker that lives has a handler.
WITH RECURSIVE lane(job_type, owner, source) AS ({lanes})
SELECT DISTINCT job_type FROM lane
 WHERE NOT EXISTS (SELECT 1 FROM handler h JOIN worker w ON w.id = h.worker_id
                    WHERE h.job_type = lane.job_type AND w.heartbeat_at > :stale_before)
 ORDER BY job_type;

-- name: fail_unknown
-- Whose grace has passed since they became ready: were inserted, fell due, or came back from an attempt or an end.
UPDATE worker_job_queue
   SET status = 'failed', held = 0, completed_at = :now, error_code = 'UNKNOWN_TYPE',
       error_message = 'no worker that lives has had a handler for ' || job_type || ' since ' || :since
                       || ': install it, or correct the job type, then retry'
 WHERE id IN (SELECT q.id FROM worker_job_queue q INDEXED BY job_ready
               WHERE q.status = 'pending' AND q.held = 0 AND q.job_type = :job_type
                 AND max(q.created_at, ifnull(q.run_at, ''),
                         ifnull((SELECT max(e.at) FROM worker_job_event e
                                  WHERE e.job_id = q.id AND e.to_status = 'pending'), '')) <= :since
               LIMIT :most)
   AND NOT EXISTS (SELECT 1 FROM handler h JOIN worker w ON w.id = h.worker_id
                    WHERE h.job_type = :job_type AND w.heartbeat_at > :stale_before)
RETURNING id;

-- name: to_revive
-- They failed only because of it, and it is wanted again.
SELECT q.id FROM worker_job_dependency d CROSS JOIN worker_job_queue q ON q.id = d.job_id
 WHERE d.needs_id = :needs_id AND q.status = 'failed' AND q.error_code = 'DEPENDENCY_FAILED'
   AND NOT EXISTS (SELECT 1 FROM v_waits w WHERE w.job_id = q.id AND w.is_broken)
   AND NOT EXISTS (SELECT 1 FROM worker_job_queue l
                    WHERE l.unique_key = q.unique_key AND l.unique_key IS NOT NULL
                      AND l.status IN ('pending', 'running'))
 LIMIT :most;

-- name: revive
-- It never began: its time is still its own. Of two with one unique_key, the table lets one come back.
UPDATE worker_job_queue
   SET status = 'pending', completed_at = NULL, error_code = NULL, error_message = NULL, retry_count = 0,
       requeue_count = 0, worker_id = NULL, started_at = NULL, heartbeat_at = NULL,
       held = 4 | (run_at IS NOT NULL) | (concurrency_key IS NOT NULL) * 8
 WHERE id = :job_id;

-- name: forget_settled
DELETE FROM worker_job_settled WHERE job_id = :needs_id;


-- ── Steering ────────────────────────────────────────────────────────────────────────────────────────────────────

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
-- The open attempt is told the signal by which it is to end; the worker that reads it gives no grace. The end of the
-- attempt writes over it.
UPDATE worker_job_attempt
   SET signal = 'SIGKILL'
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


-- ── Reading ─────────────────────────────────────────────────────────────────────────────────────────────────────

-- name: get
SELECT {job_columns} FROM worker_job_queue WHERE id = :job_id;

-- fragment: first_line
nullif(substr(a.error_message, 1, instr(a.error_message || char(10), char(10)) - 1), '')

-- name: explain
-- The claim's own predicates, asked one by one: of the job, of its lane, and of each worker.
WITH lane AS (SELECT job_type, owner, source FROM worker_job_queue WHERE id = :job_id)
SELECT rank, code, detail, NULL AS worker_id FROM (
    -- Of a machine that lacks what this one job needs: it looks again now and then.
    SELECT iif(a.error_code = 'CAPABILITY_MISSING', 11, 4) AS rank,
           iif(a.error_code = 'CAPABILITY_MISSING', a.error_code, 'NOT_YET') AS code,
           'it starts ' || iif(a.fence, 'again ', '') || 'at ' || q.run_at
           || ifnull(', after ' || a.error_code || ifnull(': ' || {first_line}, ''), '') AS detail
      FROM worker_job_queue q
      LEFT JOIN worker_job_attempt a ON a.job_id = q.id AND a.fence = q.fence AND a.outcome = 'snoozed'
     WHERE q.id = :job_id AND q.held & 1 AND q.run_at > :now
     UNION ALL
    SELECT 5, 'BACKOFF', 'retry ' || q.retry_count || ' of ' || q.max_retries || ' starts at ' || q.run_at
                         || ifnull(', after ' || a.error_code || ifnull(': ' || {first_line}, ''), '')
      FROM worker_job_queue q
      LEFT JOIN worker_job_attempt a ON a.job_id = q.id AND a.fence = q.fence AND a.outcome = 'retry'
     WHERE q.id = :job_id AND q.held & 2 AND q.run_at > :now
     UNION ALL
    SELECT 6, 'WAITS_FOR', group_concat('job ' || v.needs_id || ' (' || ifnull(v.needs_status, 'deleted') || ')', ', ')
      FROM v_waits v JOIN worker_job_queue q ON q.id = v.job_id
     WHERE v.job_id = :job_id AND NOT v.is_met AND q.held & 4 HAVING count(*) > 0
     UNION ALL
    SELECT 8, 'KEY_BUSY', 'job ' || r.id || ' runs with the same concurrency_key ' || r.concurrency_key
      FROM worker_job_queue q JOIN worker_job_queue r ON r.concurrency_key = q.concurrency_key
     WHERE q.id = :job_id AND r.concurrency_key IS NOT NULL AND r.status = 'running')
 UNION ALL
SELECT g.value ->> 0, g.value ->> 1, g.value ->> 2, NULL
  FROM lane, json_each((SELECT json_group_array(json_array(rank, code, detail)) FROM ({lane_gates}))) g
 UNION ALL
SELECT g.value ->> 0, g.value ->> 1, g.value ->> 2, w.id
  FROM lane, worker w, json_each((SELECT json_group_array(json_array(rank, code, detail)) FROM ({worker_gates}))) g
 ORDER BY 1, 3;

-- name: standing
-- What keeps each lane that has ready jobs from starting, on each worker.
WITH RECURSIVE lane(job_type, owner, source) AS ({lanes})
SELECT lane.job_type, lane.owner, lane.source, g.value ->> 0 AS rank, g.value ->> 1, g.value ->> 2, NULL
  FROM lane, json_each((SELECT json_group_array(json_array(rank, code, detail))
                          FROM (SELECT 99 AS rank, '' AS code, '' AS detail UNION ALL {lane_gates}))) g
 UNION ALL
SELECT lane.job_type, lane.owner, lane.source, g.value ->> 0, g.value ->> 1, g.value ->> 2, w.id
  FROM lane, worker w, json_each((SELECT json_group_array(json_array(rank, code, detail)) FROM ({worker_gates}))) g
 ORDER BY 1, 2, 3, 4;

-- name: unready
-- Would a claim first have to settle or free something?
WITH level(priority) AS (VALUES (1), (2), (3), (4), (5), (6), (7), (8), (9), (10))
SELECT EXISTS (SELECT 1 FROM worker_job_settled)
       OR EXISTS (SELECT 1 FROM level CROSS JOIN worker_job_queue q INDEXED BY job_due
                   WHERE q.priority = level.priority AND q.run_at <= :now AND q.status = 'pending' AND q.held & 3);

-- name: workers_for
-- Every worker, with the class in which it would run the job.
SELECT w.id, h.class
  FROM worker w
  LEFT JOIN handler h ON h.worker_id = w.id
                     AND h.job_type = (SELECT job_type FROM worker_job_queue WHERE id = :job_id);

-- fragment: same_lane
FROM worker_job_queue f INDEXED BY job_ready
 WHERE f.status = 'pending' AND f.held = 0
   AND f.job_type = lane.job_type AND f.owner = lane.owner AND f.source = lane.source

-- name: ahead
-- How many ready jobs come before this one by priority and age, counted up to :most in each lane.
WITH RECURSIVE
lane(job_type, owner, source) AS ({lanes}),
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

-- name: watching
SELECT q.id
  FROM json_each(:ids) w CROSS JOIN worker_job_queue q ON q.id = w.value AND q.status = 'pending'
 CROSS JOIN worker_job_attempt a ON a.job_id = q.id AND a.fence = q.fence
 WHERE a.outcome = 'snoozed' AND a.error_code = :code
 ORDER BY q.id;

-- name: course
SELECT ifnull(a.heard_at, a.started_at),
       strftime('%Y-%m-%d %H:%M:%f', a.started_at, ifnull(q.timeout_seconds, h.timeout_seconds) || ' seconds')
  FROM worker_job_queue q
  JOIN worker_job_attempt a ON a.job_id = q.id AND a.fence = q.fence
  LEFT JOIN handler h ON h.worker_id = q.worker_id AND h.job_type = q.job_type
 WHERE q.id = :job_id AND q.status = 'running';

-- name: attempts
SELECT job_id, fence, worker_id, started_at, ended_at, outcome, error_code, error_message, signal, cpu_seconds,
       memory_peak_bytes, pid, pid_started, sandbox, heard_at
  FROM worker_job_attempt WHERE job_id = :job_id ORDER BY fence;

-- name: events
SELECT id, job_id, fence, from_status, to_status, at FROM worker_job_event WHERE job_id = :job_id ORDER BY id;

-- name: logs
SELECT id, job_id, fence, at, line FROM worker_job_log
 WHERE job_id = :job_id AND id > :after_id ORDER BY id LIMIT :most;

-- name: waits_for
SELECT needs_id, ifnull(needs_status, 'gone') FROM v_waits WHERE job_id = :job_id ORDER BY needs_id;

-- name: pauses
SELECT scope, name, since, until, reason FROM pause WHERE until IS NULL OR until > :now ORDER BY scope, name;

-- name: actions
SELECT a.id, a.at, a.actor, a.verb, a.undone_at,
       (SELECT count(*) FROM worker_action_item i WHERE i.action_id = a.id),
       (SELECT count(*) FROM worker_action_document i WHERE i.action_id = a.id)
  FROM worker_action a ORDER BY a.id DESC LIMIT :most;

-- name: database_id
SELECT min(created_at) FROM pagemill_schema;

-- name: counts
-- Live and failed jobs are counted by index; completed ones, the bulk, are what is left of the whole.
SELECT count(*),
       (SELECT count(*) FROM worker_job_queue WHERE status = 'pending'),
       (SELECT count(*) FROM worker_job_queue WHERE status = 'running'),
       (SELECT count(*) FROM worker_job_queue WHERE status = 'failed'),
       (SELECT count(*) FROM worker_job_queue WHERE status = 'cancelled')
  FROM worker_job_queue;

-- name: oldest_pending
SELECT created_at FROM worker_job_queue
 WHERE id = (SELECT min(id) FROM worker_job_queue WHERE status = 'pending');

-- name: workers
SELECT w.id, w.host, w.boot_id, w.pid, w.version, w.cpu_slots, w.io_slots, w.draining, w.disk_low, w.started_at,
       w.heartbeat_at,
       (SELECT count(*) FROM worker_job_queue r WHERE r.status = 'running' AND r.worker_id = w.id)
  FROM worker w ORDER BY w.started_at, w.id;

-- name: absent_workers
-- Whom running jobs name, and who has no row: for them nobody beats. What is no time is long ago.
SELECT q.worker_id, '', '', 0, '', 0, 0, 0, 0, min(q.started_at),
       max(ifnull(max(strftime('%Y-%m-%d %H:%M:%f', q.heartbeat_at)), ''), '1970-01-01 00:00:00.000'), count(*)
  FROM worker_job_queue q
 WHERE q.status = 'running' AND NOT EXISTS (SELECT 1 FROM worker w WHERE w.id = q.worker_id)
 GROUP BY q.worker_id ORDER BY q.worker_id;

-- name: limits
SELECT kind, name, most FROM job_limit ORDER BY kind, name;

-- name: handlers_lacking
SELECT DISTINCT h.job_type, h.class, h.missing FROM handler h JOIN worker w ON w.id = h.worker_id
 WHERE h.missing IS NOT NULL AND w.heartbeat_at > :stale_before
 ORDER BY h.job_type, h.missing;

-- name: payload_schemas
SELECT DISTINCT h.payload_schema FROM handler h JOIN worker w ON w.id = h.worker_id
 WHERE h.job_type = :job_type AND w.heartbeat_at > :stale_before;

-- name: jobs_lacking
-- Jobs that were sent away because their machine lacks something, and look again.
WITH level(priority) AS (VALUES (1), (2), (3), (4), (5), (6), (7), (8), (9), (10))
SELECT a.error_code, q.job_type, count(*), max(q.id), a.error_message, q.name, max(a.ended_at)
  FROM level CROSS JOIN worker_job_queue q INDEXED BY job_due ON q.priority = level.priority
 CROSS JOIN worker_job_attempt a ON a.job_id = q.id AND a.fence = q.fence AND a.outcome = 'snoozed'
 WHERE q.status = 'pending' AND q.held & 3 AND a.error_code = 'CAPABILITY_MISSING'
 GROUP BY q.job_type, a.error_message ORDER BY q.job_type, a.error_message;

-- name: choices
SELECT DISTINCT h.choices FROM handler h JOIN worker w ON w.id = h.worker_id
 WHERE h.choices IS NOT NULL AND w.heartbeat_at > :stale_before;

-- name: leases_of
SELECT q.id, q.fence, q.cancel_requested_at IS NOT NULL,
       q.cancel_requested_at IS NOT NULL
       AND EXISTS (SELECT 1 FROM worker_job_attempt a
                    WHERE a.job_id = q.id AND a.fence = q.fence AND a.signal = 'SIGKILL')
  FROM worker_job_queue q
 WHERE q.status = 'running' AND q.worker_id = :worker_id;

-- name: counts_by_type
SELECT job_type, sum(status = 'pending' AND held = 0), sum(status = 'pending' AND held <> 0), sum(status = 'running'),
       sum(status = 'completed'), sum(status = 'failed'), sum(status = 'cancelled')
  FROM worker_job_queue GROUP BY job_type ORDER BY job_type;

-- name: pending_by_platform
SELECT platform, count(*) FROM worker_job_queue WHERE status = 'pending' GROUP BY platform ORDER BY platform;

-- name: errors
SELECT e.error_code, e.job_type, e.jobs, e.newest_id,
       (SELECT n.error_message FROM worker_job_queue n WHERE n.id = e.newest_id),
       (SELECT n.name FROM worker_job_queue n WHERE n.id = e.newest_id), e.newest_at
  FROM (SELECT error_code, job_type, count(*) AS jobs, max(id) AS newest_id, max(completed_at) AS newest_at
          FROM worker_job_queue q
         WHERE status = 'failed' AND completed_at >= :since
           -- Those that a retry would refuse are the past: something newer does their work.
           AND (:codes IS NULL
                OR (error_code IN (SELECT value FROM json_each(:codes))
                    AND (q.generation IS NULL
                         OR EXISTS (SELECT 1 FROM document d
                                     WHERE d.id = q.document_id AND d.index_generation = q.generation))
                    AND NOT EXISTS (SELECT 1 FROM worker_job_queue l
                                     WHERE l.unique_key = q.unique_key AND l.unique_key IS NOT NULL
                                       AND l.status IN ('pending', 'running'))
                    AND NOT EXISTS (SELECT 1 FROM worker_job_queue n
                                     WHERE n.source_key = q.source_key AND n.source_key IS NOT NULL AND n.id > q.id
                                       AND n.job_type = q.job_type AND n.owner = q.owner
                                       AND n.status = 'completed')))
         GROUP BY error_code, job_type) e
 ORDER BY e.jobs DESC, e.error_code, e.job_type;

-- name: next_deadline
WITH level(priority) AS (VALUES (1), (2), (3), (4), (5), (6), (7), (8), (9), (10))
SELECT min(at) FROM (
    SELECT (SELECT min(q.run_at) FROM worker_job_queue q INDEXED BY job_due
             WHERE q.priority = level.priority AND q.status = 'pending' AND q.held & 3) AS at
      FROM level
    UNION ALL SELECT :now WHERE EXISTS (SELECT 1 FROM worker_job_settled)
    UNION ALL SELECT until FROM pause WHERE until > :now
    UNION ALL SELECT until FROM source_rest WHERE until > :now);

-- name: comes_due
WITH level(priority) AS (VALUES (1), (2), (3), (4), (5), (6), (7), (8), (9), (10))
SELECT EXISTS (SELECT 1 FROM level CROSS JOIN worker_job_queue q INDEXED BY job_due
                WHERE q.priority = level.priority AND q.run_at <= :until AND q.status = 'pending' AND q.held & 3
                  AND NOT q.held & 4
                  AND EXISTS (SELECT 1 FROM handler h
                               WHERE h.worker_id = :worker_id AND h.job_type = q.job_type AND h.missing IS NULL));


-- ── Upkeep ──────────────────────────────────────────────────────────────────────────────────────────────────────

-- name: audit
-- A line for each row that breaks a promise.
SELECT 'P1: job ' || id || ' is running without an open attempt' FROM worker_job_queue q
 WHERE status = 'running'
   AND NOT EXISTS (SELECT 1 FROM worker_job_attempt a
                    WHERE a.job_id = q.id AND a.fence = q.fence AND a.ended_at IS NULL)
 UNION ALL
SELECT 'P1: an attempt of job ' || job_id || ' is open, and the job does not run' FROM worker_job_attempt a
 WHERE ended_at IS NULL
   AND NOT EXISTS (SELECT 1 FROM worker_job_queue q
                    WHERE q.id = a.job_id AND q.status = 'running' AND q.fence = a.fence)
 UNION ALL
SELECT 'P13: job ' || id || ' is running on worker ' || worker_id || ', which has no row' FROM worker_job_queue q
 WHERE status = 'running' AND NOT EXISTS (SELECT 1 FROM worker w WHERE w.id = q.worker_id)
 UNION ALL
SELECT 'P8: ' || count(*) || ' jobs run with the concurrency_key ' || concurrency_key FROM worker_job_queue
 WHERE status = 'running' AND concurrency_key IS NOT NULL GROUP BY concurrency_key HAVING count(*) > 1
 UNION ALL
SELECT 'P8: ' || count(*) || ' jobs of type ' || q.job_type || ' run, and ' || l.most || ' may'
  FROM worker_job_queue q JOIN job_limit l ON l.kind = 'type' AND l.name = q.job_type
 WHERE q.status = 'running' GROUP BY q.job_type, l.most HAVING count(*) > l.most;


-- ── History: what history.py asks of the audit tables ───────────────────────────────────────────────────────────
-- A row that was adopted from the original table may have ended before there were events: fence 0, and none of them.

-- name: history_chain
SELECT 'P1: job ' || job_id || ': event ' || id || ' goes from ' || from_status || ' to ' || to_status
       || ' with fence ' || fence || ', after ' || was || ' with fence ' || fence_was
  FROM (SELECT id, job_id, fence, from_status, to_status,
               lag(to_status, 1, CASE WHEN fence = 0 AND to_status = 'pending' THEN from_status ELSE 'pending' END)
                   OVER job AS was,
               lag(fence, 1, 0) OVER job AS fence_was
          FROM worker_job_event
        WINDOW job AS (PARTITION BY job_id ORDER BY id))
 WHERE from_status <> was OR fence <> fence_was + (to_status = 'running')
 LIMIT :most;

-- name: history_rows
SELECT 'P4: job ' || q.id || ' is ' || q.status || ' with fence ' || q.fence
       || CASE WHEN e.id IS NULL THEN ', and nothing tells how' ELSE
               ', and its last event says ' || e.to_status || ' with fence ' || e.fence END
  FROM worker_job_queue q
  LEFT JOIN worker_job_event e ON e.id = (SELECT max(l.id) FROM worker_job_event l WHERE l.job_id = q.id)
 WHERE CASE WHEN e.id IS NULL THEN q.fence <> 0 OR q.status = 'running'
            ELSE q.status <> e.to_status OR q.fence <> e.fence END
 UNION ALL
SELECT 'P5: job ' || q.id || ' is completed, and none of its attempts is'
  FROM worker_job_queue q
 WHERE q.status = 'completed' AND q.fence > 0
   AND NOT EXISTS (SELECT 1 FROM worker_job_attempt a WHERE a.job_id = q.id AND a.outcome = 'completed')
 LIMIT :most;

-- name: history_attempts
SELECT CASE WHEN ends > 1 AND outcome = 'completed' THEN 'P5' ELSE 'P1' END
       || ': attempt ' || fence || ' of job ' || job_id || ' (' || ifnull(outcome, 'open') || ') has ' || starts
       || ' starts and ' || ends || ' ends in the events, the last to ' || ifnull(ended_to, 'nowhere')
  FROM (SELECT a.job_id, a.fence, a.outcome,
               ifnull(sum(e.to_status = 'running'), 0) AS starts, ifnull(sum(e.from_status = 'running'), 0) AS ends,
               max(CASE WHEN e.from_status = 'running' THEN e.to_status END) AS ended_to
          FROM worker_job_attempt a
          LEFT JOIN worker_job_event e ON e.job_id = a.job_id AND e.fence = a.fence
         GROUP BY a.job_id, a.fence)
 WHERE starts <> 1 OR ends <> (outcome IS NOT NULL)
    OR ended_to <> CASE WHEN outcome IN ('completed', 'failed', 'cancelled') THEN outcome ELSE 'pending' END
 LIMIT :most;

-- name: history_strays
SELECT 'P1: event ' || e.id || ' of job ' || e.job_id || ' is about attempt ' || e.fence || ', which is not there'
  FROM worker_job_event e
 WHERE 'running' IN (e.from_status, e.to_status)
   AND NOT EXISTS (SELECT 1 FROM worker_job_attempt a WHERE a.job_id = e.job_id AND a.fence = e.fence)
 LIMIT :most;

-- name: history_caps
-- Since a person last wished for it. Who lowers max_retries by hand below what was spent is told as well.
SELECT 'P6: job ' || q.id || ' had ' || retries || ' retries of ' || q.max_retries || ' and ' || requeues
       || ' requeues of ' || :requeues_max || ', and counts ' || q.retry_count || ' and ' || q.requeue_count
  FROM (SELECT a.job_id, sum(a.outcome = 'retry') AS retries, sum(a.outcome = 'requeued') AS requeues
          FROM worker_job_attempt a
         WHERE a.outcome IN ('retry', 'requeued')
           AND a.fence > ifnull((SELECT max(e.fence) FROM worker_job_event e
                                  WHERE e.job_id = a.job_id AND e.to_status = 'pending'
                                    AND e.from_status IN ('completed', 'failed', 'cancelled')), 0)
         GROUP BY a.job_id) c
  JOIN worker_job_queue q ON q.id = c.job_id
 WHERE retries > q.max_retries OR requeues > :requeues_max OR retries > q.retry_count OR requeues > q.requeue_count
 LIMIT :most;

-- name: history_cancels
-- A retry by a person takes the request back.
SELECT 'P7: job ' || id || ' was asked to stop at ' || cancel_requested_at || ', and is ' || status
  FROM worker_job_queue
 WHERE cancel_requested_at IS NOT NULL AND status NOT IN ('running', 'cancelled')
 LIMIT :most;

-- name: history_keys
SELECT 'P8: job ' || job_id || ' began at event ' || begun || ', while another with the concurrency_key ' || key
       || ' ran until ' || iif(others_until = 9223372036854775807, 'now', 'event ' || others_until)
  FROM (SELECT key, job_id, begun,
               max(ended) OVER (PARTITION BY key ORDER BY begun
                                ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS others_until
          FROM (SELECT q.concurrency_key AS key, q.id AS job_id, b.id AS begun,
                       ifnull((SELECT min(e.id) FROM worker_job_event e WHERE e.job_id = q.id AND e.id > b.id),
                              9223372036854775807) AS ended
                  FROM worker_job_queue q
                 CROSS JOIN worker_job_event b ON b.job_id = q.id AND b.to_status = 'running'
                 WHERE q.concurrency_key IS NOT NULL))
 WHERE others_until > begun
 LIMIT :most;
