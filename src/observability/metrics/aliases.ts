/**
 * `--metrics-aliases`: the names of the reference's old documentation, which its servers never had
 * (spec observability 10), beside the real ones. For dashboards that were written from that page.
 */
import { ENGINE } from './catalogue/engine.ts';
import { HEALTH } from './catalogue/health.ts';
import { L2 } from './catalogue/l2.ts';
import type { InstrumentSpec } from './instrument.ts';
import type { Family } from './registry.ts';

type Alias = Pick<InstrumentSpec, 'name' | 'unit'>;

/** The page has a throughput as `GBs` in its table and as `gbs` in its queries. */
const throughputAliases = ({ name }: InstrumentSpec): readonly Alias[] => [
  { name: `${name}_GBs`, unit: '' },
  { name: `${name}_gbs`, unit: '' },
];

const ALIASES: ReadonlyMap<string, readonly Alias[]> = new Map([
  ...[ENGINE.storeThroughput, ENGINE.loadThroughput, L2.storeThroughput, L2.loadThroughput].map(
    (spec) => [spec.name, throughputAliases(spec)] as const,
  ),
  [
    ENGINE.realReuseGapObjects.name,
    [{ name: 'lmcache_mp.real_reuse_gap_objects_chunks', unit: '' }],
  ],
  [L2.evictedObjects.name, [{ name: 'lmcache_mp.l2_evicted', unit: 'chunks' }]],
  [HEALTH.l1AllocationFailure.name, [{ name: 'lmcache_mp.l1_allocation_failure', unit: '' }]],
]);

/** The families, and a copy under each old name of one. */
export function withAliases(families: readonly Family[]): Family[] {
  const copies = families.flatMap((family) =>
    (ALIASES.get(family.spec.name) ?? []).map(
      (alias): Family => ({ ...family, spec: { ...family.spec, ...alias } }),
    ),
  );
  return [...families, ...copies];
}
