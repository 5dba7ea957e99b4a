-- API tokens, one-time links and browser sessions.

-- fragment: token_columns
id, kind, name, scopes, owner, made_at, made_by, used_at, until, token_id

-- name: make_token
INSERT INTO token (kind, name, digest, scopes, owner, made_at, made_by, until, token_id)
VALUES (:kind, :name, :digest, :scopes, :owner, :now, :made_by, :until, :token_id)
    ON CONFLICT DO NOTHING
RETURNING id;

-- name: use_token
-- A link can be used once.
UPDATE token SET used_at = :now
 WHERE id = :id AND kind IN ('token', 'link') AND (until IS NULL OR until > :now) AND (kind = 'token' OR used_at IS NULL)
RETURNING id;

-- name: find_token
SELECT {token_columns}, digest FROM token WHERE id = :id;

-- name: tokens
SELECT {token_columns} FROM token ORDER BY id;

-- name: remove_tokens
DELETE FROM token
 WHERE id IN (SELECT value FROM json_each(:ids)) OR token_id IN (SELECT value FROM json_each(:ids))
RETURNING id, kind, name, scopes, owner;

-- name: note_use_of_token
UPDATE token SET used_at = :at WHERE id = :id AND (used_at IS NULL OR used_at < :at);

-- name: forget_ended_tokens
-- A used link is kept until it expires, because it shows how a session was created.
DELETE FROM token WHERE kind <> 'token' AND until <= :now RETURNING id;
