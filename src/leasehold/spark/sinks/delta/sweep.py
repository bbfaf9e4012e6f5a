"""Files of a Delta table that crashed tasks and drivers have left: which may be deleted."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING
from urllib.parse import unquote

from leasehold.spark.sinks.delta.files import PREFIX

if TYPE_CHECKING:
    from leasehold.spark.sinks.delta.log import DeltaLog
    from leasehold.spark.sinks.delta.storage import Storage


def orphans(place: Storage, log: DeltaLog, older_than: timedelta, now: datetime) -> list[str]:
    """Files of ours, older than that, that no version names which can still be read.

    ``deltalake`` tells what the table does not need; of that, what some version of the log has
    named was a part of the table once, and is for ``vacuum`` to delete.
    """
    hours = math.ceil(older_than / timedelta(hours=1))
    unused = [path for path in log.unreferenced(hours) if _ours(path)]
    if not unused:
        return []
    named = {unquote(path) for path in log.paths()}
    disk = place.open_fs()
    found = []
    for path in sorted(set(unused) - named):
        made_at: datetime | None = disk.get_file_info(path).mtime
        if made_at is not None and now - made_at.astimezone(UTC) >= older_than:
            found.append(path)
    return found


def _ours(path: str) -> bool:
    return path.rpartition("/")[2].startswith(PREFIX)
