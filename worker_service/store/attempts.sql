-- Writes and questions of running attempts.

-- name: parent_under_lease
-- Returns a row only while the lease holds. After a request to cancel (P7), or for an older generation (P11), it
-- returns none, so that nothing is written.
SELECT {parent_columns}
  FROM worker_job_queue q
 WHERE q.id = :job_id AND q.fence = :fence AND q.worker_id = :worker_id AND q.status = 'running'
   AND q.cancel_requested_at IS NULL
   AND (q.generation IS NULL
        OR EXISTS (SELECT 1 FROM document d WHERE d.id = q.document_id AND d.index_generation = q.generation));

-- name: page_target
-- Pages are stored also after a request to cancel (P7), so that the next attempt need not read them again. Pages of an
-- older generation (P11) are stored under their digest only.
SELECT q.document_id, q.generation, d.id IS NOT NULL,
       q.cancel_requested_at IS NOT NULL OR (q.generation IS NOT NULL AND d.id IS NULL)
  FROM worker_job_queue q
  LEFT JOIN document d ON d.id = q.document_id AND d.index_generation = q.generation
 WHERE q.id = :job_id AND q.fence = :fence AND q.worker_id = :worker_id AND q.status = 'running';

-- name: save_checkpoint
INSERT INTO checkpoint (job_id, fence, at, state) VALUES (:job_id, :fence, :now, :state)
    ON CONFLICT (job_id) DO UPDATE SET fence = excluded.fence, at = excluded.at, state = excluded.state;

-- name: last_checkpoint
SELECT state FROM checkpoint WHERE job_id = :job_id;

-- name: add_page_results
INSERT INTO page_result (digest, text, method, confidence, divided_words, layout, created_at)
VALUES (?, ?, ?, ?, ?, ?, ?)
    ON CONFLICT (digest) DO NOTHING
RETURNING id;

-- name: index_results
-- One statement for all pages, because the full-text index writes a segment after each statement. A statement per page
-- takes twice as long, and leaves that many segments to be merged.
INSERT INTO page_text (rowid, text, divided_words)
SELECT id, text, divided_words FROM page_result WHERE id IN (SELECT value FROM json_each(:result_ids));

-- name: add_page_aliases
INSERT INTO page_alias (digest, result_digest)
SELECT value ->> 0, value ->> 1 FROM json_each(:aliases) WHERE true
    ON CONFLICT DO NOTHING;

-- fragment: results_of_pages
(SELECT w.value ->> 0 AS number,
        ifnull((SELECT r.id FROM page_result r WHERE r.digest = w.value ->> 1),
               (SELECT r.id FROM page_alias a CROSS JOIN page_result r ON r.digest = a.result_digest
                 WHERE a.digest = w.value ->> 1)) AS result_id
   FROM json_each(:pages) w)

-- name: pages_to_replace
-- Results that these pages had before, stored by another attempt.
SELECT p.result_id
  FROM {results_of_pages} w
 CROSS JOIN page p ON p.document_id = :document_id AND p.generation = :generation AND p.number = w.number
 WHERE p.result_id <> w.result_id;

-- name: unmark_used_results
UPDATE page_result SET forgotten_at = NULL
 WHERE forgotten_at IS NOT NULL AND id IN (SELECT result_id FROM {results_of_pages})
   AND EXISTS (SELECT 1 FROM page p WHERE p.result_id = page_result.id);

-- name: mark_unused_results
UPDATE page_result SET forgotten_at = ''
 WHERE id IN (SELECT value FROM json_each(:result_ids))
   AND NOT EXISTS (SELECT 1 FROM page p WHERE p.result_id = page_result.id);

-- name: save_pages
-- A page whose digest is not stored is skipped. It is then missing when pages are counted.
INSERT INTO page (document_id, generation, number, result_id)
SELECT :document_id, :generation, number, result_id FROM {results_of_pages} WHERE result_id IS NOT NULL
    ON CONFLICT DO UPDATE SET result_id = excluded.result_id WHERE result_id <> excluded.result_id;

-- name: mark_results_without_page
-- Marks results to which no page refers yet. A result is deleted unless a page refers to it soon.
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

-- name: mark_crawl_item_gone
UPDATE crawl_item SET gone_at = :now WHERE crawl = :crawl AND id = :id AND gone_at IS NULL;

-- name: item_in_other_crawl
-- Returns a row if the item has moved into a folder in which another crawl of the same owner has seen it since.
SELECT o.id FROM crawl c CROSS JOIN crawl_item o ON o.crawl = c.key AND o.id = :id
 WHERE c.owner = :owner AND c.key <> :crawl AND o.gone_at IS NULL AND o.parent_id <> :parent_id
 LIMIT 1;

-- name: mark_document_gone
UPDATE document SET gone_at = :now
 WHERE owner = :owner AND platform = :platform AND source_key = :id AND gone_at IS NULL;

-- name: unmark_document_gone
UPDATE document SET gone_at = NULL
 WHERE owner = :owner AND platform = :platform AND source_key = :id AND gone_at IS NOT NULL;


-- ── Questions of handlers ───────────────────────────────────────────────────────────────────────────────────────

-- name: known_pages
-- A result marked for deletion is not returned, since it might be deleted before it is used. While the mark has no time
-- yet (''), it is returned: the asking attempt has started before that time, so `results_to_forget` will wait for it.
SELECT w.value FROM json_each(:digests) w
  LEFT JOIN page_alias a ON a.digest = w.value
 CROSS JOIN page_result r ON r.digest = ifnull(a.result_digest, w.value)
 WHERE ifnull(r.forgotten_at, '') = '';

-- name: known_digests
-- Digests of the pages of a job's document that were read, aliases included.
SELECT r.digest FROM worker_job_queue q NOT INDEXED
 CROSS JOIN page p ON p.document_id = q.document_id AND p.generation = q.generation
 CROSS JOIN page_result r ON r.id = p.result_id WHERE q.id = :job_id
UNION ALL
SELECT a.digest FROM worker_job_queue q NOT INDEXED
 CROSS JOIN page p ON p.document_id = q.document_id AND p.generation = q.generation
 CROSS JOIN page_result r ON r.id = p.result_id JOIN page_alias a ON a.result_digest = r.digest WHERE q.id = :job_id;

-- name: document_pages
SELECT p.number, r.digest, r.text, r.method, r.confidence, CASE WHEN :with_layout THEN r.layout END
  FROM worker_job_queue q NOT INDEXED
 CROSS JOIN page p ON p.document_id = q.document_id AND p.generation = q.generation
 CROSS JOIN page_result r ON r.id = p.result_id
 WHERE q.id = :job_id AND p.number BETWEEN :first AND :last
 ORDER BY p.number;

-- fragment: file_columns
f.id, f.job_id, f.role, f.name, f.path, f.size, f.sha256, f.md5

-- name: known_document
SELECT ifnull((SELECT f.sha256 FROM file f WHERE f.document_id = d.id AND f.role = 'original' ORDER BY f.id DESC LIMIT 1), ''),
       d.kind, d.pages, d.settings, d.index_status, d.source_key, d.name, d.index_generation,
       (SELECT max(b.batch_id) FROM batch_document b WHERE b.document_id = d.id)
  FROM document d WHERE d.id = :document_id;

-- name: files_with_sha256
-- Files of the job's own document come first, because they are not deleted while a job works for the document.
SELECT {file_columns} FROM file f
 WHERE f.sha256 = :sha256 AND f.sha256 <> ''
 ORDER BY ifnull(f.document_id = (SELECT q.document_id FROM worker_job_queue q WHERE q.id = :job_id), 0) DESC,
          f.id DESC LIMIT 10;

-- name: files_with_md5
-- MD5 can be forged, so only files of the same owner are returned.
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

-- name: newest_inputs
-- The newest file of each role.
SELECT {file_columns} FROM file f
 WHERE f.document_id = :document_id AND f.role <> ''
   AND f.id = (SELECT max(n.id) FROM file n WHERE n.document_id = :document_id AND n.role = f.role)
 ORDER BY f.role;
