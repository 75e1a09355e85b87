/** The part of the house that serves requests: device, engine modules, dispatch. */
import type { Clock } from '../clock.ts';
import type { ServerConfig } from '../config/config.ts';
import type { Core } from '../core/core.ts';
import { openCpuDevice } from '../device/cpu-shm.ts';
import type { Device } from '../device/device.ts';
import { isProcessAlive } from '../device/process-owner.ts';
import type { Shim } from '../device/shim.ts';
import { Dispatcher } from '../engine/dispatch.ts';
import { type Instance, InstanceRegistry } from '../engine/instances.ts';
import { ChunkAnnouncer } from '../engine/kv-events/chunk-announcer.ts';
import { KvEventLog } from '../engine/kv-events/kv-event-log.ts';
import { KvEventModule } from '../engine/kv-events/kv-event-module.ts';
import { LookupModule } from '../engine/lookup.ts';
import { ManagementModule } from '../engine/management.ts';
import { OwnerWatch } from '../engine/owner-watch.ts';
import { SessionTable } from '../engine/session.ts';
import { StallWatch } from '../engine/stall-watch.ts';
import { EngineDrivenTransferModule } from '../engine/transfer/engine-driven.ts';
import { LMCacheDrivenTransferModule } from '../engine/transfer/lmcache-driven.ts';
import type { EventBus } from '../observability/event-bus.ts';
import type { Logger } from '../observability/log.ts';
import type { L1Memory } from '../storage/l1-memory/l1-memory.ts';
import type { AdapterHouse } from '../storage/l2/adapter-house.ts';
import type { StorageManager } from '../storage/storage-manager.ts';
import { KvEventPublisher } from '../wire/kv-event-publisher.ts';
import type { Router } from '../wire/router.ts';
import { tensorListWriter } from '../wire/tensor-list-writer.ts';
import type { Closers } from './closers.ts';
import type { Ground } from './ground.ts';
import { buildStorage, type L2, limitTenants, loadCore, openL2 } from './storage-part.ts';

/** Below the 300 s after which clients give up, so that they get an answer. */
const TRANSFER_DEADLINE_MS = 240_000;

export interface Engine {
  readonly core: Core;
  readonly memory: L1Memory;
  readonly device: Device;
  readonly storage: StorageManager;
  readonly sessions: SessionTable;
  readonly instances: InstanceRegistry;
  readonly lookup: LookupModule;
  /** Null: not loaded, as --supported-transfer-mode says. */
  readonly lmcacheDriven: LMCacheDrivenTransferModule | null;
  readonly engineDriven: EngineDrivenTransferModule | null;
  readonly kvEvents: KvEventModule;
  /** Null: not asked for. */
  readonly kvEventPublisher: KvEventPublisher | null;
  readonly stalls: StallWatch;
  readonly dispatcher: Dispatcher;
  readonly l2: L2;
}

export interface Base {
  readonly router: Pick<Router, 'isDry'>;
  readonly shim: Shim;
  readonly memory: L1Memory;
}

export async function buildEngine(
  ground: Ground,
  { router, shim, memory }: Base,
  closers: Closers,
): Promise<Engine> {
  const { config, log, clock, bus } = ground;
  const core = loadCore(config, log);
  const device = openCpuDevice({
    shim,
    arena: memory.memory,
    objectAlignBytes: config.l1AlignBytes,
    log: log.child('device'),
    ...(config.copyThreadCount === null ? {} : { workerCount: config.copyThreadCount }),
  });
  closers.add(() => device.close());
  const storage = buildStorage(ground, core, memory);
  const l2 = await openL2(ground, storage, { shim, memory }, closers);
  limitTenants(core, l2.quotas);
  const instances = new InstanceRegistry({
    clock,
    bus,
    log: log.child('engine'),
    reapTimeoutSeconds: config.reapTimeoutMs / 1000,
    registrationGraceSeconds: config.registrationGraceMs / 1000,
  });
  const sessions = new SessionTable({ storage, clock, idleTtlMs: config.sessionTtlMs });
  bus.subscribe('instance.registered', ({ instanceId }) => {
    const instance = instances.lookup(instanceId) ?? instances.lookupEngineDriven(instanceId);
    if (instance) warnOfRefusals(instance, l2.house, log);
  });
  instances.onLastInstance((model, worldSize) => sessions.releaseModel(model, worldSize));
  const rooms = { storage, sessions, instances, hasher: core.hasher, clock, bus };
  const engineLog = log.child('engine');
  const announcer = new ChunkAnnouncer(rooms);
  const lookup = new LookupModule({ ...rooms, announcer, log: engineLog });
  const { chunkSizeTokens } = config;
  const management = new ManagementModule({ ...rooms, chunkSizeTokens, log: engineLog });
  const { kvEventPublisher, kvEvents } = await buildKvEvents(ground, instances, closers);
  const transfers = buildTransfers(config, { ...rooms, announcer, device, memory, log: engineLog });
  const { lmcacheDriven, engineDriven } = transfers;
  const modules = [lookup, management, kvEvents, lmcacheDriven, engineDriven].filter(
    (one) => one !== null,
  );
  const stalls = new StallWatch({ clock, log: engineLog, isIntakeDry: () => router.isDry });
  closers.add(() => stalls.close());
  const dispatcher = new Dispatcher({
    modules,
    clock,
    bus,
    log: engineLog,
    stalls,
    transferDeadlineMs: TRANSFER_DEADLINE_MS,
    refusals: {
      ...(lmcacheDriven && { RETRIEVE: lmcacheDriven.refuseRetrieve.bind(lmcacheDriven) }),
      ...(engineDriven && { PREPARE_RETRIEVE: engineDriven.refuseRetrieve.bind(engineDriven) }),
    },
  });
  for (const module of modules) closers.add(() => module.close());
  const watch = new OwnerWatch({ instances, isAlive: isProcessAlive, clock, log: engineLog });
  closers.add(() => watch.close());
  return {
    ...{ ...rooms, core, memory, device, lookup, ...transfers },
    ...{ kvEvents, kvEventPublisher, stalls, dispatcher, l2 },
  };
}

/** Those who follow what L1 holds; before anything can be stored. */
async function buildKvEvents(
  { config, log, clock, bus }: Ground,
  instances: InstanceRegistry,
  closers: Closers,
): Promise<Pick<Engine, 'kvEvents' | 'kvEventPublisher'>> {
  const { kvEventPublisher: publisherConfig, kvEventLogSize, reapTimeoutMs } = config;
  const kvEventLog = new KvEventLog({ bus, recordCountMax: kvEventLogSize });
  const kvEvents = new KvEventModule({ log: kvEventLog, instances, clock, reapTimeoutMs });
  if (!publisherConfig) return { kvEvents, kvEventPublisher: null };
  const wireLog = log.child('wire');
  const publisher = await KvEventPublisher.open({ ...publisherConfig, clock, bus, log: wireLog });
  closers.add(() => publisher.close());
  return { kvEvents, kvEventPublisher: publisher };
}

function buildTransfers(
  config: ServerConfig,
  rooms: Pick<Engine, 'storage' | 'sessions' | 'instances' | 'device' | 'memory'> & {
    readonly announcer: ChunkAnnouncer;
    readonly hasher: Core['hasher'];
    readonly clock: Clock;
    readonly bus: EventBus;
    readonly log: Logger;
  },
): Pick<Engine, 'lmcacheDriven' | 'engineDriven'> {
  const { transferMode, isStrictRetrieve: strictRetrieve, writeTtlMs, readTtlMs } = config;
  const { memory: pool } = rooms;
  const writer = tensorListWriter;
  return {
    lmcacheDriven:
      transferMode === 'engine_driven'
        ? null
        : new LMCacheDrivenTransferModule({
            ...rooms,
            strictRetrieve,
            hasSeparateObjects: config.hasSeparateObjects,
            nullBlockId: config.nullBlockId,
          }),
    engineDriven:
      transferMode === 'lmcache_driven'
        ? null
        : new EngineDrivenTransferModule({
            ...rooms,
            pool,
            writer,
            writeTtlMs,
            readTtlMs,
            strictRetrieve,
          }),
  };
}

/** A transformation that cannot take a model's objects would leave its L2 empty without a word. */
function warnOfRefusals({ layout, modelName }: Instance, house: AdapterHouse, log: Logger): void {
  for (const { layoutText } of layout.objectGroups) {
    for (const refusal of house.refusalsOf(layoutText)) {
      log.limited(
        'warn',
        `serde:${modelName}:${refusal}`,
        `${modelName} is not stored: ${refusal}`,
      );
    }
  }
}
