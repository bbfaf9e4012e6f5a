"""The whole suite in one class."""

from __future__ import annotations

from leasehold.testing.contract.bad_input import BadInputContract, OddNameContract
from leasehold.testing.contract.checkpoints import (
    AnnotateContract,
    CheckpointContract,
    NoteContract,
    NoteInputContract,
)
from leasehold.testing.contract.history import HistoryContract
from leasehold.testing.contract.known_faults import (
    KinesisContract,
    ShedLockContract,
    TokenContract,
)
from leasehold.testing.contract.lease_table import LeaseTableContract, NextEndContract
from leasehold.testing.contract.leases import (
    BreakContract,
    DeadTokenContract,
    EpochContract,
    LeaseContract,
)
from leasehold.testing.contract.lost_answers import LostAnswerContract, RaceContract
from leasehold.testing.contract.operators import (
    GroupContract,
    RequestHandOverContract,
    RequestLeaveContract,
    ResetContract,
    ResetFenceContract,
    ResetRefusalContract,
)
from leasehold.testing.contract.ownership import (
    AskContract,
    ClaimContract,
    DeclareContract,
    HandOverContract,
    ReleaseContract,
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
    RequestHandOverContract,
    RequestLeaveContract,
    ResetContract,
    ResetRefusalContract,
    ResetFenceContract,
    OddNameContract,
    BadInputContract,
):
    """All guarantees of a store. Subclass it with a name that pytest collects (``Test…``)."""
