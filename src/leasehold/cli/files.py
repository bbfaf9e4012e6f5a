"""``leasehold files``: look at files, read them, close those whose writers are gone.

Nothing here changes a file except ``recover`` and ``rm``, and nothing its replicas except
``repair`` and ``replace``. ``recover`` only says what it would do while the writer may be alive,
and the others always do, unless they are told to go on.
"""

from __future__ import annotations

import pathlib
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from datetime import timedelta
from itertools import chain
from typing import TYPE_CHECKING, Annotated

import typer

import leasehold.files
from leasehold.cli.common import (
    Column,
    DatabaseUrl,
    Form,
    Output,
    bytes_cell,
    command_hints,
    count_cell,
    counted,
    duration,
    echo,
    seconds_cell,
    shown_bytes,
    shown_seconds,
    store_url,
    time_cell,
    until_the_pipe_closes,
)
from leasehold.cli.tables import (
    byte_progress,
    err,
    lines_of,
    print_record,
    print_rows,
    print_table,
    table_of,
)
from leasehold.cli.verify_faults import ShownFault, file_fault, print_faults, summary
from leasehold.errors import (
    FencedWrite,
    FileExists,
    InvalidName,
    LeaseholdError,
    StoreError,
    UnknownFile,
)
from leasehold.files.model import BlockState, FileState, FileStatus
from leasehold.log.streams import base_of

if TYPE_CHECKING:
    from leasehold.files import MissingCopy, Namespace
    from leasehold.files.volumes import Volume

_PAGE = 1000
_HELD = 4  # the exit code for what somebody else has

files_app = typer.Typer(
    name="files",
    help="Files with one writer at a time, on several volumes.",
    no_args_is_help=True,
)

Path = Annotated[str, typer.Argument(metavar="PATH", help="A file, such as /reports/today.")]
Prefix = Annotated[str, typer.Argument(metavar="PREFIX", help="A file or a directory.")]


@files_app.command("ls", epilog="leasehold files ls /orders --idle-for 60s")
def ls(
    prefix: Prefix = "/",
    *,
    only_open: Annotated[
        bool, typer.Option("--open", help="Only what is being written.", metavar="")
    ] = False,
    idle_for: Annotated[
        str | None,
        typer.Option(
            help="Only open files whose holder has not renewed for so long: 60s.", metavar="TIME"
        ),
    ] = None,
    store: DatabaseUrl = None,
    form: Form = Output.TABLE,
) -> None:
    """List files: their state, length, and who writes them.

    "idle" is the time since the writer last renewed. One that is well renews every 30 s, so up to
    30 s is nothing unusual.
    """
    idle = duration(idle_for, option="--idle-for") if idle_for else None
    with _opened(store) as files, until_the_pipe_closes():
        found = (
            _every_open(files, prefix, idle)
            if only_open or idle is not None
            else _every(files, prefix)
        )
        first = next(found, None)
        rows = (_row(files, status) for status in chain([first] if first else [], found))
        if first is not None or form is Output.JSON:
            print_rows(rows, form, _LIST_COLUMNS)
        if first is None:
            err.print(f"there is no such file at or below {prefix}")


@files_app.command("show", epilog="leasehold files show /reports/today")
def show(path: Path, *, store: DatabaseUrl = None, form: Form = Output.TABLE) -> None:
    """Show one file: its status, its blocks, and what was done to it."""
    with _opened(store) as files:
        status = files.status(path)
        record = _row(files, status) | {
            "replication": status.replication,
            "block_bytes": status.block_bytes,
            "created_at": status.created_at,
            "modified_at": status.modified_at,
            "opened_at": status.opened_at or None,
            "address": status.address or None,
            # One that is under way, or was given up without a word, has not failed yet.
            "failed_attempts": max(status.attempts - (0 if status.trouble else 1), 0),
            "next_attempt_s": status.next_attempt_s if status.trouble else None,
            "trouble": status.trouble or None,
        }
        blocks, history = list(_blocks(files, path)), [asdict(e) for e in files.history(path)]
    if form is not Output.TABLE:
        print_record({**record, "blocks": blocks, "history": history}, form)
        return
    print_record({name: value for name, value in record.items() if value is not None}, form)
    echo("")
    print_table(table_of(blocks, _BLOCK_COLUMNS, "blocks"))
    echo("")
    echo("history, newest first")
    for entry in history:
        echo(f"{time_cell(entry['at'])}  {entry['step']}, epoch {entry['epoch']}{_who(entry)}")
        if entry["detail"]:
            echo(f"    {entry['detail']}")


@files_app.command("recover", epilog="leasehold files recover /reports/today --timeout 60s")
def recover(
    path: Path,
    *,
    timeout: Annotated[
        str, typer.Option(help="How long to try, and to wait for others.", metavar="TIME")
    ] = "60s",
    execute: Annotated[
        bool,
        typer.Option("--execute", help="Do it although the writer may be alive.", metavar=""),
    ] = False,
    accept_loss: Annotated[
        bool,
        typer.Option(
            "--accept-loss",
            help="What no volume has, or only volumes that do not answer, is gone for good.",
            metavar="",
        ),
    ] = False,
    store: DatabaseUrl = None,
    form: Form = Output.TABLE,
) -> None:
    """Close a file whoever writes it, and wait until that is done.

    Its writer is shut out for good. While that writer was heard of within the soft limit (60 s),
    this only says who it is and exits with 4: add --execute to go on.

    With --accept-loss the file ends with the longest part that is sound, piece by piece from all
    volumes. What would be lost is shown first: add --execute to accept it. Acknowledged bytes that
    are lost are an error: exit code 1, a line in the history, and a fault in verify.
    """
    limit, soft_s = duration(timeout, option="--timeout"), _soft_limit_s()
    with _opened(store) as files:
        status = files.status(path)
        if status.state is FileState.OPEN and status.idle_s < soft_s and not execute:
            print_record(_plan(files, status), form)
            err.print(
                f"nothing was done: {status.holder} was heard of {shown_seconds(status.idle_s)} "
                "ago and may be writing. Recovery shuts it out; add --execute to do it."
            )
            raise typer.Exit(_HELD)
        detail = _accepted_loss(files, status, form, execute=execute) if accept_loss else ""
        with err.status("recovering") as spinner:
            status = files.recover(
                path,
                timeout=limit,
                accept_loss=accept_loss,
                lost_detail=detail,
                progress=lambda step: spinner.update(lines_of(step.step)),
            )
        print_record(_row(files, status), form)
        lost = [loss for loss in files.losses(path) if loss.epoch == status.epoch]
    if lost:
        err.print(f"error: {path}: {lost[0].message}. Restore them from elsewhere.")
        raise typer.Exit(1)


@files_app.command("verify", epilog="leasehold files verify /orders")
def verify(prefix: Prefix = "/", *, store: DatabaseUrl = None, form: Form = Output.TABLE) -> None:
    """Compare every replica with its checksums and with the journal.

    Exit code 1 if something is wrong, with a line for each fault. The last block of a file that is
    being written has no end yet and is left out.
    """
    with _opened(store) as files:
        found = list(_every(files, prefix))
        if not found and prefix != "/":
            raise UnknownFile(f"there is no file at or below {prefix}: see `leasehold files ls`")
        faults: list[ShownFault] = []
        total = sum(status.length * status.replication for status in found)
        with byte_progress("verifying", total) as tick:
            for status in found:
                faults += map(file_fault, files.verify(status.path, progress=tick))
        found_faults = summary(faults, files)
    print_faults(faults, form)
    still_open = sum(status.state is not FileState.CLOSED for status in found)
    left_out = f" (not closed, and so without their last block: {still_open})" if still_open else ""
    length = shown_bytes(sum(status.length for status in found))
    err.print(f"{counted(len(found), 'file')}, {length}, all replicas: {found_faults}{left_out}")
    if faults:
        raise typer.Exit(1)


@files_app.command("cat", epilog="leasehold files cat /reports/today --offset 1000 | head")
def cat(
    path: Path,
    *,
    offset: Annotated[int, typer.Option(help="Begin at this byte.", min=0, metavar="N")] = 0,
    length: Annotated[
        int | None, typer.Option(help="So many bytes at most.", min=0, metavar="N")
    ] = None,
    store: DatabaseUrl = None,
) -> None:
    """Write a file to stdout: up to its acknowledged length if somebody is writing it."""
    with _opened(store) as files, until_the_pipe_closes():
        reader = files.read(path)
        end = reader.length if length is None else min(offset + length, reader.length)
        for at in range(offset, end, _CHUNK_BYTES):
            sys.stdout.buffer.write(reader.read_at(at, min(_CHUNK_BYTES, end - at)))
        sys.stdout.buffer.flush()


@files_app.command("rm", epilog="leasehold files rm /reports/today --execute")
def rm(
    path: Path,
    *,
    recursive: Annotated[
        bool, typer.Option("--recursive", help="A directory with all below it.", metavar="")
    ] = False,
    execute: Annotated[bool, typer.Option("--execute", help="Remove them.", metavar="")] = False,
    store: DatabaseUrl = None,
    form: Form = Output.TABLE,
) -> None:
    """Remove a file, or a directory with all below it.

    Without --execute it only says what it would remove. A writer of such a file is refused from
    then on. Files of a stream are refused: leasehold log rm and leasehold log trim remove them.
    """
    with _opened(store) as files, until_the_pipe_closes():
        found = list(_every(files, path))
        if not found:
            raise UnknownFile(f"there is no file at or below {path}: see `leasehold files ls`")
        files.check_no_stream(path)
        if not recursive and (len(found) > 1 or found[0].path != path):
            raise FileExists(
                f"{path} is a directory with {counted(len(found), 'file')}: add --recursive to "
                "remove all of them"
            )
        print_rows([_row(files, status) for status in found], form, _LIST_COLUMNS)
        length = shown_bytes(sum(status.length for status in found))
        if not execute:
            err.print(
                f"nothing was removed; with --execute: {counted(len(found), 'file')}, {length}"
            )
            return
        err.print(f"removed: {counted(files.delete(path, recursive=recursive), 'file')}")


@files_app.command("volumes", epilog="leasehold files volumes")
def volumes(*, store: DatabaseUrl = None, form: Form = Output.TABLE) -> None:
    """List the volumes: whether they can be used, their room, and which copies are missing.

    A copy is missing if a block is on fewer volumes than its file asks for, or if a volume does not
    have a block that it should have. Damage is not looked for: `leasehold files verify` does.
    """
    with _opened(store) as files:
        blocks, lengths = Counter[str](), Counter[str]()
        with err.status("looking for missing copies"):
            for each in files.missing_copies():  # there may be very many: only counted
                blocks[each.volume] += 1
                lengths[each.volume] += each.block.length
        rows = [
            _volume_row(files, volume, blocks[volume.id], lengths[volume.id], form)
            for volume in files.volumes
        ]
    print_rows(rows, form, _VOLUME_COLUMNS)
    if blocks:
        what = _copies(blocks.total(), lengths.total())
        err.print(f"{what} missing: see `leasehold files repair`")


@files_app.command("repair", epilog="leasehold files repair /orders --execute")
def repair(
    prefix: Prefix = "/",
    *,
    quick: Annotated[
        bool,
        typer.Option(
            "--quick", help="Only what is missing: do not read replicas to find damage.", metavar=""
        ),
    ] = False,
    execute: Annotated[
        bool,
        typer.Option("--execute", help="Make the copies. Without it, only list them.", metavar=""),
    ] = False,
    store: DatabaseUrl = None,
    form: Form = Output.TABLE,
) -> None:
    """Make copies again that are missing or damaged, each from the copies that are sound.

    The monitor of each process does the same for missing copies, unasked and slowly; damage is
    found here and by verify alone. Without --execute it only lists them. Exit code 1 if one cannot
    be made, 4 if another process is making one.
    """
    with _opened(store) as files:
        found = list(_every(files, prefix))
        if not found and prefix != "/":
            raise UnknownFile(f"there is no file at or below {prefix}: see `leasehold files ls`")
        missing: list[MissingCopy] = []
        total = sum(status.length * status.replication for status in found)
        with byte_progress("comparing", None if quick else total) as tick:
            for status in found:
                with suppress(UnknownFile):  # deleted since
                    missing += files.missing_copies(status.path, compare=not quick, progress=tick)
        missing.sort(key=lambda each: each.sound)  # the fewest copies first
        if missing or form is not Output.TABLE:
            print_rows(map(_missing_row, missing), form, _MISSING_COLUMNS)
        if not missing:
            looked = "is missing" if quick else "is missing or damaged"
            err.print(f"{counted(len(found), 'file')}, all replicas: nothing {looked}")
            return
        possible = [each for each in missing if not each.trouble]
        if execute:
            made, held = _make_copies(files, possible)
            err.print(f"made: {_copies_of(made)}")
        else:
            made, held = possible, 0
            err.print(f"nothing was done; with --execute: {_copies_of(possible)}")
        hopeless = [each for each in missing if each.trouble]
        _print_troubles(hopeless)
    if hopeless or len(made) + held < len(possible):
        raise typer.Exit(1)
    if held:
        raise typer.Exit(_HELD)


@files_app.command("replace", epilog="leasehold files replace 1f0c77a2 new-disk --execute")
def replace(
    volume: Annotated[str, typer.Argument(metavar="VOLUME", help="The id of the old volume.")],
    directory: Annotated[
        str, typer.Argument(metavar="DIR", help="A new, empty directory, or the old one, empty.")
    ],
    *,
    execute: Annotated[
        bool,
        typer.Option("--execute", help="Apply it. Without it, only print the plan.", metavar=""),
    ] = False,
    store: DatabaseUrl = None,
    form: Form = Output.TABLE,
) -> None:
    """Give up a volume that is gone for good, and make a new one in its place.

    Its copies are then made again, by the monitor or by `leasehold files repair`. A volume that
    answers is not replaced. One that is found in DIR has only moved, and keeps its copies.
    """
    with _opened(store) as files:
        missing = [each for each in files.missing_copies() if each.volume == volume]
        only = sum(not each.sound for each in missing)
        record: dict[str, object] = {
            "volume": volume,
            "directory": str(pathlib.Path(directory).absolute()),
            "missing_copies": len(missing),
            "missing_bytes": sum(each.block.length for each in missing),
            "blocks_without_copy": only,
        }
        if not execute:
            files.check_replacement(volume, directory)
            print_record(record, form)
            lost = f" {counted(only, 'block')} would have no copy that answers." if only else ""
            err.print(
                f"nothing was done: with --execute, volume {volume} is forgotten.{lost} If its "
                "disk may come back, wait for it instead."
            )
            return
        made = files.replace_volume(volume, directory)
        print_record(record | {"new_volume": made}, form)
        if made == volume:
            err.print(f"volume {volume} has moved to {directory}: it keeps its copies")
        else:
            err.print(f"{_copies_of(missing)} missing: see `leasehold files repair`")


@files_app.command("adopt", epilog="leasehold files adopt --execute")
def adopt(
    *,
    execute: Annotated[
        bool,
        typer.Option("--execute", help="Apply it. Without it, only print the plan.", metavar=""),
    ] = False,
    store: DatabaseUrl = None,
    form: Form = Output.TABLE,
) -> None:
    """Go on with an older database, such as a restored backup, under newer volumes.

    Until then nothing is written to such volumes or removed from them. With --execute, new blocks
    get numbers above all that were ever used. Blocks that only the newer database knew stay on the
    volumes; no file has them. To keep them in use, restore the newer database instead.
    """
    with _opened(store) as files:
        newer = files.newer_volumes()
        rows: list[dict[str, object]] = [
            {"id": volume.id, "path": volume.root, "newer": volume.id in newer}
            for volume in files.volumes
        ]
        print_rows(rows, form, _ADOPT_COLUMNS)
        if not newer:
            err.print("no volume is newer than the database: there is nothing to adopt")
        elif execute:
            mark = files.adopt_volumes()
            err.print(f"the next block is {mark.block + 1:#x}, the next epoch {mark.epoch + 1}")
        else:
            err.print(f"nothing was done: {next(iter(newer.values()))}")


# --------------------------------------------------------------------------- parts

_CHUNK_BYTES = 1 << 20


def _copies(count: int, length: int) -> str:
    return f"{count:,} {'copy' if count == 1 else 'copies'}, {shown_bytes(length)}"


def _copies_of(missing: Sequence[MissingCopy]) -> str:
    return _copies(len(missing), sum(each.block.length for each in missing))


def _missing_row(missing: MissingCopy) -> dict[str, object]:
    return {
        "path": missing.path,
        "block": f"{missing.block.id:#x}",
        "bytes": missing.block.length,
        "volume": missing.volume or None,
        "sound_copies": missing.sound,
        "what": missing.what,
        "trouble": missing.trouble or None,
    }


def _print_troubles(missing: Sequence[MissingCopy]) -> None:
    """Print why copies cannot be made now, each reason once."""
    for trouble in dict.fromkeys(each.trouble for each in missing):
        those = [each for each in missing if each.trouble == trouble]
        err.print(f"cannot be made now: {_copies_of(those)}: {trouble}")


def _volume_row(
    files: Namespace, volume: Volume, missing_blocks: int, missing_bytes: int, form: Output
) -> dict[str, object]:
    trouble = short = None
    free: int | None = None
    try:
        files.check_volume(volume.id)
        free = volume.free_bytes()
    except (LeaseholdError, OSError) as error:
        trouble, short = str(error), _short(error)
    row: dict[str, object] = {
        "id": volume.id,
        "path": volume.root,
        "usable": trouble is None,
        "free_bytes": free,
        "missing_blocks": missing_blocks,
        "missing_bytes": missing_bytes,
        "trouble": trouble,
    }
    if form is Output.TABLE:
        missing = f"{missing_blocks:,}, {shown_bytes(missing_bytes)}" if missing_blocks else None
        row |= {"missing": missing, "trouble": short}
    return row


def _make_copies(files: Namespace, missing: Sequence[MissingCopy]) -> tuple[list[MissingCopy], int]:
    """Make these copies; return those that were made, and how many another process makes."""
    made: list[MissingCopy] = []
    held = 0
    with byte_progress("copying", sum(each.block.length for each in missing)) as tick:
        for each in missing:
            try:
                files.repair(each, progress=tick)
            except StoreError:
                raise
            except LeaseholdError as error:
                held += isinstance(error, FencedWrite)
                err.print(f"{each.path}: {error}")
            else:
                made.append(each)
    return made, held


def _joined_cell(value: object) -> str:
    return " ".join(value) if isinstance(value, list) else str(value)


def _who(entry: Mapping[str, object]) -> str:
    return f", by {entry['holder']}" if entry["holder"] else ""


def _short(error: Exception) -> str:
    """Return in a few words why a volume cannot be used; JSON has the whole message."""
    cause = error if isinstance(error, OSError) else error.__cause__
    if isinstance(cause, OSError) and cause.strerror:
        return cause.strerror.lower()
    message = str(error)
    if "there is no VOLUME file" in message:
        return "no VOLUME file: is it mounted?"
    return "another volume is there" if " is volume " in message else message


_LIST_COLUMNS = (
    Column(name="path"),
    Column(name="state"),
    Column(name="length", justify="right", shown=count_cell),
    Column(name="epoch", justify="right"),
    Column(name="holder", fold=True),
    Column(name="idle_s", title="idle", justify="right", shown=seconds_cell),
)
_BLOCK_COLUMNS = (
    Column(name="index", title="#", justify="right"),
    Column(name="id", title="block"),
    Column(name="state"),
    Column(name="generation", title="gen.", justify="right"),
    Column(name="start", justify="right", shown=count_cell),
    Column(name="length", justify="right", shown=count_cell),
    Column(name="checksum"),
    Column(name="volumes", shown=_joined_cell, fold=True),
)
_ADOPT_COLUMNS = (
    Column(name="id"),
    Column(name="path"),
    Column(name="newer", shown=lambda newer: "yes" if newer else "no"),
)
_VOLUME_COLUMNS = (
    Column(name="id"),
    Column(name="path"),
    Column(name="usable", shown=lambda usable: "yes" if usable else "no"),
    Column(name="free_bytes", title="free", justify="right", shown=bytes_cell),
    Column(name="missing", justify="right"),
    Column(name="trouble", fold=True),
)
_MISSING_COLUMNS = (
    Column(name="path", fold=True),
    Column(name="volume"),
    Column(name="bytes", justify="right", shown=bytes_cell),
    Column(name="what", fold=True),
)


@contextmanager
def _opened(store: str | None) -> Iterator[Namespace]:
    """Open the namespace without a monitor, which would recover files unasked."""
    url = store_url(store)
    opening = leasehold.files.Namespace.open
    with command_hints(), opening(url, name="cli", run_monitor=False, create=False) as files:
        yield files


def _soft_limit_s() -> float:
    return leasehold.files.FileOptions().soft_limit.total_seconds()


def _every(files: Namespace, prefix: str) -> Iterator[FileStatus]:
    """Return the file at ``prefix``, or those below it, by path."""
    after = ""
    if prefix != "/":
        with suppress(UnknownFile, InvalidName):  # a directory may end with a slash
            status = files.status(prefix)
            after = status.path
            yield status
    while page := files.list(prefix, after=after, limit=_PAGE):
        yield from page
        after = page[-1].path


def _every_open(files: Namespace, prefix: str, idle: timedelta | None) -> Iterator[FileStatus]:
    """Return open files by id; with ``idle`` only those whose holder has not renewed for it."""
    min_s = idle.total_seconds() if idle else 0.0
    after_id = 0
    if prefix != "/":
        with suppress(UnknownFile, InvalidName):
            status = files.status(prefix)
            if status.state is not FileState.CLOSED and status.idle_s >= min_s:
                yield status
    while page := files.list_open(prefix, after_id=after_id, limit=_PAGE):
        yield from (status for status in page if status.idle_s >= min_s and status.path != prefix)
        after_id = page[-1].id


def _row(files: Namespace, status: FileStatus) -> dict[str, object]:
    """Return the row of a file; the length is what a reader sees."""
    return {
        "path": status.path,
        "state": status.state.value,
        "length": _length(files, status),
        "epoch": status.epoch,
        "holder": status.holder or None,
        "host": status.host or None,
        "idle_s": round(status.idle_s, 3) if status.holder else None,
    }


def _length(files: Namespace, status: FileStatus) -> int | None:
    """Return the acknowledged length; None if no volume of the open block answers."""
    if status.state is FileState.CLOSED:
        return status.length
    try:
        return files.read(status.path).length
    except (LeaseholdError, OSError):
        return None


def _plan(files: Namespace, status: FileStatus) -> dict[str, object]:
    return _row(files, status) | {
        "opened_at": status.opened_at,
        "soft_limit_s": _soft_limit_s(),
        "would": "shut this writer out, end the file where its volumes agree, and close it",
    }


def _accepted_loss(files: Namespace, status: FileStatus, form: Output, *, execute: bool) -> str:
    """Return what will be lost, for the history; without ``execute`` print it and exit."""
    plan = files.plan_recovery(status.path)
    if not plan.lost_bytes and not plan.uncertain:
        return ""
    events = None
    if base_of(status.path) is not None:
        from leasehold.log.segment import count_lost_events  # noqa: PLC0415 - Arrow takes its time

        before = files.read(status.path).read_at(0, plan.length - len(plan.kept))
        events = count_lost_events(before + plan.kept, plan.damaged)
    if not execute:
        record = _row(files, status) | {
            "kept_bytes": plan.length,
            "lost_bytes": plan.lost_bytes,
            "lost_events": events,
            "silent_volumes": list(plan.silent),
            "uncertain": plan.uncertain or None,
        }
        print_record(record, form)
        at_least = f", at least {counted(events, 'event')}" if events else ""
        lost = f"{plan.lost_bytes:,}" if plan.lost_bytes else "an unknown number of"
        absent = ", ".join(plan.silent) if plan.uncertain else ""
        more = f" What {absent} may have besides would be given up." if absent else ""
        err.print(
            f"nothing was done: {status.path} would end at byte {plan.length:,}, and "
            f"{lost} acknowledged bytes after it would be lost{at_least}.{more} "
            "Add --execute to accept it."
        )
        raise typer.Exit(_HELD)
    return f"at least {counted(events, 'event')}" if events else ""


def _blocks(files: Namespace, path: str) -> Iterator[dict[str, object]]:
    for block in files.read(path).blocks:
        complete = block.state is BlockState.COMPLETE
        yield {
            "index": block.index,
            "id": f"{block.id:#x}",
            "state": block.state.value,
            "generation": block.generation,
            "start": block.start,
            "length": block.length,
            "checksum": f"{block.checksum:08x}" if complete else None,
            "volumes": list(block.volumes),
        }


def add_to(app: typer.Typer) -> None:
    """Give ``app`` these commands."""
    app.add_typer(files_app)
