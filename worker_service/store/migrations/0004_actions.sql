-- What an undo needs to know of an action is less: how it left each job, and which priority it had before.

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
