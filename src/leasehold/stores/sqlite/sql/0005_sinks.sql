-- What sinks of pipelines remember: how far each group has come in them, under which epoch, by
-- which commits; and which files of a directory are committed. The statements over these tables are
-- in leasehold/spark/sinks/sql/.

-- One row: by its row lock (on PostgreSQL) the mutex of all that change these tables.
CREATE TABLE sink_meta (
    id INTEGER PRIMARY KEY CHECK (id = 1)
) STRICT;

INSERT INTO sink_meta (id) VALUES (1);

-- A directory that is a sink. ``columns`` is null until something was committed.
CREATE TABLE sink_home (
    sink TEXT PRIMARY KEY,
    place TEXT NOT NULL UNIQUE,
    columns TEXT,
    made_at TEXT NOT NULL
) STRICT, WITHOUT ROWID;

-- ``position`` is the first event that the sink does not hold; null: nobody has said.
CREATE TABLE sink_position (
    sink TEXT NOT NULL,
    grp TEXT NOT NULL,
    part TEXT NOT NULL,
    epoch INTEGER NOT NULL,
    position INTEGER,
    changed_at TEXT NOT NULL,
    PRIMARY KEY (sink, grp, part)
) STRICT, WITHOUT ROWID;

CREATE TABLE sink_commit (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE,
    sink TEXT NOT NULL,
    grp TEXT NOT NULL,
    holder TEXT NOT NULL,
    began_at TEXT NOT NULL,
    committed_at TEXT NOT NULL,
    row_count INTEGER NOT NULL,
    byte_count INTEGER NOT NULL,
    file_count INTEGER NOT NULL
) STRICT;

CREATE INDEX sink_commit_by_group ON sink_commit (sink, grp, number);

CREATE TABLE sink_share (
    commit_id TEXT NOT NULL,
    part TEXT NOT NULL,
    first_event INTEGER NOT NULL,
    next_event INTEGER NOT NULL,
    epoch INTEGER NOT NULL,
    PRIMARY KEY (commit_id, part)
) STRICT, WITHOUT ROWID;

-- The manifest: the files that a reader may read, by their paths in the directory.
CREATE TABLE sink_file (
    sink TEXT NOT NULL,
    path TEXT NOT NULL,
    commit_id TEXT NOT NULL,
    row_count INTEGER NOT NULL,
    byte_count INTEGER NOT NULL,
    PRIMARY KEY (sink, path)
) STRICT, WITHOUT ROWID;

-- Batches whose files were swept away, and that can no longer be committed.
CREATE TABLE sink_swept (
    id TEXT PRIMARY KEY,
    swept_at TEXT NOT NULL
) STRICT, WITHOUT ROWID;
