"""The storage of a Delta table: a directory of this machine, or a bucket by its URI.

All paths are relative to the table. When ``write_new`` and ``finish`` return, file and name are
synced. Buckets are reached through ``deltalake`` with the options of the table, on executors as
well; their puts are durable when they return.
"""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit
from urllib.request import url2pathname

from deltalake.fs import DeltaStorageHandler
from pyarrow import fs


@dataclass(frozen=True, slots=True)
class Storage:
    """The location of a table. It can be sent to executors; the options may hold secrets."""

    uri: str
    options: tuple[tuple[str, str], ...] = field(default=(), repr=False)

    @property
    def local(self) -> Path | None:
        """The directory, if it is one of this machine."""
        return None if "://" in self.uri else Path(self.uri)

    @property
    def name(self) -> str:
        """The display name, without a user, a password or a query."""
        if self.local is not None:
            return self.uri
        parts = urlsplit(self.uri)
        return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))

    @property
    def settings(self) -> dict[str, str] | None:
        """The options as ``deltalake`` takes them."""
        return dict(self.options) or None

    def open_fs(self) -> Any:
        """Return a file system whose root is the table."""
        if self.local is not None:
            return fs.SubTreeFileSystem(self.uri, fs.LocalFileSystem())
        return fs.PyFileSystem(DeltaStorageHandler(self.uri, self.settings))

    def read(self, path: str) -> bytes | None:
        """Return the whole file; None if there is none."""
        if self.local is not None:
            try:
                return (self.local / path).read_bytes()
            except FileNotFoundError:
                return None
        try:
            with self.open_fs().open_input_file(path) as file:
                return bytes(file.read())
        except FileNotFoundError:
            return None

    def stamp(self, path: str) -> tuple[int, ...] | None:
        """Return numbers that change when the file is replaced; None if it does not exist."""
        if self.local is not None:
            try:
                found = (self.local / path).stat()
            except FileNotFoundError:
                return None
            return found.st_ino, found.st_size, found.st_mtime_ns
        info = self.open_fs().get_file_info(path)
        return None if info.type == fs.FileType.NotFound else (info.size, info.mtime_ns or 0)

    def size_bytes(self, path: str) -> int | None:
        """Return the size of the file; None if there is none."""
        if self.local is not None:
            try:
                return (self.local / path).stat().st_size
            except FileNotFoundError:
                return None
        info = self.open_fs().get_file_info(path)
        return None if info.type == fs.FileType.NotFound else int(info.size)

    def names(self, directory: str) -> list[str]:
        """Return the sorted file names of a directory; none if it does not exist."""
        if self.local is not None:
            try:
                return sorted(each.name for each in (self.local / directory).iterdir())
            except FileNotFoundError:
                return []
        found = self.open_fs().get_file_info(fs.FileSelector(directory, allow_not_found=True))
        return sorted(each.base_name for each in found)

    def write_new(self, path: str, data: bytes, *, temporary: str) -> None:
        """Write a small file: all of it or, after a crash, none. ``temporary``: a name beside."""
        if self.local is None:
            with self.open_fs().open_output_stream(path) as file:
                file.write(data)
            return
        made = self.local / temporary
        made.parent.mkdir(parents=True, exist_ok=True)
        made.write_bytes(data)
        _sync(made)
        made.replace(self.local / path)
        self._sync_directories(made.parent)

    def finish(self, paths: list[str]) -> None:
        """Sync files that are written and closed, with their names."""
        if self.local is None:
            return
        for path in paths:
            _sync(self.local / path)
        for directory in sorted({(self.local / path).parent for path in paths}):
            self._sync_directories(directory)

    def finish_root(self) -> None:
        """Sync the name of the table itself, if permitted."""
        if self.local is not None:
            with suppress(OSError):
                _sync(self.local.parent)

    def _sync_directories(self, lowest: Path) -> None:
        """Sync the directory, and those above it up to the table: any of them may be new."""
        at = lowest
        while True:
            _sync(at)
            if at in {self.local, at.parent}:
                return
            at = at.parent

    def remove(self, paths: list[str]) -> None:
        """Delete these files; those that are missing or cannot be deleted are skipped."""
        disk = self.open_fs()
        for path in paths:
            try:
                disk.delete_file(path)
            except OSError:
                continue


def storage_at(path: str | os.PathLike[str], options: dict[str, str] | None) -> Storage:
    """Return the storage of a path, or of a URI such as ``s3://bucket/table``."""
    text = os.fspath(path)
    if text.startswith("file://"):
        text = url2pathname(urlsplit(text).path)
    if "://" not in text:
        text = str(Path(text).absolute())
    return Storage(text.rstrip("/") or "/", tuple(sorted((options or {}).items())))


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
