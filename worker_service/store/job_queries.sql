-- Queries over jobs.

-- name: get
SELECT {job_columns} FROM worker_job_queue WHERE id = :job_id;

-- name: family
WITH RECURSIVE family(id) AS (
    SELECT value FROM json_each(:ids)
     UNION
    SELECT q.id FROM family CROSS JOIN worker_job_queue q ON q.parent_id = family.id AND q.parent_id IS NOT NULL
)
SELECT id FROM family ORDER BY id;

-- name: waits_for
SELECT needs_id, ifnull(needs_status, 'gone')
  FROM v_waits LEFT JOIN worker_job_queue n ON n.id = needs_id
 WHERE job_id = :job_id AND (:owner IS NULL OR n.owner = :owner)
 ORDER BY needs_id;

-- name: pauses
SELECT scope, name, since, until, reason FROM pause WHERE until IS NULL OR until > :now ORDER BY scope, name;

-- name: database_id
SELECT min(created_at) FROM pagemill_schema;

-- name: time_limit
SELECT coalesce(q.timeout_seconds, h.timeout_seconds)
  FROM worker_job_queue q LEFT JOIN handler h ON h.worker_id = q.worker_id AND h.job_type = q.job_type
 WHERE q.id = :job_id;

-- name: failures
-- Newest first. `id` is the order in which items first failed.
SELECT f.id, f.job_id, ifnull(d.name, '')
  FROM failure f CROSS JOIN worker_job_queue q ON q.id = f.job_id LEFT JOIN document d ON d.id = q.document_id
 WHERE (:owner IS NULL OR f.owner = :owner) AND (:code IS NULL OR f.code = :code) AND f.id < :before_id
   AND (:batch_id IS NULL OR q.batch_id = :batch_id)
 ORDER BY f.id DESC LIMIT :most;

-- name: failing_jobs
SELECT job_id FROM failure
 WHERE (:owner IS NULL OR owner = :owner) AND (:code IS NULL OR code = :code)
   AND (:ids IS NULL OR job_id IN (SELECT value FROM json_each(:ids)))
 ORDER BY job_id;

-- name: failed_jobs_of_same_documents
-- These jobs, and the other failed jobs of their documents.
SELECT value FROM json_each(:ids)
 UNION
SELECT q.id FROM json_each(:ids) w CROSS JOIN worker_job_queue f NOT INDEXED ON f.id = w.value
 CROSS JOIN worker_job_queue q INDEXED BY job_by_document
    ON q.document_id = f.document_id AND q.generation = f.generation AND q.document_id IS NOT NULL
 WHERE q.status = 'failed' AND q.error_code IS NOT 'DEPENDENCY_FAILED';

-- name: count_failures
SELECT code, count(*) FROM failure WHERE :owner IS NULL OR owner = :owner GROUP BY code ORDER BY 2 DESC, 1;

-- name: newest_id
SELECT ifnull(max(id), 0) FROM worker_job_queue;

-- name: documents_failing
SELECT DISTINCT d.id FROM json_each(:job_ids) w
 CROSS JOIN worker_job_queue q NOT INDEXED ON q.id = w.value
 CROSS JOIN document d ON d.id = q.document_id AND d.index_generation = q.generation
 WHERE d.index_status IN ('queued', 'indexing') ORDER BY d.id;
