"""A Spark session with the settings that matter for small, frequent batches of Arrow.

Each setting below was measured; what a program or ``spark-defaults.conf`` sets itself stays.
"""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
import sys
from importlib.resources import as_file, files
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark import SparkContext
from pyspark.conf import SparkConf
from pyspark.sql import SparkSession

from leasehold.errors import UsageError
from leasehold.spark.java import java_home
from leasehold.spark.masters import is_local, told_master

if TYPE_CHECKING:
    from collections.abc import Mapping

_LOCAL = "local["
_JAVA_OPTIONS = "spark.driver.extraJavaOptions"
_LOGGING = "log4j2.configurationFile"
_CHECKPOINTS = (
    "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
)
_STACK = "-Xss8m"  # else a query that is stopped in a batch may end in a StackOverflowError
# Arrow for Java asks at each value whether its buffer is still there and long enough. Spark filled
# the buffers from a whole batch a moment before, and a fifth of its time goes into these questions.
# Whether a value is null is still asked.
_UNCHECKED = "arrow.enable_unsafe_memory_access"
_ARROW = f"-D{_UNCHECKED}=true"


def session(
    name: str = "leasehold",
    *,
    master: str | None = None,
    settings: Mapping[str, str] | None = None,
    quiet: bool = True,
) -> SparkSession:
    """The Spark session of this process, made if there is none. It finds our data source itself.

    ``master``: as Spark knows it; without one what ``spark-submit`` says, else ``local[*]``.
    ``settings`` win over ours. ``quiet``: only errors are logged, without a progress bar. A local
    one listens on the loopback address only; with any other master Spark chooses the address.

    Raises:
        UsageError: there is no Java.
    """
    running = SparkSession.getActiveSession()
    if running is not None:
        return running
    _prepare_environment(master or (settings or {}).get("spark.master", ""))
    ours = SparkConf(loadDefaults=False)
    ours.set(_JAVA_OPTIONS, _STACK)
    if master is not None:
        ours.setMaster(master)
    for key, value in (settings or {}).items():
        ours.set(key, value)
    _add(ours, _ARROW, unless=_UNCHECKED)
    if quiet:
        _silence(ours)
    # What spark-submit and spark-defaults.conf say is known only to Java, once it runs.
    SparkContext._ensure_initialized(conf=ours)  # noqa: SLF001
    conf = SparkConf().setAll(ours.getAll())
    conf.setIfMissing("spark.app.name", name)
    conf.setIfMissing("spark.master", "local[*]")
    for key, value in _defaults(conf.get("spark.master", "") or "").items():
        conf.setIfMissing(key, value)
    return SparkSession.builder.config(conf=conf).getOrCreate()


def check_workers(spark: SparkSession) -> None:
    """Return if the Python of Spark's workers on this machine can run our code.

    Raises:
        UsageError: it is another Python, which does not know us.
    """
    context = spark.sparkContext
    found = shutil.which(context.pythonExec)
    if not (context.master or "").startswith(_LOCAL) or found is None:
        return
    if Path(found).parent == Path(sys.executable).parent:
        return
    asked = subprocess.run(  # noqa: S603
        [found, "-c", "import leasehold.spark.reading"], capture_output=True, check=False
    )
    if asked.returncode:
        raise UsageError(
            f"Spark's workers run {found}, which can not import leasehold.spark: set "
            f"PYSPARK_PYTHON={sys.executable} before the session is made, or make it with "
            "leasehold.spark.session()"
        )


def _defaults(master: str) -> dict[str, str]:
    found = {
        # 40 ms less per small stage with Python in it
        "spark.python.unix.domain.socket.enabled": "true",
        # no process is forked for each file of a checkpoint: half the fixed cost of a batch
        "spark.sql.streaming.checkpointFileManagerClass": _CHECKPOINTS,
        "spark.sql.session.timeZone": "UTC",
        "spark.executor.extraJavaOptions": _ARROW,
    }
    if master.startswith(_LOCAL):
        # One per core; the default of 200 makes small batches 30 times dearer.
        found["spark.sql.shuffle.partitions"] = str(_cores(master))
        found["spark.ui.enabled"] = "false"
    return found


def _cores(master: str) -> int:
    inside = master.removeprefix(_LOCAL).partition("]")[0].partition(",")[0]
    return int(inside) if inside.isdigit() else len(os.sched_getaffinity(0))


def _add(conf: SparkConf, option: str, *, unless: str) -> None:
    """One more option for the driver's Java, where the program says nothing about it itself."""
    told = conf.get(_JAVA_OPTIONS, "") or ""
    if unless not in told:
        conf.set(_JAVA_OPTIONS, f"{told} {option}".strip())


def _silence(conf: SparkConf) -> None:
    with as_file(files(__package__).joinpath("log4j2.properties")) as place:
        _add(conf, f"-D{_LOGGING}=file:{place}", unless=_LOGGING)
    conf.setIfMissing("spark.ui.showConsoleProgress", "false")
    # It writes the whole stack of Java for a mistyped column, which is raised anyway.
    logging.getLogger("SQLQueryContextLogger").setLevel(logging.CRITICAL)


def _prepare_environment(master: str) -> None:
    """For the Java that is to run; ``master`` is what the program says, if it does."""
    os.environ["JAVA_HOME"] = str(java_home())
    # Else workers run the first python3 in PATH, which may know nothing of Arrow.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    # Executors elsewhere must reach the driver: only threads of its own find it on the loopback.
    if is_local(master or told_master(os.environ) or "local[*]"):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
