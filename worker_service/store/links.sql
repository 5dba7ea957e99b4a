-- Links in the workspace to documents' files.

-- name: links_due
SELECT document_id FROM link_due ORDER BY document_id LIMIT :most;

-- name: forget_link_due
DELETE FROM link_due WHERE document_id = :document_id;

-- name: document_ids
SELECT id FROM document WHERE id > :after
 UNION
SELECT document_id FROM link WHERE document_id > :after
 ORDER BY 1 LIMIT :most;

-- name: link_facts
SELECT owner, name, source_key FROM document WHERE id = :document_id;

-- name: crawled_folders
-- Outermost folder first. The depth limit ends the recursion if a folder contains itself.
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
-- A link of another document with this path, or a link inside a folder with this path.
SELECT 1 FROM link
 WHERE (folded = :folded AND document_id <> :document_id)
    OR (folded > :folded || '/' AND folded < :folded || '0')
 LIMIT 1;

-- name: is_link
SELECT 1 FROM link WHERE folded = :folded;

-- name: mark_links_for_removal
UPDATE link SET target = '' WHERE document_id = :document_id;

-- name: save_link
INSERT INTO link (path, folded, document_id, target) VALUES (:path, :folded, :document_id, :target)
    ON CONFLICT (folded) DO UPDATE SET path = excluded.path, target = excluded.target;

-- name: forget_marked_links
DELETE FROM link WHERE document_id = :document_id AND target = '';
