-- Every statement of the journal, each under its name, for SQLite and for PostgreSQL. Lists are given
-- as JSON; PostgreSQL has a json_each of ours in the schema leasehold, chosen by the cast to TEXT.
-- Those named *_rows do the same as the ones without for many rows at once, for SQLite only: there each
-- statement costs a turn of the interpreter's lock. PostgreSQL is sent the others in one pipeline.
-- Those that return whole files return the columns of the view fs_seen, in its order.

-- name: guard
-- PostgreSQL only: the write lock.
SELECT id FROM fs_meta WHERE id = 1 FOR UPDATE;

-- name: meta
SELECT last_file_id, last_block_id, last_epoch, last_line, refused FROM fs_meta WHERE id = 1;

-- name: meta_write
UPDATE fs_meta
SET
    last_file_id = :file_id, last_block_id = :block_id, last_epoch = :epoch, last_line = :line,
    refused = :refused
WHERE id = 1;

-- name: namespace
SELECT namespace FROM fs_meta WHERE id = 1;

-- name: namespace_write
UPDATE fs_meta SET namespace = :namespace WHERE id = 1 AND namespace = '';


-- Lines

-- name: line
INSERT INTO fs_journal (number, at, step, file_id, path, epoch, holder, detail)
VALUES (:number, :at, :step, :file_id, :path, :epoch, :holder, :detail);

-- name: line_rows
INSERT INTO fs_journal (number, at, step, file_id, path, epoch, holder, detail)
SELECT
    json_extract(value, '$.number'), json_extract(value, '$.at'), json_extract(value, '$.step'),
    json_extract(value, '$.file_id'), json_extract(value, '$.path'), json_extract(value, '$.epoch'),
    json_extract(value, '$.holder'), json_extract(value, '$.detail')
FROM json_each(:rows);

-- name: lines_of_range
-- One line for each file of a range, before it is renamed or deleted.
INSERT INTO fs_journal (number, at, step, file_id, path, epoch, holder, detail)
SELECT
    :number + row_number() OVER (ORDER BY fs_file.path),
    CAST(:at AS TEXT),
    CAST(:step AS TEXT),
    fs_file.id,
    CAST(:target AS TEXT) || substr(fs_file.path, :cut),
    fs_file.epoch,
    fs_file.holder,
    CAST(:detail AS TEXT)
FROM fs_file
WHERE fs_file.path >= :low AND fs_file.path < :high;

-- name: last_line
SELECT last_line FROM fs_meta WHERE id = 1;

-- name: paths_changed
-- By the primary key: only what came after the last line that was looked at.
SELECT DISTINCT path FROM fs_journal WHERE number > :after AND path >= :low AND path < :high;

-- name: lines_prune
DELETE FROM fs_journal WHERE number <= :oldest;

-- name: history
SELECT number, at, step, file_id, path, epoch, holder, detail
FROM fs_journal
WHERE file_id = :file_id
ORDER BY number DESC
LIMIT :limit;


-- Holders

-- name: holder_enlist
INSERT INTO fs_holder (id, token, host, pid, address, since_at, renewed_s)
VALUES (:id, :token, :host, :pid, :address, :wall, :now)
ON CONFLICT (id) DO UPDATE
SET renewed_s = excluded.renewed_s, address = excluded.address
WHERE fs_holder.token = excluded.token;

-- name: holder_renew
UPDATE fs_holder SET renewed_s = :now WHERE id = :id AND token = :token;

-- name: holder_token
SELECT token FROM fs_holder WHERE id = :id;

-- name: holder_drop
-- Only without files: the row is the lease of all of them.
DELETE FROM fs_holder
WHERE
    id = :id
    AND NOT EXISTS (
        SELECT 1 FROM fs_file
        WHERE fs_file.holder = :id AND fs_file.state <> 'closed'
    );

-- name: holders
SELECT
    fs_holder.id, fs_holder.host, fs_holder.pid, fs_holder.since_at, fs_holder.renewed_s,
    (
        SELECT count(*) FROM fs_file
        WHERE fs_file.holder = fs_holder.id AND fs_file.state <> 'closed'
    ) AS open_files
FROM fs_holder
ORDER BY fs_holder.renewed_s, fs_holder.id
LIMIT :limit;

-- name: holders_idle
SELECT fs_holder.id
FROM fs_holder
WHERE
    fs_holder.renewed_s < :before
    AND NOT EXISTS (
        SELECT 1 FROM fs_file
        WHERE fs_file.holder = fs_holder.id AND fs_file.state <> 'closed'
    )
ORDER BY fs_holder.renewed_s
LIMIT :limit;

-- name: holders_drop_idle
-- Asked again under the lock: since it was listed, a holder may have come back.
DELETE FROM fs_holder
WHERE
    id IN (SELECT value FROM json_each(CAST(:ids AS TEXT)))
    AND renewed_s < :before
    AND NOT EXISTS (
        SELECT 1 FROM fs_file
        WHERE fs_file.holder = fs_holder.id AND fs_file.state <> 'closed'
    );


-- Volumes

-- name: volume_write
INSERT INTO fs_volume (id, path, added_at) VALUES (:id, :path, :wall)
ON CONFLICT (id) DO UPDATE SET path = excluded.path;

-- name: volumes
SELECT id, path FROM fs_volume ORDER BY id;

-- name: volume_drop
DELETE FROM fs_volume WHERE id = :id;


-- Files

-- name: look
-- The file at a path, the files where its directories should be, and the first file below it.
SELECT * FROM fs_seen WHERE path IN (SELECT value FROM json_each(CAST(:paths AS TEXT)))
UNION ALL
SELECT * FROM (
    SELECT * FROM fs_seen WHERE path >= :low AND path < :high ORDER BY path LIMIT 1
) AS first_below;

-- name: looks
-- The same for several paths, each with the beginning of what lies below it, a slash at its end.
SELECT * FROM fs_seen WHERE path IN (SELECT value FROM json_each(CAST(:paths AS TEXT)))
UNION ALL
SELECT fs_seen.*
FROM json_each(CAST(:lows AS TEXT)) AS low
INNER JOIN fs_seen ON fs_seen.path = (
    SELECT min(fs_file.path) FROM fs_file
    WHERE
        fs_file.path >= low.value
        AND fs_file.path < substr(low.value, 1, length(low.value) - 1) || '0'
);

-- name: file_at
SELECT * FROM fs_seen WHERE path = :path;

-- name: file
SELECT * FROM fs_seen WHERE id = :id;

-- name: files_below
SELECT * FROM fs_seen
WHERE path >= :low AND path < :high AND path > :after
ORDER BY path
LIMIT :limit;

-- name: files_open
SELECT * FROM fs_seen
WHERE state <> 'closed' AND id > :after_id AND path >= :low AND path < :high AND opened_at <= :before
ORDER BY id
LIMIT :limit;

-- name: streams
-- The streams of the log: their segments are only removed by the log itself.
SELECT name FROM log_stream;

-- name: files_count
SELECT count(*) FROM fs_file WHERE path >= :low AND path < :high;

-- name: files_longest
SELECT path FROM fs_file WHERE path >= :low AND path < :high ORDER BY length(path) DESC LIMIT 1;

-- name: file_add
INSERT INTO fs_file (
    id, path, state, epoch, holder, length, replication, block_size, created_at, modified_at,
    opened_at, request
)
VALUES (
    :id, :path, 'open', :epoch, :holder, 0, :replication, :block_bytes, :wall, :wall, :wall, :request
);

-- name: file_add_rows
INSERT INTO fs_file (
    id, path, state, epoch, holder, length, replication, block_size, created_at, modified_at,
    opened_at, request
)
SELECT
    json_extract(value, '$.id'), json_extract(value, '$.path'), 'open',
    json_extract(value, '$.epoch'), json_extract(value, '$.holder'), 0,
    json_extract(value, '$.replication'), json_extract(value, '$.block_bytes'),
    json_extract(value, '$.wall'), json_extract(value, '$.wall'), json_extract(value, '$.wall'),
    json_extract(value, '$.request')
FROM json_each(:rows);

-- name: file_open
UPDATE fs_file
SET
    state = 'open', epoch = :epoch, holder = :holder, modified_at = :wall, opened_at = :wall,
    request = :request
WHERE id = :id;

-- name: file_grow
UPDATE fs_file SET length = length + :grown, modified_at = :wall WHERE id = :id;

-- name: file_close
UPDATE fs_file
SET
    state = 'closed', length = length + :grown, modified_at = :wall, recovered = :recovered,
    attempts = 0, attempt_until_s = 0.0, next_attempt_s = 0.0, trouble = ''
WHERE id = :id;

-- name: file_close_rows
UPDATE fs_file
SET
    state = 'closed', length = length + json_extract(closed.value, '$.grown'),
    modified_at = json_extract(closed.value, '$.wall'),
    recovered = json_extract(closed.value, '$.recovered'),
    attempts = 0, attempt_until_s = 0.0, next_attempt_s = 0.0, trouble = ''
FROM json_each(:rows) AS closed
WHERE fs_file.id = json_extract(closed.value, '$.id');

-- name: file_recovering
UPDATE fs_file
SET
    state = 'recovering', epoch = :epoch, holder = :holder, attempts = attempts + 1,
    attempt_until_s = :until_s, next_attempt_s = :until_s
WHERE id = :id;

-- name: file_failed
UPDATE fs_file
SET attempt_until_s = :now, next_attempt_s = :next_s, trouble = :trouble
WHERE id = :id;

-- name: files_rename
UPDATE fs_file
SET path = CAST(:target AS TEXT) || substr(path, :cut)
WHERE path >= :low AND path < :high;

-- name: files_drop
DELETE FROM fs_file WHERE path >= :low AND path < :high;

-- name: due_held
-- CROSS JOIN: from the oldest holders, which the index has in their order, to their files.
SELECT fs_file.path
FROM fs_holder CROSS JOIN fs_file
WHERE
    fs_holder.renewed_s < :before
    AND fs_file.holder = fs_holder.id AND fs_file.state <> 'closed' AND fs_file.state = 'open'
ORDER BY fs_holder.renewed_s, fs_holder.id, fs_file.id
LIMIT :limit;

-- name: due_again
SELECT path
FROM fs_file
WHERE state = 'recovering' AND next_attempt_s <= :now
ORDER BY next_attempt_s
LIMIT :limit;


-- Blocks

-- name: held
-- A file with its open block, one row for each volume of the block.
SELECT
    fs_seen.*,
    fs_block.id AS block_id, fs_block.file_id, fs_block.idx, fs_block.generation,
    fs_block.state AS block_state, fs_block.start, fs_block.length AS block_length,
    fs_block.checksum, fs_replica.volume_id, fs_replica.copy_epoch
FROM fs_seen
LEFT JOIN fs_block ON fs_block.file_id = fs_seen.id AND fs_block.state = 'open'
LEFT JOIN fs_replica ON fs_replica.block_id = fs_block.id
WHERE fs_seen.id = :id
ORDER BY fs_replica.volume_id;

-- name: helds
-- The same for several files.
SELECT
    fs_seen.*,
    fs_block.id AS block_id, fs_block.file_id, fs_block.idx, fs_block.generation,
    fs_block.state AS block_state, fs_block.start, fs_block.length AS block_length,
    fs_block.checksum, fs_replica.volume_id, fs_replica.copy_epoch
FROM fs_seen
LEFT JOIN fs_block ON fs_block.file_id = fs_seen.id AND fs_block.state = 'open'
LEFT JOIN fs_replica ON fs_replica.block_id = fs_block.id
WHERE fs_seen.id IN (SELECT CAST(value AS BIGINT) FROM json_each(CAST(:ids AS TEXT)))
ORDER BY fs_seen.id, fs_replica.volume_id;

-- name: block
SELECT
    fs_block.id, fs_block.file_id, fs_block.idx, fs_block.generation, fs_block.state,
    fs_block.start, fs_block.length, fs_block.checksum, fs_replica.volume_id, fs_replica.copy_epoch
FROM fs_block LEFT JOIN fs_replica ON fs_replica.block_id = fs_block.id
WHERE fs_block.id = :id
ORDER BY fs_replica.volume_id;

-- name: blocks
SELECT
    fs_block.id, fs_block.file_id, fs_block.idx, fs_block.generation, fs_block.state,
    fs_block.start, fs_block.length, fs_block.checksum, fs_replica.volume_id, fs_replica.copy_epoch
FROM fs_block LEFT JOIN fs_replica ON fs_replica.block_id = fs_block.id
WHERE fs_block.file_id = :file_id
ORDER BY fs_block.idx, fs_replica.volume_id;

-- name: next_index
SELECT coalesce(max(idx), -1) + 1 FROM fs_block WHERE file_id = :file_id;

-- name: block_add
INSERT INTO fs_block (id, file_id, idx, generation, state, start, length, checksum)
VALUES (:id, :file_id, :idx, :generation, 'open', :start, 0, 0);

-- name: block_add_rows
INSERT INTO fs_block (id, file_id, idx, generation, state, start, length, checksum)
SELECT
    json_extract(value, '$.id'), json_extract(value, '$.file_id'), json_extract(value, '$.idx'),
    json_extract(value, '$.generation'), 'open', json_extract(value, '$.start'), 0, 0
FROM json_each(:rows);

-- name: block_seal
UPDATE fs_block
SET state = 'complete', generation = :generation, length = :length, checksum = :checksum
WHERE id = :id;

-- name: block_seal_rows
UPDATE fs_block
SET
    state = 'complete', generation = json_extract(sealed.value, '$.generation'),
    length = json_extract(sealed.value, '$.length'),
    checksum = json_extract(sealed.value, '$.checksum')
FROM json_each(:rows) AS sealed
WHERE fs_block.id = json_extract(sealed.value, '$.id');

-- name: block_drop
DELETE FROM fs_block WHERE id = :id;

-- name: loss_add
INSERT INTO fs_loss (file_id, epoch, at, start, bytes, detail)
VALUES (:file_id, :epoch, :at, :start, :bytes, :detail);

-- name: losses
SELECT epoch, at, start, bytes, detail FROM fs_loss WHERE file_id = :file_id ORDER BY epoch;

-- name: losses_drop_of_range
DELETE FROM fs_loss
WHERE file_id IN (SELECT fs_file.id FROM fs_file WHERE fs_file.path >= :low AND fs_file.path < :high);

-- name: blocks_drop_of_range
DELETE FROM fs_block
WHERE file_id IN (SELECT fs_file.id FROM fs_file WHERE fs_file.path >= :low AND fs_file.path < :high);


-- Replicas

-- name: replicas_add
INSERT INTO fs_replica (block_id, volume_id)
SELECT CAST(:block_id AS BIGINT), value FROM json_each(CAST(:volumes AS TEXT));

-- name: replicas_add_rows
INSERT INTO fs_replica (block_id, volume_id)
SELECT json_extract(block.value, '$.block_id'), volume.value
FROM json_each(:rows) AS block
CROSS JOIN json_each(json_extract(block.value, '$.volumes')) AS volume;

-- name: replicas_trash
-- Those of a block that are not on the volumes to keep.
INSERT INTO fs_trash (block_id, volume_id)
SELECT block_id, volume_id FROM fs_replica
WHERE block_id = :block_id AND volume_id NOT IN (SELECT value FROM json_each(CAST(:keep AS TEXT)))
ON CONFLICT DO NOTHING;

-- name: replicas_drop
DELETE FROM fs_replica
WHERE block_id = :block_id AND volume_id NOT IN (SELECT value FROM json_each(CAST(:keep AS TEXT)));

-- name: replicas_trash_of_range
INSERT INTO fs_trash (block_id, volume_id)
SELECT fs_replica.block_id, fs_replica.volume_id
FROM fs_file
INNER JOIN fs_block ON fs_block.file_id = fs_file.id
INNER JOIN fs_replica ON fs_replica.block_id = fs_block.id
WHERE fs_file.path >= :low AND fs_file.path < :high AND fs_replica.copy_epoch = 0
ON CONFLICT DO NOTHING;

-- name: replicas_drop_of_range
DELETE FROM fs_replica
WHERE block_id IN (
    SELECT fs_block.id
    FROM fs_file INNER JOIN fs_block ON fs_block.file_id = fs_file.id
    WHERE fs_file.path >= :low AND fs_file.path < :high
);

-- name: trash
SELECT block_id, volume_id FROM fs_trash
WHERE volume_id NOT IN (SELECT value FROM json_each(CAST(:without AS TEXT)))
ORDER BY block_id, volume_id LIMIT :limit;

-- name: trash_forget
DELETE FROM fs_trash WHERE block_id = :block_id AND volume_id = :volume_id;


-- Copies

-- name: blocks_after
-- Complete blocks by their ids, each with the path and the replication of its file.
SELECT
    fs_file.path, fs_file.replication,
    fs_block.id, fs_block.file_id, fs_block.idx, fs_block.generation, fs_block.state,
    fs_block.start, fs_block.length, fs_block.checksum, fs_replica.volume_id, fs_replica.copy_epoch
FROM fs_block
INNER JOIN fs_file ON fs_file.id = fs_block.file_id
LEFT JOIN fs_replica ON fs_replica.block_id = fs_block.id
WHERE
    fs_block.id IN (
        SELECT id FROM fs_block WHERE id > :after AND state = 'complete' ORDER BY id LIMIT :limit
    )
ORDER BY fs_block.id, fs_replica.volume_id;

-- name: open_on
-- Open blocks with a replica on a volume.
SELECT fs_block.id
FROM fs_block INNER JOIN fs_replica ON fs_replica.block_id = fs_block.id
WHERE fs_block.state = 'open' AND fs_replica.volume_id = :volume_id;

-- name: replica_write
INSERT INTO fs_replica (block_id, volume_id, copy_epoch) VALUES (:block_id, :volume_id, :epoch)
ON CONFLICT (block_id, volume_id) DO UPDATE SET copy_epoch = excluded.copy_epoch;

-- name: replicas_drop_unknown
-- Those on volumes that were replaced.
DELETE FROM fs_replica
WHERE block_id = :block_id AND volume_id NOT IN (SELECT fs_volume.id FROM fs_volume);

-- name: trash_add
INSERT INTO fs_trash (block_id, volume_id) VALUES (:block_id, :volume_id) ON CONFLICT DO NOTHING;

-- name: copy_add
INSERT INTO fs_copy (block_id, volume_id, epoch, holder, until_s, is_over)
VALUES (:block_id, :volume_id, :epoch, :holder, :until_s, :is_over)
ON CONFLICT DO NOTHING;

-- name: copies_of
SELECT volume_id, epoch, holder, until_s FROM fs_copy WHERE block_id = :block_id AND is_over = 0;

-- name: copy_renew
UPDATE fs_copy SET until_s = :until_s
WHERE block_id = :block_id AND volume_id = :volume_id AND epoch = :epoch AND is_over = 0;

-- name: copy_end
UPDATE fs_copy SET is_over = 1
WHERE block_id = :block_id AND volume_id = :volume_id AND epoch = :epoch;

-- name: copies_late
SELECT block_id, volume_id, epoch FROM fs_copy WHERE is_over = 0 AND until_s <= :now LIMIT :limit;

-- name: copies_over
-- Those to be removed, and those that were not renewed in time.
SELECT block_id, volume_id, epoch, is_over FROM fs_copy
WHERE
    (is_over = 1 OR until_s <= :now)
    AND volume_id NOT IN (SELECT value FROM json_each(CAST(:without AS TEXT)))
ORDER BY block_id, volume_id, epoch
LIMIT :limit;

-- name: copy_forget
DELETE FROM fs_copy
WHERE block_id = :block_id AND volume_id = :volume_id AND epoch = :epoch AND is_over = :is_over;

-- name: copies_end_of_range
UPDATE fs_copy SET is_over = 1
WHERE block_id IN (
    SELECT fs_block.id
    FROM fs_file INNER JOIN fs_block ON fs_block.file_id = fs_file.id
    WHERE fs_file.path >= :low AND fs_file.path < :high
);

-- name: copies_of_range
-- The replicas of files that are deleted, if they were copied.
INSERT INTO fs_copy (block_id, volume_id, epoch, holder, until_s, is_over)
SELECT fs_replica.block_id, fs_replica.volume_id, fs_replica.copy_epoch, '', 0.0, 1
FROM fs_file
INNER JOIN fs_block ON fs_block.file_id = fs_file.id
INNER JOIN fs_replica ON fs_replica.block_id = fs_block.id
WHERE fs_file.path >= :low AND fs_file.path < :high AND fs_replica.copy_epoch > 0
ON CONFLICT DO NOTHING;
