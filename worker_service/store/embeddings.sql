-- Vectors of passages, by which pages with a similar meaning are found.

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
SELECT p.number, r.digest, r.text, r.method, r.confidence, r.layout
  FROM document d
 CROSS JOIN page p ON p.document_id = d.id AND p.generation = d.current_generation
 CROSS JOIN page_result r ON r.id = p.result_id
 WHERE d.id = :document_id AND d.current_generation = :generation AND p.number > :after
 ORDER BY p.number LIMIT :most;

-- name: digests_with_vectors
SELECT digest FROM passage_embedding WHERE model = :model AND digest IN (SELECT value FROM json_each(:digests));

-- name: save_vectors
-- Only for the current generation, because vectors of an older one would never be deleted.
INSERT INTO passage_embedding (model, digest, vectors)
SELECT :model, :digest, :vectors FROM document WHERE id = :document_id AND current_generation = :generation
    ON CONFLICT DO NOTHING;

-- name: save_passages
INSERT INTO passage (embedding_id, document_id, generation, number, page, words_before)
SELECT e.id, d.id, d.current_generation, w.value ->> 0, w.value ->> 2, w.value ->> 3
  FROM json_each(:passages) w
  JOIN document d ON d.id = :document_id AND d.current_generation = :generation
  JOIN passage_embedding e ON e.model = :model AND e.digest = w.value ->> 1
 WHERE true
    ON CONFLICT DO NOTHING;

-- name: document_embedded
-- Records that the document is complete if all of its :total passages have vectors: a vector shared with another
-- document may have been deleted meanwhile.
INSERT INTO document_embedding (document_id, model, generation)
SELECT d.id, :model, d.current_generation FROM document d
 WHERE d.id = :document_id AND d.current_generation = :generation
   AND (SELECT count(DISTINCT p.number) FROM passage p JOIN passage_embedding e ON e.id = p.embedding_id AND e.model = :model
         WHERE p.document_id = d.id AND p.generation = d.current_generation) = :total
    ON CONFLICT DO UPDATE SET generation = excluded.generation;

-- name: forget_passages
-- Deletes passages of earlier generations, and the passages of an incomplete set of vectors.
DELETE FROM passage
 WHERE document_id = :document_id
   AND (generation <> (SELECT d.current_generation FROM document d WHERE d.id = :document_id)
        OR (EXISTS (SELECT 1 FROM passage_embedding e WHERE e.id = passage.embedding_id AND e.model = :model)
            AND NOT EXISTS (SELECT 1 FROM document_embedding m
                             WHERE m.document_id = passage.document_id AND m.model = :model
                               AND m.generation = passage.generation)));

-- name: embedding_job
-- A live job, or one that has failed since :failed_after.
SELECT 1 FROM worker_job_queue
 WHERE job_type = 'embed' AND (status IN ('pending', 'running') OR (status = 'failed' AND completed_at > :failed_after));

-- name: use_embeddings
INSERT INTO embedding_model (id, model) VALUES (1, :model)
    ON CONFLICT DO UPDATE SET model = excluded.model WHERE model <> excluded.model
RETURNING model;

-- name: embedding_model
SELECT model FROM embedding_model;

-- name: forget_embeddings
-- A trigger deletes the vectors of deleted passages.
DELETE FROM passage
 WHERE embedding_id IN (SELECT id FROM passage_embedding WHERE model < :model OR model > :model LIMIT :most)
RETURNING number;

-- name: forget_embedded
DELETE FROM document_embedding WHERE model <> :model;

-- name: count_embeddings
SELECT count(*) FROM passage_embedding WHERE model = :model;

-- name: embeddings_after
SELECT id, vectors FROM passage_embedding WHERE model = :model AND id > :after ORDER BY id;

-- name: vectors_of
SELECT id, vectors FROM passage_embedding WHERE id IN (SELECT value FROM json_each(:ids));

-- name: embeddings_on_pages
SELECT s.embedding_id FROM page p
  JOIN document d ON d.id = p.document_id AND d.current_generation = p.generation
  JOIN passage s ON s.document_id = p.document_id AND s.generation = p.generation AND s.page = p.number
 WHERE p.result_id IN (SELECT value FROM json_each(:result_ids));

-- fragment: passage_on_page
passage s
 CROSS JOIN document d ON d.id = s.document_id AND d.current_generation = s.generation
 CROSS JOIN page p ON p.document_id = s.document_id AND p.generation = s.generation AND p.number = s.page

-- fragment: is_visible
{is_chosen} AND (:document_id IS NULL OR d.id = :document_id) AND {is_sure}

-- name: visible_embeddings
SELECT group_concat(s.embedding_id) FROM document d
 CROSS JOIN passage s ON s.document_id = d.id AND s.generation = d.current_generation
 CROSS JOIN page p ON p.document_id = s.document_id AND p.generation = s.generation AND p.number = s.page
 WHERE {is_visible};

-- name: visible_of
SELECT w.value FROM json_each(:ids) w
 WHERE EXISTS (SELECT 1 FROM {passage_on_page} WHERE s.embedding_id = w.value AND {is_visible})
 ORDER BY w.key;

-- name: matches_of
-- `places` has pairs [passage, word in it]. Returns the page on which this word is.
SELECT p.result_id, p.document_id, p.number, d.content
  FROM json_each(:places) w CROSS JOIN {passage_on_page}
 WHERE s.embedding_id = w.value ->> 0 AND {is_visible}
   AND s.words_before = (SELECT max(o.words_before) FROM passage o
                          WHERE o.embedding_id = s.embedding_id AND o.document_id = s.document_id
                            AND o.generation = s.generation AND o.number = s.number
                            AND o.words_before <= w.value ->> 1)
 ORDER BY w.key, p.document_id, p.number;
