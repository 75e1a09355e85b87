/**
 * What does observing cost? Two servers that differ in `--disable-observability` only, under the
 * same requests in turn (A B A B …), and the processor time of the server for each:
 *
 *   LOOKUP   8192 tokens that are there, its result, and the end of its session
 *   STORE    prompts of four small chunks that are new, engine-driven
 *
 * Processor time and not wall time: it does not depend on what else the machine does. All of the
 * process counts, so also what is drained later.
 */
import { setTimeout as pause } from 'node:timers/promises';
import type { Flags } from '../../test/support/server-process.ts';
import { inParallel } from '../../test/support/waiting.ts';
import type { Report } from './report.ts';
import { coreUseOf, openServer, type Server } from './server.ts';
import { SmallObjectWorker } from './small-object-worker.ts';

const FLAGS: Flags = { '--chunk-size': 256, '--l1-size-gb': 0.5, '--eviction-policy': 'LRU' };
const LOOKED_UP_CHUNK_COUNT = 32;
const STORED_CHUNK_COUNT = 4;
const REQUESTS_IN_FLIGHT = 8;
const LOOKUPS_PER_ROUND = 500;
const STORES_PER_ROUND = 500;
const WARM_UP_ROUNDS = 3;
/** For what comes behind the last reply. */
const SETTLE_MS = 100;

interface Side {
  readonly server: Server;
  readonly worker: SmallObjectWorker;
  /** Microseconds of processor time per request, a figure for each round. */
  readonly lookups: number[];
  readonly stores: number[];
}

async function openSide(flags: Flags): Promise<Side> {
  const server = await openServer({ ...FLAGS, ...flags }, null);
  const worker = await SmallObjectWorker.register(server.url, 'observed');
  await worker.store(0, LOOKED_UP_CHUNK_COUNT);
  return { server, worker, lookups: [], stores: [] };
}

async function microsPerRequest(
  { server }: Side,
  count: number,
  run: (index: number) => Promise<void>,
): Promise<number> {
  const pid = server.pid as number;
  const before = coreUseOf(pid).runMs;
  await inParallel(count, REQUESTS_IN_FLIGHT, run);
  await pause(SETTLE_MS);
  return ((coreUseOf(pid).runMs - before) * 1000) / count;
}

async function measureRound(side: Side, round: number): Promise<void> {
  const { worker } = side;
  const lookup = await microsPerRequest(side, LOOKUPS_PER_ROUND, async (i) => {
    await worker.endSession(await worker.openSession(0, LOOKED_UP_CHUNK_COUNT, `${round}-${i}`));
  });
  const store = await microsPerRequest(side, STORES_PER_ROUND, (i) =>
    worker.store(1 + round * STORES_PER_ROUND + i, STORED_CHUNK_COUNT),
  );
  if (round < WARM_UP_ROUNDS) return;
  side.lookups.push(lookup);
  side.stores.push(store);
}

const median = (values: readonly number[]): number =>
  [...values].sort((a, b) => a - b)[Math.floor(values.length / 2)] as number;

export async function measureObservabilityCost({ rounds }: { rounds: number }): Promise<Report> {
  const observed = await openSide({});
  const blind = await openSide({ '--disable-observability': true });
  try {
    for (let round = 0; round < WARM_UP_ROUNDS + rounds; round += 1) {
      // Who comes first changes, so that a drift of the machine favours nobody.
      const order = round % 2 === 0 ? [observed, blind] : [blind, observed];
      for (const side of order) await measureRound(side, round);
    }
    await observed.worker.unregister();
    await blind.worker.unregister();
    return reportOf(observed, blind);
  } finally {
    await observed.server.stop();
    await blind.server.stop();
  }
}

function reportOf(observed: Side, blind: Side): Report {
  const kinds = ['lookups', 'stores'] as const;
  const rows = kinds.map((kind) => {
    const [on, off] = [median(observed[kind]), median(blind[kind])];
    return [kind, on, off, on - off, (100 * (on - off)) / off];
  });
  return {
    name: 'observability-cost',
    header: ['requests', 'observed µs', 'not observed µs', 'difference µs', 'per cent'],
    rows,
    verdicts: rows.map(([kind, , , , percent]) => ({
      what: `processor time of observing ${kind}`,
      value: percent as number,
      unit: ' %',
      target: 2,
    })),
    details: { observed: { ...observed, server: null, worker: null }, blind: blind.lookups },
  };
}
