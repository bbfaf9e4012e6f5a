"""The Spark data source ``leasehold``: events as Arrow, read and written in batches and streams."""

from __future__ import annotations

from typing import TYPE_CHECKING

from leasehold.spark.source.data_source import LeaseholdSource

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["LeaseholdSource", "register"]


def register(spark: SparkSession) -> None:
    """Make ``format("leasehold")`` known to the session. Safe to call twice."""
    spark.dataSource.register(LeaseholdSource)
