"""The journal: the namespace's tables and their atomic steps.

==============  ================================================================================
module          what it knows
==============  ================================================================================
``journal``     the public face: each method is one step
``group``       group commit: steps of several threads in one transaction
``books``       one transaction: numbers, lines of history, holders
``opening``     create and append
``writing``     next block, drop volumes, close
``recovering``  begin, commit and fail a recovery; what is due for one
``names``       what is at a path; rename and delete
``holders``     leases of holders; volumes
``blocks``      blocks and their replicas
``refusals``    why not, in words
``rows``        how rows become records
==============  ================================================================================
"""

from __future__ import annotations

from leasehold.files.journal.journal import Journal

__all__ = ["Journal"]
