-- Notices, and the position of each reader.

-- name: newest_notice
SELECT ifnull(max(id), 0) FROM notice;

-- name: notices_after
SELECT id, at, kind, owner, job_id, document_id, batch_id, generation, code, message, remedy
  FROM notice WHERE id > :after_id ORDER BY id LIMIT :most;

-- name: prune_notices
-- The order of ids is the order of times.
DELETE FROM notice
 WHERE id IN (SELECT id FROM notice ORDER BY id LIMIT :most) AND at < :before
RETURNING id;

-- name: notice_reader
SELECT notice_id FROM notice_reader WHERE name = :name;

-- name: begin_reading_notices
-- A new reader skips all existing notices.
INSERT INTO notice_reader (name, notice_id)
SELECT :name, ifnull((SELECT max(id) FROM notice), 0)
    ON CONFLICT DO NOTHING;

-- name: advance_notice_reader
UPDATE notice_reader SET notice_id = :upto WHERE name = :name AND notice_id = :since RETURNING 1;

-- fragment: has_kind
key >= :kind || ':' AND key < :kind || ';'

-- name: episodes
SELECT key FROM notice WHERE {has_kind};

-- name: begin_episode
INSERT INTO notice (at, kind, job_id, code, message, remedy, key)
VALUES (:now, :kind, :job_id, :code, :message, :remedy, :key)
    ON CONFLICT (key) DO NOTHING;

-- name: end_episodes
-- Without its key, the notice does not prevent a new one when the episode begins again.
UPDATE notice SET key = NULL
 WHERE {has_kind} AND key NOT IN (SELECT value FROM json_each(:keys));
