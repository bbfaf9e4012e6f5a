"""The node that describes hubs and their partitions."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from leasehold.amqp.values import Array, Int, Long, Timestamp
from leasehold.hub.nodes import done, failed, text
from leasehold.hub.refusals import NOT_FOUND, Refused, refused_for, unauthorized

if TYPE_CHECKING:
    from collections.abc import Callable

    from leasehold.amqp.messages import Message
    from leasehold.hub.connection import Connection
    from leasehold.hub.nodes import Reply

_HUB, _PARTITION = "com.microsoft:eventhub", "com.microsoft:partition"
_OK = 200
_REQUEST_BYTES = 192 << 10  # of memory at the most, while the log is asked
_NEVER_MS = -62_135_596_800_000  # the first moment of the calendar, which stands for none


class ManagementNode:
    """``$management`` of one connection."""

    def __init__(self, connection: Connection) -> None:
        """For this connection."""
        self._connection = connection

    def ask(self, request: Message, reply: Callable[[Reply], None]) -> None:
        """Look, and answer when that is done."""
        task = self._connection.spawn(self._answer(request, reply))
        self._connection.hold(_REQUEST_BYTES)  # who asks faster than the log answers has to wait
        task.add_done_callback(lambda _: self._connection.release(_REQUEST_BYTES))

    async def _answer(self, request: Message, reply: Callable[[Reply], None]) -> None:
        try:
            found = await self._found(request)
        except Exception as error:  # noqa: BLE001 - whoever asks is told, whatever it is
            reply(failed(refused_for(error)))
        else:
            reply(done(_OK, "OK", found))

    async def _found(self, request: Message) -> dict[str, object]:
        asked = request.application_properties
        kind, name = text(asked.get("type")), text(asked.get("name"))
        if not any(each.covers_hub(name) for each in self._connection.grants):
            raise unauthorized("the hub")
        if text(asked.get("operation")).upper() != "READ" or kind not in {_HUB, _PARTITION}:
            raise Refused(
                "amqp:not-implemented", "Only READ of a hub or a partition is known here."
            )
        if not name:
            raise Refused(NOT_FOUND, "The request names no hub.", status=404)
        hub = await self._connection.streams.find(name)
        if kind == _HUB:
            created_at = datetime.fromisoformat(hub.info.created_at)
            if created_at.tzinfo is None:
                created_at = created_at.replace(tzinfo=UTC)
            count = hub.info.partitions
            return {
                "name": hub.name,
                "type": _HUB,
                "created_at": Timestamp(int(created_at.timestamp() * 1000)),
                "partition_count": Int(count),
                "partition_ids": Array(tuple(str(number) for number in range(count))),
                "georeplication_factor": Int(1),
            }
        number = hub.number_of(text(asked.get("partition")))
        part, end = await self._connection.streams.run(lambda: hub.described(number))
        return {
            "name": hub.name,
            "type": _PARTITION,
            "partition": str(number),
            "begin_sequence_number": Long(part.first_sequence if part.events else -1),
            "begin_sequence_number_epoch": Int(-1),
            "last_enqueued_sequence_number": Long(end.sequence),
            "last_enqueued_sequence_number_epoch": Int(-1),
            "last_enqueued_offset": str(end.offset),
            "last_enqueued_time_utc": Timestamp(end.enqueued_ms if part.events else _NEVER_MS),
            "is_partition_empty": not part.events,
        }
