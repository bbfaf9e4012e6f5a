"""Pure decisions: no I/O, no time and no randomness of their own, nothing of ours but records.

=====================  ====================================================================
module                 decides
=====================  ====================================================================
``lease_rules``        what each request does to a lease in each state: one table
``lease_timing``       when a lease must no longer be trusted, and when to renew it
``backoff``            how long to wait before trying again
``balance``            who should own what: the strategies
``cron``               when a schedule happens, whatever the clocks of its zone do
``next_run``           which occurrences of a schedule are to be run, and which passed over
``checkpoint_policy``  when a position is written down
``poison_policy``      what becomes of an event that its handler cannot take
``stall_rule``         whether a partition that does not move is stuck
``load_meter``         how much there is per second, as it was lately
``block_agreement``    which bytes of a block its replicas agree on
``resume_position``    where a partition goes on, by sink and checkpoint
=====================  ====================================================================
"""
