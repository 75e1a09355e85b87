/**
 * The part of the house that watches the others: subscribers of the event bus, and the ways out.
 *
 *   bus ─▶ metric subscribers ─▶ registry ─┬─▶ GET /metrics
 *    │                                     └─▶ OTLP
 *    ├───▶ lines                              ▲
 *    └───▶ spans ─────────────────────────────┘
 *
 * All of it stands before anything publishes. At the end the bus is drained first, so that what
 * was published last is counted and sent, too.
 */
import type { ServerConfig } from '../config/config.ts';
import { describeStorage } from '../config/describe-config.ts';
import type { LogLevels } from '../observability/log-levels.ts';
import { attachLines } from '../observability/logging/line-subscribers.ts';
import { LookupHashLog } from '../observability/logging/lookup-hash-log.ts';
import { SummaryLines } from '../observability/logging/summary-lines.ts';
import { withAliases } from '../observability/metrics/aliases.ts';
import { legacyBuckets } from '../observability/metrics/catalogue/rows.ts';
import { attachMetrics } from '../observability/metrics/metric-subscribers.ts';
import { MetricRegistry } from '../observability/metrics/registry.ts';
import { observeSelf } from '../observability/metrics/self-metrics.ts';
import { OtlpExport } from '../observability/otlp.ts';
import { PrometheusText } from '../observability/prometheus.ts';
import { describeStorageConfig } from '../observability/trace-file/storage-config.ts';
import { TraceRecorder } from '../observability/trace-file/trace-recorder.ts';
import { blendSpans } from '../observability/tracing/blend-spans.ts';
import { mpSpans } from '../observability/tracing/mp-spans.ts';
import type { L1Manager } from '../storage/l1-manager.ts';
import type { StorageTrace } from '../storage/trace-recording.ts';
import type { Closers } from './closers.ts';
import type { Ground } from './ground.ts';
import { observeOtlp } from './house-metrics.ts';

export interface Observability {
  /** Null: metrics are off. */
  readonly registry: MetricRegistry | null;
  readonly prometheus: PrometheusText;
}

/** Throws `ERR_CONFIG` when the lookup-hash log cannot have its folder. */
export async function openObservability(
  ground: Ground,
  levels: LogLevels,
  closers: Closers,
): Promise<Observability> {
  const { config, clock, bus, log } = ground;
  const { instanceId } = config;
  const registry = config.hasMetrics ? openRegistry(config.metrics) : null;
  const constantLabels = config.metrics.hasInstanceLabel ? { lmcache_instance_id: instanceId } : {};
  const ownLog = log.child('observability');
  const otlp = config.otlp
    ? await OtlpExport.open({
        ...{ ...config.otlp, instanceId, registry, constantLabels, clock },
        log: ownLog,
      })
    : null;
  closers.add(() => otlp?.close());
  closers.add(() => bus.close());
  if (registry) {
    observeSelf(registry, bus);
    if (otlp) observeOtlp(registry, otlp);
    attachMetrics(bus, { registry, clock, sampleRate: config.metrics.sampleRate });
  }
  if (config.hasRequestLogs) attachLines({ bus, log, levels });
  if (otlp?.spans) {
    const { hasRequestTraceIds = false } = config.otlp ?? {};
    const options = { sink: otlp.spans, clock, registry, hasRequestTraceIds };
    for (const subscriber of [mpSpans(options), blendSpans(options)]) bus.attach(subscriber);
  }
  if (config.lookupHashLog) {
    const options = { ...config.lookupHashLog, clock, log: log.child('engine') };
    bus.attach(LookupHashLog.open(options));
  }
  const { hasResourceVariables } = config;
  const prometheus = new PrometheusText({
    ...{ instanceId, registry, constantLabels, clock, hasResourceVariables },
  });
  return { registry, prometheus };
}

/** The recorder of `--trace-level storage`; null: nothing is recorded. Throws `ERR_CONFIG`. */
export async function openStorageTrace(
  { config, clock, log }: Ground,
  closers: Closers,
): Promise<StorageTrace | null> {
  if (!config.storageTrace) return null;
  const recorder = await TraceRecorder.open({
    ...config.storageTrace,
    config: describeStorageConfig(describeStorage(config)),
    clock,
    log: log.child('observability'),
  });
  closers.add(() => recorder.close());
  return recorder;
}

/** The lines of `--enable-extra-logging`. */
export function attachSummary(
  { config, clock, bus, log }: Ground,
  l1: Pick<L1Manager, 'usedBytes' | 'totalBytes' | 'statistics'>,
): void {
  if (config.summaryIntervalMs === null) return;
  const readL1 = () => ({
    usedBytes: l1.usedBytes,
    totalBytes: l1.totalBytes,
    objectCount: l1.statistics().objectCount,
  });
  const intervalMs = config.summaryIntervalMs;
  bus.attach(new SummaryLines({ clock, log: log.child('observability'), intervalMs, readL1 }));
}

function openRegistry(metrics: ServerConfig['metrics']): MetricRegistry {
  const { saltCountMax, hasLegacyBuckets, hasAliases } = metrics;
  return new MetricRegistry({
    saltCountMax,
    ...(hasLegacyBuckets && { adapt: legacyBuckets }),
    ...(hasAliases && { extend: withAliases }),
  });
}
