/** What the server is built from: every setting with its unit in its name. */
import { randomUUID } from 'node:crypto';
import { GIB } from '../units.ts';
import type { JsonObject } from './flag-spec.ts';
import type { Settings } from './settings.ts';

export type HashAlgorithm = 'blake3' | 'sha256_cbor' | 'builtin';
export type EvictionPolicyName = 'LRU' | 'IsolatedLRU' | 'ARC' | 'S3FIFO' | 'noop';
export type TransferMode = 'auto' | 'lmcache_driven' | 'engine_driven';
export type LogLevelName = 'DEBUG' | 'INFO' | 'WARNING' | 'ERROR' | 'CRITICAL';

export interface ServerConfig {
  readonly instanceId: string;

  /** ZMQ and gRPC addresses: the one of --host and --port first. */
  readonly endpoints: readonly string[];
  readonly wireDialect: 'auto' | 'A' | 'B' | 'C';
  readonly transferMode: TransferMode;
  readonly isStrictRetrieve: boolean;
  /** Layers of different windows are objects of their own. */
  readonly hasSeparateObjects: boolean;
  /** What newer engines write for "no block". */
  readonly nullBlockId: number;
  readonly reapTimeoutMs: number;
  readonly registrationGraceMs: number;
  readonly sessionTtlMs: number;
  readonly shutdownTimeoutMs: number;
  /** null = choose by the number of processors. */
  readonly copyThreadCount: number | null;

  readonly chunkSizeTokens: number;
  readonly hashAlgorithm: HashAlgorithm;
  /** PYTHONHASHSEED as text; null = not set (a random root). */
  readonly hashSeed: string | null;
  /** OTEL_RESOURCE_ATTRIBUTES or OTEL_SERVICE_NAME is set. */
  readonly hasResourceVariables: boolean;

  readonly l1SizeBytes: number;
  readonly l1AlignBytes: number;
  readonly isL1Lazy: boolean;
  /** Taken right after the start when lazy; at most `l1SizeBytes`. */
  readonly l1InitSizeBytes: number;
  readonly usesHugePages: boolean;
  /** null = the default name with the pid; '' = private memory. */
  readonly shmName: string | null;
  readonly shmMode: number;
  readonly isMemoryStrict: boolean;
  readonly writeTtlMs: number;
  readonly readTtlMs: number;

  readonly evictionPolicy: EvictionPolicyName;
  readonly evictionTriggerWatermark: number;
  readonly evictionRatio: number;

  readonly httpHost: string;
  readonly httpPort: number;
  /** null = open. */
  readonly httpToken: string | null;
  /** Adapters and limits may be changed over HTTP. */
  readonly isReconfigurable: boolean;

  readonly logLevel: LogLevelName;
  readonly logFormat: 'text' | 'json';
  /** False: no log lines about single requests (`Stored … tokens`). */
  readonly hasRequestLogs: boolean;
  readonly hasMetrics: boolean;
  /** The second listener for /metrics, when its flag is given. */
  readonly prometheus: { readonly host: string; readonly port: number } | null;
  /** Levels of single rooms, `ROOM=LEVEL,…`. */
  readonly roomLogLevels: string;
  /** Events that may wait; 0 = none. */
  readonly eventQueueSize: number;
  readonly metrics: {
    /** Part of the chunks whose life is measured, in (0, 1]. */
    readonly sampleRate: number;
    readonly saltCountMax: number;
    readonly hasLegacyBuckets: boolean;
    readonly hasAliases: boolean;
    readonly hasInstanceLabel: boolean;
  };
  /** Null: nothing is pushed. */
  readonly otlp: {
    readonly endpoint: string;
    readonly protocol: 'grpc' | 'http/protobuf';
    readonly hasSpans: boolean;
    readonly hasRequestTraceIds: boolean;
  } | null;
  /** Null: storage calls are not recorded. `path` null: a new file among the temporary ones. */
  readonly storageTrace: { readonly path: string | null; readonly sizeMaxBytes: number } | null;
  /** Null: no periodic summary in the log. */
  readonly summaryIntervalMs: number | null;

  readonly l2: {
    /** As given; read when the kinds of adapters are known (l2-adapters.ts). */
    readonly adapters: readonly JsonObject[];
    readonly storePolicy: 'default' | 'skip_l1';
    readonly prefetchPolicy: 'default' | 'retain';
    readonly prefetchMaxInFlight: number;
    readonly lookupTimeoutMs: number;
    readonly loadTimeoutMs: number;
    /** '' = none. */
    readonly cacheNamespace: string;
    /** Null: quotas end with the process. */
    readonly quotaFile: string | null;
    /** For tenants without a quota; null = no limit. */
    readonly quotaDefaultBytes: number | null;
  };

  /** null = looked-up chunk hashes are logged nowhere. */
  readonly lookupHashLog: {
    readonly folder: string;
    readonly rotationIntervalMs: number;
    readonly rotationSizeBytes: number;
    readonly fileCountMax: number;
  } | null;

  /** Records; 0 = workers cannot subscribe to KV events. */
  readonly kvEventLogSize: number;
  /** Where KV events are published for routers; null = nowhere. */
  readonly kvEventPublisher: {
    readonly endpoint: string;
    readonly replayEndpoint: string | null;
    readonly topic: string;
  } | null;

  /** All flags with their source, for `GET /config` and `--check`. */
  readonly settings: Settings;
}

/** `::1` becomes `[::1]`; names, IPv4 and `*` stay as they are. */
function endpointOf(scheme: 'tcp' | 'grpc', host: string, port: number): string {
  if (host.includes('://')) return host;
  const isBareIpv6 = host.includes(':') && !host.startsWith('[');
  return `${scheme}://${isBareIpv6 ? `[${host}]` : host}:${port}`;
}

function buildEndpoints(settings: Settings): string[] {
  const scheme = settings.text('--transport') === 'grpc' ? 'grpc' : 'tcp';
  const first = endpointOf(scheme, settings.text('--host'), settings.number('--port'));
  return [...new Set([first, ...settings.texts('--endpoint')])];
}

function buildCopyThreadCount(settings: Settings): number | null {
  const given = settings.numberOrNull('--max-gpu-workers');
  if (given !== null) return given;
  return settings.isGiven('--max-workers') ? settings.number('--max-workers') : null;
}

function buildL1(settings: Settings) {
  const l1SizeBytes = Math.trunc(settings.number('--l1-size-gb') * GIB);
  const initSizeBytes = Math.trunc(settings.number('--l1-init-size-gb') * GIB);
  return {
    l1SizeBytes,
    l1AlignBytes: settings.number('--l1-align-bytes'),
    isL1Lazy: settings.isOn('--l1-use-lazy'),
    l1InitSizeBytes: Math.min(initSizeBytes, l1SizeBytes),
    usesHugePages: settings.isOn('--l1-use-hugepages'),
    shmName: settings.textOrNull('--shm-name'),
    shmMode: settings.number('--shm-mode'),
    isMemoryStrict: settings.isOn('--memory-strict'),
    writeTtlMs: settings.number('--l1-write-ttl-seconds') * 1000,
    readTtlMs: settings.number('--l1-read-ttl-seconds') * 1000,
  };
}

function buildL2(settings: Settings): ServerConfig['l2'] {
  const quotaDefaultGb = settings.numberOrNull('--quota-default-gb');
  return {
    adapters: settings.objects('--l2-adapter'),
    storePolicy: settings.text('--l2-store-policy') as 'default' | 'skip_l1',
    prefetchPolicy: settings.text('--l2-prefetch-policy') as 'default' | 'retain',
    prefetchMaxInFlight: settings.number('--l2-prefetch-max-in-flight'),
    lookupTimeoutMs: settings.number('--l2-lookup-timeout-seconds') * 1000,
    loadTimeoutMs: settings.number('--l2-load-timeout-seconds') * 1000,
    cacheNamespace: settings.text('--cache-namespace'),
    quotaFile: settings.text('--quota-file') || null,
    quotaDefaultBytes: quotaDefaultGb === null ? null : Math.trunc(quotaDefaultGb * GIB),
  };
}

function buildObservability(settings: Settings) {
  const isObserved = !settings.isOn('--disable-observability');
  const host = settings.textOrNull('--prometheus-host') ?? settings.text('--http-host');
  const port = settings.number('--prometheus-port');
  return {
    logLevel: settings.text('--log-level') as LogLevelName,
    logFormat: settings.text('--log-format') as 'text' | 'json',
    hasRequestLogs: isObserved && !settings.isOn('--disable-logging'),
    hasMetrics: isObserved && !settings.isOn('--disable-metrics'),
    roomLogLevels: settings.text('--log-levels'),
    prometheus: settings.isGiven('--prometheus-port') ? { host, port } : null,
    eventQueueSize: settings.number('--event-bus-queue-size'),
    metrics: {
      sampleRate: settings.number('--metrics-sample-rate'),
      saltCountMax: settings.number('--metrics-max-salts'),
      hasLegacyBuckets: settings.text('--metrics-buckets') === 'legacy',
      hasAliases: settings.isOn('--metrics-aliases'),
      hasInstanceLabel: settings.isOn('--metrics-instance-label'),
    },
    otlp: isObserved ? buildOtlp(settings) : null,
    storageTrace: buildStorageTrace(settings),
    summaryIntervalMs: settings.isOn('--enable-extra-logging')
      ? settings.number('--extra-logging-interval') * 1000
      : null,
    lookupHashLog: isObserved ? buildLookupHashLog(settings) : null,
  };
}

function buildOtlp(settings: Settings): ServerConfig['otlp'] {
  const endpoint = settings.textOrNull('--otlp-endpoint') || null;
  if (endpoint === null) return null;
  return {
    endpoint,
    protocol: (settings.textOrNull('--otlp-protocol') ?? 'grpc') as 'grpc' | 'http/protobuf',
    hasSpans: settings.isOn('--enable-tracing'),
    hasRequestTraceIds: settings.isOn('--trace-ids-from-requests'),
  };
}

function buildStorageTrace(settings: Settings): ServerConfig['storageTrace'] {
  if (settings.textOrNull('--trace-level') !== 'storage') return null;
  const path = settings.textOrNull('--trace-output') || null;
  return { path, sizeMaxBytes: settings.number('--trace-max-size-bytes') };
}

function buildLookupHashLog(settings: Settings): ServerConfig['lookupHashLog'] {
  const folder = settings.text('--lookup-hash-log-dir');
  if (folder === '') return null;
  return {
    folder,
    rotationIntervalMs: settings.number('--lookup-hash-log-rotation-interval') * 1000,
    rotationSizeBytes: settings.number('--lookup-hash-log-rotation-max-size'),
    fileCountMax: settings.number('--lookup-hash-log-max-files'),
  };
}

function buildKvEvents(settings: Settings) {
  const endpoint = settings.textOrNull('--kv-events-endpoint') || null;
  const replayEndpoint = settings.textOrNull('--kv-events-replay-endpoint') || null;
  const topic = settings.text('--kv-events-topic');
  return {
    kvEventLogSize: settings.number('--kv-event-log-size'),
    kvEventPublisher: endpoint === null ? null : { endpoint, replayEndpoint, topic },
  };
}

/** `settings` have passed all checks. */
export function buildServerConfig(
  settings: Settings,
  found: Pick<ServerConfig, 'httpToken' | 'hashSeed' | 'hasResourceVariables'>,
): ServerConfig {
  return {
    instanceId: settings.textOrNull('--instance-id') || randomUUID(),
    endpoints: buildEndpoints(settings),
    wireDialect: settings.text('--wire-dialect') as ServerConfig['wireDialect'],
    transferMode: settings.text('--supported-transfer-mode') as TransferMode,
    isStrictRetrieve: settings.isOn('--strict-retrieve'),
    hasSeparateObjects: settings.isOn('--separate-object-groups'),
    nullBlockId: settings.number('--null-block-id'),
    reapTimeoutMs: settings.number('--worker-reap-timeout-seconds') * 1000,
    registrationGraceMs: settings.number('--worker-registration-grace-seconds') * 1000,
    sessionTtlMs: settings.number('--session-ttl-seconds') * 1000,
    shutdownTimeoutMs: settings.number('--shutdown-timeout') * 1000,
    copyThreadCount: buildCopyThreadCount(settings),
    chunkSizeTokens: settings.number('--chunk-size'),
    hashAlgorithm: settings.text('--hash-algorithm') as HashAlgorithm,
    ...buildL1(settings),
    evictionPolicy: settings.text('--eviction-policy') as EvictionPolicyName,
    evictionTriggerWatermark: settings.number('--eviction-trigger-watermark'),
    evictionRatio: settings.number('--eviction-ratio'),
    l2: buildL2(settings),
    httpHost: settings.text('--http-host'),
    httpPort: settings.number('--http-port'),
    ...found,
    isReconfigurable: settings.isOn('--enable-reconfigure-api'),
    ...buildObservability(settings),
    ...buildKvEvents(settings),
    settings,
  };
}
