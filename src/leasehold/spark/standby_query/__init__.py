"""Structured Streaming queries with standby drivers, and the fences of their sinks."""
