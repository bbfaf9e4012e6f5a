"""Dead letters in a stream of the log."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from anyio import CapacityLimiter, to_thread

from leasehold.errors import UsageError
from leasehold.events.event import Event
from leasehold.log.options import ProducerOptions

if TYPE_CHECKING:
    from collections.abc import Sequence

    from leasehold.events.dead_letters import DeadLetter
    from leasehold.log.log import Log


class LogDeadLetters:
    """Dead letters in a stream of the log, partitioned by the keys of the events."""

    def __init__(self, log: Log, stream: str) -> None:
        """Look the stream up; this blocks for one query.

        Raises:
            UnknownStream: there is none; the message names those there are.
        """
        self.stream = stream
        self._producer = log.producer(stream, ProducerOptions(linger=timedelta(0)))
        self._limiter = CapacityLimiter(1)

    async def send(self, letters: Sequence[DeadLetter]) -> None:
        """Store the letters. A letter that is too big is stored with a shorter error.

        If cancelled, it returns immediately and continues in its thread: they may be stored or not.

        Raises:
            StoreUnavailable: they could not be stored in time; they may be stored or not.
            BufferFull: too much waits to be stored.
            UnknownStream: the stream was deleted.
            UsageError: one can never be stored, it is too big for the stream; or this is closed.
        """
        if letters:
            # A stop must not have to wait for the timeout of a failing log.
            await to_thread.run_sync(
                self._store, letters, limiter=self._limiter, abandon_on_cancel=True
            )

    async def close(self) -> None:
        """Close the producer. The log stays open."""
        await to_thread.run_sync(self._producer.close, limiter=self._limiter)

    def _store(self, letters: Sequence[DeadLetter]) -> None:
        try:
            self._producer.send([_event(each, each.properties()) for each in letters]).result()
        except UsageError:
            if len(letters) == 1:
                self._store_short(letters[0])
            else:
                for each in letters:
                    self._store([each])

    def _store_short(self, letter: DeadLetter) -> None:
        try:
            self._producer.send([_event(letter, letter.short_properties())]).result()
        except UsageError as error:
            raise UsageError(
                f"event {letter.event.sequence_number} of partition {letter.partition} of "
                f"{letter.stream!r} can not be put into the dead letters in {self.stream!r}: "
                f"{error}"
            ) from error


def _event(letter: DeadLetter, properties: dict[str, str]) -> Event:
    return Event(key=letter.event.key, body=letter.event.body, properties=properties)
