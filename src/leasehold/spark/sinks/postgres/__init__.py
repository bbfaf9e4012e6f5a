"""A table of PostgreSQL as a sink: rows and positions in one transaction."""
