/** Counts what the rooms publish. Created only when metrics are on: otherwise nobody listens. */
import type { EventBus } from '../events.ts';
import { BoundedCounts } from './source.ts';

export class EventCounters {
  readonly badMessages = new BoundedCounts();
  readonly lostReplies = new BoundedCounts();
  readonly droppedInstances = new BoundedCounts();
  readonly allocationFailures = new BoundedCounts();
  registeredInstanceCount = 0;
  endedSessionCount = 0;
  lookupCount = 0;
  lookupTokenCount = 0;
  lookupHitTokenCount = 0;
  storedTokenCount = 0;
  storedBytes = 0;
  retrievedTokenCount = 0;
  retrievedBytes = 0;
  evictedObjectCount = 0;
  evictedBytes = 0;
  evictionTickCount = 0;
  evictionTriggeredCount = 0;
  blockAllocationRecordCount = 0;

  constructor(bus: EventBus) {
    bus.subscribe('wire.bad_message', ({ reason }) => this.badMessages.add(reason));
    bus.subscribe('wire.reply.lost', ({ reason }) => this.lostReplies.add(reason));
    bus.subscribe('instance.dropped', ({ reason }) => this.droppedInstances.add(reason));
    bus.subscribe('l1.allocation.failed', ({ during, keyCount }) =>
      this.allocationFailures.add(during, keyCount),
    );
    bus.subscribe('instance.registered', () => {
      this.registeredInstanceCount += 1;
    });
    bus.subscribe('mp.session.end', () => {
      this.endedSessionCount += 1;
    });
    bus.subscribe('mp.block.allocation', ({ recordCount }) => {
      this.blockAllocationRecordCount += recordCount;
    });
    this.#countTransfers(bus);
    this.#countEvictions(bus);
  }

  #countTransfers(bus: EventBus): void {
    bus.subscribe('mp.lookup.end', ({ requestedTokens, hitTokens }) => {
      this.lookupCount += 1;
      this.lookupTokenCount += requestedTokens;
      this.lookupHitTokenCount += hitTokens;
    });
    bus.subscribe('mp.store.end', ({ tokenCount, bytes }) => {
      this.storedTokenCount += tokenCount;
      this.storedBytes += bytes;
    });
    bus.subscribe('mp.retrieve.end', ({ tokenCount, bytes }) => {
      this.retrievedTokenCount += tokenCount;
      this.retrievedBytes += bytes;
    });
  }

  #countEvictions(bus: EventBus): void {
    bus.subscribe('l1.keys.evicted', ({ objectCount, bytes }) => {
      this.evictedObjectCount += objectCount;
      this.evictedBytes += bytes;
    });
    bus.subscribe('l1.eviction.loop_tick', ({ isTriggered }) => {
      this.evictionTickCount += 1;
      if (isTriggered) this.evictionTriggeredCount += 1;
    });
  }
}
