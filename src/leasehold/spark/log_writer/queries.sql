-- The statements of the publication ledger of the event log, written once for SQLite and PostgreSQL.

-- name: guard
-- PostgreSQL only: the write lock.
SELECT id FROM log_meta WHERE id = 1 FOR UPDATE;

-- name: sink_get
SELECT stream, stream_made, last_number, refused FROM log_sink WHERE name = :sink;

-- name: sink_put
INSERT INTO log_sink (name, stream, stream_made, last_number, refused)
VALUES (:sink, :stream, :created_at, 0, 0)
ON CONFLICT (name) DO NOTHING;

-- name: sink_number
UPDATE log_sink SET last_number = :number WHERE name = :sink;

-- name: sink_refused
UPDATE log_sink SET refused = refused + 1 WHERE name = :sink;

-- name: sink_forget
DELETE FROM log_sink WHERE name = :sink;

-- name: position_get
SELECT position, epoch, moved_epoch FROM log_sink_place
WHERE sink = :sink AND grp = :grp AND part = :partition;

-- name: position_highest_epoch
-- Over all checkpoints that a query ever had.
SELECT coalesce(max(epoch), 0) FROM log_sink_place WHERE sink = :sink AND grp = :grp;

-- name: position_fence
INSERT INTO log_sink_place (sink, grp, part, position, epoch, moved_epoch)
VALUES (:sink, :grp, :partition, NULL, :epoch, 0)
ON CONFLICT (sink, grp, part) DO UPDATE SET epoch = excluded.epoch
WHERE log_sink_place.epoch < excluded.epoch;

-- name: position_move
INSERT INTO log_sink_place (sink, grp, part, position, epoch, moved_epoch)
VALUES (:sink, :grp, :partition, :position, :epoch, :epoch)
ON CONFLICT (sink, grp, part) DO UPDATE
SET position = excluded.position, epoch = excluded.epoch, moved_epoch = excluded.moved_epoch;

-- name: positions_forget
DELETE FROM log_sink_place WHERE sink = :sink;

-- name: commit_put
INSERT INTO log_sink_commit (
    sink, number, stream, stream_made, lane, partitions, grp, holder, began_at, committed_at,
    row_count, byte_count, files, tended_at, published
)
VALUES (
    :sink, :number, :stream, :created_at, :producer, :partitions, :grp, :holder, :began_at, :committed_at,
    :row_count, :byte_count, :files, :tended_at, 0
);

-- name: commit_get
SELECT
    sink, number, stream, stream_made, lane, partitions, row_count, byte_count, files, published
FROM log_sink_commit
WHERE sink = :sink AND number = :number;

-- name: commits_unpublished
-- Of one stream: all that is committed and not published.
SELECT
    sink, number, stream, stream_made, lane, partitions, row_count, byte_count, files, published,
    tended_at, grp
FROM log_sink_commit
WHERE stream = :stream AND published = 0
ORDER BY sink, number;

-- name: commit_heartbeat
UPDATE log_sink_commit SET tended_at = :now
WHERE sink = :sink AND number = :number AND published = 0;

-- name: commit_published
UPDATE log_sink_commit SET published = 1, files = '[]'
WHERE sink = :sink AND number = :number AND published = 0;

-- name: commit_forget
DELETE FROM log_sink_commit WHERE sink = :sink AND number <= :number AND published = 1;

-- name: part_put
INSERT INTO log_sink_share (sink, number, part, start_at, end_at, epoch)
VALUES (:sink, :number, :partition, :start_at, :end_at, :epoch);

-- name: parts_of
SELECT part FROM log_sink_share WHERE sink = :sink AND number = :number;

-- name: part_last
-- The newest commit of a group that ends at this position.
SELECT log_sink_share.number
FROM log_sink_share
INNER JOIN log_sink_commit
    ON log_sink_commit.sink = log_sink_share.sink
    AND log_sink_commit.number = log_sink_share.number
WHERE log_sink_share.sink = :sink AND log_sink_commit.grp = :grp
    AND log_sink_share.part = :partition AND log_sink_share.end_at = :end_at
ORDER BY log_sink_share.number DESC
LIMIT 1;

-- name: parts_forget
DELETE FROM log_sink_share WHERE sink = :sink AND number <= :number;

-- name: history
SELECT
    log_sink_commit.number, log_sink_share.part, log_sink_share.start_at, log_sink_share.end_at,
    log_sink_share.epoch, log_sink_commit.holder, log_sink_commit.began_at,
    log_sink_commit.committed_at, log_sink_commit.row_count
FROM log_sink_commit
INNER JOIN log_sink_share
    ON log_sink_share.sink = log_sink_commit.sink
    AND log_sink_share.number = log_sink_commit.number
WHERE log_sink_commit.sink = :sink AND log_sink_commit.grp = :grp
ORDER BY log_sink_commit.number, log_sink_share.part;

-- name: owner_get
SELECT epoch, holder, ends_at FROM log_owner WHERE key = :key;
