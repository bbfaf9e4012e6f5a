"""A PySpark program for tests of ``leasehold run``: its task never ends.

Writes the process ids of the driver, Python's daemon and its worker into the file that it is given.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path

from tests.support.jvm import quick_jvm

from leasehold.spark import session


def working(target: str, driver: int) -> Callable[[int], None]:
    def work(_number: int) -> None:
        made = Path(f"{target}.new")
        made.write_text(f"{driver} {os.getppid()} {os.getpid()}", encoding="ascii")
        made.replace(target)
        threading.Event().wait()

    return work


def main(target: str) -> None:
    settings = {"spark.ui.enabled": "false", "spark.driver.extraJavaOptions": quick_jvm()}
    spark = session("tree", master="local[1]", settings=settings)
    spark.sparkContext.parallelize([1], 1).foreach(working(target, os.getpid()))


if __name__ == "__main__":
    main(sys.argv[1])
