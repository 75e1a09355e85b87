/** The golden messages of test/vectors and the session transcripts (spec wire 11). */
import { readFileSync } from 'node:fs';
import type { HostTensor } from '../../src/engine/api.ts';

/** Hex, runs of hex, or only a digest of a long frame. */
export type VectorFrame = string | { $runs: readonly [string, number][] } | FrameDigest;

export interface FrameDigest {
  readonly $len: number;
  readonly $sha256: string;
  readonly $head: string;
  readonly $tail: string;
}

export interface VectorRequest {
  /** As the release spells it. */
  readonly op: string;
  /** Null: it is called by its name. */
  readonly id: number | null;
  readonly case: string;
  readonly frames: readonly VectorFrame[];
  readonly exact: boolean;
}

export interface VectorResponse extends VectorRequest {
  readonly absent: boolean;
  readonly value: unknown;
}

export interface VectorWrapper {
  readonly case: string;
  readonly hex: string;
  /** Pickles only. */
  readonly other_protocols?: Readonly<Record<string, string>>;
  readonly fields: Readonly<Record<string, unknown>>;
}

export interface VectorHostilePickle {
  readonly case: string;
  readonly hex: Exclude<VectorFrame, FrameDigest>;
  readonly expect: string;
}

/** One pickled list of tensors, as PyTorch or as the canonical writer writes it. */
export interface VectorTensorPickle {
  readonly case: string;
  readonly hex: Exclude<VectorFrame, FrameDigest>;
  readonly tensors: readonly {
    readonly dtype: HostTensor['dtype'];
    readonly shape: readonly number[];
    readonly contiguous_bytes: Exclude<VectorFrame, FrameDigest>;
  }[];
}

export interface VectorMalformed {
  readonly case: string;
  readonly frames: readonly VectorFrame[];
  readonly expect: string;
  readonly reply_kind: string;
}

export interface WireVectors {
  readonly operations: readonly { op: string; id: number | null; payload_types: string[] }[];
  readonly requests: readonly VectorRequest[];
  readonly responses: readonly VectorResponse[];
  readonly wrappers: readonly VectorWrapper[];
  readonly tensor_pickles: readonly VectorTensorPickle[];
  readonly tensor_pickles_canonical: readonly VectorTensorPickle[];
  readonly hostile_pickles: readonly VectorHostilePickle[];
  readonly establish: readonly string[];
  readonly neutral_replies: readonly { op: string; frames: readonly string[] }[];
  readonly malformed: readonly VectorMalformed[];
  /** Since 0.5.6: device wrappers that are no wrappers. */
  readonly bad_descriptors?: readonly { readonly case: string; readonly hex: string }[];
}

type DialectLetter = 'A' | 'B' | 'C';

export interface DialectVectors {
  readonly tables: Readonly<
    Record<DialectLetter, readonly { id: number; op: string; signatures: readonly string[] }[]>
  >;
  readonly sequences: readonly {
    readonly case: string;
    readonly steps: readonly {
      readonly id: number;
      readonly signature: string;
      readonly op: string | null;
      readonly state_after: string;
    }[];
  }[];
  readonly keyed_cases: readonly {
    readonly id: number;
    readonly signature: string;
    readonly key_has_num_kv_readers: boolean;
    readonly instance_dialect: DialectLetter | null;
    readonly op: string;
  }[];
}

export interface SessionMessage {
  readonly n: number;
  readonly dir: 'c2s' | 's2c';
  readonly client: number;
  readonly frames: readonly VectorFrame[];
}

function load(name: string): unknown {
  return JSON.parse(readFileSync(new URL(`../vectors/${name}`, import.meta.url), 'utf8'));
}

/** Releases that there are golden messages of, with the dialect that they speak. */
export const RELEASES = { '0.5.0': 'A', '0.5.6': 'C' } as const;
export type Release = keyof typeof RELEASES;

export const wireVectors = load('wire-0.5.0.json') as WireVectors;
export const wireVectors056 = load('wire-0.5.6.json') as WireVectors;

export function wireVectorsOf(release: Release): WireVectors {
  return release === '0.5.0' ? wireVectors : wireVectors056;
}

/** Operation tables with signatures, and message sequences with what they mean. */
export const dialectVectors = load('dialect.json') as DialectVectors;

export function sessionMessages(
  release: Release,
  mode: 'handle' | 'data' | 'pickle',
): readonly SessionMessage[] {
  return (load(`session-${release}-${mode}.json`) as { messages: SessionMessage[] }).messages;
}

export function frameBytes(frame: Exclude<VectorFrame, FrameDigest>): Buffer {
  if (typeof frame === 'string') return Buffer.from(frame, 'hex');
  const runs = frame.$runs.map(([hex, count]) => Buffer.from(hex.repeat(count), 'hex'));
  return Buffer.concat(runs);
}

/** Every frame in full; those of which only a digest is kept are made again by `remake`. */
export function framesInFull(
  frames: readonly VectorFrame[],
  remake: (digest: FrameDigest) => Buffer = () => {
    throw new Error('this vector holds only a digest');
  },
): Buffer[] {
  return frames.map((frame) =>
    typeof frame === 'object' && '$len' in frame ? remake(frame) : frameBytes(frame),
  );
}
