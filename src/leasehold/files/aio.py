"""The same files for asynchronous programs: each call runs in a thread.

A call that is cancelled is still carried out; its caller does not learn the outcome.
"""

from __future__ import annotations

import threading
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, ParamSpec, Self, TypeVar

from anyio import CancelScope, CapacityLimiter, to_thread

from leasehold.errors import LeaseholdError
from leasehold.files.namespace import Namespace

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence
    from datetime import timedelta
    from types import TracebackType

    from leasehold.files.disk import Bytes
    from leasehold.files.model import FileStatus, HolderStatus, JournalEntry
    from leasehold.files.reader import FileReader
    from leasehold.files.recovery import RecoveryProgress
    from leasehold.files.verify import Fault
    from leasehold.files.writer import FileWriter

P = ParamSpec("P")
T = TypeVar("T")

# A separate pool: the renewals of a program must not wait for its file writes, nor these for
# other users of the common pool.
_THREADS = 32


class AsyncFileWriter:
    """A ``FileWriter``, awaited."""

    def __init__(self, writer: FileWriter, limiter: CapacityLimiter) -> None:
        self.sync_writer = writer
        self._limiter = limiter

    @property
    def path(self) -> str:
        """The path it was opened under; a rename does not change it here."""
        return self.sync_writer.path

    @property
    def epoch(self) -> int:
        """The fencing token: higher than that of any earlier writer of any file."""
        return self.sync_writer.epoch

    @property
    def acknowledged(self) -> int:
        """What readers see."""
        return self.sync_writer.acknowledged

    async def write(self, data: Bytes) -> int:
        """Buffer ``data``; it is written to the volumes when a piece is full."""
        return await _run(self._limiter, self.sync_writer.write, data)

    async def flush(self) -> int:
        """Make all that was written visible; return the file's length."""
        return await _run(self._limiter, self.sync_writer.flush)

    async def sync(self) -> int:
        """Make all that was written visible and durable; return the file's length."""
        return await _run(self._limiter, self.sync_writer.sync)

    async def close(self) -> FileStatus | None:
        """Make all durable, seal the file and release it; return its status."""
        return await _run(self._limiter, self.sync_writer.close)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await _run(self._limiter, self.sync_writer.__exit__, kind, error, trace)


class AsyncFileReader:
    """A ``FileReader``, awaited."""

    def __init__(self, reader: FileReader, limiter: CapacityLimiter) -> None:
        self.sync_reader = reader
        self._limiter = limiter

    @property
    def length(self) -> int:
        """The acknowledged length at the last ``refresh``."""
        return self.sync_reader.length

    async def refresh(self) -> int:
        """Read the status again; return the length. A file that is closed no longer changes."""
        return await _run(self._limiter, self.sync_reader.refresh)

    async def read(self, size: int = -1) -> bytes:
        """Return the next ``size`` bytes, or all that is left."""
        return await _run(self._limiter, self.sync_reader.read, size)

    async def read_at(self, offset: int, size: int) -> bytes:
        """Return up to ``size`` bytes from ``offset``, fewer only at the end."""
        return await _run(self._limiter, self.sync_reader.read_at, offset, size)

    async def chunks(self, size: int = 1 << 20) -> AsyncIterator[bytes]:
        """Yield all from here to the acknowledged end, piece by piece."""
        while data := await self.read(size):
            yield data


class AsyncNamespace:
    """A ``Namespace``, awaited: ``async with await AsyncNamespace.open(url) as files``."""

    def __init__(self, namespace: Namespace) -> None:
        self.sync_namespace = namespace
        self._limiter = CapacityLimiter(_THREADS)

    @classmethod
    async def open(cls, url: str, **settings: Any) -> AsyncNamespace:
        """Open the namespace in the database that ``url`` names."""
        return cls(await to_thread.run_sync(partial(Namespace.open, url, **settings)))

    async def create(
        self,
        path: str,
        *,
        overwrite: bool = False,
        replication: int | None = None,
        block_bytes: int | None = None,
    ) -> AsyncFileWriter:
        """Begin a new file."""
        writer = await self._opened(
            self.sync_namespace.create,
            path,
            overwrite=overwrite,
            replication=replication,
            block_bytes=block_bytes,
        )
        return AsyncFileWriter(writer, self._limiter)

    async def append(self, path: str) -> AsyncFileWriter:
        """Continue after the end of a file, in a new block."""
        writer = await self._opened(self.sync_namespace.append, path)
        return AsyncFileWriter(writer, self._limiter)

    async def read(self, path: str) -> AsyncFileReader:
        """Open a file for reading, regardless of its writer."""
        return AsyncFileReader(await self._run(self.sync_namespace.read, path), self._limiter)

    async def recover(
        self,
        path: str,
        *,
        timeout: timedelta,  # noqa: ASYNC109 - it bounds the recovery, not the awaiting
        progress: Callable[[RecoveryProgress], None] = lambda _: None,
    ) -> FileStatus:
        """Close a file, regardless of its holder; ``progress`` is called from a thread."""
        return await self._run(
            self.sync_namespace.recover, path, timeout=timeout, progress=progress
        )

    async def is_closed(self, path: str) -> bool:
        """Return whether the file is complete."""
        return await self._run(self.sync_namespace.is_closed, path)

    async def status(self, path: str) -> FileStatus:
        """Return a file as it is now."""
        return await self._run(self.sync_namespace.status, path)

    async def list(
        self, prefix: str = "/", *, after: str = "", limit: int = 1000
    ) -> Sequence[FileStatus]:
        """Return files below the directory ``prefix`` by path, from the one after ``after``."""
        return await self._run(self.sync_namespace.list, prefix, after=after, limit=limit)

    async def list_open(self, prefix: str = "/", *, limit: int = 1000) -> Sequence[FileStatus]:
        """Return files that are not closed, by id."""
        return await self._run(self.sync_namespace.list_open, prefix, limit=limit)

    async def holders(self, *, limit: int = 1000) -> Sequence[HolderStatus]:
        """Return the holders with open files, the most silent first."""
        return await self._run(self.sync_namespace.holders, limit=limit)

    async def history(self, path: str, *, limit: int = 20) -> Sequence[JournalEntry]:
        """Return what was done to a file, newest first."""
        return await self._run(self.sync_namespace.history, path, limit=limit)

    async def verify(self, path: str) -> Sequence[Fault]:
        """Compare every replica with its checksums and with the journal."""
        return await self._run(self.sync_namespace.verify, path)

    async def rename(self, source: str, target: str, *, overwrite: bool = False) -> int:
        """Rename a file or a directory; return how many files. Writers continue undisturbed."""
        return await self._run(self.sync_namespace.rename, source, target, overwrite=overwrite)

    async def delete(self, path: str, *, recursive: bool = False) -> int:
        """Delete a file, or with ``recursive`` a directory; return how many files: 0 if none."""
        return await self._run(self.sync_namespace.delete, path, recursive=recursive)

    async def close(self) -> None:
        """Stop the threads and leave. Files that are still open stay so: close them first."""
        await self._run(self.sync_namespace.close)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def _opened(
        self, call: Callable[P, FileWriter], *args: P.args, **named: P.kwargs
    ) -> FileWriter:
        """Open a writer; close it if the caller was cancelled, or its lease would never end."""
        lock, left = threading.Lock(), False
        got: list[FileWriter] = []

        def work() -> FileWriter:
            writer = call(*args, **named)
            with lock:
                if not left:
                    got.append(writer)
                    return writer
            with suppress(LeaseholdError):
                writer.close()
            return writer

        try:
            return await _run(self._limiter, work)
        except BaseException:
            with lock:
                left = True
            for writer in got:
                with CancelScope(shield=True), suppress(LeaseholdError):
                    await _run(self._limiter, writer.close)
            raise

    async def _run(self, call: Callable[P, T], *args: P.args, **named: P.kwargs) -> T:
        return await _run(self._limiter, call, *args, **named)


async def _run(
    limiter: CapacityLimiter, call: Callable[P, T], *args: P.args, **named: P.kwargs
) -> T:
    return await to_thread.run_sync(partial(call, *args, **named), limiter=limiter)
