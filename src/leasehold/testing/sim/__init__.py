"""A deterministic simulator: the real ``Member`` on simulated clocks and a store with faults.

Everything that happens in a world is drawn from one seed. The same seed gives the same run, step
by step: a failure prints its seed, and ``leasehold simulate --seed N`` repeats it.

===============  ====================================================================
module           holds
===============  ====================================================================
``loop``         an event loop whose time jumps
``faults``       what goes wrong, and how often
``host``         a host: clock with a wrong rate, pauses, the keeper of its keys
``store``        the wire to the store, and the store's own clock
``checks``       the invariants
``world``        hosts that come and go, from one seed
``storm``        the search for broken invariants: one bad day per seed
``scenario``     measured runs: cold start, join, crash, rolling restart, churn
===============  ====================================================================
"""
