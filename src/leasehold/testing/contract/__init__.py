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

from leasehold.testing.contract.harness import Harness, ManualTime, RealTime  # noqa: E402
from leasehold.testing.contract.suite import StoreContract  # noqa: E402

__all__ = ["Harness", "ManualTime", "RealTime", "StoreContract"]
