-- Search in pages. Only pages of the current generation are found.

-- fragment: readable
CROSS JOIN page p ON p.result_id = t.rowid
       CROSS JOIN document d ON d.id = p.document_id AND d.current_generation = p.generation

-- fragment: is_chosen
(:owner IS NULL OR d.owner = :owner)
       AND (:batch_id IS NULL
            OR EXISTS (SELECT 1 FROM batch_document b WHERE b.batch_id = :batch_id AND b.document_id = d.id))
       AND (:kind IS NULL OR d.kind = :kind)
       AND (:tags = '[]'
            OR NOT EXISTS (SELECT 1 FROM json_each(:tags) w
                            WHERE NOT EXISTS (SELECT 1 FROM document_tag t
                                               WHERE t.document_id = d.id AND t.tag = w.value)))
       AND (:since IS NULL OR d.created_at >= :since) AND (:until IS NULL OR d.created_at < :until)

-- fragment: is_sure
(:confidence_least = 0
        OR ifnull((SELECT r.confidence FROM page_result r WHERE r.id = p.result_id), 100) >= :confidence_least)

-- name: matching_pages
-- A common word may have thousands of hits. Only the newest :ranked hits are ranked; the index returns them in that
-- order.
WITH hit AS MATERIALIZED (
    SELECT t.rowid AS result_id, p.document_id, p.number, d.content, bm25(page_text) AS rank
      FROM page_text t {readable}
     WHERE page_text MATCH :query AND {is_chosen} AND {is_sure}
     ORDER BY t.rowid DESC LIMIT :ranked)
SELECT result_id, document_id, number, content, (SELECT count(*) FROM hit)
  FROM hit ORDER BY rank, document_id, number LIMIT :most;

-- name: pages_with
-- On how many pages a word occurs, counted up to :most.
SELECT count(*) FROM (SELECT 1 FROM page_text WHERE page_text MATCH :query LIMIT :most);

-- name: texts_with
SELECT text FROM page_result
 WHERE id IN (SELECT rowid FROM page_text WHERE page_text MATCH :query ORDER BY rowid DESC LIMIT :most);

-- name: newest_texts
SELECT text FROM page_result ORDER BY id DESC LIMIT :most;

-- name: is_anywhere
-- Whether one of the newest :most pages with a word belongs to a document that the filters admit.
SELECT EXISTS (SELECT 1 FROM (SELECT rowid FROM page_text WHERE page_text MATCH :query ORDER BY rowid DESC LIMIT :most) t
                {readable} WHERE {is_chosen});

-- name: similar_words
SELECT w.term FROM json_each(:words) c CROSS JOIN page_word w ON w.term = c.value ORDER BY w.doc DESC, w.term LIMIT :most;

-- name: named_documents
SELECT d.id, d.content FROM document_name n CROSS JOIN document d ON d.id = n.rowid
 WHERE document_name MATCH :query AND {is_chosen}
 ORDER BY n.rowid DESC LIMIT :most;

-- name: tagged_documents
-- Documents with a tag, whose name has the other words of the query.
SELECT d.id, d.content FROM document_tag g CROSS JOIN document d ON d.id = g.document_id
 WHERE g.tag = :found_tag AND {is_chosen}
   AND (:query = '' OR d.id IN (SELECT rowid FROM document_name WHERE document_name MATCH :query))
 ORDER BY d.id DESC LIMIT :most;

-- name: texts
-- With all words by which a page is ranked.
SELECT r.id, concat_ws(' ', r.text, r.divided_words, d.name,
                       (SELECT group_concat(g.tag, ' ') FROM document_tag g WHERE g.document_id = d.id))
  FROM json_each(:pages) w JOIN page_result r ON r.id = w.value ->> 0 JOIN document d ON d.id = w.value ->> 1;

-- name: page_text_of
SELECT id, text FROM page_result WHERE id IN (SELECT value FROM json_each(:result_ids));

-- name: last_result
SELECT max(id) FROM page_result;

-- name: matching_pages_of
-- The results of a document usually have ids close together, so only this range of the index is searched.
WITH own AS MATERIALIZED (
    SELECT p.number, p.result_id FROM document d
      JOIN page p ON p.document_id = d.id AND p.generation = d.current_generation
     WHERE d.id = :document_id AND {is_chosen} AND {is_sure})
SELECT t.rowid, :document_id, own.number, '', 0
  FROM page_text t CROSS JOIN own ON own.result_id = t.rowid
 WHERE page_text MATCH :query
   AND t.rowid BETWEEN (SELECT min(result_id) FROM own) AND (SELECT max(result_id) FROM own)
 ORDER BY bm25(page_text), own.number LIMIT :most;

-- name: found_documents
SELECT id, name, owner, kind, pages, created_at,
       (SELECT json_group_array(g.tag) FROM document_tag g WHERE g.document_id = document.id)
  FROM document WHERE id IN (SELECT value FROM json_each(:document_ids));

-- name: snippets
-- One pass over a range of the index. A query per id would collect all hits of a prefix query again for each id.
SELECT rowid, snippet(page_text, 0, :open, :close, '…', 24),
       CASE WHEN divided_words <> '' THEN highlight(page_text, 1, :open, :close) END FROM page_text
 WHERE page_text MATCH :query AND rowid BETWEEN :first AND :last
   AND +rowid IN (SELECT value FROM json_each(:result_ids));

-- name: marked_pages
WITH own AS MATERIALIZED (
    SELECT p.number, p.result_id
      FROM document d CROSS JOIN page p ON p.document_id = d.id AND p.generation = d.current_generation
     WHERE d.id = :document_id AND p.number BETWEEN :first AND :last)
SELECT own.number, highlight(page_text, 0, :open, :close), highlight(page_text, 1, :open, :close)
  FROM page_text t CROSS JOIN own ON own.result_id = t.rowid
 WHERE page_text MATCH :query
   AND t.rowid BETWEEN (SELECT min(result_id) FROM own) AND (SELECT max(result_id) FROM own);

-- name: keyword_counts
SELECT p.document_id, p.number, occurrences(page_text)
  FROM page_text t {readable}
 WHERE page_text MATCH :query AND {is_chosen};

-- name: keyword_counts_of
-- For a few documents, whose results usually have ids close together: only this range of the index is searched.
WITH own AS MATERIALIZED (
    SELECT p.document_id, p.number, p.result_id
      FROM json_each(:document_ids) w CROSS JOIN document d ON d.id = w.value
     CROSS JOIN page p ON p.document_id = d.id AND p.generation = d.current_generation)
SELECT own.document_id, own.number, occurrences(page_text)
  FROM page_text t CROSS JOIN own ON own.result_id = t.rowid
 WHERE page_text MATCH :query
   AND t.rowid BETWEEN (SELECT min(result_id) FROM own) AND (SELECT max(result_id) FROM own);
