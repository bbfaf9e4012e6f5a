-- Every statement of the store, each under its name. Those that return whole resources return the
-- columns of the view resource_seen, in its order.

-- name: tables
-- How much is in this database: 0 in a new one.
SELECT count(*) FROM sqlite_schema;

-- name: meta
SELECT version, boot_id FROM meta WHERE id = 1;

-- name: meta_write
UPDATE meta SET version = :version WHERE id = 1;

-- name: meta_boot
UPDATE meta SET version = :version, boot_id = :boot_id WHERE id = 1;


-- After a restart of the machine: its seconds began anew and every lease has ended.

-- name: reboot_terms
UPDATE term SET ended_at = :wall, reason = 'expired', version = :version WHERE version IS NULL;

-- name: reboot_resources
UPDATE resource
SET
    holder = NULL, asked_by = NULL, break_at = NULL, handed_to = NULL, handed_until = NULL,
    version = :version
WHERE holder IS NOT NULL OR handed_to IS NOT NULL;

-- name: reboot_leases
UPDATE lease
SET ended = 'expired', ended_at = :wall, version = :version
WHERE ended IS NULL;

-- name: reboot_guests
DELETE FROM guest;

-- name: reboot_ends
-- All have ended by now. An end that lies ahead in the new seconds would be kept too long.
UPDATE lease SET ends_at = min(ends_at, :now);

-- name: reboot_file_holders
-- Silent for ever, the oldest still first.
UPDATE fs_holder SET renewed_s = renewed_s - 1000000000.0;

-- name: reboot_file_attempts
UPDATE fs_file
SET attempt_until_s = -1000000000.0, next_attempt_s = -1000000000.0
WHERE state = 'recovering';


-- Leases

-- name: lease
SELECT holder, token, grp, duration_s, ends_at, heard, ended, dismissed
FROM lease
WHERE holder = :holder;

-- name: lease_add
INSERT INTO lease (holder, token, grp, duration_s, granted_at, ends_at, heard, version)
VALUES (:holder, :token, :grp, :duration_s, :wall, :ends_at, :heard, :version);

-- name: lease_renew
UPDATE lease SET ends_at = :ends_at, heard = max(heard, :heard) WHERE holder = :holder;

-- name: lease_touch
UPDATE lease SET version = :version WHERE holder = :holder;

-- name: lease_dismiss
UPDATE lease SET dismissed = 1, version = :version WHERE holder = :holder;

-- name: lease_end
UPDATE lease
SET ended = :reason, ended_at = :wall, ends_at = :ends_at, version = :version
WHERE holder = :holder;

-- name: lease_end_terms
-- A break that fell due before the lease ended was there first.
UPDATE term
SET
    ended_at = :wall,
    reason = CASE
        WHEN key IN (
            SELECT resource.key FROM resource INDEXED BY resource_owned
            WHERE resource.holder = :holder AND resource.break_at <= :ends_at
        ) THEN 'broken'
        ELSE :reason
    END,
    version = :version
WHERE holder = :holder AND version IS NULL;

-- name: lease_end_resources
UPDATE resource
SET holder = NULL, asked_by = NULL, break_at = NULL, version = :version
WHERE holder = :holder;

-- name: leases_run_out
-- Members and guests of a group. CROSS JOIN: from the guests, which are few, to their leases.
SELECT holder FROM lease WHERE grp = :grp AND ended IS NULL AND ends_at <= :now
UNION ALL
SELECT lease.holder
FROM guest CROSS JOIN lease ON lease.holder = guest.holder
WHERE guest.grp = :grp AND lease.ended IS NULL AND lease.ends_at <= :now;

-- name: next_end
-- When time next ends something in a group, other than the lease of the one who asks. Each part is
-- the first entry of an index, or goes through what is under way, which is little.
WITH parts (ends_at) AS (
    SELECT min(ends_at) FROM lease WHERE grp = :grp AND ended IS NULL AND holder <> :holder
    UNION ALL
    SELECT min(lease.ends_at)
    FROM guest CROSS JOIN lease ON lease.holder = guest.holder
    WHERE guest.grp = :grp AND lease.ended IS NULL
    UNION ALL
    SELECT min(break_at) FROM resource INDEXED BY resource_breaking
    WHERE grp = :grp AND break_at IS NOT NULL
    UNION ALL
    SELECT min(handed_until) FROM resource INDEXED BY resource_handed
    WHERE grp = :grp AND handed_to IS NOT NULL
    UNION ALL
    SELECT min(lease.ends_at)
    FROM resource INDEXED BY resource_handed
    CROSS JOIN lease ON lease.holder = resource.handed_to
    WHERE
        resource.grp = :grp AND resource.handed_to IS NOT NULL
        AND lease.ended IS NULL AND lease.holder <> :holder
)

SELECT min(ends_at) FROM parts;

-- name: guest_add
INSERT INTO guest (grp, holder) VALUES (:grp, :holder) ON CONFLICT DO NOTHING;

-- name: guest_drop
DELETE FROM guest WHERE holder = :holder;

-- name: leases_purge
-- The first condition on ends_at is for the index and a little wide; the second is the rule.
DELETE FROM lease INDEXED BY lease_over
WHERE
    ended IS NOT NULL AND grp <> ''
    AND ends_at < :now - :after_s + 1.0 AND ends_at + :after_s < :now
RETURNING holder;

-- name: leases_purge_lone
DELETE FROM lease INDEXED BY lease_over_lone
WHERE
    ended IS NOT NULL AND grp = ''
    AND ends_at < :now - :after_s + 1.0 AND ends_at + :after_s < :now
RETURNING holder;

-- name: info
SELECT info FROM member WHERE holder = :holder;

-- name: info_write
INSERT INTO member (holder, info) VALUES (:holder, :info)
ON CONFLICT (holder) DO UPDATE SET info = excluded.info;

-- name: info_drop
DELETE FROM member WHERE holder = :holder;

-- name: peers_changed
SELECT
    lease.holder, lease.grp, member.info, lease.ends_at, lease.ended, lease.version,
    lease.duration_s, lease.dismissed
FROM lease INNER JOIN member ON member.holder = lease.holder
WHERE lease.grp = :grp AND lease.version > :since
ORDER BY lease.version, lease.holder;

-- name: peers_live
SELECT
    lease.holder, lease.grp, member.info, lease.ends_at, lease.ended, lease.version,
    lease.duration_s, lease.dismissed
FROM lease INNER JOIN member ON member.holder = lease.holder
WHERE lease.grp = :grp AND lease.ended IS NULL AND lease.ends_at > :now
ORDER BY lease.holder;


-- Resources

-- name: declare
-- A row that somebody deleted comes back with the epoch that its history still knows.
INSERT INTO resource (key, grp, epoch, forgotten, version)
VALUES (
    :key, :grp, (SELECT coalesce(max(term.epoch), 0) FROM term WHERE term.key = :key), 0, :version
)
ON CONFLICT (key) DO UPDATE SET forgotten = 0, version = excluded.version
WHERE resource.forgotten = 1;

-- name: groups
-- From one group to the next by the index: a group of ten thousand keys costs one look.
WITH RECURSIVE step (grp) AS (
    SELECT min(resource.grp) FROM resource
    UNION ALL
    SELECT (SELECT min(resource.grp) FROM resource WHERE resource.grp > step.grp)
    FROM step
    WHERE step.grp IS NOT NULL
)

SELECT step.grp
FROM step
WHERE EXISTS (SELECT 1 FROM resource WHERE resource.grp = step.grp AND resource.forgotten = 0);

-- name: resources_by_key
SELECT * FROM resource_seen WHERE key IN (SELECT value FROM json_each(:keys));

-- name: resources_of_group
SELECT * FROM resource_seen WHERE grp = :grp AND forgotten = 0 ORDER BY key;

-- name: resources_changed
SELECT * FROM resource_seen WHERE grp = :grp AND version > :since ORDER BY version, key;

-- name: resources_changed_elsewhere
SELECT *
FROM resource_seen
WHERE holder = :holder AND version > :since AND grp <> :grp
ORDER BY version, key;

-- name: resources_due
-- Breaks that fell due, and hand-overs that are over. The indexes are named because they hold
-- only what is under way: any other plan would read the whole group in every renewal.
SELECT key FROM resource INDEXED BY resource_breaking
WHERE grp = :grp AND break_at IS NOT NULL AND break_at <= :now
UNION ALL
SELECT resource.key
FROM resource INDEXED BY resource_handed
LEFT JOIN lease ON lease.holder = resource.handed_to
WHERE
    resource.grp = :grp
    AND resource.handed_to IS NOT NULL
    AND (
        resource.handed_until <= :now
        OR lease.holder IS NULL
        OR lease.ended IS NOT NULL
        OR lease.ends_at <= :now
    );

-- name: resource_write
UPDATE resource
SET
    epoch = :epoch, holder = :holder, handed_to = :handed_to, handed_until = :handed_until,
    handed_by = :handed_by, asked_by = :asked_by, break_at = :break_at, forgotten = :forgotten, version = :version
WHERE key = :key;


-- Terms

-- name: term_begin
INSERT INTO term (key, epoch, holder, started_at, note)
VALUES (:key, :epoch, :holder, :wall, :note);

-- name: term_end
-- Without a note it keeps the one that it has.
UPDATE term
SET ended_at = :wall, reason = :reason, version = :version, note = coalesce(:note, note)
WHERE key = :key AND epoch = :epoch;

-- name: term_note
UPDATE term SET note = :note WHERE key = :key AND epoch = :epoch;

-- name: term
SELECT holder, reason FROM term WHERE key = :key AND epoch = :epoch;

-- name: term_prune
-- An end that its living holder has not heard of yet is kept until it has.
DELETE FROM term
WHERE
    key = :key AND epoch <= :epoch
    AND NOT EXISTS (
        SELECT 1 FROM lease
        WHERE lease.holder = term.holder AND lease.ended IS NULL AND lease.heard < term.version
    );

-- name: terms_ended
SELECT key, epoch, holder, started_at, ended_at, reason, note
FROM term
WHERE holder = :holder AND version > :since AND reason <> 'reset'
ORDER BY version, key;

-- name: history
SELECT key, epoch, holder, started_at, ended_at, reason, note
FROM term
WHERE key = :key
ORDER BY epoch DESC
LIMIT :most;


-- Checkpoints

-- name: checkpoint_positions
SELECT key, sequence_number FROM checkpoint WHERE key IN (SELECT value FROM json_each(:keys));

-- name: checkpoint_write
INSERT INTO checkpoint (key, grp, epoch, sequence_number, stream_offset, updated_at)
VALUES (:key, :grp, :epoch, :sequence_number, :stream_offset, :wall)
ON CONFLICT (key) DO UPDATE
SET
    epoch = excluded.epoch, sequence_number = excluded.sequence_number,
    stream_offset = excluded.stream_offset, updated_at = excluded.updated_at;

-- name: checkpoint_remove
DELETE FROM checkpoint WHERE key = :key;

-- name: checkpoints_reset
-- Of these keys those that nobody has owned since their last reset, and where that put them.
SELECT resource.key, checkpoint.sequence_number, checkpoint.stream_offset
FROM json_each(:keys) AS wanted
CROSS JOIN resource ON resource.key = wanted.value
CROSS JOIN term ON term.key = resource.key AND term.epoch = resource.epoch
LEFT JOIN checkpoint ON checkpoint.key = resource.key
WHERE term.reason = 'reset';

-- name: checkpoints
SELECT key, epoch, sequence_number, stream_offset, updated_at
FROM checkpoint
WHERE grp = :grp
ORDER BY key;

-- name: fenced_add
INSERT INTO fenced (grp, refused) VALUES (:grp, :refused)
ON CONFLICT (grp) DO UPDATE SET refused = refused + excluded.refused;

-- name: fenced
SELECT refused FROM fenced WHERE grp = :grp;
