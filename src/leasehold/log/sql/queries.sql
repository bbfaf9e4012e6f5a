-- The statements of the catalog of streams, written once for SQLite and for PostgreSQL.

-- name: guard
-- PostgreSQL only: the write lock.
SELECT id FROM log_meta WHERE id = 1 FOR UPDATE;

-- name: stream_create
INSERT INTO log_stream (
    name, partitions, segment_bytes, segment_age_s, replication, retain_age_s, retain_bytes,
    created_at
)
VALUES (
    :stream, :partitions, :segment_bytes, :segment_age_s, :replication, :retain_age_s, :retention_bytes,
    :wall
)
ON CONFLICT (name) DO NOTHING;

-- name: stream_get
SELECT
    name, partitions, segment_bytes, segment_age_s, replication, retain_age_s, retain_bytes,
    created_at
FROM log_stream
WHERE name = :stream;

-- name: stream_list
SELECT
    name, partitions, segment_bytes, segment_age_s, replication, retain_age_s, retain_bytes,
    created_at
FROM log_stream
ORDER BY name;

-- name: stream_grow
-- Never fewer: somebody may have grown it further at the same moment.
UPDATE log_stream SET partitions = :partitions WHERE name = :stream AND partitions < :partitions;

-- name: stream_delete
DELETE FROM log_stream WHERE name = :stream;

-- name: reader_get
SELECT epoch, name FROM log_reader WHERE stream = :stream AND part = :part AND grp = :grp;

-- name: reader_put
INSERT INTO log_reader (stream, part, grp, epoch, name, claimed_at)
VALUES (:stream, :part, :grp, :epoch, :reader, :wall)
ON CONFLICT (stream, part, grp) DO UPDATE
SET epoch = excluded.epoch, name = excluded.name, claimed_at = excluded.claimed_at;

-- name: readers_delete
DELETE FROM log_reader WHERE stream = :stream;

-- name: positions
-- All keys from the first to before the last form the range of one stream.
SELECT key, sequence_number FROM log_position WHERE key >= :first AND key < :last;
