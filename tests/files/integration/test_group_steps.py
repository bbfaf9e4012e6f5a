"""Steps that share a transaction: each sees those before it, and all is as if each were alone."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from tests.files.integration import test_journal as shared
from tests.files.integration.test_group_commit import Counting, Gate, together
from tests.files.integration.test_journal import ANN, BOB, LIMITS, World, create, seal
from tests.support.blocks import GENERATION, ID, files_of, volumes_in, writer_on

from leasehold.errors import FileExists, FileHeld, LeaseLost, UsageError
from leasehold.files import Block, FileStatus
from leasehold.files.block_meta import PIECE_BYTES, parse
from leasehold.files.disk import SystemDisk
from leasehold.files.journal import Journal
from leasehold.files.model import JournalEntry, OpenedFile, RecoveryReason
from leasehold.testing.disk import RecordingDisk

world = shared.world

Calls = list[Callable[[], object]]
ODD = ["/ä€\U0001f600", '/"quoted\\', "/it's/100%", "/:name", "/a b", "/[1]", "/$.id", "/{}"]


def in_one_group(world: World, make: Callable[[Journal], Calls]) -> tuple[Journal, list[object]]:
    """The calls, run in one transaction; the journal is closed with the world."""
    gate = Gate()
    journal = Journal.open(world.url, limits=LIMITS, clock=world.clock, hook=gate)
    world.journals.append(journal)
    answers = together(journal, gate, make(journal))
    assert gate.commits() == 2  # the one that was held up, and theirs
    return journal, answers


def opened(journal: Journal, path: str) -> Callable[[], OpenedFile]:
    return lambda: create(journal, path, request=f"{path} {id(object())}")


@pytest.mark.spec("F1")
def test_two_that_want_one_path_in_one_group_are_told_of_each_other(world: World) -> None:
    def calls(journal: Journal) -> Calls:
        return [
            lambda: create(journal, "/same", ANN),
            lambda: create(journal, "/same", BOB),
            lambda: create(journal, "/up"),
            lambda: create(journal, "/up/down"),
            lambda: create(journal, "/deep/er/down"),
            lambda: create(journal, "/deep"),
            lambda: create(journal, "/upper"),
        ]

    journal, answers = in_one_group(world, calls)
    pairs = [answers[0:2], answers[2:4], answers[4:6]]
    assert [sum(isinstance(each, OpenedFile) for each in pair) for pair in pairs] == [1, 1, 1]
    assert sum(isinstance(each, FileHeld) for each in pairs[0]) == 1
    assert sum(isinstance(each, FileExists) for each in pairs[1] + pairs[2]) == 2
    good = {each.ticket.path for each in answers if isinstance(each, OpenedFile)}
    assert "/upper" in good
    assert {each.path for each in journal.list_open()} == good


def test_a_close_and_its_repetition_in_one_group_have_one_answer(world: World) -> None:
    with closing(Journal.open(world.url, limits=LIMITS, clock=world.clock)) as before:
        file = create(before, "/f")
        other = create(before, "/other")

    def calls(journal: Journal) -> Calls:
        twice: Calls = [lambda: journal.complete(file.ticket, seal(file))] * 2
        return [*twice, lambda: journal.complete(other.ticket, None), lambda: create(journal, "/g")]

    journal, answers = in_one_group(world, calls)
    assert isinstance(answers[0], FileStatus)
    assert answers[0] == answers[1] == journal.status("/f")
    assert answers[2] == journal.status("/other")
    assert [each.step for each in journal.history("/f")] == ["close", "create"]


@pytest.mark.parametrize("goes_on", ["create", "enlist"])
def test_who_closes_its_last_file_and_goes_on_in_one_group_keeps_its_lease(
    world: World, goes_on: str
) -> None:
    with closing(Journal.open(world.url, limits=LIMITS, clock=world.clock)) as before:
        mine = create(before, "/mine")

    def calls(journal: Journal) -> Calls:
        def more() -> None:
            if goes_on == "create":
                create(journal, "/next")
            else:
                journal.enlist(ANN)

        return [lambda: journal.complete(mine.ticket, seal(mine)), more]

    journal, _ = in_one_group(world, calls)
    journal.renew(ANN)
    with pytest.raises(LeaseLost):
        journal.renew(replace(ANN, token="another"))


def test_who_closes_its_last_file_in_a_group_has_no_lease_any_more(world: World) -> None:
    with closing(Journal.open(world.url, limits=LIMITS, clock=world.clock)) as before:
        mine, too = create(before, "/mine"), create(before, "/too")

    def calls(journal: Journal) -> Calls:
        return [
            lambda: journal.complete(mine.ticket, seal(mine)),
            lambda: journal.complete(too.ticket, seal(too)),
            lambda: create(journal, "/theirs", BOB),
        ]

    journal, _ = in_one_group(world, calls)
    assert [each.id for each in journal.holders()] == [BOB.id]


def test_steps_of_other_kinds_see_what_the_group_has_made_and_closed(world: World) -> None:
    with closing(Journal.open(world.url, limits=LIMITS, clock=world.clock)) as before:
        mine = create(before, "/d/mine")

    def calls(journal: Journal) -> Calls:
        return [
            lambda: journal.rename("/d", "/e"),
            lambda: journal.complete(mine.ticket, seal(mine)),
            lambda: create(journal, "/d/new"),
        ]

    journal, answers = in_one_group(world, calls)
    assert answers[0] == 2
    assert [(each.path, each.length) for each in journal.list("/e")] == [
        ("/e/mine", 10),
        ("/e/new", 0),
    ]


Story = tuple[FileStatus, tuple[Block, ...], tuple[JournalEntry, ...]]


def reported(journal: Journal, path: str) -> Story:
    """All that is known of a file, but for the numbers, which are drawn in any order."""
    status, blocks = journal.view(path)
    return (
        replace(status, id=0, epoch=0),
        tuple(replace(each, id=0, file_id=0, generation=0) for each in blocks),
        tuple(
            replace(each, number=0, file_id=0, epoch=0, detail=each.detail.split(" ")[0])
            for each in journal.history(path)
        ),
    )


def test_what_a_group_writes_is_what_each_of_its_steps_alone_writes(world: World) -> None:
    journal, files = in_one_group(world, lambda journal: [opened(journal, path) for path in ODD])
    grouped_open = [reported(journal, path) for path in ODD]
    tickets = [each for each in files if isinstance(each, OpenedFile)]
    assert len(tickets) == len(ODD)

    def closes(journal: Journal) -> Calls:
        return [
            lambda file=file: journal.complete(file.ticket, seal(file))  # type: ignore[misc]
            for file in tickets
        ]

    journal, _ = in_one_group(world, closes)
    grouped = [reported(journal, path) for path in ODD]
    assert journal.delete("/", recursive=True) == len(ODD)
    alone_open, alone = [], []
    for path in ODD:
        file = create(journal, path)
        alone_open.append(reported(journal, path))
        journal.complete(file.ticket, seal(file))
        alone.append(reported(journal, path))
    assert grouped_open == alone_open
    assert grouped == alone
    assert all(blocks[0].volumes == ("v1", "v2") for _, blocks, _ in grouped)


@pytest.mark.parametrize("world", ["sqlite"], indirect=True)
def test_a_group_takes_as_many_statements_as_one_of_its_steps(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(Journal.open(world.url, limits=LIMITS, clock=world.clock)) as before:
        mine = [create(before, f"/mine/{number}") for number in range(4)]
    gate, names = Gate(), list[str]()
    with closing(Journal.open(world.url, limits=LIMITS, clock=world.clock, hook=gate)) as journal:
        write = journal._database.write
        counted = lambda work: write(lambda tx: work(Counting(tx, names)))  # noqa: E731
        monkeypatch.setattr(journal._database, "write", counted)
        calls: Calls = [opened(journal, f"/new/{number}") for number in range(4)]
        calls += [
            lambda file=file: journal.complete(file.ticket, seal(file))  # type: ignore[misc]
            for file in mine
        ]
        together(journal, gate, calls)
    questions = ["looks", "helds", "holder_enlist", "meta"]
    changes = ["file_add", "block_add", "replicas_add", "block_seal", "file_close", "holder_drop"]
    assert names == ["holder_enlist", *questions, *changes, "line", "meta_write"]


@pytest.mark.parametrize("world", ["sqlite"], indirect=True)
def test_a_text_is_kept_whole_in_a_group_whatever_is_in_it(world: World) -> None:
    with closing(Journal.open(world.url, limits=LIMITS, clock=world.clock)) as before:
        for path in ("/f", "/g"):
            create(before, path)
        begun = [
            before.begin_recovery(path, BOB, reason=RecoveryReason.ASKED) for path in ("/f", "/g")
        ]

    def calls(journal: Journal) -> Calls:
        return [
            lambda each=each: journal.fail_recovery(  # type: ignore[misc]
                each, trouble="no\0 \u20ac", pause_s=1.0
            )
            for each in begun
        ]

    journal, _ = in_one_group(world, calls)
    for path in ("/f", "/g"):
        assert journal.history(path)[0].detail == "no\0 \u20ac"


# ----------------------------------------------------------------- volumes


def test_the_last_piece_and_the_seal_are_written_at_once_and_read_as_ever(tmp_path: Path) -> None:
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
    one, other = volumes_in(tmp_path / "one", count=2), volumes_in(tmp_path / "other", count=2)
    disk = RecordingDisk(SystemDisk())
    writer = writer_on(one, disk)
    writer.write_piece(b"begin ")
    sealed = writer.seal(b"end")
    writer.close()
    assert disk.points.count("after write seal") == 2
    assert disk.points.count("after write record") == 2  # that of the piece before
    apart = writer_on(other)
    apart.write_piece(b"begin ")
    apart.write_piece(b"end")
    assert replace(apart.seal(), volumes=()) == replace(sealed, volumes=())
    apart.close()
    for left, right in zip(one, other, strict=True):
        assert files_of(left) == files_of(right)
        found = parse(files_of(left)[f"-{GENERATION:016x}.meta"], block_id=ID)
        assert (found.length, found.seal is not None) == (9, True)


def test_the_last_piece_has_the_limits_of_every_piece(tmp_path: Path) -> None:
    writer = writer_on(volumes_in(tmp_path, count=1))
    with pytest.raises(UsageError, match="Split"):
        writer.seal(bytes(PIECE_BYTES + 1))
    writer.close()
