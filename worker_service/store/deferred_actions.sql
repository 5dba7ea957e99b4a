-- Inserts the jobs that follow the end of a document, a failed job or a batch.

-- fragment: its_end
CASE d.index_status WHEN 'success' THEN 'success' WHEN 'failed' THEN 'failure' END

-- name: tag_documents
INSERT OR IGNORE INTO document_tag (document_id, tag)
SELECT d.id, t.value FROM json_each(:document_ids) w CROSS JOIN document d ON d.id = w.value CROSS JOIN json_each(:tags) t
RETURNING document_id, tag;

-- name: tags_of_documents
SELECT document_id, tag FROM document_tag WHERE document_id IN (SELECT value FROM json_each(:document_ids));

-- name: actions_of_tags
-- Requests the actions of each pair [document, tag]; a repeated request for a generation changes nothing.
INSERT OR IGNORE INTO deferred_action (document_id, generation, on_end, job_type, payload)
SELECT d.id, d.index_generation, r.on_end, r.job_type, r.payload
  FROM json_each(:pairs) w CROSS JOIN document d ON d.id = json_extract(w.value, '$[0]')
 CROSS JOIN tag_action r ON r.tag = json_extract(w.value, '$[1]') AND r.owner IN ('', d.owner) AND r.on_end = {its_end};

-- name: actions_due
SELECT a.id, a.job_type, a.payload, d.id, d.owner, d.name, d.index_status, d.error_code, d.index_generation,
       q.id, (SELECT b.id FROM batch b WHERE b.id = q.batch_id), q.priority
  FROM json_each(:document_ids) w CROSS JOIN document d ON d.id = w.value
 CROSS JOIN deferred_action a ON a.document_id = d.id AND a.generation = d.index_generation AND a.on_end = {its_end}
  LEFT JOIN worker_job_queue q ON q.id = (SELECT max(n.id) FROM worker_job_queue n
                                           WHERE n.document_id = d.id AND n.generation = d.index_generation)
 WHERE a.fired_at IS NULL
 ORDER BY a.id;

-- name: action_fired
UPDATE deferred_action SET fired_at = :now, job_id = :job_id WHERE id = :action_id;

-- name: actions_of_failure
UPDATE failure_action SET fired_fence = q.fence
  FROM worker_job_queue q
 WHERE q.id = :job_id AND q.status = 'failed'
   AND failure_action.job_id = :job_id AND failure_action.fired_fence IS NOT q.fence
RETURNING CAST(job_type AS BLOB), CAST(payload AS BLOB);

-- name: failed_job
SELECT owner, name, error_code, (SELECT b.id FROM batch b WHERE b.id = q.batch_id), priority
  FROM worker_job_queue q WHERE id = :job_id;

-- name: tell_of_action
INSERT INTO notice (at, kind, owner, job_id, document_id, batch_id, code)
VALUES (:now, 'action.fired', :owner, :job_id, :document_id, :batch_id, :code);
