"""The Spark data source ``leasehold``: events as Arrow, read and written in batches and streams."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

from leasehold.spark.reading import freeze_garbage_collection
from leasehold.spark.source import options
from leasehold.spark.source.layout import default_schema
from leasehold.spark.source.read import batch_reader
from leasehold.spark.source.stream import EventStream

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.datasource import (
        DataSourceReader,
        DataSourceStreamReader,
        DataSourceStreamWriter,
        DataSourceWriter,
    )
    from pyspark.sql.types import StructType

__all__ = ["LeaseholdSource", "register"]


class LeaseholdSource(DataSource):
    """``spark.read.format("leasehold")`` and its three siblings."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "leasehold"

    def schema(self) -> StructType | str:
        """Return the columns of a read that names none.

        Raises:
            UsageError: an option is invalid.
        """
        freeze_garbage_collection()  # this process is asked for each DataFrame
        return default_schema(options.parse(self.options).json)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader for ``spark.read``.

        Raises:
            UsageError: an option or a column is invalid.
        """
        options.check_kind(self.options, streaming=False)
        return batch_reader(schema, options.parse(self.options))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        """Return the reader for ``spark.readStream``.

        Raises:
            UsageError: an option or a column is invalid.
        """
        options.check_kind(self.options, streaming=True)
        return EventStream(schema, options.parse(self.options))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:  # noqa: FBT001
        """Return the writer for ``df.write``.

        Raises:
            UsageError: an option or a column is invalid.
        """
        from leasehold.spark.source.write import batch_writer  # noqa: PLC0415 - only to write

        return batch_writer(self.options, schema, overwrite=overwrite)

    def streamWriter(  # noqa: N802
        self,
        schema: StructType,
        overwrite: bool,  # noqa: FBT001
    ) -> DataSourceStreamWriter:
        """Return the writer for ``df.writeStream``.

        Raises:
            UsageError: an option or a column is invalid.
        """
        from leasehold.spark.source.write import stream_writer  # noqa: PLC0415 - only to write

        return stream_writer(self.options, schema, overwrite=overwrite)


def register(spark: SparkSession) -> None:
    """Make ``format("leasehold")`` known to the session. Safe to call twice."""
    spark.dataSource.register(LeaseholdSource)
