/**
 * The composition root: builds the house from the ground up and owns its shutdown.
 *
 *   HTTP ("starting") and ZMQ addresses ─ L1 memory ─ core ─ device ─ storage ─ engine ─ ready
 *
 * Only this file constructs; every part receives what it needs. What was built is closed in the
 * reverse order, also when a later part fails to start, so nothing is left in /dev/shm.
 * (Longer than other files: it lists all parts.)
 */
import { randomBytes } from 'node:crypto';
import type { Clock } from './clock.ts';
import { systemClock } from './clock.ts';
import type { ServerConfig } from './config/config.ts';
import { describeConfig } from './config/describe-config.ts';
import { loadSpecReader, readL2Adapters } from './config/l2-adapters.ts';
import { COMMIT, VERSION } from './config/version.ts';
import { Core } from './core/core.ts';
import { openCpuDevice } from './device/cpu-shm.ts';
import type { Device } from './device/device.ts';
import { isProcessAlive } from './device/process-owner.ts';
import { Shim } from './device/shim.ts';
import { Dispatcher } from './engine/dispatch.ts';
import { type Instance, InstanceRegistry } from './engine/instances.ts';
import { ChunkAnnouncer } from './engine/kv-events/chunk-announcer.ts';
import { KvEventLog } from './engine/kv-events/kv-event-log.ts';
import { KvEventModule } from './engine/kv-events/kv-event-module.ts';
import { LookupModule } from './engine/lookup.ts';
import { ManagementModule } from './engine/management.ts';
import { OwnerWatch } from './engine/owner-watch.ts';
import { SessionTable } from './engine/session.ts';
import { StallWatch } from './engine/stall-watch.ts';
import { EngineDrivenTransferModule } from './engine/transfer/engine-driven.ts';
import { LMCacheDrivenTransferModule } from './engine/transfer/lmcache-driven.ts';
import { WarmPrefetcher } from './engine/warm-prefetch.ts';
import { KvdError } from './errors.ts';
import type { RuntimeChanges } from './http/backend.ts';
import { EngineBackend } from './http/engine-backend.ts';
import { HttpServer } from './http/http-server.ts';
import { TableQuotas } from './http/quota-backend.ts';
import { EventBus } from './observability/events.ts';
import { createLogger, type Logger } from './observability/log.ts';
import { LookupHashLog } from './observability/logging/lookup-hash-log.ts';
import { logRequests } from './observability/logging/request-lines.ts';
import { EventCounters } from './observability/metrics/event-counters.ts';
import type { MetricsSnapshot } from './observability/metrics/source.ts';
import { PrometheusText } from './observability/prometheus.ts';
import { L1Deletion } from './storage/l1-deletion.ts';
import { L1Manager } from './storage/l1-manager.ts';
import { openAnonymousMemory } from './storage/l1-memory/anonymous.ts';
import { type L1Memory, openL1Memory, type ShmOptions } from './storage/l1-memory/l1-memory.ts';
import { OVERHEAD_BYTES, readMemoryLimitBytes } from './storage/l1-memory/memory-limit.ts';
import { AdapterControl } from './storage/l2/adapter-control.ts';
import { AdapterHouse } from './storage/l2/adapter-house.ts';
import { L2Eviction } from './storage/l2/l2-eviction.ts';
import { QuotaTable } from './storage/l2/quota.ts';
import { StorageManager } from './storage/storage-manager.ts';
import { formatBytes, MIB } from './units.ts';
import { Doors } from './wire/doors.ts';
import { isGrpcEndpoint } from './wire/endpoints.ts';
import { KvEventPublisher } from './wire/kv-event-publisher.ts';
import { LoopWatch } from './wire/loop-watch.ts';
import { Rehearsal, type RehearsalHouse } from './wire/rehearsal.ts';
import { type DialectCounts, Router } from './wire/router.ts';
import { tensorListWriter } from './wire/tensor-list-writer.ts';

/** Tokens of one request: eight times the longest prompts in use. */
const TOKEN_COUNT_MAX = 1_048_576;
/** Bookkeeping of this many objects takes 1.4 GB when all are in use; unused rows cost nothing. */
const OBJECT_COUNT_MAX = 8 * 1024 * 1024;
const OBJECT_COUNT_MIN = 1024;
/** Below the 300 s after which clients give up, so that they get an answer. */
const TRANSFER_DEADLINE_MS = 240_000;
/** All prompts of a rehearsal, a page or two for each chunk. */
const REHEARSAL_L1_BYTES = 4 * MIB;
const REHEARSAL_ALIGN_BYTES = 4096;

/** Addresses inside the process share one name space. */
let rehearsalCount = 0;

export interface RunningServer {
  /** Endpoints with their real ports. */
  readonly endpoints: readonly string[];
  readonly httpUrl: string;
  /** Answers what is in flight, then leaves nothing behind. */
  close(): Promise<void>;
}

export interface ServerOptions {
  readonly config: ServerConfig;
  readonly log: Logger;
  /** Lines of the log that nobody has got, for `/status`. */
  readonly lostLineCount: () => number;
  /** Runs once, when what the start has used is not needed any more. */
  readonly collectGarbage: () => void;
}

interface Ground extends ServerOptions {
  readonly clock: Clock;
  readonly bus: EventBus;
}

interface Engine {
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

/** A transfer that is stuck to the end of a stop leaves finished stores that long to reach L2. */
const L2_STOP_MS = 2_000;

/** What to undo, latest first. */
export class Closers {
  readonly #log: Logger;
  readonly #clock: Clock;
  readonly #closers: (() => unknown)[] = [];
  #startMs: number | null = null;

  constructor(log: Logger, clock: Clock = systemClock) {
    this.#log = log;
    this.#clock = clock;
  }

  /** What is left of the time for all of them together. */
  leftMsOf(budgetMs: number): number {
    const nowMs = this.#clock.nowMs();
    return Math.max(0, budgetMs - (nowMs - (this.#startMs ?? nowMs)));
  }

  add(close: () => unknown): void {
    this.#closers.push(close);
  }

  /** Runs all of them, also behind one that fails. Rejects with the first failure. */
  async closeAll(): Promise<void> {
    const failures: unknown[] = [];
    this.#startMs ??= this.#clock.nowMs();
    for (let close = this.#closers.pop(); close; close = this.#closers.pop()) {
      try {
        await close();
      } catch (error) {
        failures.push(error);
        const reason = error instanceof Error ? error.message : String(error);
        this.#log.error(`A part of the server cannot be closed: ${reason}`);
      }
    }
    if (failures.length > 0) throw failures[0];
  }
}

/** Throws `ERR_CONFIG`, `ERR_ADDRESS` or `ERR_NATIVE`, and then leaves nothing behind. */
export async function startServer(options: ServerOptions): Promise<RunningServer> {
  const ground: Ground = { ...options, clock: systemClock, bus: new EventBus() };
  const closers = new Closers(options.log);
  try {
    return await build(ground, closers);
  } catch (error) {
    // What failed meanwhile is in the log; the reason of the failed start is what counts.
    await closers.closeAll().catch(() => {});
    throw error;
  }
}

async function build(ground: Ground, closers: Closers): Promise<RunningServer> {
  const { config, log, clock, bus } = ground;
  checkMemoryLimit(config, log);
  const http = await HttpServer.bind({
    host: config.httpHost,
    port: config.httpPort,
    prometheus: config.prometheus,
    token: config.httpToken,
    version: { version: VERSION, commit: COMMIT },
    log: log.child('http'),
    clock,
  });
  closers.add(() => http.close(config.shutdownTimeoutMs));
  const counters = config.hasMetrics ? new EventCounters(bus) : null;
  if (config.hasRequestLogs) logRequests(bus, log.child('engine'));
  openLookupHashLog(ground, closers);
  const doors = await Doors.open({
    endpoints: config.endpoints,
    clock,
    log: log.child('wire'),
    bus,
    dialect: config.wireDialect,
  });
  closers.add(() => doors.close({ deadlineMs: 0 }));
  const shim = Shim.load();
  const memory = await openMemory(ground, shim);
  closers.add(() => memory.close());
  const engine = await buildEngine(ground, { router: doors, shim, memory }, closers);
  const watch = new LoopWatch(doors, clock);
  closers.add(() => watch.close());
  const backend = buildBackend(ground, engine, counters, {
    statistics: () => doors.statistics(),
    dialectCounts: () => doors.dialectCounts(),
    problem: () => watch.problem,
    selfPing: (timeoutMs) => doors.selfPing(timeoutMs),
  });
  closers.add(async () => {
    backend.isDraining = true;
    await Promise.all([
      engine.dispatcher.drain(config.shutdownTimeoutMs),
      doors.close({ deadlineMs: config.shutdownTimeoutMs }),
    ]);
  });
  doors.run({ sink: engine.dispatcher, hasher: engine.core.hasher });
  http.serve(backend);
  for (const endpoint of doors.endpoints) {
    const transport = isGrpcEndpoint(endpoint) ? 'gRPC' : 'ZMQ';
    log.info(`LMCache ${transport} cache server is running on ${endpoint}`);
  }
  log.info('LMCache cache server is running...');
  const rehearsal = new Rehearsal({
    openHouse: () => openRehearsalHouse(ground, shim),
    dialect: config.wireDialect,
    onEnd: ground.collectGarbage,
    clock,
    log: log.child('wire'),
  });
  closers.add(() => rehearsal.stop());
  return {
    endpoints: doors.endpoints,
    httpUrl: http.url,
    close: () => closers.closeAll(),
  };
}

function openLookupHashLog({ config, log, clock, bus }: Ground, closers: Closers): void {
  if (!config.lookupHashLog) return;
  const hashLog = LookupHashLog.open({ ...config.lookupHashLog, clock, log: log.child('engine') });
  hashLog.listen(bus);
  closers.add(() => hashLog.close());
}

/** A second house, as small as possible and unseen: nothing of it is left when it is closed. */
async function openRehearsalHouse(ground: Ground, shim: Shim): Promise<RehearsalHouse> {
  const { clock } = ground;
  const config: ServerConfig = {
    ...ground.config,
    l1SizeBytes: REHEARSAL_L1_BYTES,
    l1AlignBytes: REHEARSAL_ALIGN_BYTES,
    copyThreadCount: 1,
    kvEventPublisher: null,
    l2: { ...ground.config.l2, adapters: [], quotaFile: null },
  };
  const discard = { format: 'text', level: 'info', clock, hasColours: false } as const;
  const log = await createLogger({ ...discard, write: () => {} });
  const bus = new EventBus();
  const closers = new Closers(ground.log);
  try {
    if (config.hasMetrics) new EventCounters(bus);
    if (config.hasRequestLogs) logRequests(bus, log);
    rehearsalCount += 1;
    const endpoint = `inproc://kvd-rehearsal-${rehearsalCount}`;
    const dialect = config.wireDialect;
    const router = await Router.bind({ endpoints: [endpoint], clock, log, bus, dialect });
    closers.add(() => router.close({ deadlineMs: 0 }));
    const sizeBytes = config.l1SizeBytes;
    const memory = openAnonymousMemory({ shim, sizeBytes, hugePages: 'none' });
    closers.add(() => memory.close());
    // Offered to workers as if it could be opened: theirs only say that they have filled it.
    const offered = { ...memory, shmName: 'rehearsal' };
    const small = { ...ground, config, log, bus };
    const engine = await buildEngine(small, { router, shim, memory: offered }, closers);
    router.run({ sink: engine.dispatcher, hasher: engine.core.hasher });
    return {
      endpoint,
      chunkSizeTokens: config.chunkSizeTokens,
      hasSlots: engine.engineDriven !== null,
      servedCount: () => countServed(engine.dispatcher),
      close: () => closers.closeAll(),
    };
  } catch (error) {
    // The reason of the failed start is what counts.
    await closers.closeAll().catch(() => {});
    throw error;
  }
}

function countServed({ counters }: Dispatcher): number {
  const served = [...counters.values()].map((of) => of.requestCount - of.failureCount);
  return served.reduce((sum, count) => sum + count, 0);
}

function openMemory({ config, log }: Ground, shim: Shim): Promise<L1Memory> {
  return openL1Memory({
    shim,
    log: log.child('storage'),
    sizeBytes: config.l1SizeBytes,
    hugePages: config.usesHugePages ? 'explicit' : 'transparent',
    shm: sharedMemoryOf(config),
  });
}

interface Base {
  readonly router: Pick<Router, 'isDry'>;
  readonly shim: Shim;
  readonly memory: L1Memory;
}

async function buildEngine(
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
  const sessions = new SessionTable({ storage, clock, bus, idleTtlMs: config.sessionTtlMs });
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

/** Only engine-driven workers reach into L1; without them a segment would only be exposed. */
function sharedMemoryOf({ transferMode, shmName, shmMode }: ServerConfig): ShmOptions | null {
  if (transferMode === 'lmcache_driven' || shmName === '') return null;
  return { name: shmName, mode: shmMode };
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

function loadCore(config: ServerConfig, log: Logger): Core {
  const { hashAlgorithm, hashSeed, chunkSizeTokens, l1SizeBytes, l1AlignBytes } = config;
  const objectCount = Math.ceil(l1SizeBytes / l1AlignBytes);
  const indexSeed = new Uint32Array(new Uint8Array(randomBytes(8)).buffer);
  const isRandomRoot = hashAlgorithm === 'sha256_cbor' && hashSeed === null;
  if (isRandomRoot) {
    log.warn('PYTHONHASHSEED is not set: chunk hashes of sha256_cbor change at every start');
  }
  const core = Core.load({
    hashAlgorithm,
    chunkSizeTokens,
    tokenCountMax: TOKEN_COUNT_MAX,
    objectCountMax: Math.min(Math.max(objectCount, OBJECT_COUNT_MIN), OBJECT_COUNT_MAX),
    arenaSizeBytes: l1SizeBytes,
    alignBytes: l1AlignBytes,
    evictionPolicy: config.evictionPolicy,
    writeTtlMs: config.writeTtlMs,
    readTtlMs: config.readTtlMs,
    indexSeed: [indexSeed[0] as number, indexSeed[1] as number],
    ...(hashAlgorithm === 'sha256_cbor'
      ? {
          rootHashSeed: hashSeed === null ? randomBytes(32) : new TextEncoder().encode(hashSeed),
          rootHashIsRandom: isRandomRoot,
        }
      : {}),
  });
  log.info(`chunk hashes: ${hashAlgorithm}`, {
    root: Buffer.from(core.hasher.rootHash).toString('hex'),
  });
  return core;
}

function buildStorage({ config, log, clock, bus }: Ground, core: Core, memory: L1Memory) {
  const { table, namespaces } = core;
  return new StorageManager({
    l1: new L1Manager({ table, namespaces, memory, clock, bus, log: log.child('storage') }),
    alignBytes: config.l1AlignBytes,
    evictionPolicy: config.evictionPolicy,
    watermarkRatio: config.evictionTriggerWatermark,
    evictionRatio: config.evictionRatio,
    writeTtlMs: config.writeTtlMs,
    readTtlMs: config.readTtlMs,
    namespaces,
    l2: { ...config.l2, hashSizeBytes: core.hasher.hashSizeBytes },
    clock,
    bus,
    log: log.child('storage'),
  });
}

interface L2 {
  readonly quotas: QuotaTable;
  readonly eviction: L2Eviction;
  readonly house: AdapterHouse;
  readonly control: AdapterControl;
}

/** What tenants may hold is also what IsolatedLRU leaves them in L1. */
function limitTenants({ namespaces }: Core, quotas: QuotaTable): void {
  const limit = () => namespaces.limitTenants((cacheSalt) => quotas.limitBytesOf(cacheSalt));
  limit();
  quotas.onChange(limit);
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

/** Adapters in the order of their flags. What has not been stored yet is, before they close. */
async function openL2(
  { config, log: rootLog, clock, bus }: Ground,
  storage: StorageManager,
  { shim, memory }: Pick<Base, 'shim' | 'memory'>,
  closers: Closers,
): Promise<L2> {
  const log = rootLog.child('l2');
  const quotas = await QuotaTable.open({
    filePath: config.l2.quotaFile,
    defaultLimitBytes: config.l2.quotaDefaultBytes,
  });
  const eviction = new L2Eviction({ quotas, clock, bus, log });
  const reader = await loadSpecReader((message) => log.warn(message));
  const house = new AdapterHouse({
    adapters: storage.l2.adapters,
    eviction,
    reader,
    alignBytes: config.l1AlignBytes,
    lockFile: (descriptor) => shim.lockFile(descriptor),
    clock,
    log,
  });
  closers.add(async () => {
    const leftMs = Math.max(L2_STOP_MS, closers.leftMsOf(config.shutdownTimeoutMs));
    const isFree = await storage.close(leftMs);
    await house.close(isFree);
    if (storage.l2.isIdle) return;
    log.error('an L2 adapter has not let go of L1 in time');
    memory.memory.keepMapped();
  });
  for (const spec of readL2Adapters(config.l2.adapters, reader)) {
    const { id, typeName } = await house.add(spec);
    log.info(`L2 adapter ${id}: ${typeName}`);
  }
  const control = new AdapterControl({ house, adapters: storage.l2.adapters, reader });
  return { quotas, eviction, house, control };
}

function buildBackend(
  ground: Ground,
  engine: Engine,
  counters: EventCounters | null,
  wire: ConstructorParameters<typeof EngineBackend>[0]['wire'] & Pick<Router, 'dialectCounts'>,
): EngineBackend {
  const { config, clock, bus } = ground;
  const startMs = clock.nowMs();
  const backend: EngineBackend = new EngineBackend({
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
      lost_log_line_count: ground.lostLineCount(),
      core_reserved_bytes: engine.core.reservedBytes,
      version: VERSION,
      instance_id: config.instanceId,
      uptime_seconds: (clock.nowMs() - startMs) / 1000,
    }),
    metricsText: () => prometheus.text(),
    config: () => describeConfig(config),
  });
  const prometheus = new PrometheusText({
    instanceId: config.instanceId,
    source: { snapshot: () => takeSnapshot(engine, wire.dialectCounts()) },
    counters,
  });
  return backend;
}

/** What operators may ask of the tiers and change in them. */
function tiersOf({ config, clock, bus }: Ground, { core, storage, l2 }: Engine) {
  const { control, eviction, quotas } = l2;
  const { table, namespaces, hasher } = core;
  const { hashSizeBytes } = hasher;
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
    l1Deletion: new L1Deletion({ table, namespaces, hashSizeBytes, clock, bus }),
    l2Eviction: eviction,
    adapters: control,
    quotas: new TableQuotas({ table: quotas, eviction, namespaces }),
    changes: config.isReconfigurable ? changes : null,
  };
}

/** What a scrape reads: the numbers of all rooms at one moment. */
function takeSnapshot(
  engine: Engine,
  { dialects, clients_undetermined: undetermined }: DialectCounts,
): MetricsSnapshot {
  const { storage, sessions, instances, dispatcher, engineDriven, memory } = engine;
  const { usedBytes, objectCount, stagingCount } = storage.l1.statistics();
  const requestCounts = [...dispatcher.counters].map(
    ([name, { requestCount }]) => [name, requestCount] as const,
  );
  return {
    l1UsedBytes: usedBytes,
    l1TotalBytes: storage.l1.totalBytes,
    objectCount: objectCount + stagingCount,
    stagingObjectCount: stagingCount,
    sessionCount: sessions.sessionCount,
    instanceCount: instances.instanceCount,
    isEngineDrivenShm: engineDriven !== null && memory.shmName !== null,
    quarantinedBytes: engineDriven?.quarantinedBytes ?? 0,
    prefetchJobCount: sessions.countOpenJobs(),
    kvEventLogDepth: engine.kvEvents.logDepth,
    inFlightRequestCount: dispatcher.inFlightCount,
    requestCounts: new Map(requestCounts),
    requestCountsByDialect: new Map(dialects.map(({ name, requests }) => [name, requests])),
    clientCounts: new Map([
      ...dialects.map(({ name, clients }) => [name, clients] as const),
      ['undetermined', undetermined],
    ]),
    failedRequestCounts: dispatcher.failuresByCode,
  };
}

function checkMemoryLimit(config: ServerConfig, log: Logger): void {
  const limitBytes = readMemoryLimitBytes();
  const neededBytes = config.l1SizeBytes + OVERHEAD_BYTES;
  if (limitBytes === null || neededBytes <= limitBytes) return;
  const message =
    `--l1-size-gb: L1 of ${formatBytes(config.l1SizeBytes)} and about ` +
    `${formatBytes(OVERHEAD_BYTES)} for the server exceed the memory limit of ` +
    `${formatBytes(limitBytes)}; lower L1 or raise the limit`;
  if (config.isMemoryStrict) throw new KvdError('ERR_CONFIG', message);
  log.warn(message);
}
