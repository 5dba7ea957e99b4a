-- Removal of documents, and of data that nothing refers to any more.

-- name: any_live_job
SELECT id, job_type FROM worker_job_queue
 WHERE document_id = :document_id AND generation >= 0 AND status IN ('pending', 'running')
 UNION ALL
SELECT id, job_type FROM worker_job_queue
 WHERE document_id = :document_id AND generation IS NULL AND status IN ('pending', 'running')
 LIMIT 1;

-- name: is_source_awaited
-- Whether a document is being read, or a job will still add it.
SELECT EXISTS (SELECT 1 FROM document
                WHERE platform = :platform AND owner = :owner AND source_key = :source_key
                  AND index_status IN ('queued', 'indexing'))
    OR EXISTS (SELECT 1 FROM worker_job_queue
                WHERE platform = :platform AND owner = :owner AND source_key = :source_key
                  AND status IN ('pending', 'running'));

-- name: weigh
-- The fields of `Weight` for a removal of all these documents. Files that other rows refer to are kept.
WITH own(id) AS MATERIALIZED (SELECT value FROM json_each(:document_ids)),
     path AS MATERIALIZED (SELECT f.path, max(f.size) AS size,
                                  EXISTS (SELECT 1 FROM file o
                                           WHERE o.path = f.path AND ifnull(o.document_id, 0) NOT IN own) AS is_shared
                             FROM own CROSS JOIN file f ON f.document_id = own.id GROUP BY f.path)
SELECT (SELECT count(*) FROM own CROSS JOIN document d ON d.id = own.id),
       (SELECT ifnull(sum(d.pages), 0) FROM own CROSS JOIN document d ON d.id = own.id),
       (SELECT count(*) FROM path WHERE NOT is_shared), (SELECT ifnull(sum(size), 0) FROM path WHERE NOT is_shared),
       (SELECT count(*) FROM path WHERE is_shared);

-- name: title_of_document
SELECT substr(owner || ' ' || platform || ' ' || source_key || ' ' || name, 1, 20000) FROM document WHERE id = :document_id;

-- name: remove_document
DELETE FROM document WHERE id = :document_id;

-- name: leave_batches
DELETE FROM batch_document WHERE document_id = :document_id;

-- name: forget_actions
DELETE FROM deferred_action WHERE document_id = :document_id;

-- name: forget_tags
DELETE FROM document_tag WHERE document_id = :document_id;

-- name: add_gone_document
-- A chore deletes the pages of the document later, in small steps.
INSERT INTO document_gone (document_id) VALUES (:document_id);

-- name: forget_files_of_document
DELETE FROM file WHERE document_id = :document_id RETURNING CAST(path AS BLOB);

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

-- name: old_generations
-- Generations before the current one. Pages of a failed generation are kept until a success, for the next one to reuse.
SELECT document_id, oldest
  FROM (SELECT d.id AS document_id, d.current_generation,
               (SELECT min(p.generation) FROM page p WHERE p.document_id = d.id) AS oldest
          FROM document d WHERE d.index_generation > 1 AND d.index_status = 'success')
 WHERE oldest < current_generation LIMIT :most;

-- name: generations_of_removed_documents
-- A row that names an existing document was inserted by hand; this document loses no pages.
SELECT g.document_id, (SELECT min(p.generation) FROM page p
                        WHERE p.document_id = g.document_id
                          AND NOT EXISTS (SELECT 1 FROM document d WHERE d.id = g.document_id))
  FROM document_gone g ORDER BY g.document_id LIMIT :most;

-- name: forget_gone_document
DELETE FROM document_gone
 WHERE document_id = :document_id
   AND (NOT EXISTS (SELECT 1 FROM page p WHERE p.document_id = :document_id)
        OR EXISTS (SELECT 1 FROM document d WHERE d.id = :document_id));

-- name: has_unused_rows
SELECT EXISTS (SELECT 1 FROM document_gone)
    OR EXISTS (SELECT 1 FROM page_result WHERE forgotten_at IS NOT NULL);

-- name: forget_pages
DELETE FROM page
 WHERE document_id = :document_id AND generation = :generation
   AND number IN (SELECT number FROM page WHERE document_id = :document_id AND generation = :generation LIMIT :most)
RETURNING result_id;

-- name: superseded_files
-- Leaves out documents with live jobs, which may still read the older file. Scans all files, on the read connection.
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
RETURNING CAST(path AS BLOB);

-- name: set_forgotten_at
-- From now on, `known_pages` leaves these results out. Attempts that have started before may use them.
UPDATE page_result SET forgotten_at = :now WHERE forgotten_at = '';

-- name: results_to_forget
-- An attempt that started before the mark may still use the result, so wait until it has ended.
SELECT r.id FROM page_result r
 WHERE r.forgotten_at IS NOT NULL AND r.forgotten_at <> ''
   AND NOT EXISTS (SELECT 1 FROM page p WHERE p.result_id = r.id)
   AND NOT EXISTS (SELECT 1 FROM worker_job_queue q
                    WHERE q.status = 'running' AND q.document_id IS NOT NULL AND q.started_at <= r.forgotten_at)
 LIMIT :most;

-- name: unindex_results
-- One statement, for the reason given at index_results. Deleting a row that is not in the index would damage the index.
INSERT INTO page_text (page_text, rowid, text, divided_words)
SELECT 'delete', r.id, r.text, r.divided_words FROM page_result r
 WHERE r.id IN (SELECT value FROM json_each(:result_ids)) AND EXISTS (SELECT 1 FROM page_text_docsize s WHERE s.id = r.id);

-- name: forget_aliases
DELETE FROM page_alias
 WHERE result_digest IN (SELECT digest FROM page_result WHERE id IN (SELECT value FROM json_each(:result_ids)));

-- name: forget_results
DELETE FROM page_result WHERE id IN (SELECT value FROM json_each(:result_ids));

-- name: published_files
SELECT id, path, size, sha256, document_id FROM file WHERE id > :after ORDER BY id LIMIT :most;

-- name: is_published
SELECT 1 FROM file WHERE id = :file_id;

-- name: files_to_delete
-- As bytes, because a path may not be valid UTF-8.
SELECT CAST(path AS BLOB) FROM file_gone ORDER BY path LIMIT :most;

-- name: forget_deleted_file
DELETE FROM file_gone WHERE path = CAST(:path AS TEXT);
