-- Effects of a completion besides the job's status.

-- fragment: parent_columns
-- The fields of `ParentJob`. A removed batch counts as none.
q.id, q.document_id, q.generation, q.owner, q.platform, q.name, (SELECT b.id FROM batch b WHERE b.id = q.batch_id), q.priority

-- name: parent_job
SELECT {parent_columns} FROM worker_job_queue q WHERE q.id = :job_id;

-- name: save_document_facts
UPDATE document
   SET kind = ifnull(:kind, kind), pages = ifnull(:pages, pages), content = ifnull(:content, content),
       note = ifnull(:note, note), is_locked = ifnull(:is_locked, is_locked), updated_at = :now
 WHERE id = :document_id;

-- name: touch_document
UPDATE document SET updated_at = :now WHERE id = :document_id AND index_generation = :generation;

-- name: add_file
INSERT INTO file (job_id, fence, document_id, role, name, path, size, sha256, md5, note, owner, created_at)
VALUES (:job_id, :fence, :document_id, :role, :name, :path, :size, :sha256, :md5, :note, :owner, :now);

-- name: add_file_again
-- The note is not copied, because it says how the other file was fetched.
INSERT INTO file (job_id, fence, document_id, role, name, path, size, sha256, md5, owner, created_at)
SELECT :job_id, :fence, :document_id, CASE :role WHEN '' THEN f.role ELSE :role END,
       CASE :name WHEN '' THEN f.name ELSE :name END, f.path, f.size, f.sha256, f.md5, :owner, :now
  FROM file f WHERE f.id = :file_id
RETURNING id;

-- name: assign_originals
-- Assigns the original that was just published to its document, and any content if :content is empty. The publisher is
-- a download, which has no document of its own, or a job that has found the file inside its own document.
UPDATE file SET document_id = :document_id, role = 'original'
 WHERE job_id = :job_id AND fence = :fence AND (role = 'inside' OR (document_id IS NULL AND role <> ''))
   AND (:content = '' OR sha256 = :content)
RETURNING id;

-- name: forget_older_files
-- Deletes files that only an earlier generation has made. Otherwise they would be listed as files of this generation.
DELETE FROM file
 WHERE document_id = :document_id AND role NOT IN ('', 'original')
   AND EXISTS (SELECT 1 FROM document d WHERE d.id = :document_id AND d.current_generation IS NOT :generation)
   AND NOT EXISTS (SELECT 1 FROM worker_job_queue q WHERE q.id = file.job_id AND q.generation = :generation)
RETURNING CAST(path AS BLOB);

-- name: mark_files_gone
INSERT OR IGNORE INTO file_gone (path)
SELECT w.value FROM json_each(:paths) w WHERE NOT EXISTS (SELECT 1 FROM file f WHERE f.path = w.value);

-- name: unmark_files_gone
DELETE FROM file_gone WHERE path IN (SELECT path FROM file WHERE job_id = :job_id AND fence = :fence);

-- name: mark_workspace_link_due
INSERT OR IGNORE INTO link_due (document_id) VALUES (:document_id);

-- name: mark_workspace_links_due_after_moves
-- Marks all documents (0) if one of these items was moved or renamed: it may be a folder. CROSS JOIN, so that each
-- place is looked up by key: the planner knows nothing of json_each and would walk the whole crawl for it.
INSERT OR IGNORE INTO link_due (document_id)
SELECT 0 WHERE EXISTS (SELECT 1 FROM json_each(:places) w
                   CROSS JOIN crawl_item i ON i.crawl = :crawl AND i.id = w.value ->> 0
                        WHERE i.name <> w.value ->> 1 OR i.parent_id <> w.value ->> 2);

-- name: forget_checkpoints
DELETE FROM checkpoint WHERE job_id IN (SELECT value FROM json_each(:job_ids));

-- name: publish
-- P5, P11: the pages were written ahead. This statement makes them visible to readers.
UPDATE document
   SET current_generation = :generation, index_status = 'success', error_code = NULL, error_message = NULL,
       error_remedy = NULL, updated_at = :now
 WHERE id = :document_id AND index_generation = :generation
RETURNING id;

-- name: fail_document_without_publisher
-- Fails a document if the last live job of its newest generation has completed without publishing it.
UPDATE document
   SET index_status = 'failed', updated_at = :now,
       error_code = coalesce((SELECT e.error_code FROM v_document_error e WHERE e.document_id = document.id LIMIT 1),
                             CASE WHEN :skipped IS NULL THEN 'NOT_PUBLISHED' ELSE 'SKIPPED' END),
       error_message = coalesce((SELECT e.error_message FROM v_document_error e WHERE e.document_id = document.id LIMIT 1),
                                :skipped, 'job ' || :job_id || ' has completed, and no job is left that would publish the document'),
       error_remedy = (SELECT e.error_remedy FROM v_document_error e WHERE e.document_id = document.id LIMIT 1)
 WHERE id = :document_id AND index_generation = :generation AND index_status IN ('queued', 'indexing')
   AND NOT EXISTS (SELECT 1 FROM worker_job_queue q
                    WHERE q.document_id = :document_id AND q.generation = :generation
                      AND q.status IN ('pending', 'running'))
RETURNING id;

-- name: cancel_jobs_of_gone_item
-- Cancels pending jobs for an item that has disappeared. Ids may contain colons, so the key prefix is not exact; the
-- source_key is. The first condition on status lets SQLite use the partial index.
UPDATE worker_job_queue
   SET status = 'cancelled', held = 0, completed_at = :now, cancel_requested_at = :now, error_code = 'SOURCE_GONE',
       error_message = 'the file is no longer where the crawl found it'
 WHERE unique_key >= :first AND unique_key < :beyond AND unique_key IS NOT NULL AND status IN ('pending', 'running')
   AND status = 'pending' AND platform = :platform AND owner = :owner AND source_key = :id;
