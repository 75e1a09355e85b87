/** What the HTTP frontend shows and changes of the house. */
import { describeConfig } from '../config/describe-config.ts';
import { VERSION } from '../config/version.ts';
import { WarmPrefetcher } from '../engine/warm-prefetch.ts';
import type { RuntimeChanges } from '../http/backend.ts';
import { EngineBackend } from '../http/engine-backend.ts';
import { TableQuotas } from '../http/quota-backend.ts';
import { L1Deletion } from '../storage/l1-deletion.ts';
import type { Engine } from './engine-part.ts';
import type { Ground } from './ground.ts';

export function buildBackend(
  ground: Ground,
  engine: Engine,
  texts: { readonly metricsText: () => Promise<string>; readonly lostLineCount: () => number },
  wire: ConstructorParameters<typeof EngineBackend>[0]['wire'],
): EngineBackend {
  const { config, clock, bus } = ground;
  const startMs = clock.nowMs();
  return new EngineBackend({
    ...engine,
    ...tiersOf(ground, engine),
    warmPrefetcher: new WarmPrefetcher({ ...engine, hasher: engine.core.hasher, clock }),
    wire,
    chunkSizeTokens: config.chunkSizeTokens,
    hashAlgorithm: config.hashAlgorithm,
    extraStatus: () => ({
      device: engine.device.status(),
      ...engine.kvEvents.status(),
      ...(engine.kvEventPublisher && { kv_event_publisher: engine.kvEventPublisher.status() }),
      stall_count: engine.stalls.stallCount,
      event_listener_errors: bus.listenerErrorCount,
      dropped_event_count: bus.droppedEventsCount,
      lost_log_line_count: texts.lostLineCount(),
      core_reserved_bytes: engine.core.reservedBytes,
      version: VERSION,
      instance_id: config.instanceId,
      uptime_seconds: (clock.nowMs() - startMs) / 1000,
    }),
    metricsText: texts.metricsText,
    config: () => describeConfig(config),
  });
}

/** What operators may ask of the tiers and change in them. */
function tiersOf({ config, clock }: Ground, { core, storage, l2 }: Engine) {
  const { control, eviction, quotas } = l2;
  const { table, namespaces, hasher } = core;
  const { hashSizeBytes } = hasher;
  const { reports } = storage.l1;
  const changes: RuntimeChanges = {
    addAdapter: (spec) => control.addAdapter(spec),
    drainAdapter: (id, timeoutMs) => control.drainAdapter(id, timeoutMs),
    removeAdapter: (id, timeoutMs) => control.removeAdapter(id, timeoutMs),
    changeL1({ triggerWatermark, evictionRatio }) {
      const now = storage.changeEviction({
        ...(triggerWatermark === undefined ? {} : { watermarkRatio: triggerWatermark }),
        ...(evictionRatio === undefined ? {} : { evictionRatio }),
      });
      return { triggerWatermark: now.watermarkRatio, evictionRatio: now.evictionRatio };
    },
  };
  return {
    l1Deletion: new L1Deletion({ table, namespaces, hashSizeBytes, clock, reports }),
    l2Eviction: eviction,
    adapters: control,
    quotas: new TableQuotas({ table: quotas, eviction, namespaces }),
    changes: config.isReconfigurable ? changes : null,
  };
}
