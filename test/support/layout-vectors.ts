/** Vectors of KV layouts of newer generations (made by `scripts/layout-vectors.py`). */
import { readFileSync } from 'node:fs';
import type { DtypeName } from '../../src/device/tensor-wrapper.ts';

export interface TensorVector {
  readonly shape: number[];
  readonly dtype?: DtypeName;
  readonly stride?: number[];
}

/** Per layer, null for one in no group; or why not. */
export type FoundFormats = readonly (string | null)[] | { readonly error: string };

export interface DiscoveryVector {
  readonly case: string;
  readonly engine: string;
  readonly tensors: readonly TensorVector[];
  readonly hints: Readonly<Record<string, unknown>>;
  readonly groups: readonly number[][];
  readonly formats: { readonly cpu: FoundFormats; readonly cuda: FoundFormats };
}

export interface LayoutVector {
  readonly format: string;
  readonly dtype: 'int16' | 'uint8';
  readonly tensor_count: number;
  readonly tensor_shape: number[];
  readonly object_shape: readonly number[];
  readonly objects: readonly (readonly number[])[];
  readonly scatter_skip_1_block_into_filled: readonly (readonly number[])[];
}

export interface LayoutVectors {
  readonly block_ids: readonly number[];
  readonly discovery: readonly DiscoveryVector[];
  readonly layouts: readonly LayoutVector[];
}

const read = (version: string) =>
  JSON.parse(
    readFileSync(new URL(`../vectors/layouts-${version}.json`, import.meta.url), 'utf8'),
  ) as LayoutVectors;

export const LAYOUTS_056 = read('0.5.6');
export const LAYOUTS_054 = read('0.5.4');
