"""Checkpoint locations: one spelling for each, and the name under which it is reserved.

Two spellings of one location must give one name, else two drivers could work on it. On a local disk
links are followed. Different machines give the same path the same name: that is safe.
"""

from __future__ import annotations

import hashlib
import json
import os
import posixpath
import re
from typing import TYPE_CHECKING, Any

from leasehold.errors import InvalidName, UsageError
from leasehold.names import job_key

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOCAL = "file:///"
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):(.*)", re.DOTALL)
_JOB_PREFIX = "checkpoint "


def canonical(location: str, *, default: str = LOCAL) -> str:
    """Return the canonical ``location``; ``default``: the file system of paths without a scheme."""
    if not location.strip():
        raise UsageError(
            f"checkpoint_location is {location!r}: give the directory that the query keeps its "
            "progress in, the same as in option('checkpointLocation')"
        )
    found = _SCHEME.fullmatch(location)
    if found is None:
        if default.startswith("file:"):
            return f"file:{os.path.realpath(location)}"
        return canonical(f"{default.rstrip('/')}/{location.lstrip('/')}")
    scheme, rest = found[1].lower(), found[2]
    if scheme == "file":
        return f"file:{os.path.realpath('/' + rest.lstrip('/'))}"
    authority, _, path = rest.removeprefix("//").partition("/")
    clean = posixpath.normpath("/" + path.lstrip("/"))
    return f"{scheme}://{authority.lower()}{clean.rstrip('/')}"


def job_name(location: str) -> str:
    """Return the name under which a canonical location is reserved."""
    name = f"{_JOB_PREFIX}{location}"
    try:
        job_key(name)
    except InvalidName:  # too long, or not printable
        return f"{_JOB_PREFIX}sha256 {hashlib.sha256(location.encode()).hexdigest()}"
    return name


def default_file_system(spark: SparkSession) -> str:
    """Return the file system in which Spark resolves paths without a scheme."""
    return str(spark._jsc.hadoopConfiguration().get("fs.defaultFS", LOCAL))  # noqa: SLF001


def query_id(spark: SparkSession, location: str) -> str | None:
    """Return the id of the query whose checkpoint this is; None if it has never been started.

    Spark keeps it for the life of the checkpoint. Batch numbers are only meaningful with it.
    """
    jvm: Any = spark._jvm  # noqa: SLF001
    hadoop = spark._jsc.hadoopConfiguration()  # noqa: SLF001
    path = jvm.org.apache.hadoop.fs.Path(location, "metadata")
    files = path.getFileSystem(hadoop)
    if not files.exists(path):
        return None
    stream = files.open(path)
    try:
        text = jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8")
    finally:
        stream.close()
    return str(json.loads(text)["id"])
