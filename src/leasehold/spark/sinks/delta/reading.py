"""Reading one version of a Delta table with Spark alone, without the jar of Delta."""

from __future__ import annotations

from typing import TYPE_CHECKING

from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError

from leasehold.errors import UsageError
from leasehold.spark.sinks.delta.schema import all_nullable, columns_of
from leasehold.spark.sinks.delta.storage import storage

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping

    from pyspark.sql import DataFrame, SparkSession

_DELETIONS = "deletionVectors"


def read_delta(
    spark: SparkSession,
    path: str | os.PathLike[str],
    *,
    version: int | None = None,
    storage_options: Mapping[str, str] | None = None,
) -> DataFrame:
    """The rows of the table as it is now, or as it was at a version; later commits do not show.

    Raises:
        UsageError: there is no table, or it marks rows as deleted in a way that only Delta's own
            reader knows.
    """
    place = storage(path, dict(storage_options or {}))
    try:
        table = DeltaTable(place.uri, version=version, storage_options=place.settings)
    except TableNotFoundError as error:
        raise UsageError(
            f"there is no Delta table at {place.name}: look at the path; a pipeline makes the "
            "table with its first commit"
        ) from error
    if _DELETIONS in (table.protocol().reader_features or ()):
        raise UsageError(
            f"the Delta table at {place.name} may have deletion vectors, which need Delta's own "
            "reader: read it with delta-spark, or with deltalake"
        )
    columns = all_nullable(columns_of(table))
    files = table.file_uris()
    if not files:
        return spark.createDataFrame([], columns)
    reader = spark.read.schema(columns).option("basePath", place.uri)
    return reader.parquet(*files).select(*(f"`{name}`" for name in columns.fieldNames()))
