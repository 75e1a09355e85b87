/**
 * What observing adds to a request inside of kvd, without the sockets: two engines in one process,
 * one of them observed, the same requests for both in turn. What the queue hands over later is in
 * the figure, and garbage collection, too; writing log lines is not, they are made and dropped.
 *
 *   lookup   LOOKUP of 32 chunks that are there, its result, and the end of its session
 *   store    PREPARE and COMMIT of four chunks that are new
 *
 *   node bench/micro/observing.ts [rounds]
 */
import { setImmediate as nextTurn } from 'node:timers/promises';
import { promptOf } from '../../src/client/load/bench-requests.ts';
import { systemClock } from '../../src/clock.ts';
import { loadServerConfig } from '../../src/config/load.ts';
import { Shim } from '../../src/device/shim.ts';
import type { OperationName, RequestOf } from '../../src/engine/api.ts';
import type { Dispatcher } from '../../src/engine/dispatch.ts';
import { Closers } from '../../src/house/closers.ts';
import { buildEngine } from '../../src/house/engine-part.ts';
import { openObservability } from '../../src/house/observability-part.ts';
import { EventBus } from '../../src/observability/event-bus.ts';
import { createLogger } from '../../src/observability/log.ts';
import { LogLevels } from '../../src/observability/log-levels.ts';
import { openAnonymousMemory } from '../../src/storage/l1-memory/anonymous.ts';
import { OLD_CLIENT } from '../../test/support/client-traits.ts';
import { percentile } from '../../test/support/waiting.ts';

const CHUNK_SIZE_TOKENS = 256;
const BATCH = 500;
const MODEL = 'm';
const CONTEXT = { connectionId: 1, client: OLD_CLIENT };
const INSTANCE_ID = 1n;

class Side {
  readonly #dispatcher: Dispatcher;
  readonly #bus: EventBus;
  readonly #closers: Closers;
  readonly #micros = new Map<string, number[]>();

  private constructor(dispatcher: Dispatcher, bus: EventBus, closers: Closers) {
    this.#dispatcher = dispatcher;
    this.#bus = bus;
    this.#closers = closers;
  }

  static async open(flags: readonly string[]): Promise<Side> {
    const sizes = ['--l1-size-gb', '0.25', '--chunk-size', `${CHUNK_SIZE_TOKENS}`];
    const { config, problems } = loadServerConfig([...sizes, '--eviction-policy', 'LRU', ...flags]);
    if (!config) throw new Error(JSON.stringify(problems));
    const levels = new LogLevels({ root: 'info' });
    const clock = systemClock;
    const log = await createLogger({
      ...{ format: 'text', level: levels, clock, hasColours: false, write: () => {} },
    });
    const bus = new EventBus({ clock });
    const closers = new Closers(log);
    const ground = { config, clock, bus, log };
    await openObservability(ground, levels, closers);
    const shim = Shim.load();
    const sizeBytes = config.l1SizeBytes;
    const anonymous = openAnonymousMemory({ shim, sizeBytes, hugePages: 'none' });
    closers.add(() => anonymous.close());
    const memory = { ...anonymous, shmName: 'bench' };
    const router = { isDry: true };
    const { dispatcher } = await buildEngine(ground, { router, shim, memory }, closers);
    const side = new Side(dispatcher, bus, closers);
    await side.ask('REGISTER_KV_CACHE_ENGINE_DRIVEN_CONTEXT', {
      ...{ instanceId: INSTANCE_ID, modelName: MODEL, worldSize: 1, usesMla: false },
      ...{ blockSize: CHUNK_SIZE_TOKENS, layerCount: 1, hiddenSize: 4, dtype: 'bfloat16' },
      physicalSlotCount: null,
    });
    return side;
  }

  ask<N extends OperationName>(name: N, request: RequestOf<N>) {
    return this.#dispatcher.dispatch(name, request, CONTEXT);
  }

  /** Microseconds for each of `BATCH` requests. */
  async measure(run: () => Promise<void>): Promise<number> {
    const startMs = performance.now();
    await run();
    this.#bus.drain();
    return ((performance.now() - startMs) * 1000) / BATCH;
  }

  note(kind: string, micros: number): void {
    this.#micros.set(kind, [...this.microsOf(kind), micros]);
  }

  microsOf(kind: string): readonly number[] {
    return this.#micros.get(kind) ?? [];
  }

  close(): Promise<void> {
    return this.#closers.closeAll();
  }
}

const lookedUp = promptOf(0, 32 * CHUNK_SIZE_TOKENS, MODEL);
type Prompt = typeof lookedUp;

async function store(side: Side, prompt: Prompt): Promise<void> {
  const request = { key: prompt.transferKey('store'), instanceId: INSTANCE_ID };
  await side.ask('PREPARE_STORE', request);
  await side.ask('COMMIT_STORE', { ...request, data: { kind: 'none' } });
}

async function lookUp(side: Side, name: string): Promise<void> {
  const key = lookedUp.lookupKey(name);
  const { requestId } = key;
  await side.ask('LOOKUP', { key, tpSize: 1 });
  const hits = await side.ask('QUERY_PREFETCH_STATUS', { requestId });
  if (hits !== 32) throw new Error(`expected 32 chunks, got ${hits}`);
  await side.ask('END_SESSION', { requestId });
}

const KINDS = {
  lookup: (side: Side, prompt: Prompt) => lookUp(side, `${prompt.sequence}`),
  store,
};
const WARM_UP_ROUNDS = 10;
const rounds = Number(process.argv[2] ?? 100);
const observed = await Side.open([]);
const blind = await Side.open(['--disable-observability']);
let sequence = 1;
for (let round = 0; round < WARM_UP_ROUNDS + rounds; round += 1) {
  sequence += BATCH;
  const prompts = Array.from({ length: BATCH }, (_, i) =>
    promptOf(sequence + i, 4 * CHUNK_SIZE_TOKENS, MODEL),
  );
  for (const [kind, run] of Object.entries(KINDS)) {
    for (const side of round % 2 === 0 ? [observed, blind] : [blind, observed]) {
      // Stores push it out.
      await store(side, lookedUp);
      const micros = await side.measure(async () => {
        for (const prompt of prompts) await run(side, prompt);
      });
      if (round >= WARM_UP_ROUNDS) side.note(kind, micros);
      await nextTurn();
    }
  }
}
console.table(
  Object.keys(KINDS).map((kind) => {
    const [on, off] = [observed.microsOf(kind), blind.microsOf(kind)];
    const added = on.map((micros, i) => micros - (off[i] as number));
    return {
      request: kind,
      'observed µs': percentile(on, 0.5).toFixed(1),
      'not observed µs': percentile(off, 0.5).toFixed(1),
      'added µs': percentile(added, 0.5).toFixed(1),
    };
  }),
);
await observed.close();
await blind.close();
