/**
 * Numbers that the rooms keep anyway and a scrape reads: gauges, and counters that exist outside of
 * events. Every other instrument is moved by events (observability/subscribers.ts).
 */
import { ENGINE } from '../observability/metrics/catalogue/engine.ts';
import { KVD } from '../observability/metrics/catalogue/kvd.ts';
import { L1 } from '../observability/metrics/catalogue/l1.ts';
import { L2 } from '../observability/metrics/catalogue/l2.ts';
import { byLabel, type MetricRegistry, type Reading } from '../observability/metrics/registry.ts';
import type { OtlpExport } from '../observability/otlp.ts';
import type { DialectCounts } from '../wire/router.ts';
import type { Engine } from './engine-part.ts';

export function observeOtlp(registry: MetricRegistry, otlp: OtlpExport): void {
  registry.observe(KVD.otlpExportFailures, () => byLabel(otlp.failureCounts));
}

export function observeHouse(
  registry: MetricRegistry,
  engine: Engine,
  dialectCounts: () => DialectCounts,
): void {
  observeL1(registry, engine);
  observeL2(registry, engine);
  observeEngine(registry, engine);
  registry.observe(KVD.requestsByDialect, () =>
    byLabel(dialectCounts().dialects.map(({ name, requests }) => [name, requests])),
  );
  registry.observe(KVD.clients, () => {
    const { dialects, clients_undetermined: undetermined } = dialectCounts();
    const known = dialects.map(({ name, clients }) => [name, clients] as const);
    return byLabel([...known, ['undetermined', undetermined]]);
  });
}

function observeL1(registry: MetricRegistry, { storage, engineDriven, memory }: Engine): void {
  const { l1 } = storage;
  registry.observe(L1.memoryUsageBytes, () => l1.usedBytes);
  registry.observe(L1.usageRatio, () => (l1.totalBytes === 0 ? 0 : l1.usedBytes / l1.totalBytes));
  registry.observe(KVD.l1MemorySizeBytes, () => l1.totalBytes);
  registry.observe(KVD.objects, () => {
    const { objectCount, stagingCount } = l1.statistics();
    return objectCount + stagingCount;
  });
  registry.observe(KVD.stagingObjects, () => l1.statistics().stagingCount);
  registry.observe(KVD.engineDrivenShm, () =>
    Number(engineDriven !== null && memory.shmName !== null),
  );
  registry.observe(KVD.quarantined, () => engineDriven?.quarantinedBytes ?? 0);
}

function observeL2(registry: MetricRegistry, { storage, l2 }: Engine): void {
  const { stores, loads, adapters } = storage.l2;
  registry.observe(L2.usageBytes, () =>
    l2.house.adapters.map((adapter) => [
      [adapter.typeName, `${adapter.id}`],
      adapter.usage().usedBytes,
    ]),
  );
  registry.observe(L2.inflightStores, () =>
    stores.lanes
      .filter(({ inFlightCount }) => inFlightCount > 0)
      .map(({ adapter: { store }, inFlightCount }) => [
        [store.typeName, `${store.id}`],
        inFlightCount,
      ]),
  );
  const loading = (of: (state: { count: number; bytes: number }) => number): Reading =>
    adapters.all.flatMap(({ store }) => {
      const state = loads.inFlight.get(store.id);
      return state ? [[[store.typeName, `${store.id}`], of(state)] as const] : [];
    });
  registry.observe(L2.inflightLoads, () => loading(({ count }) => count));
  registry.observe(L2.inflightLoadBytes, () => loading(({ bytes }) => bytes));
  const states = (): Reading => {
    const activeCount = adapters.active.length;
    return byLabel([
      ['active', activeCount],
      ['draining', adapters.all.length - activeCount],
    ]);
  };
  for (const spec of [L2.adapters, L2.storeAdapters, L2.prefetchAdapters]) {
    registry.observe(spec, states);
  }
}

function observeEngine(registry: MetricRegistry, engine: Engine): void {
  const { sessions, instances, dispatcher, kvEvents } = engine;
  registry.observe(ENGINE.activePrefetchJobs, () => sessions.countOpenJobs());
  // No lookup asks other servers, so none waits for one.
  registry.observe(ENGINE.activeP2pLookupJobs, () => 0);
  registry.observe(ENGINE.kvEventLogDepth, () => kvEvents.logDepth);
  registry.observe(KVD.sessions, () => sessions.sessionCount);
  registry.observe(KVD.instances, () => instances.instanceCount);
  registry.observe(KVD.requestsInFlight, () => dispatcher.inFlightCount);
  registry.observe(KVD.requests, () =>
    byLabel([...dispatcher.counters].map(([name, { requestCount }]) => [name, requestCount])),
  );
  registry.observe(KVD.requestsFailed, () => byLabel(dispatcher.failuresByCode));
}
