"""What Spark sees of the data source: its name, its columns, and who reads and writes."""

from __future__ import annotations

from pyspark.sql.datasource import DataSource


class LeaseholdSource(DataSource):
    """``spark.read.format("leasehold")`` and its three siblings."""

    @classmethod
    def name(cls) -> str:
        """The name of the format."""
        return "leasehold"
