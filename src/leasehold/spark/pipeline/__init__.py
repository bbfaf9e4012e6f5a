"""A pipeline: several drivers share a stream, and each event goes into the sink once."""
