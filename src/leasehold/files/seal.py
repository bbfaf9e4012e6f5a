"""The last steps of a recovery on one volume: seal the replica, tidy up, or remove it.

Until the journal has the block as complete, nothing here destroys evidence: ``seal`` adds one file
and makes the bytes durable. Only ``tidy`` and ``remove`` take something away, and both may be
repeated at any time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from leasehold.errors import UsageError, VolumeUnusable
from leasehold.files.block_meta import Header, Kind, checksum, encode
from leasehold.files.fence import Superseded, frozen_path, write_durably

if TYPE_CHECKING:
    from collections.abc import Sequence

    from leasehold.files.block_meta import Record
    from leasehold.files.disk import Disk
    from leasehold.files.model import Block
    from leasehold.files.volumes import Volume


def seal(
    volume: Volume,
    block: Block,
    recovery_id: int,
    records: Sequence[Record],
    length: int,
    *,
    boot_id: bytes,
    disk: Disk,
) -> int:
    """End a replica at ``length`` under the recovery id, durably, bytes and all.

    Returns the checksum of the block.

    Raises:
        Superseded: another recovery has fenced the replica since.
        UsageError: no record ends at ``length``.
        VolumeUnusable: the replica has fewer bytes.
        OSError: the volume failed.
    """
    kept = [record for record in records if record.kind is Kind.DATA and record.end <= length]
    if length <= 0 or not kept or kept[-1].end != length:
        raise UsageError(
            f"block {block.id:#x} has no record that ends at {length}. Seal at the agreed length."
        )
    if not disk.exists(frozen_path(volume, block, recovery_id)):
        raise Superseded(
            f"block {block.id:#x} on volume {volume.id!r} is not fenced by recovery {recovery_id} "
            "any more. Leave the file to the later one."
        )
    header = Header(
        block_id=block.id,
        generation=recovery_id,
        file_id=block.file_id,
        boot_id=boot_id,
        acknowledged=length,
    )
    target = volume.meta_path(block.id, recovery_id)
    aside = target.removesuffix("meta") + "new"
    data = disk.open(volume.data_path(block.id))
    try:
        if disk.size(data) < length:
            raise VolumeUnusable(
                f"block {block.id:#x} on volume {volume.id!r} has {disk.size(data)} bytes, "
                f"{length} were agreed. Take the volume out of the block."
            )
        # The old writer may never have synced its last bytes: from here on they are promised.
        write_durably(
            aside, encode(header, kept, seal=True), disk=disk, what="seal", with_it=[data]
        )
    finally:
        disk.close(data)
    disk.rename(aside, target, what="seal")
    disk.sync_directory(volume.directory(block.id), what="seal")
    return checksum(kept)


def tidy(volume: Volume, block: Block, recovery_id: int, length: int, *, disk: Disk) -> None:
    """After the commit: cut the bytes to their length and remove all but the sealed replica.

    A volume without the sealed meta file did not take part and is left alone: ``remove`` is for it.

    Raises:
        OSError: the volume failed; what is left can be tidied later.
    """
    directory = volume.directory(block.id)
    sealed = volume.meta_path(block.id, recovery_id)
    data = volume.data_path(block.id)
    if not disk.exists(sealed):
        return
    fd = disk.open(data)
    try:
        longer = disk.size(fd) > length
    finally:
        disk.close(fd)
    if longer:
        disk.truncate(data, length, what="tail")
    _remove(directory, block.id, keep={sealed, data}, disk=disk)


def remove(volume: Volume, block_id: int, *, disk: Disk) -> None:
    """Remove every file of a block.

    Raises:
        OSError: the volume failed; what is left can be removed later.
    """
    _remove(volume.directory(block_id), block_id, keep=set(), disk=disk)


def _remove(directory: str, block_id: int, *, keep: set[str], disk: Disk) -> None:
    stem = f"{block_id:016x}"
    paths = [
        f"{directory}/{name}"
        for name in disk.names(directory)
        if name[: len(stem)] == stem and name[len(stem) : len(stem) + 1] in {"-", "."}
    ]
    # The meta files go first: a writer that is still at it finds at its next check that it is out.
    gone = sorted(path for path in paths if path not in keep)
    gone.sort(key=lambda path: not path.endswith(".meta"))
    for path in gone:
        disk.unlink(path, what="removed")
    if gone:
        disk.sync_directory(directory, what="removed")
