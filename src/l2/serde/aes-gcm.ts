/**
 * `aesgcm`: values are encrypted and cannot be changed unnoticed.
 *
 *   offset  0        1           13                       n+13
 *           version  iv[12]      ciphertext[n]            tag[16]
 *
 *   version 1   as the peer writes it; nothing binds a value to its key, so whoever can write to
 *               the store can exchange the values of one salt
 *   version 2   ours: the wire key of the object is authenticated, too; the peer cannot read it
 *
 * Which one is written is `frame_version`; both are read. Key = HKDF-SHA256(master key, no salt,
 * `lmcache-l2-aesgcm-v1` + cache salt): tenants have keys of their own. IVs are random; with 96
 * bits, 2^32 values per tenant stay far below the bound at which one could repeat.
 *
 * The cipher runs on the event loop, in slices: WebCrypto would use other threads, but copies the
 * whole value on this one before and after, which holds it for far longer (over 100 ms for 32 MiB,
 * seen). What was decrypted lies in L1 before its tag is checked, as the contract allows.
 * Vectors: test/vectors/l2/serde/aesgcm.json.
 */
import { createCipheriv, createDecipheriv, hkdfSync, randomFillSync } from 'node:crypto';
import { readFile } from 'node:fs/promises';
import { KvdError } from '../../errors.ts';
import type { L2Object } from '../backend.ts';
import { encodeWireKey } from '../key-text.ts';
import { type Serde, type SerdeType, WORKER_KEYS } from './serde.ts';
import { inSlices } from './slices.ts';

const IV_BYTES = 12;
const TAG_BYTES = 16;
const HEAD_BYTES = 1 + IV_BYTES;
const OVERHEAD_BYTES = HEAD_BYTES + TAG_BYTES;
/** Bytes between two turns of the event loop: about 0.1 ms. */
const SLICE_BYTES = 256 * 1024;
const INFO_PREFIX = 'lmcache-l2-aesgcm-v1';
/** Derived keys that are kept; more tenants than that derive theirs again. */
const KEY_COUNT_MAX = 1024;

type FrameVersion = 1 | 2;

interface AesGcmOptions {
  readonly masterKey: Uint8Array;
  readonly aesBits: 128 | 256;
  readonly frameVersion: FrameVersion;
  readonly workerCount: number;
}

class AesGcmSerde implements Serde {
  readonly typeName = 'aesgcm';
  readonly needsLayout = false;
  readonly workerCount: number;
  readonly #options: AesGcmOptions;
  readonly #keys = new Map<string, Uint8Array>();

  constructor(options: AesGcmOptions) {
    this.#options = options;
    this.workerCount = options.workerCount;
  }

  refusalOf(): null {
    return null;
  }

  serializedSize({ bytes }: L2Object): number {
    return bytes.length + OVERHEAD_BYTES;
  }

  acceptsSize(storedBytes: number, sizeBytes: number): boolean {
    return storedBytes === sizeBytes + OVERHEAD_BYTES;
  }

  async serialize({ key, bytes }: L2Object): Promise<Uint8Array> {
    const stored = Buffer.allocUnsafeSlow(bytes.length + OVERHEAD_BYTES);
    const { aesBits, frameVersion } = this.#options;
    stored[0] = frameVersion;
    randomFillSync(stored, 1, IV_BYTES);
    const iv = stored.subarray(1, HEAD_BYTES);
    const cipher = createCipheriv(`aes-${aesBits}-gcm`, this.#keyOf(key.cacheSalt), iv);
    if (frameVersion === 2) cipher.setAAD(Buffer.from(encodeWireKey(key)));
    await inSlices({ count: bytes.length, sliceCount: SLICE_BYTES }, (from, to) =>
      stored.set(cipher.update(bytes.subarray(from, to)), HEAD_BYTES + from),
    );
    cipher.final();
    stored.set(cipher.getAuthTag(), HEAD_BYTES + bytes.length);
    return stored;
  }

  async deserialize(object: L2Object, stored: Uint8Array, signal: AbortSignal): Promise<void> {
    const { key, bytes } = object;
    if (stored.length !== this.serializedSize(object)) throw corrupt('wrong length');
    const version = stored[0];
    if (version !== 1 && version !== 2) throw corrupt(`frame version ${version}`);
    const iv = stored.subarray(1, HEAD_BYTES);
    const cipherKey = this.#keyOf(key.cacheSalt);
    const options = { authTagLength: TAG_BYTES };
    const cipherName = `aes-${this.#options.aesBits}-gcm` as const;
    const decipher = createDecipheriv(cipherName, cipherKey, iv, options);
    if (version === 2) decipher.setAAD(Buffer.from(encodeWireKey(key)));
    decipher.setAuthTag(stored.subarray(HEAD_BYTES + bytes.length));
    const slices = { count: bytes.length, sliceCount: SLICE_BYTES, signal };
    const isWhole = await inSlices(slices, (from, to) =>
      bytes.set(decipher.update(stored.subarray(HEAD_BYTES + from, HEAD_BYTES + to)), from),
    );
    if (!isWhole) throw new KvdError('ERR_L2_TIMEOUT', 'aesgcm: the task is over');
    try {
      decipher.final();
    } catch (error) {
      // Not ERR_L2_CORRUPT, after which the value would be deleted: the master key may be the wrong
      // one, and others can read it.
      const reason = 'aesgcm: not encrypted under this master key, or changed since';
      throw new KvdError('ERR_L2_REFUSED', reason, { cause: error });
    }
  }

  #keyOf(cacheSalt: string): Uint8Array {
    const known = this.#keys.get(cacheSalt);
    if (known) return known;
    const { masterKey, aesBits } = this.#options;
    const info = INFO_PREFIX + cacheSalt;
    const derived = new Uint8Array(hkdfSync('sha256', masterKey, '', info, aesBits / 8));
    if (this.#keys.size >= KEY_COUNT_MAX) this.#keys.clear();
    this.#keys.set(cacheSalt, derived);
    return derived;
  }
}

function corrupt(reason: string, cause?: unknown): KvdError {
  return new KvdError('ERR_L2_CORRUPT', `aesgcm: ${reason}`, { cause });
}

async function readMasterKey(path: string, where: string): Promise<Uint8Array> {
  let masterKey: Uint8Array;
  try {
    masterKey = await readFile(path);
  } catch (error) {
    const reason = (error as Error).message;
    throw new KvdError('ERR_CONFIG', `${where}: master_key_path: ${reason}`, { cause: error });
  }
  if (masterKey.length > 0) return masterKey;
  throw new KvdError('ERR_CONFIG', `${where}: master_key_path: ${path} is empty`);
}

export const aesGcmType: SerdeType = {
  typeName: 'aesgcm',
  about: 'Encrypts and authenticates values, with a key per cache salt.',
  keys: {
    key_provider: {
      kind: 'text',
      fallback: 'hkdf',
      choices: ['hkdf'],
      about: 'Where keys come from: derived from one master key.',
    },
    aes_bits: {
      kind: 'integer',
      fallback: 128,
      about: 'Length of the derived keys: 128 or 256.',
    },
    master_key_path: {
      kind: 'text',
      about: 'File whose whole content is the master key; the same on every server of the store.',
    },
    frame_version: {
      kind: 'integer',
      fallback: 1,
      min: 1,
      max: 2,
      about: '1: as the peer. 2: bound to the key of the object as well; the peer cannot read it.',
    },
    ...WORKER_KEYS,
  },
  async open(values, where) {
    const aesBits = values['aes_bits'] as number;
    if (aesBits !== 128 && aesBits !== 256) {
      throw new KvdError('ERR_CONFIG', `${where}: aes_bits must be 128 or 256, got ${aesBits}`);
    }
    return new AesGcmSerde({
      masterKey: await readMasterKey(values['master_key_path'] as string, where),
      aesBits,
      frameVersion: values['frame_version'] as FrameVersion,
      workerCount: values['max_workers'] as number,
    });
  },
};
