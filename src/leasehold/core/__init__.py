"""Pure decisions: no I/O, no time and no randomness of their own, nothing of ours but records.

=================  ====================================================================
module             decides
=================  ====================================================================
``lease_rules``    what each request does to a lease in each state: one table
``timing``         when a holder must stop believing, and which settings contradict
``ladder``         how long to wait before trying again
``view``           what a member knows of its group, from the changes it was told
``balance``        who should own what: the strategies
``cron``           when a schedule happens, whatever the clocks of its zone do
``timetable``      which occurrences of a schedule are to be run, and which passed over
``pace``           when the next cycle begins
``checkpointing``  when a position is written down
``poison``         what becomes of an event that its handler can not take
``stall``          whether a partition that does not move is stuck
``meter``          how much there is per second, as it was lately
=================  ====================================================================
"""
