/**
 * How fast adapters are, from handing a call over to its end: queue, I/O and notice of it (spec
 * observability 5.6). The rate is of bytes that were really written or read, so what an adapter had
 * already, or lost, has none; the time is of every call.
 */
import type { Subscriber } from '../event-bus.ts';
import { KVD } from './catalogue/kvd.ts';
import { L2 } from './catalogue/l2.ts';
import { elapsedSeconds } from './elapsed.ts';
import type { Histogram } from './instrument.ts';
import { PendingMap } from './pending-map.ts';
import type { MetricRegistry } from './registry.ts';

const BYTES_PER_GB = 1e9;

interface EndedCall {
  readonly l2Name: string;
  readonly adapterIndex: number;
  readonly bytes: number;
  readonly startSeconds: number;
}

export function l2Throughput(registry: MetricRegistry): Subscriber {
  const stores = new PendingMap<string, null>({ kind: 'l2_store', registry });
  /** The value is the size of what is to be loaded. */
  const loads = new PendingMap<string, number>({ kind: 'l2_load', registry });
  const recorder =
    (throughput: Histogram, latency: Histogram) => (call: EndedCall, now: number) => {
      const { l2Name, adapterIndex, bytes, startSeconds } = call;
      const seconds = elapsedSeconds(startSeconds, now);
      latency.record(seconds, l2Name, `${adapterIndex}`);
      if (bytes > 0 && seconds > 0) throughput.record(bytes / seconds / BYTES_PER_GB, l2Name);
    };
  const recordStore = recorder(
    registry.histogram(L2.storeThroughput),
    registry.histogram(KVD.l2StoreSeconds),
  );
  const recordLoad = recorder(
    registry.histogram(L2.loadThroughput),
    registry.histogram(KVD.l2LoadSeconds),
  );
  return {
    name: 'L2ThroughputSubscriber',
    subscriptions: {
      'l2.store.submitted': ({ adapterIndex, taskId }, now) =>
        stores.put(`${adapterIndex}:${taskId}`, null, now),
      'l2.store.completed': ({ adapterIndex, taskId, l2Name, bytesTransferred: bytes }, now) => {
        const start = stores.take(`${adapterIndex}:${taskId}`);
        if (!start) return;
        recordStore({ l2Name, adapterIndex, bytes, startSeconds: start.atSeconds }, now);
      },
      'l2.load_task.submitted': ({ requestId, adapterIndex, totalBytes }, now) =>
        loads.put(`${requestId}:${adapterIndex}`, totalBytes, now),
      'l2.load_task.completed': (load, now) => {
        const { requestId, adapterIndex, l2Name, loadedCount, failedCount } = load;
        const start = loads.take(`${requestId}:${adapterIndex}`);
        if (!start) return;
        const bytes =
          loadedCount === 0 ? 0 : start.value * (loadedCount / (loadedCount + failedCount));
        recordLoad({ l2Name, adapterIndex, bytes, startSeconds: start.atSeconds }, now);
      },
    },
  };
}
