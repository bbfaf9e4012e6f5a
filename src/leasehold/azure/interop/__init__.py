"""Azure's own Event Hubs clients and Leasehold together.

========================  ==========================================================================
name                      use
========================  ==========================================================================
``CheckpointStore``       a stock ``EventHubConsumerClient`` on any Leasehold store (blocking)
``AsyncCheckpointStore``  a stock client of ``azure.eventhub.aio`` on any Leasehold store
``MixedStore``            Leasehold hosts and stock clients in one consumer group
``RecordsStore``          Leasehold hosts on any ``CheckpointStore`` of Azure, and on nothing else
``SharedSource``          the hub that Leasehold hosts read in such a group
``BlobRecords``           the blobs of Azure's clients; no malformed record stops the reader
========================  ==========================================================================

In this package *host* is a process of Leasehold, *client* is a stock client of Azure, and *records*
are the ownerships and checkpoints in a ``CheckpointStore`` of Azure. Azure's packages are imported
when they are needed: ``pip install 'leasehold[azure]'``.
"""
