-- Copies every row of the original table, with its id, into the current one. Values out of range are corrected. A row
-- that cannot be interpreted becomes a failed job with an error code; its text is kept in the payload.
CREATE TEMP VIEW adopted AS
SELECT o.id,
       ifnull(nullif(substr(CAST(o.job_type AS TEXT), 1, 7500), ''), 'unknown') AS job_type,
       substr(ifnull(CAST(o.platform AS TEXT), ''), 1, 7500) AS platform,
       substr(CAST(o.account AS TEXT), 1, 7500) AS account,
       max(1, min(10, CAST(ifnull(o.priority, 5) AS INTEGER))) AS priority,
       CASE WHEN NOT json_valid(o.given) THEN json_object('unreadable', o.given)
            ELSE o.given END AS payload,
       CASE WHEN o.status IN ('completed', 'failed', 'cancelled') THEN o.status
            WHEN NOT json_valid(o.given) THEN 'failed'
            WHEN ifnull(o.status, 'pending') IN ('pending', 'running') THEN 'pending'
            ELSE 'failed' END AS status,
       CASE WHEN o.status IN ('completed', 'cancelled') THEN NULL
            WHEN NOT json_valid(o.given) THEN 'PAYLOAD_INVALID'
            WHEN o.status = 'failed' THEN 'FAILED_BEFORE_PAGEMILL'
            WHEN ifnull(o.status, 'pending') NOT IN ('pending', 'running') THEN 'STATUS_UNKNOWN' END AS error_code,
       substr(CASE WHEN ifnull(o.status, 'pending') NOT IN ('pending', 'running', 'completed', 'failed', 'cancelled')
                   THEN ifnull(CAST(o.error_message AS TEXT) || '; ', '') || 'its status was ' || o.status
                   ELSE CAST(o.error_message AS TEXT) END, 1, 25000) AS error_message,
       max(0, min(1000000, CAST(ifnull(o.retry_count, 0) AS INTEGER))) AS retry_count,
       max(0, min(1000000, CAST(ifnull(o.max_retries, 3) AS INTEGER))) AS max_retries,
       -- A job that was running counts as requeued once, because its worker is gone.
       (ifnull(o.status, '') = 'running') AS requeue_count,
       max(ifnull(strftime('%Y-%m-%d %H:%M:%f', o.created_at, '+0 days'), strftime('%Y-%m-%d %H:%M:%f', 'now')),
           '1970-01-01 00:00:00.000') AS created_at,
       strftime('%Y-%m-%d %H:%M:%f', o.started_at, '+0 days') AS started_at,
       ifnull(strftime('%Y-%m-%d %H:%M:%f', o.completed_at, '+0 days'), strftime('%Y-%m-%d %H:%M:%f', 'now')) AS completed_at,
       substr(CAST(o.worker_id AS TEXT), 1, 250) AS worker_id,
       max(0, min(100, CAST(ifnull(o.progress_percent, 0) AS INTEGER))) AS progress_percent,
       substr(CAST(o.progress_message AS TEXT), 1, 25000) AS progress_message
  FROM (SELECT *, nullif(CAST(payload AS TEXT), '') AS given FROM worker_job_queue_before_pagemill) o;

INSERT INTO worker_job_queue
       (id, job_type, platform, account, priority, payload, status, error_code, error_message, retry_count, max_retries,
        requeue_count, created_at, started_at, completed_at, worker_id, progress_percent, progress_message)
SELECT id, job_type, platform, account, priority, payload, status, error_code, error_message,
       retry_count, max(max_retries, retry_count), requeue_count, created_at,
       CASE WHEN status <> 'pending' THEN started_at END, CASE WHEN status <> 'pending' THEN completed_at END,
       CASE WHEN status <> 'pending' THEN worker_id END,
       CASE WHEN status <> 'pending' THEN progress_percent ELSE 0 END, progress_message
  FROM adopted;

-- Ids are never reused, including those of deleted rows.
UPDATE sqlite_sequence
   SET seq = max(seq, (SELECT seq FROM sqlite_sequence WHERE name = 'worker_job_queue_before_pagemill'))
 WHERE name = 'worker_job_queue'
   AND EXISTS (SELECT 1 FROM sqlite_sequence WHERE name = 'worker_job_queue_before_pagemill');
INSERT INTO sqlite_sequence (name, seq)
SELECT 'worker_job_queue', seq FROM sqlite_sequence
 WHERE name = 'worker_job_queue_before_pagemill'
   AND NOT EXISTS (SELECT 1 FROM sqlite_sequence WHERE name = 'worker_job_queue');

DROP VIEW adopted;
