// A member of a consumer group that keeps its ownerships and checkpoints in blobs.
"use strict";

const { EventHubConsumerClient, earliestEventPosition } = require("@azure/event-hubs");
const { BlobCheckpointStore } = require("@azure/eventhubs-checkpointstore-blob");
const { ContainerClient } = require("@azure/storage-blob");
const { nameOf, obey, tell } = require("./lines.js");

let consumer;
let marks = true;

async function join({ url, storage, container, interval_s, expiry_s, strategy }) {
  const store = new BlobCheckpointStore(new ContainerClient(storage, container));
  consumer = new EventHubConsumerClient("$Default", url, store, {
    loadBalancingOptions: {
      strategy,
      updateIntervalInMs: 1000 * interval_s,
      partitionOwnershipExpirationIntervalInMs: 1000 * expiry_s,
    },
  });
  consumer.subscribe(
    {
      processInitialize: async ({ partitionId }) => tell({ opened: partitionId }),
      processEvents: async (events, context) => {
        if (!events.length) return;
        tell({ partition: context.partitionId, seen: events.map((each) => each.sequenceNumber) });
        if (!marks) return;
        const last = events[events.length - 1];
        await context.updateCheckpoint(last);
        tell({ partition: context.partitionId, marked: last.sequenceNumber });
      },
      processError: async (error) => tell(nameOf(error)),
      processClose: async (reason, { partitionId }) => tell({ closed: partitionId, reason }),
    },
    { startPosition: earliestEventPosition, maxWaitTimeInSeconds: 1 },
  );
}

// From now on no checkpoint is written.
async function hold() {
  marks = false;
  tell({ holds: true });
}

async function leave() {
  await consumer.close();
  tell({ left: true });
}

obey({ join, hold, leave });
