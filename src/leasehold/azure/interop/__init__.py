"""Azure's own Event Hubs clients and Leasehold together.

========================  ==========================================================================
name                      use
========================  ==========================================================================
``CheckpointStore``       a stock ``EventHubConsumerClient`` on any of our stores (blocking)
``AsyncCheckpointStore``  a stock client of ``azure.eventhub.aio`` on any of our stores
``MixedStore``            our hosts and stock clients in one consumer group
``RecordsStore``          our hosts on any ``CheckpointStore`` of Azure, and on nothing else
``SharedSource``          the hub that our hosts read in such a group
``BlobRecords``           the blobs of Azure's clients; no malformed record stops the reader
========================  ==========================================================================

Azure's packages are imported when they are needed: ``pip install 'leasehold[azure]'``.
"""
