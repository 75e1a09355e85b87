/**
 * One line of the lookup-hash log: what one LOOKUP asked for, as a JSON object (observability 7.2).
 *
 *   {"timestamp": 1711929600.123, "request_id": "r", "model_name": "m", "chunk_size": 256,
 *    "seq_len": 1024, "dtypes": ["torch.float16"], "shapes": [[2, 32, 256, 1024]],
 *    "chunk_hashes": ["0x…", …], "world_size": 2, "tenant": "…"}
 *
 * Character for character what the reference writes, so that its tools read it, as long as there is
 * one rank and no cache salt. The last two keys are ours: they stand there only where they say more
 * than `1` and ``. A tenant is a digest of the cache salt, which is nobody's business.
 */
import type { EventCatalogue } from '../events.ts';
import { writePythonFloat, writePythonJson } from '../python-json.ts';
import { tenantDigest } from '../redaction.ts';

type Lookup = EventCatalogue['mp.lookup'];

export interface LoggedLookup {
  readonly timestampSeconds: number;
  readonly modelName: string;
  readonly tenant: string;
  readonly chunkSizeTokens: number;
  readonly tokenCount: number;
  /** Bytes of one chunk, all ranks together; 0 = the line does not say. */
  readonly chunkSizeBytes: number;
  readonly chunkHashes: readonly string[];
}

function hashTexts({ bytes, count, hashSizeBytes }: Lookup['hashes']): string[] {
  const hex = Buffer.from(bytes.buffer, bytes.byteOffset, bytes.byteLength).toString('hex');
  return Array.from({ length: count }, (_, chunk) => {
    const digits = hex.slice(2 * chunk * hashSizeBytes, 2 * (chunk + 1) * hashSizeBytes);
    // Hashes of `builtin` are numbers.
    return `"0x${hashSizeBytes < 32 ? digits.replace(/^0+(?=.)/, '') : digits}"`;
  });
}

export function formatLookupLine(lookup: Lookup, atSeconds: number): string {
  const { modelName, worldSize, cacheSalt, layouts } = lookup;
  const dtypes = layouts.flatMap((layout) => layout.dtypes.map((name) => `"torch.${name}"`));
  const shapes = layouts.flatMap((layout) => layout.shapes.map((s) => `[${s.join(', ')}]`));
  const parts = [
    `"timestamp": ${writePythonFloat(atSeconds)}`,
    `"request_id": ${writePythonJson(lookup.requestId)}`,
    `"model_name": ${writePythonJson(modelName)}`,
    `"chunk_size": ${lookup.chunkSizeTokens}`,
    `"seq_len": ${lookup.tokenCount}`,
    `"dtypes": [${dtypes.join(', ')}]`,
    `"shapes": [${shapes.join(', ')}]`,
    `"chunk_hashes": [${hashTexts(lookup.hashes).join(', ')}]`,
  ];
  if (worldSize > 1) parts.push(`"world_size": ${worldSize}`);
  if (cacheSalt !== '') parts.push(`"tenant": "${tenantDigest(cacheSalt)}"`);
  return `{${parts.join(', ')}}\n`;
}

/** Bytes of an element of each type that the reference or kvd names in its logs. */
const ELEMENT_SIZES: Readonly<Record<string, number>> = {
  float64: 8,
  double: 8,
  int64: 8,
  float32: 4,
  float: 4,
  int32: 4,
  float16: 2,
  half: 2,
  bfloat16: 2,
  int16: 2,
  uint8: 1,
  int8: 1,
  bool: 1,
  float8_e4m3fn: 1,
  float8_e4m3fnuz: 1,
  float8_e5m2: 1,
  float8_e5m2fnuz: 1,
};

const isCount = (value: unknown): value is number =>
  Number.isSafeInteger(value) && (value as number) >= 0;

function sizeOfChunk(shapes: unknown, dtypes: unknown): number {
  if (!Array.isArray(shapes) || !Array.isArray(dtypes)) return 0;
  let sizeBytes = 0;
  for (const [i, shape] of shapes.entries()) {
    const elementSize = ELEMENT_SIZES[String(dtypes[i]).replace(/^torch\./, '')];
    if (elementSize === undefined || !Array.isArray(shape) || !shape.every(isCount)) return 0;
    sizeBytes += shape.reduce((product: number, size: number) => product * size, elementSize);
  }
  return sizeBytes;
}

/** Null for a line that is not a lookup. */
export function parseLookupLine(line: string): LoggedLookup | null {
  let content: unknown;
  try {
    content = JSON.parse(line);
  } catch {
    // A line that a crash has cut off, or not a log at all: the caller counts it.
    return null;
  }
  if (typeof content !== 'object' || content === null) return null;
  const fields = content as Readonly<Record<string, unknown>>;
  const { timestamp, model_name, chunk_size, seq_len, chunk_hashes, world_size, tenant } = fields;
  if (typeof timestamp !== 'number' || typeof model_name !== 'string') return null;
  if (!isCount(chunk_size) || !isCount(seq_len) || !Array.isArray(chunk_hashes)) return null;
  if (!chunk_hashes.every((hash) => typeof hash === 'string')) return null;
  const rankCount = isCount(world_size) && world_size > 0 ? world_size : 1;
  return {
    timestampSeconds: timestamp,
    modelName: model_name,
    tenant: typeof tenant === 'string' ? tenant : '',
    chunkSizeTokens: chunk_size,
    tokenCount: seq_len,
    chunkSizeBytes: sizeOfChunk(fields['shapes'], fields['dtypes']) * rankCount,
    chunkHashes: chunk_hashes,
  };
}
