-- Documents, files, pages and their full-text index, checkpoints and crawls. What is there stays as it is.
UPDATE pagemill_schema SET version = 2;

DROP INDEX job_by_document;
-- ── Documents: what is read, page by page, and what people find in it ───────────────────────────────────────────

-- One thing to read, named for ever by owner, platform and source_key. It follows its jobs by itself.
CREATE TABLE document (
    id                  INTEGER PRIMARY KEY AUTOINCREMENT,   -- never used twice
    owner               TEXT NOT NULL DEFAULT '',
    platform            TEXT NOT NULL,
    source_key          TEXT NOT NULL,             -- a Drive file's id, a URL, an absolute path
    name                TEXT NOT NULL DEFAULT '',
    content             TEXT NOT NULL DEFAULT '',  -- SHA-256 of its file; '' = not known yet
    kind                TEXT,                      -- pdf, image, sheet
    pages               INTEGER,                   -- NULL = not counted yet
    index_status        TEXT NOT NULL DEFAULT 'not_indexed',
    index_generation    INTEGER NOT NULL DEFAULT 0,   -- the newest that was asked for; +1 with each wish to read it
    current_generation  INTEGER,                   -- the one that people read; NULL = none yet
    settings            TEXT NOT NULL DEFAULT '',  -- JSON: how it was to be read
    note                TEXT,                      -- for a person, such as "repaired"
    error_code          TEXT,
    error_message       TEXT,
    created_at          TEXT NOT NULL DEFAULT (strftime('%Y-%m-%d %H:%M:%f', 'now')),
    updated_at          TEXT NOT NULL DEFAULT (strftime('%Y-%m-%d %H:%M:%f', 'now')),   -- when its reading last moved
    gone_at             TEXT,                      -- when it was no longer at its source

    UNIQUE (owner, platform, source_key),
    CONSTRAINT "platform and source_key are not empty" CHECK (platform <> '' AND source_key <> ''),
    CONSTRAINT "index_status is not_indexed, queued, indexing, success or failed"
        CHECK (index_status IN ('not_indexed', 'queued', 'indexing', 'success', 'failed')),
    CONSTRAINT "pages is 0 or more" CHECK (pages >= 0),
    CONSTRAINT "updated_at is a time like 2026-11-18 10:00:00.000 (UTC)"
        CHECK (updated_at IS strftime('%Y-%m-%d %H:%M:%f', updated_at, '+0 days')),
    CONSTRAINT "current_generation is one that was asked for" CHECK (current_generation BETWEEN 1 AND index_generation),
    CONSTRAINT "a document is not_indexed exactly until it is first asked for"
        CHECK ((index_status = 'not_indexed') = (index_generation = 0)),
    CONSTRAINT "a document is a success exactly while people read its newest generation"
        CHECK ((index_status = 'success') = (current_generation IS index_generation))
) STRICT;
CREATE INDEX document_by_status ON document (index_status);

-- A published file. It belongs to its document, and outlives the job that published it. Two rows may share a path.
CREATE TABLE file (
    id           INTEGER PRIMARY KEY AUTOINCREMENT,
    job_id       INTEGER NOT NULL,
    fence        INTEGER NOT NULL,
    document_id  INTEGER,
    role         TEXT NOT NULL DEFAULT '',   -- what it is to its document: original, text, pages, pdf, …
    name         TEXT NOT NULL,
    path         TEXT NOT NULL,              -- below the workspace
    size         INTEGER NOT NULL,
    sha256       TEXT NOT NULL DEFAULT '',
    md5          TEXT NOT NULL DEFAULT '',
    owner        TEXT NOT NULL DEFAULT '',
    created_at   TEXT NOT NULL,
    CONSTRAINT "path leads below the workspace"
        CHECK (path <> '' AND path NOT GLOB '/*' AND '/' || path || '/' NOT GLOB '*/../*'),
    CONSTRAINT "size is 0 or more" CHECK (size >= 0)
) STRICT;
CREATE INDEX file_by_document ON file (document_id, role) WHERE document_id IS NOT NULL;
CREATE INDEX file_by_job ON file (job_id);
CREATE INDEX file_by_path ON file (path);
-- answer: the same content
CREATE INDEX file_by_sha256 ON file (sha256) WHERE sha256 <> '';
CREATE INDEX file_by_md5 ON file (md5, size) WHERE md5 <> '';

-- Paths that no row names any more: the sweep removes them from the workspace.
CREATE TABLE file_gone (path TEXT PRIMARY KEY NOT NULL) STRICT, WITHOUT ROWID;

-- What was read of a page. Pages with the same digest are the same, whosever they are. Never changed.
CREATE TABLE page_result (
    id            INTEGER PRIMARY KEY,
    digest        TEXT NOT NULL UNIQUE,
    text          TEXT NOT NULL,
    method        TEXT NOT NULL,            -- layer, ocr, rows or blank
    confidence    REAL,                     -- 0 to 100, of recognised text
    layout        BLOB,                     -- zlib of JSON: size of the page, and its words with their boxes
    created_at    TEXT NOT NULL,
    forgotten_at  TEXT,                     -- since when no page refers to it; '' = a chore has yet to write the time
    CONSTRAINT "digest is not empty" CHECK (digest <> ''),
    CONSTRAINT "confidence is 0 to 100" CHECK (confidence BETWEEN 0 AND 100)
) STRICT;
CREATE INDEX page_result_forgotten ON page_result (forgotten_at) WHERE forgotten_at IS NOT NULL;

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

-- What a job keeps for its next attempt.
CREATE TABLE checkpoint (
    job_id  INTEGER PRIMARY KEY,
    fence   INTEGER NOT NULL,
    at      TEXT NOT NULL,
    state   TEXT NOT NULL,
    CONSTRAINT "state is JSON" CHECK (json_valid(state))
) STRICT;

-- What a crawl remembers from run to run, and each file or folder as it saw it last.
CREATE TABLE crawl (
    key         TEXT PRIMARY KEY NOT NULL,
    owner       TEXT NOT NULL DEFAULT '',
    state       TEXT CONSTRAINT "state is JSON" CHECK (state IS NULL OR json_valid(state)),
    updated_at  TEXT NOT NULL
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
    PRIMARY KEY (crawl, id)
) STRICT, WITHOUT ROWID;
CREATE INDEX crawl_item_by_note ON crawl_item (crawl, note, id) WHERE note <> '' AND gone_at IS NULL;

-- live work of a document's generation, and its failures
CREATE INDEX job_by_document ON worker_job_queue (document_id, generation, status) WHERE document_id IS NOT NULL;

-- ── Documents defend themselves, and follow their jobs ──────────────────────────────────────────────────────────

CREATE TRIGGER document_insert_guard BEFORE INSERT ON document
BEGIN
    SELECT CASE
        WHEN NEW.id <> -1 THEN RAISE(ABORT, 'the table chooses the id of a document: leave it out of the INSERT')
        WHEN NEW.index_generation <> 0 OR NEW.current_generation IS NOT NULL
            THEN RAISE(ABORT, 'a new document is not_indexed: leave its generations out of the INSERT')
        -- Else INSERT OR REPLACE would remove a document.
        WHEN EXISTS (SELECT 1 FROM document
                      WHERE owner = NEW.owner AND platform = NEW.platform AND source_key = NEW.source_key)
            THEN RAISE(ABORT, 'this document is there already: to read it again, use pagemill reindex')
    END;
END;

CREATE TRIGGER document_guard BEFORE UPDATE OF
    id, owner, platform, source_key, index_status, index_generation, current_generation ON document
BEGIN
    SELECT CASE
        WHEN NEW.id <> OLD.id OR NEW.owner <> OLD.owner OR NEW.platform <> OLD.platform
             OR NEW.source_key <> OLD.source_key
            THEN RAISE(ABORT, 'a document is named for ever by owner, platform and source_key')
        WHEN NEW.index_generation NOT IN (OLD.index_generation, OLD.index_generation + 1)
             OR (NEW.index_generation > OLD.index_generation AND NEW.index_status <> 'queued')
            THEN RAISE(ABORT, 'index_generation grows by one with each wish to read a document: use pagemill reindex')
        WHEN NEW.current_generation IS NOT OLD.current_generation
             AND NOT (NEW.current_generation IS NEW.index_generation
                      AND EXISTS (SELECT 1 FROM worker_job_queue q
                                   WHERE q.document_id = OLD.id AND q.generation = NEW.index_generation
                                     AND q.status = 'completed'))
            THEN RAISE(ABORT, 'only the job that completes the newest generation of a document publishes it')
        WHEN NEW.index_generation = OLD.index_generation AND NEW.index_status <> OLD.index_status
             AND NOT CASE NEW.index_status
                 WHEN 'success' THEN 1   -- its CHECK and the rule above
                 WHEN 'failed' THEN NEW.error_code IS NOT NULL
                 WHEN 'not_indexed' THEN 0
                 ELSE EXISTS (SELECT 1 FROM worker_job_queue q
                               WHERE q.document_id = OLD.id AND q.generation = OLD.index_generation
                                 AND q.status IN ('pending', 'running')) END
            THEN RAISE(ABORT, 'index_status follows the jobs of a document: to have it read again, use pagemill reindex')
    END;
END;

-- P11: a new generation makes older work stale at once.
CREATE TRIGGER document_generation AFTER UPDATE OF index_generation ON document
WHEN NEW.index_generation > OLD.index_generation
BEGIN
    UPDATE worker_job_queue
       SET cancel_requested_at = ifnull(cancel_requested_at, NEW.updated_at)
     WHERE document_id = NEW.id AND generation < NEW.index_generation AND status = 'running';
    UPDATE worker_job_queue
       SET status = 'cancelled', held = 0, completed_at = NEW.updated_at, error_code = 'STALE_GENERATION',
           error_message = 'a newer generation of document ' || NEW.id || ' was asked for'
     WHERE document_id = NEW.id AND generation < NEW.index_generation AND status = 'pending';
END;

CREATE TRIGGER document_delete_guard BEFORE DELETE ON document
WHEN EXISTS (SELECT 1 FROM worker_job_queue q WHERE q.document_id = OLD.id AND q.status IN ('pending', 'running'))
BEGIN
    SELECT RAISE(ABORT, 'jobs still work for this document: cancel them first');
END;

CREATE TRIGGER document_deleted AFTER DELETE ON document
BEGIN
    DELETE FROM page WHERE document_id = OLD.id;
    DELETE FROM file WHERE document_id = OLD.id;
END;

CREATE TRIGGER job_document_insert_guard BEFORE INSERT ON worker_job_queue
WHEN NEW.document_id IS NOT NULL OR NEW.generation IS NOT NULL
BEGIN
    SELECT CASE
        WHEN NEW.status <> 'pending' THEN NULL   -- what an undo brings back may have ended
        WHEN NEW.document_id IS NULL THEN RAISE(ABORT, 'a generation belongs to a document: give document_id as well')
        WHEN NOT EXISTS (SELECT 1 FROM document WHERE id = NEW.document_id)
            THEN RAISE(ABORT, 'there is no document with this document_id')
        WHEN NEW.generation <> (SELECT index_generation FROM document WHERE id = NEW.document_id)
            THEN RAISE(ABORT, 'generation is not the newest of the document: to have it read again, use pagemill reindex')
    END;
END;

CREATE TRIGGER job_document_guard BEFORE UPDATE OF document_id, generation ON worker_job_queue
WHEN NEW.document_id IS NOT OLD.document_id OR NEW.generation IS NOT OLD.generation
BEGIN
    SELECT RAISE(ABORT, 'document_id and generation of a job are given when it is inserted, and do not change');
END;

-- P11: what belongs to an older generation never runs again.
CREATE TRIGGER job_stale_guard BEFORE UPDATE OF status ON worker_job_queue
WHEN NEW.status = 'pending' AND NEW.generation IS NOT NULL AND OLD.status IN ('completed', 'failed', 'cancelled')
     AND NOT EXISTS (SELECT 1 FROM document WHERE id = NEW.document_id AND index_generation = NEW.generation)
BEGIN
    SELECT RAISE(ABORT, 'this job worked for an older generation of its document, or the document was deleted: to have it read again, use pagemill reindex');
END;

-- A document is queued until the first of its jobs runs; indexing until one fails, is cancelled, or publishes it.
-- After success its jobs no longer concern it.
CREATE TRIGGER document_follows AFTER UPDATE OF status ON worker_job_queue
WHEN NEW.generation IS NOT NULL AND NEW.status <> OLD.status
BEGIN
    UPDATE document
       SET index_status = 'indexing', updated_at = NEW.started_at
     WHERE NEW.status = 'running' AND id = NEW.document_id AND index_generation = NEW.generation
       AND index_status IN ('queued', 'indexing');
    UPDATE document
       SET index_status = CASE WHEN EXISTS (SELECT 1 FROM worker_job_queue q
                                             WHERE q.document_id = NEW.document_id AND q.generation = NEW.generation
                                               AND q.fence > 0) THEN 'indexing' ELSE 'queued' END,
           error_code = NULL, error_message = NULL, updated_at = strftime('%Y-%m-%d %H:%M:%f', 'now')
     WHERE NEW.status = 'pending' AND OLD.status <> 'running' AND id = NEW.document_id
       AND index_generation = NEW.generation AND index_status = 'failed';
    UPDATE document
       SET index_status = 'failed', updated_at = NEW.completed_at,
           error_code = (SELECT error_code FROM v_document_error WHERE document_id = document.id LIMIT 1),
           error_message = (SELECT error_message FROM v_document_error WHERE document_id = document.id LIMIT 1)
     WHERE NEW.status IN ('failed', 'cancelled') AND id = NEW.document_id AND index_generation = NEW.generation
       AND index_status IN ('queued', 'indexing', 'failed');
    -- An undo put back the end of the last one that was live.
    UPDATE document
       SET index_status = 'failed', updated_at = NEW.completed_at, error_code = 'NOT_PUBLISHED',
           error_message = 'job ' || NEW.id || ' (' || NEW.job_type || ') has completed, and no job is left that would publish the document'
     WHERE NEW.status = 'completed' AND OLD.status = 'pending' AND id = NEW.document_id
       AND index_generation = NEW.generation AND index_status IN ('queued', 'indexing')
       AND NOT EXISTS (SELECT 1 FROM worker_job_queue q
                        WHERE q.document_id = NEW.document_id AND q.generation = NEW.generation
                          AND q.status IN ('pending', 'running'));
END;

CREATE TRIGGER document_loses_job AFTER DELETE ON worker_job_queue
WHEN OLD.generation IS NOT NULL AND OLD.status = 'pending'
BEGIN
    UPDATE document
       SET index_status = 'failed', error_code = 'JOB_DELETED',
           error_message = 'job ' || OLD.id || ' (' || OLD.job_type || ') was deleted before it ran'
     WHERE id = OLD.document_id AND index_generation = OLD.generation AND index_status IN ('queued', 'indexing');
END;

-- An undo brings back what was deleted.
CREATE TRIGGER document_regains_job AFTER INSERT ON worker_job_queue
WHEN NEW.generation IS NOT NULL AND NEW.status = 'pending'
     AND EXISTS (SELECT 1 FROM v_undo_of_delete u WHERE u.job_id = NEW.id)
BEGIN
    UPDATE document
       SET index_status = CASE WHEN EXISTS (SELECT 1 FROM worker_job_queue q
                                             WHERE q.document_id = NEW.document_id AND q.generation = NEW.generation
                                               AND q.fence > 0) THEN 'indexing' ELSE 'queued' END,
           error_code = NULL, error_message = NULL
     WHERE id = NEW.document_id AND index_generation = NEW.generation AND index_status = 'failed';
END;

CREATE TRIGGER file_insert_guard BEFORE INSERT ON file
BEGIN
    SELECT CASE
        WHEN NEW.id <> -1 THEN RAISE(ABORT, 'the table chooses the id of a file: leave it out of the INSERT')
        WHEN NOT EXISTS (SELECT 1 FROM worker_job_attempt a
                          WHERE a.job_id = NEW.job_id AND a.fence = NEW.fence AND a.outcome = 'completed')
            THEN RAISE(ABORT, 'only an attempt that completed has published files')
    END;
END;

CREATE TRIGGER file_guard BEFORE UPDATE ON file
WHEN NEW.id <> OLD.id OR NEW.path <> OLD.path OR NEW.size <> OLD.size OR NEW.sha256 <> OLD.sha256
     OR NEW.md5 <> OLD.md5 OR NEW.job_id <> OLD.job_id OR NEW.fence <> OLD.fence
     OR (OLD.document_id IS NOT NULL AND NEW.document_id IS NOT OLD.document_id)
BEGIN
    SELECT RAISE(ABORT, 'a published file does not change');
END;

CREATE TRIGGER file_deleted AFTER DELETE ON file
WHEN NOT EXISTS (SELECT 1 FROM file WHERE path = OLD.path)
BEGIN
    INSERT OR IGNORE INTO file_gone (path) VALUES (OLD.path);
END;

CREATE TRIGGER file_back AFTER INSERT ON file
BEGIN
    DELETE FROM file_gone WHERE path = NEW.path;
END;

CREATE TRIGGER page_result_guard BEFORE UPDATE OF id, digest, text, method, confidence, layout ON page_result
BEGIN
    SELECT RAISE(ABORT, 'what was read of a page does not change: another digest is another page');
END;

CREATE TRIGGER page_result_delete_guard BEFORE DELETE ON page_result
WHEN EXISTS (SELECT 1 FROM page WHERE result_id = OLD.id)
BEGIN
    SELECT RAISE(ABORT, 'a document has this page: delete the document');
END;

CREATE TRIGGER page_result_added AFTER INSERT ON page_result
BEGIN
    INSERT INTO page_text (rowid, text) VALUES (NEW.id, NEW.text);
END;

CREATE TRIGGER page_result_deleted AFTER DELETE ON page_result
BEGIN
    INSERT INTO page_text (page_text, rowid, text) VALUES ('delete', OLD.id, OLD.text);
END;

CREATE TRIGGER page_insert_guard BEFORE INSERT ON page
WHEN NOT EXISTS (SELECT 1 FROM document d JOIN worker_job_queue q
                     ON q.document_id = d.id AND q.generation = d.index_generation AND q.status = 'running'
                  WHERE d.id = NEW.document_id AND d.index_generation = NEW.generation)
     OR NOT EXISTS (SELECT 1 FROM page_result WHERE id = NEW.result_id)
BEGIN
    SELECT RAISE(ABORT, 'only a running job of its newest generation adds pages to a document');
END;

CREATE TRIGGER page_guard BEFORE UPDATE ON page
WHEN NEW.document_id <> OLD.document_id OR NEW.generation <> OLD.generation OR NEW.number <> OLD.number
     OR NOT EXISTS (SELECT 1 FROM worker_job_queue q
                     WHERE q.document_id = OLD.document_id AND q.generation = OLD.generation AND q.status = 'running')
     OR NOT EXISTS (SELECT 1 FROM page_result WHERE id = NEW.result_id)
BEGIN
    SELECT RAISE(ABORT, 'only a running job of its generation changes a page of a document');
END;

CREATE TRIGGER page_delete_guard BEFORE DELETE ON page
WHEN EXISTS (SELECT 1 FROM document WHERE id = OLD.document_id
                AND OLD.generation IN (index_generation, current_generation))
BEGIN
    SELECT RAISE(ABORT, 'people read this page, or will: delete the document');
END;

CREATE TRIGGER page_added AFTER INSERT ON page
BEGIN
    UPDATE page_result SET forgotten_at = NULL WHERE id = NEW.result_id AND forgotten_at IS NOT NULL;
END;

CREATE TRIGGER page_deleted AFTER DELETE ON page
WHEN NOT EXISTS (SELECT 1 FROM page WHERE result_id = OLD.result_id)
BEGIN
    UPDATE page_result SET forgotten_at = '' WHERE id = OLD.result_id;
END;

CREATE TRIGGER page_changed AFTER UPDATE OF result_id ON page
BEGIN
    UPDATE page_result SET forgotten_at = NULL WHERE id = NEW.result_id AND forgotten_at IS NOT NULL;
    UPDATE page_result SET forgotten_at = ''
     WHERE id = OLD.result_id AND NOT EXISTS (SELECT 1 FROM page WHERE result_id = OLD.result_id);
END;

CREATE TRIGGER checkpoint_guard BEFORE INSERT ON checkpoint
WHEN NOT EXISTS (SELECT 1 FROM worker_job_queue
                  WHERE id = NEW.job_id AND fence = NEW.fence AND status = 'running')
BEGIN
    SELECT RAISE(ABORT, 'only the attempt that runs a job keeps its checkpoint');
END;

CREATE TRIGGER checkpoint_done AFTER UPDATE OF status ON worker_job_queue
WHEN NEW.status = 'completed'
BEGIN
    DELETE FROM checkpoint WHERE job_id = NEW.id;
END;

-- What an undo may bring back keeps it.
CREATE TRIGGER checkpoint_deleted AFTER DELETE ON worker_job_queue
WHEN EXISTS (SELECT 1 FROM checkpoint WHERE job_id = OLD.id)
BEGIN
    DELETE FROM checkpoint WHERE job_id = OLD.id
       AND NOT EXISTS (SELECT 1 FROM v_undo_of_delete u WHERE u.job_id = OLD.id);
END;

-- Why the newest generation of a document failed: the first of its jobs that did, and of which pages.
CREATE VIEW v_document_error AS
SELECT d.id AS document_id, q.id AS job_id, ifnull(q.error_code, 'CANCELLED') AS error_code,
       ifnull(CASE WHEN p.pages LIKE '[%' THEN 'pages ' || json_extract(p.pages, '$[0]') || '-' || json_extract(p.pages, '$[#-1]')
                   ELSE 'pages ' || p.pages END || ': ', '')
       || coalesce(q.error_message, 'job ' || q.id || ' (' || q.job_type || ') was cancelled') AS error_message
  FROM document d
  JOIN worker_job_queue q ON q.document_id = d.id AND q.generation = d.index_generation
                         AND q.status IN ('failed', 'cancelled')
  JOIN (SELECT id, coalesce(json_extract(payload, '$.pages'), json_extract(payload, '$.page_range')) AS pages
          FROM worker_job_queue) p ON p.id = q.id
 ORDER BY ifnull(q.error_code = 'DEPENDENCY_FAILED', 0), q.id;

-- Progress: of a success all; else the pages that are stored of those that were counted.
CREATE VIEW v_documents AS
SELECT d.id, d.owner, d.platform, d.name, d.index_status AS status,
       CASE WHEN d.index_status = 'success' THEN 100 WHEN ifnull(d.pages, 0) = 0 THEN 0
            ELSE min(100, 100 * (SELECT count(*) FROM page p
                                  WHERE p.document_id = d.id AND p.generation = d.index_generation) / d.pages) END AS percent,
       d.pages, d.index_generation AS generation, d.current_generation AS readable, ifnull(d.error_code, '') AS error,
       ifnull(d.error_message, '') AS message, d.updated_at, d.gone_at
  FROM document d;
