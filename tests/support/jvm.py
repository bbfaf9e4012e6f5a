"""Options that make the JVM of a test cheap: compiled once, one collector thread, known classes.

Half the CPU of a Spark driver's start is the loading of the same classes. An archive of them, as
Java's AppCDS makes it, is made once for a checkout, in ``.tools``, by whoever needs it first; a
Java that can not make one does without. The options change how fast Spark starts, and nothing else.
"""

from __future__ import annotations

import fcntl
import hashlib
import subprocess
import sys
from functools import cache
from pathlib import Path

import pyspark

from leasehold.spark.java import java_home

HOME = Path(__file__).parents[2] / ".tools"
PLAIN = "-Xss8m -XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
LIMIT_S = 240


@cache
def quick_jvm() -> str:
    """For ``spark.driver.extraJavaOptions`` and the like."""
    archive = _archive()
    # A JVM that can not use the archive starts without, and should not tell anybody.
    return f"{PLAIN} -XX:SharedArchiveFile={archive} -Xlog:cds*=off" if archive else PLAIN


def _archive() -> Path | None:
    """The archive for this Java and this Spark. An empty file says that it could not be made."""
    java = java_home() / "bin" / "java"
    what = f"{java.read_text(encoding='utf-8')} {pyspark.__version__} {Path(pyspark.__file__)}"
    made = HOME / f"spark-{hashlib.sha256(what.encode()).hexdigest()[:12]}.jsa"
    HOME.mkdir(exist_ok=True)
    with made.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not made.exists():
            _make(made)
    return made if made.stat().st_size else None


def _make(archive: Path) -> None:
    draft = archive.with_suffix(".draft")
    draft.unlink(missing_ok=True)
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


def main(draft: str) -> None:
    """Do what drivers do, and leave the classes that it took in ``draft``."""
    from leasehold.spark.sessions import session

    options = f"{PLAIN} -XX:ArchiveClassesAtExit={draft} -Xlog:cds*=off"
    settings = {"spark.driver.extraJavaOptions": options, "spark.driver.memory": "512m"}
    spark = session("archive", master="local[1]", settings=settings)
    rows = spark.range(10).selectExpr("id % 3 as third", "id")
    rows.groupBy("third").count().collect()
    rows.toArrow()
    gateway = spark.sparkContext._gateway
    assert gateway is not None
    spark.stop()
    java = gateway.proc
    gateway.shutdown()
    java.stdin.close()  # the JVM ends with it, and writes the archive then
    java.wait(LIMIT_S)


if __name__ == "__main__":
    main(sys.argv[1])
