/**
 * The storage configuration in the header of a trace: what decides which calls hit, and nothing
 * that differs between two servers with the same settings (spec observability 9.1, 14.9).
 *
 *   description (as of GET /config) ─▶ without pool name and secrets ─▶ keys sorted ─▶ text, digest
 *
 * So the digest of a replay with the flags of the recording is the digest in the header.
 */
import { createHash } from 'node:crypto';
import { writePythonJson } from '../python-json.ts';
import { redactFields } from '../redaction.ts';

export interface StorageConfigText {
  readonly text: string;
  /** 64 hex digits. */
  readonly digest: string;
}

/** Of one process. */
const VOLATILE_NAMES: ReadonlySet<string> = new Set(['shm_name']);

export function describeStorageConfig(
  description: Readonly<Record<string, unknown>>,
): StorageConfigText {
  const lasting = withoutVolatile(redactFields(description));
  const text = writePythonJson(lasting, { sortsKeys: true });
  return { text, digest: createHash('sha256').update(text).digest('hex') };
}

function withoutVolatile(value: unknown): unknown {
  if (Array.isArray(value)) return value.map(withoutVolatile);
  if (typeof value !== 'object' || value === null) return value;
  const kept = Object.entries(value).filter(([name]) => !VOLATILE_NAMES.has(name));
  return Object.fromEntries(kept.map(([name, entry]) => [name, withoutVolatile(entry)]));
}
