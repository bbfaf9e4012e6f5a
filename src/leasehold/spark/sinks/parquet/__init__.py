"""A directory of Parquet files as a sink, with a manifest of those that count in the store."""
