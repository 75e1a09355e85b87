/** Builds the storage room of a replay: as `kvd server` does, without shared memory and doors. */
import { systemClock } from '../clock.ts';
import type { ServerConfig } from '../config/config.ts';
import { Shim } from '../device/shim.ts';
import { Closers } from '../house/closers.ts';
import {
  buildStorage,
  checkMemoryLimit,
  limitTenants,
  loadCore,
  openL2,
} from '../house/storage-part.ts';
import { EventBus } from '../observability/event-bus.ts';
import type { Logger } from '../observability/log.ts';
import { openAnonymousMemory } from '../storage/l1-memory/anonymous.ts';
import { type ReplayStorage, StorageReplay } from './trace-replay-storage.ts';

/** Throws `ERR_CONFIG`, and then leaves nothing behind. */
export async function openReplayStorage(
  config: ServerConfig,
  of: { readonly log: Logger; readonly warn: (message: string) => void },
): Promise<ReplayStorage> {
  const { log, warn } = of;
  const ground = { config, log, clock: systemClock, bus: new EventBus() };
  const closers = new Closers(log);
  try {
    checkMemoryLimit(config, log);
    const shim = Shim.load();
    const hugePages = config.usesHugePages ? 'explicit' : 'transparent';
    const memory = openAnonymousMemory({ shim, sizeBytes: config.l1SizeBytes, hugePages });
    closers.add(() => memory.close());
    const core = loadCore(config, log);
    const storage = buildStorage(ground, core, memory);
    const l2 = await openL2(ground, storage, { shim, memory }, closers);
    limitTenants(core, l2.quotas);
    const { hashSizeBytes } = core.hasher;
    return new StorageReplay({
      ...{ storage, memory, hashSizeBytes, warn },
      closeHouse: () => closers.closeAll(),
    });
  } catch (error) {
    // The reason of the failed start is what counts.
    await closers.closeAll().catch(() => {});
    throw error;
  }
}
