-- Gates: the reasons why a lane or a worker cannot start a job now. The claim and `explain` share them.

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
   -- Prefetched jobs wait behind another job and take no slot. The claiming worker passes their number as :prefetched.
   AND ({running_in_class} AND r.worker_id = w.id AND c.class = h.class) - :prefetched
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

-- fragment: rest_detail
s.source || ' rests until ' || s.until || ifnull(': ' || s.reason, '')

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
   AND l.name = CASE WHEN EXISTS (SELECT 1 FROM job_limit o WHERE o.kind = 'owner' AND o.name = lane.owner)
                     THEN lane.owner WHEN lane.owner <> '' THEN '*' END
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
SELECT 15, 'SOURCE_RESTING', {rest_detail}
  FROM source_rest s
 WHERE s.source = lane.source AND s.until > :now
