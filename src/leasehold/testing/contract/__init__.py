"""The contract suite: a store that passes it keeps every guarantee of ``leasehold.ports``.

Subclass ``StoreContract`` under a name that pytest collects and give it a fixture ``harness``
(see ``Harness``). The tests are async and run by the pytest plugin of anyio; they carry the mark
``spec``, which your pytest settings have to declare::

    markers = ["spec(id, ...): the behaviours of Leasehold's docs/spec.md"]

A fixture ``anyio_backend`` chooses the event loop, as for all tests with anyio. Each topic is a
module here, with classes that can be used alone.
"""

from __future__ import annotations

import pytest

_TOPICS = (
    "bad_input",
    "checkpoints",
    "history",
    "known_faults",
    "lease_table",
    "leases",
    "lost_answers",
    "operators",
    "ownership",
    "store_case",
    "watching",
)
# Failing assertions of the suite shall show their values, as those of any test do.
pytest.register_assert_rewrite(*(f"{__name__}.{topic}" for topic in _TOPICS))

from leasehold.testing.contract.bad_input import BadInputContract, OddNameContract  # noqa: E402
from leasehold.testing.contract.checkpoints import (  # noqa: E402
    AnnotateContract,
    CheckpointContract,
    NoteContract,
    NoteInputContract,
)
from leasehold.testing.contract.harness import Harness, ManualTime, RealTime  # noqa: E402
from leasehold.testing.contract.history import HistoryContract  # noqa: E402
from leasehold.testing.contract.known_faults import KinesisContract, ShedLockContract, TokenContract  # noqa: E402
from leasehold.testing.contract.lease_table import LeaseTableContract, NextEndContract  # noqa: E402
from leasehold.testing.contract.leases import (  # noqa: E402
    BreakContract,
    DeadTokenContract,
    EpochContract,
    LeaseContract,
)
from leasehold.testing.contract.lost_answers import LostAnswerContract, RaceContract  # noqa: E402
from leasehold.testing.contract.operators import (  # noqa: E402
    GroupContract,
    RequestHandOverContract,
    RequestLeaveContract,
    ResetContract,
    ResetFenceContract,
    ResetRefusalContract,
)
from leasehold.testing.contract.ownership import (  # noqa: E402
    AskContract,
    ClaimContract,
    DeclareContract,
    HandOverContract,
    ReleaseContract,
)
from leasehold.testing.contract.watching import WatchContract  # noqa: E402

__all__ = ["Harness", "ManualTime", "RealTime", "StoreContract"]


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
