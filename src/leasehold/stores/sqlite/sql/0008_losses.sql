-- Acknowledged bytes that no volume had any more when a file was recovered under this epoch; they
-- followed the byte at start.
CREATE TABLE fs_loss (
    file_id INTEGER NOT NULL,
    epoch INTEGER NOT NULL,
    at TEXT NOT NULL,
    start INTEGER NOT NULL,
    bytes INTEGER NOT NULL,
    detail TEXT NOT NULL,
    PRIMARY KEY (file_id, epoch)
) STRICT, WITHOUT ROWID;
