-- Workers, claims, reports of attempts, questions of handlers, and the ends of attempts.


-- ── Workers ─────────────────────────────────────────────────────────────────────────────────────────────────────

-- name: register
INSERT INTO worker (id, host, boot_id, pid, version, cpu_slots, io_slots, node_slots, started_at, heartbeat_at)
VALUES (:id, :host, :boot_id, :pid, :version, :cpu_slots, :io_slots, :node_slots, :now, :now)
    ON CONFLICT (id) DO UPDATE SET host = excluded.host, boot_id = excluded.boot_id, pid = excluded.pid, cpu_slots = excluded.cpu_slots, io_slots = excluded.io_slots,
       node_slots = excluded.node_slots, version = excluded.version, draining = 0, disk_low = 0, heartbeat_at = excluded.heartbeat_at;

-- name: forget_handlers
DELETE FROM handler WHERE worker_id = :worker_id;

-- name: register_handler
INSERT INTO handler (worker_id, job_type, class, missing, missing_remedy, at_most_once, payload_schema, timeout_seconds,
                     choices)
VALUES (:worker_id, :job_type, :job_class, :missing, :missing_remedy, :at_most_once, :payload_schema,
        :timeout_seconds, :choices);

-- name: deregister
DELETE FROM worker
 WHERE id = :worker_id
   AND NOT EXISTS (SELECT 1 FROM worker_job_queue WHERE status = 'running' AND worker_id = :worker_id)
RETURNING id;

-- name: set_worker_state
UPDATE worker SET draining = :draining, disk_low = :disk_low WHERE id = :worker_id RETURNING id;

-- name: set_node_slots
UPDATE worker SET node_slots = :slots WHERE id = :worker_id RETURNING id;

-- name: keep_node
INSERT INTO node (name, worker_id, state, slots, version, reason)
VALUES (:name, :worker_id, :state, :slots, :version, :reason)
    ON CONFLICT (name) DO UPDATE
   SET worker_id = excluded.worker_id, state = excluded.state, slots = excluded.slots, version = excluded.version,
       reason = excluded.reason;

-- name: forget_nodes
-- A node that drains keeps its row while it is away, so that it still drains when it comes back.
DELETE FROM node WHERE draining = 0 AND name NOT IN (SELECT value FROM json_each(:names));

-- name: forget_nodes_of_dead_workers
DELETE FROM node WHERE draining = 0 AND worker_id NOT IN (SELECT id FROM worker);

-- name: mark_absent_nodes_down
UPDATE node SET worker_id = :worker_id, state = 'down', slots = 0, reason = 'it is not in the cluster'
 WHERE name NOT IN (SELECT value FROM json_each(:names))
   AND (worker_id, state, slots) IS NOT (:worker_id, 'down', 0);

-- name: mark_nodes_of_worker_down
UPDATE node SET state = 'down', slots = 0, reason = 'its daemon has ended' WHERE worker_id = :worker_id;

-- name: forget_limits
DELETE FROM job_limit WHERE kind = :kind;

-- name: set_limit
INSERT INTO job_limit (kind, name, most) VALUES (:kind, :name, :most);

-- name: set_payload_limit
INSERT INTO job_limit (kind, name, most) VALUES ('payload', 'bytes', :most)
    ON CONFLICT DO UPDATE SET most = excluded.most WHERE most <> excluded.most;


-- ── Claim ───────────────────────────────────────────────────────────────────────────────────────────────────────

-- fragment: lanes
-- A loose index scan: one seek for each lane, that is, each distinct (job_type, owner, source), however many jobs it
-- has. The head of a lane is its first job. No priority is as high as 11, so the seek lands behind the whole lane. The
-- plus signs make SQLite use all four columns in the seek.
lane(job_type, owner, source, head, priority, created_at, concurrency_key) AS (
SELECT q.job_type, q.owner, q.source, q.id, q.priority, q.created_at, q.concurrency_key
  FROM worker_job_queue q
 WHERE q.id = (SELECT f.id FROM worker_job_queue f INDEXED BY job_ready
                WHERE f.status = 'pending' AND f.held = 0
                ORDER BY f.job_type, f.owner, f.source, f.priority, f.created_at, f.id LIMIT 1)
 UNION ALL
SELECT q.job_type, q.owner, q.source, q.id, q.priority, q.created_at, q.concurrency_key
  FROM lane CROSS JOIN worker_job_queue q
 WHERE q.id = (SELECT n.id FROM worker_job_queue n INDEXED BY job_ready
                WHERE n.status = 'pending' AND n.held = 0
                  AND (n.job_type, n.owner, n.source, n.priority) > (+lane.job_type, +lane.owner, +lane.source, 11)
                ORDER BY n.job_type, n.owner, n.source, n.priority, n.created_at, n.id LIMIT 1))

-- fragment: running_in_class
SELECT count(*) FROM worker_job_queue r CROSS JOIN handler c ON c.worker_id = r.worker_id AND c.job_type = r.job_type
                WHERE r.status = 'running'

-- fragment: no_node
-- Reason why worker w has no slots for attempts on nodes, with the state of one node.
ifnull('none of ' || nullif((SELECT count(*) FROM node m WHERE m.worker_id = w.id), 0) || ' nodes is up', 'worker ' || w.id || ' knows no node yet')
       || ifnull((SELECT '; ' || m.name || ' is ' || m.state || iif(m.reason = '', '', ' (' || m.reason || ')')
                    FROM node m WHERE m.worker_id = w.id ORDER BY m.state = 'refused' DESC, m.name LIMIT 1), '')

-- fragment: worker_gates
-- Reasons why worker w cannot start a job of this lane now. `rank` is the order in which `why` prints them.
SELECT 1 AS rank, 'WORKER_DOWN' AS code, 'worker ' || w.id || ' has not beaten since ' || w.heartbeat_at AS detail, '' AS remedy
 WHERE w.heartbeat_at <= :stale_before
 UNION ALL
SELECT 4, 'DRAINING', 'worker ' || w.id || ' finishes what it has and claims no more', ''
 WHERE w.draining
 UNION ALL
SELECT 11,
       CASE WHEN h.class = 'node' AND w.node_slots = 0 THEN 'NO_NODE' ELSE 'SLOTS_FULL' END,
       CASE WHEN h.class = 'node' AND w.node_slots = 0 THEN {no_node}
            ELSE 'all ' || h.class || ' slots of worker ' || w.id || ' are taken' END,
       ''
  FROM handler h
 WHERE h.worker_id = w.id AND h.job_type = lane.job_type
   -- Prefetched jobs wait behind another job and take no slot. The claiming worker passes their number as :behind.
   AND ({running_in_class} AND r.worker_id = w.id AND c.class = h.class) - :behind
       >= CASE h.class WHEN 'cpu' THEN w.cpu_slots WHEN 'io' THEN w.io_slots ELSE w.node_slots END
 UNION ALL
SELECT 12, 'CAPABILITY_MISSING', h.missing, h.missing_remedy
  FROM handler h
 WHERE h.worker_id = w.id AND h.job_type = lane.job_type AND h.missing IS NOT NULL
 UNION ALL
SELECT 13, 'UNKNOWN_TYPE', 'worker ' || w.id || ' has no handler for ' || lane.job_type, ''
 WHERE NOT EXISTS (SELECT 1 FROM handler h WHERE h.worker_id = w.id AND h.job_type = lane.job_type)
 UNION ALL
SELECT 14, 'DISK_LOW', 'worker ' || w.id || ' has too little free disk space to begin anything', ''
 WHERE w.disk_low

-- fragment: its_rest
s.source || ' rests until ' || s.until || ifnull(': ' || s.reason, '')

-- fragment: owner_of_limit
CASE WHEN EXISTS (SELECT 1 FROM job_limit o WHERE o.kind = 'owner' AND o.name = lane.owner)
                     THEN lane.owner WHEN lane.owner <> '' THEN '*' END

-- fragment: lane_gates
-- Reasons why no worker can start a job of this lane now.
SELECT 2 AS rank, 'PAUSED' AS code,
       CASE p.scope WHEN 'all' THEN 'everything' ELSE p.scope || ' ' || p.name END || ' is paused'
       || ifnull(' until ' || p.until, '') || ifnull(': ' || p.reason, '') AS detail
  FROM pause p
 WHERE (p.scope = 'all' OR p.name = CASE p.scope WHEN 'type' THEN lane.job_type ELSE lane.owner END)
   AND (p.until IS NULL OR p.until > :now)
 UNION ALL
SELECT 8, 'OWNER_BUSY', lane.owner || ' already runs ' || l.most || ' of ' || l.most || ' jobs'
  FROM job_limit l
 WHERE l.kind = 'owner'
   AND l.name = {owner_of_limit}
   AND l.most <= (SELECT count(*) FROM worker_job_queue r WHERE r.status = 'running' AND r.owner = lane.owner)
 UNION ALL
SELECT 10, 'TYPE_FULL', l.most || ' of ' || l.most || ' jobs of ' || l.kind || ' ' || l.name || ' are running'
  FROM job_limit l
 WHERE l.kind = 'type' AND l.name = lane.job_type
   AND l.most <= (SELECT count(*) FROM worker_job_queue r WHERE r.status = 'running' AND r.job_type = lane.job_type)
 UNION ALL
SELECT 10, 'TYPE_FULL', l.most || ' of ' || l.most || ' jobs of ' || l.kind || ' ' || l.name || ' are running'
  FROM job_limit l
 WHERE l.kind = 'class' AND EXISTS (SELECT 1 FROM handler h WHERE h.job_type = lane.job_type AND h.class = l.name)
   AND l.most <= ({running_in_class} AND c.class = l.name)
 UNION ALL
SELECT 15, 'SOURCE_RESTING', {its_rest}
  FROM source_rest s
 WHERE s.source = lane.source AND s.until > :now

-- fragment: may_start
-- Condition: this worker may start a job of the lane now, in this class. The first EXISTS is evaluated once for all
-- lanes; if nothing is paused, limited or resting, the gates of the lanes are not evaluated.
FROM worker w
 CROSS JOIN handler mine ON mine.worker_id = w.id AND mine.job_type = lane.job_type AND mine.class = :job_class
 WHERE w.id = :worker_id AND NOT EXISTS ({worker_gates})
   AND NOT ((SELECT EXISTS (SELECT 1 FROM pause) OR EXISTS (SELECT 1 FROM source_rest)
                    OR EXISTS (SELECT 1 FROM job_limit WHERE kind <> 'payload'))
            AND EXISTS ({lane_gates}))

-- fragment: served
ifnull((SELECT o.served FROM owner_served o WHERE o.owner = lane.owner), 0)

-- fragment: lane_as_bytes
CAST(lane.job_type AS BLOB), CAST(lane.owner AS BLOB), CAST(lane.source AS BLOB), {served}

-- name: served
-- Numbers from 10^15 on can only have been written by hand and are ignored.
INSERT INTO owner_served (owner, served)
SELECT o.value, ifnull((SELECT max(served) FROM owner_served WHERE served < 1000000000000000), 0) + o.key + 1
  FROM json_each(:owners) o WHERE true
    ON CONFLICT (owner) DO UPDATE SET served = excluded.served
RETURNING CAST(owner AS BLOB), served;

-- name: served_last
SELECT owner FROM owner_served ORDER BY served DESC LIMIT 1;

-- name: lanes_of_worker
-- The lanes of the types that the worker runs in this class: the first job of each, and whether it may be started.
WITH RECURSIVE {lanes}
SELECT lane.priority, CAST(lane.created_at AS BLOB), lane.head, CAST(lane.concurrency_key AS BLOB),
       {lane_as_bytes}, EXISTS (SELECT 1 {may_start})
  FROM lane
 CROSS JOIN handler h ON h.worker_id = :worker_id AND h.job_type = lane.job_type AND h.class = :job_class;

-- name: lanes_of_jobs
-- The same for the lanes of these jobs, whatever their status is now.
SELECT h.priority, CAST(h.created_at AS BLOB), h.id, lane.id, {lane_as_bytes},
       EXISTS (SELECT 1 FROM handler m
                WHERE m.worker_id = :worker_id AND m.job_type = lane.job_type AND m.class = :job_class)
  FROM json_each(:ids) w CROSS JOIN worker_job_queue lane ON lane.id = w.value
  LEFT JOIN worker_job_queue h
    ON h.id = (SELECT f.id FROM worker_job_queue f INDEXED BY job_ready
                WHERE f.status = 'pending' AND f.held = 0
                  AND f.job_type = lane.job_type AND f.owner = lane.owner AND f.source = lane.source
                ORDER BY f.priority, f.created_at, f.id LIMIT 1);

-- name: behind
SELECT n.priority, CAST(n.created_at AS BLOB), n.id, CAST(n.concurrency_key AS BLOB)
  FROM worker_job_queue o CROSS JOIN worker_job_queue n INDEXED BY job_ready
    ON n.status = 'pending' AND n.held = 0 AND n.job_type = o.job_type AND n.owner = o.owner AND n.source = o.source
   AND (n.priority, n.created_at, n.id) > (+o.priority, +o.created_at, +o.id)
 WHERE o.id = :job_id
 ORDER BY n.priority, n.created_at, n.id LIMIT :most;

-- name: running_by_lane
SELECT CAST(owner AS BLOB), CAST(job_type AS BLOB), count(*) FROM worker_job_queue WHERE status = 'running' GROUP BY 1, 2;

-- name: lane_limits
SELECT kind, CAST(name AS BLOB), most FROM job_limit WHERE kind IN ('type', 'owner');

-- name: class_room
-- Number of jobs of this class that may still be started, by the worker's slots and by the class limit (P8).
SELECT min(CASE :job_class WHEN 'cpu' THEN w.cpu_slots WHEN 'io' THEN w.io_slots ELSE w.node_slots END + :behind
               - ({running_in_class} AND r.worker_id = w.id AND c.class = :job_class),
           ifnull((SELECT l.most - ({running_in_class} AND c.class = :job_class)
                     FROM job_limit l WHERE l.kind = 'class' AND l.name = :job_class), 1000000))
  FROM worker w WHERE w.id = :worker_id;

-- fragment: no_progress
progress_percent = 0, progress_done = NULL, progress_total = NULL, progress_rate = NULL, progress_unit = NULL,
       progress_at = NULL, progress_message = NULL

-- fragment: taken
status = 'running', fence = max(fence, ifnull((SELECT max(r.fence) FROM restored r), 0)) + 1,
       worker_id = :worker_id, started_at = :now, heartbeat_at = :now,
       {no_progress}

-- name: claim_one
-- Claims the job only if it is still ready and may be started.
UPDATE worker_job_queue AS lane
   SET {taken}
 WHERE id = :id AND status = 'pending' AND held = 0 AND EXISTS (SELECT 1 {may_start})
RETURNING {job_columns};

-- name: claim
-- Needs no guard: the job was chosen under the same write lock. A trigger opens the attempt.
UPDATE worker_job_queue
   SET {taken}
 WHERE id = :id
RETURNING {job_columns};

-- name: take
-- For many jobs, reading them with a second statement (`taken`) takes a sixth less time than RETURNING.
UPDATE worker_job_queue
   SET {taken}
 WHERE id IN (SELECT value FROM json_each(:ids));

-- name: taken
SELECT {job_columns} FROM worker_job_queue WHERE id IN (SELECT value FROM json_each(:ids));

-- name: worker_is_known
SELECT id FROM worker WHERE id = :worker_id;


-- ── Beat, report ────────────────────────────────────────────────────────────────────────────────────────────────

-- name: beat
UPDATE worker SET heartbeat_at = :now WHERE id = :worker_id RETURNING id;

-- name: beat_leases
-- The plus makes the planner look up the ids; by status, it would scan the leases once for each running job.
UPDATE worker_job_queue
   SET heartbeat_at = :now
  FROM json_each(:leases) l
 WHERE worker_job_queue.id = l.value ->> 0 AND fence = l.value ->> 1 AND worker_id = :worker_id AND +status = 'running'
RETURNING worker_job_queue.id, fence, cancel_requested_at IS NOT NULL;

-- name: report
-- The percentage of an attempt never falls (P10). The counts belong to a phase of the attempt and are replaced.
UPDATE worker_job_queue
   SET progress_percent = max(progress_percent, :percent), progress_message = ifnull(:message, progress_message),
       progress_done = iif(:has_progress, :done, progress_done),
       progress_total = iif(:has_progress, :total, progress_total),
       progress_rate = iif(:has_progress, :rate, progress_rate),
       progress_unit = iif(:has_progress, :unit, progress_unit),
       progress_at = iif(:has_lines OR :percent > progress_percent OR (:has_progress AND :done IS NOT progress_done)
                         OR :message <> progress_message OR (:message IS NOT NULL AND progress_message IS NULL),
                         :now, progress_at)
 WHERE id = :job_id AND fence = :fence AND worker_id = :worker_id AND status = 'running'
RETURNING id;

-- name: heard
UPDATE worker_job_attempt
   SET heard_at = :now, pid = ifnull(:pid, pid), pid_started = ifnull(:pid_started, pid_started),
       sandbox = ifnull(:sandbox, sandbox), node = ifnull(:node, node)
 WHERE job_id = :job_id AND fence = :fence AND ended_at IS NULL;

-- name: log
INSERT INTO worker_job_log (job_id, fence, at, line) VALUES (:job_id, :fence, :now, :line);

-- name: trim_log
DELETE FROM worker_job_log
 WHERE job_id = :job_id
   AND id <= (SELECT id FROM worker_job_log WHERE job_id = :job_id ORDER BY id DESC LIMIT 1 OFFSET :most);


-- ── What an attempt writes ──────────────────────────────────────────────────────────────────────────────────────

-- fragment: work_columns
-- Document, owner and batch of a job. A removed batch counts as none.
q.document_id, q.generation, q.owner, q.platform, q.name, (SELECT b.id FROM batch b WHERE b.id = q.batch_id), q.priority

-- name: lease_held
-- Returns a row only while the lease holds. After a request to cancel (P7), or for an older generation (P11), it
-- returns none, so that nothing is written.
SELECT {work_columns}
  FROM worker_job_queue q
 WHERE q.id = :job_id AND q.fence = :fence AND q.worker_id = :worker_id AND q.status = 'running'
   AND q.cancel_requested_at IS NULL
   AND (q.generation IS NULL
        OR EXISTS (SELECT 1 FROM document d WHERE d.id = q.document_id AND d.index_generation = q.generation));

-- name: page_target
-- Pages are stored also after a request to cancel (P7), so that the next attempt need not read them again. Pages of an
-- older generation (P11) are stored under their digest only.
SELECT q.document_id, q.generation, d.id IS NOT NULL,
       q.cancel_requested_at IS NULL AND (q.generation IS NULL OR d.id IS NOT NULL)
  FROM worker_job_queue q
  LEFT JOIN document d ON d.id = q.document_id AND d.index_generation = q.generation
 WHERE q.id = :job_id AND q.fence = :fence AND q.worker_id = :worker_id AND q.status = 'running';

-- name: keep_checkpoint
INSERT INTO checkpoint (job_id, fence, at, state) VALUES (:job_id, :fence, :now, :state)
    ON CONFLICT (job_id) DO UPDATE SET fence = excluded.fence, at = excluded.at, state = excluded.state;

-- name: checkpoint_of
SELECT state FROM checkpoint WHERE job_id = :job_id;

-- name: add_page_results
INSERT INTO page_result (digest, text, method, confidence, layout, created_at)
VALUES (?, ?, ?, ?, ?, ?)
    ON CONFLICT (digest) DO NOTHING
RETURNING id;

-- name: index_results
-- One statement for all pages, because the full-text index writes a segment after each statement. A statement per page
-- takes twice as long, and leaves that many segments to be merged.
INSERT INTO page_text (rowid, text) SELECT id, text FROM page_result WHERE id IN (SELECT value FROM json_each(:result_ids));

-- name: add_page_aliases
INSERT INTO page_alias (digest, result_digest)
SELECT value ->> 0, value ->> 1 FROM json_each(:aliases) WHERE true
    ON CONFLICT DO NOTHING;

-- fragment: pages_named
(SELECT w.value ->> 0 AS number,
        ifnull((SELECT r.id FROM page_result r WHERE r.digest = w.value ->> 1),
               (SELECT r.id FROM page_alias a CROSS JOIN page_result r ON r.digest = a.result_digest
                 WHERE a.digest = w.value ->> 1)) AS result_id
   FROM json_each(:pages) w)

-- name: pages_to_replace
-- Earlier results of the same pages, stored by another attempt.
SELECT p.result_id
  FROM {pages_named} w
 CROSS JOIN page p ON p.document_id = :document_id AND p.generation = :generation AND p.number = w.number
 WHERE p.result_id <> w.result_id;

-- name: results_wanted
UPDATE page_result SET forgotten_at = NULL
 WHERE forgotten_at IS NOT NULL AND id IN (SELECT result_id FROM {pages_named})
   AND EXISTS (SELECT 1 FROM page p WHERE p.result_id = page_result.id);

-- name: leave_results
UPDATE page_result SET forgotten_at = ''
 WHERE id IN (SELECT value FROM json_each(:result_ids))
   AND NOT EXISTS (SELECT 1 FROM page p WHERE p.result_id = page_result.id);

-- name: save_pages
-- A page whose digest is not stored is skipped. It is then missing when pages are counted.
INSERT INTO page (document_id, generation, number, result_id)
SELECT :document_id, :generation, number, result_id FROM {pages_named} WHERE result_id IS NOT NULL
    ON CONFLICT DO UPDATE SET result_id = excluded.result_id WHERE result_id <> excluded.result_id;

-- name: leave_to_anybody
-- No page refers to these results yet. They are deleted unless one does soon.
UPDATE page_result SET forgotten_at = ''
 WHERE digest IN (SELECT value FROM json_each(:digests)) AND forgotten_at IS NULL
   AND NOT EXISTS (SELECT 1 FROM page p WHERE p.result_id = page_result.id);

-- name: save_crawl
INSERT INTO crawl (key, owner, state, updated_at) VALUES (:crawl, :owner, :state, :now)
    ON CONFLICT (key) DO UPDATE SET state = ifnull(excluded.state, state), updated_at = excluded.updated_at;

-- name: save_crawl_item
INSERT INTO crawl_item (crawl, id, parent_id, name, kind, revision, size, note, detail, walk, seen_at)
VALUES (:crawl, :id, :parent_id, :name, :kind, :revision, :size, :note, :detail, :walk, :now)
    ON CONFLICT (crawl, id) DO UPDATE
   SET parent_id = excluded.parent_id, name = excluded.name, kind = excluded.kind, revision = excluded.revision,
       size = excluded.size, note = excluded.note, detail = excluded.detail, walk = max(walk, excluded.walk), seen_at = excluded.seen_at,
       gone_at = NULL;

-- name: lose_crawl_item
UPDATE crawl_item SET gone_at = :now WHERE crawl = :crawl AND id = :id AND gone_at IS NULL;

-- name: crawled_elsewhere
-- The item has moved into a folder that another crawl of the same owner has seen since.
SELECT o.id FROM crawl c CROSS JOIN crawl_item o ON o.crawl = c.key AND o.id = :id
 WHERE c.owner = :owner AND c.key <> :crawl AND o.gone_at IS NULL AND o.parent_id <> :parent_id
 LIMIT 1;

-- name: document_gone
UPDATE document SET gone_at = :now
 WHERE owner = :owner AND platform = :platform AND source_key = :id AND gone_at IS NULL;

-- name: document_back
UPDATE document SET gone_at = NULL
 WHERE owner = :owner AND platform = :platform AND source_key = :id AND gone_at IS NOT NULL;


-- ── Questions of handlers ───────────────────────────────────────────────────────────────────────────────────────

-- name: known_pages
-- A result marked for deletion is not returned, since it might be deleted before it is used. While the mark has no time
-- yet (''), it is returned: the asking attempt has started before that time, so `results_to_forget` will wait for it.
SELECT w.value FROM json_each(:digests) w
  LEFT JOIN page_alias a ON a.digest = w.value
 CROSS JOIN page_result r ON r.digest = ifnull(a.result_digest, w.value)
 WHERE ifnull(r.forgotten_at, '') = '';

-- name: known_digests
-- Digests of the pages of a job's document that were read, aliases included.
SELECT r.digest FROM worker_job_queue q NOT INDEXED
 CROSS JOIN page p ON p.document_id = q.document_id AND p.generation = q.generation
 CROSS JOIN page_result r ON r.id = p.result_id WHERE q.id = :job_id
UNION ALL
SELECT a.digest FROM worker_job_queue q NOT INDEXED
 CROSS JOIN page p ON p.document_id = q.document_id AND p.generation = q.generation
 CROSS JOIN page_result r ON r.id = p.result_id JOIN page_alias a ON a.result_digest = r.digest WHERE q.id = :job_id;

-- name: document_pages
SELECT p.number, r.digest, r.text, r.method, r.confidence, CASE WHEN :with_layout THEN r.layout END
  FROM worker_job_queue q NOT INDEXED
 CROSS JOIN page p ON p.document_id = q.document_id AND p.generation = q.generation
 CROSS JOIN page_result r ON r.id = p.result_id
 WHERE q.id = :job_id AND p.number BETWEEN :first AND :last
 ORDER BY p.number;

-- fragment: file_columns
f.id, f.job_id, f.role, f.name, f.path, f.size, f.sha256, f.md5

-- name: known_document
SELECT ifnull((SELECT f.sha256 FROM file f WHERE f.document_id = d.id AND f.role = 'original' ORDER BY f.id DESC LIMIT 1), ''),
       d.kind, d.pages, d.settings, d.index_status, d.source_key, d.name, d.index_generation,
       (SELECT max(b.batch_id) FROM batch_document b WHERE b.document_id = d.id)
  FROM document d WHERE d.id = :document_id;

-- name: same_sha256
-- Files of the job's own document come first, because they are not deleted while a job works for the document.
SELECT {file_columns} FROM file f
 WHERE f.sha256 = :sha256 AND f.sha256 <> ''
 ORDER BY ifnull(f.document_id = (SELECT q.document_id FROM worker_job_queue q WHERE q.id = :job_id), 0) DESC,
          f.id DESC LIMIT 10;

-- name: same_md5
-- MD5 can be forged, so only files of the same owner are returned.
SELECT {file_columns} FROM file f
 WHERE f.md5 = :md5 AND f.md5 <> '' AND (:size IS NULL OR f.size = :size)
   AND f.owner = (SELECT q.owner FROM worker_job_queue q WHERE q.id = :job_id)
 ORDER BY f.id DESC LIMIT 10;

-- name: crawl_state
SELECT state FROM crawl WHERE key = :crawl;

-- fragment: item_columns
i.id, i.parent_id, i.name, i.kind, i.revision, i.size, i.note, i.gone_at IS NOT NULL, i.detail, i.walk

-- name: crawl_items
SELECT {item_columns} FROM json_each(:ids) w CROSS JOIN crawl_item i ON i.crawl = :crawl AND i.id = w.value
 ORDER BY i.id;

-- name: crawl_items_not_seen
SELECT {item_columns} FROM crawl_item i
 WHERE i.crawl = :crawl AND i.id > :after AND i.gone_at IS NULL AND i.walk < :walk
 ORDER BY i.id LIMIT :most;

-- name: crawl_items_with_note
SELECT {item_columns} FROM crawl_item i
 WHERE i.crawl = :crawl AND i.note = :note AND i.note <> '' AND i.id > :after AND i.gone_at IS NULL
 ORDER BY i.id LIMIT :most;

-- name: inputs
SELECT {file_columns} FROM file f
 WHERE f.document_id = :document_id AND f.role <> ''
   AND f.id = (SELECT max(n.id) FROM file n WHERE n.document_id = :document_id AND n.role = f.role)
 ORDER BY f.role;


-- ── Ends of an attempt ──────────────────────────────────────────────────────────────────────────────────────────

-- fragment: holds_lease
-- The fence makes a late writer harmless: a worker that has lost its lease matches no row (P2). After a request to
-- cancel, the attempt can only end as cancelled (P7).
EXISTS (SELECT 1 FROM worker_job_queue q
         WHERE q.id = :job_id AND q.fence = :fence AND q.worker_id = :worker_id AND q.status = 'running'
           AND (q.cancel_requested_at IS NOT NULL) = (:outcome = 'cancelled'))

-- name: close_attempt
-- Must be the first statement of every ending: a trigger refuses to change a running job whose attempt is open (P1).
UPDATE worker_job_attempt
   SET ended_at = :now, outcome = :outcome, error_code = :error_code, error_message = :error_message,
       error_remedy = :error_remedy, signal = :signal, cpu_seconds = :cpu_seconds, memory_peak_bytes = :memory_peak_bytes
 WHERE job_id = :job_id AND fence = :fence AND ended_at IS NULL AND {holds_lease}
RETURNING job_id, fence;

-- fragment: close_completed_rows
-- `close_attempt` with its guards for many jobs at once. NOT INDEXED: look up by rowid instead of scanning running
-- jobs.
UPDATE worker_job_attempt
   SET ended_at = ?, outcome = 'completed', signal = d.signal, cpu_seconds = d.cpu_seconds,
       memory_peak_bytes = d.memory_peak_bytes, pid = ifnull(d.pid, worker_job_attempt.pid),
       pid_started = ifnull(d.pid_started, worker_job_attempt.pid_started),
       sandbox = ifnull(d.sandbox, worker_job_attempt.sandbox), node = ifnull(d.node, worker_job_attempt.node)
  FROM d
  CROSS JOIN worker_job_queue q NOT INDEXED
    ON q.id = d.job_id AND q.fence = d.fence AND q.worker_id = d.worker_id AND q.status = 'running'
   AND q.cancel_requested_at IS NULL
 WHERE worker_job_attempt.job_id = q.id AND worker_job_attempt.fence = q.fence AND ended_at IS NULL

-- fragment: closing
d(job_id, fence, worker_id, signal, cpu_seconds, memory_peak_bytes, pid, pid_started, sandbox, node)

-- name: close_complete_one
WITH {closing} AS (VALUES {closing_rows_1})
{close_completed_rows};

-- name: close_complete_some
-- Values are bound by position, because extracting them from JSON would double the time.
WITH {closing} AS (VALUES {closing_rows_25})
{close_completed_rows};

-- name: close_complete
WITH {closing} AS (VALUES {closing_rows_100})
{close_completed_rows};

-- fragment: complete_rows
UPDATE worker_job_queue NOT INDEXED
   SET status = 'completed', completed_at = ?, result = d.result, progress_percent = 100,
       error_code = NULL, error_message = NULL, error_remedy = NULL
  FROM d
 WHERE worker_job_queue.id = d.job_id AND worker_job_queue.fence = d.fence AND worker_job_queue.worker_id = d.worker_id
   AND status = 'running' AND cancel_requested_at IS NULL
RETURNING id, fence, worker_id, generation IS NOT NULL

-- name: complete_one
WITH d(job_id, fence, worker_id, result) AS (VALUES {completed_rows_1})
{complete_rows};

-- name: complete_some
WITH d(job_id, fence, worker_id, result) AS (VALUES {completed_rows_25})
{complete_rows};

-- name: complete
WITH d(job_id, fence, worker_id, result) AS (VALUES {completed_rows_100})
{complete_rows};

-- name: work_of
SELECT {work_columns} FROM worker_job_queue q WHERE q.id = :job_id;

-- fragment: ended_early
-- Clears the rate, which is no longer valid, and the progress message.
completed_at = :now, progress_rate = NULL, progress_message = NULL

-- name: fail
UPDATE worker_job_queue
   SET {ended_early}, status = 'failed', error_code = :error_code, error_message = :error_message,
       error_remedy = :error_remedy
 WHERE id = :job_id AND fence = :fence AND status = 'running';

-- fragment: pending_again
status = 'pending', worker_id = NULL, started_at = NULL, heartbeat_at = NULL,
       {no_progress}

-- name: fail_for_now
UPDATE worker_job_queue
   SET {pending_again}, retry_count = retry_count + 1, run_at = :run_at,
       held = 2 | (concurrency_key IS NOT NULL) * 8, error_code = :error_code, error_message = :error_message,
       error_remedy = :error_remedy
 WHERE id = :job_id AND fence = :fence AND status = 'running';

-- name: snooze
UPDATE worker_job_queue
   SET {pending_again}, run_at = :run_at, held = 1 | (concurrency_key IS NOT NULL) * 8
 WHERE id = :job_id AND fence = :fence AND status = 'running';

-- name: release
UPDATE worker_job_queue
   SET {pending_again}, run_at = NULL, held = (concurrency_key IS NOT NULL) * 8
 WHERE id = :job_id AND fence = :fence AND status = 'running';

-- name: confirm_cancel
UPDATE worker_job_queue
   SET {ended_early}, status = 'cancelled'
 WHERE id = :job_id AND fence = :fence AND status = 'running';

-- name: confirm_cancel_stale
UPDATE worker_job_queue
   SET {ended_early}, status = 'cancelled', error_code = :error_code, error_message = :error_message,
       error_remedy = :error_remedy
 WHERE id = :job_id AND fence = :fence AND status = 'running';

-- name: stale_work
-- Returns a row if the job's generation is no longer the newest of its document.
SELECT q.document_id, q.generation FROM worker_job_queue q
 WHERE q.id = :job_id AND q.generation IS NOT NULL
   AND NOT EXISTS (SELECT 1 FROM document d WHERE d.id = q.document_id AND d.index_generation = q.generation);

-- fragment: orphan_fate
CASE WHEN q.cancel_requested_at IS NOT NULL THEN 'cancelled'
            WHEN EXISTS (SELECT 1 FROM handler h WHERE h.worker_id = q.worker_id AND h.job_type = q.job_type
                                                   AND h.at_most_once) THEN 'at most once'
            WHEN q.requeue_count >= :requeues_max THEN 'too often'
            ELSE 'pending' END

-- name: orphans
SELECT q.id AS job_id, q.fence, q.worker_id, {orphan_fate} AS fate
  FROM worker_job_queue q
 WHERE q.status = 'running' AND q.worker_id = :worker_id;

-- name: fate_of
SELECT {orphan_fate} FROM worker_job_queue q
 WHERE q.id = :job_id AND q.fence = :fence AND q.worker_id = :worker_id AND q.status = 'running';

-- name: requeue
UPDATE worker_job_queue
   SET {pending_again}, requeue_count = requeue_count + 1, run_at = NULL,
       held = (concurrency_key IS NOT NULL) * 8
 WHERE id = :job_id AND fence = :fence AND status = 'running';

-- name: has_beaten_since
SELECT 1 FROM worker WHERE id = :worker_id AND heartbeat_at <> :last_beat;

-- name: forget_worker
DELETE FROM worker WHERE id = :worker_id;

-- name: rest_source
INSERT INTO source_rest (source, until, reason) VALUES (:source, :until, :reason)
    ON CONFLICT (source) DO UPDATE SET until = max(until, excluded.until), reason = excluded.reason;


-- ── Results of a completion ─────────────────────────────────────────────────────────────────────────────────────

-- name: learn
UPDATE document
   SET kind = ifnull(:kind, kind), pages = ifnull(:pages, pages), content = ifnull(:content, content),
       note = ifnull(:note, note), updated_at = :now
 WHERE id = :document_id;

-- name: document_moved
UPDATE document SET updated_at = :now WHERE id = :document_id AND index_generation = :generation;

-- name: add_file
INSERT INTO file (job_id, fence, document_id, role, name, path, size, sha256, md5, note, owner, created_at)
VALUES (:job_id, :fence, :document_id, :role, :name, :path, :size, :sha256, :md5, :note, :owner, :now);

-- name: add_file_again
-- The note is not copied, because it says how the other file was fetched.
INSERT INTO file (job_id, fence, document_id, role, name, path, size, sha256, md5, owner, created_at)
SELECT :job_id, :fence, :document_id, CASE :role WHEN '' THEN f.role ELSE :role END,
       CASE :name WHEN '' THEN f.name ELSE :name END, f.path, f.size, f.sha256, f.md5, :owner, :now
  FROM file f WHERE f.id = :file_id
RETURNING id;

-- name: tie_files
-- Assigns the original that was just published to its document. The publisher is a download, which has no document of
-- its own, or a job that has found the file inside its own document.
UPDATE file SET document_id = :document_id, role = 'original'
 WHERE job_id = :job_id AND fence = :fence AND (role = 'inside' OR (document_id IS NULL AND role <> ''))
   AND (:content IS NULL OR sha256 = :content)
RETURNING id;

-- name: forget_older_files
-- Deletes files that an earlier generation has made and this one has not; they would appear to belong to this one.
DELETE FROM file
 WHERE document_id = :document_id AND role NOT IN ('', 'original')
   AND EXISTS (SELECT 1 FROM document d WHERE d.id = :document_id AND d.current_generation IS NOT :generation)
   AND NOT EXISTS (SELECT 1 FROM worker_job_queue q WHERE q.id = file.job_id AND q.generation = :generation)
RETURNING path;

-- name: files_are_gone
INSERT OR IGNORE INTO file_gone (path)
SELECT w.value FROM json_each(:paths) w WHERE NOT EXISTS (SELECT 1 FROM file f WHERE f.path = w.value);

-- name: files_are_back
DELETE FROM file_gone WHERE path IN (SELECT path FROM file WHERE job_id = :job_id AND fence = :fence);

-- name: link_is_due
INSERT OR IGNORE INTO link_due (document_id) VALUES (:document_id);

-- name: links_are_due
-- 0 stands for all documents: folders have been moved or renamed.
INSERT OR IGNORE INTO link_due (document_id)
SELECT 0 WHERE EXISTS (SELECT 1 FROM json_each(:places) w
                         JOIN crawl_item i ON i.crawl = :crawl AND i.id = w.value ->> 0
                        WHERE i.name <> w.value ->> 1 OR i.parent_id <> w.value ->> 2);

-- name: forget_checkpoints
DELETE FROM checkpoint WHERE job_id IN (SELECT value FROM json_each(:job_ids));

-- name: publish
-- P5, P11: the pages were written ahead. This statement makes them visible to readers.
UPDATE document
   SET current_generation = :generation, index_status = 'success', error_code = NULL, error_message = NULL,
       error_remedy = NULL, updated_at = :now
 WHERE id = :document_id AND index_generation = :generation
RETURNING id;

-- name: led_nowhere
-- Fails a document if the last live job of its newest generation has completed without publishing it.
UPDATE document
   SET index_status = 'failed', updated_at = :now,
       error_code = coalesce((SELECT e.error_code FROM v_document_error e WHERE e.document_id = document.id LIMIT 1),
                             CASE WHEN :skipped IS NULL THEN 'NOT_PUBLISHED' ELSE 'SKIPPED' END),
       error_message = coalesce((SELECT e.error_message FROM v_document_error e WHERE e.document_id = document.id LIMIT 1),
                                :skipped, 'job ' || :job_id || ' has completed, and no job is left that would publish the document'),
       error_remedy = (SELECT e.error_remedy FROM v_document_error e WHERE e.document_id = document.id LIMIT 1)
 WHERE id = :document_id AND index_generation = :generation AND index_status IN ('queued', 'indexing')
   AND NOT EXISTS (SELECT 1 FROM worker_job_queue q
                    WHERE q.document_id = :document_id AND q.generation = :generation
                      AND q.status IN ('pending', 'running'))
RETURNING id;

-- name: cancel_what_went
-- Cancels pending jobs for an item that has disappeared. Ids may contain colons, so the key prefix is not exact; the
-- source_key is.
UPDATE worker_job_queue
   SET status = 'cancelled', held = 0, completed_at = :now, cancel_requested_at = :now, error_code = 'SOURCE_GONE',
       error_message = 'the file is no longer where the crawl found it'
 WHERE unique_key >= :first AND unique_key < :beyond AND unique_key IS NOT NULL AND status IN ('pending', 'running')
   AND status = 'pending' AND platform = :platform AND owner = :owner AND source_key = :id;
