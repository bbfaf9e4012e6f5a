"""The claims, in the order in which people read them."""

from __future__ import annotations

from leasehold.spark.audit.record import Claim

TERMS_APART = Claim(
    name="terms-apart", words="No two terms of a partition overlap in time.", noun="term"
)
EPOCHS_RISE = Claim(
    name="epochs-rise", words="Epochs rise by one, and none was given twice.", noun="term"
)
ENDS_TOLD = Claim(name="ends-told", words="Every term that ended says why.", noun="term")
CHECKPOINTS_OWNED = Claim(
    name="checkpoints-owned",
    words="Every checkpoint was written by an owner, within its term.",
    noun="checkpoint",
)
CHECKPOINTS_FOLLOW = Claim(
    name="checkpoints-follow", words="No checkpoint is ahead of the sink.", noun="checkpoint"
)
COMMITS_OWNED = Claim(
    name="commits-owned",
    words="Every commit was made by the owner of its epoch.",
    noun="commit",
)
COMMITS_FENCED = Claim(
    name="commits-fenced",
    words="No commit of an older epoch came after one of a newer epoch.",
    noun="commit",
)
COMMITS_TILE = Claim(
    name="commits-tile",
    words="The commits hold every event once: no gap, no overlap.",
    noun="commit",
)
ROWS_COUNTED = Claim(
    name="rows-counted", words="The sink has as many rows as its commits wrote.", noun="row"
)
ROWS_ONCE = Claim(
    name="rows-once", words="The rows of the sink hold every event once.", noun="event"
)
LOG_WHOLE = Claim(
    name="log-whole", words="The log has every event once, numbered without a gap.", noun="event"
)

ALL = (
    TERMS_APART,
    EPOCHS_RISE,
    ENDS_TOLD,
    CHECKPOINTS_OWNED,
    CHECKPOINTS_FOLLOW,
    COMMITS_OWNED,
    COMMITS_FENCED,
    COMMITS_TILE,
    ROWS_COUNTED,
    ROWS_ONCE,
    LOG_WHOLE,
)
