-- Batches that Spark writes to the event log. What is committed here is in the log, or on its way.

-- Who writes batches to a stream. stream_made tells the stream from another of its name; refused
-- counts writes under an older epoch.
CREATE TABLE log_sink (
    name TEXT PRIMARY KEY,
    stream TEXT NOT NULL,
    stream_made TEXT NOT NULL,
    last_number INTEGER NOT NULL,
    refused INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- How far a sink has come in a partition of what it reads, and the highest epoch it has heard of.
-- moved_epoch is that of the last commit.
CREATE TABLE log_sink_place (
    sink TEXT NOT NULL,
    grp TEXT NOT NULL,
    part TEXT NOT NULL,
    position INTEGER,
    epoch INTEGER NOT NULL,
    moved_epoch INTEGER NOT NULL,
    PRIMARY KEY (sink, grp, part)
) STRICT, WITHOUT ROWID;

-- tended_at: seconds of the store's clock, when somebody was last at work on publishing it.
CREATE TABLE log_sink_commit (
    sink TEXT NOT NULL,
    number INTEGER NOT NULL,
    stream TEXT NOT NULL,
    stream_made TEXT NOT NULL,
    lane TEXT NOT NULL,
    partitions INTEGER NOT NULL,
    grp TEXT NOT NULL,
    holder TEXT NOT NULL,
    began_at TEXT NOT NULL,
    committed_at TEXT NOT NULL,
    row_count INTEGER NOT NULL,
    byte_count INTEGER NOT NULL,
    files TEXT NOT NULL,
    tended_at REAL NOT NULL,
    published INTEGER NOT NULL,
    PRIMARY KEY (sink, number)
) STRICT, WITHOUT ROWID;

CREATE INDEX log_sink_left ON log_sink_commit (stream, number) WHERE published = 0;

CREATE TABLE log_sink_share (
    sink TEXT NOT NULL,
    number INTEGER NOT NULL,
    part TEXT NOT NULL,
    start_at INTEGER NOT NULL,
    end_at INTEGER NOT NULL,
    epoch INTEGER NOT NULL,
    PRIMARY KEY (sink, number, part)
) STRICT, WITHOUT ROWID;

-- Who holds a key, by its full name, and when that ends by itself, in seconds of the store's clock.
CREATE VIEW log_owner AS
SELECT
    resource.key,
    resource.epoch,
    resource.holder,
    coalesce(min(lease.ends_at, resource.break_at), lease.ends_at) AS ends_at
FROM resource
INNER JOIN lease ON lease.holder = resource.holder AND lease.ended IS NULL;
