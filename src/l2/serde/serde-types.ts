/** The value transformations that this build has, by the name in `"serde": {"type": …}`. */
import { KvdError } from '../../errors.ts';
import { type ConfigValues, readConfigKeys, unknownKeys } from '../config-keys.ts';
import { aesGcmType } from './aes-gcm.ts';
import { fp8Type } from './fp8.ts';
import type { SerdeType } from './serde.ts';
import { zstdType } from './zstd.ts';

export interface SerdeSpec {
  readonly type: SerdeType;
  readonly values: ConfigValues;
  /** Names the adapter in messages. */
  readonly where: string;
}

export const SERDE_TYPES: readonly SerdeType[] = [aesGcmType, fp8Type, zstdType];

/** What the peer has and we have not, and why. */
const MISSING_TYPES: Readonly<Record<string, string>> = {
  turboquant:
    'its kernels need a GPU and there are none here; fp8 or zstd make values smaller, too',
};

export interface SerdeReadOptions {
  readonly where: string;
  readonly env: Readonly<Record<string, string | undefined>>;
}

/** Throws `ERR_CONFIG`: values that only look transformed would be worse than none. */
export function readSerdeSpec(given: unknown, { where, env }: SerdeReadOptions): SerdeSpec {
  const own = given as Record<string, unknown>;
  const name = own['type'];
  const type = SERDE_TYPES.find(({ typeName }) => typeName === name);
  if (!type) {
    const known = SERDE_TYPES.map(({ typeName }) => typeName).join(', ');
    const reason = typeof name === 'string' ? MISSING_TYPES[name] : undefined;
    const shown = typeof name === 'string' ? `'${name}'` : JSON.stringify(name);
    const text = `Unknown serde type ${shown}. Registered: ${known}`;
    throw new KvdError('ERR_CONFIG', `${where}: ${text}${reason ? ` (${reason})` : ''}`);
  }
  const inner = `${where}: serde ${type.typeName}`;
  const unknown = unknownKeys([type.keys, { type: { kind: 'text', about: '' } }], own);
  if (unknown.length > 0) {
    // Not only a warning: a misspelt key must not store in clear, or with another key.
    const known = Object.keys(type.keys).join(', ');
    throw new KvdError('ERR_CONFIG', `${inner}: unknown key "${unknown[0]}"; known: ${known}`);
  }
  return { type, values: readConfigKeys(type.keys, own, { where: inner, env }), where: inner };
}
