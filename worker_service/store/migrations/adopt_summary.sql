-- One sentence for each kind of change made to the rows of the original table.
WITH row AS (
    SELECT o.priority AS old_priority, o.created_at AS old_created_at, o.status AS old_status, q.*
      FROM worker_job_queue_before_pagemill o JOIN worker_job_queue q USING (id)
), change (count, sentence) AS (
    SELECT sum(old_status = 'running'), 'of them were running and are pending again' FROM row
    UNION ALL
    SELECT sum(error_code = 'PAYLOAD_INVALID'),
           'of them ended failed (PAYLOAD_INVALID): what stood in the payload is not JSON, and is kept' FROM row
    UNION ALL
    SELECT sum(error_code = 'STATUS_UNKNOWN'),
           'of them ended failed (STATUS_UNKNOWN): what stood in status is kept in error_message' FROM row
    UNION ALL
    SELECT sum(old_priority IS NOT NULL AND priority IS NOT old_priority), 'priorities were brought to 1 to 10' FROM row
    UNION ALL
    SELECT sum(old_created_at IS NOT NULL AND strftime('%s', old_created_at) IS NULL),
           'of them had no valid created_at, which is now' FROM row
)
SELECT 'adopt the original worker_job_queue: ' || (SELECT count(*) FROM row) || ' rows'
UNION ALL
SELECT count || ' ' || sentence FROM change WHERE count > 0;
