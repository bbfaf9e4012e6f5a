// Sends to a hub with the client of npm and reads it back; prints one JSON object with what it saw.
"use strict";

const {
  EventHubBufferedProducerClient,
  EventHubConsumerClient,
  EventHubProducerClient,
  earliestEventPosition,
} = require("@azure/event-hubs");

const url = process.argv[2];
const seen = { errors: [], received: [] };

async function produce() {
  const producer = new EventHubProducerClient(url);
  seen.partitions = await producer.getPartitionIds();
  const batch = await producer.createBatch({ partitionId: "0" });
  for (let number = 0; number < 100; number += 1) {
    batch.tryAdd({ body: { number }, properties: { half: number / 2, name: `n${number}` } });
  }
  await producer.sendBatch(batch);
  await producer.sendBatch([{ body: "keyed", contentType: "text/plain" }], { partitionKey: "k" });
  seen.first = await producer.getPartitionProperties("0");
  await producer.close();
}

async function buffered() {
  const producer = new EventHubBufferedProducerClient(url, {
    enableIdempotentRetries: true,
    onSendEventsErrorHandler: async (context) => seen.errors.push(String(context.error)),
  });
  for (let number = 0; number < 20; number += 1) {
    await producer.enqueueEvent({ body: `buffered ${number}` }, { partitionId: "0" });
  }
  await producer.flush();
  await producer.close();
}

async function consume(count) {
  const consumer = new EventHubConsumerClient("$Default", url);
  await new Promise((resolve) => {
    consumer.subscribe(
      {
        processEvents: async (events, context) => {
          for (const event of events) {
            seen.received.push({
              partition: context.partitionId,
              body: event.body,
              key: event.partitionKey ?? null,
              properties: event.properties ?? {},
              contentType: event.contentType ?? null,
              sequence: event.sequenceNumber,
              last: context.lastEnqueuedEventProperties?.sequenceNumber ?? null,
            });
          }
          if (seen.received.length >= count) resolve();
        },
        processError: async (error) => seen.errors.push(String(error)),
      },
      { startPosition: earliestEventPosition, trackLastEnqueuedEventProperties: true },
    );
  });
  await consumer.close();
}

async function main() {
  await produce();
  await buffered();
  await consume(121);
  console.log(JSON.stringify(seen));
}

main().catch((error) => {
  console.error(error);
  process.exit(1);
});
