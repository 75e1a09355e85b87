/** What all prefetches have in common. */
import type { Clock } from '../../clock.ts';
import type { NamespaceTable } from '../../core/namespaces.ts';
import type { EventBus } from '../../observability/event-bus.ts';
import type { EventCatalogue } from '../../observability/events.ts';
import type { Logger } from '../../observability/log.ts';
import type { L1Exchange } from '../l1-exchange.ts';
import type { AdapterTable } from './adapter-table.ts';
import type { ColumnShapes } from './column-shapes.ts';
import type { Loads } from './loads.ts';

export interface PrefetchRoom {
  readonly adapters: AdapterTable;
  readonly exchange: L1Exchange;
  readonly namespaces: NamespaceTable;
  readonly shapes: ColumnShapes;
  readonly loads: Loads;
  readonly alignBytes: number;
  readonly lookupTimeoutMs: number;
  /** What has been loaded stays in L1 when its readers are done. */
  readonly keepsLoaded: boolean;
  /** Evicts, so that about so many bytes are free; answers how many are. */
  readonly makeRoom: (bytes: number) => number;
  readonly clock: Clock;
  readonly bus: EventBus;
  readonly log: Logger;
}

export function reportFailure(
  { bus }: Pick<PrefetchRoom, 'bus'>,
  reason: EventCatalogue['l2.prefetch.failed']['reason'],
  of: { readonly modelName: string; readonly keyCount: number },
): void {
  const countByModel = new Map([[of.modelName, of.keyCount]]);
  bus.publish('l2.prefetch.failed', { reason, countByModel });
  if (reason !== 'l1_oom') return;
  bus.publish('l1.allocation.failed', { during: 'l2_prefetch', countByModel });
}

/** Late answers of L2 adapters; few kinds. */
export function reportTimeout(
  { bus }: Pick<PrefetchRoom, 'bus'>,
  exceptionType: 'L2LookupTimeout' | 'L2LoadTimeout',
  message: string,
): void {
  bus.publish('timeout.raised', { sessionId: '', exceptionType, message });
}
