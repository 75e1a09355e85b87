/**
 * Keys as text: the names under which stores file objects (spec l2-adapters 2).
 *
 *   m   model name          r8  rank, at least 8 hex digits       g  object group, hex
 *   h   chunk hash, hex     s   salt; with its separator absent when it is empty
 *
 *   wire key    m@r8@g@h[@s]                       resp, valkey, s3, native_plugin, aerospike, …
 *   file name   m@0xr8@g@h[@s].data                fs, fs_native; each `/` of m is `-SEP-`
 *   S3 path     /<wire key, percent-encoded>       `/` stays
 *   HF object   <wire key, percent-encoded>        `/` too
 *   raw block   <m, percent-encoded>@0xr8@g@h[@s]
 *   NIXL file   m_r8_g_h[@s].bin                   each `/` of m is `--`; 0.5.0 leaves the salt out
 *   row         h4@m[@lg<n>]@r8@g@h[@s]            bigtable, default template; h4 = 4 digits of h
 *
 * Each form has an encoder and a decoder, side by side. A decoder answers null for what its encoder
 * would not have written: it decodes and encodes again, so no second name can stand for a key, and
 * whatever else lies in a store is left alone. Two forms lose information by themselves: `-SEP-`
 * and `--` in a model name decode as `/` (`file-name.ts` keeps fs clear of that).
 */
import type { ObjectKey } from './object-key.ts';

const SALT_LENGTH_MAX = 128;
const FORBIDDEN_IN_SALT = /[@/\\\0]/;
const FILE_SUFFIX = '.data';
const NIXL_SUFFIX = '.bin';
/** What a `/` of the model name is in a file name. */
export const SLASH_IN_FILE_NAMES = '-SEP-';
const SLASH_IN_NIXL_NAMES = '--';
const RANK_PREFIX = '0x';

export function encodeWireKey(key: ObjectKey): string {
  return joinFields(key.modelName, '', key);
}

export function decodeWireKey(text: string): ObjectKey | null {
  return checked(splitFields(text, ''), encodeWireKey, text);
}

/** The same with the model name as it is, `/` and all: what is in files, not what names them. */
export function encodePlainName(key: ObjectKey): string {
  return joinFields(key.modelName, RANK_PREFIX, key) + FILE_SUFFIX;
}

export function decodePlainName(name: string): ObjectKey | null {
  if (!name.endsWith(FILE_SUFFIX)) return null;
  const key = splitFields(name.slice(0, -FILE_SUFFIX.length), RANK_PREFIX);
  return checked(key, encodePlainName, name);
}

export function encodeFileName(key: ObjectKey): string {
  const modelName = key.modelName.replaceAll('/', SLASH_IN_FILE_NAMES);
  return joinFields(modelName, RANK_PREFIX, key) + FILE_SUFFIX;
}

export function decodeFileName(name: string): ObjectKey | null {
  if (!name.endsWith(FILE_SUFFIX)) return null;
  const key = splitFields(name.slice(0, -FILE_SUFFIX.length), RANK_PREFIX, (modelName) =>
    modelName.replaceAll(SLASH_IN_FILE_NAMES, '/'),
  );
  return checked(key, encodeFileName, name);
}

export function encodeS3Path(key: ObjectKey): string {
  return `/${percentEncode(encodeWireKey(key)).replaceAll('%2F', '/')}`;
}

export function decodeS3Path(path: string): ObjectKey | null {
  if (!path.startsWith('/')) return null;
  return checked(decodeWireKey(percentDecode(path.slice(1))), encodeS3Path, path);
}

export function encodeHfObject(key: ObjectKey): string {
  return percentEncode(encodeWireKey(key));
}

export function decodeHfObject(name: string): ObjectKey | null {
  return checked(decodeWireKey(percentDecode(name)), encodeHfObject, name);
}

export function encodeRawBlockKey(key: ObjectKey): string {
  return joinFields(percentEncode(key.modelName), RANK_PREFIX, key);
}

export function decodeRawBlockKey(text: string): ObjectKey | null {
  return checked(splitFields(text, RANK_PREFIX, percentDecode), encodeRawBlockKey, text);
}

export interface NixlNameOptions {
  /** False: the form of 0.5.0, in which all tenants share one file. */
  readonly hasSalt: boolean;
  /** In folders named after the first two bytes of the hash (`shard_dirs`). */
  readonly isSharded: boolean;
}

export function encodeNixlName(key: ObjectKey, { hasSalt, isSharded }: NixlNameOptions): string {
  const hash = hexOf(key.chunkHash);
  const modelName = key.modelName.replaceAll('/', SLASH_IN_NIXL_NAMES);
  const salt = hasSalt && key.cacheSalt !== '' ? `@${key.cacheSalt}` : '';
  const fields = [modelName, rankText(key.kvRank), key.objectGroupId.toString(16), hash];
  const folders = isSharded ? `${hash.slice(0, 2)}/${hash.slice(2, 4)}/` : '';
  return `${folders}${fields.join('_')}${salt}${NIXL_SUFFIX}`;
}

export function decodeNixlName(path: string, options: NixlNameOptions): ObjectKey | null {
  // The model name may hold `_`; the other fields cannot.
  const form = /^(?:[^/]*\/[^/]*\/)?([^@]*)_([^_@]*)_([^_@]*)_([^_@]*)(?:@(.*))?\.bin$/s;
  const [, modelName, rank, group, hash, salt = ''] = form.exec(path) ?? [];
  const key = keyOf({
    modelName: modelName?.replaceAll(SLASH_IN_NIXL_NAMES, '/'),
    rank,
    group,
    hash,
    salt,
  });
  return checked(key, (decoded) => encodeNixlName(decoded, options), path);
}

/** `layerGroupSize` 0: the value is one cell, and the row has no `@lg` field. */
export function encodeBigtableRow(key: ObjectKey, layerGroupSize: number): string {
  const marker = layerGroupSize > 0 ? `@lg${layerGroupSize}` : '';
  const hashPrefix = hexOf(key.chunkHash).slice(0, 4);
  return `${hashPrefix}@${joinFields(key.modelName + marker, '', key)}`;
}

export function decodeBigtableRow(row: string, layerGroupSize: number): ObjectKey | null {
  const fields = row.split('@').slice(1);
  if (layerGroupSize > 0) fields.splice(1, 1);
  const key = splitFields(fields.join('@'), '');
  return checked(key, (decoded) => encodeBigtableRow(decoded, layerGroupSize), row);
}

export function hexOf(bytes: Uint8Array): string {
  return Buffer.from(bytes.buffer, bytes.byteOffset, bytes.byteLength).toString('hex');
}

function joinFields(modelName: string, rankPrefix: string, key: ObjectKey): string {
  const rank = rankPrefix + rankText(key.kvRank);
  const group = key.objectGroupId.toString(16);
  const text = `${modelName}@${rank}@${group}@${hexOf(key.chunkHash)}`;
  return key.cacheSalt === '' ? text : `${text}@${key.cacheSalt}`;
}

function splitFields(
  text: string,
  rankPrefix: string,
  decodeModelName = (name: string): string => name,
): ObjectKey | null {
  const fields = text.split('@');
  if (fields.length !== 4 && fields.length !== 5) return null;
  const [modelName = '', rank = '', group, hash, salt = ''] = fields;
  if (!rank.startsWith(rankPrefix)) return null;
  return keyOf({
    modelName: decodeModelName(modelName),
    rank: rank.slice(rankPrefix.length),
    group,
    hash,
    salt,
  });
}

interface Fields {
  readonly modelName: string | undefined;
  readonly rank: string | undefined;
  readonly group: string | undefined;
  readonly hash: string | undefined;
  readonly salt: string;
}

/** Null for what breaks the rules of a key (spec 1.1). */
function keyOf({ modelName, rank, group, hash, salt }: Fields): ObjectKey | null {
  const kvRank = Number.parseInt(rank ?? '', 16);
  const objectGroupId = Number.parseInt(group ?? '', 16);
  if (![kvRank, objectGroupId].every((value) => Number.isSafeInteger(value) && value >= 0)) {
    return null;
  }
  if (modelName === undefined || modelName.includes('@')) return null;
  if (salt.length > SALT_LENGTH_MAX || FORBIDDEN_IN_SALT.test(salt)) return null;
  const chunkHash = new Uint8Array(Buffer.from(hash ?? '', 'hex'));
  if (chunkHash.length === 0) return null;
  return { chunkHash, modelName, kvRank, objectGroupId, cacheSalt: salt };
}

/** The key, if this is the one way to write it. */
function checked(
  key: ObjectKey | null,
  encode: (key: ObjectKey) => string,
  text: string,
): ObjectKey | null {
  return key !== null && encode(key) === text ? key : null;
}

function rankText(kvRank: number): string {
  return kvRank.toString(16).padStart(8, '0');
}

/** As Python's `quote` with nothing else safe: letters, digits and `_.-~` stay. */
function percentEncode(text: string): string {
  return encodeURIComponent(text).replace(
    /[!'()*]/g,
    (character) => `%${character.charCodeAt(0).toString(16).toUpperCase()}`,
  );
}

function percentDecode(text: string): string {
  try {
    return decodeURIComponent(text);
  } catch {
    // Not valid UTF-8: no key encodes to it, and the check against the encoder will say so.
    return '';
  }
}
