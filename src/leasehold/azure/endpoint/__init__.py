"""An Event Hubs endpoint over the log: a hub is a stream, with the stream's partitions.

Azure's clients use it unmodified (``UseDevelopmentEmulator=true``, or TLS): AMQP 1.0 with tokens
signed by a shared key, the management node, senders, and receivers with positions and epochs.
Events are durable in the log before they are accepted. All other readers and writers of the log see
the same events.

From the outside in: ``server`` (all connections), ``connection`` (bytes and frames) with
``session``; ``request_nodes`` with ``sas_keys`` (tokens, management); ``links``: clients send (a
delivery becomes an Arrow batch) with ``retries``, and receive with ``selectors`` and ``delivery``
(a batch becomes frames). ``amqp.event_properties`` keeps what an event has no column for.

An extension for Leasehold's own receivers: one that attaches with the desired capability
``leasehold:arrow`` is offered the same. Then each transfer has the message format ``0x4C480001``,
and carries one Arrow IPC record batch message of ``leasehold.log.STORED_SCHEMA``, without the
schema. On such a link credit counts events, not deliveries: a transfer of n events uses n credits,
and moves the delivery count by n. A batch never has more events than there is credit.
"""
