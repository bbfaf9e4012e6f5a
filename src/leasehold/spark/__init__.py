"""Spark: the data source, pipelines that share a stream by leases, sinks, standby drivers, audits."""
