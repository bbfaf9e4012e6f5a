"""Where a pipeline writes; the contract is in ``leasehold.spark.sinks.port``."""
