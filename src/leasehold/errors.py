"""Everything that can go wrong, as one tree.

::

    LeaseholdError
    ├── UsageError                you asked for something that can never work (ValueError)
    │   ├── InvalidName           an empty, too long or unprintable name
    │   ├── InvalidDuration       a duration outside the allowed range
    │   ├── InvalidOptions        two settings that contradict each other
    │   └── UnknownStore          a store URL that names no store we have
    ├── UnknownResource           a key that was never declared
    ├── LeaseLost                 you had it and have it no more: ordinary life, said once
    │   └── FencedWrite           a write that came under an ended lease or an older epoch
    ├── CheckpointBehind          a checkpoint that would go back
    └── StoreError                the store, not you
        ├── StoreUnavailable      no answer in time: what was asked may or may not have happened
        └── StoreUnusable         it answers, and can not serve: read-only, full, damaged, too new

Failing to *get* something is never an error: it is an answer (an empty list, ``None``).
Each class has its page in ``docs/errors.md``: what happened, why, and what to do next.
"""

from __future__ import annotations


class LeaseholdError(Exception):
    """Base of all errors raised on purpose by Leasehold."""


class UsageError(LeaseholdError, ValueError):
    """The call can never work as written; nothing was sent and nothing has changed."""


class InvalidName(UsageError):
    """A name is empty, too long, or has characters that can not be shown."""


class InvalidDuration(UsageError):
    """A duration lies outside the allowed range; the message names the range."""


class InvalidOptions(UsageError):
    """Two options contradict each other; the message names the relation that is broken."""


class UnknownStore(UsageError):
    """The URL names no store; the message says what to write instead."""


class UnknownResource(LeaseholdError, LookupError):
    """The key was never declared in this store, or has been forgotten."""


class LeaseLost(LeaseholdError):
    """The lease or the ownership has ended and its holder must stop.

    Attributes:
        key: the resource, or the holder's id when the whole lease has ended.
        epoch: the epoch that was held (0 for a whole lease).
        reason: how it ended: the value of an ``EndReason``, ``"fenced"``, ``"trust window over"``,
            ``"not held"``, ``"another token is in use"`` or ``"unknown"``.
        now_held_by: the holder in charge now, where the store said so.
    """

    def __init__(
        self,
        message: str,
        *,
        key: str = "",
        epoch: int = 0,
        reason: str = "unknown",
        now_held_by: str | None = None,
    ) -> None:
        """Keep what a caller needs in order to decide, beside the words for people."""
        super().__init__(message)
        self.key = key
        self.epoch = epoch
        self.reason = reason
        self.now_held_by = now_held_by


class FencedWrite(LeaseLost):
    """A write under an ended lease or an older epoch was refused and changed nothing."""


class CheckpointBehind(LeaseholdError):
    """The checkpoint lies before the one already stored; checkpoints never go back."""


class StoreError(LeaseholdError):
    """The store is in trouble. The driver's own error is in ``__cause__``."""


class StoreUnavailable(StoreError):
    """No answer came in time. What was asked for may or may not have been done: read again."""


class StoreUnusable(StoreError):
    """The store answers and can not serve: read-only, full, damaged, or of a newer version."""
