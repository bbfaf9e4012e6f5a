"""A deterministic simulator: real members, pumps and files on simulated clocks, with faults.

Everything that happens in a simulated world is drawn from one seed. The same seed gives the same
run, step by step: a failure prints its seed, and ``leasehold simulate --seed N`` repeats it.

===================  ===============================================================
module               holds
===================  ===============================================================
``loop``             an event loop whose time jumps
``faults``           which faults are injected, and how often
``host``             a host: clock with a wrong rate, pauses, its key handler
``store``            the network to the store, and the store's own clock
``source``           the log that pumps read, over an unreliable network
``checks``           the invariants of leases
``deliveries``       the invariants of the work: what handlers are given, what becomes of it
``world``            hosts that come and go, from one seed
``fault_run``        fault injection: the search for broken invariants of members
``threads``          simulated threads
``work``             handlers that fail, in every style; a fenced sink; dead letters
``pump_world``       hosts with the whole processor, a log, an operator
``pump_run``         fault injection with all of these
``job_checks``       the invariants of jobs
``jobs_run``         fault injection with workers, one-shot reservations and operators
``bad_volumes``      file systems in memory, with the faults of real disks
``blocking_process`` blocking code in simulated processes, and the journal's database
``file_checks``      the invariants of files
``log_work``         producers and owners of a log partition, and what was receipted
``files_world``      processes that write, own, monitor and read files on one machine
``files_run``        fault injection with all of these
``scenario``         fault-free measured runs: cold start, join, crash, restart, churn
``ownership_chart``  ownership over time, as text and SVG
===================  ===============================================================
"""
