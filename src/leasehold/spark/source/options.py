"""The options of the data source for reading, checked before anything is opened.

An unknown option is refused with the nearest name, and so are two that contradict each other. Spark
does not distinguish upper and lower case in names of options; neither does this module.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import TYPE_CHECKING

from leasehold.errors import InvalidOptions, UsageError
from leasehold.events.source_urls import is_in_store, name_of, shown
from leasehold.events.start import Start
from leasehold.spark import reading as range_text

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from leasehold.spark.reading import Range

NAMES = (
    *("store", "stream", "path", "partitions", "start", "starts", "end", "ranges", "tasks"),
    *("json", "json.mode", "maxEventsPerTrigger", "onTrimmed"),
)
_SELECTING_OPTIONS = ("partitions", "start", "starts", "end")
_BATCH_ONLY = ("end", "ranges")
_STREAM_ONLY = ("maxEventsPerTrigger", "onTrimmed")
_STARTS_ADVICE = 'write {"0": "seq:5", "3": "latest"}'


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """The events to read, and the maximum number of tasks.

    Attributes:
        source: the stream, as ``log:orders`` or ``orders``, or an event hub, as
            ``eventhubs://…``; that may hold a key and is never shown.
        store: the URL of the store; it may hold a password and is never shown.
        partitions: only these; None for all.
        start: where each partition begins, unless ``starts`` names it.
        end: where each partition ends.
        ranges: exactly these events, instead of the selection above.
        tasks: maximum number of tasks.
        json: the fields of the body as a Spark schema, or ``true`` if the schema names them; "" for
            a body that is not decoded.
        null_malformed: whether a malformed body gives nulls, and not an error.
        max_events: maximum number of events in each batch of a stream; None for all.
        skip_trimmed: whether a stream skips events that retention has removed.
    """

    source: str = field(repr=False)
    store: str = field(repr=False)
    partitions: tuple[str, ...] | None = None
    start: Start = field(default_factory=Start.earliest)
    starts: Mapping[str, Start] = field(default_factory=dict)
    end: Start = field(default_factory=Start.latest)
    ranges: tuple[Range, ...] | None = None
    tasks: int = 1
    json: str = ""
    null_malformed: bool = False
    max_events: int | None = None
    skip_trimmed: bool = False

    def start_of(self, partition: str) -> Start:
        """Return where this partition begins."""
        return self.starts.get(partition, self.start)


def parse(given: Mapping[str, str]) -> ReadOptions:
    """Read the options of a batch or a stream."""
    options = check_option_names(given, NAMES, what="reading")
    source = _source(options)
    if not options.get("store") and is_in_store(source):
        raise UsageError('no store is named: add .option("store", "sqlite:///leases.db")')
    if "ranges" in options and (others := [name for name in _SELECTING_OPTIONS if name in options]):
        raise InvalidOptions(
            f"ranges says exactly what to read, and {', '.join(others)} too: give one or the other"
        )
    return ReadOptions(
        source=source,
        store=options.get("store", ""),
        partitions=_partitions(options.get("partitions")),
        start=Start.parse(options.get("start", "earliest")),
        starts=_starts(options.get("starts")),
        end=Start.parse(options.get("end", "latest")),
        ranges=range_text.ranges_from_json(options["ranges"]) if "ranges" in options else None,
        tasks=_count(options, "tasks") or len(os.sched_getaffinity(0)),
        json=_json(options),
        null_malformed=_choice(options, "json.mode", ("fail", "null")) == "null",
        max_events=_count(options, "maxEventsPerTrigger"),
        skip_trimmed=_choice(options, "onTrimmed", ("fail", "earliest")) == "earliest",
    )


def check_kind(given: Mapping[str, str], *, streaming: bool) -> None:
    """Return if all options are valid for a batch, or for a stream."""
    for name in _BATCH_ONLY if streaming else _STREAM_ONLY:
        if name in check_option_names(given, NAMES, what="reading"):
            mine, other = ("stream", "batch") if streaming else ("batch", "stream")
            raise InvalidOptions(
                f"the option {name} is for a {other} and means nothing to a {mine}"
            )


def check_option_names(
    given: Mapping[str, str], allowed: Sequence[str], *, what: str
) -> dict[str, str]:
    """Return the options by their documented names; Spark does not keep their case."""
    names = {name.lower(): name for name in allowed}
    options: dict[str, str] = {}
    for name, value in given.items():
        if name.lower() not in names:
            near = get_close_matches(name.lower(), names, n=1)
            hint = f"did you mean {names[near[0]]}?" if near else f"there are {', '.join(allowed)}"
            raise UsageError(f"{what} has no option {name!r}: {hint}")
        options[names[name.lower()]] = value
    return options


def _source(options: Mapping[str, str]) -> str:
    stream, path = options.get("stream", ""), options.get("path", "")
    if stream and path and name_of(stream) != name_of(path):
        raise InvalidOptions(
            f"the stream is {shown(stream)!r} by its option and {shown(path)!r} by load()"
        )
    if not (stream or path):
        raise UsageError('no stream is named: write .load("orders") or .option("stream", "orders")')
    name_of(stream or path)
    return stream or path


def _partitions(text: str | None) -> tuple[str, ...] | None:
    if text is None:
        return None
    ids = [choice.strip() for choice in text.split(",")]
    if not all(ids) or len(set(ids)) < len(ids):
        raise UsageError(f"{text!r} does not name partitions, each once: write them as 0,3")
    return tuple(ids)


def _starts(text: str | None) -> dict[str, Start]:
    if text is None:
        return {}
    try:
        found = json.loads(text)
    except ValueError as error:
        raise UsageError(f"starts is no JSON ({error}): {_STARTS_ADVICE}") from error
    if not isinstance(found, dict):
        raise UsageError(f"starts is {text!r} and not a place for each partition: {_STARTS_ADVICE}")
    return {partition: _start(position) for partition, position in found.items()}


def _start(position: object) -> Start:
    if isinstance(position, int) and not isinstance(position, bool):
        return Start.sequence(position)
    if isinstance(position, str):
        return Start.parse(position)
    raise UsageError(f"{position!r} in starts is no place to start at: {_STARTS_ADVICE}")


def _count(options: Mapping[str, str], name: str) -> int | None:
    text = options.get(name)
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and int(text)):
        raise UsageError(f"{name} is a whole number from 1 on, not {text!r}")
    return int(text)


def _choice(options: Mapping[str, str], name: str, choices: tuple[str, ...]) -> str:
    choice = options.get(name, choices[0]).lower()
    if choice not in choices:
        raise UsageError(f"{name} is {' or '.join(choices)}, not {choice!r}")
    return choice


def _json(options: Mapping[str, str]) -> str:
    text = options.get("json", "").strip()
    if "json" in options and not text:
        raise UsageError('json names no fields: write .option("json", "carrier string, delay int")')
    if "json.mode" in options and not text:
        raise InvalidOptions("json.mode says what to do with malformed JSON: say json too")
    return "" if text.lower() == "false" else text
