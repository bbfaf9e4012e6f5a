"""``leasehold log`` on real streams: what it prints, where, and its exit codes."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import anyio
import pytest
from tests.support.command import CommandLine, Done
from tests.support.postgres import database

from leasehold import open_store, partition_group, partition_key
from leasehold.events import Event, partition_of
from leasehold.log import Log, LogOptions
from leasehold.model import CheckpointWrite, KeyClaim, MemberInfo, Position

SMALL = ("--segment-size", "4096")


@pytest.fixture
def store(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/log.db"


@pytest.fixture
def leasehold(
    monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes], store: str
) -> CommandLine:
    return CommandLine(monkeypatch, capfdbinary, store)


@pytest.fixture
def orders(leasehold: CommandLine, tmp_path: Path) -> Done:
    """A stream with two partitions on two volumes."""
    done = create(leasehold, tmp_path)
    assert done.code == 0, done.err
    return done


def create(leasehold: CommandLine, tmp_path: Path, *words: str) -> Done:
    volumes = ("--volume", f"{tmp_path}/one", "--volume", f"{tmp_path}/two")
    return leasehold("log", "create", "orders", "--partitions", "2", *volumes, *words)


@pytest.fixture
def log(orders: Done, store: str) -> Iterator[Log]:
    with Log.open(store, options=LogOptions(run_monitor=False)) as log:
        yield log


def lines(tmp_path: Path, *bodies: str) -> str:
    path = tmp_path / "events.txt"
    path.write_text("".join(f"{body}\n" for body in bodies))
    return str(path)


def test_create_makes_store_volumes_and_stream_and_again_is_harmless(
    leasehold: CommandLine, tmp_path: Path
) -> None:
    words = ("--segment-size", "1MiB", "--retention", "7d", "--retention-size", "10GB", "-ojson")
    first = create(leasehold, tmp_path, *words)
    again = create(leasehold, tmp_path, *words)
    assert (first.code, again.code) == (0, 0)
    assert first.json == again.json
    assert (first.err, again.err) == (
        "",
        "the stream 'orders' is there already\n",
    )
    assert first.json | {"created_at": ""} == {
        "stream": "orders",
        "partition_count": 2,
        "segment_bytes": 1 << 20,
        "retention_s": 604800.0,
        "retention_bytes": 10**10,
        "replication": None,
        "created_at": "",
    }
    assert (tmp_path / "log.db").exists()
    assert len(leasehold("files", "volumes", "-ojsonl").jsonl) == 2


def test_create_with_other_settings_is_refused(
    leasehold: CommandLine, orders: Done, tmp_path: Path
) -> None:
    done = leasehold("log", "create", "orders", "--partitions", "3")
    assert (done.code, done.out) == (2, "")
    assert "partitions is 2 there and 3 here" in done.err


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (("create", "x", "--segment-size", "big"), "--segment-size"),
        (("create", "x", "--retention", "7"), "--retention"),
        (("create", "x", "--retention-size", "7 days"), "--retention-size"),
        (("create", "x", "--partitions", "0"), "--partitions"),
        (("cat", "orders", "--start", "yesterday"), "earliest"),
        (("cat", "orders", "--partition", "2"), "no partition 2"),
        (("tail", "orders", "--partition", "2"), "no partition 2"),
        (("append", "orders", "/nowhere/at/all"), "/nowhere/at/all"),
        (("append", "orders", "x.txt", "--format", "xml"), "parquet"),
        (("trim", "orders"), "--older-than"),
        (("trim", "orders", "--older-than", "soon"), "--older-than"),
    ],
)
def test_a_wrong_command_says_what_to_write_and_exits_with_2(
    leasehold: CommandLine, orders: Done, words: tuple[str, ...], hint: str
) -> None:
    done = leasehold("log", *words)
    assert (done.code, done.out) == (2, "")
    assert hint in done.err
    assert "Traceback" not in done.err


@pytest.mark.parametrize("command", ["show", "cat", "tail", "append", "verify", "trim", "rm"])
def test_a_stream_that_is_not_there_exits_with_3_and_names_those_there_are(
    leasehold: CommandLine, orders: Done, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO()))
    done = leasehold("log", command, "ordres")
    assert (done.code, done.out) == (3, "")
    assert "'orders'" in done.err


def test_only_create_makes_a_store(leasehold: CommandLine, tmp_path: Path) -> None:
    assert leasehold("log", "ls").code == 2
    assert not (tmp_path / "log.db").exists()


def test_a_store_without_volumes_says_what_is_missing(leasehold: CommandLine) -> None:
    done = leasehold("log", "create", "orders")
    assert done.code == 2
    assert "`leasehold log create STREAM --volume DIR`" in done.err


def test_append_says_what_went_where_and_cat_gives_it_back(
    leasehold: CommandLine, orders: Done, tmp_path: Path
) -> None:
    done = leasehold(
        "log", "append", "orders", lines(tmp_path, "a", "", "c"), "--partition", "1", "-ojson"
    )
    assert done.code == 0
    assert done.json == [{"partition": 1, "events": 3, "first_sequence": 0, "last_sequence": 2}]
    assert leasehold("log", "cat", "orders", "-oraw").raw == b"a\n\nc\n"


@pytest.mark.server
def test_the_same_commands_work_on_postgresql(
    monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes], tmp_path: Path
) -> None:
    with database() as url:
        leasehold = CommandLine(monkeypatch, capfdbinary, url)
        assert create(leasehold, tmp_path).code == 0
        assert leasehold("log", "append", "orders", lines(tmp_path, "a", "b")).code == 0
        assert leasehold("log", "cat", "orders", "-oraw").raw == b"a\nb\n"
        assert leasehold("log", "verify", "orders").code == 0
        assert [row["state"] for row in leasehold("files", "ls", "-ojsonl").jsonl] == ["closed"]


def test_append_reads_stdin(
    leasehold: CommandLine, orders: Done, monkeypatch: pytest.MonkeyPatch
) -> None:
    for words in ((), ("-",)):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"one\ntwo\n")))
        done = leasehold("log", "append", "orders", *words, "-ojsonl")
        assert sum(row["events"] for row in done.jsonl) == 2
    assert sorted(leasehold("log", "cat", "orders", "-oraw").raw.split()) == (
        [b"one", b"one", b"two", b"two"]
    )


def test_append_goes_by_key_and_keeps_its_order(
    leasehold: CommandLine, orders: Done, tmp_path: Path
) -> None:
    path = tmp_path / "events.jsonl"
    rows = [{"user": f"u{n % 5}", "n": n, "text": f"t{n}"} for n in range(300)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    words = ("--key", "user", "--body", "text", "--batch", "7", "-ojsonl")
    done = leasehold("log", "append", "orders", str(path), *words)
    assert sum(row["events"] for row in done.jsonl) == 300
    events = leasehold("log", "cat", "orders", "-ojsonl").jsonl
    assert all(event["partition"] == partition_of(event["key"], 2) for event in events)
    for user in {row["user"] for row in rows}:
        sent = [row["text"] for row in rows if row["user"] == user]
        assert [event["body"] for event in events if event["key"] == user] == sent
    assert events[0]["properties"].keys() == {"n"}


def test_a_record_that_is_refused_leaves_those_before_it_stored_and_counted(
    leasehold: CommandLine, orders: Done, tmp_path: Path
) -> None:
    path = tmp_path / "events.jsonl"
    path.write_text('{"a": 1}\n{"a": 2}\nnot json\n')
    done = leasehold("log", "append", "orders", str(path), "-ojsonl")
    assert done.code == 2
    assert "line 3 is not JSON" in done.err
    assert sum(row["events"] for row in done.jsonl) == 2
    assert len(leasehold("log", "cat", "orders", "-ojsonl").jsonl) == 2


def test_append_of_nothing_prints_no_table(
    leasehold: CommandLine, orders: Done, tmp_path: Path
) -> None:
    path = tmp_path / "events.jsonl"
    path.write_text("not json\n")
    refused = leasehold("log", "append", "orders", str(path))
    assert (refused.code, refused.out) == (2, "")
    path.write_text("")
    empty = leasehold("log", "append", "orders", str(path))
    assert (empty.code, empty.out) == (0, "")


def test_an_error_names_the_partition_it_is_about(leasehold: CommandLine, log: Log) -> None:
    with log.producer("orders") as producer:
        producer.send([Event(body=b"x")] * 3, partition=0).result()
    for command in ("cat", "tail"):
        done = leasehold("log", command, "orders", "--start", "seq:2")
        assert done.code == 2
        assert "partition 1: there is no event 2" in done.err


def test_cat_finds_by_key(leasehold: CommandLine, log: Log) -> None:
    with log.producer("orders") as producer:
        producer.send([Event(key=f"k{n % 3}", body=b"%d" % n) for n in range(9)]).result()
        producer.send(Event(key="k1", body=b"9"), partition=0).result()
        producer.send(Event(key="k1", body=b"10"), partition=1).result()
    found = leasehold("log", "cat", "orders", "--key", "k1", "-oraw").raw.split()
    assert sorted(map(int, found)) == [1, 4, 7, 9, 10]
    some = leasehold("log", "cat", "orders", "--key", "k1", "--max-events", "2", "-ojsonl").jsonl
    assert [event["key"] for event in some] == ["k1", "k1"]
    assert leasehold("log", "cat", "orders", "--key", "other", "-oraw").raw == b""


def test_delete_says_what_it_would_delete_and_deletes_it_when_told(
    leasehold: CommandLine, orders: Done, tmp_path: Path
) -> None:
    leasehold("log", "append", "orders", lines(tmp_path, "a", "b"), "--partition", "0")
    plan = leasehold("log", "rm", "orders", "-ojson")
    assert (plan.code, [row["events"] for row in plan.json]) == (0, [2, 0])
    assert plan.err.startswith("nothing was removed; with --execute: 1 segment, 2 events, ")
    assert leasehold("log", "cat", "orders", "-oraw").raw == b"a\nb\n"
    done = leasehold("log", "rm", "orders", "--execute")
    assert (done.code, done.err.startswith("removed: 1 segment, 2 events, ")) == (0, True)
    assert leasehold("log", "show", "orders").code == 3
    assert leasehold("files", "ls").out == ""


def test_settings_are_shown_as_they_were_given(leasehold: CommandLine, tmp_path: Path) -> None:
    made = create(leasehold, tmp_path, "--retention-size", "10GB")
    for shown in (made.out, leasehold("log", "show", "orders").out):
        words = " ".join(shown.split())
        assert "segment_bytes" not in words
        assert "64 MiB retention for ever retention size 10 GB replication all, up to 3" in words


def test_cat_begins_and_ends_where_it_is_told(leasehold: CommandLine, log: Log) -> None:
    with log.producer("orders") as producer:
        producer.send([Event(body=b"%d" % n) for n in range(10)], partition=0).result()
        producer.send([Event(body=b"%d" % n) for n in range(10, 15)], partition=1).result()

    def raw(*words: str) -> list[int]:
        return [
            int(body) for body in leasehold("log", "cat", "orders", "-oraw", *words).raw.split()
        ]

    assert raw() == list(range(15))
    assert raw("--partition", "1") == list(range(10, 15))
    assert raw("--start", "seq:3", "--partition", "0", "--max-events", "4") == [3, 4, 5, 6]
    assert raw("--max-events", "12") == list(range(12))
    assert raw("--start", "latest") == []
    assert raw("--start", "2020-01-01T00:00:00Z", "--max-events", "1") == [0]
    offset = leasehold("log", "cat", "orders", "--start", "seq:4", "-ojsonl").jsonl[0]["offset"]
    assert raw("--start", f"offset:{offset}", "--partition", "0", "--max-events", "1") == [4]


def test_cat_for_people_fits_and_hides_what_a_terminal_would_obey(
    leasehold: CommandLine, log: Log
) -> None:
    strange = b"\x1b[31mred\n[bold]" + b"\xff" + b"y" * 200
    with log.producer("orders") as producer:
        producer.send(Event(body=strange, key="k" * 50)).result()
    done = leasehold("log", "cat", "orders")
    title, row = done.out.splitlines()
    assert title.split() == ["part", "sequence", "enqueued", "key", "body"]
    assert done.widest <= 80
    assert "\x1b" not in row
    assert r"\x1b[31mred\n[bold]" in row


def test_a_body_that_is_no_text_comes_as_base64(leasehold: CommandLine, log: Log) -> None:
    with log.producer("orders") as producer:
        producer.send(Event(body=b"\xff\x00", properties={"a": "b"}), partition=0).result()
    [event] = leasehold("log", "cat", "orders", "-ojsonl").jsonl
    assert event["body_base64"] == "/wA="
    assert "body" not in event
    assert (event["properties"], event["key"]) == ({"a": "b"}, None)


def test_info_and_ls_show_what_is_known_and_a_dash_for_the_rest(
    leasehold: CommandLine, log: Log
) -> None:
    with log.producer("orders") as producer:
        producer.send([Event(body=b"x")] * 3, partition=0).result()
        table = leasehold("log", "show", "orders")
        shown = leasehold("log", "show", "orders", "-ojson").json
    busy, idle = shown["partitions"]
    assert (busy["events"], busy["next_sequence"], busy["writer"]) == (3, 3, log.files.holder)
    assert (idle["events"], idle["writer"], idle["last_enqueued_at"]) == (0, None, None)
    assert table.widest <= 80
    assert table.out.split()[-2:] == ["-", "-"]
    [stream] = leasehold("log", "ls", "-ojson").json
    assert (stream["stream"], stream["partition_count"]) == ("orders", 2)
    assert leasehold("log", "ls").widest <= 80


def test_ls_leaves_columns_out_before_it_folds_a_name(leasehold: CommandLine, orders: Done) -> None:
    name = "orders-of-all-customers"
    assert leasehold("log", "create", name).code == 0
    shown = leasehold("log", "ls")
    assert shown.widest <= 80
    assert name in shown.out
    assert "created" not in shown.out


def test_verify_finds_a_flipped_bit(leasehold: CommandLine, orders: Done, tmp_path: Path) -> None:
    leasehold("log", "append", "orders", lines(tmp_path, *["x" * 50] * 20), "--partition", "0")
    good = leasehold("log", "verify", "orders")
    assert (good.code, good.out) == (0, "")
    assert "2 partitions, 20 events" in good.err
    [data] = (tmp_path / "one").rglob("*.data")
    whole = bytearray(data.read_bytes())
    whole[len(whole) // 2] ^= 1
    data.write_bytes(whole)
    bad = leasehold("log", "verify", "orders", "-ojsonl")
    assert bad.code == 1
    assert bad.jsonl[0].keys() == {"partition", "path", "volume", "what"}
    assert {(each["partition"], each["path"]) for each in bad.jsonl} == {
        (0, "/orders/0/00000000000000000000.seg")
    }
    assert bad.jsonl[0]["volume"] in {
        row["id"] for row in leasehold("files", "volumes", "-ojsonl").jsonl
    }
    assert "in 1 file" in bad.err
    assert len(leasehold("log", "verify", "orders").out.splitlines()) == len(bad.jsonl)


def rolled(leasehold: CommandLine, tmp_path: Path) -> None:
    """Six segments in partition 0."""
    assert create(leasehold, tmp_path, *SMALL).code == 0
    for _ in range(6):
        path = lines(tmp_path, *["x" * 500] * 10)
        assert leasehold("log", "append", "orders", path, "--partition", "0").code == 0


def test_trim_says_what_it_would_remove_and_removes_it_when_told(
    leasehold: CommandLine, tmp_path: Path
) -> None:
    rolled(leasehold, tmp_path)
    words = ("log", "trim", "orders", "--retention-size", "8kB")
    plan = leasehold(*words, "-ojson").json
    assert plan[0]["events"] > 0
    assert plan[1] == {
        "partition": 1,
        "segments": 0,
        "events": 0,
        "bytes": 0,
        "first_kept": 0,
        "held_back": None,
    }
    table = leasehold(*words)
    assert table.widest <= 80
    assert "nothing was removed" in table.err
    assert leasehold("log", "show", "orders", "-ojson").json["partitions"][0]["first_sequence"] == 0
    done = leasehold(*words, "--execute")
    assert (done.code, done.err.startswith("removed: ")) == (0, True)
    kept = leasehold("log", "show", "orders", "-ojson").json["partitions"][0]["first_sequence"]
    assert kept == plan[0]["first_kept"] == plan[0]["events"]
    late = leasehold("log", "cat", "orders", "--start", "seq:0")
    assert (late.code, late.out) == (1, "")
    assert str(kept) in late.err


def test_trim_says_which_group_holds_it_back(
    leasehold: CommandLine, tmp_path: Path, store: str
) -> None:
    rolled(leasehold, tmp_path)
    anyio.run(checkpointed, store, 5)
    words = ("log", "trim", "orders", "--retention-size", "1kB", "-ojson")
    assert leasehold(*words).json[0]["held_back"] == "group billing is at 5"
    past = leasehold(*words, "--ignore-checkpoints").json[0]
    assert past["held_back"] == "newest segment"
    assert past["events"] > 6


async def checkpointed(store: str, sequence_number: int) -> None:
    key, group = partition_key("orders", "billing", "0"), partition_group("orders", "billing")
    async with open_store(store) as opened:
        await opened.declare([key])
        lease = await opened.grant(
            holder="member",
            token="t" * 32,
            group=group,
            duration=timedelta(minutes=10),
            info=MemberInfo(),
        )
        [ownership] = await opened.claim(lease, [KeyClaim(key=key, seen_epoch=0)])
        position = Position(sequence_number=sequence_number)
        assert (
            await opened.checkpoint([CheckpointWrite(ownership=ownership, position=position)]) == {}
        )
