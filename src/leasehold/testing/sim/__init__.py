"""A deterministic simulator: the real member and the real pumps on simulated clocks, with faults.

Everything that happens in a world is drawn from one seed. The same seed gives the same run, step
by step: a failure prints its seed, and ``leasehold simulate --seed N`` repeats it.

==============  ================================================================
module          holds
==============  ================================================================
``loop``        an event loop whose time jumps
``faults``      what goes wrong, and how often
``host``        a host: clock with a wrong rate, pauses, the keeper of its keys
``store``       the wire to the store, and the store's own clock
``checks``      the invariants
``world``       hosts that come and go, from one seed
``fault_run``   the search for broken invariants: one bad day per seed
``scenario``    measured runs: cold start, join, crash, rolling restart, churn
``source``      the log that pumps read, and the bad way to it
``deliveries``  the invariants of the work
``pump_run``    one bad day of work per seed: hosts with pumps, handlers that fail, sinks
==============  ================================================================
"""
