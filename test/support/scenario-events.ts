/**
 * The events of test/vectors/metrics/subscriber_scenarios.json, as the reference publishes them,
 * in the form in which kvd does: names in camelCase, lists of keys as counts and ranges, pairs of
 * START and END by an id.
 */
import fs from 'node:fs';
import path from 'node:path';
import type { Subscriber } from '../../src/observability/event-bus.ts';
import type {
  ChunkRange,
  EventCatalogue,
  EventName,
  KeyReport,
} from '../../src/observability/events.ts';

interface ScenarioKey {
  readonly chunk_hash: string;
  readonly model_name: string;
  readonly kv_rank: number;
  readonly object_group_id: number;
  readonly cache_salt: string;
}

type Metadata = Readonly<Record<string, unknown>>;

export interface ScenarioEvent {
  readonly type: string;
  readonly timestamp: number;
  readonly session_id: string;
  readonly metadata: Metadata;
}

export interface Scenario {
  readonly name: string;
  readonly sample_rate: number;
  readonly subscribers: readonly string[];
  readonly events: readonly ScenarioEvent[];
  readonly expected_samples: readonly string[];
  readonly expected_subscriber_exceptions?: Readonly<Record<string, number>>;
}

export interface ConvertedEvent {
  readonly name: EventName;
  readonly event: EventCatalogue[EventName];
  readonly atSeconds: number;
}

const FOLDER = path.join(import.meta.dirname, '../vectors/metrics');

export function readMetricVector<T>(file: string): T {
  return JSON.parse(fs.readFileSync(path.join(FOLDER, file), 'utf8')) as T;
}

export const readScenarios = (): readonly Scenario[] =>
  readMetricVector<readonly Scenario[]>('subscriber_scenarios.json');

export class ScenarioConverter {
  /** The reference pairs by session and device. */
  readonly #transferIds = new Map<string, number>();

  convert({ type, timestamp, session_id: sessionId, metadata }: ScenarioEvent): ConvertedEvent {
    const event = { sessionId, ...camelCased(metadata), ...this.#special(type, metadata) };
    if (/^mp\.(store|retrieve)\./.test(type)) {
      Object.assign(event, { transferId: this.#transferId(sessionId, metadata['device']) });
    }
    return {
      name: type as EventName,
      event: event as unknown as EventCatalogue[EventName],
      atSeconds: timestamp,
    };
  }

  /** What has another form than in the reference, or is not in its events. */
  #special(type: string, metadata: Metadata): object {
    const keys = (metadata['keys'] ?? []) as readonly ScenarioKey[];
    if (/^l1\.(read|write).*(finished|reserved)$/.test(type)) return keyReport(keys);
    if (type === 'l1.keys.evicted') {
      return { ...keyReport(keys), cause: 'eviction', bytes: 0, isEverything: false };
    }
    if (/\.failed$/.test(type)) return { countByModel: countBy(keys, 'model_name') };
    if (/^sm\./.test(type)) {
      const succeeded = (metadata['succeeded_keys'] ?? []) as readonly ScenarioKey[];
      return { succeeded: chunkRanges(succeeded) };
    }
    if (type === 'l2.load_task.completed') return { loadedCount: 1, failedCount: 0 };
    if (/^l2\./.test(type)) {
      return { countBySalt: new Map(Object.entries(metadata['key_count_per_salt'] ?? {})) };
    }
    if (type === 'mp.vllm.block_allocation') return allocation(metadata);
    if (/^mp\.(store|retrieve)\.(start|end)$/.test(type)) {
      return { engineId: String(metadata['engine_id'] ?? ''), error: null };
    }
    if (type === 'mp.lookup_prefetch.end') {
      // Labels that are missing are empty in the reference; numbers that are missing raise.
      const { model_name: modelName = '', cache_salt: cacheSalt = '' } = metadata;
      return { modelName, cacheSalt, error: null, readySeconds: null };
    }
    return {};
  }

  #transferId(sessionId: string, device: unknown): number {
    const key = `${sessionId} ${device}`;
    const id = this.#transferIds.get(key) ?? this.#transferIds.size + 1;
    this.#transferIds.set(key, id);
    return id;
  }
}

/** Gives an event to a subscriber as the bus would: counters first. */
export function deliver(subscriber: Subscriber, { name, event, atSeconds }: ConvertedEvent): void {
  for (const subscriptions of [subscriber.counts, subscriber.subscriptions]) {
    const listener = subscriptions?.[name] as
      | ((event: unknown, atSeconds: number) => void)
      | undefined;
    listener?.(event, atSeconds);
  }
}

function camelCased(metadata: Metadata): Record<string, unknown> {
  return Object.fromEntries(
    Object.entries(metadata).map(([key, value]) => [
      key.replaceAll(/_([a-z0-9])/g, (_, letter: string) => letter.toUpperCase()),
      value,
    ]),
  );
}

function countBy(keys: readonly ScenarioKey[], field: 'cache_salt' | 'model_name') {
  const counts = new Map<string, number>();
  for (const key of keys) counts.set(key[field], (counts.get(key[field]) ?? 0) + 1);
  return counts;
}

function keyReport(keys: readonly ScenarioKey[]): KeyReport {
  return {
    keyCount: keys.length,
    countBySalt: countBy(keys, 'cache_salt'),
    sampledKeys: keys.map((key) => ({
      chunkHash: Buffer.from(key.chunk_hash, 'hex').toString('latin1'),
      modelName: key.model_name,
      kvRank: key.kv_rank,
      objectGroupId: key.object_group_id,
      cacheSalt: key.cache_salt,
    })),
  };
}

/** A range for each chunk; the ranks of a chunk are one. */
function chunkRanges(keys: readonly ScenarioKey[]): ChunkRange[] {
  const unique = new Map(keys.map((key) => [`${key.cache_salt} ${key.chunk_hash}`, key]));
  return [...unique.values()].map((key) => {
    const bytes = Buffer.from(key.chunk_hash, 'hex');
    return {
      modelName: key.model_name,
      cacheSalt: key.cache_salt,
      hashes: { bytes, count: 1, hashSizeBytes: bytes.length },
      firstChunk: 0,
      chunkCount: 1,
    };
  });
}

function allocation(metadata: Metadata) {
  const records = metadata['records'] as readonly {
    readonly req_id: string;
    readonly new_block_ids: readonly number[];
    readonly new_token_ids: readonly number[];
  }[];
  return {
    instanceId: String(metadata['instance_id']),
    records: records.map((record) => ({
      requestId: record.req_id,
      newBlockIds: record.new_block_ids,
      newTokenIds: record.new_token_ids,
    })),
  };
}
