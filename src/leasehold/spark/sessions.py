"""A Spark session with the settings that matter for small, frequent batches of Arrow.

Each setting below was measured; what a program or ``spark-defaults.conf`` sets itself stays.
"""

from __future__ import annotations

import os
import sys
from importlib.resources import as_file, files
from typing import TYPE_CHECKING

from pyspark.conf import SparkConf
from pyspark.sql import SparkSession

from leasehold.spark.java import java_home

if TYPE_CHECKING:
    from collections.abc import Mapping

_LOCAL = "local["
_CHECKPOINTS = (
    "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
)
_STACK = "-Xss8m"  # else a query that is stopped in a batch may end in a StackOverflowError


def session(
    name: str = "leasehold",
    *,
    master: str | None = None,
    settings: Mapping[str, str] | None = None,
    quiet: bool = True,
) -> SparkSession:
    """The Spark session of this process, made if there is none. It finds our data source itself.

    ``master``: as Spark knows it; without one what ``spark-submit`` says, else ``local[*]``.
    ``settings`` win over ours. ``quiet``: only errors are logged, without a progress bar.

    Raises:
        UsageError: there is no Java.
    """
    running = SparkSession.getActiveSession()
    if running is not None:
        return running
    _prepare_environment()
    conf = SparkConf()
    conf.setIfMissing("spark.app.name", name)
    conf.setIfMissing("spark.master", master or "local[*]")
    if master is not None:
        conf.setMaster(master)
    for key, value in (settings or {}).items():
        conf.set(key, value)
    for key, value in _defaults(conf).items():
        conf.setIfMissing(key, value)
    if quiet:
        _silence(conf)
    return SparkSession.builder.config(conf=conf).getOrCreate()


def _defaults(conf: SparkConf) -> dict[str, str]:
    found = {
        # 40 ms less per small stage with Python in it
        "spark.python.unix.domain.socket.enabled": "true",
        # no process is forked for each file of a checkpoint: half the fixed cost of a batch
        "spark.sql.streaming.checkpointFileManagerClass": _CHECKPOINTS,
        # our reader takes filters; Spark refuses such a reader while this is off
        "spark.sql.python.filterPushdown.enabled": "true",
        "spark.sql.session.timeZone": "UTC",
        "spark.driver.extraJavaOptions": _STACK,
    }
    master = conf.get("spark.master", "") or ""
    if master.startswith(_LOCAL):
        # One per core; the default of 200 makes small batches 30 times dearer.
        found["spark.sql.shuffle.partitions"] = str(_cores(master))
        found["spark.ui.enabled"] = "false"
    return found


def _cores(master: str) -> int:
    inside = master.removeprefix(_LOCAL).partition("]")[0].partition(",")[0]
    return int(inside) if inside.isdigit() else len(os.sched_getaffinity(0))


def _silence(conf: SparkConf) -> None:
    with as_file(files(__package__).joinpath("log4j2.properties")) as place:
        told = conf.get("spark.driver.extraJavaOptions", "") or ""
        if "log4j2.configurationFile" not in told:
            option = f"{told} -Dlog4j2.configurationFile=file:{place}"
            conf.set("spark.driver.extraJavaOptions", option.strip())
    conf.setIfMissing("spark.ui.showConsoleProgress", "false")


def _prepare_environment() -> None:
    os.environ["JAVA_HOME"] = str(java_home())
    # Else workers run the first python3 in PATH, which may know nothing of Arrow.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
