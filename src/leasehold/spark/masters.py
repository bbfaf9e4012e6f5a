"""Which master a Spark session will have, as far as that is told before its Java runs."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.find_spark_home import _find_spark_home

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_ARGUMENTS = "PYSPARK_SUBMIT_ARGS"
_DEFAULTS = "spark-defaults.conf"
_IN_FILE = re.compile(r"^\s*spark\.master(?:\s*[=:]\s*|\s+)(\S+)", re.MULTILINE)
_CONF = "spark.master="


def is_local(master: str) -> bool:
    """Whether executors are threads of the driver."""
    return master == "local" or master.startswith("local[")


def told_master(environment: Mapping[str, str]) -> str:
    """What the variables and ``spark-defaults.conf`` say, in Spark's own order; empty if nothing.

    Never raises: a file that can not be read says nothing.
    """
    try:
        said = shlex.split(environment.get(_ARGUMENTS, ""))
    except ValueError:  # Spark itself will refuse it
        said = []
    from_conf = [
        each.removeprefix(_CONF)
        for option in ("--conf", "-c")
        for each in _values(said, option)
        if each.startswith(_CONF)
    ]
    found = [
        *_values(said, "--master")[-1:],
        *from_conf[-1:],
        *_in_file(_properties(said, environment))[-1:],
        environment.get("MASTER", ""),
    ]
    return found[0]


def _values(said: Sequence[str], option: str) -> list[str]:
    """What follows an option: ``--master yarn`` or ``--master=yarn``."""
    apart = [said[at + 1] for at, each in enumerate(said[:-1]) if each == option]
    joined = [each.partition("=")[2] for each in said if each.startswith(f"{option}=")]
    return apart + joined


def _properties(said: Sequence[str], environment: Mapping[str, str]) -> Path:
    named = _values(said, "--properties-file")
    if named:
        return Path(named[-1])
    home = environment.get("SPARK_HOME") or _find_spark_home()
    return Path(environment.get("SPARK_CONF_DIR") or f"{home}/conf") / _DEFAULTS


def _in_file(path: Path) -> list[str]:
    try:
        return _IN_FILE.findall(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return []
