// Readers of partitions and producers of numbered events, as many as it is told to make.
"use strict";

const {
  EventHubBufferedProducerClient,
  EventHubConsumerClient,
  EventHubProducerClient,
  earliestEventPosition,
} = require("@azure/event-hubs");
const { nameOf, obey, tell } = require("./lines.js");

// Many short tries: a hub that is away comes back. A send whose connection breaks is not told so by
// this client, and lasts as long as a try may.
const retryOptions = { maxRetries: 1000, retryDelayInMs: 100, timeoutInMs: 3_000 };
// How often a reader that was refused tries again.
const loadBalancingOptions = { updateIntervalInMs: 200 };
const consumers = {};
let isEnough;

async function read({ name, url, partition, level }) {
  const consumer = new EventHubConsumerClient("$Default", url, {
    retryOptions,
    loadBalancingOptions,
  });
  consumers[name] = consumer;
  consumer.subscribe(
    partition,
    {
      processInitialize: async () => tell({ name, opened: true }),
      processEvents: async (events) => {
        if (events.length) tell({ name, seen: events.map((event) => event.body) });
      },
      processError: async (error) => tell({ name, ...nameOf(error) }),
      processClose: async (reason) => tell({ name, closed: reason }),
    },
    // A client whose connection breaks while it waits notices when it has waited long enough.
    { startPosition: earliestEventPosition, maxWaitTimeInSeconds: 0.5, ownerLevel: level },
  );
}

async function leave({ name }) {
  await consumers[name].close();
  tell({ name, left: true });
}

// Sends one event to partition 0, and tells what came of it.
async function send({ name, url, body }) {
  const producer = new EventHubProducerClient(url, { retryOptions });
  try {
    await producer.sendBatch([{ body }], { partitionId: "0" });
    tell({ name, sent: body });
  } catch (error) {
    tell({ name, ...nameOf(error) });
  }
  await producer.close();
}

// Sends numbers to partition 0, and the same with idempotent retries to partition 1, until told.
async function produce({ url }) {
  isEnough = false;
  const failed = async ({ error }) => tell({ name: "producer", ...nameOf(error) });
  const plain = new EventHubProducerClient(url, { retryOptions });
  const buffered = new EventHubBufferedProducerClient(url, {
    retryOptions,
    enableIdempotentRetries: true,
    maxWaitTimeInMs: 10,
    onSendEventsErrorHandler: failed,
  });
  let number = 0;
  for (; !isEnough; number += 1) {
    await buffered.enqueueEvent({ body: number }, { partitionId: "1" });
    await plain.sendBatch([{ body: number }], { partitionId: "0" });
    tell({ name: "producer", sent: number });
  }
  await buffered.close();
  await plain.close();
  tell({ name: "producer", left: true, count: number });
}

async function enough() {
  isEnough = true;
}

obey({ read, leave, send, produce, enough });
