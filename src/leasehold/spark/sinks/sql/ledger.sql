-- The statements of the ledger of sinks, written once for SQLite and for PostgreSQL. {schema} is
-- the schema of its tables: nothing in the database of a store, "leasehold_sink." in that of a target.

-- name: position_lock
-- Makes the row if there is none. On PostgreSQL it is locked to the end of the transaction.
INSERT INTO {schema}sink_position AS held (sink, grp, part, epoch, position, changed_at)
VALUES (:sink, :grp, :part, 0, NULL, :wall)
ON CONFLICT (sink, grp, part) DO UPDATE SET epoch = held.epoch;

-- name: positions
SELECT part, epoch, position FROM {schema}sink_position WHERE sink = :sink AND grp = :grp;

-- name: position_fence
UPDATE {schema}sink_position SET epoch = :epoch, changed_at = :wall
WHERE sink = :sink AND grp = :grp AND part = :part AND epoch < :epoch;

-- name: position_put
UPDATE {schema}sink_position SET epoch = :epoch, position = :position, changed_at = :wall
WHERE sink = :sink AND grp = :grp AND part = :part;

-- name: commit_get
SELECT row_count, byte_count, file_count FROM {schema}sink_commit WHERE id = :id;

-- name: commit_put
INSERT INTO {schema}sink_commit (
    id, sink, grp, holder, began_at, committed_at, row_count, byte_count, file_count
)
VALUES (:id, :sink, :grp, :holder, :began_at, :wall, :rows, :bytes, :files);

-- name: part_put
INSERT INTO {schema}sink_share (commit_id, part, first_event, next_event, epoch)
VALUES (:id, :part, :first, :next, :epoch);

-- name: commit_ending
-- The last commit that left a partition at this position under this epoch.
SELECT done.row_count, done.byte_count, done.file_count
FROM {schema}sink_commit AS done
JOIN {schema}sink_share AS share ON share.commit_id = done.id
WHERE
    done.sink = :sink AND done.grp = :grp
    AND share.part = :part AND share.next_event = :next AND share.epoch = :epoch
ORDER BY done.number DESC
LIMIT 1;

-- name: history
SELECT
    done.id, share.part, share.first_event, share.next_event, share.epoch, done.holder,
    done.began_at, done.committed_at, done.row_count
FROM {schema}sink_commit AS done
JOIN {schema}sink_share AS share ON share.commit_id = done.id
WHERE done.sink = :sink AND done.grp = :grp
ORDER BY done.number, share.part;
