"""The examples run as they are printed."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

EXAMPLES = Path(__file__).parents[2] / "examples"


def test_share_partitions(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path}/leases.db"
    with subprocess.Popen(
        [sys.executable, str(EXAMPLES / "share_partitions.py"), store],
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("sharing 8 partitions")
        first = [process.stdout.readline() for _ in range(8)]
        assert all(line.startswith("mine      partition/orders/billing/") for line in first)
        process.send_signal(signal.SIGINT)
        rest = process.stdout.read().splitlines()
        assert process.wait() == 0
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
    assert done.stderr.startswith("error: 'sqlit:///x' names no store: write memory://, sqlite:///")
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
