-- Requests with an Idempotency-Key, and their stored responses.

-- name: find_request
SELECT wish, at, status, answer, location FROM request WHERE key = :key;

-- name: note_request
INSERT INTO request (key, wish, at) VALUES (:key, :wish, :now) ON CONFLICT DO NOTHING RETURNING 1;

-- name: answer_request
-- Inserts the row if the request itself has written nothing.
INSERT INTO request (key, wish, at, status, answer, location) VALUES (:key, :wish, :now, :status, :answer, :location)
    ON CONFLICT (key) DO UPDATE SET status = excluded.status, answer = excluded.answer, location = excluded.location
 WHERE wish = excluded.wish AND answer IS NULL;

-- name: forget_request
DELETE FROM request WHERE key = :key AND wish = :wish AND answer IS NULL;

-- name: forget_old_requests
DELETE FROM request WHERE key IN (SELECT key FROM request WHERE at < :before ORDER BY at LIMIT 100);
