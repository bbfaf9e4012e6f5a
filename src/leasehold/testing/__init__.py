"""Test kit: for authors of stores, and for programs that use leases.

=====================================  ========================================================
module                                 what it offers
=====================================  ========================================================
``leasehold.testing.clock``            ``ManualClock``: time passes when the test says so
``leasehold.testing.faults``           ``FaultyStore``: loses requests and answers on demand
``leasehold.testing.source``           ``MemorySource``: an event source without files
``leasehold.testing.disk``             disks that fail, are killed, or lose what was not synced
``leasehold.testing.linearizability``  a checker for recorded histories of one key
``leasehold.testing.contract``         the suite that every store has to pass; needs pytest
``leasehold.testing.worker``           the processes that the suite lets race for a key
``leasehold.testing.sim``              a deterministic simulator with fault injection
=====================================  ========================================================

To prove a store, subclass ``leasehold.testing.contract.StoreContract`` and give it a fixture::

    from leasehold.testing.contract import ManualTime, StoreContract

    class MyHarness(ManualTime):
        def open(self):
            return open_my_store(clock=self.clock)

    class TestMyStore(StoreContract):
        @pytest.fixture
        def harness(self):
            return MyHarness()

Nothing here is needed to run Leasehold, and this module imports nothing: pytest is needed for
``leasehold.testing.contract`` alone.
"""
