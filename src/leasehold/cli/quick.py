"""A quicker start of commands: Arrow is told that there is no pandas.

At the first array that is made of Python values Arrow looks for pandas, and imports it if it is
installed, which takes more than a second. No command needs it but those that run Spark. It holds
for the whole process, so this is nothing for a library.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType


class _NoPandas:
    """Finds no pandas."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        del path, target
        if name == "pandas":
            raise ImportError("left out")
        return None


def leave_pandas_out() -> None:
    """Let Arrow look for pandas now, and find none. What has loaded it already keeps it."""
    if "pandas" in sys.modules:
        return
    finder = _NoPandas()
    sys.meta_path.insert(0, finder)
    try:
        pa.array([0])
    finally:
        sys.meta_path.remove(finder)
