/**
 * Keys of an adapter's JSON: one table per adapter, from which its values are read and checked,
 * its secrets are masked, and its documentation is generated.
 */
import { KvdError } from '../errors.ts';

export type ConfigValue =
  | string
  | number
  | boolean
  | null
  | readonly ConfigValue[]
  | { readonly [key: string]: ConfigValue };

/** Read and checked; a key that was not given has its default. */
export type ConfigValues = { readonly [key: string]: ConfigValue };

export interface ConfigKey {
  readonly kind: 'text' | 'integer' | 'number' | 'boolean' | 'list' | 'object';
  /** Given when the key is missing; absent = the key is required, and a text may not be empty. */
  readonly fallback?: ConfigValue;
  /** Environment variable that stands in for a missing key. */
  readonly env?: string;
  readonly min?: number;
  /** `min` itself is refused. */
  readonly isMinExclusive?: true;
  readonly max?: number;
  readonly choices?: readonly string[];
  /** Shown as `***` everywhere. */
  readonly isSecret?: true;
  readonly about: string;
}

export type ConfigKeys = { readonly [key: string]: ConfigKey };

/** `connection_timeout` of stores that are reached over the network. */
export const CONNECTION_TIMEOUT_KEY = {
  kind: 'number',
  fallback: 10,
  min: 0.001,
  max: 3600,
  about: 'seconds for making a connection',
} as const satisfies ConfigKey;

/** `max_capacity_gb` of stores that others fill as well. */
export const OWN_CAPACITY_KEY = {
  kind: 'number',
  fallback: 0,
  min: 0,
  about: 'GiB that this server may keep there; 0 = no bound of its own',
} as const satisfies ConfigKey;

export interface ReadOptions {
  /** Names the adapter in messages: `--l2-adapter #1 ('fs')`. */
  readonly where: string;
  readonly env: Readonly<Record<string, string | undefined>>;
}

/** Throws `ERR_CONFIG` with what was expected, what came, and where. */
export function readConfigKeys(
  keys: ConfigKeys,
  given: Readonly<Record<string, unknown>>,
  options: ReadOptions,
): ConfigValues {
  const values: Record<string, ConfigValue> = {};
  for (const [name, key] of Object.entries(keys)) {
    values[name] = readKey(name, key, given[name] ?? fromEnv(key, options), options);
  }
  return values;
}

const MASK = '***';
/** Inside of objects nobody has said what is secret. */
const SECRET_NAME = /pass|secret|token|credential|private|(?:access|api|master)_?key$/i;

export function maskSecrets(keys: ConfigKeys, values: ConfigValues): ConfigValues {
  return Object.fromEntries(
    Object.entries(values).map(([name, value]) => {
      const isHidden = keys[name]?.isSecret === true && value !== null && value !== '';
      return [name, isHidden ? MASK : maskByName(value)];
    }),
  );
}

function maskByName(value: ConfigValue): ConfigValue {
  if (Array.isArray(value)) return value.map(maskByName);
  if (!isObject(value)) return value;
  return Object.fromEntries(
    Object.entries(value as ConfigValues).map(([name, inner]) => {
      const isHidden = SECRET_NAME.test(name) && typeof inner === 'string' && inner !== '';
      return [name, isHidden ? MASK : maskByName(inner)];
    }),
  );
}

/** Names in `given` that none of the tables has. */
export function unknownKeys(
  tables: readonly ConfigKeys[],
  given: Readonly<Record<string, unknown>>,
): string[] {
  return Object.keys(given).filter((name) => !tables.some((keys) => Object.hasOwn(keys, name)));
}

function fromEnv(key: ConfigKey, { env }: ReadOptions): unknown {
  const text = key.env === undefined ? undefined : env[key.env];
  if (text === undefined || text === '') return undefined;
  return key.kind === 'integer' || key.kind === 'number' ? Number(text) : text;
}

function readKey(name: string, key: ConfigKey, value: unknown, options: ReadOptions): ConfigValue {
  if (value === undefined) {
    if (key.fallback !== undefined) return key.fallback;
    fail(`${options.where}: missing "${name}" (${key.about})`);
  }
  const problem = problemOf(key, value);
  if (problem === null) return value as ConfigValue;
  return fail(`${options.where}: "${name}" ${problem}, got ${JSON.stringify(value)}`);
}

function fail(message: string): never {
  throw new KvdError('ERR_CONFIG', message);
}

function problemOf(key: ConfigKey, value: unknown): string | null {
  switch (key.kind) {
    case 'text':
      if (typeof value !== 'string') return 'must be a string';
      if (value === '' && key.fallback === undefined) return 'must be a non-empty string';
      return key.choices && !key.choices.includes(value)
        ? `must be one of ${key.choices.join(', ')}`
        : null;
    case 'boolean':
      return typeof value === 'boolean' ? null : 'must be true or false';
    case 'integer':
    case 'number':
      return numberProblem(key, value);
    case 'list':
      return Array.isArray(value) ? null : 'must be a list';
    case 'object':
      return isObject(value) ? null : 'must be an object';
  }
}

function numberProblem(
  { kind, min, max, isMinExclusive }: ConfigKey,
  value: unknown,
): string | null {
  const isKind =
    typeof value === 'number' &&
    (kind === 'integer' ? Number.isSafeInteger(value) : Number.isFinite(value));
  const isInside =
    isKind &&
    (value as number) >= (min ?? -Infinity) &&
    (value as number) <= (max ?? Infinity) &&
    !(isMinExclusive && value === min);
  if (isInside) return null;
  const bounds = [
    min === undefined ? '' : ` ${isMinExclusive ? 'above' : 'of at least'} ${min}`,
    max === undefined ? '' : ` of at most ${max}`,
  ];
  const noun = kind === 'integer' ? 'an integer' : 'a number';
  return `must be ${noun}${bounds.filter(Boolean).join(' and')}`;
}

export function isObject(value: unknown): value is Record<string, unknown> {
  return typeof value === 'object' && value !== null && !Array.isArray(value);
}
