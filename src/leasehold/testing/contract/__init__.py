"""The contract suite: a store that passes it keeps every guarantee of ``leasehold.ports``.

Subclass ``StoreContract`` under a name that pytest collects and give it a fixture ``harness``
(see ``Harness``). The tests are async and run by the pytest plugin of anyio; they carry the mark
``spec``, which your pytest settings have to know::

    markers = ["spec(id, ...): the behaviours of Leasehold's docs/spec.md"]

Which event loop they run on is said by a fixture ``anyio_backend``, as for all tests with anyio.
Each topic is a module here and a class that can be used alone.
"""

from __future__ import annotations

import pytest

_TOPICS = (
    "bad_input",
    "breaking",
    "checkpoints",
    "dead_tokens",
    "hand_over",
    "history",
    "known_faults",
    "lease_table",
    "leases",
    "lost_answers",
    "next_end",
    "operators",
    "ownership",
    "races",
    "resets",
    "scene",
    "watching",
)
# Failing assertions of the suite shall show their values, as those of any test do.
pytest.register_assert_rewrite(*(f"{__name__}.{topic}" for topic in _TOPICS))

from leasehold.testing.contract.harness import Harness, ManualTime, RealTime  # noqa: E402
from leasehold.testing.contract.suite import StoreContract  # noqa: E402

__all__ = ["Harness", "ManualTime", "RealTime", "StoreContract"]
