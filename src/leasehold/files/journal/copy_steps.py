"""The steps of copies that are made again: who copies which block to where, and what is removed.

A copy has an epoch that is drawn for it alone and is in the names of its files. One copy of a block
is made at a time. Its claim ends by the clock of the store unless it is renewed; only the current
claim can be committed. A claim that has ended can never be committed afterwards, so the files of
its epoch may be removed at any later time, by any process.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from leasehold.errors import FencedWrite
from leasehold.files.journal import steps
from leasehold.files.model import BlockCopy, BlockState

# Not the time of a recovery, for which somebody waits: one sync of a busy disk must fit in.
COPY_CLAIM_S: Final = 90.0

if TYPE_CHECKING:
    from leasehold.files.journal.unit_of_work import JournalWork
    from leasehold.files.model import Block, FileHolder, VolumeMark


def begin(
    work: JournalWork, block: Block, volume: str, *, holder: FileHolder, mark: VolumeMark
) -> BlockCopy:
    """Claim the copy of a complete block to a volume; refused unless it is as it was seen."""
    found = steps.block_by_id(work, block.id)
    held = steps.held_file(work, block.file_id)
    volumes = steps.volumes(work)
    if found is None or held is None or volume not in volumes or not _is_same(found, block):
        raise _refused(block, 0, "the block or the volume is gone")
    have = volumes.keys() & found.volumes
    if volume not in have and len(have) >= min(held.row.replication, len(volumes)):
        raise _refused(block, 0, "it has all its copies")
    if found.copy_on(volume) != block.copy_on(volume):
        raise _refused(block, 0, f"another process has copied it to volume {volume}")
    claims = work.tx.all("copies_of", block_id=block.id)
    for volume_id, epoch, other, until_s in claims:
        if until_s > work.now and other != holder.id:  # its own: the answer of a call was lost
            raise _refused(
                block,
                epoch,
                f"{other} copies it to volume {volume_id}; its claim ends in "
                f"{until_s - work.now:.0f} s unless it is renewed",
                by=other,
            )
    work.refuse_newer(mark)
    for volume_id, epoch, _, _ in claims:
        work.tx.run("copy_end", block_id=block.id, volume_id=volume_id, epoch=epoch)
    epoch = work.draw_epoch()
    work.tx.run(
        "copy_add",
        block_id=block.id,
        volume_id=volume,
        epoch=epoch,
        holder=holder.id,
        until_s=work.now + COPY_CLAIM_S,
        is_over=0,
    )
    return BlockCopy(block=found, volume=volume, epoch=epoch)


def renew(work: JournalWork, copy: BlockCopy) -> None:
    """Extend the claim, also a late one, as long as it was not ended."""
    until_s = work.now + COPY_CLAIM_S
    if not work.tx.run("copy_renew", **_key(copy), until_s=until_s):
        work.count_refusal()
        raise _refused(copy.block, copy.epoch, "the claim to copy it has ended")


def commit(work: JournalWork, copy: BlockCopy, *, holder: FileHolder) -> None:
    """Make the copy a replica of the block; the replica that it takes the place of is removed."""
    block = copy.block
    found = steps.block_by_id(work, block.id)
    if found is not None and found.copy_on(copy.volume) == copy.epoch:
        return  # committed before
    claims = work.tx.all("copies_of", block_id=block.id)
    if (copy.volume, copy.epoch) not in {(volume, epoch) for volume, epoch, _, _ in claims}:
        work.count_refusal()
        raise _refused(block, copy.epoch, "the claim to copy it has ended")
    held = steps.held_file(work, block.file_id)
    is_there = found is not None and copy.volume in steps.volumes(work)
    if found is None or held is None or not is_there or not _is_same(found, block):
        raise _refused(block, copy.epoch, "the block or the volume is gone")
    work.tx.run("copy_forget", **_key(copy), is_over=0)
    if copy.volume in found.volumes:
        _discard(work, found, copy.volume)
    work.tx.run("replica_write", block_id=block.id, volume_id=copy.volume, epoch=copy.epoch)
    work.tx.run("replicas_drop_unknown", block_id=block.id)
    work.note(
        "copied",
        file_id=held.row.id,
        path=held.row.path,
        epoch=copy.epoch,
        holder=holder.id,
        detail=f"block {block.id:#x}, {block.length} bytes, to {copy.volume}",
    )


def end(work: JournalWork, copy: BlockCopy) -> None:
    """Give the copy up: it can never be committed, and its files are removed."""
    work.tx.run("copy_end", **_key(copy))


def end_late(work: JournalWork, limit: int) -> None:
    """End claims that were not renewed in time."""
    for block_id, volume_id, epoch in work.tx.all("copies_late", now=work.now, limit=limit):
        work.tx.run("copy_end", block_id=block_id, volume_id=volume_id, epoch=epoch)


def replace_volume(work: JournalWork, volume_id: str, *, by: str, path: str) -> None:
    """Forget a volume and register the one that takes its place."""
    work.tx.run("volume_drop", id=volume_id)
    steps.register_volume(work, by, path)


def _is_same(found: Block, block: Block) -> bool:
    """Return whether a complete block has the bytes that were seen: it never changes."""
    return found.state is BlockState.COMPLETE and (
        (found.generation, found.length, found.checksum)
        == (block.generation, block.length, block.checksum)
    )


def _discard(work: JournalWork, block: Block, volume: str) -> None:
    """Give up the replica of a block on a volume, for a new copy there."""
    epoch = block.copy_on(volume)
    if epoch:
        work.tx.run(
            "copy_add",
            block_id=block.id,
            volume_id=volume,
            epoch=epoch,
            holder="",
            until_s=0.0,
            is_over=1,
        )
    else:
        work.tx.run("trash_add", block_id=block.id, volume_id=volume)


def _key(copy: BlockCopy) -> dict[str, str | int | float | None]:
    return {"block_id": copy.block.id, "volume_id": copy.volume, "epoch": copy.epoch}


def _refused(block: Block, epoch: int, why: str, *, by: str | None = None) -> FencedWrite:
    return FencedWrite(
        f"block {block.id:#x} is not copied: {why}. Nothing was changed. Look again at what is "
        "missing.",
        key=f"block {block.id:#x}",
        epoch=epoch,
        reason="taken over",
        now_held_by=by,
    )
