"""``leasehold files`` on real files: what it prints, where, and its exit codes."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from tests.support.command import CommandLine

from leasehold.cli.app import exit_code
from leasehold.cli.common import duration, shown_bytes, shown_seconds, shown_size, size
from leasehold.errors import (
    BufferFull,
    DataDamaged,
    FencedWrite,
    FileExists,
    FileHeld,
    InvalidDuration,
    LeaseholdError,
    ReaderDisplaced,
    RecoveryInProgress,
    TailUncertain,
    Trimmed,
    UnknownFile,
    UnknownStream,
    UsageError,
    VolumeUnusable,
)
from leasehold.events import Event
from leasehold.files import Namespace
from leasehold.files.block_meta import HEADER_BYTES, RECORD_BYTES
from leasehold.log import Log
from leasehold.log.streams import segment_path

LONG = "/orders/" + "/".join(["a-long-name"] * 8)


@pytest.fixture
def store(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/files.db"


@pytest.fixture
def files(store: str, tmp_path: Path) -> Iterator[Namespace]:
    volumes = [tmp_path / "one", tmp_path / "two"]
    with Namespace.open(store, volumes=volumes, run_monitor=False) as files:
        yield files


@pytest.fixture
def leasehold(
    monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes], store: str
) -> CommandLine:
    return CommandLine(monkeypatch, capfdbinary, store)


def written(files: Namespace, path: str, data: bytes) -> None:
    with files.create(path) as writer:
        writer.write(data)


HELD = FileHeld("x", path="/a", holder="h", host="m", since="", epoch=1, retry_after_s=1.0)
RECOVERING = RecoveryInProgress("x", path="/a", attempt=1, retry_after_s=1.0)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (UnknownFile("x"), 3),
        (UnknownStream("x"), 3),
        (FileExists("x"), 4),
        (HELD, 4),
        (RECOVERING, 4),
        (FencedWrite("x"), 4),
        (ReaderDisplaced("x"), 4),
        (VolumeUnusable("x"), 5),
        (TailUncertain("x"), 1),
        (DataDamaged("x"), 1),
        (Trimmed("x", earliest=1), 1),
        (BufferFull("x"), 1),
    ],
)
def test_every_error_of_files_and_log_has_its_exit_code(error: LeaseholdError, code: int) -> None:
    assert exit_code(error) == code


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("60s", 60), ("5m", 300), ("2h", 7200), ("7d", 604800), ("250ms", 0.25), (" 1.5 h ", 5400)],
)
def test_durations_are_a_number_and_a_unit(text: str, seconds: float) -> None:
    assert duration(text, option="--retention").total_seconds() == seconds


@pytest.mark.parametrize("text", ["", "60", "s", "5 minutes", "-5s", "1e3s", "9999999d", "5S"])
def test_what_is_no_duration_is_refused_with_examples(text: str) -> None:
    with pytest.raises(InvalidDuration, match="--retention"):
        duration(text, option="--retention")


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("64MB", 64_000_000),
        ("10GB", 10**10),
        ("512KiB", 512 << 10),
        ("1.5 kB", 1500),
        ("4096", 4096),
        ("7b", 7),
        ("1tib", 1 << 40),
    ],
)
def test_sizes_are_decimal_unless_they_say_ib(text: str, number: int) -> None:
    assert size(text, option="--retention-size") == number


@pytest.mark.parametrize("text", ["", "MB", "ten", "-1MB", "5XB", "1,5MB"])
def test_what_is_no_size_is_refused_with_examples(text: str) -> None:
    with pytest.raises(UsageError, match="512KiB"):
        size(text, option="--retention-size")


def test_sizes_and_durations_for_people() -> None:
    sizes = [0, 999, 1000, 12_345, 999_999, 10**7, 3 * 10**12]
    assert [shown_bytes(n) for n in sizes] == (
        ["0 B", "999 B", "1.0 kB", "12.3 kB", "1.0 MB", "10.0 MB", "3.0 TB"]
    )
    given = [0, 64 << 20, 64_000_000, 10**10, 4096, 4097, 1500]
    assert [shown_size(n) for n in given] == (
        ["0 B", "64 MiB", "64 MB", "10 GB", "4 KiB", "4,097 B", "1,500 B"]
    )
    seconds = [0.04, 9.4, 59.0, 119.0, 120.0, 7200.0, 100_000.0, 604_800.0]
    assert [shown_seconds(s) for s in seconds] == (
        ["0.0s", "9.4s", "59s", "119s", "2m", "2h", "28h", "7d"]
    )


def test_without_a_store_the_command_says_how_to_name_one(
    leasehold: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("LEASEHOLD_STORE")
    done = leasehold("files", "ls")
    assert (done.code, done.out) == (2, "")
    assert "--store" in done.err
    assert "LEASEHOLD_STORE" in done.err


def test_a_store_that_is_not_there_is_not_made_by_looking(
    leasehold: CommandLine, tmp_path: Path
) -> None:
    done = leasehold("files", "ls", "--store", f"sqlite:///{tmp_path}/typo.db")
    assert done.code == 2
    assert "typo.db" in done.err
    assert not (tmp_path / "typo.db").exists()


def test_memory_can_not_keep_files(leasehold: CommandLine) -> None:
    done = leasehold("files", "ls", "--store", "memory://")
    assert done.code == 2
    assert "sqlite:///" in done.err


def test_ls_shows_open_and_closed_files_and_never_breaks_a_path(
    leasehold: CommandLine, files: Namespace
) -> None:
    written(files, "/orders/[red]done", b"12345")
    with files.create(LONG) as writer:
        writer.write(b"123")
        writer.flush()
        done = leasehold("files", "ls")
        short = leasehold("files", "ls", "/orders/[red]done")
        rows = {row["path"]: row for row in leasehold("files", "ls", "-ojson").json}
    assert done.code == 0
    assert LONG in done.out.split()
    assert short.widest <= 80
    assert "/orders/[red]done" in short.out.split()
    assert rows["/orders/[red]done"] == {
        "path": "/orders/[red]done",
        "state": "closed",
        "length": 5,
        "epoch": 1,
        "holder": None,
        "host": None,
        "idle_s": None,
    }
    assert (rows[LONG]["state"], rows[LONG]["length"]) == ("open", 3)
    assert rows[LONG]["holder"] == files.holder


def test_ls_finds_open_files_by_silence(leasehold: CommandLine, files: Namespace) -> None:
    written(files, "/done", b"1")
    with files.create("/orders/open"):
        found = leasehold("files", "ls", "--open", "-ojsonl").jsonl
        silent = leasehold("files", "ls", "--idle-for", "1ms", "-ojsonl").jsonl
        old = leasehold("files", "ls", "--idle-for", "1h", "-ojsonl").jsonl
        below = leasehold("files", "ls", "/other", "--open", "-ojsonl").jsonl
    assert [row["path"] for row in found] == ["/orders/open"]
    assert [row["path"] for row in silent] == ["/orders/open"]
    assert old == below == []


def test_ls_where_nothing_is_says_so_on_stderr(leasehold: CommandLine, files: Namespace) -> None:
    table = leasehold("files", "ls", "/nope")
    assert (table.code, table.out) == (0, "")
    assert "/nope" in table.err
    assert leasehold("files", "ls", "/nope", "-ojson").json == []


def test_away_from_a_terminal_nothing_is_broken(
    leasehold: CommandLine, files: Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    written(files, LONG, b"1")
    monkeypatch.delenv("COLUMNS")
    assert leasehold("files", "show", LONG).out.splitlines()[0].split() == ["path", LONG]


def test_ls_goes_over_its_pages(
    leasehold: CommandLine, files: Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("leasehold.cli.files._PAGE", 2)
    writers = [files.create(f"/{number}") for number in range(5)]
    found = leasehold("files", "ls", "-ojsonl").jsonl
    still_open = leasehold("files", "ls", "--open", "-ojsonl").jsonl
    for writer in writers:
        writer.close()
    assert [row["path"] for row in found] == [f"/{number}" for number in range(5)]
    assert len(still_open) == 5


def test_show_tells_blocks_and_history(leasehold: CommandLine, files: Namespace) -> None:
    with files.create("/a", block_bytes=4096) as writer:
        writer.write(b"x" * 5000)
        writer.flush()
        table = leasehold("files", "show", "/a")
        shown = leasehold("files", "show", "/a", "-ojson").json
    assert "history, newest first" in table.out
    *_, last = table.out.splitlines()
    assert last == f"    {shown['history'][-1]['detail']}"  # on a line of its own, whole
    assert shown["failed_attempts"] == 0
    assert shown["length"] == 5000
    assert [(b["state"], b["length"]) for b in shown["blocks"]] == [
        ("complete", 4096),
        ("open", 904),
    ]
    assert shown["blocks"][1]["checksum"] is None
    assert [entry["step"] for entry in shown["history"]] == ["next block", "create"]


def test_what_is_not_there_exits_with_3(leasehold: CommandLine, files: Namespace) -> None:
    for command in ("show", "cat", "recover", "verify", "rm"):
        done = leasehold("files", command, "/nowhere")
        assert (done.code, done.out) == (3, ""), command
        assert "/nowhere" in done.err
        assert "`leasehold files ls`" in done.err


@pytest.mark.spec("F7")
def test_recover_leaves_a_living_writer_alone_until_told(
    leasehold: CommandLine, files: Namespace
) -> None:
    writer = files.create("/a")
    writer.write(b"12345")
    writer.flush()
    plan = leasehold("files", "recover", "/a")
    assert plan.code == 4
    assert files.holder in plan.out
    assert "--execute" in plan.err
    assert not files.is_closed("/a")
    done = leasehold("files", "recover", "/a", "--execute", "-ojson")
    assert done.code == 0
    assert (done.json["state"], done.json["length"]) == ("closed", 5)
    with pytest.raises(FencedWrite):
        writer.close()


def test_recover_does_not_ask_once_the_soft_limit_is_over(
    leasehold: CommandLine, files: Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = files.create("/a")
    writer.write(b"12345")
    writer.flush()
    monkeypatch.setattr("leasehold.cli.files._soft_limit_s", lambda: 0.0)
    assert leasehold("files", "recover", "/a").code == 0
    assert files.is_closed("/a")
    again = leasehold("files", "recover", "/a")
    assert (again.code, "closed" in again.out) == (0, True)
    with pytest.raises(FencedWrite):
        writer.close()


def test_verify_counts_and_finds_a_flipped_bit(
    leasehold: CommandLine, files: Namespace, tmp_path: Path
) -> None:
    written(files, "/a", b"x" * 1000)
    good = leasehold("files", "verify")
    assert (good.code, good.out) == (0, "")
    assert "1 file, 1.0 kB, all replicas: no faults" in good.err
    [data] = (tmp_path / "one").rglob("*.data")
    data.write_bytes(b"y" + data.read_bytes()[1:])
    bad = leasehold("files", "verify", "/a")
    assert bad.code == 1
    assert bad.out.startswith("/a: volume ")
    assert len(bad.out.splitlines()) == 1
    assert "1 fault in 1 file; every block still has a replica without fault" in bad.err
    [fault] = leasehold("files", "verify", "-ojson").json
    assert fault.keys() == {"path", "volume", "what"}
    assert fault["path"] == "/a"


def test_verify_does_not_say_that_nothing_is_lost_if_all_replicas_are_damaged(
    leasehold: CommandLine, files: Namespace, tmp_path: Path
) -> None:
    written(files, "/a", b"x" * 1000)
    for data in tmp_path.rglob("*.data"):
        data.write_bytes(b"y" * 1000)
    bad = leasehold("files", "verify")
    assert bad.code == 1
    assert "2 faults in 1 file" in bad.err
    assert "without fault" not in bad.err


def test_verify_names_no_volume_for_a_block_with_too_few(
    leasehold: CommandLine, files: Namespace, tmp_path: Path
) -> None:
    (tmp_path / "two").rename(tmp_path / "away")
    written(files, "/a", b"x")
    (tmp_path / "away").rename(tmp_path / "two")
    bad = leasehold("files", "verify")
    assert bad.code == 1
    assert bad.out.startswith("/a: block 0x")
    assert "is on 1 of 2 volumes" in bad.out
    assert "every block still has a replica without fault" in bad.err
    assert [fault["volume"] for fault in leasehold("files", "verify", "-ojsonl").jsonl] == [None]


def test_rm_says_what_it_would_remove_and_removes_it_when_told(
    leasehold: CommandLine, files: Namespace
) -> None:
    written(files, "/a/1", b"12345")
    written(files, "/a/2", b"12345")
    written(files, "/b", b"1")
    plan = leasehold("files", "rm", "/a", "--recursive", "-ojsonl")
    assert (plan.code, [row["path"] for row in plan.jsonl]) == (0, ["/a/1", "/a/2"])
    assert "nothing was removed; with --execute: 2 files, 10 B" in plan.err
    assert len(files.list("/")) == 3
    done = leasehold("files", "rm", "/a", "--recursive", "--execute")
    assert (done.code, done.err) == (0, "removed: 2 files\n")
    assert leasehold("files", "rm", "/b", "--execute").code == 0
    assert not files.list("/")


@pytest.mark.parametrize("path", ["/", "/orders", "/orders/0", "segment"])
def test_rm_refuses_the_files_of_a_stream_and_says_what_to_do(
    leasehold: CommandLine, files: Namespace, path: str
) -> None:
    written(files, "/orders2/0/00000000000000000000.seg", b"not of a stream")
    with Log.open(files.url) as log:
        log.create("orders", partitions=1)
        with log.producer("orders") as producer:
            producer.send(Event(body=b"x")).result()
        (segment,) = [each.path for each in log.files.list("/orders")]
        path = segment if path == "segment" else path
        for words in (("--recursive",), ("--recursive", "--execute")):
            done = leasehold("files", "rm", path, *words)
            assert (done.code, done.out) == (2, "")
            assert "`leasehold log trim orders`" in done.err
            assert "`leasehold log rm orders`" in done.err
        assert log.info("orders").parts[0].events == 1
    assert leasehold("files", "rm", "/orders2", "--recursive", "--execute").code == 0
    assert leasehold("log", "rm", "orders", "--execute").code == 0
    assert leasehold("files", "rm", "/", "--recursive", "--execute").code == 3  # nothing is left


def test_rm_of_a_directory_has_to_be_told_so(leasehold: CommandLine, files: Namespace) -> None:
    written(files, "/a/1", b"1")
    done = leasehold("files", "rm", "/a", "--execute")
    assert (done.code, done.out) == (4, "")
    assert "--recursive" in done.err
    assert files.is_closed("/a/1")


def test_cat_writes_bytes_as_they_are(leasehold: CommandLine, files: Namespace) -> None:
    data = bytes(range(256)) * 5000
    written(files, "/a", data)
    assert leasehold("files", "cat", "/a").raw == data
    part = leasehold("files", "cat", "/a", "--offset", "1000", "--length", "7")
    assert part.raw == data[1000:1007]
    assert leasehold("files", "cat", "/a", "--offset", "9999999").raw == b""


def test_cat_reads_an_open_file_up_to_what_was_acknowledged(
    leasehold: CommandLine, files: Namespace
) -> None:
    with files.create("/a") as writer:
        writer.write(b"seen")
        writer.flush()
        writer.write(b"not yet")
        assert leasehold("files", "cat", "/a").raw == b"seen"


def test_volumes_say_why_they_can_not_be_used(
    leasehold: CommandLine, files: Namespace, tmp_path: Path
) -> None:
    (tmp_path / "two").rename(tmp_path / "away")
    table = leasehold("files", "volumes")
    rows = {Path(row["path"]).name: row for row in leasehold("files", "volumes", "-ojson").json}
    assert table.code == 0
    assert "no VOLUME file: is it mounted?" in " ".join(table.out.split())
    assert (rows["one"]["usable"], rows["one"]["trouble"]) == (True, None)
    assert rows["one"]["free_bytes"] > 0
    assert (rows["two"]["usable"], rows["two"]["free_bytes"]) == (False, None)
    assert "mounted" in rows["two"]["trouble"]


def _damage(files: Namespace, path: str, position: int) -> None:
    """Flip one bit of one record on every volume; the file is open and its writer is gone."""
    (block,) = files.read(path).blocks
    for volume in files.volumes:
        meta = Path(volume.meta_path(block.id, block.generation))
        raw = bytearray(meta.read_bytes())
        raw[HEADER_BYTES + RECORD_BYTES * position + 9] ^= 1
        meta.write_bytes(raw)


@pytest.mark.spec("F8")
def test_accept_loss_says_first_what_is_lost_keeps_the_rest_and_exits_with_1(
    leasehold: CommandLine, files: Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = files.create("/a")
    for number in range(10):
        writer.write(b"%d" % number)
        writer.sync()
    writer.leave_behind()
    _damage(files, "/a", 7)
    monkeypatch.setattr("leasehold.cli.files._soft_limit_s", lambda: 0.0)
    plan = leasehold("files", "recover", "/a", "--accept-loss", "-ojson")
    assert plan.code == 4
    assert (plan.json["kept_bytes"], plan.json["lost_bytes"]) == (7, 3)
    assert "3 acknowledged bytes after it would be lost. Add --execute" in plan.err
    assert not files.is_closed("/a")
    done = leasehold("files", "recover", "/a", "--accept-loss", "--execute")
    assert done.code == 1
    assert "3 acknowledged bytes after byte 7 were lost" in done.err
    assert files.read("/a").read() == b"0123456"
    verified = leasehold("files", "verify", "/a")
    assert (verified.code, "3 acknowledged bytes" in verified.out) == (1, True)
    assert "without fault" not in verified.err


@pytest.mark.spec("F8")
def test_accept_loss_names_a_volume_that_is_gone_and_verify_reports_it_afterwards(
    leasehold: CommandLine, files: Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = files.create("/a")
    writer.write(b"acknowledged")
    writer.sync()
    writer.leave_behind()
    for volume in files.volumes:
        shutil.rmtree(volume.root)
    gone = files.volumes[0].id
    monkeypatch.setattr("leasehold.cli.files._soft_limit_s", lambda: 0.0)
    plan = leasehold("files", "recover", "/a", "--accept-loss")
    assert plan.code == 4
    assert "an unknown number of acknowledged bytes after it would be lost" in plan.err
    assert gone in plan.err
    done = leasehold("files", "recover", "/a", "--accept-loss", "--execute")
    assert (done.code, f"volume {gone} did not answer" in done.err) == (1, True)
    verified = leasehold("files", "verify", "/a", "-ojson")
    assert (verified.code, f"volume {gone} did not answer" in verified.out) == (1, True)


@pytest.mark.spec("F8")
def test_accept_loss_counts_the_events_of_a_segment(
    leasehold: CommandLine, store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Log.open(store, volumes=[tmp_path / "one"]) as log:
        log.create("orders", partitions=1)
        with log.producer("orders") as producer:
            for number in range(6):
                producer.send(Event(body=b"%d" % number)).result(120)
            path = segment_path("orders", 0, 0)
            _damage(log.files, path, 3)
            shutil.copytree(tmp_path / "one", tmp_path / "kept")
            shutil.copy(tmp_path / "files.db", tmp_path / "kept.db")
            shutil.copy(tmp_path / "files.db-wal", tmp_path / "kept.db-wal")
    for name in ("one", "files.db", "files.db-wal"):  # as if its process had been killed
        found = tmp_path / name
        shutil.rmtree(found) if found.is_dir() else found.unlink(missing_ok=True)
    (tmp_path / "kept").rename(tmp_path / "one")
    (tmp_path / "kept.db").rename(tmp_path / "files.db")
    (tmp_path / "kept.db-wal").rename(tmp_path / "files.db-wal")
    monkeypatch.setattr("leasehold.cli.files._soft_limit_s", lambda: 0.0)
    plan = leasehold("files", "recover", path, "--accept-loss", "-ojson")
    assert plan.code == 4
    assert plan.json["lost_events"] == 3
    done = leasehold("files", "recover", path, "--accept-loss", "--execute")
    assert (done.code, "at least 3 events" in done.err) == (1, True)
    assert "at least 3 events" in leasehold("files", "show", path).out


def _volume_id(files: Namespace, root: Path) -> str:
    return next(volume.id for volume in files.volumes if volume.root == str(root))


@pytest.fixture
def short() -> Iterator[Path]:
    """A directory with a short path, so that a table has its usual width."""
    with TemporaryDirectory(prefix="lh", dir="/tmp") as made:
        yield Path(made)


@pytest.mark.spec("F9")
def test_volumes_verify_and_repair_say_the_same_of_a_volume_that_came_back_empty(
    short: Path, leasehold: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, two = f"sqlite:///{short}/s.db", short / "two"
    monkeypatch.setenv("LEASEHOLD_STORE", store)
    with Namespace.open(store, volumes=[short / "one", two], run_monitor=False) as files:
        written(files, "/a", b"x" * 1000)
        written(files, "/b", b"y" * 234)
        lost = _volume_id(files, two)
    whole = leasehold("files", "volumes")
    assert (whole.code, whole.err) == (0, "")
    nothing = leasehold("files", "repair")
    assert (nothing.out, nothing.err) == (
        "",
        "2 files, all replicas: nothing is missing or damaged\n",
    )
    shutil.rmtree(two / "blocks")

    table = leasehold("files", "volumes")
    assert (table.code, table.widest <= 80) == (0, True)
    assert table.out.splitlines()[0].split() == (
        ["id", "path", "usable", "free", "missing", "trouble"]
    )
    lines = {line.split()[1]: line.split() for line in table.out.splitlines()[2:]}
    assert lines[str(two)][0] == lost
    assert lines[str(two)][-4:] == ["2,", "1.2", "kB", "-"]
    assert lines[str(short / "one")][-2:] == ["-", "-"]
    assert table.err == "2 copies, 1.2 kB missing: see `leasehold files repair`\n"
    rows = {row["id"]: row for row in leasehold("files", "volumes", "-ojson").json}
    assert (rows[lost]["missing_blocks"], rows[lost]["missing_bytes"]) == (2, 1234)

    verified = leasehold("files", "verify", "-ojson")
    plan = leasehold("files", "repair")
    assert (verified.code, plan.code, plan.widest <= 80) == (1, 0, True)
    assert plan.out.splitlines()[0].split() == ["path", "volume", "bytes", "what"]
    for line, fault in zip(plan.out.splitlines()[2:], verified.json, strict=True):
        size = {"/a": "1.0 kB", "/b": "234 B"}[fault["path"]]
        assert line.split() == [fault["path"], lost, *size.split(), *fault["what"].split()]
    assert plan.err == "nothing was done; with --execute: 2 copies, 1.2 kB\n"
    assert "`leasehold files repair` makes the others again" in verified.err

    quick = leasehold("files", "repair", "/a", "--quick", "-ojsonl")
    assert quick.jsonl == [
        {
            "path": "/a",
            "block": "0x1",
            "bytes": 1000,
            "volume": lost,
            "sound_copies": 1,
            "what": "block 0x1 has no meta file of generation 1",
            "trouble": None,
        }
    ]
    done = leasehold("files", "repair", "--execute")
    assert (done.code, done.err) == (0, "made: 2 copies, 1.2 kB\n")
    assert leasehold("files", "verify").code == 0
    assert leasehold("files", "volumes").err == ""
    assert "copied" in leasehold("files", "show", "/a").out


@pytest.mark.spec("F9")
def test_repair_also_finds_damage_and_says_what_cannot_be_made(
    leasehold: CommandLine, files: Namespace, tmp_path: Path
) -> None:
    written(files, "/a", b"x" * 1000)
    written(files, "/b", b"y" * 1000)
    for number, data in enumerate(sorted((tmp_path / "one").rglob("*.data"))):
        data.write_bytes(b"z" * 1000)
        if number:  # of /b no copy is left
            next((tmp_path / "two").rglob(data.name)).write_bytes(b"z" * 1000)
    assert leasehold("files", "repair", "--quick").code == 0
    plan = leasehold("files", "repair", "-ojson")
    assert plan.code == 1
    assert [(row["path"], row["trouble"] is None) for row in plan.json] == (
        [("/b", False), ("/b", False), ("/a", True)]
    )
    assert "with --execute: 1 copy, 1.0 kB" in plan.err
    assert "cannot be made now: 2 copies, 2.0 kB: no volume that answers has" in plan.err
    done = leasehold("files", "repair", "--execute")
    assert (done.code, "made: 1 copy, 1.0 kB" in done.err) == (1, True)
    assert leasehold("files", "verify", "/a").code == 0
    assert leasehold("files", "verify", "/b").code == 1


@pytest.mark.spec("F9")
def test_repair_leaves_a_copy_to_the_process_that_makes_it_and_exits_with_4(
    leasehold: CommandLine, files: Namespace, tmp_path: Path
) -> None:
    written(files, "/a", b"x" * 1000)
    shutil.rmtree(tmp_path / "two" / "blocks")
    (missing,) = files.missing_copies("/a")
    journal = files._context.journal
    copy = journal.begin_copy(missing.block, missing.volume, files._holder)
    held = leasehold("files", "repair", "--execute")
    assert held.code == 4
    assert f"{files.holder} copies it to volume" in held.err
    journal.end_copy(copy)
    assert leasehold("files", "repair", "--execute").code == 0


@pytest.mark.spec("F9")
def test_replace_shows_its_plan_and_repair_makes_the_copies_on_the_new_volume(
    leasehold: CommandLine, files: Namespace, tmp_path: Path
) -> None:
    written(files, "/a", b"x" * 1000)
    old, two = _volume_id(files, tmp_path / "two"), tmp_path / "two"
    alive = leasehold("files", "replace", old, str(two))
    assert (alive.code, alive.out) == (2, "")
    assert "it need not be replaced" in alive.err
    shutil.rmtree(two)
    away = leasehold("files", "repair")
    assert away.code == 1
    assert "cannot be made now: 1 copy, 1.0 kB: volume" in away.err
    assert "`leasehold files replace`" in away.err
    two.mkdir()
    plan = leasehold("files", "replace", old, str(two), "-ojson")
    assert plan.code == 0
    assert plan.json == {
        "volume": old,
        "directory": str(two),
        "missing_copies": 1,
        "missing_bytes": 1000,
        "blocks_without_copy": 0,
    }
    assert f"nothing was done: with --execute, volume {old} is forgotten." in plan.err
    done = leasehold("files", "replace", old, str(two), "--execute", "-ojson")
    assert done.code == 0
    new = done.json["new_volume"]
    assert "1 copy, 1.0 kB missing: see `leasehold files repair`" in done.err
    assert leasehold("files", "replace", old, str(two), "--execute").code == 2  # it is forgotten
    [row] = leasehold("files", "repair", "--execute", "-ojsonl").jsonl
    assert (row["volume"], row["what"]) == (new, "block 0x1 is on 1 of 2 volumes")
    assert leasehold("files", "verify").code == 0


@pytest.mark.spec("F9")
def test_replace_says_that_a_block_had_its_only_copy_there(
    leasehold: CommandLine, files: Namespace, tmp_path: Path
) -> None:
    with files.create("/a", replication=1) as writer:
        writer.write(b"x" * 1000)
    (block,) = files.read("/a").blocks
    root = next(Path(each.root) for each in files.volumes if each.id == block.volumes[0])
    shutil.rmtree(root)
    plan = leasehold("files", "replace", block.volumes[0], str(root))
    assert "1 block would have no copy that answers" in plan.err
    assert leasehold("files", "replace", block.volumes[0], str(root), "--execute").code == 0
    lost = leasehold("files", "repair", "--execute")
    assert lost.code == 1
    assert "no volume that answers has" in lost.err
    verified = leasehold("files", "verify")
    assert (verified.code, "without fault" not in verified.err) == (1, True)
