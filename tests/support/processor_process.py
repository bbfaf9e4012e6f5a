"""A processor in its own process, for tests that send it signals.

Takes its settings as one JSON object (``Settings``). Before a handler returns, one line for each
of its events is in the file of results, or on stdout if there is no such file. Prints everything
else on stdout, one JSON object per line: ``ready``, ``opened``, ``closed``, ``drains``,
``stored``, ``refused``, ``stops``, ``error``, ``left``. SIGTERM ends it gracefully.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import anyio
from tests.support.pausing import pause_me

from leasehold import LeaseTiming
from leasehold.cli.fast_start import leave_pandas_out
from leasehold.clock import SystemClock
from leasehold.errors import StoreUnavailable
from leasehold.events import EventBatch
from leasehold.log import LogSource
from leasehold.model import CheckpointWrite
from leasehold.names import last_part
from leasehold.processor import (
    AsyncPartitionContext,
    CheckpointPolicy,
    EventProcessor,
    HookEvent,
    PartitionContext,
    ProcessorOptions,
)
from leasehold.processor.events import (
    CheckpointRefused,
    CheckpointWritten,
    CycleDone,
    PartitionClosed,
    PartitionDraining,
    PartitionOpened,
)
from leasehold.stores.postgres import PostgresStore
from leasehold.stores.sqlite import SqliteStore

CLOCK = SystemClock()
STDOUT = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How the process behaves.

    ``does``: what the handler does with its events: nothing, ``checkpoint`` (by itself),
    ``transaction`` or ``burn`` (in a thread, for ``burn_s``, once). ``work_s``: what it waits for
    each batch. ``stops``: it stops itself as SIGSTOP does, at the first chance when event
    ``stops_at`` of partition ``stops_in`` is at hand: in the ``handler``, in its ``transaction``,
    ``before`` a checkpoint is sent, or ``after`` the store has it, before anybody knows of that.
    """

    log_url: str
    url: str
    stream: str
    group: str
    name: str
    results: str = ""
    lease_s: float = 2.0
    renew_s: float | None = None
    batch_events: int = 10
    work_s: float = 0.0
    does: str = ""
    burn_s: float = 0.0
    checkpoint_s: float = 0.0
    stops: str = ""
    stops_in: str = "0"
    stops_at: int = 0

    def options(self) -> ProcessorOptions:
        policy = CheckpointPolicy.after_each_batch()
        if self.checkpoint_s:
            policy = CheckpointPolicy.every(interval=timedelta(seconds=self.checkpoint_s))
        if self.does in {"checkpoint", "transaction"}:
            policy = CheckpointPolicy.manual()
        renew = None if self.renew_s is None else timedelta(seconds=self.renew_s)
        return ProcessorOptions(
            timing=LeaseTiming.of(lease=timedelta(seconds=self.lease_s), renew_interval=renew),
            checkpoint=policy,
            batch_events=self.batch_events,
            prefetch_events=4 * self.batch_events,
            discovery_interval=timedelta(seconds=0.2),
        )


def say(event: str, **what: object) -> None:
    """One line in one write: lines of several threads never mix, and a kill leaves whole ones."""
    os.write(STDOUT, (json.dumps({"event": event, **what}) + "\n").encode())


class Work:
    """The handler, and the places where the process may stop itself."""

    def __init__(self, settings: Settings) -> None:
        self._set = settings
        self._may_stop = bool(settings.stops)
        self._burnt = False
        self._file = STDOUT
        if settings.results:
            self._file = os.open(settings.results, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    async def on_batch(self, context: AsyncPartitionContext, batch: EventBatch) -> None:
        if self._set.does == "transaction":
            # With a stop in it the block continues to its end: the store has to refuse it.
            with anyio.CancelScope(shield=bool(self._set.stops)):
                await self._effects(context, batch)
            last = batch.last_sequence
            say("stored", partition=context.partition, epoch=context.epoch, number=last)
            return
        self._note(context, batch)
        self._stop("handler", context.partition, batch.last_sequence)
        if self._set.work_s:
            await CLOCK.sleep(self._set.work_s)
        if self._set.does == "checkpoint":
            await context.checkpoint()

    def burn(self, context: PartitionContext, batch: EventBatch) -> None:
        self._note(context, batch)
        if not self._burnt and self._set.stops_at <= batch.last_sequence:
            self._burnt = True
            say("burns", partition=context.partition, epoch=context.epoch)
            until_s = CLOCK.boottime_s() + self._set.burn_s
            while CLOCK.boottime_s() < until_s:
                pass
            say("burnt", lost=context.lost)

    async def checkpoint(self, store: Any, marks: list[CheckpointWrite], real: Any) -> Any:
        """What the store does, with a stop before or after it, in a late but certain delivery."""
        for write in marks:
            partition = last_part(write.ownership.key)
            self._stop("before", partition, write.position.sequence_number)
        with anyio.CancelScope(shield=True):
            refused = await real(store, marks)
        for write in marks:
            partition = last_part(write.ownership.key)
            self._stop("after", partition, write.position.sequence_number)
        return refused

    async def _effects(self, context: AsyncPartitionContext, batch: EventBatch) -> None:
        async with context.transaction() as connection:
            self._note(context, batch)
            rows = [
                (context.partition, event.sequence_number, context.epoch, int(event.body))
                for event in batch
            ]
            async with connection.cursor() as cursor:
                await cursor.executemany("insert into effect values (%s, %s, %s, %s)", rows)
            self._stop("transaction", context.partition, batch.last_sequence)
            if self._set.work_s:
                await CLOCK.sleep(self._set.work_s)
            await connection.execute(
                "update total set events = events + %s, value = value + %s where partition = %s",
                (len(rows), sum(row[3] for row in rows), context.partition),
            )

    def _note(self, context: AsyncPartitionContext | PartitionContext, batch: EventBatch) -> None:
        now_s = CLOCK.boottime_s()
        lines = [
            json.dumps(
                {
                    "event": "delivered",
                    "partition": context.partition,
                    "epoch": context.epoch,
                    "number": event.sequence_number,
                    "value": int(event.body),
                    "when_s": now_s,
                }
            )
            for event in batch
        ]
        os.write(self._file, ("\n".join(lines) + "\n").encode())

    def _stop(self, where: str, partition: str, number: int) -> None:
        given = self._set
        here = (where, partition) == (given.stops, given.stops_in) and number >= given.stops_at
        if self._may_stop and here:
            self._may_stop = False
            say("stops", partition=partition, number=number)
            pause_me(given.url)


class PrintingHook:
    """A hook that prints what the test waits for."""

    def __init__(self) -> None:
        self._ready = False

    def __call__(self, event: HookEvent) -> None:
        where = {"partition": event.partition, "epoch": event.epoch, "when_s": CLOCK.boottime_s()}
        match event:
            case CycleDone() if not self._ready and event.error is None:
                self._ready = True
                say("ready", holder=event.holder)
            case PartitionOpened():
                say("opened", position=event.position, holder=event.holder, **where)
            case PartitionClosed():
                say("closed", reason=event.reason.value, position=event.position, **where)
            case PartitionDraining():
                say("drains", **where)
            case CheckpointWritten():
                say("stored", number=event.sequence_number, **where)
            case CheckpointRefused():
                say("refused", number=event.sequence_number, why=event.why, **where)
            case _:
                pass


def on_error(context: object, error: BaseException) -> None:
    say("error", kind=type(error).__name__, text=str(error), partition=bool(context))


def intercept_checkpoints(work: Work) -> None:
    """Have all checkpoints of this process go through ``Work.checkpoint``."""
    for kind in (SqliteStore, PostgresStore):
        real = kind.checkpoint

        async def checkpoint(store: Any, marks: Any, real: Any = real) -> Any:
            return await work.checkpoint(store, list(marks), real)

        kind.checkpoint = checkpoint  # type: ignore[method-assign,assignment]


def main(settings: Settings) -> None:
    work = Work(settings)
    if settings.stops in {"before", "after"}:
        intercept_checkpoints(work)
    source = LogSource.open(settings.log_url, settings.stream, name=settings.name)
    processor = EventProcessor(
        source,
        settings.url,
        settings.group,
        on_batch=work.burn if settings.does == "burn" else work.on_batch,
        on_error=on_error,
        options=settings.options(),
        hooks=[PrintingHook()],
        name=settings.name,
    )
    try:
        processor.run()
    finally:
        with suppress(StoreUnavailable):  # it may be away: what is left there ends by time
            anyio.run(source.close)
    say("left", handled=processor.counts().events_handled, closed=processor.counts().closed)


if __name__ == "__main__":
    leave_pandas_out()  # no handler here needs it, and it takes its time
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    main(Settings(**json.loads(sys.argv[1])))
