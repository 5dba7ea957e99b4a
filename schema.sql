-- The tables of pagemill, for SQLite 3.37 or later in WAL mode.
--
-- Any program can insert jobs, for example cron or the sqlite3 program:
--
--     sqlite3 -cmd '.timeout 5000' pagemill.db "
--       INSERT INTO worker_job_queue (job_type, platform, account, payload)
--       VALUES ('scrape_account', 'instagram', 'user123', '{\"scrape_type\":\"full\"}');"
--
-- (Keep the .timeout: without it, the sqlite3 program does not wait for locks.) These statements work by hand as well:
--
--     UPDATE worker_job_queue SET status = 'cancelled' WHERE id = 42;    pending: ends now; running: is asked to stop
--     UPDATE worker_job_queue SET status = 'pending'   WHERE id = 42;    an ended job runs again, with fresh retries
--     UPDATE worker_job_queue SET priority = 1         WHERE id = 42;    1 (highest) to 10; follow-up jobs inherit it
--     UPDATE worker_job_queue SET run_at = '2026-11-19 06:00' WHERE id = 42;   a pending job waits until then (UTC)
--     DELETE FROM worker_job_queue WHERE id = 42;                        any job that is not running
--     UPDATE batch SET state = 'stopped' WHERE id = 7;                   its jobs wait; 'active': they continue
--
-- To cancel a running job without a grace period, as `pagemill cancel --now` does, run this, then cancel it as above:
--
--     UPDATE worker_job_attempt SET without_grace = 1 WHERE job_id = 42 AND ended_at IS NULL;
--
-- Other changes are refused with an explanation. Times are UTC text, '2026-11-18 10:00:00.000'; other valid times are
-- converted to this form. The views v_jobs, v_queue, v_workers and v_documents are for reading.

-- json_valid(NULL) is NULL in current versions of SQLite and 0 in 3.40, so a CHECK says "x IS NULL OR json_valid(x)".

CREATE TABLE pagemill_schema (
    version     INTEGER NOT NULL,
    created_at  TEXT NOT NULL DEFAULT (strftime('%Y-%m-%d %H:%M:%f', 'now'))
) STRICT;

INSERT INTO pagemill_schema (version) VALUES (1);

-- The table has one row. Its created_at identifies the database to a running daemon.
CREATE UNIQUE INDEX "pagemill db migrate alone says which schema this is" ON pagemill_schema ((0));

-- One row for each restore from a backup. Every attempt since the restore has a higher fence than any before it.
CREATE TABLE restored (
    at     TEXT NOT NULL CONSTRAINT "at has at most 1000 bytes" CHECK (length(CAST(at AS BLOB)) <= 1000),
    fence  INTEGER NOT NULL CONSTRAINT "fence is 0 or more" CHECK (fence >= 0)
) STRICT;


-- ── Jobs ────────────────────────────────────────────────────────────────────────────────────────────────────────

-- Small, frequently used columns come first, because SQLite decodes a row from its first column.
CREATE TABLE worker_job_queue (
    id                   INTEGER PRIMARY KEY AUTOINCREMENT,   -- never used twice
    job_type             TEXT    NOT NULL,                    -- which handler runs it
    platform             TEXT    NOT NULL,                    -- 'instagram', 'gdrive', 'local', …
    account              TEXT,                                -- the remote account that the job is about
    priority             INTEGER NOT NULL ON CONFLICT REPLACE DEFAULT 5,   -- 1 highest … 10 lowest
    status               TEXT    NOT NULL ON CONFLICT REPLACE DEFAULT 'pending',
    held                 INTEGER NOT NULL ON CONFLICT REPLACE DEFAULT 0,   -- set by triggers: sum of the reasons why a
                                 -- claim skips a pending job: 1 its run_at, 2 its backoff, 4 its dependencies, 8 its
                                 -- busy key, 16 its batch, which is stopped or waiting
    fence                INTEGER NOT NULL ON CONFLICT REPLACE DEFAULT 0,   -- +1 at every claim, never lowered
    owner                TEXT    NOT NULL ON CONFLICT REPLACE DEFAULT '',  -- user the job belongs to; '' = none
    source               TEXT    NOT NULL ON CONFLICT REPLACE DEFAULT '',  -- what the job uses, e.g. a credential; see source_rest
    run_at               TEXT,                                -- earliest start
    created_at           TEXT    NOT NULL ON CONFLICT REPLACE DEFAULT (strftime('%Y-%m-%d %H:%M:%f', 'now')),
    started_at           TEXT,
    heartbeat_at         TEXT,
    completed_at         TEXT,                                -- time of its end, with any status
    cancel_requested_at  TEXT,
    worker_id            TEXT,
    retry_count          INTEGER NOT NULL ON CONFLICT REPLACE DEFAULT 0,
    max_retries          INTEGER NOT NULL ON CONFLICT REPLACE DEFAULT 3,
    requeue_count        INTEGER NOT NULL ON CONFLICT REPLACE DEFAULT 0,   -- how often its worker or node died
    timeout_seconds      INTEGER,                             -- of one attempt; NULL = the handler's default
    progress_percent     INTEGER NOT NULL ON CONFLICT REPLACE DEFAULT 0,
    progress_done        INTEGER,                             -- units done, if the handler counts units
    progress_total       INTEGER,                             -- total units; NULL = unknown
    progress_rate        REAL,                                -- units per second, if the handler measures it
    progress_unit        TEXT,                                -- 'pages', 'bytes', …
    progress_at          TEXT,                                -- when the attempt last advanced or logged a line
    batch_id             INTEGER,
    document_id          INTEGER,
    generation           INTEGER,
    parent_id            INTEGER,                             -- the job that inserted this one as a follow-up
    name                 TEXT,                                -- display name, such as a file name
    source_key           TEXT,                                -- source_key of the document that the job would add
    unique_key           TEXT,                                -- at most one live job has the same key
    concurrency_key      TEXT,                                -- at most one running job has the same key
    error_code           TEXT,
    error_message        TEXT,                                -- what went wrong
    error_remedy         TEXT,                                -- what to do about it; NULL = unknown
    progress_message     TEXT,
    payload              TEXT,                                -- JSON
    result               TEXT,                                -- JSON

    CONSTRAINT "job_type is not empty" CHECK (job_type <> ''),
    CONSTRAINT "priority is 1 (highest) to 10 (lowest)" CHECK (priority BETWEEN 1 AND 10),
    CONSTRAINT "status is pending, running, completed, failed or cancelled"
        CHECK (status = 'pending' OR status = 'running' OR status = 'completed' OR status = 'failed'
               OR status = 'cancelled'),  -- an IN of five values builds a table at each INSERT
    CONSTRAINT "payload is JSON" CHECK (payload IS NULL OR json_valid(payload)),
    CONSTRAINT "result is JSON" CHECK (result IS NULL OR json_valid(result)),
    CONSTRAINT "progress_percent is 0 to 100" CHECK (progress_percent BETWEEN 0 AND 100),
    CONSTRAINT "progress_done, progress_total and progress_rate are 0 or more"
        CHECK ((progress_done IS NULL OR progress_done >= 0) AND (progress_total IS NULL OR progress_total >= 0)
               AND (progress_rate IS NULL OR progress_rate >= 0)),
    CONSTRAINT "progress_unit and progress_at have at most 1000 bytes"
        CHECK ((progress_unit IS NULL OR length(CAST(progress_unit AS BLOB)) <= 1000)
               AND (progress_at IS NULL OR length(CAST(progress_at AS BLOB)) <= 1000)),
    CONSTRAINT "retry_count, max_retries and requeue_count are 0 to 1000000"
        CHECK (retry_count BETWEEN 0 AND 1000000 AND max_retries BETWEEN 0 AND 1000000
               AND requeue_count BETWEEN 0 AND 1000000),
    CONSTRAINT "created_at is a time like 2026-11-18 10:00:00 (UTC)"
        CHECK (-- Fast path for pagemill's own form on a day that every month has, which needs no calendar.
               (created_at GLOB '????-??-?? ??:??:??.[0-9][0-9][0-9]' AND length(CAST(created_at AS BLOB)) = 23
                AND substr(created_at, 9, 2) <= '28' AND julianday(created_at) IS NOT NULL)
               OR (created_at GLOB '[0-9][0-9][0-9][0-9]-[0-9][0-9]-[0-9][0-9]*'
                   AND strftime('%s', created_at) IS NOT NULL
                   AND date(substr(created_at, 1, 10), '+0 days') = substr(created_at, 1, 10))),
    CONSTRAINT "run_at is a time like 2026-11-18 10:00:00 (UTC)"
        CHECK (run_at IS NULL OR (run_at GLOB '[0-9][0-9][0-9][0-9]-[0-9][0-9]-[0-9][0-9]*'
               AND strftime('%s', run_at) IS NOT NULL
               AND date(substr(run_at, 1, 10), '+0 days') = substr(run_at, 1, 10))),
    CONSTRAINT "created_at and run_at are of 1970 or later" CHECK (created_at >= '1970' AND run_at >= '1970'),
    CONSTRAINT "timeout_seconds is 1 to 31536000, a year" CHECK (timeout_seconds BETWEEN 1 AND 31536000),
    CONSTRAINT "name has at most 1000 characters, source_key 5000"
        CHECK ((name IS NULL OR length(name) <= 1000) AND (source_key IS NULL OR length(source_key) <= 5000)),
    -- In bytes, because length() of text stops at the first NUL. Columns set only by an INSERT are separate from
    -- columns that a claim changes. NULL and empty values are not measured, because that would slow each INSERT by a
    -- quarter.
    CONSTRAINT "job_type, platform, account, owner, source, name and each key have at most 30000 bytes"
        CHECK (length(CAST(job_type AS BLOB)) <= 30000 AND length(CAST(platform AS BLOB)) <= 30000
               AND (account IS NULL OR length(CAST(account AS BLOB)) <= 30000)
               AND (owner = '' OR length(CAST(owner AS BLOB)) <= 30000)
               AND (source = '' OR length(CAST(source AS BLOB)) <= 30000)
               AND (name IS NULL OR length(CAST(name AS BLOB)) <= 30000)
               AND (source_key IS NULL OR length(CAST(source_key AS BLOB)) <= 30000)
               AND (unique_key IS NULL OR length(CAST(unique_key AS BLOB)) <= 30000)
               AND (concurrency_key IS NULL OR length(CAST(concurrency_key AS BLOB)) <= 30000)),
    CONSTRAINT "error_code, error_message, error_remedy and progress_message have at most 100000 bytes"
        CHECK ((error_code IS NULL OR length(CAST(error_code AS BLOB)) <= 100000)
               AND (error_message IS NULL OR length(CAST(error_message AS BLOB)) <= 100000)
               AND (error_remedy IS NULL OR length(CAST(error_remedy AS BLOB)) <= 100000)
               AND (progress_message IS NULL OR length(CAST(progress_message AS BLOB)) <= 100000)),
    CONSTRAINT "worker_id, started_at, heartbeat_at, completed_at and cancel_requested_at have at most 1000 bytes"
        CHECK ((worker_id IS NULL OR length(CAST(worker_id AS BLOB)) <= 1000)
               AND (started_at IS NULL OR length(CAST(started_at AS BLOB)) <= 1000)
               AND (heartbeat_at IS NULL OR length(CAST(heartbeat_at AS BLOB)) <= 1000)
               AND (completed_at IS NULL OR length(CAST(completed_at AS BLOB)) <= 1000)
               AND (cancel_requested_at IS NULL OR length(CAST(cancel_requested_at AS BLOB)) <= 1000)),
    CONSTRAINT "result has at most 16777216 bytes" CHECK (result IS NULL OR length(CAST(result AS BLOB)) <= 16777216),
    CONSTRAINT "fence is 0 or more" CHECK (fence >= 0),
    CONSTRAINT "held is set on pending jobs only" CHECK (held = 0 OR (held BETWEEN 1 AND 31 AND status = 'pending')),
    CONSTRAINT "a running job has worker_id, started_at and heartbeat_at; a pending one has none of them"
        CHECK (CASE status WHEN 'running' THEN worker_id IS NOT NULL AND started_at IS NOT NULL AND heartbeat_at IS NOT NULL
                           WHEN 'pending' THEN worker_id IS NULL AND started_at IS NULL AND heartbeat_at IS NULL
                           ELSE 1 END),
    CONSTRAINT "completed_at is set on ended jobs only"
        CHECK ((completed_at IS NOT NULL) = (status NOT IN ('pending', 'running')))
) STRICT;

-- Comments on indexes name the statements in worker_service/store/*.sql that use them.
-- claim: the lane (job_type, owner, source) comes first, so that a closed lane is skipped with one seek.
CREATE INDEX job_ready ON worker_job_queue (job_type, owner, source, priority, created_at)
    WHERE status = 'pending' AND held = 0;
-- free_due_jobs, next_deadline
CREATE INDEX job_due ON worker_job_queue (priority, run_at) WHERE status = 'pending' AND held & 3;
-- list, counts, and all queries for running jobs
CREATE INDEX job_by_status ON worker_job_queue (status);
-- prune, and lists by time
CREATE INDEX job_ended ON worker_job_queue (completed_at) WHERE completed_at IS NOT NULL;
-- errors, and the number of failures in a period
CREATE INDEX job_failed ON worker_job_queue (completed_at, error_code, job_type) WHERE status = 'failed';
-- not_brought_in, in the order of ids
CREATE INDEX job_not_brought_in ON worker_job_queue (status)
    WHERE status = 'failed' AND source_key IS NOT NULL AND document_id IS NULL;
-- list, count: jobs by the code of their last error
CREATE INDEX job_by_error ON worker_job_queue (error_code) WHERE error_code IS NOT NULL;
CREATE INDEX job_by_owner ON worker_job_queue (owner) WHERE owner <> '';
-- list, count: jobs by remote account
CREATE INDEX job_by_account ON worker_job_queue (account, platform) WHERE account IS NOT NULL;
CREATE INDEX job_by_batch ON worker_job_queue (batch_id) WHERE batch_id IS NOT NULL;
-- end_batches
CREATE INDEX job_live_in_batch ON worker_job_queue (batch_id)
    WHERE batch_id IS NOT NULL AND status IN ('pending', 'running');
-- live work of a document's generation, and its failures
CREATE INDEX job_by_document ON worker_job_queue (document_id, generation, status) WHERE document_id IS NOT NULL;
CREATE INDEX job_by_parent ON worker_job_queue (parent_id) WHERE parent_id IS NOT NULL;
-- to_retry_in_batch, not_brought_in
CREATE INDEX job_by_source_key ON worker_job_queue (source_key) WHERE source_key IS NOT NULL;
-- enqueue: at most one live job per unique_key. With an expression in the index, SQLite's error quotes the index name.
CREATE UNIQUE INDEX "a live job already has this unique_key: that one will do the work"
    ON worker_job_queue (unique_key, (0))
    WHERE unique_key IS NOT NULL AND status IN ('pending', 'running');
-- P8: one running job per concurrency_key, and the next job with the key
CREATE UNIQUE INDEX job_key_running ON worker_job_queue (concurrency_key)
    WHERE concurrency_key IS NOT NULL AND status = 'running';
CREATE INDEX job_key_waiting ON worker_job_queue
    (concurrency_key, held, job_type, owner, source, priority, created_at)
    WHERE concurrency_key IS NOT NULL AND status = 'pending';

-- One row: the time up to which a claim has freed jobs that wait for their run_at. The guard of `held` compares with
-- it, because no trigger reads the clock.
CREATE TABLE due_until (
    id  INTEGER PRIMARY KEY CONSTRAINT "due_until has one row" CHECK (id = 1),
    at  TEXT NOT NULL CONSTRAINT "at has at most 1000 bytes" CHECK (length(CAST(at AS BLOB)) <= 1000)
) STRICT;

-- One row per attempt of a job. A claim opens it; it is closed before the job's status changes, and then never changed.
CREATE TABLE worker_job_attempt (
    job_id             INTEGER NOT NULL,
    fence              INTEGER NOT NULL,
    worker_id          TEXT NOT NULL,
    started_at         TEXT NOT NULL,
    ended_at           TEXT,
    outcome            TEXT CHECK (outcome = 'completed' OR outcome = 'failed' OR outcome = 'retry' OR outcome = 'snoozed'
                                   OR outcome = 'released' OR outcome = 'requeued' OR outcome = 'cancelled'),
    error_code         TEXT,
    error_message      TEXT,
    error_remedy       TEXT,
    pid                INTEGER,   -- also the session id; with the start in clock ticks, a permanent name of one process
    pid_started        INTEGER,
    sandbox            TEXT,      -- the sandbox that confined it
    without_grace      INTEGER NOT NULL DEFAULT 0   -- 1: on a request to stop, kill it at once
                       CONSTRAINT "without_grace is 0 or 1" CHECK (without_grace IN (0, 1)),
    signal             TEXT,
    cpu_seconds        REAL,
    memory_peak_bytes  INTEGER,
    heard_at           TEXT,      -- time of the last report from its handler
    node               TEXT,      -- name of the cluster node that it ran on; NULL = the worker's own machine
    PRIMARY KEY (job_id, fence),
    CHECK ((ended_at IS NULL) = (outcome IS NULL)),
    CONSTRAINT "error_code, error_message, error_remedy, sandbox, signal, worker_id, node and each time have at most 100000 bytes"
        CHECK (length(CAST(error_code AS BLOB)) <= 100000 AND length(CAST(error_message AS BLOB)) <= 100000
               AND length(CAST(error_remedy AS BLOB)) <= 100000 AND length(CAST(node AS BLOB)) <= 100000
               AND length(CAST(sandbox AS BLOB)) <= 100000 AND length(CAST(signal AS BLOB)) <= 100000
               AND length(CAST(worker_id AS BLOB)) <= 100000 AND length(CAST(started_at AS BLOB)) <= 100000
               AND length(CAST(ended_at AS BLOB)) <= 100000 AND length(CAST(heard_at AS BLOB)) <= 100000)
) STRICT, WITHOUT ROWID;

-- One row per change of a job's status, made by the daemon or by hand. Inserting a job writes no event.
CREATE TABLE worker_job_event (
    id           INTEGER PRIMARY KEY,
    job_id       INTEGER NOT NULL,
    fence        INTEGER NOT NULL,
    from_status  TEXT NOT NULL,
    to_status    TEXT NOT NULL,
    at           TEXT NOT NULL,
    CONSTRAINT "from_status, to_status and at have at most 1000 bytes"
        CHECK (length(CAST(from_status AS BLOB)) <= 1000 AND length(CAST(to_status AS BLOB)) <= 1000
               AND length(CAST(at AS BLOB)) <= 1000)
) STRICT;
CREATE INDEX event_by_job ON worker_job_event (job_id);

-- Log lines of handlers, append-only. The newest 3,000 lines of a job are kept.
CREATE TABLE worker_job_log (
    id      INTEGER PRIMARY KEY AUTOINCREMENT,
    job_id  INTEGER NOT NULL,
    fence   INTEGER NOT NULL,
    at      TEXT NOT NULL,
    line    TEXT NOT NULL,
    CONSTRAINT "line and at have at most 100000 bytes"
        CHECK (length(CAST(line AS BLOB)) <= 100000 AND length(CAST(at AS BLOB)) <= 100000)
) STRICT;
CREATE INDEX log_by_job ON worker_job_log (job_id, id);

-- job_id waits for needs_id: until it has completed, or (needs = 'ended') until it has ended in any way.
CREATE TABLE worker_job_dependency (
    job_id    INTEGER NOT NULL,
    needs_id  INTEGER NOT NULL,
    needs     TEXT NOT NULL DEFAULT 'completed' CHECK (needs IN ('completed', 'ended')),
    PRIMARY KEY (job_id, needs_id),
    CONSTRAINT "a job waits only for jobs that were there before it" CHECK (needs_id < job_id)
) STRICT, WITHOUT ROWID;
CREATE INDEX dependency_by_needs ON worker_job_dependency (needs_id);

-- Jobs whose status has changed and that other jobs wait for, or that have a failure_action. The next transaction of
-- pagemill (at the latest a claim) frees, fails or revives the waiting jobs, inserts the actions and removes the rows.
CREATE TABLE worker_job_settled (job_id INTEGER PRIMARY KEY) STRICT;

-- Failures that need attention, one per document, source, unique_key or other job. A retry, a new request, a later
-- success and a dismissal remove the row; the next failure inserts it again. A job that failed with DEPENDENCY_FAILED
-- has no row, because the job that it waited for has one.
CREATE TABLE failure (
    id      INTEGER PRIMARY KEY,
    item    TEXT NOT NULL UNIQUE,          -- 'document 12', 'source ["download","ann","local","/srv/a.pdf"]',
                                           -- 'key ["crawl","ann","crawl:local:ann:/srv"]' or 'job 42'
    job_id  INTEGER NOT NULL UNIQUE,
    owner   TEXT NOT NULL,
    code    TEXT NOT NULL,                 -- error code of the job; '' = none
    -- JSON escapes a control character with 6 bytes, and `item` quotes four columns of a job.
    CONSTRAINT "item has at most 1000000 bytes, owner and code 200000"
        CHECK (length(CAST(item AS BLOB)) <= 1000000 AND length(CAST(owner AS BLOB)) <= 200000
               AND length(CAST(code AS BLOB)) <= 200000)
) STRICT;
-- failures, count_failures
CREATE INDEX failure_by_owner ON failure (owner, code);
CREATE INDEX failure_by_code ON failure (code);

-- Documents whose jobs have changed their status. The next transaction of pagemill updates index_status.
CREATE TABLE document_unsettled (
    document_id  INTEGER PRIMARY KEY,
    lost         TEXT             -- describes a job that was deleted before it ran
) STRICT;

-- Jobs that a user has submitted together, including their follow-up jobs. Jobs refer to it by batch_id. Inserting a
-- job with an unknown batch_id creates the batch.
CREATE TABLE batch (
    id          INTEGER PRIMARY KEY AUTOINCREMENT,
    owner       TEXT NOT NULL DEFAULT '',
    name        TEXT NOT NULL DEFAULT '',
    priority    INTEGER NOT NULL DEFAULT 5,
    state       TEXT NOT NULL DEFAULT 'active',
    round       INTEGER NOT NULL DEFAULT 1,      -- +1 whenever it starts again after it has ended
    note        TEXT,                            -- reason for its state, such as 'stopped by ann'
    replaced_by INTEGER,                         -- the newer batch of its owner that a waiting batch resumes after
    asked       TEXT NOT NULL DEFAULT '{}',      -- JSON: the user's request, for display
    actions     TEXT NOT NULL DEFAULT '[]',      -- JSON: actions to run when it ends
    notify      TEXT NOT NULL DEFAULT '',        -- address to which its end is reported
    created_at  TEXT NOT NULL DEFAULT (strftime('%Y-%m-%d %H:%M:%f', 'now')),
    ended_at    TEXT,
    CONSTRAINT "the id of a batch is 0 to 1000000000000" CHECK (id BETWEEN 0 AND 1000000000000),
    CONSTRAINT "state is active, waiting, stopped, done or failed"
        CHECK (state IN ('active', 'waiting', 'stopped', 'done', 'failed')),
    CONSTRAINT "priority is 1 (highest) to 10 (lowest)" CHECK (priority BETWEEN 1 AND 10),
    CONSTRAINT "round is 1 to 1000000000" CHECK (round BETWEEN 1 AND 1000000000),
    CONSTRAINT "asked and actions are JSON" CHECK (json_valid(asked) AND json_valid(actions)),
    CONSTRAINT "owner, name, note, notify and each time have at most 30000 bytes, asked and actions 16777216"
        CHECK (length(CAST(owner AS BLOB)) <= 30000 AND length(CAST(name AS BLOB)) <= 30000
               AND length(CAST(notify AS BLOB)) <= 30000 AND length(CAST(note AS BLOB)) <= 30000 AND length(CAST(created_at AS BLOB)) <= 30000
               AND length(CAST(ended_at AS BLOB)) <= 30000
               AND length(CAST(asked AS BLOB)) <= 16777216 AND length(CAST(actions AS BLOB)) <= 16777216)
) STRICT;
-- active and waiting batches of an owner
CREATE INDEX batch_by_owner ON batch (owner, state, id);

-- Documents requested by a batch, even if another batch reads them.
CREATE TABLE batch_document (
    batch_id     INTEGER NOT NULL,
    document_id  INTEGER NOT NULL,
    PRIMARY KEY (batch_id, document_id)
) STRICT, WITHOUT ROWID;
CREATE INDEX batch_by_document ON batch_document (document_id);

-- Batches with a job or document that has ended. The next transaction of pagemill checks whether the batch has ended.
CREATE TABLE batch_unsettled (batch_id INTEGER PRIMARY KEY) STRICT;

-- Events for notifications, written in the transaction of the event. `key` prevents a second notice of the same event.
CREATE TABLE notice (
    id           INTEGER PRIMARY KEY AUTOINCREMENT,
    at           TEXT NOT NULL,
    kind         TEXT NOT NULL,            -- 'document.ready', 'batch.done', 'job.failed', …
    owner        TEXT NOT NULL DEFAULT '',
    job_id       INTEGER,
    document_id  INTEGER,
    batch_id     INTEGER,
    generation   INTEGER,                  -- generation of the document; for a batch, its round
    code         TEXT,
    message      TEXT,
    remedy       TEXT,                     -- what to do about it
    key          TEXT UNIQUE,
    CONSTRAINT "at, kind, owner, code, message, remedy and key have at most 200000 bytes"
        CHECK (length(CAST(at AS BLOB)) <= 200000 AND length(CAST(kind AS BLOB)) <= 200000
               AND length(CAST(owner AS BLOB)) <= 200000 AND length(CAST(code AS BLOB)) <= 200000
               AND length(CAST(message AS BLOB)) <= 200000 AND length(CAST(remedy AS BLOB)) <= 200000
               AND length(CAST(key AS BLOB)) <= 200000)
) STRICT;

-- Jobs to insert when a generation of a document has been read or has failed, each once.
CREATE TABLE deferred_action (
    id           INTEGER PRIMARY KEY AUTOINCREMENT,
    document_id  INTEGER NOT NULL,
    generation   INTEGER NOT NULL,
    on_end       TEXT NOT NULL DEFAULT 'success',
    job_type     TEXT NOT NULL,
    payload      TEXT NOT NULL DEFAULT '',   -- JSON; '' = none
    standing     INTEGER NOT NULL DEFAULT 0, -- 1: repeated for each new generation
    fired_at     TEXT,                       -- when it was run; NULL = not yet
    job_id       INTEGER,                    -- the inserted job
    UNIQUE (document_id, generation, on_end, job_type, payload),
    CONSTRAINT "on_end is success or failure" CHECK (on_end IN ('success', 'failure')),
    CONSTRAINT "job_type is not empty" CHECK (job_type <> ''),
    CONSTRAINT "payload is JSON" CHECK (payload = '' OR json_valid(payload)),
    CONSTRAINT "standing is 0 or 1" CHECK (standing IN (0, 1)),
    CONSTRAINT "job_type, payload and fired_at have at most 1000000 bytes"
        CHECK (length(CAST(job_type AS BLOB)) <= 1000000 AND length(CAST(payload AS BLOB)) <= 1000000
               AND length(CAST(fired_at AS BLOB)) <= 1000000)
) STRICT;

-- Jobs to insert each time that a document with the tag has been read or has failed.
CREATE TABLE tag_action (
    tag       TEXT NOT NULL,
    owner     TEXT NOT NULL DEFAULT '',      -- documents of this owner; '' = of all owners
    on_end    TEXT NOT NULL DEFAULT 'success',
    job_type  TEXT NOT NULL,
    payload   TEXT NOT NULL DEFAULT '',      -- JSON; '' = none
    PRIMARY KEY (tag, owner, on_end, job_type, payload),
    CONSTRAINT "on_end is success or failure" CHECK (on_end IN ('success', 'failure')),
    CONSTRAINT "job_type is not empty" CHECK (job_type <> ''),
    CONSTRAINT "payload is JSON" CHECK (payload = '' OR json_valid(payload)),
    CONSTRAINT "tag, owner, job_type and payload have at most 1000000 bytes"
        CHECK (length(CAST(tag AS BLOB)) <= 1000000 AND length(CAST(owner AS BLOB)) <= 1000000
               AND length(CAST(job_type AS BLOB)) <= 1000000 AND length(CAST(payload AS BLOB)) <= 1000000)
) STRICT, WITHOUT ROWID;

-- Jobs to insert when a job has failed.
CREATE TABLE failure_action (
    job_id       INTEGER NOT NULL,
    job_type     TEXT NOT NULL,
    payload      TEXT NOT NULL DEFAULT '',   -- JSON; '' = none
    fired_fence  INTEGER,                    -- fence of the failed attempt after which it was run
    PRIMARY KEY (job_id, job_type, payload),
    CONSTRAINT "job_type is not empty" CHECK (job_type <> ''),
    CONSTRAINT "payload is JSON" CHECK (payload = '' OR json_valid(payload)),
    CONSTRAINT "job_type and payload have at most 1000000 bytes"
        CHECK (length(CAST(job_type AS BLOB)) <= 1000000 AND length(CAST(payload AS BLOB)) <= 1000000)
) STRICT, WITHOUT ROWID;

-- The last notice that each reader, such as a notification channel, has processed.
CREATE TABLE notice_reader (
    name       TEXT PRIMARY KEY NOT NULL CONSTRAINT "name has at most 30000 bytes" CHECK (length(CAST(name AS BLOB)) <= 30000),
    notice_id  INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- Never has a row. A trigger tries INSERT OR IGNORE here, which does nothing, unless the statement that fired the
-- trigger is OR REPLACE: SQLite then applies REPLACE in the trigger as well, and the statement fails with this
-- sentence.
CREATE TABLE no_replacing (
    unique_key TEXT,
    CONSTRAINT "a live job already has this unique_key, and nothing may replace it: leave OR REPLACE out" CHECK (0)
) STRICT;

-- Bulk changes by users, for the history and for `pagemill undo`, which applies the opposite verb.
CREATE TABLE worker_action (
    id         INTEGER PRIMARY KEY AUTOINCREMENT,
    at         TEXT NOT NULL,
    actor      TEXT NOT NULL,
    verb       TEXT NOT NULL CHECK (verb IN ('cancel', 'retry', 'delete', 'priority', 'remove', 'make_token', 'remove_token',
                                                    'stop_batch', 'resume_batch', 'retry_batch', 'forget_batch', 'dismiss',
                                                    'add_schedule', 'change_schedule', 'remove_schedule')),
    undone_at  TEXT,
    undone_by  TEXT,
    batch_id   INTEGER,                  -- the batch, if a whole batch was stopped, resumed, retried, removed or cancelled
    CONSTRAINT "at, actor, undone_at and undone_by have at most 1000 bytes"
        CHECK (length(CAST(at AS BLOB)) <= 1000 AND length(CAST(actor AS BLOB)) <= 1000
               AND length(CAST(undone_at AS BLOB)) <= 1000 AND length(CAST(undone_by AS BLOB)) <= 1000)
) STRICT;

CREATE TABLE worker_action_item (
    action_id        INTEGER NOT NULL,
    item_id          INTEGER NOT NULL,   -- the job, the removed document, or the token; 0 = a schedule
    left_as          TEXT,               -- status, fence and priority after the change; a description of a removed item;
                                         -- JSON of a schedule before and after the change
    priority_before  INTEGER,
    PRIMARY KEY (action_id, item_id),
    CONSTRAINT "left_as has at most 400000 bytes" CHECK (length(CAST(left_as AS BLOB)) <= 400000)
) STRICT, WITHOUT ROWID;


-- Credentials for HTTP. kind 'link' starts one browser session; 'session' was started with the token or link
-- `token_id`. `digest` is the SHA-256 of the secret, which is not stored. Removing a token removes its sessions.
CREATE TABLE token (
    id        INTEGER PRIMARY KEY AUTOINCREMENT,
    kind      TEXT NOT NULL CHECK (kind IN ('token', 'link', 'session')),
    name      TEXT NOT NULL,             -- recorded as the actor of actions
    digest    TEXT NOT NULL,
    scopes    TEXT NOT NULL,             -- read, operate, admin, separated by spaces
    owner     TEXT,                      -- gives access to this owner's data only; NULL = all data
    made_at   TEXT NOT NULL,
    made_by   TEXT NOT NULL,
    used_at   TEXT,                      -- time of the last use; a used link no longer works
    until     TEXT,                      -- NULL = no end
    token_id  INTEGER,
    CONSTRAINT "name, digest, scopes, owner, made_at, made_by, used_at and until have at most 1000 bytes"
        CHECK (length(CAST(name AS BLOB)) <= 1000 AND length(CAST(digest AS BLOB)) <= 1000
               AND length(CAST(scopes AS BLOB)) <= 1000 AND length(CAST(owner AS BLOB)) <= 1000
               AND length(CAST(made_at AS BLOB)) <= 1000 AND length(CAST(made_by AS BLOB)) <= 1000
               AND length(CAST(used_at AS BLOB)) <= 1000 AND length(CAST(until AS BLOB)) <= 1000)
) STRICT;
CREATE UNIQUE INDEX token_by_name ON token (name) WHERE kind = 'token';
CREATE INDEX token_by_token ON token (token_id) WHERE token_id IS NOT NULL;


-- HTTP requests with an Idempotency-Key, and their responses. A repeated request gets the same response.
CREATE TABLE request (
    key       TEXT PRIMARY KEY NOT NULL,   -- includes the caller
    wish      TEXT NOT NULL,               -- digest of the request
    at        TEXT NOT NULL,
    status    INTEGER,
    answer    TEXT,                        -- response body; NULL: accepted, and the response is not known
    location  TEXT,
    CONSTRAINT "key, wish, at and location have at most 5000 bytes"
        CHECK (length(CAST(key AS BLOB)) <= 5000 AND length(CAST(wish AS BLOB)) <= 5000
               AND length(CAST(at AS BLOB)) <= 5000 AND length(CAST(location AS BLOB)) <= 5000),
    CONSTRAINT "answer has at most 16777216 bytes" CHECK (length(CAST(answer AS BLOB)) <= 16777216)
) STRICT;
CREATE INDEX request_by_time ON request (at);


-- ── Workers, and the gates of lanes ─────────────────────────────────────────────────────────────────────────────

-- One row per daemon. A daemon whose heartbeat_at is too old counts as dead.
CREATE TABLE worker (
    id            TEXT PRIMARY KEY NOT NULL,
    host          TEXT NOT NULL,
    boot_id       TEXT NOT NULL,
    pid           INTEGER NOT NULL CONSTRAINT "pid is that of a process" CHECK (pid BETWEEN 1 AND 4194304),
    version       TEXT NOT NULL,
    cpu_slots     INTEGER NOT NULL CHECK (cpu_slots BETWEEN 0 AND 100000),
    io_slots      INTEGER NOT NULL CHECK (io_slots BETWEEN 0 AND 100000),
    draining      INTEGER NOT NULL DEFAULT 0,   -- 1: finishes its jobs and claims no more
    disk_low      INTEGER NOT NULL DEFAULT 0,   -- 1: too little free space to start jobs
    started_at    TEXT NOT NULL,
    heartbeat_at  TEXT NOT NULL,
    node_slots    INTEGER NOT NULL DEFAULT 0,   -- total slots of the cluster nodes that it can use now
    -- The id is part of the names of its lock file and its staging directory.
    CONSTRAINT "id is a plain name: letters, digits and signs without a slash, at most 500, and no dot first"
        CHECK (id <> '' AND id NOT GLOB '*[^ -.0-~]*' AND id NOT GLOB '.*' AND instr(id, char(0)) = 0
               AND length(CAST(id AS BLOB)) <= 500),
    CONSTRAINT "node_slots is 0 to 1000000" CHECK (node_slots BETWEEN 0 AND 1000000),
    CONSTRAINT "host, boot_id and version have at most 1000 bytes"
        CHECK (length(CAST(host AS BLOB)) <= 1000 AND length(CAST(boot_id AS BLOB)) <= 1000
               AND length(CAST(version AS BLOB)) <= 1000),
    CONSTRAINT "started_at and heartbeat_at are times like 2026-11-18 10:00:00.000 (UTC)"
        CHECK (started_at IS strftime('%Y-%m-%d %H:%M:%f', started_at, '+0 days') AND started_at >= '1970'
               AND heartbeat_at IS strftime('%Y-%m-%d %H:%M:%f', heartbeat_at, '+0 days') AND heartbeat_at >= '1970')
) STRICT;

-- The job types that each worker can run. Written by the daemon; claim, why and enqueue read it instead of importing
-- handlers.
CREATE TABLE handler (
    worker_id       TEXT NOT NULL,
    job_type        TEXT NOT NULL,
    class           TEXT NOT NULL CHECK (class IN ('cpu', 'io', 'node')),   -- the kind of slots it takes
    missing         TEXT,                         -- description of a required capability that is missing
    missing_remedy  TEXT NOT NULL DEFAULT '',     -- how to install it
    at_most_once    INTEGER NOT NULL DEFAULT 0,   -- 1: a started job is never run again automatically
    payload_schema  TEXT CHECK (payload_schema IS NULL OR json_valid(payload_schema)),
    timeout_seconds INTEGER NOT NULL DEFAULT 3600,   -- of one attempt, if the job has none
    choices         TEXT CHECK (choices IS NULL OR json_valid(choices)),   -- payload key → possible values here
    PRIMARY KEY (worker_id, job_type),
    CONSTRAINT "job_type, missing and missing_remedy have at most 30000 bytes"
        CHECK (length(CAST(job_type AS BLOB)) <= 30000 AND length(CAST(missing AS BLOB)) <= 30000
               AND length(CAST(missing_remedy AS BLOB)) <= 30000)
) STRICT, WITHOUT ROWID;

-- The nodes of the Ray cluster, as seen by the daemon that uses them. By hand: draining = 1 stops giving the node new
-- attempts, 0 resumes it.
CREATE TABLE node (
    name       TEXT PRIMARY KEY NOT NULL,
    worker_id  TEXT NOT NULL,              -- the daemon that wrote this row last
    state      TEXT NOT NULL,
    slots      INTEGER NOT NULL DEFAULT 0,
    version    TEXT NOT NULL DEFAULT '',
    reason     TEXT NOT NULL DEFAULT '',   -- reason why it is not up
    draining   INTEGER NOT NULL DEFAULT 0 CONSTRAINT "draining is 0 or 1" CHECK (draining IN (0, 1)),
    CONSTRAINT "state is starting, up, draining, refused or down"
        CHECK (state IN ('starting', 'up', 'draining', 'refused', 'down')),
    CONSTRAINT "slots is 0 to 100000" CHECK (slots BETWEEN 0 AND 100000),
    CONSTRAINT "name, worker_id, version and reason have at most 10000 bytes"
        CHECK (length(CAST(name AS BLOB)) <= 10000 AND length(CAST(worker_id AS BLOB)) <= 10000
               AND length(CAST(version AS BLOB)) <= 10000 AND length(CAST(reason AS BLOB)) <= 10000)
) STRICT, WITHOUT ROWID;

-- Jobs that ended in each hour, by type. The daemon keeps a month.
CREATE TABLE hour_of_work (
    hour                  TEXT NOT NULL,              -- '2026-11-18 10'
    job_type              TEXT NOT NULL,
    completed             INTEGER NOT NULL,
    failed                INTEGER NOT NULL,
    pages                 INTEGER NOT NULL,           -- pages read by the completed jobs
    seconds               REAL NOT NULL,              -- length of their last attempts: the sum and the longest
    longest_seconds       REAL NOT NULL,
    waited_seconds        REAL NOT NULL,              -- from created_at or run_at to the start of that attempt
    longest_wait_seconds  REAL NOT NULL,
    PRIMARY KEY (hour, job_type),
    CONSTRAINT "hour and job_type have at most 40000 bytes"
        CHECK (length(CAST(hour AS BLOB)) <= 40000 AND length(CAST(job_type AS BLOB)) <= 40000)
) STRICT, WITHOUT ROWID;

-- Maximum number of running jobs. kind 'owner' with name '*' is for each owner without a row of its own.
-- kind 'payload' with name 'bytes' is the maximum size of a payload.
CREATE TABLE job_limit (
    kind  TEXT NOT NULL CHECK (kind IN ('type', 'class', 'owner', 'payload')),
    name  TEXT NOT NULL,
    most  INTEGER NOT NULL CHECK (most >= 0),
    PRIMARY KEY (kind, name),
    CONSTRAINT "name has at most 30000 bytes" CHECK (length(CAST(name AS BLOB)) <= 30000)
) STRICT, WITHOUT ROWID;

-- Pauses by users: no job, no job of a type, or no job of an owner starts.
CREATE TABLE pause (
    scope   TEXT NOT NULL CHECK (scope IN ('all', 'type', 'owner')),
    name    TEXT NOT NULL DEFAULT '',
    since   TEXT NOT NULL DEFAULT (strftime('%Y-%m-%d %H:%M:%f', 'now')),
    until   TEXT                                  -- NULL = until it is removed
            CONSTRAINT "until is a time like 2026-11-18 10:00:00.000 (UTC)"
            CHECK (until IS NULL OR (until IS strftime('%Y-%m-%d %H:%M:%f', until, '+0 days') AND until >= '1970')),
    reason  TEXT,
    PRIMARY KEY (scope, name),
    CONSTRAINT "name, since and reason have at most 30000 bytes"
        CHECK (length(CAST(name AS BLOB)) <= 30000 AND length(CAST(since AS BLOB)) <= 30000
               AND length(CAST(reason AS BLOB)) <= 30000),
    CONSTRAINT "a pause of everything has no name, any other pause names its type or owner"
        CHECK ((scope = 'all') = (name = ''))
) STRICT, WITHOUT ROWID;

-- Sources that asked for a pause: their jobs do not start before `until`.
CREATE TABLE source_rest (
    source  TEXT PRIMARY KEY NOT NULL,
    until   TEXT NOT NULL
            CONSTRAINT "until is a time like 2026-11-18 10:00:00.000 (UTC)"
            CHECK (until IS strftime('%Y-%m-%d %H:%M:%f', until, '+0 days') AND until >= '1970'),
    reason  TEXT,
    -- '' is the source of jobs without one, which cannot rest.
    CONSTRAINT "source is not empty" CHECK (source <> ''),
    CONSTRAINT "source and reason have at most 30000 bytes"
        CHECK (length(CAST(source AS BLOB)) <= 30000 AND length(CAST(reason AS BLOB)) <= 30000)
) STRICT, WITHOUT ROWID;

-- P9: among the owners with the fewest running jobs, the one served longest ago comes next. `served` rises with
-- each claim.
CREATE TABLE owner_served (
    owner   TEXT PRIMARY KEY NOT NULL CONSTRAINT "owner has at most 30000 bytes" CHECK (length(CAST(owner AS BLOB)) <= 30000),
    served  INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX owner_by_served ON owner_served (served);

-- Schedules made in the page, by HTTP or with `pagemill schedules`. The settings file may define others.
CREATE TABLE schedule (
    name        TEXT PRIMARY KEY NOT NULL,
    owner       TEXT NOT NULL DEFAULT '',
    definition  TEXT NOT NULL,   -- JSON: the other fields of a [[schedule]] table
    paused_at   TEXT,            -- NULL = it runs
    CONSTRAINT "definition is JSON" CHECK (json_valid(definition)),
    CONSTRAINT "name, owner and paused_at have at most 30000 bytes, definition 90000"
        CHECK (length(CAST(name AS BLOB)) <= 30000 AND length(CAST(owner AS BLOB)) <= 30000
               AND length(CAST(paused_at AS BLOB)) <= 30000 AND length(CAST(definition AS BLOB)) <= 90000)
) STRICT, WITHOUT ROWID;

-- Runs of schedules. Each slot (time at which a schedule is due) runs once, also after its job was deleted. schedule
-- 'once:KEY' is for `pagemill enqueue --unique KEY --once-per day`. The newest run of each schedule is kept, and all
-- runs of the last two months: a period is at most a month, and a schedule never returns to earlier slots.
CREATE TABLE schedule_run (
    schedule  TEXT NOT NULL,
    slot      TEXT NOT NULL,     -- scheduled time; 'now …' if started by a user; 'day 2026-11-19' for a key
    at        TEXT NOT NULL DEFAULT (strftime('%Y-%m-%d %H:%M:%f', 'now')),
    job_id    INTEGER,           -- the started job
    batch_id  INTEGER,
    PRIMARY KEY (schedule, slot),
    CONSTRAINT "schedule, slot and at have at most 40000 bytes"
        CHECK (length(CAST(schedule AS BLOB)) <= 40000 AND length(CAST(slot AS BLOB)) <= 40000
               AND length(CAST(at AS BLOB)) <= 40000)
) STRICT, WITHOUT ROWID;
-- last_run
CREATE INDEX schedule_run_by_time ON schedule_run (schedule, at, slot);

-- The position of each schedule: its slots up to `until` have been started or skipped. plan: cron expression and zone.
CREATE TABLE schedule_plan (
    schedule  TEXT PRIMARY KEY NOT NULL,
    plan      TEXT NOT NULL,
    until     TEXT NOT NULL,
    CONSTRAINT "until is a time like 2026-11-18 10:00:00.000 (UTC)"
        CHECK (until IS strftime('%Y-%m-%d %H:%M:%f', until, '+0 days') AND until >= '1970'),
    CONSTRAINT "schedule and plan have at most 40000 bytes"
        CHECK (length(CAST(schedule AS BLOB)) <= 40000 AND length(CAST(plan AS BLOB)) <= 40000)
) STRICT, WITHOUT ROWID;


-- ── Documents, pages and search ─────────────────────────────────────────────────────────────────────────────────

-- One item to read, identified permanently by owner, platform and source_key. When its jobs change, index_status is
-- updated by the next transaction of pagemill.
CREATE TABLE document (
    id                  INTEGER PRIMARY KEY AUTOINCREMENT    -- never used twice
                        CONSTRAINT "the table chooses the id of a document: leave it out of the INSERT"
                        CHECK (id BETWEEN 1 AND 1000000000000),
    owner               TEXT NOT NULL DEFAULT '',
    platform            TEXT NOT NULL,
    source_key          TEXT NOT NULL,             -- a Drive file's id, a URL, an absolute path
    name                TEXT NOT NULL DEFAULT '',
    content             TEXT NOT NULL DEFAULT '',  -- SHA-256 of its file; '' = unknown
    revision            TEXT NOT NULL DEFAULT '',  -- the source's name for this content; '' = none
    kind                TEXT,                      -- pdf, image, sheet
    pages               INTEGER,                   -- NULL = not counted yet
    index_status        TEXT NOT NULL DEFAULT 'not_indexed',
    index_generation    INTEGER NOT NULL DEFAULT 0,   -- the newest generation; +1 with each accepted request
    current_generation  INTEGER,                   -- the published generation; NULL = none yet
    settings            TEXT NOT NULL DEFAULT '',  -- JSON: reading settings of the newest generation
    settings_before     TEXT,                      -- settings of the last success, set by the next request; NULL = none
    is_locked           INTEGER NOT NULL DEFAULT 0    -- 1: its file opens with a password only
                        CONSTRAINT "is_locked is 0 or 1" CHECK (is_locked IN (0, 1)),
    note                TEXT,                      -- note for users, such as "repaired"
    error_code          TEXT,
    error_message       TEXT,
    error_remedy        TEXT,
    created_at          TEXT NOT NULL DEFAULT (strftime('%Y-%m-%d %H:%M:%f', 'now')),
    updated_at          TEXT NOT NULL DEFAULT (strftime('%Y-%m-%d %H:%M:%f', 'now')),   -- when its reading last advanced
    gone_at             TEXT,                      -- when a crawl no longer found it in its source

    UNIQUE (owner, platform, source_key),
    CONSTRAINT "platform and source_key are not empty" CHECK (platform <> '' AND source_key <> ''),
    CONSTRAINT "index_status is not_indexed, queued, indexing, success or failed"
        CHECK (index_status IN ('not_indexed', 'queued', 'indexing', 'success', 'failed')),
    CONSTRAINT "pages is 0 to 1000000000" CHECK (pages BETWEEN 0 AND 1000000000),
    CONSTRAINT "updated_at is a time like 2026-11-18 10:00:00.000 (UTC)"
        CHECK (updated_at IS strftime('%Y-%m-%d %H:%M:%f', updated_at, '+0 days') AND updated_at >= '1970'),
    CONSTRAINT "owner, platform, source_key, name and each other text have at most 200000 bytes"
        CHECK (length(CAST(owner AS BLOB)) <= 200000 AND length(CAST(platform AS BLOB)) <= 200000
               AND length(CAST(source_key AS BLOB)) <= 200000 AND length(CAST(name AS BLOB)) <= 200000
               AND length(CAST(content AS BLOB)) <= 200000 AND length(CAST(revision AS BLOB)) <= 200000
               AND length(CAST(kind AS BLOB)) <= 200000
               AND length(CAST(settings AS BLOB)) <= 200000 AND length(CAST(settings_before AS BLOB)) <= 200000
               AND length(CAST(note AS BLOB)) <= 200000 AND length(CAST(error_code AS BLOB)) <= 200000
               AND length(CAST(error_message AS BLOB)) <= 200000 AND length(CAST(error_remedy AS BLOB)) <= 200000
               AND length(CAST(created_at AS BLOB)) <= 200000
               AND length(CAST(gone_at AS BLOB)) <= 200000),
    CONSTRAINT "settings are JSON" CHECK (settings = '' OR json_valid(settings)),
    CONSTRAINT "settings_before are JSON" CHECK (settings_before = '' OR json_valid(settings_before)),
    CONSTRAINT "current_generation is one that was asked for" CHECK (current_generation BETWEEN 1 AND index_generation),
    CONSTRAINT "a document is not_indexed exactly until it is first asked for"
        CHECK ((index_status = 'not_indexed') = (index_generation = 0)),
    CONSTRAINT "a document is a success exactly while people read its newest generation"
        CHECK ((index_status = 'success') = (current_generation IS index_generation))
) STRICT;
CREATE INDEX document_by_status ON document (index_status, owner);
-- documents, count_documents: all columns by which lists are filtered and sorted. Reading this index from end to end
-- takes 6 ms for 100,000 documents, an index for each way to sort and filter up to 200 ms.
CREATE INDEX document_list ON document (owner, index_status, kind, created_at, pages, name);

-- Words by which users sort documents. A new reading or another version of the file does not change them.
CREATE TABLE document_tag (
    document_id  INTEGER NOT NULL,
    tag          TEXT NOT NULL,
    owner        TEXT NOT NULL,                             -- of the document, which never changes its owner
    PRIMARY KEY (document_id, tag),
    CONSTRAINT "a tag is a word or a few: lower case, no comma, no blank at its ends, at most 240 bytes"
        CHECK (tag <> '' AND tag = lower(trim(tag)) AND instr(tag, ',') = 0 AND length(CAST(tag AS BLOB)) <= 240)
) STRICT, WITHOUT ROWID;
CREATE INDEX document_by_tag ON document_tag (tag, document_id);
-- tag_names, tag_counts: the tags of one owner. Without this index, reading the tags of all owners took 190 ms.
CREATE INDEX tag_by_owner ON document_tag (owner, tag);

-- Full-text index of the names of documents.
CREATE VIRTUAL TABLE document_name USING fts5 (
    name, content = 'document', content_rowid = 'id', tokenize = 'unicode61 remove_diacritics 2'
);
CREATE TRIGGER document_named AFTER INSERT ON document
BEGIN
    INSERT INTO document_name (rowid, name) VALUES (NEW.id, NEW.name);
END;
CREATE TRIGGER document_renamed AFTER UPDATE OF name ON document WHEN NEW.name IS NOT OLD.name
BEGIN
    INSERT INTO document_name (document_name, rowid, name) VALUES ('delete', OLD.id, OLD.name);
    INSERT INTO document_name (rowid, name) VALUES (NEW.id, NEW.name);
END;
CREATE TRIGGER document_name_deleted AFTER DELETE ON document
BEGIN
    INSERT INTO document_name (document_name, rowid, name) VALUES ('delete', OLD.id, OLD.name);
END;

-- A published file. It belongs to its document and is kept when its job is deleted. Several rows can have the same
-- path.
CREATE TABLE file (
    id           INTEGER PRIMARY KEY AUTOINCREMENT
                 CONSTRAINT "the table chooses the id of a file: leave it out of the INSERT"
                 CHECK (id BETWEEN 1 AND 1000000000000),
    job_id       INTEGER NOT NULL,
    fence        INTEGER NOT NULL,
    document_id  INTEGER,
    role         TEXT NOT NULL DEFAULT '',   -- role for its document: original, text, pages, pdf, …
    name         TEXT NOT NULL,
    path         TEXT NOT NULL,              -- relative to the workspace
    size         INTEGER NOT NULL,
    sha256       TEXT NOT NULL DEFAULT '',
    md5          TEXT NOT NULL DEFAULT '',
    note         TEXT NOT NULL DEFAULT '',   -- note for users, such as "the source gives no digest"
    owner        TEXT NOT NULL DEFAULT '',
    created_at   TEXT NOT NULL,
    CONSTRAINT "path leads below the workspace"
        CHECK (path <> '' AND path NOT GLOB '/*' AND '/' || path || '/' NOT GLOB '*/../*'
               AND length(CAST(path AS BLOB)) <= 4096),
    CONSTRAINT "path has no NUL" CHECK (instr(path, char(0)) = 0),
    CONSTRAINT "role, name, sha256, md5, owner and created_at have at most 30000 bytes"
        CHECK (length(CAST(role AS BLOB)) <= 30000 AND length(CAST(name AS BLOB)) <= 30000
               AND length(CAST(sha256 AS BLOB)) <= 30000 AND length(CAST(md5 AS BLOB)) <= 30000
               AND length(CAST(owner AS BLOB)) <= 30000 AND length(CAST(created_at AS BLOB)) <= 30000),
    CONSTRAINT "size is 0 to 1125899906842624 bytes" CHECK (size BETWEEN 0 AND 1125899906842624)
) STRICT;
CREATE INDEX file_by_document ON file (document_id, role) WHERE document_id IS NOT NULL;
CREATE INDEX file_by_job ON file (job_id);
CREATE INDEX file_by_path ON file (path);
-- files with the same content
CREATE INDEX file_by_sha256 ON file (sha256) WHERE sha256 <> '';
CREATE INDEX file_by_md5 ON file (md5, size) WHERE md5 <> '';

-- Paths to which no row refers any more. A chore deletes these files from the workspace.
CREATE TABLE file_gone (
    path  TEXT PRIMARY KEY NOT NULL,
    CONSTRAINT "path leads below the workspace"
        CHECK (path <> '' AND path NOT GLOB '/*' AND '/' || path || '/' NOT GLOB '*/../*'
               AND length(CAST(path AS BLOB)) <= 4096 AND instr(path, char(0)) = 0)
) STRICT, WITHOUT ROWID;

-- Removed documents whose pages still exist. A chore deletes the pages in small steps, because there may be many.
CREATE TABLE document_gone (document_id INTEGER PRIMARY KEY) STRICT;

-- The last publication or removal of each document, in the order of their commits, for programs that follow them.
CREATE TABLE document_change (
    number       INTEGER PRIMARY KEY AUTOINCREMENT,   -- never used twice
    document_id  INTEGER NOT NULL UNIQUE,
    owner        TEXT NOT NULL,
    generation   INTEGER                              -- NULL = removed
) STRICT;
CREATE INDEX document_change_by_owner ON document_change (owner, number);

-- Links in the workspace that give readable names to the files of documents. A chore creates them from these rows.
CREATE TABLE link (
    path         TEXT NOT NULL,              -- relative to the workspace
    folded       TEXT PRIMARY KEY NOT NULL,  -- case-folded path, so that no two links differ only in case
    document_id  INTEGER NOT NULL,
    target       TEXT NOT NULL,              -- the file, relative to the workspace; '' = delete the link
    CONSTRAINT "path leads below the workspace"
        CHECK (path <> '' AND path NOT GLOB '/*' AND '/' || path || '/' NOT GLOB '*/../*')
) STRICT, WITHOUT ROWID;
CREATE INDEX link_by_document ON link (document_id);

-- Documents whose links must be updated; 0 = all documents, because folders have moved.
CREATE TABLE link_due (document_id INTEGER PRIMARY KEY) STRICT;

-- The text of a page. Pages with the same digest share one row, also across documents and owners. Never changed.
CREATE TABLE page_result (
    id            INTEGER PRIMARY KEY,
    digest        TEXT NOT NULL UNIQUE,
    text          TEXT NOT NULL,
    method        TEXT NOT NULL,            -- layer, ocr, partial, rows, blank, too_large or unreadable
    confidence    REAL,                     -- OCR confidence, 0 to 100
    divided_words TEXT NOT NULL DEFAULT '', -- words that a line end or a soft hyphen divides, joined, one per line
    layout        BLOB,                     -- zlib of JSON: page size, words with their boxes, blocks, tables
    created_at    TEXT NOT NULL,
    forgotten_at  TEXT,                     -- set when no page refers to it; '' = a chore has not set the time yet
    CONSTRAINT "digest is not empty" CHECK (digest <> ''),
    CONSTRAINT "digest, method, created_at and forgotten_at have at most 1000 bytes, text and divided_words 33554432"
        CHECK (length(CAST(digest AS BLOB)) <= 1000 AND length(CAST(method AS BLOB)) <= 1000
               AND length(CAST(created_at AS BLOB)) <= 1000 AND length(CAST(forgotten_at AS BLOB)) <= 1000
               AND length(CAST(text AS BLOB)) <= 33554432 AND length(CAST(divided_words AS BLOB)) <= 33554432),
    CONSTRAINT "confidence is 0 to 100" CHECK (confidence BETWEEN 0 AND 100)
) STRICT;
CREATE INDEX page_result_forgotten ON page_result (forgotten_at) WHERE forgotten_at IS NOT NULL;

-- Further digests of a page result: different pages with the same image share one result.
CREATE TABLE page_alias (
    digest         TEXT PRIMARY KEY,
    result_digest  TEXT NOT NULL,
    CONSTRAINT "digest is not empty" CHECK (digest <> ''),
    CONSTRAINT "digest and result_digest have at most 1000 bytes"
        CHECK (length(CAST(digest AS BLOB)) <= 1000 AND length(CAST(result_digest AS BLOB)) <= 1000)
) STRICT, WITHOUT ROWID;
CREATE INDEX page_alias_by_result ON page_alias (result_digest);

-- Pages are written while a document is being read. Only pages of the current generation are shown.
CREATE TABLE page (
    document_id  INTEGER NOT NULL,
    generation   INTEGER NOT NULL,
    number       INTEGER NOT NULL,
    result_id    INTEGER NOT NULL,
    PRIMARY KEY (document_id, generation, number),
    CONSTRAINT "number is 1 or more" CHECK (number >= 1)
) STRICT, WITHOUT ROWID;
CREATE INDEX page_by_result ON page (result_id);

-- Full-text index of all page results. Publishing writes nothing here; a search joins page_result, page and document.
CREATE VIRTUAL TABLE page_text USING fts5 (
    text, divided_words, content = 'page_result', content_rowid = 'id', tokenize = 'unicode61 remove_diacritics 2'
);

-- The words of the index, each with the number of its pages; for suggestions.
CREATE VIRTUAL TABLE page_word USING fts5vocab (page_text, row);

-- The index has no copy of the text: it reads page_result to remove words and to make snippets.
CREATE TRIGGER page_result_guard BEFORE UPDATE OF id, text, divided_words ON page_result
WHEN NEW.id IS NOT OLD.id OR NEW.text IS NOT OLD.text OR NEW.divided_words IS NOT OLD.divided_words
BEGIN
    SELECT RAISE(ABORT, 'what was read of a page does not change: to have its document read again, use pagemill reindex --force');
END;

CREATE TRIGGER page_result_deleted AFTER DELETE ON page_result
WHEN EXISTS (SELECT 1 FROM page_text_docsize WHERE id = OLD.id)
BEGIN
    INSERT INTO page_text (page_text, rowid, text, divided_words) VALUES ('delete', OLD.id, OLD.text, OLD.divided_words);
END;

-- Vectors of passages for the search by meaning; see docs/documents.md. Equal passages of documents share them.
CREATE TABLE passage_embedding (
    id       INTEGER PRIMARY KEY AUTOINCREMENT,   -- never used twice: a search reads only what is new
    model    TEXT NOT NULL,
    digest   TEXT NOT NULL,   -- of the passage
    vectors  BLOB NOT NULL,   -- 8-bit numbers: the mean of all windows of the passage, then each window
    CONSTRAINT "model and digest have at most 1000 bytes"
        CHECK (length(CAST(model AS BLOB)) <= 1000 AND length(CAST(digest AS BLOB)) <= 1000)
) STRICT;
CREATE UNIQUE INDEX passage_embedding_by_digest ON passage_embedding (model, digest);

-- Passages that have vectors, one row for each page of a passage. Rows of an earlier generation are kept until the
-- passages of the current one have vectors.
CREATE TABLE passage (
    embedding_id  INTEGER NOT NULL,
    document_id   INTEGER NOT NULL,
    generation    INTEGER NOT NULL,
    number        INTEGER NOT NULL,
    page          INTEGER NOT NULL,
    words_before  INTEGER NOT NULL,   -- of the passage, on earlier pages
    PRIMARY KEY (embedding_id, document_id, generation, number, page)
) STRICT, WITHOUT ROWID;
CREATE INDEX passage_by_document ON passage (document_id, generation, page);

CREATE TRIGGER passage_deleted AFTER DELETE ON passage
WHEN NOT EXISTS (SELECT 1 FROM passage p WHERE p.embedding_id = OLD.embedding_id)
BEGIN
    DELETE FROM passage_embedding WHERE id = OLD.embedding_id;
END;

CREATE TRIGGER document_passages AFTER DELETE ON document
BEGIN
    DELETE FROM passage WHERE document_id = OLD.id;
    DELETE FROM document_embedding WHERE document_id = OLD.id;
END;

-- The generation of a document whose passages all have vectors of a model.
CREATE TABLE document_embedding (
    document_id  INTEGER NOT NULL,
    model        TEXT NOT NULL,
    generation   INTEGER NOT NULL,
    PRIMARY KEY (document_id, model),
    CONSTRAINT "model has at most 1000 bytes" CHECK (length(CAST(model AS BLOB)) <= 1000)
) STRICT, WITHOUT ROWID;

-- One row: the model that searches use, which has vectors of all documents.
CREATE TABLE embedding_model (
    id     INTEGER PRIMARY KEY CHECK (id = 1),
    model  TEXT NOT NULL CONSTRAINT "model has at most 1000 bytes" CHECK (length(CAST(model AS BLOB)) <= 1000)
) STRICT;

-- State that a job has stored for its next attempt.
CREATE TABLE checkpoint (
    job_id  INTEGER PRIMARY KEY,
    fence   INTEGER NOT NULL,
    at      TEXT NOT NULL,
    state   TEXT NOT NULL,
    CONSTRAINT "state is JSON" CHECK (json_valid(state)),
    CONSTRAINT "state has at most 33554432 bytes" CHECK (length(CAST(state AS BLOB)) <= 33554432)
) STRICT;

-- State of a crawl between its runs, and the files and folders that it saw last.
CREATE TABLE crawl (
    key         TEXT PRIMARY KEY NOT NULL,
    owner       TEXT NOT NULL DEFAULT '',
    state       TEXT CONSTRAINT "state is JSON" CHECK (state IS NULL OR json_valid(state)),
    updated_at  TEXT NOT NULL,
    CONSTRAINT "key, owner and updated_at have at most 30000 bytes, state 33554432"
        CHECK (length(CAST(key AS BLOB)) <= 30000 AND length(CAST(owner AS BLOB)) <= 30000
               AND length(CAST(updated_at AS BLOB)) <= 30000
               AND length(CAST(state AS BLOB)) <= 33554432)
) STRICT, WITHOUT ROWID;

CREATE TABLE crawl_item (
    crawl      TEXT NOT NULL,
    id         TEXT NOT NULL,
    parent_id  TEXT NOT NULL DEFAULT '',
    name       TEXT NOT NULL DEFAULT '',
    kind       TEXT NOT NULL DEFAULT '',
    revision   TEXT NOT NULL DEFAULT '',
    size       INTEGER,
    note       TEXT NOT NULL DEFAULT '',   -- reason why it was not enqueued; '' = it was
    detail     TEXT NOT NULL DEFAULT '',   -- data of the crawl handler for its next run
    walk       INTEGER NOT NULL DEFAULT 0,   -- number of the full walk that saw it last
    seen_at    TEXT NOT NULL,
    gone_at    TEXT,
    PRIMARY KEY (crawl, id),
    CONSTRAINT "crawl, id, parent_id, name, kind, revision, note, detail and each time have at most 1000000 bytes"
        CHECK (length(CAST(crawl AS BLOB)) <= 1000000 AND length(CAST(id AS BLOB)) <= 1000000
               AND length(CAST(parent_id AS BLOB)) <= 1000000 AND length(CAST(name AS BLOB)) <= 1000000
               AND length(CAST(kind AS BLOB)) <= 1000000 AND length(CAST(revision AS BLOB)) <= 1000000
               AND length(CAST(note AS BLOB)) <= 1000000 AND length(CAST(detail AS BLOB)) <= 1000000
               AND length(CAST(seen_at AS BLOB)) <= 1000000 AND length(CAST(gone_at AS BLOB)) <= 1000000)
) STRICT, WITHOUT ROWID;
CREATE INDEX crawl_item_by_note ON crawl_item (crawl, note, id) WHERE note <> '' AND gone_at IS NULL;


-- ── Guards ──────────────────────────────────────────────────────────────────────────────────────────────────────
-- No trigger uses the clock for a decision. The times that triggers write are for information only.

-- Refuses invalid values with an explanation. For a plain row, only the WHEN is evaluated.
CREATE TRIGGER job_insert_guard BEFORE INSERT ON worker_job_queue
WHEN NEW.status <> 'pending' OR NEW.fence <> 0 OR NEW.retry_count <> 0 OR NEW.requeue_count <> 0
     OR NEW.cancel_requested_at IS NOT NULL OR length(CAST(NEW.payload AS BLOB)) >= 1000 OR NEW.unique_key IS NOT NULL
     OR NEW.document_id IS NOT NULL OR NEW.generation IS NOT NULL OR NEW.batch_id IS NOT NULL
     OR NEW.id <> -1   -- the value that SQLite shows before it has chosen an id
     OR NEW.job_type IS NULL OR NEW.platform IS NULL
BEGIN
    -- NOT NULL alone would not say which value to use, and INSERT OR IGNORE would ignore the row silently.
    SELECT CASE
        WHEN NEW.job_type IS NULL THEN RAISE(ABORT, 'job_type is missing: name the handler that runs the job')
        WHEN NEW.platform IS NULL
            THEN RAISE(ABORT, 'platform is missing: say what the job works with, such as instagram, or local for this machine')
    END;
    INSERT OR IGNORE INTO no_replacing
    SELECT unique_key FROM worker_job_queue
     WHERE unique_key = NEW.unique_key AND unique_key IS NOT NULL AND status IN ('pending', 'running');
    SELECT CASE
        WHEN NEW.generation IS NOT NULL AND NEW.document_id IS NULL
            THEN RAISE(ABORT, 'a generation belongs to a document: give document_id as well')
        WHEN NEW.document_id IS NOT NULL AND NOT EXISTS (SELECT 1 FROM document WHERE id = NEW.document_id)
            THEN RAISE(ABORT, 'there is no document with this document_id')
        WHEN NEW.batch_id IS NOT NULL AND NEW.owner <> ''
             AND EXISTS (SELECT 1 FROM batch WHERE id = NEW.batch_id AND owner <> '' AND owner <> NEW.owner)
            THEN RAISE(ABORT, 'this batch belongs to another owner: leave batch_id out of the INSERT')
        WHEN NEW.generation <> (SELECT index_generation FROM document WHERE id = NEW.document_id)
            THEN RAISE(ABORT, 'generation is not the newest of the document: to have it read again, use pagemill reindex')
        -- Otherwise INSERT OR REPLACE could delete a job, and an id could be used twice.
        WHEN NEW.id <> -1 THEN RAISE(ABORT, 'the table chooses the id of a job: leave it out of the INSERT')
        WHEN ifnull(NEW.status, 'pending') <> 'pending'
            THEN RAISE(ABORT, 'a new job is pending: leave status out of the INSERT')
        WHEN ifnull(NEW.fence, 0) <> 0 OR ifnull(NEW.retry_count, 0) <> 0 OR ifnull(NEW.requeue_count, 0) <> 0
             OR NEW.cancel_requested_at IS NOT NULL
            THEN RAISE(ABORT, 'a new job has no history: leave fence, retry_count, requeue_count and cancel_requested_at out of the INSERT')
        WHEN length(CAST(NEW.payload AS BLOB))
             > ifnull((SELECT most FROM job_limit WHERE kind = 'payload' AND name = 'bytes'), 1048576)
            THEN RAISE(ABORT, 'payload is too large: put the data into a file and its path into the payload (the limit is payload_bytes_max, 1 MiB unless set)')
    END;
END;

-- Creates or revives the batch, converts times to the usual form, and holds the job if it has to wait.
CREATE TRIGGER job_arrives AFTER INSERT ON worker_job_queue
WHEN NEW.held <> 0 OR NEW.run_at IS NOT NULL OR NEW.concurrency_key IS NOT NULL OR NEW.batch_id IS NOT NULL
     OR NEW.created_at NOT GLOB '????-??-?? ??:??:??.[0-9][0-9][0-9]'
BEGIN
    INSERT INTO batch (id, owner, priority)
    SELECT NEW.batch_id, NEW.owner, NEW.priority
     WHERE NEW.batch_id IS NOT NULL AND NOT EXISTS (SELECT 1 FROM batch WHERE id = NEW.batch_id);
    UPDATE batch SET state = 'active' WHERE id = NEW.batch_id AND state IN ('done', 'failed');
    UPDATE worker_job_queue
       SET created_at = strftime('%Y-%m-%d %H:%M:%f', created_at),
           run_at = strftime('%Y-%m-%d %H:%M:%f', run_at),
           held = (run_at IS NOT NULL) | (concurrency_key IS NOT NULL) * 8
                  | EXISTS (SELECT 1 FROM batch b WHERE b.id = NEW.batch_id AND b.state IN ('stopped', 'waiting')) * 16
     WHERE id = NEW.id
       AND (NEW.batch_id IS NULL OR held <> 0 OR run_at IS NOT NULL OR concurrency_key IS NOT NULL
            OR created_at NOT GLOB '????-??-?? ??:??:??.[0-9][0-9][0-9]'
            OR EXISTS (SELECT 1 FROM batch b WHERE b.id = NEW.batch_id AND b.state IN ('stopped', 'waiting')));
END;

-- A run_at always holds the job, even in the past. The next claim frees the jobs that are due.
CREATE TRIGGER job_run_at AFTER UPDATE OF run_at ON worker_job_queue
WHEN NEW.status = 'pending'
     AND ((NEW.run_at IS NULL) <> (NEW.held & 3 = 0) OR NEW.run_at <> strftime('%Y-%m-%d %H:%M:%f', NEW.run_at))
BEGIN
    UPDATE worker_job_queue
       SET run_at = strftime('%Y-%m-%d %H:%M:%f', run_at),
           held = CASE WHEN run_at IS NULL THEN held & ~3 WHEN held & 3 THEN held ELSE held | 1 END
     WHERE id = NEW.id;
END;

-- Cancel and retry by hand. A retry resets the retry budget, the error and the times, but not the fence. It keeps a
-- run_at that was in the future when the job ended, unless that run_at was set by a retry or snooze of its last
-- attempt.
CREATE TRIGGER job_by_hand BEFORE UPDATE OF status ON worker_job_queue
WHEN (NEW.status = 'cancelled' AND NEW.completed_at IS NULL AND OLD.status IN ('pending', 'running'))
  OR (NEW.status = 'pending' AND NEW.completed_at IS NOT NULL AND OLD.status IN ('completed', 'failed', 'cancelled'))
BEGIN
    UPDATE worker_job_queue
       SET cancel_requested_at = ifnull(cancel_requested_at, strftime('%Y-%m-%d %H:%M:%f', 'now'))
     WHERE id = OLD.id AND status = 'running';
    UPDATE worker_job_queue
       SET status = 'cancelled', held = 0, completed_at = strftime('%Y-%m-%d %H:%M:%f', 'now'),
           cancel_requested_at = strftime('%Y-%m-%d %H:%M:%f', 'now')
     WHERE id = OLD.id AND status = 'pending';
    SELECT RAISE(ABORT, 'a live job has the same unique_key: that one will do the work')
     WHERE NEW.status = 'pending'
       AND EXISTS (SELECT 1 FROM worker_job_queue
                    WHERE unique_key = OLD.unique_key AND unique_key IS NOT NULL AND status IN ('pending', 'running'));
    UPDATE worker_job_queue
       SET status = 'pending', completed_at = NULL, started_at = NULL, heartbeat_at = NULL, worker_id = NULL,
           cancel_requested_at = NULL, run_at = t.start, retry_count = 0, requeue_count = 0,
           error_code = NULL, error_message = NULL, error_remedy = NULL, result = NULL, progress_percent = 0, progress_done = NULL,
           progress_total = NULL, progress_rate = NULL, progress_unit = NULL, progress_at = NULL, progress_message = NULL,
           held = (t.start IS NOT NULL) | EXISTS (SELECT 1 FROM v_waits WHERE job_id = OLD.id AND NOT is_met) * 4
                  | (concurrency_key IS NOT NULL) * 8
      FROM (SELECT CASE WHEN OLD.run_at > OLD.completed_at
                         AND NOT EXISTS (SELECT 1 FROM worker_job_attempt a
                                          WHERE a.job_id = OLD.id AND a.fence = OLD.fence
                                            AND a.outcome IN ('retry', 'snoozed'))
                        THEN OLD.run_at END AS start) t
     WHERE worker_job_queue.id = OLD.id AND NEW.status = 'pending';
    SELECT RAISE(IGNORE);
END;

-- Allows only the moves of the state diagram. A running job can change its status only after its attempt was closed,
-- which the holder of the lease does first.
CREATE TRIGGER job_guard BEFORE UPDATE ON worker_job_queue
WHEN NEW.document_id IS NOT OLD.document_id OR NEW.generation IS NOT OLD.generation OR NEW.batch_id IS NOT OLD.batch_id
  OR (NEW.payload IS NOT OLD.payload AND length(NEW.payload) >= 1000)
  OR NOT ifnull(CASE
    WHEN OLD.status = 'pending' AND NEW.status = 'pending'
        THEN NEW.fence = OLD.fence AND NEW.id = OLD.id AND NEW.concurrency_key IS OLD.concurrency_key
             AND NEW.unique_key IS OLD.unique_key
             AND (NEW.run_at IS OLD.run_at) AND NEW.held = OLD.held AND NEW.created_at IS OLD.created_at
    WHEN OLD.status = 'pending' AND NEW.status = 'running'
        THEN NEW.fence = max(OLD.fence, ifnull((SELECT max(fence) FROM restored), 0)) + 1
             AND OLD.held = 0 AND EXISTS (SELECT 1 FROM worker WHERE id = NEW.worker_id)
    WHEN OLD.status = 'running' AND NEW.status = 'running'
        THEN NEW.fence = OLD.fence AND NEW.worker_id = OLD.worker_id AND NEW.started_at = OLD.started_at
             AND NEW.job_type = OLD.job_type AND NEW.owner = OLD.owner AND NEW.run_at IS OLD.run_at
             AND NEW.concurrency_key IS OLD.concurrency_key AND NEW.unique_key IS OLD.unique_key
             AND NEW.id = OLD.id
             AND NEW.progress_percent >= OLD.progress_percent
             AND (OLD.cancel_requested_at IS NULL OR NEW.cancel_requested_at IS NOT NULL)
    WHEN OLD.status = 'running'
        THEN NEW.fence = OLD.fence AND (NEW.status = 'cancelled') = (OLD.cancel_requested_at IS NOT NULL)
             AND EXISTS (SELECT 1 FROM worker_job_attempt a
                          WHERE a.job_id = OLD.id AND a.fence = OLD.fence AND a.ended_at IS NOT NULL)
    WHEN OLD.status = 'pending' AND NEW.status IN ('cancelled', 'failed')
        THEN NEW.fence = OLD.fence AND (NEW.status = 'cancelled' OR NEW.error_code IS NOT NULL)
    WHEN NEW.status = 'pending' AND OLD.status IN ('completed', 'failed', 'cancelled')
        THEN NEW.fence = OLD.fence AND NEW.retry_count = 0 AND NEW.requeue_count = 0 AND NEW.error_code IS NULL
             AND NEW.cancel_requested_at IS NULL AND NEW.generation IS NULL
    ELSE 0 END, 0)
BEGIN
    SELECT CASE
        WHEN NEW.document_id IS NOT OLD.document_id OR NEW.generation IS NOT OLD.generation
            THEN RAISE(ABORT, 'document_id and generation of a job are given when it is inserted, and do not change')
        WHEN NEW.batch_id IS NOT OLD.batch_id
            THEN RAISE(ABORT, 'batch_id of a job is given when it is inserted, and does not change')
        WHEN NEW.payload IS NOT OLD.payload
             AND length(CAST(NEW.payload AS BLOB))
                 > ifnull((SELECT most FROM job_limit WHERE kind = 'payload' AND name = 'bytes'), 1048576)
            THEN RAISE(ABORT, 'payload is too large: put the data into a file and its path into the payload (the limit is payload_bytes_max, 1 MiB unless set)')
        -- P11: a job of an older generation never runs again.
        WHEN NEW.status = 'pending' AND NEW.generation IS NOT NULL AND OLD.status IN ('completed', 'failed', 'cancelled')
             AND NOT EXISTS (SELECT 1 FROM document WHERE id = NEW.document_id AND index_generation = NEW.generation)
            THEN RAISE(ABORT, 'this job worked for an older generation of its document, or the document was deleted: to have it read again, use pagemill reindex')
        WHEN NEW.status = 'pending' AND OLD.status IN ('completed', 'failed', 'cancelled') AND NEW.fence = OLD.fence
             AND NEW.id = OLD.id AND NEW.retry_count = 0 AND NEW.requeue_count = 0 AND NEW.error_code IS NULL
             AND NEW.cancel_requested_at IS NULL
            THEN NULL
        WHEN NEW.status = 'cancelled' AND NEW.completed_at IS NULL AND OLD.status IN ('pending', 'running') THEN NULL
        WHEN NEW.status = 'pending' AND NEW.completed_at IS NOT NULL AND OLD.status NOT IN ('pending', 'running') THEN NULL
        WHEN ifnull(NEW.status, '') NOT IN ('pending', 'running', 'completed', 'failed', 'cancelled')
            THEN RAISE(ABORT, 'status is pending, running, completed, failed or cancelled')
        WHEN NEW.id IS NOT OLD.id THEN RAISE(ABORT, 'the id of a job never changes')
        WHEN NEW.held IS NULL THEN RAISE(ABORT, 'held is kept by the table: to hold a job, set its run_at')
        WHEN NEW.fence IS NOT OLD.fence THEN RAISE(ABORT, 'the fence of a job changes only when a worker claims it')
        WHEN OLD.status NOT IN ('pending', 'running') AND NEW.status = OLD.status
            THEN RAISE(ABORT, 'an ended job does not change: to run it again, set status to pending')
        WHEN OLD.status NOT IN ('pending', 'running')
            THEN RAISE(ABORT, 'an ended job can only be set to pending (to run again) or deleted')
        WHEN NEW.status = 'running' AND OLD.status = 'pending'
            THEN RAISE(ABORT, 'only a worker can start a job: to have it sooner, set its priority to 1')
        WHEN OLD.status = 'pending' AND NEW.status <> 'pending'
            THEN RAISE(ABORT, 'a pending job can only be set to cancelled, or deleted')
        WHEN OLD.status = 'running' AND NEW.status = 'running' AND NEW.progress_percent < OLD.progress_percent
            THEN RAISE(ABORT, 'the progress of an attempt never falls')
        WHEN OLD.status = 'running' AND NEW.status = 'running'
            THEN RAISE(ABORT, 'a running job can only be asked to stop: set status to cancelled')
        WHEN OLD.status = 'running' AND OLD.cancel_requested_at IS NOT NULL
            THEN RAISE(ABORT, 'this job was asked to stop, and can only end as cancelled')
        WHEN OLD.status = 'running'
            THEN RAISE(ABORT, 'only the worker that runs a job can end it: to stop it, set status to cancelled')
        -- Otherwise UPDATE OR REPLACE would delete the other job.
        WHEN NEW.unique_key IS NOT OLD.unique_key
             AND EXISTS (SELECT 1 FROM worker_job_queue
                          WHERE unique_key = NEW.unique_key AND unique_key IS NOT NULL
                            AND status IN ('pending', 'running'))
            THEN RAISE(ABORT, 'a live job already has this unique_key: that one will do the work')
        WHEN NEW.concurrency_key IS NOT OLD.concurrency_key
            THEN RAISE(ABORT, 'the concurrency_key of a job is fixed: delete the job and insert it again')
        WHEN NEW.created_at <> OLD.created_at AND NEW.created_at <> strftime('%Y-%m-%d %H:%M:%f', OLD.created_at)
            THEN RAISE(ABORT, 'created_at is when the job was inserted: to change its turn, set priority or run_at')
        WHEN (NEW.held & 3 > OLD.held & 3 AND NEW.run_at IS NULL)
             OR (NEW.held & 8 > OLD.held & 8 AND NEW.concurrency_key IS NULL)
             OR (NEW.held & 16 > OLD.held & 16
                 AND NOT EXISTS (SELECT 1 FROM batch b WHERE b.id = OLD.batch_id AND b.state IN ('stopped', 'waiting')))
             OR (NEW.held & 4 > OLD.held & 4
                 AND NOT EXISTS (SELECT 1 FROM v_waits w WHERE w.job_id = OLD.id AND NOT w.is_met))
            THEN RAISE(ABORT, 'held is kept by the table: to hold a job, set its run_at')
        WHEN OLD.held & 3 AND NOT NEW.held & 3
             AND strftime('%Y-%m-%d %H:%M:%f', NEW.run_at) > ifnull((SELECT at FROM due_until), '')
            THEN RAISE(ABORT, 'held is kept by the table: this job waits for its run_at (to start it now, set run_at to NULL)')
        WHEN OLD.held & 4 AND NOT NEW.held & 4
             AND EXISTS (SELECT 1 FROM v_waits w WHERE w.job_id = OLD.id AND NOT w.is_met)
            THEN RAISE(ABORT, 'held is kept by the table: this job waits for others (see worker_job_dependency)')
        WHEN OLD.held & 16 AND NOT NEW.held & 16
             AND EXISTS (SELECT 1 FROM batch b WHERE b.id = OLD.batch_id AND b.state IN ('stopped', 'waiting'))
            THEN RAISE(ABORT, 'held is kept by the table: the batch of this job is stopped or waits (see batch)')
        WHEN OLD.held & 8 AND NOT NEW.held & 8
             AND EXISTS (SELECT 1 FROM worker_job_queue r
                          WHERE r.concurrency_key = OLD.concurrency_key AND r.concurrency_key IS NOT NULL
                            AND r.status = 'running')
            THEN RAISE(ABORT, 'held is kept by the table: another job with this concurrency_key is running')
    END;
END;

-- Runs when status, held or priority of a job with a concurrency_key changes. While a job with the key is running, all
-- others are held. Otherwise the first job of each lane that nothing else holds is ready, and the others are held, so
-- that a closed lane (paused, or of an unknown type) does not keep jobs of other lanes from running.
CREATE TRIGGER job_key_turn AFTER UPDATE OF status, held, priority ON worker_job_queue
WHEN NEW.concurrency_key IS NOT NULL
BEGIN
    UPDATE worker_job_queue
       SET held = 8
     WHERE concurrency_key = NEW.concurrency_key AND concurrency_key IS NOT NULL AND status = 'pending' AND held = 0
       AND EXISTS (SELECT 1 FROM worker_job_queue r
                    WHERE r.concurrency_key = NEW.concurrency_key AND r.concurrency_key IS NOT NULL
                      AND r.status = 'running');
    UPDATE worker_job_queue
       SET held = 8
     WHERE concurrency_key = NEW.concurrency_key AND concurrency_key IS NOT NULL AND status = 'pending' AND held = 0
       AND job_type = NEW.job_type AND owner = NEW.owner AND source = NEW.source
       AND id <> (SELECT id FROM (
                      SELECT * FROM (SELECT w.id, w.priority, w.created_at FROM worker_job_queue w
                                      WHERE w.concurrency_key = NEW.concurrency_key AND w.concurrency_key IS NOT NULL
                                        AND w.job_type = NEW.job_type AND w.owner = NEW.owner AND w.source = NEW.source
                                        AND w.status = 'pending' AND w.held = 0
                                      ORDER BY w.priority, w.created_at, w.id LIMIT 1)
                       UNION ALL
                      SELECT * FROM (SELECT w.id, w.priority, w.created_at FROM worker_job_queue w
                                      WHERE w.concurrency_key = NEW.concurrency_key AND w.concurrency_key IS NOT NULL
                                        AND w.job_type = NEW.job_type AND w.owner = NEW.owner AND w.source = NEW.source
                                        AND w.status = 'pending' AND w.held = 8
                                      ORDER BY w.priority, w.created_at, w.id LIMIT 1))
                   ORDER BY priority, created_at, id LIMIT 1);
    UPDATE worker_job_queue
       SET held = 0
     WHERE id IN (
        -- The same loose scan as in the claim: each seek finds the first job of the next lane.
        WITH RECURSIVE lane(head, job_type, owner, source) AS (
            SELECT * FROM (SELECT q.id, q.job_type, q.owner, q.source FROM worker_job_queue q
                            WHERE q.concurrency_key = NEW.concurrency_key AND q.concurrency_key IS NOT NULL
                              AND q.status = 'pending' AND q.held = 8
                            ORDER BY q.job_type, q.owner, q.source, q.priority, q.created_at, q.id LIMIT 1)
             UNION ALL
            SELECT q.id, q.job_type, q.owner, q.source
              FROM lane CROSS JOIN worker_job_queue q
             WHERE q.id = (SELECT n.id FROM worker_job_queue n
                            WHERE n.concurrency_key = NEW.concurrency_key AND n.concurrency_key IS NOT NULL
                              AND n.status = 'pending' AND n.held = 8
                              AND (n.job_type, n.owner, n.source, n.priority) > (+lane.job_type, +lane.owner, +lane.source, 11)
                            ORDER BY n.job_type, n.owner, n.source, n.priority, n.created_at, n.id LIMIT 1))
        SELECT l.head FROM lane l
         WHERE NOT EXISTS (SELECT 1 FROM worker_job_queue h
                            WHERE h.concurrency_key = NEW.concurrency_key AND h.concurrency_key IS NOT NULL
                              AND h.job_type = l.job_type AND h.owner = l.owner AND h.source = l.source
                              AND h.status = 'pending' AND h.held = 0))
       AND NOT EXISTS (SELECT 1 FROM worker_job_queue r
                        WHERE r.concurrency_key = NEW.concurrency_key AND r.concurrency_key IS NOT NULL
                          AND r.status = 'running');
END;

-- Writes the event of a status change.
CREATE TRIGGER job_moved AFTER UPDATE OF status ON worker_job_queue
WHEN NEW.status <> OLD.status
BEGIN
    INSERT INTO worker_job_event (job_id, fence, from_status, to_status, at)
    VALUES (NEW.id, NEW.fence, OLD.status, NEW.status,
            coalesce(NEW.completed_at, NEW.started_at,
                     (SELECT ended_at FROM worker_job_attempt
                       WHERE OLD.status = 'running' AND job_id = NEW.id AND fence = NEW.fence),
                     strftime('%Y-%m-%d %H:%M:%f', 'now')));
END;

-- Opens an attempt at each claim. A trigger of its own with VALUES, because an INSERT … SELECT in job_moved would slow
-- down every status change.
CREATE TRIGGER job_begins AFTER UPDATE OF fence ON worker_job_queue
WHEN NEW.status = 'running' AND OLD.status <> 'running'
BEGIN
    INSERT INTO worker_job_attempt (job_id, fence, worker_id, started_at)
    VALUES (NEW.id, NEW.fence, NEW.worker_id, NEW.started_at);
END;

-- Holds a job that is pending again in a stopped or waiting batch, and records what the next transaction of pagemill
-- must update. For most jobs, only the WHEN is evaluated.
CREATE TRIGGER job_settles AFTER UPDATE OF status ON worker_job_queue
WHEN NEW.status <> OLD.status
     AND (NEW.document_id IS NOT NULL OR NEW.batch_id IS NOT NULL OR NEW.held & 4 OR NEW.status = 'failed'
          OR (NEW.status <> 'running' AND EXISTS (SELECT 1 FROM worker_job_dependency WHERE needs_id = NEW.id)))
BEGIN
    INSERT OR IGNORE INTO worker_job_settled (job_id)
    SELECT NEW.id
     WHERE NEW.status <> 'running'
       AND (EXISTS (SELECT 1 FROM worker_job_dependency WHERE needs_id = NEW.id)
            OR (NEW.status = 'failed'
                AND EXISTS (SELECT 1 FROM failure_action WHERE job_id = NEW.id)));
    -- For a retried job with dependencies, the jobs that it needs, so that the dependencies are checked again.
    INSERT OR IGNORE INTO worker_job_settled (job_id)
    SELECT needs_id FROM worker_job_dependency
     WHERE job_id = NEW.id AND NEW.held & 4 AND OLD.status NOT IN ('pending', 'running');
    INSERT OR IGNORE INTO document_unsettled (document_id)
    SELECT id FROM document
     WHERE id = NEW.document_id AND index_generation = NEW.generation AND index_status <> 'success';
    UPDATE worker_job_queue SET held = held | 16
     WHERE id = NEW.id AND NEW.batch_id IS NOT NULL AND NEW.status = 'pending'
       AND EXISTS (SELECT 1 FROM batch b WHERE b.id = NEW.batch_id AND b.state IN ('stopped', 'waiting'));
    UPDATE batch SET state = 'active'
     WHERE id = NEW.batch_id AND NEW.batch_id IS NOT NULL AND NEW.status = 'pending' AND state IN ('done', 'failed');
    INSERT OR IGNORE INTO batch_unsettled (batch_id)
    SELECT NEW.batch_id
     WHERE NEW.batch_id IS NOT NULL AND NEW.status NOT IN ('pending', 'running')
       AND NOT EXISTS (SELECT 1 FROM worker_job_queue q
                        WHERE q.batch_id = NEW.batch_id AND q.status IN ('pending', 'running'));
    INSERT OR IGNORE INTO notice (at, kind, owner, job_id, document_id, batch_id, generation, code, message, remedy, key)
    SELECT NEW.completed_at, 'job.failed', NEW.owner, NEW.id, NEW.document_id, NEW.batch_id, NEW.generation,
           NEW.error_code, NEW.error_message, NEW.error_remedy, 'job.failed:' || NEW.id || ':' || NEW.fence || ':' || NEW.completed_at
     WHERE NEW.status = 'failed' AND NEW.completed_at IS NOT NULL;
END;

CREATE TRIGGER job_counts AFTER UPDATE OF status ON worker_job_queue
WHEN OLD.status = 'running' AND NEW.status IN ('completed', 'failed') AND NEW.completed_at >= NEW.started_at
BEGIN
    INSERT INTO hour_of_work
    SELECT substr(NEW.completed_at, 1, 13), NEW.job_type, NEW.status = 'completed', NEW.status = 'failed',
           CASE WHEN NEW.status = 'completed' AND NEW.progress_unit = 'pages'
                THEN coalesce(NEW.progress_total, NEW.progress_done, 0) ELSE 0 END,
           t.seconds, t.seconds, t.waited, t.waited
      FROM (SELECT ifnull((julianday(NEW.completed_at) - julianday(NEW.started_at)) * 86400, 0.0) AS seconds,
                   max(0.0, ifnull((julianday(NEW.started_at) - julianday(max(NEW.created_at, ifnull(NEW.run_at, '')))) * 86400,
                                   0.0)) AS waited) t
     WHERE 1
        ON CONFLICT (hour, job_type) DO UPDATE
       SET completed = completed + excluded.completed, failed = failed + excluded.failed, pages = pages + excluded.pages,
           seconds = seconds + excluded.seconds, longest_seconds = max(longest_seconds, excluded.longest_seconds),
           waited_seconds = waited_seconds + excluded.waited_seconds,
           longest_wait_seconds = max(longest_wait_seconds, excluded.longest_wait_seconds);
END;

-- Of several failures of one item, the row names the latest job.
CREATE TRIGGER job_fails AFTER UPDATE OF status ON worker_job_queue
WHEN NEW.status = 'failed' AND OLD.status <> 'failed'
BEGIN
    INSERT INTO failure (item, job_id, owner, code)
    SELECT item, job_id, owner, code FROM v_failed WHERE job_id = NEW.id
        ON CONFLICT (item) DO UPDATE SET job_id = excluded.job_id, owner = excluded.owner, code = excluded.code;
END;

-- When a failed job is retried, another failed job of its document takes its place in `failure`.
CREATE TRIGGER job_no_longer_failed AFTER UPDATE OF status ON worker_job_queue
WHEN OLD.status = 'failed' AND NEW.status <> 'failed'
BEGIN
    UPDATE failure SET job_id = n.job_id, code = n.code
      FROM (SELECT v.job_id, v.code FROM worker_job_queue q JOIN v_failed v ON v.job_id = q.id
             WHERE q.document_id = OLD.document_id AND q.generation = OLD.generation AND q.status = 'failed' LIMIT 1) n
     WHERE failure.job_id = OLD.id;
    DELETE FROM failure WHERE job_id = OLD.id;
END;

CREATE TRIGGER source_fetched AFTER UPDATE OF status ON worker_job_queue
WHEN NEW.status = 'completed' AND NEW.source_key IS NOT NULL
BEGIN
    DELETE FROM failure WHERE item = 'source ' || json_array(NEW.job_type, NEW.owner, NEW.platform, NEW.source_key);
END;

CREATE TRIGGER job_with_key_succeeds AFTER UPDATE OF status ON worker_job_queue
WHEN NEW.status = 'completed' AND NEW.unique_key IS NOT NULL AND NEW.generation IS NULL
BEGIN
    DELETE FROM failure WHERE item = 'key ' || json_array(NEW.job_type, NEW.owner, NEW.unique_key);
END;

CREATE TRIGGER document_requested AFTER UPDATE OF index_generation ON document
WHEN NEW.index_generation <> OLD.index_generation
BEGIN
    DELETE FROM failure WHERE item = 'document ' || NEW.id;
END;

CREATE TRIGGER document_published AFTER UPDATE OF current_generation ON document
WHEN NEW.current_generation IS NOT OLD.current_generation
BEGIN
    DELETE FROM document_change WHERE document_id = NEW.id;
    INSERT INTO document_change (document_id, owner, generation) VALUES (NEW.id, NEW.owner, NEW.current_generation);
END;

CREATE TRIGGER document_removed AFTER DELETE ON document
BEGIN
    DELETE FROM failure WHERE item = 'document ' || OLD.id;
    DELETE FROM document_change WHERE document_id = OLD.id;
    INSERT INTO document_change (document_id, owner)
    SELECT OLD.id, OLD.owner WHERE OLD.current_generation IS NOT NULL;
END;

-- Holds the pending jobs of a stopped or waiting batch and frees those of any other. Sets the other columns of the
-- batch, which an UPDATE by hand leaves out.
CREATE TRIGGER batch_moved AFTER UPDATE OF state ON batch
WHEN NEW.state <> OLD.state
BEGIN
    UPDATE worker_job_queue SET held = held | 16
     WHERE batch_id = NEW.id AND status = 'pending' AND NOT held & 16 AND NEW.state IN ('stopped', 'waiting');
    UPDATE worker_job_queue SET held = held & ~16
     WHERE batch_id = NEW.id AND status = 'pending' AND held & 16 AND NEW.state NOT IN ('stopped', 'waiting');
    UPDATE batch
       SET round = round + (OLD.state IN ('done', 'failed')),
           note = CASE WHEN NEW.note IS NOT OLD.note THEN NEW.note END,   -- the note of another state does not apply
           replaced_by = CASE WHEN NEW.state = 'waiting' THEN NEW.replaced_by END,
           ended_at = CASE WHEN NEW.state IN ('done', 'failed')
                           THEN ifnull(NEW.ended_at, strftime('%Y-%m-%d %H:%M:%f', 'now')) END
     WHERE id = NEW.id;
    INSERT INTO notice (at, kind, owner, batch_id, generation, message)
    SELECT CASE WHEN b.ended_at IS NULL THEN strftime('%Y-%m-%d %H:%M:%f', 'now') ELSE b.ended_at END,
           'batch.' || CASE WHEN b.state <> 'active' THEN b.state
                            WHEN OLD.state = 'waiting' AND OLD.replaced_by IS NULL THEN 'started' ELSE 'resumed' END,
           b.owner, b.id, b.round, b.note
      FROM batch b WHERE b.id = NEW.id;
    INSERT OR IGNORE INTO batch_unsettled (batch_id) VALUES (NEW.id);
END;

CREATE TRIGGER batch_guard BEFORE UPDATE OF id, state ON batch
BEGIN
    SELECT CASE
        WHEN NEW.id IS NOT OLD.id THEN RAISE(ABORT, 'the id of a batch never changes')
        WHEN NEW.state <> OLD.state AND NEW.state IN ('done', 'failed')
             AND EXISTS (SELECT 1 FROM worker_job_queue WHERE batch_id = OLD.id AND status IN ('pending', 'running'))
            THEN RAISE(ABORT, 'a batch ends by itself, once its jobs have ended: to stop it, set state to stopped')
        WHEN NEW.state = 'stopped' AND OLD.state IN ('done', 'failed')
            THEN RAISE(ABORT, 'this batch has ended: there is nothing to stop')
    END;
END;

-- Otherwise INSERT OR REPLACE would delete a batch.
CREATE TRIGGER batch_insert_guard BEFORE INSERT ON batch
WHEN EXISTS (SELECT 1 FROM batch WHERE id = NEW.id)
BEGIN
    SELECT RAISE(ABORT, 'there is a batch with this id: leave the id out of the INSERT');
END;

CREATE TRIGGER batch_begins AFTER INSERT ON batch
BEGIN
    INSERT INTO notice (at, kind, owner, batch_id, generation, message)
    VALUES (NEW.created_at, 'batch.' || CASE NEW.state WHEN 'active' THEN 'started' ELSE NEW.state END, NEW.owner, NEW.id,
            NEW.round, NEW.note);
END;

-- Also makes the next transaction of pagemill check whether a waiting batch of the same owner can start.
CREATE TRIGGER batch_delete_guard BEFORE DELETE ON batch
BEGIN
    SELECT RAISE(ABORT, 'this batch has jobs that have not ended: cancel them first')
     WHERE EXISTS (SELECT 1 FROM worker_job_queue WHERE batch_id = OLD.id AND status IN ('pending', 'running'));
    INSERT OR IGNORE INTO batch_unsettled (batch_id)
    SELECT id FROM batch WHERE owner = OLD.owner AND state = 'waiting' AND id <> OLD.id ORDER BY id LIMIT 1;
END;

-- A worker with running jobs keeps its row. A daemon that has proven the worker's death requeues the jobs first.
CREATE TRIGGER worker_delete_guard BEFORE DELETE ON worker
WHEN EXISTS (SELECT 1 FROM worker_job_queue WHERE status = 'running' AND worker_id = OLD.id)
BEGIN
    SELECT RAISE(ABORT, 'this worker holds running jobs: stop it (systemctl stop pagemill); if it is dead, any daemon takes its jobs back and removes the row');
END;

CREATE TRIGGER worker_guard BEFORE UPDATE OF id ON worker
WHEN NEW.id IS NOT OLD.id
BEGIN
    SELECT RAISE(ABORT, 'the id of a worker never changes: the jobs that it runs go by it');
END;

-- Deletes all rows about a deleted job.
CREATE TRIGGER job_deleted AFTER DELETE ON worker_job_queue
BEGIN
    SELECT RAISE(ABORT, 'a running job cannot be deleted: set its status to cancelled first') WHERE OLD.status = 'running';
    INSERT OR IGNORE INTO worker_job_settled (job_id)
    SELECT OLD.id WHERE EXISTS (SELECT 1 FROM worker_job_dependency WHERE needs_id = OLD.id);
    -- A dependency that was met stays met.
    DELETE FROM worker_job_dependency
     WHERE needs_id = OLD.id AND (OLD.status = 'completed' OR (needs = 'ended' AND OLD.status <> 'pending'));
    DELETE FROM worker_job_dependency WHERE job_id = OLD.id;
    DELETE FROM worker_job_attempt WHERE job_id = OLD.id;
    DELETE FROM worker_job_event WHERE job_id = OLD.id;
    DELETE FROM worker_job_log WHERE job_id = OLD.id;
    DELETE FROM failure_action WHERE job_id = OLD.id;
    DELETE FROM checkpoint WHERE job_id = OLD.id;
    DELETE FROM failure WHERE job_id = OLD.id;
    INSERT INTO document_unsettled (document_id, lost)
    SELECT id, 'job ' || OLD.id || ' (' || OLD.job_type || ') was deleted before it ran' FROM document
     WHERE OLD.status = 'pending' AND id = OLD.document_id AND index_generation = OLD.generation
        ON CONFLICT (document_id) DO UPDATE SET lost = excluded.lost;
    INSERT OR IGNORE INTO batch_unsettled (batch_id)
    SELECT OLD.batch_id WHERE OLD.batch_id IS NOT NULL AND OLD.status = 'pending';
    -- Update one job that waits for the key, which fires job_key_turn.
    UPDATE worker_job_queue SET held = held
     WHERE id = (SELECT w.id FROM worker_job_queue w
                  WHERE w.concurrency_key = OLD.concurrency_key AND w.concurrency_key IS NOT NULL
                    AND w.status = 'pending' LIMIT 1);
END;

CREATE TRIGGER attempt_delete_guard BEFORE DELETE ON worker_job_attempt
WHEN OLD.ended_at IS NULL AND EXISTS (SELECT 1 FROM worker_job_queue WHERE id = OLD.job_id AND status = 'running')
BEGIN
    SELECT RAISE(ABORT, 'the attempt of a running job cannot be deleted: set the status of the job to cancelled');
END;

CREATE TRIGGER dependency_guard AFTER INSERT ON worker_job_dependency
BEGIN
    SELECT CASE
        WHEN NOT EXISTS (SELECT 1 FROM worker_job_queue WHERE id = NEW.needs_id)
            THEN RAISE(ABORT, 'there is no job with the id needs_id to wait for')
        WHEN NOT EXISTS (SELECT 1 FROM worker_job_queue WHERE id = NEW.job_id AND status = 'pending')
            THEN RAISE(ABORT, 'only a pending job can be made to wait')
    END;
    UPDATE worker_job_queue SET held = held | 4
     WHERE id = NEW.job_id
       AND EXISTS (SELECT 1 FROM v_waits w WHERE w.job_id = NEW.job_id AND w.needs_id = NEW.needs_id AND NOT w.is_met);
    INSERT OR IGNORE INTO worker_job_settled (job_id)
    SELECT n.id FROM worker_job_queue n
     WHERE n.id = NEW.needs_id AND n.status NOT IN ('pending', 'running')
       AND EXISTS (SELECT 1 FROM v_waits w WHERE w.job_id = NEW.job_id AND w.needs_id = NEW.needs_id AND NOT w.is_met);
END;

CREATE TRIGGER dependency_update_guard BEFORE UPDATE ON worker_job_dependency
BEGIN
    SELECT RAISE(ABORT, 'what a job waits for does not change: delete the row and insert another');
END;

CREATE TRIGGER dependency_dropped AFTER DELETE ON worker_job_dependency
BEGIN
    UPDATE worker_job_queue SET held = held & ~4
     WHERE id = OLD.job_id AND held & 4
       AND NOT EXISTS (SELECT 1 FROM v_waits w WHERE w.job_id = OLD.job_id AND NOT w.is_met);
END;


-- ── Views for users, and for the triggers above ─────────────────────────────────────────────────────────────────

-- Dependencies between jobs. is_broken: the needed job failed, was cancelled, or was deleted before it completed.
CREATE VIEW v_waits AS
SELECT d.job_id, d.needs_id, d.needs, n.status AS needs_status,
       ifnull(n.status = 'completed' OR (d.needs = 'ended' AND n.status IN ('failed', 'cancelled')), d.needs = 'ended') AS is_met,
       ifnull(d.needs = 'completed' AND n.status IN ('failed', 'cancelled'), d.needs = 'completed') AS is_broken
  FROM worker_job_dependency d LEFT JOIN worker_job_queue n ON n.id = d.needs_id;

-- Failed jobs that may need attention. Jobs of an older generation are left out: a newer one replaces their work.
CREATE VIEW v_failed AS
SELECT q.id AS job_id, q.owner, ifnull(q.error_code, '') AS code,
       CASE WHEN q.generation IS NOT NULL THEN 'document ' || q.document_id
            WHEN q.source_key IS NOT NULL AND q.document_id IS NULL
                THEN 'source ' || json_array(q.job_type, q.owner, q.platform, q.source_key)
            WHEN q.unique_key IS NOT NULL THEN 'key ' || json_array(q.job_type, q.owner, q.unique_key)
            ELSE 'job ' || q.id END AS item
  FROM worker_job_queue q
 WHERE q.status = 'failed' AND q.error_code IS NOT 'DEPENDENCY_FAILED'
   AND (q.generation IS NULL
        OR EXISTS (SELECT 1 FROM document d WHERE d.id = q.document_id AND d.index_generation = q.generation));

CREATE VIEW v_jobs AS
SELECT id, job_type, platform, account, owner, priority,
       CASE WHEN status = 'running' AND cancel_requested_at IS NOT NULL THEN 'stopping' WHEN held & 16 THEN 'stopped'
            WHEN held & 1 THEN 'scheduled' WHEN held & 2 THEN 'backoff'
            WHEN held & 4 THEN 'waiting' WHEN held & 8 THEN 'key-busy' ELSE status END AS state,
       ifnull(name, '') AS name, progress_percent AS percent, ifnull(progress_message, '') AS message,
       retry_count || '/' || max_retries AS retries, ifnull(error_code, '') AS error,
       created_at, started_at, completed_at
  FROM worker_job_queue;

CREATE VIEW v_queue AS
SELECT platform, job_type, sum(held = 0) AS ready, sum(held <> 0) AS held, min(created_at) AS oldest
  FROM worker_job_queue WHERE status = 'pending' GROUP BY platform, job_type;

CREATE VIEW v_workers AS
SELECT w.id, w.host, w.pid, w.heartbeat_at,
       (SELECT count(*) FROM worker_job_queue q WHERE q.status = 'running' AND q.worker_id = w.id) AS running,
       w.cpu_slots, w.io_slots, w.node_slots, w.draining, w.disk_low, w.version
  FROM worker w;

-- The reason why the newest generation of a document failed: its first failed or cancelled job, with that job's pages.
CREATE VIEW v_document_error AS
SELECT d.id AS document_id, q.id AS job_id, ifnull(q.error_code, 'CANCELLED') AS error_code,
       ifnull(CASE WHEN p.pages LIKE '[%' THEN 'pages ' || json_extract(p.pages, '$[0]') || '-' || json_extract(p.pages, '$[#-1]')
                   ELSE 'pages ' || p.pages END || ': ', '')
       || coalesce(q.error_message, 'job ' || q.id || ' (' || q.job_type || ') was cancelled') AS error_message,
       q.error_remedy
  FROM document d
  JOIN worker_job_queue q ON q.document_id = d.id AND q.generation = d.index_generation
                         AND q.status IN ('failed', 'cancelled')
  JOIN (SELECT id, coalesce(json_extract(payload, '$.pages'), json_extract(payload, '$.page_range')) AS pages
          FROM worker_job_queue) p ON p.id = q.id
 ORDER BY ifnull(q.error_code = 'DEPENDENCY_FAILED', 0), q.id;

-- A published generation stays readable while a newer one is being read or has failed; `state` shows both. `percent` is
-- 100 after a success, and if an older generation is readable after a failure; otherwise it is the share of pages read.
CREATE VIEW v_documents AS
SELECT d.id, d.owner, d.platform, d.name, d.index_status AS status,
       CASE WHEN d.index_status <> 'success' AND d.current_generation IS NOT NULL THEN 'readable, ' ELSE '' END
       || d.index_status AS state,
       CASE WHEN d.index_status = 'success' OR (d.index_status = 'failed' AND d.current_generation IS NOT NULL) THEN 100
            WHEN ifnull(d.pages, 0) = 0 THEN 0
            ELSE min(100, 100 * (SELECT count(*) FROM page p
                                  WHERE p.document_id = d.id AND p.generation = d.index_generation) / d.pages) END AS percent,
       d.pages, d.index_generation AS generation, d.current_generation AS readable, ifnull(d.error_code, '') AS error,
       ifnull(d.error_message, '') AS message, ifnull(d.error_remedy, '') AS remedy, d.updated_at, d.gone_at
  FROM document d;
