"""Found by Spark by its name: makes ``format("leasehold")`` known without registration."""

from leasehold.spark.source import LeaseholdSource as DefaultSource

__all__ = ["DefaultSource"]
