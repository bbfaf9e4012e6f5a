-- Times named *_at are either text, ISO 8601 in UTC, for people (granted_at, started_at, ended_at,
-- updated_at), or numbers: seconds of CLOCK_BOOTTIME, by which everything is decided.

-- One row: the counter of changes, and the boot whose seconds the numbers above are.
CREATE TABLE meta (
    id INTEGER PRIMARY KEY CHECK (id = 1),
    version INTEGER NOT NULL,
    boot_id TEXT NOT NULL
) STRICT;

INSERT INTO meta (id, version, boot_id) VALUES (1, 0, '');

-- Small on purpose: a renewal writes one of these rows and nothing else.
-- heard: the highest version this holder has shown that it knows.
CREATE TABLE lease (
    holder TEXT PRIMARY KEY,
    token TEXT NOT NULL,
    grp TEXT NOT NULL,
    duration_s REAL NOT NULL,
    granted_at TEXT NOT NULL,
    ends_at REAL NOT NULL,
    heard INTEGER NOT NULL,
    ended TEXT,
    ended_at TEXT,
    version INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE INDEX lease_changes ON lease (grp, version);
CREATE INDEX lease_live ON lease (grp, ends_at) WHERE ended IS NULL;
CREATE INDEX lease_over ON lease (ends_at) WHERE ended IS NOT NULL AND grp <> '';
CREATE INDEX lease_over_lone ON lease (ends_at) WHERE ended IS NOT NULL AND grp = '';

-- What a member tells of itself, JSON. Apart from its lease: with a load for each of ten thousand
-- keys it is long, and a renewal that does not change it must not copy it.
CREATE TABLE member (
    holder TEXT PRIMARY KEY,
    info TEXT NOT NULL
) STRICT;

-- Leases from outside a group that hold, or held, a key of it, for as long as they last: who
-- watches the group settles them too.
CREATE TABLE guest (
    grp TEXT NOT NULL,
    holder TEXT NOT NULL,
    PRIMARY KEY (grp, holder)
) STRICT, WITHOUT ROWID;

CREATE INDEX guest_holder ON guest (holder);

-- handed_by: who last passed the key on in this epoch.
CREATE TABLE resource (
    key TEXT PRIMARY KEY,
    grp TEXT NOT NULL,
    epoch INTEGER NOT NULL,
    holder TEXT,
    handed_to TEXT,
    handed_until REAL,
    handed_by TEXT,
    asked_by TEXT,
    break_at REAL,
    forgotten INTEGER NOT NULL,
    version INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE INDEX resource_changes ON resource (grp, version);
CREATE INDEX resource_owned ON resource (holder, version) WHERE holder IS NOT NULL;
CREATE INDEX resource_breaking ON resource (grp, break_at) WHERE break_at IS NOT NULL;
CREATE INDEX resource_handed ON resource (grp, handed_to, handed_until) WHERE handed_to IS NOT NULL;

-- version: of the end; null while the term lasts.
CREATE TABLE term (
    key TEXT NOT NULL,
    epoch INTEGER NOT NULL,
    holder TEXT NOT NULL,
    started_at TEXT NOT NULL,
    ended_at TEXT,
    reason TEXT,
    version INTEGER,
    PRIMARY KEY (key, epoch)
) STRICT, WITHOUT ROWID;

CREATE INDEX term_changes ON term (holder, version);

CREATE TABLE checkpoint (
    key TEXT PRIMARY KEY,
    grp TEXT NOT NULL,
    epoch INTEGER NOT NULL,
    sequence_number INTEGER NOT NULL,
    stream_offset TEXT NOT NULL,
    updated_at TEXT NOT NULL
) STRICT, WITHOUT ROWID;

CREATE INDEX checkpoint_group ON checkpoint (grp);

CREATE TABLE fenced (
    grp TEXT PRIMARY KEY,
    refused INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- A resource with what its state hangs on: its owner's lease, and until when it is kept for the
-- one it was handed to (null: no longer).
CREATE VIEW resource_seen AS
SELECT
    resource.key,
    resource.grp,
    resource.epoch,
    resource.holder,
    resource.handed_to,
    resource.handed_until,
    resource.handed_by,
    resource.asked_by,
    resource.break_at,
    resource.forgotten,
    resource.version,
    coalesce(lease.ends_at, 0.0) AS lease_ends_at,
    lease.token AS lease_token,
    min(resource.handed_until, receiver.ends_at) AS kept_until
FROM resource
LEFT JOIN lease ON lease.holder = resource.holder
LEFT JOIN lease AS receiver ON receiver.holder = resource.handed_to AND receiver.ended IS NULL;
