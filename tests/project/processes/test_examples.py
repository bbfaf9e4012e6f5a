"""The examples run as they are printed."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from leasehold.errors import UnknownStream, UsageError
from leasehold.events import Event
from leasehold.log import Log, LogOptions

EXAMPLES = Path(__file__).parents[3] / "examples"
PATIENCE_S = 60
LOOK_EVERY_S = 0.05


def test_share_partitions(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path}/leases.db"
    with subprocess.Popen(
        [sys.executable, str(EXAMPLES / "share_partitions.py"), store],
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline().startswith("sharing 8 partitions")
            first = [process.stdout.readline() for _ in range(8)]
            assert all(line.startswith("mine      partition/shards/workers/") for line in first)
            process.send_signal(signal.SIGINT)
            rest = process.stdout.read().splitlines()
            assert process.wait() == 0
        finally:
            process.kill()
    assert sorted(line.split()[0] for line in rest) == (
        ["finishing"] * 8 + ["leaving:"] + ["not"] * 8
    )


def test_a_wrong_url_is_one_line() -> None:
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / "share_partitions.py"), "sqlit:///x"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr.startswith(
        "error: a URL of scheme 'sqlit' names no store (did you mean sqlite://?): write memory://"
    )
    assert len(done.stderr.splitlines()) == 1


def printed(example: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / example)], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()


def shown_in(page: str, command: str) -> list[str]:
    """What a page says that a command prints: the lines below it in its block."""
    text = (EXAMPLES.parent / "docs" / page).read_text(encoding="utf-8")
    return text.split(f"$ {command}\n", maxsplit=1)[1].split("\n```", maxsplit=1)[0].splitlines()


def test_single_writer_file_prints_what_its_page_says() -> None:
    command = "python examples/single_writer_file.py"
    assert printed("single_writer_file.py") == shown_in("files.md", command)


def test_event_log_prints_what_its_page_says() -> None:
    assert printed("event_log.py") == shown_in("log.md", "python examples/event_log.py")


def appended(place: Path, *bodies: bytes, partition: int | None = None) -> None:
    """Append events, as soon as the program that makes the stream has made it."""
    tries = 0
    while True:
        try:
            log = Log.open(f"sqlite:///{place}/leases.db", options=LogOptions(run_monitor=False))
            with log, log.producer("orders") as producer:
                producer.send([Event(body=each) for each in bodies], partition=partition).result()
        except (UsageError, UnknownStream):  # no volume yet, or no stream
            tries += 1
            assert tries < PATIENCE_S / LOOK_EVERY_S
            threading.Event().wait(LOOK_EVERY_S)
        else:
            return


def in_a_shell(line: str, place: Path) -> str:
    paths = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    plain = {name: value for name, value in os.environ.items() if name != "COLUMNS"}
    done = subprocess.run(
        ["bash", "-c", line],
        cwd=place,
        env={**plain, "PATH": paths, "LEASEHOLD_STORE": "sqlite:///leases.db"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{line}: {done.stderr}"
    return done.stdout


def page(name: str) -> str:
    return (EXAMPLES.parent / name).read_text(encoding="utf-8")


def python_after(text: str, heading: str) -> list[str]:
    """The programs of one section."""
    section = text.split(f"## {heading}\n", maxsplit=1)[1].split("\n## ", maxsplit=1)[0]
    return re.findall(r"```python\n(.*?)```", section, re.DOTALL)


def test_the_shell_and_the_group_of_the_log_page_work_as_printed(tmp_path: Path) -> None:
    section = page("docs/log.md").split("## From a shell\n", maxsplit=1)[1]
    lines = re.findall(r"^[$] (.*)$", section.split("\n```\n", maxsplit=2)[1], re.MULTILINE)
    assert lines.pop().startswith("leasehold log tail")  # it never ends
    said = [in_a_shell(line, tmp_path) for line in lines]
    assert len(said[-2].splitlines()) == 11
    assert '{"customer": "c7", "total": 7}' in said[-1]
    [program] = python_after(page("docs/log.md"), "Read as a group, with checkpoints")
    (tmp_path / "group.py").write_text(program, encoding="utf-8")
    assert "1009 events" in in_a_shell("python group.py", tmp_path)
    appended(tmp_path, *[b"more"] * 5)
    assert "5 events" in in_a_shell("python group.py", tmp_path).splitlines()


@contextmanager
def host(*words: str, place: Path) -> Iterator[Callable[[str], str]]:
    """A processor that runs; what is yielded waits for a line. It is stopped as Ctrl-C does."""
    with subprocess.Popen(
        [sys.executable, "-u", *words],
        cwd=place,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None

        def line(begin: str) -> str:
            for each in process.stdout or ():
                if each.startswith(begin):
                    return each.rstrip()
            process.kill()
            pytest.fail(f"no line {begin!r}: {process.communicate()[1]}")

        try:
            yield line
            process.send_signal(signal.SIGINT)
            _, said = process.communicate(timeout=PATIENCE_S)
            assert (process.returncode, said) == (0, "")
        finally:
            process.kill()


@pytest.mark.spec("P14")
def test_the_processor_of_the_readme_works_as_printed(tmp_path: Path) -> None:
    text = page("README.md").split("## Process a stream with several hosts\n", maxsplit=1)[1]
    shell = text.split("\n```\n", maxsplit=2)[1].replace(".venv/bin/", "")
    create, _, append, describe = shell.splitlines()
    in_a_shell(create, tmp_path)
    counts = [line.split() for line in in_a_shell(append, tmp_path).splitlines()]
    assert [each[0] for each in counts if each[0].isdigit()] == ["0", "1", "2", "3"]
    [program] = python_after(page("README.md"), "Process a stream with several hosts")
    (tmp_path / "readme.py").write_text(program, encoding="utf-8")
    with host("readme.py", place=tmp_path) as line:
        line("3 ")
    assert "4 partitions" in in_a_shell(describe, tmp_path)


@pytest.mark.spec("P14")
def test_the_programs_of_the_processor_page_work_as_printed(tmp_path: Path) -> None:
    first = re.findall(r"```python\n(.*?)```", page("docs/processor.md"), re.DOTALL)[0]
    (tmp_path / "first.py").write_text(first, encoding="utf-8")
    with host("first.py", place=tmp_path) as line:
        # One event: handlers of several partitions print at once, and their words may mix.
        appended(tmp_path, b"one", partition=3)
        assert line("3 0 ") == "3 0 b'one'"
    [options] = python_after(page("docs/processor.md"), "Settings")
    (tmp_path / "settings.py").write_text(options, encoding="utf-8")
    in_a_shell("python settings.py", tmp_path)


@pytest.mark.spec("P14")
def test_process_events(tmp_path: Path) -> None:
    store = "sqlite:///leases.db"
    with host(str(EXAMPLES / "process_events.py"), store, place=tmp_path) as line:
        line("mine: partition ")
        appended(tmp_path, b"one", partition=3)
        assert line("3/0: ").endswith("one")


def test_the_programs_of_the_pages_work_as_printed_and_twice(tmp_path: Path) -> None:
    readme = python_after(page("README.md"), "Files with one writer")
    writing = python_after(page("docs/files.md"), "Writing and reading")
    for number, program in enumerate((*readme, *writing)):
        (tmp_path / f"{number}.py").write_text(program, encoding="utf-8")
        for _ in range(2):
            in_a_shell(f"python {number}.py", tmp_path)
    assert in_a_shell("leasehold files cat /reports/today", tmp_path) == "one\ntwo\ntwo\n"
