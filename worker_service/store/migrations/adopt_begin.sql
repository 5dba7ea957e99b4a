-- The old table is kept under another name, so that no data is lost.
ALTER TABLE worker_job_queue RENAME TO worker_job_queue_before_pagemill;
DROP INDEX IF EXISTS idx_job_queue_status;
DROP INDEX IF EXISTS idx_job_queue_priority;
DROP INDEX IF EXISTS idx_job_queue_platform;
