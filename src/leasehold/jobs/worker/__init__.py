"""Workers: many jobs in one process, each run by one worker at a time.

==============  ============================================================================
module          noun
==============  ============================================================================
``definition``  a job: a function with a schedule, or a service (``@job``)
``worker``      the process: its two event loops, its beginning and its end
``scheduler``   what is due is reserved and begun, all in a few calls
``planner``     decides what is due, by the marks in the store and the requests of operators
``skew_clock``  the store's time of day, as this worker knows it
``job_state``   a job as one worker knows it, and its attempts
``runner``      all that runs here, from the reservation to the release
``run``         what the function is given
==============  ============================================================================

The lease lives in an event loop of its own, in a thread that no function can block; async functions
run in the loop of the caller. The decisions themselves are pure: ``leasehold.core.next_run``.
"""
