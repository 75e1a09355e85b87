/**
 * The part of the house that keeps bytes: core, L1 memory, L1 and the slower tiers.
 */
import { randomBytes } from 'node:crypto';
import type { ServerConfig } from '../config/config.ts';
import { loadSpecReader, readL2Adapters } from '../config/l2-adapters.ts';
import { Core } from '../core/core.ts';
import type { Shim } from '../device/shim.ts';
import { KvdError } from '../errors.ts';
import type { Logger } from '../observability/log.ts';
import { hashThresholdOf } from '../observability/metrics/key-sampling.ts';
import { L1Manager } from '../storage/l1-manager.ts';
import { type L1Memory, openL1Memory, type ShmOptions } from '../storage/l1-memory/l1-memory.ts';
import { OVERHEAD_BYTES, readMemoryLimitBytes } from '../storage/l1-memory/memory-limit.ts';
import { AdapterControl } from '../storage/l2/adapter-control.ts';
import { AdapterHouse } from '../storage/l2/adapter-house.ts';
import { L2Eviction } from '../storage/l2/l2-eviction.ts';
import { QuotaTable } from '../storage/l2/quota.ts';
import { StorageManager } from '../storage/storage-manager.ts';
import { formatBytes } from '../units.ts';
import type { Closers } from './closers.ts';
import type { Ground } from './ground.ts';

/** Tokens of one request: eight times the longest prompts in use. */
const TOKEN_COUNT_MAX = 1_048_576;
/** Bookkeeping of this many objects takes 1.4 GB when all are in use; unused rows cost nothing. */
const OBJECT_COUNT_MAX = 8 * 1024 * 1024;
const OBJECT_COUNT_MIN = 1024;
/** A transfer that is stuck to the end of a stop leaves finished stores that long to reach L2. */
const L2_STOP_MS = 2_000;

export function checkMemoryLimit(config: ServerConfig, log: Logger): void {
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

export function openMemory({ config, log }: Ground, shim: Shim): Promise<L1Memory> {
  return openL1Memory({
    shim,
    log: log.child('storage'),
    sizeBytes: config.l1SizeBytes,
    hugePages: config.usesHugePages ? 'explicit' : 'transparent',
    shm: sharedMemoryOf(config),
  });
}

/** Only engine-driven workers reach into L1; without them a segment would only be exposed. */
function sharedMemoryOf({ transferMode, shmName, shmMode }: ServerConfig): ShmOptions | null {
  if (transferMode === 'lmcache_driven' || shmName === '') return null;
  return { name: shmName, mode: shmMode };
}

export function loadCore(config: ServerConfig, log: Logger): Core {
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

export function buildStorage(
  { config, log, clock, bus, trace }: Ground,
  core: Core,
  memory: L1Memory,
) {
  const { table, namespaces } = core;
  const { hashSizeBytes } = core.hasher;
  const sampleThreshold = config.hasMetrics ? hashThresholdOf(config.metrics.sampleRate) : 0;
  return new StorageManager({
    l1: new L1Manager({
      ...{ table, namespaces, memory, clock, bus, hashSizeBytes, sampleThreshold },
      log: log.child('storage'),
    }),
    alignBytes: config.l1AlignBytes,
    evictionPolicy: config.evictionPolicy,
    watermarkRatio: config.evictionTriggerWatermark,
    evictionRatio: config.evictionRatio,
    writeTtlMs: config.writeTtlMs,
    readTtlMs: config.readTtlMs,
    namespaces,
    l2: { ...config.l2, hashSizeBytes },
    trace: trace ?? null,
    clock,
    bus,
    log: log.child('storage'),
  });
}

export interface L2 {
  readonly quotas: QuotaTable;
  readonly eviction: L2Eviction;
  readonly house: AdapterHouse;
  readonly control: AdapterControl;
}

/** What tenants may hold is also what IsolatedLRU leaves them in L1. */
export function limitTenants({ namespaces }: Core, quotas: QuotaTable): void {
  const limit = () => namespaces.limitTenants((cacheSalt) => quotas.limitBytesOf(cacheSalt));
  limit();
  quotas.onChange(limit);
}

/** Adapters in the order of their flags. What has not been stored yet is, before they close. */
export async function openL2(
  { config, log: rootLog, clock, bus }: Ground,
  storage: StorageManager,
  { shim, memory }: { readonly shim: Shim; readonly memory: L1Memory },
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
