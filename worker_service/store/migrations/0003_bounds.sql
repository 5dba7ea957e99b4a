-- Bounds that rows of an earlier schema may break: such a row stays, brought into them. Of a table that is not there yet
-- nothing is done. What is only too long is cut off after this.

-- table: pagemill_schema
-- It has one row: others were never ours.
DELETE FROM pagemill_schema WHERE rowid <> (SELECT min(rowid) FROM pagemill_schema);

-- table: worker_job_queue
UPDATE worker_job_queue SET created_at = '1970-01-01 00:00:00.000' WHERE created_at < '1970';
UPDATE worker_job_queue SET run_at = '1970-01-01 00:00:00.000' WHERE run_at < '1970';
UPDATE worker_job_queue SET timeout_seconds = 31536000 WHERE timeout_seconds > 31536000;
UPDATE worker_job_queue
   SET retry_count = min(retry_count, 1000000), max_retries = min(max_retries, 1000000),
       requeue_count = min(requeue_count, 1000000)
 WHERE max(retry_count, max_retries, requeue_count) > 1000000;
UPDATE worker_job_queue SET result = json_object('too_large', length(CAST(result AS BLOB))) WHERE length(CAST(result AS BLOB)) > 16777216;

-- table: worker
-- One with such a name was never a daemon's. Jobs that it has are taken back.
DELETE FROM worker WHERE id = '' OR id GLOB '*[^ -.0-~]*' OR id GLOB '.*' OR instr(id, char(0));
UPDATE worker SET pid = 4194304 WHERE pid NOT BETWEEN 1 AND 4194304;
UPDATE worker SET cpu_slots = min(cpu_slots, 100000), io_slots = min(io_slots, 100000);
UPDATE worker SET started_at = '1970-01-01 00:00:00.000'
 WHERE started_at IS NOT strftime('%Y-%m-%d %H:%M:%f', started_at, '+0 days') OR started_at < '1970';
UPDATE worker SET heartbeat_at = '1970-01-01 00:00:00.000'
 WHERE heartbeat_at IS NOT strftime('%Y-%m-%d %H:%M:%f', heartbeat_at, '+0 days') OR heartbeat_at < '1970';

-- table: pause
DELETE FROM pause WHERE until < '1970';

-- table: source_rest
DELETE FROM source_rest WHERE until < '1970' OR source = '';

-- table: document
UPDATE document SET updated_at = '1970-01-01 00:00:00.000' WHERE updated_at < '1970';
UPDATE document SET pages = 1000000000 WHERE pages > 1000000000;
UPDATE document SET settings = '' WHERE settings <> '' AND NOT json_valid(settings) OR length(CAST(settings AS BLOB)) > 200000;

-- table: file
-- No file system has a file at such a path.
UPDATE file SET size = 1125899906842624 WHERE size > 1125899906842624;
DELETE FROM file WHERE instr(path, char(0)) OR length(CAST(path AS BLOB)) > 4096;

-- table: file_gone
DELETE FROM file_gone
 WHERE path = '' OR path GLOB '/*' OR '/' || path || '/' GLOB '*/../*' OR instr(path, char(0));

-- table: checkpoint
DELETE FROM checkpoint WHERE length(CAST(state AS BLOB)) > 33554432;

-- table: crawl
UPDATE crawl SET state = NULL WHERE length(CAST(state AS BLOB)) > 33554432;
