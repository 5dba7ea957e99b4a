-- Vectors of pages, by which pages with a similar meaning are found.

-- name: documents_to_embed
-- Documents whose current generation has no complete set of vectors of this model.
SELECT d.id, d.current_generation FROM document d
 WHERE d.current_generation IS NOT NULL
   AND NOT EXISTS (SELECT 1 FROM document_embedding e
                    WHERE e.document_id = d.id AND e.model = :model AND e.generation = d.current_generation)
 ORDER BY d.id LIMIT :most;

-- name: is_embedding_job
SELECT 1 FROM worker_job_queue
 WHERE id = :job_id AND fence = :fence AND worker_id = :worker_id AND job_type = 'embed' AND owner = ''
   AND status = 'running' AND cancel_requested_at IS NULL;

-- name: pages_to_embed
SELECT DISTINCT r.digest, r.text
  FROM json_each(:documents) w
 CROSS JOIN page p ON p.document_id = w.value ->> 0 AND p.generation = w.value ->> 1
 CROSS JOIN page_result r ON r.id = p.result_id
 WHERE NOT EXISTS (SELECT 1 FROM page_embedding e WHERE e.model = :model AND e.result_id = r.id)
 LIMIT :most;

-- name: save_embedding
-- Only for pages that people read at this moment: an old generation leaves nothing.
INSERT INTO page_embedding (model, result_id, vectors)
SELECT :model, r.id, :vectors FROM page_result r
 WHERE r.digest = :digest
   AND EXISTS (SELECT 1 FROM page p JOIN document d ON d.id = p.document_id AND d.current_generation = p.generation
                WHERE p.result_id = r.id)
    ON CONFLICT DO NOTHING;

-- name: documents_embedded
-- Of these documents and generations, those that are current and complete.
INSERT INTO document_embedding (document_id, model, generation)
SELECT d.id, :model, d.current_generation
  FROM json_each(:documents) w JOIN document d ON d.id = w.value ->> 0 AND d.current_generation = w.value ->> 1
 WHERE NOT EXISTS (SELECT 1 FROM page p
                    WHERE p.document_id = d.id AND p.generation = d.current_generation
                      AND NOT EXISTS (SELECT 1 FROM page_embedding e
                                       WHERE e.model = :model AND e.result_id = p.result_id))
    ON CONFLICT DO UPDATE SET generation = excluded.generation;

-- name: embedding_job
-- A job that will do the work, or one that failed a short time ago.
SELECT 1 FROM worker_job_queue
 WHERE job_type = 'embed' AND (status IN ('pending', 'running') OR (status = 'failed' AND completed_at > :failed_after));

-- name: use_embeddings
INSERT INTO embedding_model (id, model) VALUES (1, :model)
    ON CONFLICT DO UPDATE SET model = excluded.model WHERE model <> excluded.model
RETURNING model;

-- name: embedding_model
SELECT model FROM embedding_model;

-- name: forget_embeddings
DELETE FROM page_embedding WHERE id IN (SELECT id FROM page_embedding WHERE model <> :model LIMIT :most) RETURNING id;

-- name: forget_embedded
DELETE FROM document_embedding WHERE model <> :model OR document_id NOT IN (SELECT id FROM document);

-- name: count_embeddings
SELECT count(*) FROM page_embedding WHERE model = :model;

-- name: embeddings_after
SELECT id, result_id, vectors FROM page_embedding WHERE model = :model AND id > :after ORDER BY id;

-- name: embeddings_of
SELECT result_id, vectors FROM page_embedding
 WHERE model = :model AND result_id IN (SELECT value FROM json_each(:result_ids));

-- name: visible_results
SELECT group_concat(p.result_id) FROM document d JOIN page p ON p.document_id = d.id AND p.generation = d.current_generation
 WHERE {is_chosen} AND (:document_id IS NULL OR d.id = :document_id) AND {is_sure};

-- name: visible_of_results
SELECT w.value FROM json_each(:result_ids) w
 WHERE EXISTS (SELECT 1 FROM page p CROSS JOIN document d ON d.id = p.document_id AND d.current_generation = p.generation
                WHERE p.result_id = w.value AND {is_chosen} AND (:document_id IS NULL OR d.id = :document_id) AND {is_sure})
 ORDER BY w.key;

-- name: matches_of_results
SELECT p.result_id, p.document_id, p.number, d.content
  FROM json_each(:result_ids) w CROSS JOIN page p ON p.result_id = w.value
 CROSS JOIN document d ON d.id = p.document_id AND d.current_generation = p.generation
 WHERE {is_chosen} AND (:document_id IS NULL OR d.id = :document_id)
 ORDER BY w.key, p.document_id, p.number;
