"""The volumes of a namespace: which there are, which can be used, which get the next block.

A volume is known to the journal by its id and its path. One that is missing is never made anew at
its old path: the empty mount point of a disk that is away looks just like a fresh directory.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING

from leasehold.errors import UsageError, VolumeUnusable
from leasehold.files.volume import Volume

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from leasehold.clock import Clock
    from leasehold.files.disk import Disk
    from leasehold.files.journal import Journal
    from leasehold.files.volume import Identity

log = logging.getLogger("leasehold.files")

DEFAULT_REPLICATION = 3
# For so long a volume that was found usable gets new blocks without another look. One that fails
# meanwhile is dropped from the block by its writer.
_TRUSTED_S = 1.0


class Volumes:
    """All volumes by id. Safe to use from several threads: it is only ever added to."""

    def __init__(self, known: Iterable[Volume], *, clock: Clock) -> None:
        """Over volumes that the journal knows."""
        self._by_id = {volume.id: volume for volume in known}
        self._clock = clock
        self._looked_at: dict[str, float] = {}
        self._news: Callable[[], Iterable[Volume]] = tuple

    @classmethod
    def opened(
        cls,
        journal: Journal,
        roots: Sequence[Path | str],
        *,
        disk: Disk,
        clock: Clock,
        new_id: Callable[[], str],
    ) -> Volumes:
        """The volumes the journal knows, and those at ``roots``, made and registered if new.

        Raises:
            VolumeUnusable: a root is no empty directory and no volume of this namespace.
            UsageError: there is no volume at all.
        """
        namespace, known = journal.namespace_id(new_id=new_id()), journal.volumes()
        at_path = {path: id_ for id_, path in known.items()}
        for root in roots:
            path = str(Path(root).absolute())
            if path not in at_path:
                volume_id = _admitted(path, disk=disk, namespace=namespace, new_id=new_id)
                journal.register_volume(volume_id, path)
                known[volume_id] = path
        if not known:
            raise UsageError(
                f"{journal.url} has no volumes yet: name one or more directories to keep files in, "
                "or make a stream of the log with `leasehold log create NAME --volume DIR`"
            )

        def listed() -> list[Volume]:
            now = journal.volumes().items()
            return [Volume(id_, path, disk, namespace=namespace) for id_, path in now]

        volumes = cls(listed(), clock=clock)
        volumes._news = listed
        return volumes

    def __len__(self) -> int:
        return len(self._by_id)

    def all(self) -> Sequence[Volume]:
        """Every volume, usable or not."""
        return tuple(self._by_id.values())

    def get(self, volume_id: str) -> Volume:
        """The volume with this id.

        Raises:
            VolumeUnusable: this namespace has none.
        """
        if volume_id not in self._by_id:  # another process has added it since we looked
            self._by_id = {volume.id: volume for volume in self._news()} | self._by_id
        try:
            return self._by_id[volume_id]
        except KeyError:
            raise VolumeUnusable(f"the journal knows no volume {volume_id}") from None

    def readable(self, volume_id: str) -> Volume:
        """The volume with this id, looked at just now: it is the right one.

        Raises:
            VolumeUnusable: it is not there; the message says why.
        """
        volume = self.get(volume_id)
        volume.check(write=False)
        return volume

    def usable(self, volume_id: str) -> Volume:
        """The volume with this id, looked at just now: it can be written.

        Raises:
            VolumeUnusable: it can not serve; the message says why.
        """
        volume = self.get(volume_id)
        volume.check()
        return volume

    def chosen(self, *, replication: int, least: int, turn: int) -> tuple[Volume, ...]:
        """Volumes for a new block: each gets its turn, and those that can not serve are left out.

        Raises:
            VolumeUnusable: fewer than ``least`` of them can serve.
        """
        ordered = sorted(self._by_id.values(), key=lambda volume: volume.id)
        first = turn % len(ordered)
        found: list[Volume] = []
        troubles: list[str] = []
        for volume in ordered[first:] + ordered[:first]:
            if len(found) == replication:
                break
            try:
                self._look_at(volume)
            except VolumeUnusable as error:
                troubles.append(str(error))
            else:
                found.append(volume)
        if len(found) < least:
            raise VolumeUnusable(
                f"{len(found)} of {len(ordered)} volumes can be used and {least} are needed: "
                f"{'; '.join(troubles) or 'add volumes, or ask for fewer replicas'}"
            )
        if len(found) < replication and troubles:
            log.warning(
                "a block is begun on %d of %d volumes: %s",
                len(found),
                replication,
                "; ".join(troubles),
            )
        return tuple(found)

    def _look_at(self, volume: Volume) -> None:
        now = self._clock.boottime_s()
        if not 0 <= now - self._looked_at.get(volume.id, -_TRUSTED_S) < _TRUSTED_S:
            self._looked_at.pop(volume.id, None)
            volume.check()
            self._looked_at[volume.id] = now


def _admitted(path: str, *, disk: Disk, namespace: str, new_id: Callable[[], str]) -> str:
    """The id of the volume at ``path``, made if there is none."""
    identity = _found(path, disk)
    if identity is None:
        volume_id = new_id()
        try:
            Volume.make(path, disk=disk, namespace=namespace, id=volume_id)
        except (OSError, VolumeUnusable) as error:
            identity = _found(path, disk)  # another process may make it in this moment
            if identity is None and isinstance(error, OSError):
                raise VolumeUnusable(
                    f"no volume can be made at {path}: {error.strerror or error}. Create the "
                    "directory above it, or mount the disk, with the right to write there."
                ) from error
            if identity is None:
                raise
        else:
            return volume_id
    if identity.namespace != namespace:
        raise VolumeUnusable(
            f"{path} is a volume of another namespace ({identity.namespace}, ours is {namespace}): "
            "choose another directory, or the store it belongs to"
        )
    return identity.volume


def _found(path: str, disk: Disk) -> Identity | None:
    try:
        return Volume.found(path, disk=disk)
    except OSError:
        return None
