-- Bounds that rows of an earlier schema may break: such a row stays, brought into them. Of a table that is not there yet
-- nothing is done. A character has up to four bytes; what is unique stays so by its number.

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
UPDATE worker_job_queue SET job_type = substr(job_type, 1, 7500) WHERE length(CAST(job_type AS BLOB)) > 30000;
UPDATE worker_job_queue SET platform = substr(platform, 1, 7500) WHERE length(CAST(platform AS BLOB)) > 30000;
UPDATE worker_job_queue SET account = substr(account, 1, 7500) WHERE length(CAST(account AS BLOB)) > 30000;
UPDATE worker_job_queue SET owner = substr(owner, 1, 7500) WHERE length(CAST(owner AS BLOB)) > 30000;
UPDATE worker_job_queue SET source = substr(source, 1, 7500) WHERE length(CAST(source AS BLOB)) > 30000;
UPDATE worker_job_queue SET unique_key = substr(unique_key, 1, 7400) || ' (cut off) ' || id WHERE length(CAST(unique_key AS BLOB)) > 30000;
UPDATE worker_job_queue SET concurrency_key = substr(concurrency_key, 1, 7400) || ' (cut off) ' || id WHERE length(CAST(concurrency_key AS BLOB)) > 30000;
UPDATE worker_job_queue SET error_code = substr(error_code, 1, 25000) WHERE length(CAST(error_code AS BLOB)) > 100000;
UPDATE worker_job_queue SET error_message = substr(error_message, 1, 25000) WHERE length(CAST(error_message AS BLOB)) > 100000;
UPDATE worker_job_queue SET progress_message = substr(progress_message, 1, 25000) WHERE length(CAST(progress_message AS BLOB)) > 100000;
UPDATE worker_job_queue SET worker_id = substr(worker_id, 1, 250) WHERE length(CAST(worker_id AS BLOB)) > 1000;
UPDATE worker_job_queue SET started_at = substr(started_at, 1, 250) WHERE length(CAST(started_at AS BLOB)) > 1000;
UPDATE worker_job_queue SET heartbeat_at = substr(heartbeat_at, 1, 250) WHERE length(CAST(heartbeat_at AS BLOB)) > 1000;
UPDATE worker_job_queue SET completed_at = substr(completed_at, 1, 250) WHERE length(CAST(completed_at AS BLOB)) > 1000;
UPDATE worker_job_queue SET cancel_requested_at = substr(cancel_requested_at, 1, 250) WHERE length(CAST(cancel_requested_at AS BLOB)) > 1000;

-- table: worker_job_attempt
UPDATE worker_job_attempt SET error_code = substr(error_code, 1, 25000) WHERE length(CAST(error_code AS BLOB)) > 100000;
UPDATE worker_job_attempt SET error_message = substr(error_message, 1, 25000) WHERE length(CAST(error_message AS BLOB)) > 100000;
UPDATE worker_job_attempt SET sandbox = substr(sandbox, 1, 25000) WHERE length(CAST(sandbox AS BLOB)) > 100000;
UPDATE worker_job_attempt SET signal = substr(signal, 1, 25000) WHERE length(CAST(signal AS BLOB)) > 100000;
UPDATE worker_job_attempt SET worker_id = substr(worker_id, 1, 25000) WHERE length(CAST(worker_id AS BLOB)) > 100000;
UPDATE worker_job_attempt SET started_at = substr(started_at, 1, 25000) WHERE length(CAST(started_at AS BLOB)) > 100000;
UPDATE worker_job_attempt SET ended_at = substr(ended_at, 1, 25000) WHERE length(CAST(ended_at AS BLOB)) > 100000;

-- table: worker_job_event
UPDATE worker_job_event SET from_status = substr(from_status, 1, 250) WHERE length(CAST(from_status AS BLOB)) > 1000;
UPDATE worker_job_event SET to_status = substr(to_status, 1, 250) WHERE length(CAST(to_status AS BLOB)) > 1000;
UPDATE worker_job_event SET at = substr(at, 1, 250) WHERE length(CAST(at AS BLOB)) > 1000;

-- table: worker_job_log
UPDATE worker_job_log SET line = substr(line, 1, 25000) WHERE length(CAST(line AS BLOB)) > 100000;
UPDATE worker_job_log SET at = substr(at, 1, 25000) WHERE length(CAST(at AS BLOB)) > 100000;

-- table: worker_action
UPDATE worker_action SET at = substr(at, 1, 250) WHERE length(CAST(at AS BLOB)) > 1000;
UPDATE worker_action SET actor = substr(actor, 1, 250) WHERE length(CAST(actor AS BLOB)) > 1000;
UPDATE worker_action SET undone_at = substr(undone_at, 1, 250) WHERE length(CAST(undone_at AS BLOB)) > 1000;
UPDATE worker_action SET undone_by = substr(undone_by, 1, 250) WHERE length(CAST(undone_by AS BLOB)) > 1000;

-- table: worker_action_item
-- A delete is not undone any more: what was kept for that goes.
DELETE FROM worker_job_attempt WHERE job_id NOT IN (SELECT id FROM worker_job_queue);
DELETE FROM worker_job_event WHERE job_id NOT IN (SELECT id FROM worker_job_queue);
DELETE FROM worker_job_log WHERE job_id NOT IN (SELECT id FROM worker_job_queue);
DELETE FROM worker_job_dependency WHERE job_id NOT IN (SELECT id FROM worker_job_queue);
ALTER TABLE worker_action_item RENAME COLUMN job_id TO item_id;
ALTER TABLE worker_action_item ADD COLUMN left_as TEXT;
ALTER TABLE worker_action_item ADD COLUMN priority_before INTEGER;
UPDATE worker_action_item
   SET left_as = json_extract(after, '$.status') || ' ' || json_extract(after, '$.fence') || ' ' || json_extract(after, '$.priority'),
       priority_before = json_extract(before, '$.priority');

-- table: checkpoint
DELETE FROM checkpoint WHERE job_id NOT IN (SELECT id FROM worker_job_queue);

-- table: worker_action_document
INSERT INTO worker_action_item (action_id, item_id, before, left_as)
SELECT action_id, document_id, '{}',
       substr(json_extract(before, '$.owner') || ' ' || json_extract(before, '$.platform') || ' '
              || json_extract(before, '$.source_key') || ' ' || json_extract(before, '$.name'), 1, 20000)
  FROM worker_action_document;
DROP TABLE worker_action_document;

-- table: worker
-- One with such a name was never a daemon's. Jobs that it has are taken back.
DELETE FROM worker WHERE id = '' OR id GLOB '*[^ -.0-~]*' OR id GLOB '.*' OR instr(id, char(0)) OR length(CAST(id AS BLOB)) > 500;
UPDATE worker SET pid = 4194304 WHERE pid NOT BETWEEN 1 AND 4194304;
UPDATE worker SET cpu_slots = min(cpu_slots, 100000), io_slots = min(io_slots, 100000);
UPDATE worker SET started_at = '1970-01-01 00:00:00.000'
 WHERE started_at IS NOT strftime('%Y-%m-%d %H:%M:%f', started_at, '+0 days') OR started_at < '1970';
UPDATE worker SET heartbeat_at = '1970-01-01 00:00:00.000'
 WHERE heartbeat_at IS NOT strftime('%Y-%m-%d %H:%M:%f', heartbeat_at, '+0 days') OR heartbeat_at < '1970';
UPDATE worker SET host = substr(host, 1, 250) WHERE length(CAST(host AS BLOB)) > 1000;
UPDATE worker SET boot_id = substr(boot_id, 1, 250) WHERE length(CAST(boot_id AS BLOB)) > 1000;
UPDATE worker SET version = substr(version, 1, 250) WHERE length(CAST(version AS BLOB)) > 1000;

-- table: handler
DELETE FROM handler WHERE length(CAST(job_type AS BLOB)) > 30000;
UPDATE handler SET missing = substr(missing, 1, 7500) WHERE length(CAST(missing AS BLOB)) > 30000;

-- table: job_limit
DELETE FROM job_limit WHERE length(CAST(name AS BLOB)) > 30000;

-- table: pause
DELETE FROM pause WHERE until < '1970' OR length(CAST(name AS BLOB)) > 30000;
UPDATE pause SET since = substr(since, 1, 7500) WHERE length(CAST(since AS BLOB)) > 30000;
UPDATE pause SET reason = substr(reason, 1, 7500) WHERE length(CAST(reason AS BLOB)) > 30000;

-- table: source_rest
DELETE FROM source_rest WHERE until < '1970' OR source = '' OR length(CAST(source AS BLOB)) > 30000;
UPDATE source_rest SET reason = substr(reason, 1, 7500) WHERE length(CAST(reason AS BLOB)) > 30000;

-- table: owner_served
DELETE FROM owner_served WHERE length(CAST(owner AS BLOB)) > 30000;

-- table: document
UPDATE document SET updated_at = '1970-01-01 00:00:00.000' WHERE updated_at < '1970';
UPDATE document SET pages = 1000000000 WHERE pages > 1000000000;
UPDATE document SET settings = '' WHERE settings <> '' AND NOT json_valid(settings) OR length(CAST(settings AS BLOB)) > 200000;
UPDATE document SET owner = substr(owner, 1, 50000) WHERE length(CAST(owner AS BLOB)) > 200000;
UPDATE document SET platform = substr(platform, 1, 50000) WHERE length(CAST(platform AS BLOB)) > 200000;
UPDATE document SET source_key = substr(source_key, 1, 49900) || ' (cut off) ' || id WHERE length(CAST(source_key AS BLOB)) > 200000;
UPDATE document SET name = substr(name, 1, 50000) WHERE length(CAST(name AS BLOB)) > 200000;
UPDATE document SET content = substr(content, 1, 50000) WHERE length(CAST(content AS BLOB)) > 200000;
UPDATE document SET kind = substr(kind, 1, 50000) WHERE length(CAST(kind AS BLOB)) > 200000;
UPDATE document SET note = substr(note, 1, 50000) WHERE length(CAST(note AS BLOB)) > 200000;
UPDATE document SET error_code = substr(error_code, 1, 50000) WHERE length(CAST(error_code AS BLOB)) > 200000;
UPDATE document SET error_message = substr(error_message, 1, 50000) WHERE length(CAST(error_message AS BLOB)) > 200000;
UPDATE document SET created_at = substr(created_at, 1, 50000) WHERE length(CAST(created_at AS BLOB)) > 200000;
UPDATE document SET gone_at = substr(gone_at, 1, 50000) WHERE length(CAST(gone_at AS BLOB)) > 200000;

-- table: file
-- No file system has a file at such a path.
UPDATE file SET size = 1125899906842624 WHERE size > 1125899906842624;
DELETE FROM file WHERE instr(path, char(0)) OR length(CAST(path AS BLOB)) > 4096;
UPDATE file SET role = substr(role, 1, 7500) WHERE length(CAST(role AS BLOB)) > 30000;
UPDATE file SET name = substr(name, 1, 7500) WHERE length(CAST(name AS BLOB)) > 30000;
UPDATE file SET sha256 = substr(sha256, 1, 7500) WHERE length(CAST(sha256 AS BLOB)) > 30000;
UPDATE file SET md5 = substr(md5, 1, 7500) WHERE length(CAST(md5 AS BLOB)) > 30000;
UPDATE file SET owner = substr(owner, 1, 7500) WHERE length(CAST(owner AS BLOB)) > 30000;
UPDATE file SET created_at = substr(created_at, 1, 7500) WHERE length(CAST(created_at AS BLOB)) > 30000;

-- table: file_gone
DELETE FROM file_gone
 WHERE path = '' OR path GLOB '/*' OR '/' || path || '/' GLOB '*/../*' OR instr(path, char(0)) OR length(CAST(path AS BLOB)) > 4096;

-- table: page_result
UPDATE page_result SET digest = substr(digest, 1, 150) || ' (cut off) ' || id WHERE length(CAST(digest AS BLOB)) > 1000;
UPDATE page_result SET method = substr(method, 1, 250) WHERE length(CAST(method AS BLOB)) > 1000;
UPDATE page_result SET created_at = substr(created_at, 1, 250) WHERE length(CAST(created_at AS BLOB)) > 1000;
UPDATE page_result SET forgotten_at = substr(forgotten_at, 1, 250) WHERE length(CAST(forgotten_at AS BLOB)) > 1000;
UPDATE page_result SET text = substr(text, 1, 8388608) WHERE length(CAST(text AS BLOB)) > 33554432;

-- table: checkpoint
DELETE FROM checkpoint WHERE length(CAST(state AS BLOB)) > 33554432;

-- table: crawl
DELETE FROM crawl WHERE length(CAST(key AS BLOB)) > 30000;
UPDATE crawl SET state = NULL WHERE length(CAST(state AS BLOB)) > 33554432;
UPDATE crawl SET owner = substr(owner, 1, 7500) WHERE length(CAST(owner AS BLOB)) > 30000;
UPDATE crawl SET updated_at = substr(updated_at, 1, 7500) WHERE length(CAST(updated_at AS BLOB)) > 30000;

-- table: crawl_item
DELETE FROM crawl_item WHERE max(length(CAST(crawl AS BLOB)), length(CAST(id AS BLOB))) > 1000000;
UPDATE crawl_item SET parent_id = substr(parent_id, 1, 250000) WHERE length(CAST(parent_id AS BLOB)) > 1000000;
UPDATE crawl_item SET name = substr(name, 1, 250000) WHERE length(CAST(name AS BLOB)) > 1000000;
UPDATE crawl_item SET kind = substr(kind, 1, 250000) WHERE length(CAST(kind AS BLOB)) > 1000000;
UPDATE crawl_item SET revision = substr(revision, 1, 250000) WHERE length(CAST(revision AS BLOB)) > 1000000;
UPDATE crawl_item SET note = substr(note, 1, 250000) WHERE length(CAST(note AS BLOB)) > 1000000;
UPDATE crawl_item SET detail = substr(detail, 1, 250000) WHERE length(CAST(detail AS BLOB)) > 1000000;
UPDATE crawl_item SET seen_at = substr(seen_at, 1, 250000) WHERE length(CAST(seen_at AS BLOB)) > 1000000;
UPDATE crawl_item SET gone_at = substr(gone_at, 1, 250000) WHERE length(CAST(gone_at AS BLOB)) > 1000000;
