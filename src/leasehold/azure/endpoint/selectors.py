"""Rules for receivers: the position that a link's filter selects, and who may read a partition.

The filter grammar is that of the service: one annotation (offset, sequence number or enqueued
time), ``>`` or ``>=``, and a value; the offset ``-1`` is the first event that is kept, and
``@latest`` the end. What retention has removed is skipped; a position beyond the end is refused.

A partition has one reader with an epoch for each group, or up to five without. Epochs are those of
the attached readers: they end with their links, and are not those of the log's own readers.

Nothing here does I/O. The error texts are those of the service, since clients parse them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Protocol

from leasehold.azure.amqp.types import Described
from leasehold.azure.endpoint.error_conditions import ARGUMENT, STOLEN, TOO_MANY, RequestRefused
from leasehold.errors import BeyondEnd, Trimmed
from leasehold.events.start import Start

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import TypeVar

MAX_READERS = 5

ReaderKey = tuple[str, str, str]  # hub, group, partition


class EpochReader(Protocol):
    """A reader that another one may displace."""

    @property
    def epoch(self) -> int | None:
        """The epoch that it reads with; None without one."""
        ...

    def displace(self, reason: RequestRefused) -> None:
        """Stop reading: another reader has taken over."""
        ...


@dataclass(slots=True)
class ReaderEpochs:
    """The readers of a server, by hub, group and partition."""

    _readers: dict[ReaderKey, list[EpochReader]] = field(default_factory=dict)

    def enter(self, key: ReaderKey, reader: EpochReader) -> None:
        """Admit a reader and displace those with a lower epoch, or refuse it."""
        others = self._readers.get(key, [])
        highest = max((each.epoch for each in others if each.epoch is not None), default=None)
        if reader.epoch is None:
            if highest is not None:
                raise RequestRefused(
                    STOLEN,
                    f"At least one receiver for the endpoint is created with epoch of '{highest}', "
                    "and so non-epoch receiver is not allowed. Either reconnect with a higher "
                    "epoch, or make sure all epoch receivers are closed or disconnected.",
                )
            if len(others) >= MAX_READERS:
                raise RequestRefused(
                    TOO_MANY,
                    "Exceeded the maximum number of allowed receivers per partition in a consumer "
                    f"group which is {MAX_READERS}",
                )
            self._readers.setdefault(key, []).append(reader)
            return
        if highest is not None and highest > reader.epoch:
            raise RequestRefused(
                STOLEN,
                f"A receiver with a higher epoch '{highest}' already exists. A new receiver with "
                f"epoch {reader.epoch} cannot be created. Make sure you are creating receiver with "
                "increasing epoch value to ensure connectivity, or ensure all old epoch receivers "
                "are closed or disconnected.",
            )
        self._readers[key] = [reader]
        for each in others:
            old = "nil" if each.epoch is None else each.epoch
            each.displace(
                RequestRefused(
                    STOLEN,
                    f"New receiver 'nil' with higher epoch of '{reader.epoch}' is created hence "
                    f"current receiver 'nil' with epoch '{old}' is getting disconnected. If you "
                    "are recreating the receiver, make sure a higher epoch is used.",
                )
            )

    def leave(self, key: ReaderKey, reader: EpochReader) -> None:
        """Remove a reader. Safe to call twice."""
        left = [each for each in self._readers.get(key, []) if each is not reader]
        if left:
            self._readers[key] = left
        else:
            self._readers.pop(key, None)


if TYPE_CHECKING:
    T = TypeVar("T")

FILTER = "apache.org:selector-filter:string"
_TEXT = re.compile(
    r"\s*amqp\.annotation\.x-opt-(offset|sequence-number|enqueued-time)\s*(>=?)\s*'?([^'\s]+)'?\s*"
)
_NUMBER = re.compile(r"-?[0-9]{1,19}")
_UNIX_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MAX_MS = 253_402_300_799_000  # the end of the year 9999
_MAX_VALUE = 2**63 - 2
_MAX_SHOWN_CHARS = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Selector:
    """A position. ``what``: earliest, latest, offset, sequence-number or enqueued-time."""

    what: str
    value: int = 0
    is_inclusive: bool = False

    @property
    def start(self) -> Start:
        """The position in the log."""
        after = self.value if self.is_inclusive else self.value + 1
        match self.what:
            case "latest":
                return Start.latest()
            case "offset":
                return Start.offset(after)
            case "sequence-number":
                return Start.sequence(after)
            case "enqueued-time":
                return Start.time(_UNIX_EPOCH + timedelta(milliseconds=after))
            case _:
                return Start.earliest()


def selector_of(filters: Mapping[Any, Any] | None) -> Selector:
    """Read the filters of a link; without any, select the first event that is kept."""
    for name, value in (filters or {}).items():
        text = value.value if isinstance(value, Described) else value
        if name == FILTER and isinstance(text, str):
            return _parse(text)
    return Selector(what="earliest")


def _parse(text: str) -> Selector:
    match = _TEXT.fullmatch(text[:_MAX_SHOWN_CHARS])
    if match is None:
        raise _unreadable(text)
    what, sign, value = match.groups()
    if value == "@latest" and what == "offset":
        return Selector(what="latest")
    if _NUMBER.fullmatch(value) is None or abs(int(value)) > _MAX_VALUE:
        raise _unreadable(text)
    number = int(value)
    if number < 0:
        return Selector(what="earliest")
    if what == "enqueued-time":
        number = min(number, _MAX_MS)
    return Selector(what=what, value=number, is_inclusive=sign == ">=")


def _unreadable(text: str) -> RequestRefused:
    return RequestRefused(
        ARGUMENT,
        f"The filter {text[:_MAX_SHOWN_CHARS]!r} can not be read: it compares x-opt-offset, "
        "x-opt-sequence-number or x-opt-enqueued-time with > or >= and a value.",
    )


def open_at_selector(
    selector: Selector, last: Callable[[], tuple[int, int]], open_at: Callable[[Start], T]
) -> T:
    """Open at the selected position; ``last`` returns the last number and offset."""
    if selector.what == "offset":
        _, last_offset = last()
        if selector.value > last_offset:
            raise _beyond("offset", selector.value, last_offset)
    try:
        return open_at(selector.start)
    except Trimmed:
        return open_at(Start.earliest())
    except BeyondEnd as error:
        raise _beyond("sequence number", selector.value, error.end - 1) from error


def _beyond(what: str, value: int, last: int) -> RequestRefused:
    return RequestRefused(
        ARGUMENT,
        f"The supplied {what} '{value}' is invalid. The last {what} in the system is '{last}'",
    )
