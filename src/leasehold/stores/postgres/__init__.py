"""The PostgreSQL store: any number of machines, one atomic step per call, the server's clock.

=================  =================================================================================
module             what it knows
=================  =================================================================================
``store``          the calls of the ``Store`` contract, each of them one statement
``rows``           how records become rows and rows become records
``connections``    a few connections, and how long to go on when they break
``driver_errors``  what the driver's errors mean, and what to do about them
``address``        URLs, with and without their secrets
``migrations``     how the schema ``leasehold`` comes to be and keeps up with the code
``sql/``           the tables and functions, as numbered migrations; ``queries.sql`` calls them
``transactions``   a caller's statements and its checkpoint as one; ``transaction_fence`` checks it,
                   ``lending`` keeps the connections
=================  =================================================================================
"""

from __future__ import annotations

from leasehold.stores.postgres.store import PostgresStore, open_url

__all__ = ["PostgresStore", "open_url"]
