-- Inserts jobs and document requests.

-- name: enqueue
-- The unique index decides, not an earlier query: of two producers with the same unique_key, one is refused.
INSERT INTO worker_job_queue ({new_columns})
VALUES {new_row};

-- name: enqueue_common
INSERT INTO worker_job_queue ({common_columns})
VALUES {common_row};

-- name: live_with_unique_key
SELECT id FROM worker_job_queue
 WHERE unique_key = :unique_key AND unique_key IS NOT NULL AND status IN ('pending', 'running');

-- name: add_dependency
INSERT INTO worker_job_dependency (job_id, needs_id, needs) VALUES (:job_id, :needs_id, :needs)
    ON CONFLICT DO NOTHING;


-- ── Documents ───────────────────────────────────────────────────────────────────────────────────────────────────

-- name: document_named
SELECT id, index_status, content, settings, settings_before, updated_at FROM document
 WHERE owner = :owner AND platform = :platform AND source_key = :source_key;

-- name: document_with_revision
-- The document, if this revision has been read or is being read and its original still exists.
SELECT d.content, d.name FROM document d
 WHERE d.owner = :owner AND d.platform = :platform AND d.source_key = :source_key AND d.revision = :revision
   AND d.index_status IN ('success', 'queued', 'indexing')
   AND EXISTS (SELECT 1 FROM file f WHERE f.document_id = d.id AND f.role = 'original');

-- name: set_revision
UPDATE document SET revision = :revision WHERE id = :document_id AND revision <> :revision AND :revision <> '';

-- name: add_document
INSERT INTO document (owner, platform, source_key, name, content, created_at, updated_at)
VALUES (:owner, :platform, :source_key, :name, :content, :now, :now)
RETURNING id;

-- name: next_generation
-- Raising the generation makes older work stale (P11). Page count and kind are kept only if the content is the same.
UPDATE document
   SET index_generation = index_generation + 1, index_status = 'queued', settings = :settings,
       settings_before = CASE index_status WHEN 'success' THEN settings ELSE settings_before END,
       pages = CASE WHEN :content IN ('', content) THEN pages END,
       kind = CASE WHEN :content IN ('', content) THEN kind END,
       revision = CASE WHEN :revision <> '' THEN :revision WHEN :content IN ('', content) THEN revision ELSE '' END,
       content = CASE :content WHEN '' THEN content ELSE :content END,
       name = CASE :name WHEN '' THEN name ELSE :name END,
       note = NULL, error_code = NULL, error_message = NULL, error_remedy = NULL, gone_at = NULL, updated_at = :now
 WHERE id = :document_id
RETURNING index_generation;

-- name: stop_older_work
UPDATE worker_job_queue
   SET cancel_requested_at = ifnull(cancel_requested_at, :now)
 WHERE document_id = :document_id AND generation < :generation AND status = 'running';

-- name: cancel_older_work
UPDATE worker_job_queue
   SET status = 'cancelled', held = 0, completed_at = :now, error_code = 'STALE_GENERATION',
       error_message = 'a newer generation of document ' || :document_id || ' was asked for'
 WHERE document_id = :document_id AND generation < :generation AND status = 'pending';

-- name: add_takeover_notice
INSERT INTO notice (at, kind, owner, document_id, batch_id, generation, message)
SELECT :now, 'document.taken_over', owner, id, :batch_id, index_generation,
       'work of generation ' || (index_generation - 1) || ' did not move, or was of a batch that is stopped'
  FROM document WHERE id = :document_id;

-- name: is_held_up
-- True if all live jobs of the document belong to stopped or waiting batches, and the requesting batch is neither.
SELECT EXISTS (SELECT 1 FROM worker_job_queue q JOIN batch b ON b.id = q.batch_id AND b.state IN ('stopped', 'waiting')
                WHERE q.document_id = d.id AND q.generation = d.index_generation AND q.status IN ('pending', 'running'))
       AND NOT EXISTS (SELECT 1 FROM worker_job_queue q LEFT JOIN batch b ON b.id = q.batch_id
                        WHERE q.document_id = d.id AND q.generation = d.index_generation
                          AND q.status IN ('pending', 'running') AND ifnull(b.state NOT IN ('stopped', 'waiting'), 1))
       AND NOT EXISTS (SELECT 1 FROM batch b WHERE b.id = :batch_id AND b.state IN ('stopped', 'waiting'))
  FROM document d WHERE d.id = :document_id;

-- name: rename_document
UPDATE document SET name = :name, gone_at = NULL
 WHERE id = :document_id AND (name <> :name OR gone_at IS NOT NULL) AND :name <> ''
RETURNING id;

-- name: live_work
SELECT q.id FROM document d
  JOIN worker_job_queue q ON q.document_id = d.id AND q.generation = d.index_generation
                         AND q.status IN ('pending', 'running')
 WHERE d.id = :document_id ORDER BY q.id LIMIT 1;

-- name: add_to_batch
INSERT OR IGNORE INTO batch_document (batch_id, document_id) VALUES (:batch_id, :document_id);


-- ── Deferred actions ────────────────────────────────────────────────────────────────────────────────────────────

-- name: add_deferred_action
-- A repeated request changes nothing, except that it can make the action standing.
INSERT INTO deferred_action (document_id, generation, on_end, job_type, payload, standing)
SELECT id, index_generation, :on_end, :job_type, :payload, :standing FROM document WHERE id = :document_id
    ON CONFLICT (document_id, generation, on_end, job_type, payload)
    DO UPDATE SET standing = 1 WHERE excluded.standing AND NOT standing;

-- name: copy_standing_actions
INSERT OR IGNORE INTO deferred_action (document_id, generation, on_end, job_type, payload, standing)
SELECT document_id, :generation, on_end, job_type, payload, 1 FROM deferred_action
 WHERE document_id = :document_id AND generation = :generation - 1 AND standing;

-- name: move_actions
-- Work that was taken over never ends, so its actions move to the generation that has taken it over.
UPDATE OR IGNORE deferred_action SET generation = :generation
 WHERE document_id = :document_id AND generation = :generation - 1 AND fired_at IS NULL;

-- name: add_failure_action
INSERT OR IGNORE INTO failure_action (job_id, job_type, payload) VALUES (:job_id, :job_type, :payload);

-- name: tag_like_container
-- A document from inside an archive or a mail gets the tags of the document whose job has found it.
INSERT OR IGNORE INTO document_tag (document_id, tag, owner)
SELECT d.id, t.tag, d.owner FROM document_tag t CROSS JOIN document d ON d.id = :document_id
 WHERE t.document_id = (SELECT document_id FROM worker_job_queue WHERE id = :parent_id);
