/**
 * How fast transfers of workers are (spec observability 5.5): from START to END, by transfer.
 * Requests of one session may overlap, so they are told apart by the id of the transfer. One that
 * moved nothing, or took no time that the clock sees, says nothing about speed.
 */
import type { Subscriber } from '../event-bus.ts';
import type { EventCatalogue } from '../events.ts';
import { ENGINE } from './catalogue/engine.ts';
import type { InstrumentSpec } from './instrument.ts';
import { PendingMap } from './pending-map.ts';
import type { MetricRegistry } from './registry.ts';

type Start = EventCatalogue['mp.store.start'];
type End = EventCatalogue['mp.store.end' | 'mp.retrieve.end'];

const BYTES_PER_GB = 1e9;

export function l0L1Throughput(registry: MetricRegistry): Subscriber {
  const pairing = (kind: string, spec: InstrumentSpec) => {
    const started = new PendingMap<number, null>({ kind, registry });
    const throughput = registry.histogram(spec);
    return {
      start: ({ transferId }: Start, now: number) => started.put(transferId, null, now),
      end: (
        { transferId, sessionId, totalBytes, device, engineId, modelName }: End,
        now: number,
      ) => {
        const start = started.take(transferId);
        // Nobody's transfer has no series in the reference either.
        if (!start || sessionId === '') return;
        const seconds = now - start.atSeconds;
        if (totalBytes <= 0 || seconds <= 0) return;
        throughput.record(totalBytes / seconds / BYTES_PER_GB, device, engineId, modelName);
      },
    };
  };
  const store = pairing('store', ENGINE.storeThroughput);
  const retrieve = pairing('retrieve', ENGINE.loadThroughput);
  return {
    name: 'L0L1ThroughputSubscriber',
    subscriptions: {
      'mp.store.start': store.start,
      'mp.store.end': store.end,
      'mp.retrieve.start': retrieve.start,
      'mp.retrieve.end': retrieve.end,
    },
  };
}
