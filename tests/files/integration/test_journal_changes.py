"""What the journal tells those who wait for something to happen below a directory."""

from __future__ import annotations

import pytest
from tests.support.namespaces import World

from leasehold.files.journal import journal as journal_module


def test_every_step_is_told_once_to_those_below_whose_directory_it_was(both: World) -> None:
    files = both.open()
    first, paths = files.changes("/a")
    assert paths is None  # nobody said from where on

    with files.create("/a/1") as writer:
        created, paths = files.changes("/a", after=first)
        assert paths == frozenset({"/a/1"})
        assert files.changes("/ab", after=first) == (created, frozenset())
        writer.write(b"bytes have no line")
        writer.sync()
        assert files.changes("/a", after=created) == (created, frozenset())
    closed, paths = files.changes("/a", after=created)
    assert paths == frozenset({"/a/1"})
    assert closed > created
    files.create("/a/2").close()
    files.create("/b/1").close()
    last, paths = files.changes("/", after=closed)
    assert paths == frozenset({"/a/2", "/b/1"})
    files.delete("/a", recursive=True)
    assert files.changes("/a", after=last)[1] == frozenset({"/a/1", "/a/2"})


def test_lines_that_are_no_longer_kept_or_not_yet_there_can_not_be_told(
    one: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = one.open()
    for number in range(5):
        files.create(f"/a/{number}").close()
    last, _ = files.changes("/a")
    monkeypatch.setattr(journal_module, "KEPT_LINES", 3)

    assert files.changes("/a", after=last - 3)[1] == frozenset({"/a/3", "/a/4"})
    assert files.changes("/a", after=last - 4) == (last, None)
    assert files.changes("/a", after=last + 1) == (last, None)  # another database, or an older one
