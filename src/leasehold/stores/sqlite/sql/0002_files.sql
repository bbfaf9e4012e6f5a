-- The namespace of files: who writes what, and where the blocks lie. Columns named *_s are seconds
-- of CLOCK_BOOTTIME, by which everything is decided; those named *_at are text for people.

-- One row: the last numbers that were given out, and how many steps were refused.
CREATE TABLE fs_meta (
    id INTEGER PRIMARY KEY CHECK (id = 1),
    last_file_id INTEGER NOT NULL,
    last_block_id INTEGER NOT NULL,
    last_epoch INTEGER NOT NULL,
    last_line INTEGER NOT NULL,
    refused INTEGER NOT NULL,
    namespace TEXT NOT NULL
) STRICT;

INSERT INTO fs_meta (id, last_file_id, last_block_id, last_epoch, last_line, refused, namespace)
VALUES (1, 0, 0, 0, 0, 0, '');

CREATE TABLE fs_volume (
    id TEXT PRIMARY KEY,
    path TEXT NOT NULL,
    added_at TEXT NOT NULL
) STRICT;

-- A holder's lease over all its files: a renewal writes one of these rows and nothing else.
CREATE TABLE fs_holder (
    id TEXT PRIMARY KEY,
    token TEXT NOT NULL,
    host TEXT NOT NULL,
    pid INTEGER NOT NULL,
    address TEXT NOT NULL,
    since_at TEXT NOT NULL,
    renewed_s REAL NOT NULL
) STRICT, WITHOUT ROWID;

CREATE INDEX fs_holder_by_age ON fs_holder (renewed_s);

-- holder: who writes or recovers it; of a closed file, who did last. recovered: the id of the last
-- recovery that was committed. request: the caller's own name for the call that opened it.
CREATE TABLE fs_file (
    id INTEGER PRIMARY KEY,
    path TEXT NOT NULL UNIQUE,
    state TEXT NOT NULL,
    epoch INTEGER NOT NULL,
    holder TEXT NOT NULL,
    length INTEGER NOT NULL,
    replication INTEGER NOT NULL,
    block_size INTEGER NOT NULL,
    created_at TEXT NOT NULL,
    modified_at TEXT NOT NULL,
    opened_at TEXT NOT NULL,
    request TEXT NOT NULL,
    recovered INTEGER NOT NULL DEFAULT 0,
    attempts INTEGER NOT NULL DEFAULT 0,
    attempt_until_s REAL NOT NULL DEFAULT 0.0,
    next_attempt_s REAL NOT NULL DEFAULT 0.0,
    trouble TEXT NOT NULL DEFAULT ''
) STRICT;

CREATE INDEX fs_file_held ON fs_file (holder, state) WHERE state <> 'closed';
CREATE INDEX fs_file_open ON fs_file (id) WHERE state <> 'closed';
CREATE INDEX fs_file_recovering ON fs_file (next_attempt_s) WHERE state = 'recovering';

CREATE TABLE fs_block (
    id INTEGER PRIMARY KEY,
    file_id INTEGER NOT NULL,
    idx INTEGER NOT NULL,
    generation INTEGER NOT NULL,
    state TEXT NOT NULL,
    start INTEGER NOT NULL,
    length INTEGER NOT NULL,
    checksum INTEGER NOT NULL,
    UNIQUE (file_id, idx)
) STRICT;

-- Only one block of a file may be open.
CREATE UNIQUE INDEX fs_block_open ON fs_block (file_id) WHERE state = 'open';

CREATE TABLE fs_replica (
    block_id INTEGER NOT NULL,
    volume_id TEXT NOT NULL,
    PRIMARY KEY (block_id, volume_id)
) STRICT, WITHOUT ROWID;

-- Replicas that no file has any more, to be removed from their volumes.
CREATE TABLE fs_trash (
    block_id INTEGER NOT NULL,
    volume_id TEXT NOT NULL,
    PRIMARY KEY (block_id, volume_id)
) STRICT, WITHOUT ROWID;

CREATE TABLE fs_journal (
    number INTEGER PRIMARY KEY,
    at TEXT NOT NULL,
    step TEXT NOT NULL,
    file_id INTEGER NOT NULL,
    path TEXT NOT NULL,
    epoch INTEGER NOT NULL,
    holder TEXT NOT NULL,
    detail TEXT NOT NULL
) STRICT;

CREATE INDEX fs_journal_of_file ON fs_journal (file_id, number);

-- A file with what is known of its holder. No row of the holder: as if silent for ever.
CREATE VIEW fs_seen AS
SELECT
    fs_file.id,
    fs_file.path,
    fs_file.state,
    fs_file.epoch,
    fs_file.holder,
    fs_file.length,
    fs_file.replication,
    fs_file.block_size,
    fs_file.created_at,
    fs_file.modified_at,
    fs_file.opened_at,
    fs_file.request,
    fs_file.recovered,
    fs_file.attempts,
    fs_file.attempt_until_s,
    fs_file.next_attempt_s,
    fs_file.trouble,
    coalesce(fs_holder.token, '') AS token,
    coalesce(fs_holder.host, '') AS host,
    coalesce(fs_holder.pid, 0) AS pid,
    coalesce(fs_holder.address, '') AS address,
    coalesce(fs_holder.renewed_s, -1000000000.0) AS renewed_s
FROM fs_file LEFT JOIN fs_holder ON fs_holder.id = fs_file.holder;
