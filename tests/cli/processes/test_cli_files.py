"""``leasehold files`` as a process in a pipe."""

from __future__ import annotations

from pathlib import Path

from tests.support.command import started

from leasehold.files import Namespace


def test_cat_into_a_closed_pipe_says_nothing(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path}/files.db"
    with Namespace.open(store, volumes=[tmp_path / "one"], run_monitor=False) as files:
        with files.create("/a") as writer:
            writer.write(b"x" * 5_000_000)
        with started("files", "cat", "/a", store=store) as process:
            assert process.stdout is not None
            assert process.stderr is not None
            assert process.stdout.read(10) == b"x" * 10
            process.stdout.close()
            said = process.stderr.read()
            assert (process.wait(), said) == (0, b"")
