"""The whole suite in one class."""

from __future__ import annotations

from leasehold.testing.contract.bad_input import BadInputContract, OddNameContract
from leasehold.testing.contract.breaking import BreakContract
from leasehold.testing.contract.checkpoints import CheckpointContract
from leasehold.testing.contract.dead_tokens import DeadTokenContract, EpochContract
from leasehold.testing.contract.hand_over import AskContract, HandOverContract
from leasehold.testing.contract.history import HistoryContract
from leasehold.testing.contract.known_faults import (
    KinesisContract,
    ShedLockContract,
    TokenContract,
)
from leasehold.testing.contract.lease_table import LeaseTableContract
from leasehold.testing.contract.leases import LeaseContract
from leasehold.testing.contract.lost_answers import LostAnswerContract
from leasehold.testing.contract.next_end import NextEndContract
from leasehold.testing.contract.notes import AnnotateContract, NoteContract, NoteInputContract
from leasehold.testing.contract.operators import (
    DismissContract,
    GroupContract,
    SuggestContract,
)
from leasehold.testing.contract.ownership import ClaimContract, DeclareContract, ReleaseContract
from leasehold.testing.contract.races import RaceContract
from leasehold.testing.contract.resets import (
    ResetContract,
    ResetFenceContract,
    ResetRefusalContract,
)
from leasehold.testing.contract.watching import WatchContract


class StoreContract(
    LeaseContract,
    DeclareContract,
    ClaimContract,
    ReleaseContract,
    AskContract,
    HandOverContract,
    BreakContract,
    CheckpointContract,
    HistoryContract,
    NoteContract,
    AnnotateContract,
    NoteInputContract,
    LeaseTableContract,
    WatchContract,
    NextEndContract,
    ShedLockContract,
    KinesisContract,
    TokenContract,
    RaceContract,
    DeadTokenContract,
    EpochContract,
    LostAnswerContract,
    GroupContract,
    SuggestContract,
    DismissContract,
    ResetContract,
    ResetRefusalContract,
    ResetFenceContract,
    OddNameContract,
    BadInputContract,
):
    """All that a store promises. Subclass it with a name that pytest collects (``Test…``)."""
