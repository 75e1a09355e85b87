/** A second house for the rehearsal at the start (wire/rehearsal.ts): small, and unseen. */
import type { ServerConfig } from '../config/config.ts';
import type { Shim } from '../device/shim.ts';
import type { Dispatcher } from '../engine/dispatch.ts';
import { EventBus } from '../observability/event-bus.ts';
import { createLogger } from '../observability/log.ts';
import { requestLines } from '../observability/logging/request-lines.ts';
import { attachMetrics } from '../observability/metrics/metric-subscribers.ts';
import { MetricRegistry } from '../observability/metrics/registry.ts';
import { openAnonymousMemory } from '../storage/l1-memory/anonymous.ts';
import { MIB } from '../units.ts';
import type { RehearsalHouse } from '../wire/rehearsal.ts';
import { Router } from '../wire/router.ts';
import { Closers } from './closers.ts';
import { buildEngine } from './engine-part.ts';
import type { Ground } from './ground.ts';

/** All prompts of a rehearsal, a page or two for each chunk. */
const REHEARSAL_L1_BYTES = 4 * MIB;
const REHEARSAL_ALIGN_BYTES = 4096;

/** Addresses inside the process share one name space. */
let rehearsalCount = 0;

/** A second house, as small as possible and unseen: nothing of it is left when it is closed. */
export async function openRehearsalHouse(ground: Ground, shim: Shim): Promise<RehearsalHouse> {
  const { clock } = ground;
  const config: ServerConfig = {
    ...ground.config,
    l1SizeBytes: REHEARSAL_L1_BYTES,
    l1AlignBytes: REHEARSAL_ALIGN_BYTES,
    copyThreadCount: 1,
    kvEventPublisher: null,
    l2: { ...ground.config.l2, adapters: [], quotaFile: null },
  };
  const discard = { format: 'text', level: 'info', clock, hasColours: false } as const;
  const log = await createLogger({ ...discard, write: () => {} });
  const bus = new EventBus();
  const closers = new Closers(ground.log);
  closers.add(() => bus.close());
  try {
    if (config.hasMetrics)
      attachMetrics(bus, { registry: new MetricRegistry(), clock, sampleRate: 1 });
    if (config.hasRequestLogs) bus.attach(requestLines(log));
    rehearsalCount += 1;
    const endpoint = `inproc://kvd-rehearsal-${rehearsalCount}`;
    const dialect = config.wireDialect;
    const router = await Router.bind({ endpoints: [endpoint], clock, log, bus, dialect });
    closers.add(() => router.close({ deadlineMs: 0 }));
    const sizeBytes = config.l1SizeBytes;
    const memory = openAnonymousMemory({ shim, sizeBytes, hugePages: 'none' });
    closers.add(() => memory.close());
    // Offered to workers as if it could be opened: theirs only say that they have filled it.
    const offered = { ...memory, shmName: 'rehearsal' };
    const small = { ...ground, config, log, bus };
    const engine = await buildEngine(small, { router, shim, memory: offered }, closers);
    router.run({ sink: engine.dispatcher, hasher: engine.core.hasher });
    return {
      endpoint,
      chunkSizeTokens: config.chunkSizeTokens,
      hasSlots: engine.engineDriven !== null,
      servedCount: () => countServed(engine.dispatcher),
      close: () => closers.closeAll(),
    };
  } catch (error) {
    // The reason of the failed start is what counts.
    await closers.closeAll().catch(() => {});
    throw error;
  }
}

function countServed({ counters }: Dispatcher): number {
  const served = [...counters.values()].map((of) => of.requestCount - of.failureCount);
  return served.reduce((sum, count) => sum + count, 0);
}
