"""Files with one writer: leases, fencing and recovery over several volumes.

A ``Namespace`` keeps files by path. Their names, blocks and epochs are journalled in the database
of a store; their bytes are on volumes (directories, usually one for each disk), every block on
several of them. One holder at a time writes a file. If it crashes, another recovers the file: what
was acknowledged is kept, and the old writer is fenced for good, even if it was only paused.

The protocol is in ``docs/design/files.md``; how to use it, in ``docs/files.md``.

================  ============================================================================
module            what it decides or does
================  ============================================================================
``journal``       decides who may write which file; every step atomic and durable
``volumes``       directories with an identity file
``block_writer``  writes one block to all its volumes
``fence``         fences the old writer of a replica, finds which of its last bytes are sound,
                  and seals them
``block_pieces``  which copy has which piece, and how one gets the rest
``recovery``      fence, examine, agree (``leasehold.core.block_agreement``), seal, commit
``namespace``     opens files for one holder, and recovers those it needs
``renewer``       one renewal for all files of a holder
``monitor``       recovers files that no holder renews, removes deleted blocks
``repair``        finds copies that are missing and makes them again
``block_copy``    copies one complete block to a volume
``disk``          the only access to the file system
``open_files``    bounds the descriptors of files that are written
================  ============================================================================
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from leasehold.lazy import lazy_names

if TYPE_CHECKING:
    from leasehold.files.aio import AsyncFileReader, AsyncFileWriter, AsyncNamespace
    from leasehold.files.model import (
        Block,
        BlockState,
        FileLoss,
        FileOptions,
        FileState,
        FileStatus,
        HolderStatus,
    )
    from leasehold.files.namespace import Namespace
    from leasehold.files.reader import FileReader
    from leasehold.files.recovery import RecoveryPlan, RecoveryProgress
    from leasehold.files.repair import MissingCopy
    from leasehold.files.verify import Fault
    from leasehold.files.writer import FileWriter

__all__ = [
    "AsyncFileReader",
    "AsyncFileWriter",
    "AsyncNamespace",
    "Block",
    "BlockState",
    "Fault",
    "FileLoss",
    "FileOptions",
    "FileReader",
    "FileState",
    "FileStatus",
    "FileWriter",
    "HolderStatus",
    "MissingCopy",
    "Namespace",
    "RecoveryPlan",
    "RecoveryProgress",
]

_HOMES = {
    "AsyncFileReader": "leasehold.files.aio",
    "AsyncFileWriter": "leasehold.files.aio",
    "AsyncNamespace": "leasehold.files.aio",
    "Block": "leasehold.files.model",
    "BlockState": "leasehold.files.model",
    "Fault": "leasehold.files.verify",
    "FileLoss": "leasehold.files.model",
    "FileOptions": "leasehold.files.model",
    "FileReader": "leasehold.files.reader",
    "FileState": "leasehold.files.model",
    "FileStatus": "leasehold.files.model",
    "FileWriter": "leasehold.files.writer",
    "HolderStatus": "leasehold.files.model",
    "MissingCopy": "leasehold.files.repair",
    "Namespace": "leasehold.files.namespace",
    "RecoveryPlan": "leasehold.files.recovery",
    "RecoveryProgress": "leasehold.files.recovery",
}

if not TYPE_CHECKING:
    __getattr__ = lazy_names(__name__, _HOMES)
