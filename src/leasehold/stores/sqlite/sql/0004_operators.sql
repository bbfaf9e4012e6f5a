-- What operators ask for. 1: this member was asked to leave.
ALTER TABLE lease ADD COLUMN dismissed INTEGER NOT NULL DEFAULT 0;
