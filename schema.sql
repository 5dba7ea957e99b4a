-- pagemill's tables, as they are today. SQLite 3.37 or later; WAL.
--
-- Rows may come from anywhere. From cron or by hand, this is all it takes:
--
--     sqlite3 -cmd '.timeout 5000' pagemill.db "
--       INSERT INTO worker_job_queue (job_type, platform, account, payload)
--       VALUES ('scrape_account', 'instagram', 'user123', '{\"scrape_type\":\"full\"}');"
--
-- (The sqlite3 program waits for nobody unless told to: keep the .timeout.) These work by hand as well:
--
--     UPDATE worker_job_queue SET status = 'cancelled' WHERE id = 42;    pending: ends now; running: is asked to stop
--     UPDATE worker_job_queue SET status = 'pending'   WHERE id = 42;    an ended job runs again, with a fresh budget
--     UPDATE worker_job_queue SET priority = 1         WHERE id = 42;    it moves ahead, and what it asks for (1 … 10)
--     UPDATE worker_job_queue SET run_at = '2026-11-19 06:00' WHERE id = 42;   a pending job waits until then (UTC)
--     DELETE FROM worker_job_queue WHERE id = 42;                        any job that is not running
--     UPDATE batch SET state = 'stopped' WHERE id = 7;                   its jobs wait; 'active': they go on
--
-- A running job that is to be cancelled without grace, as `pagemill cancel --now` does it; then cancel it as above:
--
--     UPDATE worker_job_attempt SET without_grace = 1 WHERE job_id = 42 AND ended_at IS NULL;
--
-- Anything else is refused in words. Times are UTC text, '2026-11-18 10:00:00.000'; any other valid time that you
-- write is brought to this form. For eyes: SELECT * FROM v_jobs, v_queue, v_workers, v_documents.

-- json_valid(NULL) is NULL today and 0 in SQLite 3.40: a CHECK says "x IS NULL OR json_valid(x)".

CREATE TABLE pagemill_schema (
    version     INTEGER NOT NULL,
    created_at  TEXT NOT NULL DEFAULT (strftime('%Y-%m-%d %H:%M:%f', 'now'))
) STRICT;

INSERT INTO pagemill_schema (version) VALUES (1);

-- It has one row. The time of it is how a daemon knows its database again.
CREATE UNIQUE INDEX "pagemill db migrate alone says which schema this is" ON pagemill_schema ((0));

-- A row for each time that this database was brought back from a backup. Every attempt since then has a higher fence
-- than any that there can have been before.
CREATE TABLE restored (
    at     TEXT NOT NULL CONSTRAINT "at has at most 1000 bytes" CHECK (length(CAST(at AS BLOB)) <= 1000),
    fence  INTEGER NOT NULL CONSTRAINT "fence is 0 or more" CHECK (fence >= 0)
) STRICT;


-- ── Jobs ────────────────────────────────────────────────────────────────────────────────────────────────────────

-- What is small and asked for often stands first: SQLite reads a row from its left.
CREATE TABLE worker_job_queue (
    id                   INTEGER PRIMARY KEY AUTOINCREMENT,   -- never used twice
    job_type             TEXT    NOT NULL,                    -- which handler runs it
    platform             TEXT    NOT NULL,                    -- 'instagram', 'gdrive', 'local', …
    account              TEXT,                                -- the remote account that the job is about
    priority             INTEGER NOT NULL ON CONFLICT REPLACE DEFAULT 5,   -- 1 highest … 10 lowest
    status               TEXT    NOT NULL ON CONFLICT REPLACE DEFAULT 'pending',
    held                 INTEGER NOT NULL ON CONFLICT REPLACE DEFAULT 0,   -- kept by the table: why a pending job
                                 -- may not be looked at: 1 its time, 2 its backoff, 4 other jobs, 8 its busy key,
                                 -- 16 its batch, which is stopped or waits
    fence                INTEGER NOT NULL ON CONFLICT REPLACE DEFAULT 0,   -- +1 at every claim, never lowered
    owner                TEXT    NOT NULL ON CONFLICT REPLACE DEFAULT '',  -- the person it belongs to; '' = nobody
    source               TEXT    NOT NULL ON CONFLICT REPLACE DEFAULT '',  -- what may ask for a rest, e.g. a credential
    run_at               TEXT,                                -- not before this time
    created_at           TEXT    NOT NULL ON CONFLICT REPLACE DEFAULT (strftime('%Y-%m-%d %H:%M:%f', 'now')),
    started_at           TEXT,
    heartbeat_at         TEXT,
    completed_at         TEXT,                                -- when it ended, however it ended
    cancel_requested_at  TEXT,
    worker_id            TEXT,
    retry_count          INTEGER NOT NULL ON CONFLICT REPLACE DEFAULT 0,
    max_retries          INTEGER NOT NULL ON CONFLICT REPLACE DEFAULT 3,
    requeue_count        INTEGER NOT NULL ON CONFLICT REPLACE DEFAULT 0,   -- how often its worker or node died under it
    timeout_seconds      INTEGER,                             -- of one attempt; NULL = the handler's own
    progress_percent     INTEGER NOT NULL ON CONFLICT REPLACE DEFAULT 0,
    progress_done        INTEGER,                             -- units done, where the handler counts any
    progress_total       INTEGER,                             -- of so many; NULL = not known
    progress_rate        REAL,                                -- units per second, where the handler measures it
    progress_unit        TEXT,                                -- 'pages', 'bytes', …
    progress_at          TEXT,                                -- when this attempt last advanced or logged a line
    batch_id             INTEGER,
    document_id          INTEGER,
    generation           INTEGER,
    parent_id            INTEGER,                             -- the job whose result asked for this one
    name                 TEXT,                                -- what it is about, such as a file's name; for eyes
    source_key           TEXT,                                -- what it brings in: its document's source_key
    unique_key           TEXT,                                -- at most one live job has it
    concurrency_key      TEXT,                                -- at most one running job has it
    error_code           TEXT,
    error_message        TEXT,                                -- what went wrong
    error_remedy         TEXT,                                -- what to do about it; NULL = nothing is known
    progress_message     TEXT,
    payload              TEXT,                                -- JSON
    result               TEXT,                                -- JSON

    CONSTRAINT "job_type is not empty" CHECK (job_type <> ''),
    CONSTRAINT "priority is 1 (highest) to 10 (lowest)" CHECK (priority BETWEEN 1 AND 10),
    CONSTRAINT "status is pending, running, completed, failed or cancelled"
        CHECK (status = 'pending' OR status = 'running' OR status = 'completed' OR status = 'failed'
               OR status = 'cancelled'),  -- an IN of five makes a table for each INSERT
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
        CHECK (-- The form that we write, on a day that every month has, needs no calendar.
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
    -- In bytes: length() of text ends at the first NUL. What only an INSERT gives apart from what a claim changes; what
    -- is not there is not measured, which would cost each INSERT a quarter more.
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

-- claim: the lanes (job_type, owner, source) lead, so that a closed lane is hopped over and never walked through.
CREATE INDEX job_ready ON worker_job_queue (job_type, owner, source, priority, created_at)
    WHERE status = 'pending' AND held = 0;
-- free_due, next_deadline
CREATE INDEX job_due ON worker_job_queue (priority, run_at) WHERE status = 'pending' AND held & 3;
-- list, counts, and everything that asks for the running jobs
CREATE INDEX job_by_status ON worker_job_queue (status);
-- prune, and lists by time
CREATE INDEX job_ended ON worker_job_queue (completed_at) WHERE completed_at IS NOT NULL;
-- errors, and how many failed in an hour
CREATE INDEX job_failed ON worker_job_queue (completed_at, error_code, job_type) WHERE status = 'failed';
-- not_brought_in: in the order of their ids
CREATE INDEX job_not_brought_in ON worker_job_queue (status)
    WHERE status = 'failed' AND source_key IS NOT NULL AND document_id IS NULL;
-- list, count: the jobs whose last error has a code
CREATE INDEX job_by_error ON worker_job_queue (error_code) WHERE error_code IS NOT NULL;
CREATE INDEX job_by_owner ON worker_job_queue (owner) WHERE owner <> '';
-- list, count: the jobs about a remote account
CREATE INDEX job_by_account ON worker_job_queue (account, platform) WHERE account IS NOT NULL;
CREATE INDEX job_by_batch ON worker_job_queue (batch_id) WHERE batch_id IS NOT NULL;
-- end_batches
CREATE INDEX job_live_in_batch ON worker_job_queue (batch_id)
    WHERE batch_id IS NOT NULL AND status IN ('pending', 'running');
-- live work of a document's generation, and its failures
CREATE INDEX job_by_document ON worker_job_queue (document_id, generation, status) WHERE document_id IS NOT NULL;
CREATE INDEX job_by_parent ON worker_job_queue (parent_id) WHERE parent_id IS NOT NULL;
-- not_brought_in, live_work_for
CREATE INDEX job_by_source_key ON worker_job_queue (source_key) WHERE source_key IS NOT NULL;
-- enqueue: one live job for each unique_key. With an expression in it, SQLite refuses by the name of the index.
CREATE UNIQUE INDEX "a live job already has this unique_key: that one will do the work"
    ON worker_job_queue (unique_key, (0))
    WHERE unique_key IS NOT NULL AND status IN ('pending', 'running');
-- P8: one running job for each concurrency_key; behind it, who is next
CREATE UNIQUE INDEX job_key_running ON worker_job_queue (concurrency_key)
    WHERE concurrency_key IS NOT NULL AND status = 'running';
CREATE INDEX job_key_waiting ON worker_job_queue
    (concurrency_key, held, job_type, owner, source, priority, created_at)
    WHERE concurrency_key IS NOT NULL AND status = 'pending';

-- One row: the time up to which a claim has released jobs that wait for their run_at. The guard of held compares with
-- it, because no trigger reads the clock.
CREATE TABLE due_until (
    id  INTEGER PRIMARY KEY CONSTRAINT "due_until has one row" CHECK (id = 1),
    at  TEXT NOT NULL CONSTRAINT "at has at most 1000 bytes" CHECK (length(CAST(at AS BLOB)) <= 1000)
) STRICT;

-- One row for each run of a job. Opened by a claim; closed before the job may move on; then never changed.
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
    pid                INTEGER,   -- also its session; with the start in clock ticks, one process for ever
    pid_started        INTEGER,
    sandbox            TEXT,      -- what confined it
    without_grace      INTEGER NOT NULL DEFAULT 0   -- 1: if it was asked to stop, then at once
                       CONSTRAINT "without_grace is 0 or 1" CHECK (without_grace IN (0, 1)),
    signal             TEXT,
    cpu_seconds        REAL,
    memory_peak_bytes  INTEGER,
    heard_at           TEXT,      -- when its handler last said something
    node               TEXT,      -- the machine that it ran on, by its name in table node; NULL = the worker's own
    PRIMARY KEY (job_id, fence),
    CHECK ((ended_at IS NULL) = (outcome IS NULL)),
    CONSTRAINT "error_code, error_message, error_remedy, sandbox, signal, worker_id, node and each time have at most 100000 bytes"
        CHECK (length(CAST(error_code AS BLOB)) <= 100000 AND length(CAST(error_message AS BLOB)) <= 100000
               AND length(CAST(error_remedy AS BLOB)) <= 100000 AND length(CAST(node AS BLOB)) <= 100000
               AND length(CAST(sandbox AS BLOB)) <= 100000 AND length(CAST(signal AS BLOB)) <= 100000
               AND length(CAST(worker_id AS BLOB)) <= 100000 AND length(CAST(started_at AS BLOB)) <= 100000
               AND length(CAST(ended_at AS BLOB)) <= 100000 AND length(CAST(heard_at AS BLOB)) <= 100000)
) STRICT, WITHOUT ROWID;

-- One row for each change of status, whoever made it. A job begins pending; that is its row, not an event.
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

-- Lines that a handler reported. Appended; the newest 3,000 of a job are kept.
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

-- Jobs that others wait for and whose status has changed since somebody looked. The next transaction of ours
-- (a claim at the latest) frees, fails or revives the jobs behind them, and empties this.
CREATE TABLE worker_job_settled (job_id INTEGER PRIMARY KEY) STRICT;

-- Documents whose jobs have moved since somebody looked: the next transaction of ours lets them follow.
CREATE TABLE document_unsettled (
    document_id  INTEGER PRIMARY KEY,
    lost         TEXT             -- of a job that was deleted before it ran
) STRICT;

-- What one person submitted together: jobs by their batch_id, follow-ups included. A job that names a batch which is
-- not there makes it.
CREATE TABLE batch (
    id          INTEGER PRIMARY KEY AUTOINCREMENT,
    owner       TEXT NOT NULL DEFAULT '',
    name        TEXT NOT NULL DEFAULT '',
    priority    INTEGER NOT NULL DEFAULT 5,
    state       TEXT NOT NULL DEFAULT 'active',
    round       INTEGER NOT NULL DEFAULT 1,      -- +1 whenever it begins again after it had ended
    note        TEXT,                            -- why it is in its state: 'stopped by ann'
    replaced_by INTEGER,                         -- of a waiting one: the newer batch of its owner, after which it resumes
    asked       TEXT NOT NULL DEFAULT '{}',      -- JSON: what the person asked for
    actions     TEXT NOT NULL DEFAULT '[]',      -- JSON: what follows once it has ended
    created_at  TEXT NOT NULL DEFAULT (strftime('%Y-%m-%d %H:%M:%f', 'now')),
    ended_at    TEXT,
    CONSTRAINT "the id of a batch is 0 to 1000000000000" CHECK (id BETWEEN 0 AND 1000000000000),
    CONSTRAINT "state is active, waiting, stopped, done or failed"
        CHECK (state IN ('active', 'waiting', 'stopped', 'done', 'failed')),
    CONSTRAINT "priority is 1 (highest) to 10 (lowest)" CHECK (priority BETWEEN 1 AND 10),
    CONSTRAINT "round is 1 to 1000000000" CHECK (round BETWEEN 1 AND 1000000000),
    CONSTRAINT "asked and actions are JSON" CHECK (json_valid(asked) AND json_valid(actions)),
    CONSTRAINT "owner, name, note and each time have at most 30000 bytes, asked and actions 16777216"
        CHECK (length(CAST(owner AS BLOB)) <= 30000 AND length(CAST(name AS BLOB)) <= 30000
               AND length(CAST(note AS BLOB)) <= 30000 AND length(CAST(created_at AS BLOB)) <= 30000
               AND length(CAST(ended_at AS BLOB)) <= 30000
               AND length(CAST(asked AS BLOB)) <= 16777216 AND length(CAST(actions AS BLOB)) <= 16777216)
) STRICT;
-- one active batch of an owner; who waits
CREATE INDEX batch_by_owner ON batch (owner, state, id);

-- Documents that a batch asked for, whoever reads them.
CREATE TABLE batch_document (
    batch_id     INTEGER NOT NULL,
    document_id  INTEGER NOT NULL,
    PRIMARY KEY (batch_id, document_id)
) STRICT, WITHOUT ROWID;
CREATE INDEX batch_by_document ON batch_document (document_id);

-- Batches of which something has ended since somebody looked: the next transaction of ours sees whether they have.
CREATE TABLE batch_unsettled (batch_id INTEGER PRIMARY KEY) STRICT;

-- What people may want to be told, written where it happens. With a key it is told once only.
CREATE TABLE notice (
    id           INTEGER PRIMARY KEY AUTOINCREMENT,
    at           TEXT NOT NULL,
    kind         TEXT NOT NULL,            -- 'document.ready', 'batch.done', 'job.failed', …
    owner        TEXT NOT NULL DEFAULT '',
    job_id       INTEGER,
    document_id  INTEGER,
    batch_id     INTEGER,
    generation   INTEGER,                  -- of its document; of a batch its round
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

-- What is to follow once a generation of a document has been read, or has failed: each once.
CREATE TABLE deferred_action (
    id           INTEGER PRIMARY KEY AUTOINCREMENT,
    document_id  INTEGER NOT NULL,
    generation   INTEGER NOT NULL,
    on_end       TEXT NOT NULL DEFAULT 'success',
    job_type     TEXT NOT NULL,
    payload      TEXT NOT NULL DEFAULT '',   -- JSON; '' = none
    standing     INTEGER NOT NULL DEFAULT 0, -- 1: asked again for each generation that comes
    fired_at     TEXT,
    job_id       INTEGER,                    -- the job that it became
    UNIQUE (document_id, generation, on_end, job_type, payload),
    CONSTRAINT "on_end is success or failure" CHECK (on_end IN ('success', 'failure')),
    CONSTRAINT "job_type is not empty" CHECK (job_type <> ''),
    CONSTRAINT "payload is JSON" CHECK (payload = '' OR json_valid(payload)),
    CONSTRAINT "standing is 0 or 1" CHECK (standing IN (0, 1)),
    CONSTRAINT "job_type, payload and fired_at have at most 1000000 bytes"
        CHECK (length(CAST(job_type AS BLOB)) <= 1000000 AND length(CAST(payload AS BLOB)) <= 1000000
               AND length(CAST(fired_at AS BLOB)) <= 1000000)
) STRICT;

-- What is to follow for each document of an owner (scope 'owner', his name), or once a job has failed (scope 'job', its id).
CREATE TABLE action_rule (
    scope        TEXT NOT NULL,
    name         TEXT NOT NULL,
    on_end       TEXT NOT NULL DEFAULT 'success',
    job_type     TEXT NOT NULL,
    payload      TEXT NOT NULL DEFAULT '',
    fired_fence  INTEGER,                    -- of a job: the attempt after which it was done
    PRIMARY KEY (scope, name, on_end, job_type, payload),
    CONSTRAINT "scope is owner or job" CHECK (scope IN ('owner', 'job')),
    CONSTRAINT "on_end is success or failure; of a job failure" CHECK (on_end = 'failure' OR (on_end = 'success' AND scope = 'owner')),
    CONSTRAINT "job_type is not empty" CHECK (job_type <> ''),
    CONSTRAINT "payload is JSON" CHECK (payload = '' OR json_valid(payload)),
    CONSTRAINT "name, job_type and payload have at most 1000000 bytes"
        CHECK (length(CAST(name AS BLOB)) <= 1000000 AND length(CAST(job_type AS BLOB)) <= 1000000
               AND length(CAST(payload AS BLOB)) <= 1000000)
) STRICT, WITHOUT ROWID;

-- How far each of those who tell people has read the notices.
CREATE TABLE notice_reader (
    name       TEXT PRIMARY KEY NOT NULL CONSTRAINT "name has at most 30000 bytes" CHECK (length(CAST(name AS BLOB)) <= 30000),
    notice_id  INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- Never has a row. What a trigger would INSERT OR IGNORE here is passed over, unless the statement that fired the
-- trigger is OR REPLACE: its way with conflicts is then the trigger's as well, and it is refused with this sentence.
CREATE TABLE no_replacing (
    unique_key TEXT,
    CONSTRAINT "a live job already has this unique_key, and nothing may replace it: leave OR REPLACE out" CHECK (0)
) STRICT;

-- Who changed what in bulk: audit, and what `pagemill undo` takes back by the opposite verb.
CREATE TABLE worker_action (
    id         INTEGER PRIMARY KEY AUTOINCREMENT,
    at         TEXT NOT NULL,
    actor      TEXT NOT NULL,
    verb       TEXT NOT NULL CHECK (verb IN ('cancel', 'retry', 'delete', 'priority', 'remove', 'make_token', 'remove_token',
                                                    'stop_batch', 'resume_batch', 'retry_batch', 'forget_batch')),
    undone_at  TEXT,
    undone_by  TEXT,
    batch_id   INTEGER,                  -- the batch that was stopped, resumed, retried, forgotten or cancelled as a whole
    CONSTRAINT "at, actor, undone_at and undone_by have at most 1000 bytes"
        CHECK (length(CAST(at AS BLOB)) <= 1000 AND length(CAST(actor AS BLOB)) <= 1000
               AND length(CAST(undone_at AS BLOB)) <= 1000 AND length(CAST(undone_by AS BLOB)) <= 1000)
) STRICT;

CREATE TABLE worker_action_item (
    action_id        INTEGER NOT NULL,
    item_id          INTEGER NOT NULL,   -- the job, the document that a 'remove' took away, or the token
    left_as          TEXT,               -- status, fence and priority; of what is gone, what it was
    priority_before  INTEGER,
    PRIMARY KEY (action_id, item_id),
    CONSTRAINT "left_as has at most 100000 bytes" CHECK (length(CAST(left_as AS BLOB)) <= 100000)
) STRICT, WITHOUT ROWID;


-- Who may use HTTP. kind 'link': for one browser, once; 'session': a browser, by the token or link `token_id`.
-- Of the secret there is its SHA-256 only. Removing a token removes its sessions.
CREATE TABLE token (
    id        INTEGER PRIMARY KEY AUTOINCREMENT,
    kind      TEXT NOT NULL CHECK (kind IN ('token', 'link', 'session')),
    name      TEXT NOT NULL,             -- the actor of what is done with it
    digest    TEXT NOT NULL,
    scopes    TEXT NOT NULL,             -- words with spaces between them: read, operate, admin
    owner     TEXT,                      -- whose things are seen; NULL = everybody's
    made_at   TEXT NOT NULL,
    made_by   TEXT NOT NULL,
    used_at   TEXT,                      -- lately; of a link once for ever
    until     TEXT,
    token_id  INTEGER,
    CONSTRAINT "name, digest, scopes, owner, made_at, made_by, used_at and until have at most 1000 bytes"
        CHECK (length(CAST(name AS BLOB)) <= 1000 AND length(CAST(digest AS BLOB)) <= 1000
               AND length(CAST(scopes AS BLOB)) <= 1000 AND length(CAST(owner AS BLOB)) <= 1000
               AND length(CAST(made_at AS BLOB)) <= 1000 AND length(CAST(made_by AS BLOB)) <= 1000
               AND length(CAST(used_at AS BLOB)) <= 1000 AND length(CAST(until AS BLOB)) <= 1000)
) STRICT;
CREATE UNIQUE INDEX token_by_name ON token (name) WHERE kind = 'token';
CREATE INDEX token_by_token ON token (token_id) WHERE token_id IS NOT NULL;


-- What came by HTTP with an Idempotency-Key, and what was answered: whoever sends it again is told the same.
CREATE TABLE request (
    key       TEXT PRIMARY KEY NOT NULL,   -- with whose it is
    wish      TEXT NOT NULL,               -- a digest of what was asked
    at        TEXT NOT NULL,
    status    INTEGER,
    answer    TEXT,                        -- NULL: it was granted, and what was answered is not known
    location  TEXT,
    CONSTRAINT "key, wish, at and location have at most 5000 bytes"
        CHECK (length(CAST(key AS BLOB)) <= 5000 AND length(CAST(wish AS BLOB)) <= 5000
               AND length(CAST(at AS BLOB)) <= 5000 AND length(CAST(location AS BLOB)) <= 5000),
    CONSTRAINT "answer has at most 16777216 bytes" CHECK (length(CAST(answer AS BLOB)) <= 16777216)
) STRICT;
CREATE INDEX request_by_time ON request (at);


-- ── Workers, and what holds whole lanes ─────────────────────────────────────────────────────────────────────────

CREATE TABLE worker (
    id            TEXT PRIMARY KEY NOT NULL,
    host          TEXT NOT NULL,
    boot_id       TEXT NOT NULL,
    pid           INTEGER NOT NULL CONSTRAINT "pid is that of a process" CHECK (pid BETWEEN 1 AND 4194304),
    version       TEXT NOT NULL,
    cpu_slots     INTEGER NOT NULL CHECK (cpu_slots BETWEEN 0 AND 100000),
    io_slots      INTEGER NOT NULL CHECK (io_slots BETWEEN 0 AND 100000),
    draining      INTEGER NOT NULL DEFAULT 0,   -- 1: finishes what it has, claims no more
    disk_low      INTEGER NOT NULL DEFAULT 0,   -- 1: too little free space to begin anything
    started_at    TEXT NOT NULL,
    heartbeat_at  TEXT NOT NULL,
    node_slots    INTEGER NOT NULL DEFAULT 0,   -- slots of all cluster nodes that it can use now, together
    -- Its lock and its staging are found by it.
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

-- What each worker can run. The daemon fills it; claim, why and enqueue read it and import no handler.
CREATE TABLE handler (
    worker_id       TEXT NOT NULL,
    job_type        TEXT NOT NULL,
    class           TEXT NOT NULL CHECK (class IN ('cpu', 'io', 'node')),   -- whose slots it takes
    missing         TEXT,                         -- a capability it needs and that is not there, in words
    missing_remedy  TEXT NOT NULL DEFAULT '',     -- how to get it
    at_most_once    INTEGER NOT NULL DEFAULT 0,   -- 1: once begun, it never runs again by itself
    payload_schema  TEXT CHECK (payload_schema IS NULL OR json_valid(payload_schema)),
    timeout_seconds INTEGER NOT NULL DEFAULT 3600,   -- of one attempt, where the job says nothing else
    choices         TEXT CHECK (choices IS NULL OR json_valid(choices)),   -- by the key of a payload: what it may be on this machine
    PRIMARY KEY (worker_id, job_type),
    CONSTRAINT "job_type, missing and missing_remedy have at most 30000 bytes"
        CHECK (length(CAST(job_type AS BLOB)) <= 30000 AND length(CAST(missing AS BLOB)) <= 30000
               AND length(CAST(missing_remedy AS BLOB)) <= 30000)
) STRICT, WITHOUT ROWID;

-- The nodes of the Ray cluster, as the daemon that uses them sees them. By hand: draining = 1 gives a node no new
-- attempts, 0 takes that back.
CREATE TABLE node (
    name       TEXT PRIMARY KEY NOT NULL,
    worker_id  TEXT NOT NULL,              -- the daemon that wrote this row last
    state      TEXT NOT NULL,
    slots      INTEGER NOT NULL DEFAULT 0,
    version    TEXT NOT NULL DEFAULT '',
    reason     TEXT NOT NULL DEFAULT '',   -- why it is not up
    draining   INTEGER NOT NULL DEFAULT 0 CONSTRAINT "draining is 0 or 1" CHECK (draining IN (0, 1)),
    CONSTRAINT "state is starting, up, draining, refused or down"
        CHECK (state IN ('starting', 'up', 'draining', 'refused', 'down')),
    CONSTRAINT "slots is 0 to 100000" CHECK (slots BETWEEN 0 AND 100000),
    CONSTRAINT "name, worker_id, version and reason have at most 10000 bytes"
        CHECK (length(CAST(name AS BLOB)) <= 10000 AND length(CAST(worker_id AS BLOB)) <= 10000
               AND length(CAST(version AS BLOB)) <= 10000 AND length(CAST(reason AS BLOB)) <= 10000)
) STRICT, WITHOUT ROWID;

-- How many may run at once. kind 'owner', name '*': each owner that has no row of its own.
-- kind 'payload', name 'bytes': how large a payload may be.
CREATE TABLE job_limit (
    kind  TEXT NOT NULL CHECK (kind IN ('type', 'class', 'owner', 'payload')),
    name  TEXT NOT NULL,
    most  INTEGER NOT NULL CHECK (most >= 0),
    PRIMARY KEY (kind, name),
    CONSTRAINT "name has at most 30000 bytes" CHECK (length(CAST(name AS BLOB)) <= 30000)
) STRICT, WITHOUT ROWID;

CREATE TABLE pause (
    scope   TEXT NOT NULL CHECK (scope IN ('all', 'type', 'owner')),
    name    TEXT NOT NULL DEFAULT '',
    since   TEXT NOT NULL DEFAULT (strftime('%Y-%m-%d %H:%M:%f', 'now')),
    until   TEXT                                  -- NULL = until somebody unpauses it
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

CREATE TABLE source_rest (
    source  TEXT PRIMARY KEY NOT NULL,
    until   TEXT NOT NULL
            CONSTRAINT "until is a time like 2026-11-18 10:00:00.000 (UTC)"
            CHECK (until IS strftime('%Y-%m-%d %H:%M:%f', until, '+0 days') AND until >= '1970'),
    reason  TEXT,
    -- Jobs without a source have '', and need no rest.
    CONSTRAINT "source is not empty" CHECK (source <> ''),
    CONSTRAINT "source and reason have at most 30000 bytes"
        CHECK (length(CAST(source AS BLOB)) <= 30000 AND length(CAST(reason AS BLOB)) <= 30000)
) STRICT, WITHOUT ROWID;

-- P9: of the owners with the fewest running jobs, the one served longest ago is next.
CREATE TABLE owner_served (
    owner   TEXT PRIMARY KEY NOT NULL CONSTRAINT "owner has at most 30000 bytes" CHECK (length(CAST(owner AS BLOB)) <= 30000),
    served  INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX owner_by_served ON owner_served (served);

-- What was begun at its time: each slot of a [[schedule]] once for ever, also after its job is gone. schedule 'once:KEY':
-- `pagemill enqueue --unique KEY --once-per day`, and what was begun in each day. The newest of each is kept, and what is
-- younger than two months: longer than a period, and no plan goes back.
CREATE TABLE schedule_run (
    schedule  TEXT NOT NULL,
    slot      TEXT NOT NULL,     -- the time that it was for, 'now …' if a person began it, 'day 2026-11-19' of a key
    at        TEXT NOT NULL DEFAULT (strftime('%Y-%m-%d %H:%M:%f', 'now')),
    job_id    INTEGER,           -- what it began
    batch_id  INTEGER,
    PRIMARY KEY (schedule, slot),
    CONSTRAINT "schedule, slot and at have at most 40000 bytes"
        CHECK (length(CAST(schedule AS BLOB)) <= 40000 AND length(CAST(slot AS BLOB)) <= 40000
               AND length(CAST(at AS BLOB)) <= 40000)
) STRICT, WITHOUT ROWID;
-- last_run
CREATE INDEX schedule_run_by_time ON schedule_run (schedule, at, slot);

-- How far each schedule has come: what lies after `until` is due or to come. plan: cron expression and zone.
CREATE TABLE schedule_plan (
    schedule  TEXT PRIMARY KEY NOT NULL,
    plan      TEXT NOT NULL,
    until     TEXT NOT NULL,
    CONSTRAINT "until is a time like 2026-11-18 10:00:00.000 (UTC)"
        CHECK (until IS strftime('%Y-%m-%d %H:%M:%f', until, '+0 days') AND until >= '1970'),
    CONSTRAINT "schedule and plan have at most 40000 bytes"
        CHECK (length(CAST(schedule AS BLOB)) <= 40000 AND length(CAST(plan AS BLOB)) <= 40000)
) STRICT, WITHOUT ROWID;


-- ── Documents: what is read, page by page, and what people find in it ───────────────────────────────────────────

-- One thing to read, named for ever by owner, platform and source_key. It follows its jobs with the next
-- transaction of ours.
CREATE TABLE document (
    id                  INTEGER PRIMARY KEY AUTOINCREMENT    -- never used twice
                        CONSTRAINT "the table chooses the id of a document: leave it out of the INSERT"
                        CHECK (id BETWEEN 1 AND 1000000000000),
    owner               TEXT NOT NULL DEFAULT '',
    platform            TEXT NOT NULL,
    source_key          TEXT NOT NULL,             -- a Drive file's id, a URL, an absolute path
    name                TEXT NOT NULL DEFAULT '',
    content             TEXT NOT NULL DEFAULT '',  -- SHA-256 of its file; '' = not known yet
    revision            TEXT NOT NULL DEFAULT '',  -- what its source calls this content; '' = nothing to go by
    kind                TEXT,                      -- pdf, image, sheet
    pages               INTEGER,                   -- NULL = not counted yet
    index_status        TEXT NOT NULL DEFAULT 'not_indexed',
    index_generation    INTEGER NOT NULL DEFAULT 0,   -- the newest that was asked for; +1 with each wish to read it
    current_generation  INTEGER,                   -- the one that people read; NULL = none yet
    settings            TEXT NOT NULL DEFAULT '',  -- JSON: how its newest generation is read, and was asked to be
    settings_before     TEXT,                      -- with which it was last read, noted when more was asked; NULL = never
    note                TEXT,                      -- for a person, such as "repaired"
    error_code          TEXT,
    error_message       TEXT,
    error_remedy        TEXT,
    created_at          TEXT NOT NULL DEFAULT (strftime('%Y-%m-%d %H:%M:%f', 'now')),
    updated_at          TEXT NOT NULL DEFAULT (strftime('%Y-%m-%d %H:%M:%f', 'now')),   -- when its reading last moved
    gone_at             TEXT,                      -- when it was no longer at its source

    UNIQUE (owner, platform, source_key),
    CONSTRAINT "platform and source_key are not empty" CHECK (platform <> '' AND source_key <> ''),
    CONSTRAINT "index_status is not_indexed, queued, indexing, success or failed"
        CHECK (index_status IN ('not_indexed', 'queued', 'indexing', 'success', 'failed')),
    CONSTRAINT "pages is 0 to 1000000000" CHECK (pages BETWEEN 0 AND 1000000000),
    CONSTRAINT "updated_at is a time like 2026-11-18 10:00:00.000 (UTC)"
        CHECK (updated_at IS strftime('%Y-%m-%d %H:%M:%f', updated_at, '+0 days') AND updated_at >= '1970'),
    CONSTRAINT "owner, platform, source_key, name and what is told of it have at most 200000 bytes"
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
CREATE INDEX document_by_status ON document (index_status);

-- A published file. It belongs to its document, and outlives the job that published it. Two rows may share a path.
CREATE TABLE file (
    id           INTEGER PRIMARY KEY AUTOINCREMENT
                 CONSTRAINT "the table chooses the id of a file: leave it out of the INSERT"
                 CHECK (id BETWEEN 1 AND 1000000000000),
    job_id       INTEGER NOT NULL,
    fence        INTEGER NOT NULL,
    document_id  INTEGER,
    role         TEXT NOT NULL DEFAULT '',   -- what it is to its document: original, text, pages, pdf, …
    name         TEXT NOT NULL,
    path         TEXT NOT NULL,              -- below the workspace
    size         INTEGER NOT NULL,
    sha256       TEXT NOT NULL DEFAULT '',
    md5          TEXT NOT NULL DEFAULT '',
    note         TEXT NOT NULL DEFAULT '',   -- for a person, such as "nobody named a digest"
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
-- answer: the same content
CREATE INDEX file_by_sha256 ON file (sha256) WHERE sha256 <> '';
CREATE INDEX file_by_md5 ON file (md5, size) WHERE md5 <> '';

-- Paths that no row names any more: the sweep removes them from the workspace.
CREATE TABLE file_gone (
    path  TEXT PRIMARY KEY NOT NULL,
    CONSTRAINT "path leads below the workspace"
        CHECK (path <> '' AND path NOT GLOB '/*' AND '/' || path || '/' NOT GLOB '*/../*'
               AND length(CAST(path AS BLOB)) <= 4096 AND instr(path, char(0)) = 0)
) STRICT, WITHOUT ROWID;

-- Documents that were removed, and whose pages are still to be forgotten: many, so a chore does it a little at a time.
CREATE TABLE document_gone (document_id INTEGER PRIMARY KEY) STRICT;

-- Names for people: links in the workspace that lead to the files of documents. They are made from these rows, by a chore.
CREATE TABLE link (
    path         TEXT NOT NULL,              -- below the workspace
    folded       TEXT PRIMARY KEY NOT NULL,  -- the same in small letters: no two links differ only by capitals
    document_id  INTEGER NOT NULL,
    target       TEXT NOT NULL,              -- the file, below the workspace; '' = the link is to go
    CONSTRAINT "path leads below the workspace"
        CHECK (path <> '' AND path NOT GLOB '/*' AND '/' || path || '/' NOT GLOB '*/../*')
) STRICT, WITHOUT ROWID;
CREATE INDEX link_by_document ON link (document_id);

-- Documents whose links have to be looked at; 0 = all of them, for folders have moved.
CREATE TABLE link_due (document_id INTEGER PRIMARY KEY) STRICT;

-- What was read of a page. Pages with the same digest are the same, whosever they are. Never changed.
CREATE TABLE page_result (
    id            INTEGER PRIMARY KEY,
    digest        TEXT NOT NULL UNIQUE,
    text          TEXT NOT NULL,
    method        TEXT NOT NULL,            -- layer, ocr, partial, rows, blank, too_large or unreadable
    confidence    REAL,                     -- 0 to 100, of recognised text
    layout        BLOB,                     -- zlib of JSON: size of the page, and its words with their boxes
    created_at    TEXT NOT NULL,
    forgotten_at  TEXT,                     -- since when no page refers to it; '' = a chore has yet to write the time
    CONSTRAINT "digest is not empty" CHECK (digest <> ''),
    CONSTRAINT "digest, method, created_at and forgotten_at have at most 1000 bytes, text 33554432"
        CHECK (length(CAST(digest AS BLOB)) <= 1000 AND length(CAST(method AS BLOB)) <= 1000
               AND length(CAST(created_at AS BLOB)) <= 1000 AND length(CAST(forgotten_at AS BLOB)) <= 1000
               AND length(CAST(text AS BLOB)) <= 33554432),
    CONSTRAINT "confidence is 0 to 100" CHECK (confidence BETWEEN 0 AND 100)
) STRICT;
CREATE INDEX page_result_forgotten ON page_result (forgotten_at) WHERE forgotten_at IS NOT NULL;

-- What a page of a file is known by as well: pages that show the same have one result.
CREATE TABLE page_alias (
    digest         TEXT PRIMARY KEY,
    result_digest  TEXT NOT NULL,
    CONSTRAINT "digest is not empty" CHECK (digest <> ''),
    CONSTRAINT "digest and result_digest have at most 1000 bytes"
        CHECK (length(CAST(digest AS BLOB)) <= 1000 AND length(CAST(result_digest AS BLOB)) <= 1000)
) STRICT, WITHOUT ROWID;
CREATE INDEX page_alias_by_result ON page_alias (result_digest);

-- Written ahead, while a document is read. People read those of its current generation only.
CREATE TABLE page (
    document_id  INTEGER NOT NULL,
    generation   INTEGER NOT NULL,
    number       INTEGER NOT NULL,
    result_id    INTEGER NOT NULL,
    PRIMARY KEY (document_id, generation, number),
    CONSTRAINT "number is 1 or more" CHECK (number >= 1)
) STRICT, WITHOUT ROWID;
CREATE INDEX page_by_result ON page (result_id);

-- The words of all results. Publishing writes nothing here: who searches joins page_result, page and document.
CREATE VIRTUAL TABLE page_text USING fts5 (
    text, content = 'page_result', content_rowid = 'id', tokenize = 'unicode61 remove_diacritics 2'
);

-- The index reads the words that it forgets from page_result, and its snippets too.
CREATE TRIGGER page_result_guard BEFORE UPDATE OF id, text ON page_result
WHEN NEW.id IS NOT OLD.id OR NEW.text IS NOT OLD.text
BEGIN
    SELECT RAISE(ABORT, 'what was read of a page does not change: to have its document read again, use pagemill reindex --force');
END;

CREATE TRIGGER page_result_deleted AFTER DELETE ON page_result
WHEN EXISTS (SELECT 1 FROM page_text_docsize WHERE id = OLD.id)
BEGIN
    INSERT INTO page_text (page_text, rowid, text) VALUES ('delete', OLD.id, OLD.text);
END;

-- What a job keeps for its next attempt.
CREATE TABLE checkpoint (
    job_id  INTEGER PRIMARY KEY,
    fence   INTEGER NOT NULL,
    at      TEXT NOT NULL,
    state   TEXT NOT NULL,
    CONSTRAINT "state is JSON" CHECK (json_valid(state)),
    CONSTRAINT "state has at most 33554432 bytes" CHECK (length(CAST(state AS BLOB)) <= 33554432)
) STRICT;

-- What a crawl remembers from run to run, and each file or folder as it saw it last.
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
    note       TEXT NOT NULL DEFAULT '',   -- why it was not enqueued
    detail     TEXT NOT NULL DEFAULT '',   -- what the crawl itself wants to know again
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


-- ── The table defends itself ────────────────────────────────────────────────────────────────────────────────────
-- No trigger reads the clock to decide anything; where one writes a time, it is a time that nothing depends on.

-- A plain row passes by its WHEN alone.
CREATE TRIGGER job_insert_guard BEFORE INSERT ON worker_job_queue
WHEN NEW.status <> 'pending' OR NEW.fence <> 0 OR NEW.retry_count <> 0 OR NEW.requeue_count <> 0
     OR NEW.cancel_requested_at IS NOT NULL OR length(CAST(NEW.payload AS BLOB)) >= 1000 OR NEW.unique_key IS NOT NULL
     OR NEW.document_id IS NOT NULL OR NEW.generation IS NOT NULL OR NEW.batch_id IS NOT NULL
     OR NEW.id <> -1   -- what SQLite shows here while it has yet to choose one
     OR NEW.job_type IS NULL OR NEW.platform IS NULL
BEGIN
    -- NOT NULL alone would name the column and not what belongs there, and INSERT OR IGNORE would say nothing.
    SELECT CASE
        WHEN NEW.job_type IS NULL THEN RAISE(ABORT, 'job_type is missing: name the handler that runs the job')
        WHEN NEW.platform IS NULL
            THEN RAISE(ABORT, 'platform is missing: say what the job works with, such as instagram or gdrive, or local for this machine')
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
            THEN RAISE(ABORT, 'this batch belongs to somebody else: leave batch_id out of the INSERT')
        WHEN NEW.generation <> (SELECT index_generation FROM document WHERE id = NEW.document_id)
            THEN RAISE(ABORT, 'generation is not the newest of the document: to have it read again, use pagemill reindex')
        -- Else INSERT OR REPLACE would remove a job, and an id could be used twice.
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

-- Any run_at holds the job; the claim frees what is due.
CREATE TRIGGER job_run_at AFTER UPDATE OF run_at ON worker_job_queue
WHEN NEW.status = 'pending'
     AND ((NEW.run_at IS NULL) <> (NEW.held & 3 = 0) OR NEW.run_at <> strftime('%Y-%m-%d %H:%M:%f', NEW.run_at))
BEGIN
    UPDATE worker_job_queue
       SET run_at = strftime('%Y-%m-%d %H:%M:%f', run_at),
           held = CASE WHEN run_at IS NULL THEN held & ~3 WHEN held & 3 THEN held ELSE held | 1 END
     WHERE id = NEW.id;
END;

-- By hand: a cancel; and a retry, a person's wish: the budget, the error and the times begin anew. The fence does not, nor a
-- start that was set and was still to come when the job ended; when its last attempt was to be tried again is no such start.
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

-- The moves of the state diagram, and nothing else. A running job moves only after its attempt was closed, which is
-- what the holder of the lease does first.
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
        -- P11: what belongs to an older generation never runs again.
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
        -- Else UPDATE OR REPLACE would remove the other one.
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

-- Something about a job with a concurrency_key was written: status, hold or priority. While one with the key runs, all
-- others are held. Else, in each lane, the first one that nothing else holds is ready and the others are held: a lane
-- that is closed (paused, of an unknown type) keeps nobody else with the key from running.
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
        -- As the claim walks over its lanes: each seek finds the first job of the next lane.
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

-- What follows from a move: its event.
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

-- A claim opens an attempt. By itself, and with VALUES: an INSERT … SELECT costs each move, also those that open none.
CREATE TRIGGER job_begins AFTER UPDATE OF fence ON worker_job_queue
WHEN NEW.status = 'running' AND OLD.status <> 'running'
BEGIN
    INSERT INTO worker_job_attempt (job_id, fence, worker_id, started_at)
    VALUES (NEW.id, NEW.fence, NEW.worker_id, NEW.started_at);
END;

-- And the hold of its batch, and work for the next transaction of ours; most jobs pass by the WHEN alone.
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
                AND EXISTS (SELECT 1 FROM action_rule WHERE scope = 'job' AND name = CAST(NEW.id AS TEXT))));
    -- A job that waits, back from its end: look again at what it waits for.
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

-- While it is stopped or waits, its pending jobs are held. What by hand ends or begins again is seen to as well.
CREATE TRIGGER batch_moved AFTER UPDATE OF state ON batch
WHEN NEW.state <> OLD.state
BEGIN
    UPDATE worker_job_queue SET held = held | 16
     WHERE batch_id = NEW.id AND status = 'pending' AND NOT held & 16 AND NEW.state IN ('stopped', 'waiting');
    UPDATE worker_job_queue SET held = held & ~16
     WHERE batch_id = NEW.id AND status = 'pending' AND held & 16 AND NEW.state NOT IN ('stopped', 'waiting');
    UPDATE batch
       SET round = round + (OLD.state IN ('done', 'failed')),
           note = CASE WHEN NEW.note IS NOT OLD.note THEN NEW.note END,   -- that of another state is no answer
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

-- Else INSERT OR REPLACE would remove one.
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

-- And the next transaction of ours sees whether the batch of the same owner that has waited longest may begin.
CREATE TRIGGER batch_delete_guard BEFORE DELETE ON batch
BEGIN
    SELECT RAISE(ABORT, 'this batch has jobs that have not ended: cancel them first')
     WHERE EXISTS (SELECT 1 FROM worker_job_queue WHERE batch_id = OLD.id AND status IN ('pending', 'running'));
    INSERT OR IGNORE INTO batch_unsettled (batch_id)
    SELECT id FROM batch WHERE owner = OLD.owner AND state = 'waiting' AND id <> OLD.id ORDER BY id LIMIT 1;
END;

-- Else its jobs would belong to nobody. Who can prove that it is gone takes them back first.
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

-- What was kept of a job goes with it.
CREATE TRIGGER job_deleted AFTER DELETE ON worker_job_queue
BEGIN
    SELECT RAISE(ABORT, 'a running job cannot be deleted: set its status to cancelled first') WHERE OLD.status = 'running';
    INSERT OR IGNORE INTO worker_job_settled (job_id)
    SELECT OLD.id WHERE EXISTS (SELECT 1 FROM worker_job_dependency WHERE needs_id = OLD.id);
    -- A need that was met stays met.
    DELETE FROM worker_job_dependency
     WHERE needs_id = OLD.id AND (OLD.status = 'completed' OR (needs = 'ended' AND OLD.status <> 'pending'));
    DELETE FROM worker_job_dependency WHERE job_id = OLD.id;
    DELETE FROM worker_job_attempt WHERE job_id = OLD.id;
    DELETE FROM worker_job_event WHERE job_id = OLD.id;
    DELETE FROM worker_job_log WHERE job_id = OLD.id;
    DELETE FROM action_rule WHERE scope = 'job' AND name = CAST(OLD.id AS TEXT);
    DELETE FROM checkpoint WHERE job_id = OLD.id;
    INSERT INTO document_unsettled (document_id, lost)
    SELECT id, 'job ' || OLD.id || ' (' || OLD.job_type || ') was deleted before it ran' FROM document
     WHERE OLD.status = 'pending' AND id = OLD.document_id AND index_generation = OLD.generation
        ON CONFLICT (document_id) DO UPDATE SET lost = excluded.lost;
    INSERT OR IGNORE INTO batch_unsettled (batch_id)
    SELECT OLD.batch_id WHERE OLD.batch_id IS NOT NULL AND OLD.status = 'pending';
    -- Write to one that waits for the key: job_key_turn does the rest.
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


-- ── For eyes, and for the triggers above ────────────────────────────────────────────────────────────────────────

-- Who waits for whom. is_broken: what it waits for can no longer come.
CREATE VIEW v_waits AS
SELECT d.job_id, d.needs_id, d.needs, n.status AS needs_status,
       ifnull(n.status = 'completed' OR (d.needs = 'ended' AND n.status IN ('failed', 'cancelled')), d.needs = 'ended') AS is_met,
       ifnull(d.needs = 'completed' AND n.status IN ('failed', 'cancelled'), d.needs = 'completed') AS is_broken
  FROM worker_job_dependency d LEFT JOIN worker_job_queue n ON n.id = d.needs_id;

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

-- Why the newest generation of a document failed: the first of its jobs that did, and of which pages.
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

-- What people can read stays so while a newer reading is under way, or fails: its state says both. Progress: of a
-- success all, and of what people read where a newer reading failed; else the pages that are stored of those counted.
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
