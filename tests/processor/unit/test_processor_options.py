"""The settings of a processor: what cannot work is refused when they are made (P12)."""

from __future__ import annotations

import functools
import re
from dataclasses import fields
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from leasehold import LeaseTiming, Strategy
from leasehold.errors import InvalidDuration, InvalidName, InvalidOptions, UsageError
from leasehold.events import Start
from leasehold.processor import EventProcessor, LoadMeasure, OnTrimmed, ProcessorOptions
from leasehold.spark import PoisonPolicy
from leasehold.testing.source import MemorySource

SECOND = timedelta(seconds=1)


async def handler(context: Any, batch: Any) -> None: ...


@pytest.mark.spec("P12")
def test_the_defaults_are_a_lease_of_ten_seconds_even_shares_and_the_earliest_event() -> None:
    options = ProcessorOptions()
    assert (options.timing.lease_s, options.timing.renew_s) == (10.0, 3.0)
    assert options.strategy is Strategy.EVEN
    assert options.start_of("7") == Start.earliest()
    assert options.on_trimmed is OnTrimmed.EARLIEST


@pytest.mark.spec("P12")
def test_the_preset_of_event_hubs_has_its_numbers() -> None:
    options = ProcessorOptions.event_hubs()
    assert (options.timing.lease_s, options.timing.renew_s) == (120.0, 30.0)
    assert options.strategy is Strategy.GREEDY
    assert (options.batch_events, options.prefetch_events) == (300, 300)
    assert options.start == Start.latest()


@pytest.mark.spec("P12")
def test_the_preset_of_the_older_host_has_its_numbers() -> None:
    options = ProcessorOptions.event_processor_host()
    assert (options.timing.lease_s, options.timing.renew_s) == (30.0, 10.0)
    assert options.strategy is Strategy.ONE_STEAL
    assert (options.batch_events, options.prefetch_events) == (10, 300)


@pytest.mark.spec("P12")
def test_a_partition_may_have_a_start_of_its_own() -> None:
    options = ProcessorOptions(start=Start.latest(), starts={"3": Start.sequence(17)})
    assert options.start_of("3") == Start.sequence(17)
    assert options.start_of("0") == Start.latest()


@pytest.mark.spec("P12")
@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"batch_events": 0}, "batch_events"),
        ({"batch_bytes": -1}, "batch_bytes"),
        ({"prefetch_events": 0}, "prefetch_events"),
        ({"prefetch_bytes": 1 << 60}, "prefetch_bytes"),
        ({"on_trimmed": "nowhere"}, "on_trimmed can not be 'nowhere': .*earliest, latest, fail"),
        ({"load": "weight"}, "load can not be 'weight': .*events, bytes, lag"),
        ({"strategy": "fair"}, "strategy can not be 'fair': .*by_load"),
        ({"starts": {3: Start.latest()}}, 'write starts={"3"'),
        ({"max_partitions": -1}, "max_partitions >= 0"),
        ({"weight": 0.0}, "0 < weight"),
        ({"stall_after": 10 * SECOND, "give_up_after": SECOND}, "give_up_after >= stall_after"),
        ({"poison": PoisonPolicy.dead_letter()}, "needs dead_letters"),
        ({"hand_over_timeout": SECOND}, "hand_over_timeout >= 2 x renew_interval"),
        ({"timing": LeaseTiming(lease_s=10, renew_s=6)}, "renew_interval < lease / 2"),
    ],
)
def test_what_can_not_work_is_refused_with_the_relation_that_is_broken(
    wrong: dict[str, Any], words: str
) -> None:
    with pytest.raises(InvalidOptions, match=words):
        ProcessorOptions(**wrong)


@pytest.mark.spec("P12")
@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"batch_events": 1.5}, "batch_events must be a whole number, not 1.5"),
        ({"batch_bytes": True}, "batch_bytes must be a whole number, not True"),
        ({"prefetch_events": float("nan")}, "prefetch_events must be a whole number"),
        ({"prefetch_bytes": "8"}, "prefetch_bytes must be a whole number"),
        ({"max_partitions": 1.5}, "max_partitions must be a whole number, not 1.5: use None"),
        ({"max_partitions": True}, "max_partitions must be a whole number"),
        ({"max_partitions": 10**400}, "max_partitions <= 1,000,000,000"),
        ({"weight": "2"}, "weight must be a number, not '2'"),
        ({"weight": True}, "weight must be a number"),
        ({"start": "latest"}, r'start must be a Start, not .*: write Start.parse\("latest"\)'),
        ({"start": None}, r"start must be a Start, not None: write Start.latest\(\)"),
        ({"starts": {"0": "x"}}, r"starts\['0'\] must be a Start"),
        ({"starts": None}, "starts must be a mapping"),
        ({"checkpoint": None}, "checkpoint must be a CheckpointPolicy, not None: write checkpoint"),
        ({"poison": "skip"}, "poison must be a PoisonPolicy, not 'skip': write poison"),
        ({"timing": None}, "timing must be a Timing, not None: write timing=Timing.of"),
        ({"timing": LeaseTiming(lease_s="10")}, "lease_s must be a number of seconds, not '10'"),  # type: ignore[arg-type]
        ({"timing": LeaseTiming(lease_s=float("inf"))}, "lease_s must be a number of seconds"),
        ({"dead_letters": object()}, "dead_letters must be able to send"),
    ],
)
def test_what_is_of_another_kind_is_refused_with_what_to_write(
    wrong: dict[str, Any], words: str
) -> None:
    with pytest.raises(InvalidOptions, match=words):
        ProcessorOptions(**wrong)


@pytest.mark.parametrize("name", ["stall_after", "discovery_interval", "drain_timeout"])
def test_a_time_that_must_be_given_is_no_none(name: str) -> None:
    with pytest.raises(InvalidDuration, match=name):
        ProcessorOptions(**{name: None})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "name",
    ["handler_timeout", "stall_after", "give_up_after", "discovery_interval", "drain_timeout"],
)
def test_a_time_outside_its_range_is_refused_by_name(name: str) -> None:
    with pytest.raises(InvalidDuration, match=name):
        ProcessorOptions(**{name: timedelta(seconds=-1)})  # type: ignore[arg-type]


def test_names_are_taken_for_what_they_name() -> None:
    options = ProcessorOptions(strategy="by_load", on_trimmed="fail", load="lag")  # type: ignore[arg-type]
    assert options.strategy is Strategy.BY_LOAD
    assert options.on_trimmed is OnTrimmed.FAIL
    assert options.load is LoadMeasure.LAG


@pytest.mark.spec("P13")
def test_the_settings_of_the_member_are_the_same() -> None:
    options = ProcessorOptions(weight=2.0, max_partitions=3, drain_timeout=7 * SECOND)
    member = options.member(group="partition/orders/billing", name="web")
    assert (member.weight, member.most, member.drain_timeout) == (2.0, 3, 7 * SECOND)
    assert member.timing == options.timing


def test_the_page_of_options_has_each_of_them() -> None:
    text = (Path(__file__).parents[3] / "docs" / "options.md").read_text(encoding="utf-8")
    section = text.split("\n## Processor\n", maxsplit=1)[1].split("\n## ", maxsplit=1)[0]
    named = re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE)
    assert named == [each.name for each in fields(ProcessorOptions)]


@pytest.mark.parametrize("given", [{"group": "a\nb"}, {"name": ""}])
def test_names_that_can_not_be_are_refused_when_the_processor_is_made(given: Any) -> None:
    with pytest.raises(InvalidName):
        EventProcessor(MemorySource(), "memory://", **{"group": "g", "on_batch": handler, **given})


@pytest.mark.spec("P14")
@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"on_batch": handler, "on_event": handler}, "not both"),
        ({"on_batch": 7}, "on_batch is int, and no function"),
        ({"on_batch": handler, "on_error": "log"}, "on_error is str, and no function"),
        ({"on_partition_open": handler}, "pull style"),
        (
            {"on_event": lambda event: None},
            r"on_event\(event\) can not be called with \(context, ev",
        ),
        ({"on_batch": lambda a, b, c: None}, r"write `def on_batch\(context, batch\)`"),
        ({"on_event": handler, "on_error": lambda error: None}, r"\(context, error\)"),
        ({"on_event": handler, "on_partition_open": handler}, r"with \(context\)"),
        ({"on_event": handler, "on_partition_close": lambda c: None}, r"\(context, reason\)"),
    ],
)
def test_handlers_that_make_no_sense_are_refused(given: Any, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        EventProcessor(MemorySource(), "memory://", "g", **given)


@pytest.mark.parametrize(
    "function", [handler, lambda *values: None, lambda a, b, c=1: None, functools.partial(max, 1)]
)
def test_handlers_that_can_be_called_are_taken_whatever_they_look_like(function: Any) -> None:
    EventProcessor(MemorySource(), "memory://", "g", on_event=function)


@pytest.mark.parametrize(
    ("source", "store", "given", "words"),
    [
        ("orders", "memory://", {}, r"not 'orders': write LogSource\(log, "),
        (None, 7, {}, "the store must be a URL or a Store, not 7"),
        (None, "memory://", {"hooks": handler}, r"write hooks=\[hook\]"),
        (None, "memory://", {"hooks": [7]}, r"write hooks=\[hook\]"),
        (None, "memory://", {"hooks": "hook"}, r"write hooks=\[hook\]"),
        (None, "memory://", {"options": {"weight": 2}}, "must be Options"),
    ],
)
def test_what_is_no_source_store_hook_or_options_is_refused(
    source: Any, store: Any, given: Any, words: str
) -> None:
    with pytest.raises(UsageError, match=words):
        EventProcessor(source or MemorySource(), store, "g", on_event=handler, **given)
