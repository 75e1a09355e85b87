/**
 * Drops workers whose process has ended, long before the reaper would (spec field-lessons 4.2,
 * 4.3).
 *
 * A killed engine leaves its KV cache mapped here, and the engine that takes its place may not find
 * the memory to start. Where the owner of the memory is known (`DeviceInstance.owner`), its end is
 * noticed within about a second: once a second each distinct owner is looked at, one after the
 * other and off the event loop. Workers without a known owner are the reaper's matter, and so are
 * owners that live and say nothing.
 *
 * A killed process also leaves the names of its shared memory, which keep the bytes until somebody
 * removes them: that is done here, and only here, where it is certain that nobody will need them.
 */
import { assert } from '../assert.ts';
import type { Clock, Timer } from '../clock.ts';
import type { ProcessOwner } from '../device/device.ts';
import type { Logger } from '../observability/log.ts';
import type { InstanceRegistry, KvCacheInstance } from './instances.ts';

const ROUND_INTERVAL_MS = 1000;

export interface OwnerWatchOptions {
  readonly instances: Pick<InstanceRegistry, 'kvCacheInstances' | 'lookup' | 'drop'>;
  /** False only when the process has certainly ended. Must not reject. */
  readonly isAlive: (owner: ProcessOwner) => Promise<boolean>;
  readonly clock: Clock;
  readonly log: Logger;
}

export class OwnerWatch {
  readonly #options: OwnerWatchOptions;
  readonly #timer: Timer;
  #isLooking = false;
  #isClosed = false;

  constructor(options: OwnerWatchOptions) {
    this.#options = options;
    this.#timer = options.clock.every(ROUND_INTERVAL_MS, () => void this.#look());
  }

  close(): void {
    this.#isClosed = true;
    this.#timer.cancel();
  }

  /** One round; the next one waits until it has ended. */
  async #look(): Promise<void> {
    if (this.#isLooking) return;
    this.#isLooking = true;
    for (const instances of this.#byOwner().values()) {
      const owner = instances[0]?.handle.owner;
      assert(owner, 'every group has an owner');
      const isAlive = await this.#options.isAlive(owner);
      if (this.#isClosed) return;
      if (!isAlive) for (const instance of instances) this.#drop(instance, owner);
    }
    this.#isLooking = false;
  }

  #byOwner(): Map<string, KvCacheInstance[]> {
    const groups = new Map<string, KvCacheInstance[]>();
    for (const instance of this.#options.instances.kvCacheInstances()) {
      const { owner } = instance.handle;
      if (!owner) continue;
      const key = `${owner.pid} ${owner.startTicks}`;
      const group = groups.get(key);
      if (group) group.push(instance);
      else groups.set(key, [instance]);
    }
    return groups;
  }

  #drop(instance: KvCacheInstance, owner: ProcessOwner): void {
    const { instances, log } = this.#options;
    const { instanceId } = instance;
    // The id may belong to a newer registration by now.
    if (instances.lookup(instanceId) !== instance) return;
    const removedCount = instance.handle.removeNames();
    const removed =
      removedCount === 0 ? '' : `, and ${removedCount} segments that it left are removed`;
    log.warn(`Process ${owner.pid} has ended: its instance ${instanceId} is dropped${removed}`);
    void instances.drop(instanceId, 'owner-gone');
  }
}
