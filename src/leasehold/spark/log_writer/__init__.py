"""The log writer: batches of rows published in the log, all or nothing, each once."""
