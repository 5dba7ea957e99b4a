-- Tags of documents, and their actions.

-- name: untag_documents
DELETE FROM document_tag
 WHERE document_id IN (SELECT value FROM json_each(:document_ids)) AND tag IN (SELECT value FROM json_each(:tags))
RETURNING document_id;

-- name: tag_counts
SELECT tag, count(*) FROM document_tag GROUP BY tag ORDER BY tag;

-- name: tag_counts_of_owner
SELECT tag, count(*) FROM document_tag WHERE owner = :owner GROUP BY tag ORDER BY tag;

-- name: tag_names
-- Seeks from tag to tag in the index instead of reading all rows.
WITH RECURSIVE found(tag) AS (
    SELECT min(tag) FROM document_tag
     UNION ALL
    SELECT (SELECT min(t.tag) FROM document_tag t WHERE t.tag > found.tag) FROM found WHERE found.tag IS NOT NULL)
SELECT tag FROM found WHERE tag IS NOT NULL LIMIT :most;

-- name: tag_names_of_owner
WITH RECURSIVE found(tag) AS (
    SELECT min(tag) FROM document_tag WHERE owner = :owner
     UNION ALL
    SELECT (SELECT min(t.tag) FROM document_tag t WHERE t.owner = :owner AND t.tag > found.tag)
      FROM found WHERE found.tag IS NOT NULL)
SELECT tag FROM found WHERE tag IS NOT NULL LIMIT :most;

-- name: add_tag_action
INSERT OR IGNORE INTO tag_action (tag, owner, on_end, job_type, payload)
VALUES (:tag, :owner, :on_end, :job_type, :payload)
RETURNING 1;

-- name: remove_tag_action
DELETE FROM tag_action
 WHERE tag = :tag AND owner = :owner AND on_end = :on_end AND job_type = :job_type AND payload = :payload
RETURNING 1;

-- name: tag_actions
SELECT job_type, payload, on_end, tag, owner FROM tag_action
 WHERE :owner IS NULL OR owner = :owner
 ORDER BY tag, owner, job_type, payload;
