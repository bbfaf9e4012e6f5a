"""A Java for tests, where each JVM lives for seconds: it starts in about half the time.

The best compiler and the parallel collector pay only in programs that run for long.
"""

from __future__ import annotations

from pathlib import Path

from leasehold.spark.java import java_home

OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


def quick_home(directory: Path) -> Path:
    """Make ``directory`` a JAVA_HOME: the Java of ``session()``, with the options."""
    java = directory / "bin" / "java"
    java.parent.mkdir(parents=True, exist_ok=True)
    java.write_text(
        f"#!/bin/sh\nexec '{java_home()}/bin/java' {OPTIONS} \"$@\"\n", encoding="utf-8"
    )
    java.chmod(0o755)
    return directory
