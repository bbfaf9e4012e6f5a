"""A real Spark standalone cluster on this machine: a master and workers, as processes of their own.

Everything comes from the installed PySpark and ``leasehold.spark.sessions``. Each process has a
session of its own, into which its executors and their Python workers belong too, and all of it is
killed at the end, whatever has happened.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

import pyspark
from tests.support import sessions
from tests.support.jvm import quick_jvm
from tests.support.sessions import Process

from leasehold.clock import SystemClock
from leasehold.spark.sessions import java_home

CLOCK = SystemClock()
HOST = "127.0.0.1"
PATIENCE_S = 150.0
EXECUTOR = "CoarseGrainedExecutorBackend"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """A master with its workers. ``workers`` are the ids of their sessions."""

    master: str
    page: str
    workers: tuple[int, ...]

    def executors(self, app: str | None = None) -> list[Process]:
        """The executors that run now, of one application or of all."""
        found = [each for worker in self.workers for each in sessions.processes(worker)]
        # The command of the worker itself does not name the class.
        return [
            each
            for each in found
            if EXECUTOR in each.command and (app is None or app in each.command)
        ]

    def kill_executor(self, executor: Process) -> None:
        """SIGKILL to it; its Python workers notice and end."""
        sessions.send(executor.pid, signal.SIGKILL)

    def stop_executor(self, executor: Process) -> list[Process]:
        """SIGSTOP to it and its Python workers; give them to ``resume``."""
        found = sessions.below(executor.pid, sessions.processes(executor.session))
        for each in found:
            sessions.send(each.pid, signal.SIGSTOP)
        return found

    def status(self) -> dict[str, Any]:
        """What the master tells of itself."""
        with urllib.request.urlopen(f"{self.page}/json/", timeout=60) as answer:
            found: dict[str, Any] = json.load(answer)
        return found


def resume(stopped: list[Process]) -> None:
    """SIGCONT to what ``stop_executor`` has stopped."""
    for each in stopped:
        sessions.send(each.pid, signal.SIGCONT)


def settings(*, cores: int = 1, memory: str = "512m") -> dict[str, str]:
    """What a driver needs on this cluster: a bound on its cores, and quiet, quick JVMs."""
    return {
        "spark.cores.max": str(cores),
        "spark.executor.cores": "1",
        "spark.executor.memory": memory,
        "spark.executor.extraJavaOptions": f"{quick_jvm()} {_quiet()}",
        "spark.driver.extraJavaOptions": quick_jvm(),
        "spark.driver.memory": "512m",
        "spark.driver.host": HOST,
        "spark.driver.bindAddress": HOST,
        "spark.sql.shuffle.partitions": str(cores),
        "spark.ui.enabled": "false",
        # An executor that stands still is given up soon, and its tasks run elsewhere.
        "spark.network.timeout": "20s",
        "spark.network.timeoutInterval": "5s",
        "spark.executor.heartbeatInterval": "2s",
    }


@contextmanager
def cluster(
    directory: Path, *, workers: int = 2, cores: int = 1, memory: str = "1g"
) -> Iterator[Cluster]:
    """Start one and wait until all workers have come; killed at the end."""
    directory.mkdir(parents=True, exist_ok=True)
    port, page = free_port(), free_port()
    started: list[subprocess.Popen[bytes]] = []
    try:
        master = f"spark://{HOST}:{port}"
        started.append(
            _begin(
                directory,
                "master",
                "org.apache.spark.deploy.master.Master",
                *("--host", HOST, "--port", str(port), "--webui-port", str(page)),
            )
        )
        for number in range(workers):
            worker_directory = directory / f"worker-{number}"
            started.append(
                _begin(
                    directory,
                    f"worker-{number}",
                    "org.apache.spark.deploy.worker.Worker",
                    *("--host", HOST, "--cores", str(cores), "--memory", memory),
                    *(
                        "--webui-port",
                        str(free_port()),
                        "--work-dir",
                        str(worker_directory),
                        master,
                    ),
                )
            )
        made = Cluster(
            master=master,
            page=f"http://{HOST}:{page}",
            workers=tuple(each.pid for each in started[1:]),
        )
        _wait_for(made, started, directory)
        yield made
    finally:
        for each in reversed(started):
            sessions.kill(each.pid)
            each.wait()


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.socket() as found:
        found.bind((HOST, 0))
        port: int = found.getsockname()[1]
        return port


def environment(more: Mapping[str, str] | None = None) -> dict[str, str]:
    """The variables with which Spark finds Java and Python, and stays on this machine."""
    env = dict(os.environ)
    home = java_home(env)
    if home is not None:
        env["JAVA_HOME"] = str(home)
    env |= {"SPARK_LOCAL_IP": HOST, "PYSPARK_PYTHON": sys.executable}
    return env | dict(more or {})


def _begin(directory: Path, name: str, *command: str) -> subprocess.Popen[bytes]:
    home = Path(pyspark.__file__).parent
    env = environment(
        {
            "SPARK_HOME": str(home),
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": f"{quick_jvm()} {_quiet()}",
        }
    )
    with (directory / f"{name}.log").open("wb") as log:
        return subprocess.Popen(
            [home / "bin" / "spark-class", *command],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=env,
            cwd=directory,
            start_new_session=True,
        )


def _wait_for(made: Cluster, started: list[subprocess.Popen[bytes]], directory: Path) -> None:
    end_s = CLOCK.boottime_s() + PATIENCE_S
    status: object = None
    while CLOCK.boottime_s() < end_s and all(each.poll() is None for each in started):
        try:
            status = made.status()["aliveworkers"]
        except (OSError, ValueError) as error:  # not there yet, or not ready to tell
            status = error
        if status == len(made.workers):
            return
        threading.Event().wait(0.1)
    logs = "\n".join(f"{each.name}:\n{each.read_text()}" for each in directory.glob("*.log"))
    raise AssertionError(f"the cluster does not start ({status}):\n{logs}")


def _quiet() -> str:
    return f"-Dlog4j2.configurationFile=file:{files('leasehold.spark') / 'log4j2.properties'}"
