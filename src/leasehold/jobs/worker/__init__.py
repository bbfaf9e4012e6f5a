"""Workers: many jobs in one process, each run by one worker at a time.

==============  ============================================================================
module          contents
==============  ============================================================================
``definition``  a job: a function with a schedule, or a service (``@job``)
``worker``      the process: its two event loops, its start and its end
``scheduler``   reserves and starts what is due, in a few calls
``planner``     decides what is due, by stored progress and the requests of operators
``skew_clock``  the time for schedules, corrected by the store's clock
``job_state``   a job in one worker, a plan to reserve it, and its active run
``runner``      the runs of this worker, from the reservation to the release
``run``         ``Run``: what the function is given
==============  ============================================================================

The lease side has its own event loop, in a thread that no function can block; async functions run
in the loop of the caller. The decisions themselves are pure: ``leasehold.core.next_run``.
"""
