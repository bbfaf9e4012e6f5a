"""Epochs and positions that were set before there is a table to keep them.

A Delta table needs columns, and they are known only with the first batch; a partition is fenced
before that. Until then each fence is a small file in ``_leasehold/fences`` beside the log. Of the
files of a partition the one with the highest epoch counts, and of these the newest.

Whoever writes such a file looks for the table afterwards, and fences in the table too if it is
there. Whoever sees the table for the first time reads the files afterwards. So a fence that has
returned is known to everybody who can commit, however the two meet.
"""

from __future__ import annotations

import json
from hashlib import sha256
from typing import TYPE_CHECKING

from leasehold.errors import StoreUnusable
from leasehold.spark.sinks.directory import FENCES
from leasehold.spark.sinks.port import Sunk

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from leasehold.spark.sinks.delta.storage import Storage

_SUFFIX = ".json"


class Fences:
    """The files of one table. ``token`` gives names that nobody has used."""

    def __init__(self, place: Storage, token: Callable[[], str]) -> None:
        """Nothing is read yet."""
        self._place = place
        self._token = token
        self._known: dict[tuple[str, str], Sunk] = {}
        self._count: dict[tuple[str, str], int] = {}

    def of(self, group: str, partition: str) -> Sunk:
        """What the last ``read`` found of a partition."""
        return self._known.get((group, partition), Sunk())

    def read(self) -> None:
        """Read all files.

        Raises:
            StoreUnusable: one of them is damaged.
        """
        best: dict[tuple[str, str], tuple[int, int]] = {}
        known: dict[tuple[str, str], Sunk] = {}
        for name in self._place.names(FENCES):
            if not name.endswith(_SUFFIX):
                continue  # not finished: its writer was killed, or writes on
            key, order, position = self._one(name)
            if order >= best.get(key, (0, 0)):
                best[key] = order
                known[key] = Sunk(position=position, epoch=order[0])
        self._known = known
        self._count = {key: count for key, (_, count) in best.items()}

    def write(self, group: str, places: Mapping[str, Sunk]) -> None:
        """Keep these from now on; a file of a lower epoch changes nothing."""
        for partition, place in places.items():
            key = (group, partition)
            count = self._count.get(key, 0) + 1
            self._count[key] = count
            name = sha256(json.dumps(key).encode()).hexdigest()[:32]
            text = json.dumps(
                {
                    "group": group,
                    "partition": partition,
                    "epoch": place.epoch,
                    "position": place.position,
                    "count": count,
                }
            )
            self._place.write_new(
                f"{FENCES}/{name}-{place.epoch:020d}-{count:06d}{_SUFFIX}",
                text.encode(),
                temporary=f"{FENCES}/{self._token()}.tmp",
            )

    def _one(self, name: str) -> tuple[tuple[str, str], tuple[int, int], int | None]:
        try:
            told = json.loads(self._place.read(f"{FENCES}/{name}") or b"")
            position = told["position"]
            return (
                (str(told["group"]), str(told["partition"])),
                (int(told["epoch"]), int(told["count"])),
                None if position is None else int(position),
            )
        except (ValueError, KeyError, TypeError) as error:
            raise StoreUnusable(
                f"{self._place.name}/{FENCES}/{name} is damaged ({error!r}): it says who may "
                "write to the table. Restore it, or stop all drivers and delete it"
            ) from error
