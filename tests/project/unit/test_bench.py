"""The benchmarks run, say what they found in one form, and drive the peer as it really is."""

from __future__ import annotations

import json
from io import StringIO
from pathlib import Path
from uuid import UUID

import pytest
from bench import (
    amqp_codec,
    balance,
    planning,
    processor,
    report,
    stores,
)
from bench.__main__ import run
from bench.base import table_of
from bench.peer import peer_group
from bench.processor_scene import Notes
from bench.report import Bar, Job, Part, Row, at_most, cost, exactly, rate
from bench.scale_out import scale_out
from rich.console import Console

FIELDS = {"what", "ours", "peer", "ratio", "bar", "met"}


def _part(*rows: Row) -> Part:
    return Part(name="sample", about="about it", jobs=lambda _: [Job(what="it", run=lambda: rows)])


# ------------------------------------------------------------- two versions


def test_two_versions_are_shown_beside_each_other_with_the_ratio() -> None:
    out = StringIO()
    old, new = {"cycles": 4, "calls": "never", "gone": 1}, {"cycles": 2, "calls": 3, "new": 7}
    Console(file=out, width=80).print(table_of("sample", "0123abcd", old, new))
    rows = [line.split() for line in out.getvalue().splitlines()]
    assert ["cycles", "4", "2", "0.50"] in rows
    assert ["calls", "never", "3"] in rows
    assert ["gone", "1", "-"] in rows
    assert ["new", "-", "7"] in rows


def test_a_base_without_a_commit_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["balance", "--base"]) == 2
    assert "--base needs a commit" in capsys.readouterr().err


# ------------------------------------------------------------------ rows


@pytest.mark.parametrize(
    ("bar", "value", "met"),
    [
        (at_most(2), 2, True),
        (at_most(2), 2.01, False),
        (at_most(2), "never", False),
        (exactly(1), 1.0, True),
        (exactly(1), 0, False),
        (exactly(31, "= least (31)"), 32, False),
        (Bar(words="within 20 %", most=1.2), 0.5, True),
        (None, "never", True),
    ],
)
def test_a_bar_is_met_or_not(bar: Bar | None, value: float | str, met: bool) -> None:
    row = cost("it", value, 3, bar)
    assert row.met is met
    assert row.bar == (bar.words if bar else None)


@pytest.mark.parametrize(
    ("ours", "peer", "ratio"),
    [(2, 31, 15.5), (3, 10, 3.33), (1, "never", None), ("never", 1, None), (0, 4, None)],
)
def test_the_ratio_says_how_many_times_less_ours_is(
    ours: float | str, peer: float | str, ratio: float | None
) -> None:
    assert cost("it", ours, peer).ratio == ratio


def test_what_is_counted_is_kept_whole_and_what_is_measured_is_rounded() -> None:
    assert cost("it", 1.0, 10_001.0).peer == 10_001
    assert rate("it", 1234.56).ours == 1230


# ------------------------------------------------------------------ form


@pytest.mark.parametrize(("limit", "code"), [(2, 0), (1, 1)])
def test_the_exit_code_says_whether_all_bars_were_met(
    limit: int, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    sample = _part(cost("it", 2, bar=at_most(limit)), rate("other", 5.0))
    assert report.main([sample], []) == code
    assert report.main([sample], ["--json"]) == code
    assert ("NO" in capsys.readouterr().out) is bool(code)


def test_the_table_fits_a_terminal() -> None:
    out = StringIO()
    rows = [cost("a long name " * 9, 123_456_789, "never", exactly(1, "a bar with words"))]
    Console(file=out, width=200).print(report.as_table(_part(*rows), rows))
    assert max(map(len, out.getvalue().splitlines())) <= 80
    assert "123,456,789" in out.getvalue()


@pytest.mark.parametrize("name", ["balance", "stores"])
def test_json_is_one_object_per_part(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    without_server = Part(
        name="stores",
        about="",
        jobs=lambda _: stores.jobs(stores.SMALL, ["memory", "sqlite"]),
    )
    monkeypatch.setattr(stores, "PART", without_server)
    code = run([name, "--json", "--small"])
    out, err = capsys.readouterr()
    found = json.loads(out)
    assert out.count("\n") == 1
    assert not err
    assert set(found) == {"part", "rows"}
    assert found["part"] == name
    assert code == int(not all(row["met"] for row in found["rows"]))
    for row in found["rows"]:
        assert set(row) == FIELDS
        assert isinstance(row["what"], str)
        assert isinstance(row["ours"], int | float | str)
        assert isinstance(row["ratio"], float | None)
        assert isinstance(row["met"], bool)


# ------------------------------------------------------------------ peer


@pytest.mark.parametrize(
    ("partitions", "owners", "end"),
    [(5, 3, [3, 1, 1]), (32, 5, [8, 6, 6, 6, 6]), (59, 30, [30] + [1] * 29)],
)
@pytest.mark.parametrize("seed", [0, 1])
def test_the_greedy_peer_never_shares_the_remainder(
    partitions: int, owners: int, end: list[int], seed: int
) -> None:
    with peer_group(partitions, seed=seed) as peer:
        peer.join(owners)
        assert peer.cycles_until(peer.even, max_cycles=150) is None
        assert peer.counts() == end


def test_a_late_joiner_gains_one_partition_per_cycle_at_the_peer() -> None:
    with peer_group(32) as peer:
        peer.join()
        peer.cycles(2)
        peer.join()
        assert peer.cycles_until(peer.even, max_cycles=150) == 16
        assert peer.store.moves == 16


def test_the_peer_writes_all_that_it_owns_in_every_cycle() -> None:
    with peer_group(12) as peer:
        peer.join(3)
        peer.settle(max_cycles=50)
        before = peer.store.calls
        peer.cycles()
        assert peer.store.calls - before == 3 * (1 + 4)


def test_the_peer_waits_for_the_expiry_of_the_dead() -> None:
    with peer_group(12) as peer:
        peer.join(3)
        peer.settle(max_cycles=50)
        expires_in_s = peer.crash_one()
        seconds = peer.seconds_until(peer.all_owned, max_cycles=50)
        assert 150 <= expires_in_s <= 180
        assert seconds is not None
        assert 0 < seconds - expires_in_s <= 30


def test_the_peer_has_its_own_time_and_lots_back_afterwards() -> None:
    import random
    import time

    from azure.eventhub._eventprocessor import ownership_manager

    taken = vars(ownership_manager)
    with peer_group(1):
        assert taken["time"] is not time
    assert taken["time"] is time
    assert taken["random"] is random


# ----------------------------------------------- the peer's client and its server


@pytest.mark.parametrize(
    ("written", "read"),
    [
        (amqp_codec.NULL, None),
        (amqp_codec.uint(1 << 31), 1 << 31),
        (amqp_codec.ushort(70), 70),
        (amqp_codec.ubyte(7), 7),
        (amqp_codec.integer(-7), -7),
        (amqp_codec.long(-(1 << 40)), -(1 << 40)),
        (amqp_codec.timestamp(5), 5),
        (amqp_codec.boolean(True), True),
        (amqp_codec.string("gr\u00fcn"), "gr\u00fcn"),
        (amqp_codec.symbol("x-opt-offset"), "x-opt-offset"),
        (amqp_codec.binary(b"\x00\x01"), b"\x00\x01"),
        (amqp_codec.identifier(UUID(int=3)), UUID(int=3)),
        (amqp_codec.identifier("3"), "3"),
        (amqp_codec.row(amqp_codec.NULL, amqp_codec.row()), [None, []]),
        (amqp_codec.pairs({amqp_codec.string("a"): amqp_codec.uint(1)}), {"a": 1}),
        (amqp_codec.array(b"\xb1", [amqp_codec.string("0"), amqp_codec.string("1")]), ["0", "1"]),
        (amqp_codec.described(0x24, amqp_codec.row()), (0x24, [])),
        (b"\xc0\x03\x01\xa1\x00", [""]),
        (b"\x45", ()),
    ],
)
def test_what_the_server_writes_can_be_read(written: bytes, read: object) -> None:
    decoder = amqp_codec.Decoder(written)
    assert decoder.value() == read
    assert not decoder.left


# ------------------------------------------------------------------ ours


def test_scaling_out_takes_two_cycles_and_the_fewest_moves() -> None:
    found = scale_out(hosts=4, partitions=14, seed=0, max_cycles=10)
    assert found.cycles is not None
    assert found.cycles <= 2
    assert found.spread == 1
    assert found.moves == found.min_moves == 10


def test_the_same_lots_give_the_same_group_to_plan() -> None:
    owners = planning.owners_by_lot(4, 100)
    assert owners == planning.owners_by_lot(4, 100)
    assert {"host0000", "host0003", None} <= set(owners)


def test_a_host_tells_by_its_notes_what_it_has_and_what_it_did(tmp_path: Path) -> None:
    notes = Notes(tmp_path / "notes")
    notes.path.write_text(
        "open 0 1 5.5\nopen 3 2 6.5\nbatch 0 0 2\nbatch 0 2 2\nclose 3 2 handed over\nbatch 0 3"
    )
    assert notes.opened() == {(0, 1): 5.5, (3, 2): 6.5}
    assert notes.held() == {0}
    assert notes.handled() == {(0, 0): 1, (0, 1): 1, (0, 2): 2}


def test_full_sizes_are_those_that_are_promised() -> None:
    assert (processor.FULL.read_partitions, processor.FULL.many) == (8, 256)
    assert (processor.FULL.hosts, processor.FULL.every_s) == (4, 0.01)
    assert (balance.FULL.whole.hosts, balance.FULL.whole.partitions) == (32, 1_024)
    assert (stores.FULL.many, stores.FULL.batch) == (10_000, 1_000)
