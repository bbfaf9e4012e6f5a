"""Pure decisions: no I/O, no clock, no randomness except what is passed in.

=====================  ====================================================================
module                 decides
=====================  ====================================================================
``lease_rules``        what each request does to a lease in each state: one table
``lease_timing``       when a lease must no longer be trusted, and when to renew it
``backoff``            how long to wait before trying again
``balance``            who should own what: the strategies
``cron``               when a schedule happens, whatever the clocks of its zone do
``next_run``           which occurrences of a schedule are run, and which are skipped
``checkpoint_policy``  when a position is written
``poison_policy``      what to do with an event that its handler cannot process
``stall_rule``         whether a partition without progress is stalled
``load_meter``         the recent load of a partition, per second
``block_agreement``    which bytes of a block its replicas agree on
``resume_position``    where a partition resumes, by sink and checkpoint
=====================  ====================================================================
"""
