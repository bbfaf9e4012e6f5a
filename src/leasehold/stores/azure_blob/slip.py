"""A slip: positions of one holder, written beside the book, in the metadata of a blob of its own.

A position on a slip counts as if it stood in the book: for the keys that the book gives to that
holder, under the epoch that the book has for them, as long as the book names the slip.
"""

from __future__ import annotations

import base64
import binascii
import json
import zlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from leasehold.errors import StoreUnusable
from leasehold.stores.azure_blob.book_json import mark_from, mark_to

if TYPE_CHECKING:
    from collections.abc import Mapping

    from leasehold.model import Checkpoint

# The service keeps 8 KiB of metadata for a blob, names and all.
_MOST_LETTERS = 7_500
_MARKS, _WRITE = "marks", "mark"


@dataclass(frozen=True, slots=True, kw_only=True)
class Slip:
    """What is on a slip. ``written`` tells one writing of it from another."""

    marks: Mapping[str, Checkpoint] = field(default_factory=dict)
    written: str = ""

    def metadata(self, group: str) -> dict[str, str]:
        """As the service keeps it; all keys are of this group."""
        cut = len(group) + 1
        marks = [mark_to(each, cut) for each in self.marks.values()]
        told = json.dumps(marks, ensure_ascii=False, separators=(",", ":"))
        packed = base64.b64encode(zlib.compress(told.encode())).decode()
        return {_MARKS: packed, _WRITE: self.written}


def fits(metadata: Mapping[str, str]) -> bool:
    """Whether the service can keep what ``Slip.metadata`` made."""
    return len(metadata[_MARKS]) <= _MOST_LETTERS


def slip_from(metadata: Mapping[str, str], group: str) -> Slip:
    """What ``Slip.metadata`` wrote.

    Raises:
        StoreUnusable: it is damaged.
    """
    try:
        told = json.loads(zlib.decompress(base64.b64decode(metadata[_MARKS], validate=True)))
        marks = [mark_from(f"{group}/{last}", *rest) for last, *rest in told]
    except (KeyError, ValueError, TypeError, zlib.error, binascii.Error) as error:
        raise StoreUnusable(
            f"a blob with positions of {group} is damaged: its metadata was changed by somebody "
            "else; remove the blob, and what is in the book counts"
        ) from error
    return Slip(marks={each.key: each for each in marks}, written=metadata.get(_WRITE, ""))
