-- What the holder says of its term; a program that knows no notes leaves it empty.
ALTER TABLE term ADD COLUMN note TEXT NOT NULL DEFAULT '';
