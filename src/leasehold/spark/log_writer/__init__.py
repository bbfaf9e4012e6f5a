"""Writing batches of rows to the log: all of a batch or nothing of it, once."""
