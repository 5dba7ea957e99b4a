-- What came with a key of its own: granted once, and answered as often as it comes.

-- name: find_request
SELECT wish, at, status, answer, location FROM request WHERE key = :key;

-- name: note_request
INSERT INTO request (key, wish, at) VALUES (:key, :wish, :now) ON CONFLICT DO NOTHING RETURNING key;

-- name: answer_request
-- Where nothing was to be written for it, nobody has told of it yet.
INSERT INTO request (key, wish, at, status, answer, location) VALUES (:key, :wish, :now, :status, :answer, :location)
    ON CONFLICT (key) DO UPDATE SET status = excluded.status, answer = excluded.answer, location = excluded.location
 WHERE wish = excluded.wish AND answer IS NULL;

-- name: forget_request
DELETE FROM request WHERE key = :key AND wish = :wish AND answer IS NULL;

-- name: forget_old_requests
DELETE FROM request WHERE key IN (SELECT key FROM request WHERE at < :before ORDER BY at LIMIT 100);
