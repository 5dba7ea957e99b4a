-- Schedules: each slot runs once, and each key of `--once-per` once in its period.

-- name: last_handled_slot
SELECT until FROM schedule_plan WHERE schedule = :schedule AND plan = :plan;

-- name: stored_schedules
SELECT name, owner, definition, paused_at FROM schedule WHERE :name IS NULL OR name = :name ORDER BY name;

-- name: store_schedule
INSERT OR REPLACE INTO schedule (name, owner, definition, paused_at) VALUES (:name, :owner, :definition, :paused_at);

-- name: remove_schedule
DELETE FROM schedule WHERE name = :name;

-- name: forget_plan
DELETE FROM schedule_plan WHERE schedule = :name;

-- name: forget_runs_of
DELETE FROM schedule_run WHERE schedule = :name;

-- name: schedule_change
SELECT i.left_as FROM worker_action a JOIN worker_action_item i ON i.action_id = a.id
 WHERE a.id = :action_id AND a.undone_at IS NULL AND a.verb IN ('add_schedule', 'change_schedule', 'remove_schedule');

-- name: begin_plan
-- A changed plan starts anew, without slots in the past.
INSERT INTO schedule_plan (schedule, plan, until) VALUES (:schedule, :plan, :now)
    ON CONFLICT (schedule) DO UPDATE SET plan = excluded.plan, until = excluded.until WHERE plan <> excluded.plan;

-- name: move_plan
-- Moves forward only, and only if no process with other settings has changed the plan.
UPDATE schedule_plan SET until = :until WHERE schedule = :schedule AND plan = :plan AND until < :until RETURNING 1;

-- name: take_slot
INSERT INTO schedule_run (schedule, slot, at) VALUES (:schedule, :slot, :now) ON CONFLICT DO NOTHING RETURNING 1;

-- name: set_work_of_slot
UPDATE schedule_run SET job_id = :job_id, batch_id = :batch_id WHERE schedule = :schedule AND slot = :slot;

-- name: job_of_slot
SELECT ifnull(job_id, 0) FROM schedule_run WHERE schedule = :schedule AND slot = :slot;

-- name: last_run
SELECT slot, at, job_id, batch_id FROM schedule_run WHERE schedule = :schedule ORDER BY at DESC, slot DESC LIMIT 1;

-- name: forget_runs
DELETE FROM schedule_run
 WHERE (schedule, slot) IN (SELECT r.schedule, r.slot FROM schedule_run r
                             WHERE r.at < :before
                               AND EXISTS (SELECT 1 FROM schedule_run n
                                            WHERE n.schedule = r.schedule AND (n.at, n.slot) > (r.at, r.slot))
                             LIMIT :most)
RETURNING slot;

-- name: add_missed_notice
INSERT INTO notice (at, kind, owner, message) VALUES (:now, 'schedule.missed', :owner, :message);
