-- The statements about documents, their files and pages, checkpoints and crawls. Beside sqlite.sql, and like it.


-- ── A wish to read ──────────────────────────────────────────────────────────────────────────────────────────────

-- name: document_named
SELECT id, index_status, content, settings, settings_before, updated_at FROM document
 WHERE owner = :owner AND platform = :platform AND source_key = :source_key;

-- name: add_document
INSERT INTO document (owner, platform, source_key, name, content, created_at, updated_at)
VALUES (:owner, :platform, :source_key, :name, :content, :now, :now)
RETURNING id;

-- name: next_generation
-- The table makes older work stale (P11). What was counted of another content is not known of this one.
UPDATE document
   SET index_generation = index_generation + 1, index_status = 'queued', settings = :settings,
       settings_before = CASE index_status WHEN 'success' THEN settings ELSE settings_before END,
       pages = CASE WHEN :content IN ('', content) THEN pages END,
       kind = CASE WHEN :content IN ('', content) THEN kind END,
       content = CASE :content WHEN '' THEN content ELSE :content END,
       name = CASE :name WHEN '' THEN name ELSE :name END,
       note = NULL, error_code = NULL, error_message = NULL, gone_at = NULL, updated_at = :now
 WHERE id = :document_id
RETURNING index_generation;

-- name: rename_document
UPDATE document SET name = :name, gone_at = NULL
 WHERE id = :document_id AND (name <> :name OR gone_at IS NOT NULL) AND :name <> '';

-- name: documents_failing
SELECT DISTINCT d.id FROM json_each(:job_ids) w
 CROSS JOIN worker_job_queue q NOT INDEXED ON q.id = w.value
 CROSS JOIN document d ON d.id = q.document_id AND d.index_generation = q.generation
 WHERE d.index_status IN ('queued', 'indexing') ORDER BY d.id;

-- name: live_work
SELECT q.id FROM document d
  JOIN worker_job_queue q ON q.document_id = d.id AND q.generation = d.index_generation
                         AND q.status IN ('pending', 'running')
 WHERE d.id = :document_id ORDER BY q.id LIMIT 1;

-- name: stale_work
-- Does this job belong to a generation that is no longer the newest of its document?
SELECT q.document_id, q.generation FROM worker_job_queue q
 WHERE q.id = :job_id AND q.generation IS NOT NULL
   AND NOT EXISTS (SELECT 1 FROM document d WHERE d.id = q.document_id AND d.index_generation = q.generation);

-- name: confirm_cancel_stale
UPDATE worker_job_queue
   SET status = 'cancelled', completed_at = :now, error_code = :error_code, error_message = :error_message
 WHERE id = :job_id AND fence = :fence AND status = 'running';

-- name: any_live_job
SELECT id, job_type FROM worker_job_queue
 WHERE document_id = :document_id AND generation >= 0 AND status IN ('pending', 'running')
 UNION ALL
SELECT id, job_type FROM worker_job_queue
 WHERE document_id = :document_id AND generation IS NULL AND status IN ('pending', 'running')
 LIMIT 1;

-- name: weight
-- What would be freed if all of these were removed: files that somebody else names as well stay.
WITH own(id) AS MATERIALIZED (SELECT value FROM json_each(:document_ids)),
     path AS MATERIALIZED (SELECT f.path, max(f.size) AS size,
                                  EXISTS (SELECT 1 FROM file o
                                           WHERE o.path = f.path AND ifnull(o.document_id, 0) NOT IN own) AS is_shared
                             FROM own CROSS JOIN file f ON f.document_id = own.id GROUP BY f.path)
SELECT (SELECT count(*) FROM own CROSS JOIN document d ON d.id = own.id),
       (SELECT ifnull(sum(d.pages), 0) FROM own CROSS JOIN document d ON d.id = own.id),
       (SELECT count(*) FROM path WHERE NOT is_shared), (SELECT ifnull(sum(size), 0) FROM path WHERE NOT is_shared),
       (SELECT count(*) FROM path WHERE is_shared);

-- name: remember_document
INSERT INTO worker_action_document (action_id, document_id, before)
SELECT :action_id, d.id,
       json_object('owner', d.owner, 'platform', d.platform, 'source_key', d.source_key, 'name', d.name,
                   'content', d.content, 'pages', d.pages, 'index_status', d.index_status, 'settings', d.settings,
                   'created_at', d.created_at, 'files', :files, 'size', :size)
  FROM document d WHERE d.id = :document_id;

-- name: remove_document
-- Its files go with it, by the table; its pages later, a little at a time.
DELETE FROM document WHERE id = :document_id;

-- name: sizes_by_owner
-- A file that two owners share counts for both.
WITH read AS MATERIALIZED (SELECT owner, count(*) AS documents, ifnull(sum(pages), 0) AS pages
                             FROM document GROUP BY owner),
     kept AS MATERIALIZED (SELECT owner, count(*) AS files, sum(size) AS size
                             FROM (SELECT DISTINCT owner, path, size FROM file) GROUP BY owner)
SELECT o.owner, ifnull(r.documents, 0), ifnull(r.pages, 0), ifnull(k.files, 0), ifnull(k.size, 0)
  FROM (SELECT owner FROM read UNION SELECT owner FROM kept) o
  LEFT JOIN read r ON r.owner = o.owner
  LEFT JOIN kept k ON k.owner = o.owner
 ORDER BY ifnull(k.size, 0) DESC, o.owner;

-- name: size_of_all
SELECT count(*), ifnull(sum(size), 0) FROM (SELECT DISTINCT path, size FROM file);


-- ── What a completion brings ────────────────────────────────────────────────────────────────────────────────────

-- name: learn
UPDATE document
   SET kind = ifnull(:kind, kind), pages = ifnull(:pages, pages), content = ifnull(:content, content),
       note = ifnull(:note, note), updated_at = :now
 WHERE id = :document_id;

-- name: document_moved
UPDATE document SET updated_at = :now WHERE id = :document_id AND index_generation = :generation;

-- name: add_file
INSERT INTO file (job_id, fence, document_id, role, name, path, size, sha256, md5, note, owner, created_at)
VALUES (:job_id, :fence, :document_id, :role, :name, :path, :size, :sha256, :md5, :note, :owner, :now);

-- name: add_file_again
-- Without the note, which is about how the other one came.
INSERT INTO file (job_id, fence, document_id, role, name, path, size, sha256, md5, owner, created_at)
SELECT :job_id, :fence, :document_id, CASE :role WHEN '' THEN f.role ELSE :role END,
       CASE :name WHEN '' THEN f.name ELSE :name END, f.path, f.size, f.sha256, f.md5, :owner, :now
  FROM file f WHERE f.id = :file_id
RETURNING id;

-- name: tie_files
-- The original that a download has just published, to the document that it is of.
UPDATE file SET document_id = :document_id
 WHERE job_id = :job_id AND fence = :fence AND document_id IS NULL AND role <> ''
   AND (:content IS NULL OR sha256 = :content);

-- name: forget_older_files
-- What an earlier generation made of the document, and this one did not, would be taken for this one's.
DELETE FROM file
 WHERE document_id = :document_id AND role NOT IN ('', 'original')
   AND EXISTS (SELECT 1 FROM document d WHERE d.id = :document_id AND d.current_generation IS NOT :generation)
   AND NOT EXISTS (SELECT 1 FROM worker_job_queue q WHERE q.id = file.job_id AND q.generation = :generation);

-- name: publish
-- P5, P11: pages were written ahead. From this row on people read them.
UPDATE document
   SET current_generation = :generation, index_status = 'success', error_code = NULL, error_message = NULL,
       updated_at = :now
 WHERE id = :document_id AND index_generation = :generation
RETURNING id;

-- name: led_nowhere
-- The last live job of a generation has completed, and nobody published it.
UPDATE document
   SET index_status = 'failed', updated_at = :now,
       error_code = coalesce((SELECT e.error_code FROM v_document_error e WHERE e.document_id = document.id LIMIT 1),
                             CASE WHEN :skipped IS NULL THEN 'NOT_PUBLISHED' ELSE 'SKIPPED' END),
       error_message = coalesce((SELECT e.error_message FROM v_document_error e WHERE e.document_id = document.id LIMIT 1),
                                :skipped, 'job ' || :job_id || ' has completed, and no job is left that would publish the document')
 WHERE id = :document_id AND index_generation = :generation AND index_status IN ('queued', 'indexing')
   AND NOT EXISTS (SELECT 1 FROM worker_job_queue q
                    WHERE q.document_id = :document_id AND q.generation = :generation
                      AND q.status IN ('pending', 'running'));


-- ── Under the lease ─────────────────────────────────────────────────────────────────────────────────────────────

-- name: lease_held
-- The lease, and what it works for. Nothing lands after a request to stop (P7), nor of an older generation (P11).
SELECT q.document_id, q.generation, q.owner, q.platform, q.name FROM worker_job_queue q
 WHERE q.id = :job_id AND q.fence = :fence AND q.worker_id = :worker_id AND q.status = 'running'
   AND q.cancel_requested_at IS NULL
   AND (q.generation IS NULL
        OR EXISTS (SELECT 1 FROM document d WHERE d.id = q.document_id AND d.index_generation = q.generation));

-- name: reading_of
-- What was read is kept after a request to stop as well (P7), so that the next attempt need not read it; and of an older
-- generation (P11) by its digest alone.
SELECT q.document_id, q.generation, d.id IS NOT NULL,
       q.cancel_requested_at IS NULL AND (q.generation IS NULL OR d.id IS NOT NULL)
  FROM worker_job_queue q
  LEFT JOIN document d ON d.id = q.document_id AND d.index_generation = q.generation
 WHERE q.id = :job_id AND q.fence = :fence AND q.worker_id = :worker_id AND q.status = 'running';

-- name: keep_checkpoint
INSERT INTO checkpoint (job_id, fence, at, state) VALUES (:job_id, :fence, :now, :state)
    ON CONFLICT (job_id) DO UPDATE SET fence = excluded.fence, at = excluded.at, state = excluded.state;

-- name: checkpoint_of
SELECT state FROM checkpoint WHERE job_id = :job_id;

-- name: forget_checkpoint
DELETE FROM checkpoint WHERE job_id = :job_id;

-- name: add_page_results
-- In one statement: after each whose trigger writes to it, the full-text index turns what it holds into a segment. One
-- for each page takes twice the time, and leaves as many to be merged.
INSERT INTO page_result (digest, text, method, confidence, layout, created_at)
SELECT value ->> 'digest', value ->> 'text', value ->> 'method', value ->> 'confidence', unhex(value ->> 'layout'), :now
  FROM json_each(:results) WHERE true
    ON CONFLICT (digest) DO NOTHING;

-- name: save_pages
-- One that names a digest which is not stored is passed over: it is missing when they are counted.
INSERT INTO page (document_id, generation, number, result_id)
SELECT :document_id, :generation, w.value ->> 0, r.id
  FROM json_each(:pages) w CROSS JOIN page_result r ON r.digest = w.value ->> 1
 WHERE true
    ON CONFLICT DO UPDATE SET result_id = excluded.result_id WHERE result_id <> excluded.result_id;

-- name: leave_to_anybody
-- No page refers to them yet: unless one does soon, they are forgotten.
UPDATE page_result SET forgotten_at = ''
 WHERE digest IN (SELECT value FROM json_each(:digests)) AND forgotten_at IS NULL
   AND NOT EXISTS (SELECT 1 FROM page p WHERE p.result_id = page_result.id);

-- name: save_crawl
INSERT INTO crawl (key, owner, state, updated_at) VALUES (:crawl, :owner, :state, :now)
    ON CONFLICT (key) DO UPDATE SET state = ifnull(excluded.state, state), updated_at = excluded.updated_at;

-- name: save_crawl_item
INSERT INTO crawl_item (crawl, id, parent_id, name, kind, revision, size, note, detail, walk, seen_at)
VALUES (:crawl, :id, :parent_id, :name, :kind, :revision, :size, :note, :detail, :walk, :now)
    ON CONFLICT (crawl, id) DO UPDATE
   SET parent_id = excluded.parent_id, name = excluded.name, kind = excluded.kind, revision = excluded.revision,
       size = excluded.size, note = excluded.note, detail = excluded.detail, walk = max(walk, excluded.walk), seen_at = excluded.seen_at,
       gone_at = NULL;

-- name: lose_crawl_item
UPDATE crawl_item SET gone_at = :now WHERE crawl = :crawl AND id = :id AND gone_at IS NULL;

-- name: crawled_elsewhere
-- It has moved into a folder that another crawl of the same owner has looked at since.
SELECT o.id FROM crawl c CROSS JOIN crawl_item o ON o.crawl = c.key AND o.id = :id
 WHERE c.owner = :owner AND c.key <> :crawl AND o.gone_at IS NULL AND o.parent_id <> :parent_id
 LIMIT 1;

-- name: cancel_what_went
-- Jobs for what is no longer there. The key is a prefix, and an id may have colons: the source_key tells exactly.
UPDATE worker_job_queue
   SET status = 'cancelled', held = 0, completed_at = :now, cancel_requested_at = :now, error_code = 'SOURCE_GONE',
       error_message = 'the file is no longer where the crawl found it'
 WHERE unique_key >= :first AND unique_key < :beyond AND unique_key IS NOT NULL AND status IN ('pending', 'running')
   AND status = 'pending' AND platform = :platform AND owner = :owner AND source_key = :id;

-- name: document_gone
UPDATE document SET gone_at = :now
 WHERE owner = :owner AND platform = :platform AND source_key = :id AND gone_at IS NULL;

-- name: document_back
UPDATE document SET gone_at = NULL
 WHERE owner = :owner AND platform = :platform AND source_key = :id AND gone_at IS NOT NULL;


-- ── Questions of handlers ───────────────────────────────────────────────────────────────────────────────────────

-- name: known_pages
-- One that is about to be forgotten is not known: it might be gone before it is used. Where the time is yet to be
-- written, who asks now runs since before it: forget_result will wait.
SELECT r.digest FROM json_each(:digests) w CROSS JOIN page_result r ON r.digest = w.value
 WHERE ifnull(r.forgotten_at, '') = '';

-- name: document_pages
SELECT p.number, r.digest, r.text, r.method, r.confidence, CASE WHEN :with_layout THEN r.layout END
  FROM worker_job_queue q NOT INDEXED
 CROSS JOIN page p ON p.document_id = q.document_id AND p.generation = q.generation
 CROSS JOIN page_result r ON r.id = p.result_id
 WHERE q.id = :job_id AND p.number BETWEEN :first AND :last
 ORDER BY p.number;

-- fragment: file_columns
f.id, f.job_id, f.role, f.name, f.path, f.size, f.sha256, f.md5

-- name: same_sha256
-- Its document's own first: while a job works for the document, that one is not forgotten.
SELECT {file_columns} FROM file f
 WHERE f.sha256 = :sha256 AND f.sha256 <> ''
 ORDER BY ifnull(f.document_id = (SELECT q.document_id FROM worker_job_queue q WHERE q.id = :job_id), 0) DESC,
          f.id DESC LIMIT 10;

-- name: same_md5
-- MD5 can be forged: what it finds is shared with nobody else.
SELECT {file_columns} FROM file f
 WHERE f.md5 = :md5 AND f.md5 <> '' AND (:size IS NULL OR f.size = :size)
   AND f.owner = (SELECT q.owner FROM worker_job_queue q WHERE q.id = :job_id)
 ORDER BY f.id DESC LIMIT 10;

-- name: crawl_state
SELECT state FROM crawl WHERE key = :crawl;

-- fragment: item_columns
i.id, i.parent_id, i.name, i.kind, i.revision, i.size, i.note, i.gone_at IS NOT NULL, i.detail, i.walk

-- name: crawl_items
SELECT {item_columns} FROM json_each(:ids) w CROSS JOIN crawl_item i ON i.crawl = :crawl AND i.id = w.value
 ORDER BY i.id;

-- name: crawl_items_not_seen
SELECT {item_columns} FROM crawl_item i
 WHERE i.crawl = :crawl AND i.id > :after AND i.gone_at IS NULL AND i.walk < :walk
 ORDER BY i.id LIMIT :most;

-- name: crawl_items_with_note
SELECT {item_columns} FROM crawl_item i
 WHERE i.crawl = :crawl AND i.note = :note AND i.note <> '' AND i.id > :after AND i.gone_at IS NULL
 ORDER BY i.id LIMIT :most;

-- name: inputs
SELECT {file_columns} FROM file f
 WHERE f.document_id = :document_id AND f.role <> ''
   AND f.id = (SELECT max(n.id) FROM file n WHERE n.document_id = :document_id AND n.role = f.role)
 ORDER BY f.role;


-- name: known_document
SELECT ifnull((SELECT f.sha256 FROM file f WHERE f.document_id = d.id AND f.role = 'original' ORDER BY f.id DESC LIMIT 1), ''),
       d.kind, d.pages, d.settings
  FROM document d WHERE d.id = :document_id;


-- ── Forgetting ──────────────────────────────────────────────────────────────────────────────────────────────────

-- name: old_generations
-- Pages that nobody reads any more, nor will. What a generation that failed has read is for the next one to take.
SELECT document_id, oldest
  FROM (SELECT d.id AS document_id, d.current_generation,
               (SELECT min(p.generation) FROM page p WHERE p.document_id = d.id) AS oldest
          FROM document d WHERE d.index_generation > 1 AND d.index_status = 'success')
 WHERE oldest < current_generation LIMIT :most;

-- name: gone_documents
-- One that is there was noted by a hand, and loses nothing.
SELECT g.document_id, (SELECT min(p.generation) FROM page p
                        WHERE p.document_id = g.document_id
                          AND NOT EXISTS (SELECT 1 FROM document d WHERE d.id = g.document_id))
  FROM document_gone g ORDER BY g.document_id LIMIT :most;

-- name: forget_gone_document
DELETE FROM document_gone
 WHERE document_id = :document_id
   AND (NOT EXISTS (SELECT 1 FROM page p WHERE p.document_id = :document_id)
        OR EXISTS (SELECT 1 FROM document d WHERE d.id = :document_id));

-- name: is_forgettable
SELECT EXISTS (SELECT 1 FROM document_gone)
    OR EXISTS (SELECT 1 FROM page_result WHERE forgotten_at IS NOT NULL);

-- name: forget_page
DELETE FROM page
 WHERE document_id = :document_id AND generation = :generation
   AND number IN (SELECT number FROM page WHERE document_id = :document_id AND generation = :generation LIMIT :most)
RETURNING number;

-- name: superseded_files
-- While a job works for the document, it may still read the older one. A chore, and the reader walks over all files.
SELECT f.id FROM file f JOIN document d ON d.id = f.document_id AND d.index_status = 'success'
 WHERE f.role <> ''
   AND EXISTS (SELECT 1 FROM file n WHERE n.document_id = f.document_id AND n.role = f.role AND n.id > f.id
                                      AND (n.name = f.name OR f.role = 'original'))
   AND NOT EXISTS (SELECT 1 FROM worker_job_queue q
                    WHERE q.document_id = f.document_id AND q.status IN ('pending', 'running'))
 LIMIT :most;

-- name: forget_file
DELETE FROM file
 WHERE id = :file_id
   AND NOT EXISTS (SELECT 1 FROM worker_job_queue q
                    WHERE q.document_id = file.document_id AND q.status IN ('pending', 'running'))
RETURNING id;

-- name: date_forgotten
UPDATE page_result SET forgotten_at = :now WHERE forgotten_at = '';

-- name: forget_result
-- Whoever runs now may have asked for it before it was marked.
DELETE FROM page_result
 WHERE id IN (SELECT r.id FROM page_result r
               WHERE r.forgotten_at IS NOT NULL AND r.forgotten_at <> ''
                 AND NOT EXISTS (SELECT 1 FROM worker_job_queue q
                                  WHERE q.status = 'running' AND q.document_id IS NOT NULL
                                    AND q.started_at <= r.forgotten_at)
               LIMIT :most)
RETURNING id;

-- name: gone_files
-- As bytes: a path is no text.
SELECT CAST(path AS BLOB) FROM file_gone ORDER BY path LIMIT :most;

-- name: forget_gone_file
DELETE FROM file_gone WHERE path = CAST(:path AS TEXT);


-- ── Names for people ────────────────────────────────────────────────────────────────────────────────────────────

-- name: links_due
SELECT document_id FROM link_due ORDER BY document_id LIMIT :most;

-- name: forget_link_due
DELETE FROM link_due WHERE document_id = :document_id;

-- name: document_ids
-- Also those that were removed, and still have links.
SELECT id FROM document WHERE id > :after
 UNION
SELECT document_id FROM link WHERE document_id > :after
 ORDER BY 1 LIMIT :most;

-- name: link_facts
SELECT d.id, d.owner, d.name, d.source_key FROM document d WHERE d.id = :document_id;

-- name: newest_files
SELECT f.role, f.name, f.path FROM file f
 WHERE f.document_id = :document_id AND f.role <> ''
   AND f.id = (SELECT max(n.id) FROM file n WHERE n.document_id = :document_id AND n.role = f.role)
 ORDER BY f.role;

-- name: crawled_folders
-- The outermost first. A folder that leads back to itself ends somewhere.
WITH RECURSIVE above(crawl, id, name, depth) AS (
    SELECT * FROM (SELECT i.crawl, i.parent_id, '', 0
                     FROM crawl c CROSS JOIN crawl_item i ON i.crawl = c.key AND i.id = :source_key
                    WHERE c.owner = :owner ORDER BY i.gone_at IS NOT NULL, i.crawl LIMIT 1)
     UNION ALL
    SELECT i.crawl, i.parent_id, i.name, above.depth + 1
      FROM above CROSS JOIN crawl_item i ON i.crawl = above.crawl AND i.id = above.id
     WHERE above.depth < 50)
SELECT name FROM above WHERE depth > 0 ORDER BY depth DESC;

-- name: links_of
SELECT path, target FROM link WHERE document_id = :document_id ORDER BY path;

-- name: link_in_the_way
-- Somebody else's at this place, or one that would have to be a folder.
SELECT 1 FROM link
 WHERE (folded = :folded AND document_id <> :document_id)
    OR (folded > :folded || '/' AND folded < :folded || '0')
 LIMIT 1;

-- name: is_link
SELECT 1 FROM link WHERE folded = :folded;

-- name: let_link_go
UPDATE link SET target = '' WHERE document_id = :document_id;

-- name: save_link
INSERT INTO link (path, folded, document_id, target) VALUES (:path, :folded, :document_id, :target)
    ON CONFLICT (folded) DO UPDATE SET path = excluded.path, target = excluded.target;

-- name: forget_links
DELETE FROM link WHERE document_id = :document_id AND target = '';


-- ── History: what history.py asks ───────────────────────────────────────────────────────────────────────────────

-- name: history_generations
SELECT 'P11: job ' || q.id || ' works for generation ' || q.generation || ' of document ' || q.document_id
       || ', whose newest is ' || d.index_generation
  FROM worker_job_queue q JOIN document d ON d.id = q.document_id
 WHERE q.status IN ('pending', 'running') AND q.cancel_requested_at IS NULL AND q.generation <> d.index_generation
 UNION ALL
SELECT 'P11: document ' || d.id || ' has pages of generation ' || p.generation || ', and its newest is ' || d.index_generation
  FROM document d
  JOIN page p ON p.document_id = d.id AND p.generation > d.index_generation
 GROUP BY d.id, p.generation
 LIMIT :most;

-- name: history_documents
SELECT 'P11: document ' || d.id || ' is ' || d.index_status || ', and no job of its generation lives'
  FROM document d
 WHERE d.index_status IN ('queued', 'indexing')
   AND NOT EXISTS (SELECT 1 FROM worker_job_queue q
                    WHERE q.document_id = d.id AND q.generation = d.index_generation
                      AND q.status IN ('pending', 'running'))
 UNION ALL
SELECT 'P11: document ' || d.id || ' is ' || d.index_status || ', and people read generation '
       || ifnull(d.current_generation, 0) || ' of ' || d.index_generation
  FROM document d
 WHERE (d.index_status = 'success') <> (d.current_generation IS d.index_generation)
 LIMIT :most;

-- name: history_published
SELECT 'P5: document ' || d.id || ' is a success, and has no file'
  FROM document d
 WHERE d.index_status = 'success' AND NOT EXISTS (SELECT 1 FROM file f WHERE f.document_id = d.id)
 UNION ALL
SELECT 'P5: page ' || p.number || ' of document ' || p.document_id || ' has no result'
  FROM page p WHERE NOT EXISTS (SELECT 1 FROM page_result r WHERE r.id = p.result_id)
 UNION ALL
SELECT 'P5: file ' || f.id || ' was published by attempt ' || f.fence || ' of job ' || f.job_id || ', which is '
       || ifnull(a.outcome, 'open')
  FROM file f JOIN worker_job_attempt a ON a.job_id = f.job_id AND a.fence = f.fence
 WHERE a.outcome IS NOT 'completed'
 LIMIT :most;
