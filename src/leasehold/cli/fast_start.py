"""Start commands faster: Arrow does not import pandas, and NumPy starts no threads.

At the first array that is made of Python values Arrow looks for pandas, and imports it if it is
installed, which takes more than a second. NumPy, which Arrow imports, starts a thread on each core
for its linear algebra. Only commands that run Spark or handlers need them. Both changes affect the
whole process, so only the command line makes them, never the library.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from importlib.abc import Loader
from importlib.util import find_spec
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType

_ARROW, _PANDAS = "pyarrow", "pandas"


class _NoPandas:
    """Finds no pandas."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        del path, target
        if name == _PANDAS:
            raise ImportError("left out")
        return None


class _ArrowImportHook:
    """Replaces the loader of Arrow at its import, so that Arrow finds no pandas."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        del path, target
        if name != _ARROW:
            return None
        sys.meta_path.remove(self)
        spec = find_spec(name)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader)
        return spec


class _Loader(Loader):
    """Loads Arrow as its own loader does, and lets it look for pandas immediately."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        if module.__spec__ is not None:
            module.__spec__.loader = module.__loader__ = self._loader
        self._loader.exec_module(module)
        _find_no_pandas(module)


def keep_numpy_small() -> None:
    """Make NumPy start no threads when it is imported, unless the environment says how many."""
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")


def leave_pandas_out() -> None:
    """Let Arrow look for pandas right after its import, and find none.

    Arrow is not loaded for it. What has loaded pandas already keeps it.
    """
    if _ARROW in sys.modules:
        _find_no_pandas(import_module(_ARROW))
    elif not any(isinstance(each, _ArrowImportHook) for each in sys.meta_path):
        sys.meta_path.insert(0, _ArrowImportHook())


def _find_no_pandas(arrow: ModuleType) -> None:
    if _PANDAS in sys.modules:
        return
    finder = _NoPandas()
    sys.meta_path.insert(0, finder)
    try:
        arrow.array([0])
    finally:
        sys.meta_path.remove(finder)
