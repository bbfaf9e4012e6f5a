"""Where a receiver of Event Hubs wants to begin: the filters of its link, read and found.

The grammar is that of the service: one annotation (offset, sequence number or time of enqueuing),
``>`` or ``>=``, and a value; the offset ``-1`` is the first event that is kept, and ``@latest`` the
end. What retention has removed is passed over; what lies beyond the end is refused.

Who reads a partition for a group: one with an epoch alone, or up to five without.

Pure; the words are those of the service, since clients look for them. Epochs are those of the
readers that are here now: they end with their links, and are not those of the log's own readers.
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

Place = tuple[str, str, str]  # hub, group, partition


class Stealable(Protocol):
    """A reader, as far as others may end it."""

    @property
    def epoch(self) -> int | None:
        """What it reads with."""
        ...

    def steal(self, why: RequestRefused) -> None:
        """Another one reads from now on."""
        ...


@dataclass(slots=True)
class ReaderEpochs:
    """All readers of a server."""

    _readers: dict[Place, list[Stealable]] = field(default_factory=dict)

    def enter(self, place: Place, reader: Stealable) -> None:
        """Let it read, and end those who may not any more.

        Raises:
            Refused: somebody with a higher epoch reads, or there are too many.
        """
        present = self._readers.get(place, [])
        highest = max((each.epoch for each in present if each.epoch is not None), default=None)
        if reader.epoch is None:
            if highest is not None:
                raise RequestRefused(
                    STOLEN,
                    f"At least one receiver for the endpoint is created with epoch of '{highest}', "
                    "and so non-epoch receiver is not allowed. Either reconnect with a higher "
                    "epoch, or make sure all epoch receivers are closed or disconnected.",
                )
            if len(present) >= MAX_READERS:
                raise RequestRefused(
                    TOO_MANY,
                    "Exceeded the maximum number of allowed receivers per partition in a consumer "
                    f"group which is {MAX_READERS}",
                )
            self._readers.setdefault(place, []).append(reader)
            return
        if highest is not None and highest > reader.epoch:
            raise RequestRefused(
                STOLEN,
                f"A receiver with a higher epoch '{highest}' already exists. A new receiver with "
                f"epoch {reader.epoch} cannot be created. Make sure you are creating receiver with "
                "increasing epoch value to ensure connectivity, or ensure all old epoch receivers "
                "are closed or disconnected.",
            )
        self._readers[place] = [reader]
        for each in present:
            old = "nil" if each.epoch is None else each.epoch
            each.steal(
                RequestRefused(
                    STOLEN,
                    f"New receiver 'nil' with higher epoch of '{reader.epoch}' is created hence "
                    f"current receiver 'nil' with epoch '{old}' is getting disconnected. If you "
                    "are recreating the receiver, make sure a higher epoch is used.",
                )
            )

    def leave(self, place: Place, reader: Stealable) -> None:
        """It reads no more. Again is harmless."""
        left = [each for each in self._readers.get(place, []) if each is not reader]
        if left:
            self._readers[place] = left
        else:
            self._readers.pop(place, None)


if TYPE_CHECKING:
    T = TypeVar("T")

FILTER = "apache.org:selector-filter:string"
_TEXT = re.compile(
    r"\s*amqp\.annotation\.x-opt-(offset|sequence-number|enqueued-time)\s*(>=?)\s*'?([^'\s]+)'?\s*"
)
_NUMBER = re.compile(r"-?[0-9]{1,19}")
_EPOCH_BEGAN = datetime(1970, 1, 1, tzinfo=UTC)
_LATEST_MS = 253_402_300_799_000  # the end of the year 9999
_MAX = 2**63 - 2
_SHOWN = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Selector:
    """``what``: earliest, latest, offset, sequence-number or enqueued-time."""

    what: str
    value: int = 0
    is_inclusive: bool = False

    @property
    def start(self) -> Start:
        """Where that is in the log."""
        after = self.value if self.is_inclusive else self.value + 1
        match self.what:
            case "latest":
                return Start.latest()
            case "offset":
                return Start.offset(after)
            case "sequence-number":
                return Start.sequence(after)
            case "enqueued-time":
                return Start.time(_EPOCH_BEGAN + timedelta(milliseconds=after))
            case _:
                return Start.earliest()


def selector_of(filters: Mapping[Any, Any] | None) -> Selector:
    """What the filters of a link say; without any, the first event that is kept.

    Raises:
        Refused: they are none of ours.
    """
    for name, value in (filters or {}).items():
        text = value.value if isinstance(value, Described) else value
        if name == FILTER and isinstance(text, str):
            return _parsed(text)
    return Selector(what="earliest")


def _parsed(text: str) -> Selector:
    match = _TEXT.fullmatch(text[:_SHOWN])
    if match is None:
        raise _refused(text)
    what, sign, value = match.groups()
    if value == "@latest" and what == "offset":
        return Selector(what="latest")
    if _NUMBER.fullmatch(value) is None or abs(int(value)) > _MAX:
        raise _refused(text)
    number = int(value)
    if number < 0:
        return Selector(what="earliest")
    if what == "enqueued-time":
        number = min(number, _LATEST_MS)
    return Selector(what=what, value=number, is_inclusive=sign == ">=")


def _refused(text: str) -> RequestRefused:
    return RequestRefused(
        ARGUMENT,
        f"The filter {text[:_SHOWN]!r} can not be read: it compares x-opt-offset, "
        "x-opt-sequence-number or x-opt-enqueued-time with > or >= and a value.",
    )


def begun(
    selector: Selector, last: Callable[[], tuple[int, int]], open_at: Callable[[Start], T]
) -> T:
    """What ``open_at`` opens where the selector says; ``last`` tells the last number and offset.

    Raises:
        Refused: it lies beyond the end.
    """
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
