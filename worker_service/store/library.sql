-- Documents, pages and files. Only pages of the current generation are shown.

-- name: actions_of
SELECT job_type, payload, on_end, standing, document_id, generation, fired_at, job_id FROM deferred_action
 WHERE document_id = :document_id ORDER BY generation DESC, id;

-- name: documents_begin
-- library.py appends the condition.
SELECT d.id, d.owner, d.platform, d.source_key, d.name, d.content, d.kind, d.pages, d.index_status, v.state, v.percent,
       d.index_generation, d.current_generation, d.settings,
       nullif(concat_ws('; ', d.note, (SELECT nullif(f.note, '') FROM file f
                                        WHERE f.document_id = d.id AND f.role = 'original' ORDER BY f.id DESC LIMIT 1)),
              ''),
       d.error_code, d.error_message, d.error_remedy, d.created_at, d.updated_at, d.gone_at,
       ifnull((SELECT f.size FROM file f WHERE f.document_id = d.id AND f.role = 'original' ORDER BY f.id DESC LIMIT 1), 0),
       d.is_locked, (SELECT json_group_array(t.tag) FROM document_tag t WHERE t.document_id = d.id)
  FROM document d CROSS JOIN v_documents v ON v.id = d.id WHERE

-- name: provenance
-- The newest original, and the time when the newest derived file was published.
SELECT d.id, o.size, ifnull(nullif(o.sha256, ''), d.content), ifnull(o.md5, ''),
       CASE WHEN d.current_generation IS NOT NULL
            THEN ifnull((SELECT max(f.created_at) FROM file f
                          WHERE f.document_id = d.id AND f.role NOT IN ('', 'original')), d.updated_at) END
  FROM json_each(:ids) w CROSS JOIN document d ON d.id = w.value
  LEFT JOIN file o ON o.id = (SELECT max(f.id) FROM file f WHERE f.document_id = d.id AND f.role = 'original');

-- name: not_brought_in
-- The last job of each source, if it has failed and the source has no document that was updated since.
SELECT {job_columns} FROM worker_job_queue q INDEXED BY job_not_brought_in
 WHERE q.status = 'failed' AND q.source_key IS NOT NULL AND q.document_id IS NULL
   AND (:owners = '[]' OR q.owner IN (SELECT value FROM json_each(:owners)))
   AND (:batches = '[]' OR q.batch_id IN (SELECT value FROM json_each(:batches)))
   AND instr(lower(ifnull(q.name, '')), lower(:name)) > 0
   AND (:since IS NULL OR q.created_at >= :since) AND (:until IS NULL OR q.created_at < :until)
   AND NOT EXISTS (SELECT 1 FROM worker_job_queue n
                    WHERE n.source_key = q.source_key AND n.source_key IS NOT NULL AND n.id > q.id
                      AND n.owner = q.owner AND n.platform = q.platform)
   AND NOT EXISTS (SELECT 1 FROM document d
                    WHERE d.owner = q.owner AND d.platform = q.platform AND d.source_key = q.source_key
                      AND d.updated_at > q.completed_at)
 ORDER BY q.id DESC LIMIT :most;

-- fragment: current_pages
document d JOIN page p ON p.document_id = d.id AND p.generation = d.current_generation
       JOIN page_result r ON r.id = p.result_id

-- name: newest_reading_times
-- Start and end, in seconds, of each attempt that has fetched or read one of the newest documents.
WITH newest AS MATERIALIZED (
    SELECT d.id, ifnull(d.pages, 0) AS pages, d.current_generation AS generation, o.size, o.job_id
      FROM document d JOIN file o ON o.id = (SELECT max(f.id) FROM file f
                                              WHERE f.document_id = d.id AND f.role = 'original')
     WHERE d.index_status = 'success' AND o.size > 0
     ORDER BY d.id DESC LIMIT :most)
SELECT newest.id, newest.pages, newest.size, julianday(a.started_at) * 86400, julianday(a.ended_at) * 86400
  FROM newest
 CROSS JOIN (SELECT newest.id AS document_id, newest.job_id AS id FROM newest
              UNION
             SELECT newest.id, q.id FROM newest CROSS JOIN worker_job_queue q
                 ON q.document_id = newest.id AND q.document_id IS NOT NULL AND q.generation = newest.generation) j
    ON j.document_id = newest.id
 CROSS JOIN worker_job_attempt a ON a.job_id = j.id AND a.outcome = 'completed'
 ORDER BY 4;

-- name: pages_read
-- Pages of the newest generation; the number of pages since :since, and the seconds since the first of them.
SELECT d.id, count(r.id), ifnull(sum(r.created_at >= :since), 0),
       ifnull((julianday(:now) - julianday(min(CASE WHEN r.created_at >= :since THEN r.created_at END))) * 86400, 0)
  FROM json_each(:ids) w CROSS JOIN document d ON d.id = w.value
  LEFT JOIN page p ON p.document_id = d.id AND p.generation = d.index_generation
  LEFT JOIN page_result r ON r.id = p.result_id
 GROUP BY d.id;

-- name: count_documents
SELECT count(*) FROM document WHERE index_status = :status AND (:owner IS NULL OR owner = :owner);

-- name: database_identity
SELECT created_at, (SELECT group_concat(at || fence) FROM restored) FROM pagemill_schema;

-- name: document_changes
SELECT number, document_id, generation FROM document_change
 WHERE number > :after AND (:owner IS NULL OR owner = :owner) ORDER BY number LIMIT :most;

-- name: counts_by_state
SELECT index_status, count(*) FROM document GROUP BY index_status ORDER BY index_status;

-- name: page_summaries
SELECT p.number, r.method, r.confidence, length(r.text) FROM {current_pages}
 WHERE d.id = :document_id ORDER BY p.number;

-- name: doubtful_layouts
-- For `pagemill doctor`, from the newest documents.
SELECT d.id, r.layout
  FROM (SELECT id, current_generation FROM document WHERE current_generation IS NOT NULL
         ORDER BY id DESC LIMIT :documents) d
 CROSS JOIN page p ON p.document_id = d.id AND p.generation = d.current_generation
 CROSS JOIN page_result r ON r.id = p.result_id
 WHERE r.confidence < :confidence_least AND r.layout IS NOT NULL
 ORDER BY d.id DESC, p.number LIMIT :most;

-- name: page_texts
SELECT p.number, r.digest, r.text, r.method, r.confidence, CASE WHEN :with_layout THEN r.layout END
  FROM {current_pages}
 WHERE d.id = :document_id AND p.number BETWEEN :first AND :last ORDER BY p.number;

-- name: files
SELECT {file_columns}
  FROM file f WHERE f.document_id = :document_id ORDER BY f.id DESC;

-- name: copies
-- The path of the newest original of each document that was read successfully.
SELECT d.source_key, f.path
  FROM json_each(:source_keys) w
 CROSS JOIN document d ON d.owner = :owner AND d.platform = :platform AND d.source_key = w.value
 CROSS JOIN file f ON f.id = (SELECT max(n.id) FROM file n WHERE n.document_id = d.id AND n.role = 'original')
 WHERE d.index_status = 'success';

-- name: job_files
-- Files of the newest attempt only, because a job that ran again has published its files again.
SELECT {file_columns}
  FROM file f
 WHERE f.job_id = :job_id AND f.fence = (SELECT max(n.fence) FROM file n WHERE n.job_id = :job_id)
 ORDER BY f.id;
