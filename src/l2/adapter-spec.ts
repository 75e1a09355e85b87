/**
 * One `--l2-adapter` JSON, read and checked (spec l2-adapters 1.4): the keys of its type, the keys
 * that every adapter has, and those of its serde.
 *
 * Charts pass keys of other releases: unknown ones are warned about, with the nearest known name,
 * and the start goes on. Everything else that is wrong stops it, naming key and mend.
 */
import { KvdError } from '../errors.ts';
import type { L2BackendType } from './backend.ts';
import {
  type ConfigKeys,
  type ConfigValues,
  isObject,
  maskSecrets,
  readConfigKeys,
  unknownKeys,
} from './config-keys.ts';
import type { BackendTypes } from './registry.ts';
import { readSerdeSpec, type SerdeSpec } from './serde/serde-types.ts';

export const EVICTION_POLICIES = ['LRU', 'IsolatedLRU', 'ARC', 'S3FIFO', 'noop'] as const;

const TYPE_KEY = { type: { kind: 'text', about: 'Kind of store.' } } as const satisfies ConfigKeys;

/** Keys that every adapter has. */
export const ADAPTER_KEYS = {
  eviction: {
    kind: 'object',
    fallback: null,
    about: 'What leaves the store when it fills up; see below. Without it nothing does.',
  },
  persist_enabled: {
    kind: 'boolean',
    fallback: true,
    about: 'Keep what is stored when the server stops.',
  },
  serde: {
    kind: 'object',
    fallback: null,
    about: 'Transforms values on their way: `{"type": …}`, see below.',
  },
  affinity_tag: {
    kind: 'text',
    fallback: '_default',
    about: 'Which L1 the adapter serves; there is one, `_default`.',
  },
  shared: {
    kind: 'boolean',
    fallback: false,
    about: 'Several servers use the store at the same time.',
  },
  task_timeout_s: {
    kind: 'number',
    fallback: 30,
    min: 0.001,
    max: 86_400,
    about: 'Seconds after which a task has failed, whatever the store does.',
  },
  max_in_flight_bytes: {
    kind: 'integer',
    fallback: 268_435_456,
    min: 1,
    about: 'Bytes that stores and loads of the adapter may move at the same time.',
  },
  checksum: {
    kind: 'text',
    fallback: 'none',
    choices: ['none', 'crc32'],
    about: 'Checks what comes back against what this server has stored since its start.',
  },
  scan_on_start: {
    kind: 'boolean',
    fallback: null,
    about: 'Count at start what the store holds; default: with a capacity or an eviction policy.',
  },
} as const satisfies ConfigKeys;

export const EVICTION_KEYS = {
  eviction_policy: {
    kind: 'text',
    choices: EVICTION_POLICIES,
    about: 'The order in which objects leave.',
  },
  trigger_watermark: {
    kind: 'number',
    fallback: 0.8,
    min: 0,
    isMinExclusive: true,
    max: 1,
    about: 'Part of the capacity (IsolatedLRU: of the quota) from which on objects leave.',
  },
  eviction_ratio: {
    kind: 'number',
    fallback: 0.2,
    min: 0,
    isMinExclusive: true,
    max: 1,
    about: 'Part of the objects that leave at a time.',
  },
} as const satisfies ConfigKeys;

export interface EvictionSettings {
  readonly policy: (typeof EVICTION_POLICIES)[number];
  readonly triggerWatermark: number;
  readonly evictionRatio: number;
}

export interface AdapterSettings {
  readonly eviction: EvictionSettings | null;
  readonly isPersistent: boolean;
  readonly affinityTag: string;
  readonly isShared: boolean;
  readonly taskTimeoutMs: number;
  readonly inFlightMaxBytes: number;
  readonly hasChecksum: boolean;
  readonly scansOnStart: boolean;
}

export interface AdapterSpec {
  readonly type: L2BackendType;
  /** Of the keys that are the type's own, secrets in clear. */
  readonly values: ConfigValues;
  readonly settings: AdapterSettings;
  readonly serde: SerdeSpec | null;
  readonly capacityBytes: number;
  /** As given and completed by defaults, secrets masked: for status and `GET /config`. */
  readonly shown: ConfigValues;
}

export interface SpecReader {
  readonly types: BackendTypes;
  readonly env: Readonly<Record<string, string | undefined>>;
  /** `; did you mean x?`, or nothing. */
  readonly suggestName: (typed: string, names: readonly string[]) => string;
  readonly warn: (message: string) => void;
}

/** `where`: `--l2-adapter #1`. Throws `ERR_CONFIG`. */
export function readAdapterSpec(given: unknown, where: string, reader: SpecReader): AdapterSpec {
  const type = readType(given, where, reader);
  const own = given as Record<string, unknown>;
  const options = { where: `${where} ('${type.typeName}')`, env: reader.env };
  warnOfUnknown([TYPE_KEY, type.keys, ADAPTER_KEYS], own, options.where, reader);
  const values = readConfigKeys(type.keys, own, options);
  // A type may have a key of the same name with a meaning of its own.
  const rest = Object.fromEntries(
    Object.entries(own).filter(([name]) => !Object.hasOwn(type.keys, name)),
  );
  const common = readConfigKeys(ADAPTER_KEYS, rest, options);
  warnOfIdle(common, options.where, reader);
  const eviction = readEviction(common['eviction'], options.where, reader);
  const serde = common['serde'] === null ? null : readSerdeSpec(common['serde'], options);
  const capacityBytes = type.capacityBytes(values);
  const shown = maskSecrets({ ...type.keys, ...ADAPTER_KEYS }, { ...common, ...values });
  return {
    type,
    values,
    serde,
    capacityBytes,
    settings: {
      eviction,
      isPersistent: common['persist_enabled'] as boolean,
      affinityTag: common['affinity_tag'] as string,
      isShared: common['shared'] as boolean,
      taskTimeoutMs: (common['task_timeout_s'] as number) * 1000,
      inFlightMaxBytes: common['max_in_flight_bytes'] as number,
      hasChecksum: common['checksum'] !== 'none',
      scansOnStart:
        (common['scan_on_start'] as boolean | null) ?? (capacityBytes > 0 || eviction !== null),
    },
    shown: { type: type.typeName, ...shown },
  };
}

/** What the peer may act upon, and kvd does not. */
function warnOfIdle(common: ConfigValues, where: string, { warn }: SpecReader): void {
  if (common['persist_enabled'] === false) {
    warn(`${where}: "persist_enabled": false does nothing: what is stored stays there`);
  }
  const tag = common['affinity_tag'];
  if (tag !== ADAPTER_KEYS.affinity_tag.fallback) {
    const shown = JSON.stringify(tag);
    warn(`${where}: "affinity_tag": ${shown} does nothing: there is one L1, for all adapters`);
  }
}

function readType(given: unknown, where: string, { types, suggestName }: SpecReader) {
  if (!isObject(given)) {
    throw new KvdError('ERR_CONFIG', `${where}: expected a JSON object, got ${kindOf(given)}`);
  }
  const name = given['type'];
  if (name === undefined) throw new KvdError('ERR_CONFIG', `${where}: missing 'type' field`);
  const type = typeof name === 'string' ? types.get(name) : undefined;
  if (type) return type;
  const known = [...types.keys()];
  const hint = typeof name === 'string' ? suggestName(name, known) : '';
  const shown = typeof name === 'string' ? `'${name}'` : JSON.stringify(name);
  throw new KvdError(
    'ERR_CONFIG',
    `${where}: unknown adapter type ${shown}. Known: ${known.join(', ')}${hint}`,
  );
}

function readEviction(given: unknown, where: string, reader: SpecReader): EvictionSettings | null {
  if (given === null) return null;
  const own = given as Record<string, unknown>;
  const inner = `${where}: eviction`;
  warnOfUnknown([EVICTION_KEYS], own, inner, reader);
  const values = readConfigKeys(EVICTION_KEYS, own, { where: inner, env: {} });
  return {
    policy: values['eviction_policy'] as EvictionSettings['policy'],
    triggerWatermark: values['trigger_watermark'] as number,
    evictionRatio: values['eviction_ratio'] as number,
  };
}

function warnOfUnknown(
  tables: readonly ConfigKeys[],
  given: Readonly<Record<string, unknown>>,
  where: string,
  { suggestName, warn }: SpecReader,
): void {
  const known = tables.flatMap((keys) => Object.keys(keys));
  for (const name of unknownKeys(tables, given)) {
    warn(`${where}: unknown key "${name}" is ignored${suggestName(name, known)}`);
  }
}

/** As Python would name it: that is what the users of the peer have seen. */
function kindOf(value: unknown): string {
  if (value === null) return 'null';
  return Array.isArray(value) ? 'list' : typeof value;
}
