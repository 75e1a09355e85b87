/** The golden messages of test/vectors and the session transcripts (spec wire 11). */
import { readFileSync } from 'node:fs';
import type { HostTensor, OperationName } from '../../src/engine/api.ts';

/** Hex, runs of hex, or only a digest of a long frame. */
export type VectorFrame = string | { $runs: readonly [string, number][] } | FrameDigest;

export interface FrameDigest {
  readonly $len: number;
  readonly $sha256: string;
  readonly $head: string;
  readonly $tail: string;
}

export interface VectorRequest {
  readonly op: OperationName;
  readonly id: number;
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
  readonly other_protocols: Readonly<Record<string, string>>;
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
  readonly operations: readonly { op: OperationName; id: number; payload_types: string[] }[];
  readonly requests: readonly VectorRequest[];
  readonly responses: readonly VectorResponse[];
  readonly wrappers: readonly VectorWrapper[];
  readonly tensor_pickles: readonly VectorTensorPickle[];
  readonly tensor_pickles_canonical: readonly VectorTensorPickle[];
  readonly hostile_pickles: readonly VectorHostilePickle[];
  readonly establish: readonly string[];
  readonly neutral_replies: readonly { op: OperationName; frames: readonly string[] }[];
  readonly malformed: readonly VectorMalformed[];
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

export const wireVectors = load('wire-0.5.0.json') as WireVectors;

export function sessionMessages(mode: 'handle' | 'data' | 'pickle'): readonly SessionMessage[] {
  return (load(`session-0.5.0-${mode}.json`) as { messages: SessionMessage[] }).messages;
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
