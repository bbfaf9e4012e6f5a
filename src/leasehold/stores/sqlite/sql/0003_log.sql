-- The event log: the streams there are, and who may read a partition under an epoch. The events
-- themselves lie in files; who writes them is decided there.

-- One row: by its row lock (on PostgreSQL) the mutex of all that change these tables.
CREATE TABLE log_meta (
    id INTEGER PRIMARY KEY CHECK (id = 1)
) STRICT;

INSERT INTO log_meta (id) VALUES (1);

CREATE TABLE log_stream (
    name TEXT PRIMARY KEY,
    partitions INTEGER NOT NULL,
    segment_bytes INTEGER NOT NULL,
    segment_age_s REAL NOT NULL,
    replication INTEGER NOT NULL,
    retain_age_s REAL NOT NULL,
    retain_bytes INTEGER NOT NULL,
    created_at TEXT NOT NULL
) STRICT, WITHOUT ROWID;

-- The highest epoch that a group has shown for a partition, and the reader that showed it last.
CREATE TABLE log_reader (
    stream TEXT NOT NULL,
    part INTEGER NOT NULL,
    grp TEXT NOT NULL,
    epoch INTEGER NOT NULL,
    name TEXT NOT NULL,
    claimed_at TEXT NOT NULL,
    PRIMARY KEY (stream, part, grp)
) STRICT, WITHOUT ROWID;

-- Checkpoints by their full key.
CREATE VIEW log_position AS
SELECT checkpoint.key, checkpoint.sequence_number FROM checkpoint;
