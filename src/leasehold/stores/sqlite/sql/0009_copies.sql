-- Copies of complete blocks that were made again. copy_epoch: the epoch under which this replica was
-- copied, which is in the names of its files; 0 is the one that the writer wrote.
ALTER TABLE fs_replica ADD COLUMN copy_epoch INTEGER NOT NULL DEFAULT 0;

-- Copies that are being made, until until_s at the latest, and (is_over) those to be removed.
CREATE TABLE fs_copy (
    block_id INTEGER NOT NULL,
    volume_id TEXT NOT NULL,
    epoch INTEGER NOT NULL,
    holder TEXT NOT NULL,
    until_s REAL NOT NULL,
    is_over INTEGER NOT NULL,
    PRIMARY KEY (block_id, volume_id, epoch)
) STRICT, WITHOUT ROWID;
