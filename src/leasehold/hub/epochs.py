"""Who reads a partition for a group: one with an epoch alone, or up to five without.

Pure; the words are those of the service, since clients look for them. Epochs are those of the
readers that are here now: they end with their links, and are not those of the log's own readers.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from leasehold.hub.error_conditions import STOLEN, TOO_MANY, Refused

MOST_READERS = 5

Place = tuple[str, str, str]  # hub, group, partition


class Stealable(Protocol):
    """A reader, as far as others may end it."""

    @property
    def epoch(self) -> int | None:
        """What it reads with."""
        ...

    def steal(self, why: Refused) -> None:
        """Another one reads from now on."""
        ...


@dataclass(slots=True)
class Epochs:
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
                raise Refused(
                    STOLEN,
                    f"At least one receiver for the endpoint is created with epoch of '{highest}', "
                    "and so non-epoch receiver is not allowed. Either reconnect with a higher "
                    "epoch, or make sure all epoch receivers are closed or disconnected.",
                )
            if len(present) >= MOST_READERS:
                raise Refused(
                    TOO_MANY,
                    "Exceeded the maximum number of allowed receivers per partition in a consumer "
                    f"group which is {MOST_READERS}",
                )
            self._readers.setdefault(place, []).append(reader)
            return
        if highest is not None and highest > reader.epoch:
            raise Refused(
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
                Refused(
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
