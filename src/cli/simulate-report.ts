/** What `kvd simulate` prints: a table of hit rates for people, all figures for programs. */

import type { EvictionPolicy } from '../core/policy.ts';
import { formatBytes } from '../units.ts';
import type { SimulatedCache, TenantCounts } from './simulate-cache.ts';
import type { Workload } from './simulate-workload.ts';

export interface SimulatedRun {
  readonly policy: EvictionPolicy;
  readonly sizeBytes: number;
  readonly cache: Pick<SimulatedCache, 'perTenant' | 'evictedChunkCount' | 'refusedChunkCount'>;
}

/** What the requests are, whatever cache they meet. */
export interface WorkloadSummary {
  readonly lookupCount: number;
  readonly chunkCount: number;
  readonly distinctChunkCount: number;
  readonly distinctBytes: number;
  /** Hits of a cache that never forgets. */
  readonly unlimited: TenantCounts;
}

export interface SimulationResult {
  readonly workload: Workload;
  readonly summary: WorkloadSummary;
  readonly runs: readonly SimulatedRun[];
  /** null = the requests come from logs. */
  readonly seed: number | null;
  readonly skippedLineCount: number;
}

/** Tables of single tenants for people; programs get all of them. */
const TENANT_TABLES_MAX = 8;
const TITLE = 'Simulated L1 hit rates';

export function summarize({ requests, chunkSizesBytes, chunkTokens }: Workload): WorkloadSummary {
  const isKnown = new Uint8Array(chunkSizesBytes.length);
  const unlimited = { tokens: 0, hitTokens: 0 };
  let chunkCount = 0;
  let distinctChunkCount = 0;
  let distinctBytes = 0;
  for (const { chunks } of requests) {
    chunkCount += chunks.length;
    const missIndex = chunks.findIndex((chunk) => isKnown[chunk] === 0);
    const hitCount = missIndex < 0 ? chunks.length : missIndex;
    for (const [i, chunk] of chunks.entries()) {
      unlimited.tokens += chunkTokens[chunk]!;
      if (i < hitCount) unlimited.hitTokens += chunkTokens[chunk]!;
      if (isKnown[chunk] === 1) continue;
      isKnown[chunk] = 1;
      distinctChunkCount += 1;
      distinctBytes += chunkSizesBytes[chunk]!;
    }
  }
  const lookupCount = requests.length;
  return { lookupCount, chunkCount, distinctChunkCount, distinctBytes, unlimited };
}

function rateOf({ tokens, hitTokens }: TenantCounts): number {
  return tokens === 0 ? 0 : hitTokens / tokens;
}

function total(counts: readonly TenantCounts[]): TenantCounts {
  const tokens = counts.reduce((sum, each) => sum + each.tokens, 0);
  return { tokens, hitTokens: counts.reduce((sum, each) => sum + each.hitTokens, 0) };
}

const nameOf = (tenant: string) => (tenant === '' ? '(no salt)' : tenant);
const percent = (rate: number) => `${(100 * rate).toFixed(2)} %`;

/** Policies as columns, sizes as rows. */
function formatTable(runs: readonly SimulatedRun[], rate: (run: SimulatedRun) => number): string[] {
  const policies = [...new Set(runs.map(({ policy }) => policy))];
  const sizes = [...new Set(runs.map(({ sizeBytes }) => sizeBytes))];
  const head = ['L1', ...policies];
  const rows = sizes.map((size) => [
    formatBytes(size),
    ...policies.map((policy) => {
      const run = runs.find((each) => each.policy === policy && each.sizeBytes === size);
      return run ? percent(rate(run)) : '';
    }),
  ]);
  const widths = head.map((text, column) =>
    Math.max(text.length, ...rows.map((row) => row[column]!.length)),
  );
  return [head, ...rows].map((row) =>
    row.map((text, column) => text.padStart(widths[column]!)).join('  '),
  );
}

export function formatSimulation({
  workload,
  summary,
  runs,
  skippedLineCount,
}: SimulationResult): string {
  const { lookupCount, chunkCount, distinctChunkCount, distinctBytes, unlimited } = summary;
  const lines = [
    TITLE,
    '',
    `Lookups:                    ${lookupCount}, of ${chunkCount} chunks`,
    `Distinct chunks:            ${distinctChunkCount}, ${formatBytes(distinctBytes)}`,
    `Hit rate with unlimited L1: ${percent(rateOf(unlimited))}`,
  ];
  if (skippedLineCount > 0) lines.push(`Lines that are no lookups:  ${skippedLineCount}`);
  lines.push('', ...formatTable(runs, ({ cache }) => rateOf(total(cache.perTenant))));
  const tenantCount = workload.tenants.length;
  if (tenantCount > 1) {
    const counts = runs[0]?.cache.perTenant ?? [];
    const largest = workload.tenants
      .map((tenant, id) => ({ tenant, id, tokens: counts[id]?.tokens ?? 0 }))
      .sort((a, b) => b.tokens - a.tokens)
      .slice(0, TENANT_TABLES_MAX);
    for (const { tenant, id } of largest) {
      lines.push('', `Tenant ${nameOf(tenant)}`);
      lines.push(...formatTable(runs, ({ cache }) => rateOf(cache.perTenant[id]!)));
    }
    if (tenantCount > largest.length) {
      lines.push('', `${tenantCount - largest.length} smaller tenants: see --format json`);
    }
  }
  return `${lines.join('\n')}\n`;
}

export function simulationJson(result: SimulationResult): string {
  const { workload, summary, runs, seed, skippedLineCount } = result;
  const metrics = {
    lookups: summary.lookupCount,
    chunks: summary.chunkCount,
    distinct_chunks: summary.distinctChunkCount,
    distinct_bytes: summary.distinctBytes,
    unlimited_hit_rate: rateOf(summary.unlimited),
    seed,
    skipped_lines: skippedLineCount,
    results: runs.map(({ policy, sizeBytes, cache }) => ({
      policy,
      l1_size_bytes: sizeBytes,
      hit_rate: rateOf(total(cache.perTenant)),
      hit_tokens: total(cache.perTenant).hitTokens,
      requested_tokens: total(cache.perTenant).tokens,
      evicted_chunks: cache.evictedChunkCount,
      refused_chunks: cache.refusedChunkCount,
      tenants: workload.tenants.map((tenant, id) => ({
        tenant,
        hit_rate: rateOf(cache.perTenant[id]!),
        requested_tokens: cache.perTenant[id]!.tokens,
      })),
    })),
  };
  return `${JSON.stringify({ title: TITLE, metrics }, null, 2)}\n`;
}
