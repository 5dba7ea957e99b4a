-- What followed a document was remembered with how it is read, and again for each generation.
INSERT OR IGNORE INTO deferred_action (document_id, generation, on_end, job_type, payload, standing, fired_at)
SELECT d.id, d.index_generation, 'success', t.value ->> '$.job_type', ifnull(json(t.value -> '$.payload'), ''), 1,
       CASE d.index_status WHEN 'success' THEN d.updated_at END
  FROM document d, json_each(d.settings, '$.then') t
 WHERE d.settings <> '' AND d.index_generation > 0 AND t.value ->> '$.job_type' <> '';

UPDATE document SET settings = json_remove(settings, '$.then') WHERE settings <> '' AND settings ->> '$.then' IS NOT NULL;
UPDATE document SET settings_before = json_remove(settings_before, '$.then')
 WHERE settings_before <> '' AND settings_before ->> '$.then' IS NOT NULL;
