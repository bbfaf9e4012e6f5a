"""Asking azure-identity for a token: its log is quiet meanwhile, its reason goes into our error."""

from __future__ import annotations

import logging
import re
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

_LOGGER = "azure.identity"
_LONGEST_SHOWN = 300
# A way of signing in that nobody has set up: not what went wrong.
_NOT_SET_UP = re.compile(r"unavailable|not found|not installed|not be found|requires the")


class _Quiet:
    """Keeps the logger quiet while at least one token is asked for, in whatever thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._asking = 0

    @contextmanager
    def hold(self) -> Iterator[None]:
        """One that has a level of its own is left alone: somebody wants to read it."""
        logger = logging.getLogger(_LOGGER)
        with self._lock:
            held = self._asking > 0 or logger.level == logging.NOTSET
            if held:
                self._asking += 1
                logger.setLevel(logging.CRITICAL)
        try:
            yield
        finally:
            with self._lock:
                if held:
                    self._asking -= 1
                    if not self._asking and logger.level == logging.CRITICAL:
                        logger.setLevel(logging.NOTSET)


_quiet = _Quiet()


def token_of(credential: Any, scope: str) -> Any:
    """What ``credential.get_token`` gives or raises; a failure is not told on the screen too."""
    with _quiet.hold():
        return credential.get_token(scope)


def reason_of(error: Exception) -> str:
    """Why there is no token, in one line: of all the ways that were tried, the one that was set up.

    None of what azure-identity says holds a secret.
    """
    first, *lines = str(error).splitlines() or [type(error).__name__]
    tried = [line.strip() for line in lines if line.startswith("\t")]
    failed = [each for each in tried if not _NOT_SET_UP.search(each)]
    return (failed[-1] if failed else first)[:_LONGEST_SHOWN]
