"""Options that make the JVM of a test cheap: compiled once, one collector thread, known classes.

Half the CPU of a Spark driver's start is the loading of the same classes. An archive of them, as
Java's AppCDS makes it, is made once for a checkout, in ``.tools``, by whoever needs it first; a
Java that cannot make one does without. The options change how fast Spark starts, and nothing else.
"""

from __future__ import annotations

import fcntl
import hashlib
import subprocess
import sys
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import pyspark

from leasehold.spark.sessions import java_home

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HOME = Path(__file__).parents[2] / ".tools"
PLAIN = "-Xss8m -XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
LIMIT_S = 500
CLASSES = 2  # another number whenever ``main`` uses other ones
# To compile code for a few rows takes longer than to look at them. Examples and the demo do it.
UNCOMPILED = {
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.codegen.wholeStage": "false",
}


@cache
def quick_jvm() -> str:
    """For ``spark.driver.extraJavaOptions`` and the like."""
    archive = _archive()
    # A JVM that cannot use the archive starts without, and should not tell anybody.
    return f"{PLAIN} -XX:SharedArchiveFile={archive} -Xlog:cds*=off" if archive else PLAIN


def _archive() -> Path | None:
    """The archive for this Java and this Spark. An empty file says that it could not be made."""
    java = java_home() / "bin" / "java"
    what = f"{java.read_text(encoding='utf-8')} {pyspark.__version__} {Path(pyspark.__file__)}"
    what += f" {CLASSES}"
    made = HOME / f"spark-{hashlib.sha256(what.encode()).hexdigest()[:12]}.jsa"
    HOME.mkdir(exist_ok=True)
    with made.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not made.exists():
            _make(made)
    return made if made.stat().st_size else None


def _make(archive: Path) -> None:
    draft = archive.with_suffix(".draft")
    for former in (draft, *HOME.glob("spark-*.jsa")):
        former.unlink(missing_ok=True)
    subprocess.run(
        [sys.executable, "-m", "tests.support.jvm", str(draft)],
        cwd=HOME.parent,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        timeout=LIMIT_S,
        check=False,
    )
    if not draft.exists():
        draft.touch()
    draft.replace(archive)


def end(spark: SparkSession) -> None:
    """Stop the session, and wait until its JVM has ended."""
    gateway = spark.sparkContext._gateway
    assert gateway is not None
    spark.stop()
    java = gateway.proc
    gateway.shutdown()
    java.stdin.close()  # the JVM ends with it
    java.wait(LIMIT_S)


def _stream(spark: SparkSession, directory: Path) -> None:
    """A query over our own source, as drivers with a standby run it."""
    from leasehold.events import Event
    from leasehold.log import Log

    url = f"sqlite:///{directory}/leases.db"
    with Log.open(url, volumes=[directory / "volume"]) as log:
        log.create("events", partitions=1)
        with log.producer("events") as producer:
            producer.send(Event(body=b"1")).result()
    events = spark.readStream.format("leasehold").option("store", url).load("events")
    query = (
        events.writeStream.foreachBatch(lambda frame, _number: frame.toArrow())
        .option("checkpointLocation", str(directory / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


def main(draft: str) -> None:
    """Do what drivers do, and leave the classes that it took in ``draft``."""
    from leasehold.spark.sessions import session

    options = f"{PLAIN} -XX:ArchiveClassesAtExit={draft} -Xlog:cds*=off"
    settings = {"spark.driver.extraJavaOptions": options, "spark.driver.memory": "512m"}
    spark = session("archive", master="local[1]", settings=settings)
    rows = spark.range(10).selectExpr("id % 3 as third", "id")
    rows.groupBy("third").count().collect()
    spark.createDataFrame(rows.toArrow()).mapInArrow(lambda batches: batches, rows.schema).collect()
    with TemporaryDirectory() as directory:
        _stream(spark, Path(directory))
    end(spark)  # the JVM writes the archive then


if __name__ == "__main__":
    main(sys.argv[1])
