/**
 * The shapes in which engines keep their KV cache (spec engine 5.3).
 *
 * A format is a row of a table: how many tensors per layer, and what each dimension means. The
 * copy plan is derived from the row alone (`kernel-groups.ts`), so a further format is a row plus a
 * rule that recognises it (`format-discovery.ts`).
 *
 * NB blocks, BS slots per block, NH heads, HS head size, NL layers, TWO keys and values,
 * CS content of one head: its keys and values side by side, copied as they are (`kvSize` 1).
 *
 * Rows 0 and 4 never cross the wire (the engine would have to be in our process); they complete
 * the table so that the byte layout is checked against all vectors of the reference. Formats 16
 * and 17 have several tensors per layer: only the wrappers of Ascend NPUs carry such layers, and
 * these are refused before anything is discovered.
 */
import type { DtypeName } from '../../device/tensor-wrapper.ts';

export type Axis = 'NB' | 'BS' | 'NH' | 'HS' | 'CS' | 'NL' | 'TWO' | 'ONE';

/** What one tensor of the list is: a layer, a layer's keys or values, or the whole cache. */
export type TensorRole = 'layer' | 'keys-or-values' | 'cache';

export interface KvFormat {
  readonly value: number;
  readonly name: string;
  readonly role: TensorRole;
  readonly axes: readonly Axis[];
  readonly kvSize: 1 | 2;
  /** For people: `attention_backend` of `/status`. */
  readonly backend: string;
  /** Dimension of the mapped tensor that counts blocks, null where slots are not grouped. */
  readonly blockAxis: number | null;
  /** One latent vector per token, the same on every tensor-parallel rank. */
  readonly isMla: boolean;
  /** The outermost elements are whole blocks and may have gaps between them. */
  readonly mayHaveGaps: boolean;
  /**
   * Widths, in elements, of the regions of a block: first the first part of all slots, then the
   * second part of all slots. Null: the bytes of a slot lie side by side.
   */
  readonly blockRegions: readonly number[] | null;
}

type FormatRow = readonly [TensorRole, string, 1 | 2, number | null, string];
type FormatTraits = Partial<Pick<KvFormat, 'isMla' | 'mayHaveGaps' | 'blockRegions'>>;

const format = (
  value: number,
  name: string,
  row: FormatRow,
  traits: FormatTraits = {},
): KvFormat => ({
  value,
  name,
  role: row[0],
  axes: row[1].split(' ') as Axis[],
  kvSize: row[2],
  blockAxis: row[3],
  backend: row[4],
  isMla: false,
  mayHaveGaps: false,
  blockRegions: null,
  ...traits,
});

const [LAYER, HALF, CACHE] = ['layer', 'keys-or-values', 'cache'] as const;
const MLA = { isMla: true } as const;
const GAPS = { mayHaveGaps: true } as const;

/** One slot of an indexer plane: 128 values of 8 bits and a scale of 32 bits. */
export const SCALED_SLOT_REGIONS = [128, 4] as const;
const SCALED = { ...MLA, ...GAPS, blockRegions: SCALED_SLOT_REGIONS } as const;

// biome-ignore format: a table reads best with one row per line
export const KV_FORMATS = {
  0: format(0, 'NB_NL_TWO_BS_NH_HS', [CACHE, 'NB NL TWO BS NH HS', 2, 0, 'vLLM one tensor (NHD)']),
  1: format(1, 'NL_X_TWO_NB_BS_NH_HS', [LAYER, 'TWO NB BS NH HS', 2, 1, 'vLLM (NHD)']),
  2: format(2, 'NL_X_NB_TWO_BS_NH_HS', [LAYER, 'NB TWO BS NH HS', 2, 0, 'vLLM blocks first (NHD)']),
  3: format(3, 'NL_X_NB_BS_HS', [LAYER, 'NB BS HS', 1, 0, 'vLLM MLA'], { ...MLA, ...GAPS }),
  4: format(4, 'TWO_X_NL_X_NBBS_NH_HS', [HALF, 'NB BS NH HS', 2, null, 'SGLang slots']),
  5: format(5, 'NL_X_NBBS_ONE_HS', [LAYER, 'NB BS ONE HS', 1, null, 'SGLang MLA'], MLA),
  6: format(6, 'NL_X_TWO_NB_NH_BS_HS', [LAYER, 'TWO NB NH BS HS', 2, 1, 'vLLM (HND)']),
  7: format(7, 'NL_X_NB_TWO_NH_BS_HS', [LAYER, 'NB TWO NH BS HS', 2, 0, 'vLLM blocks first (HND)']),
  8: format(8, 'NB_NL_TWO_NH_BS_HS', [CACHE, 'NB NL TWO NH BS HS', 2, 0, 'TensorRT-LLM (HND)']),
  9: format(9, 'TWO_X_NL_X_NB_BS_NH_HS', [HALF, 'NB BS NH HS', 2, null, 'SGLang (NHD)']),
  10: format(10, 'NL_X_NB_NH_BS_TWO_HS', [LAYER, 'NB NH BS TWO HS', 2, 0, 'vLLM fused (HND)']),
  11: format(11, 'NL_X_NB_BS_NH_TWO_HS', [LAYER, 'NB BS NH TWO HS', 2, 0, 'vLLM fused (NHD)']),
  12: format(12, 'NL_X_NB_NH_BS_CS', [LAYER, 'NB NH BS CS', 1, 0, 'vLLM fused (HND)'], GAPS),
  13: format(13, 'NL_X_NB_BS_NH_CS', [LAYER, 'NB BS NH CS', 1, 0, 'vLLM fused (NHD)'], GAPS),
  14: format(14, 'NL_X_NB_BSV_BSS', [LAYER, 'NB BS HS', 1, 0, 'vLLM MLA indexer'], SCALED),
  15: format(15, 'NL_X_TWO_NB_NH_ONE_BS_HS', [LAYER, 'TWO NB NH ONE BS HS', 2, 1, 'vLLM RBLN']),
  18: format(18, 'NL_X_NB_BS_NH_HS', [LAYER, 'NB BS NH HS', 1, 0, 'SGLang unified (NHD)'], GAPS),
} as const satisfies Record<number, KvFormat>;

/** A tensor seen through the axes of its format. Stride in elements. */
export interface TensorView {
  readonly dtype: DtypeName;
  readonly shape: readonly number[];
  readonly stride: readonly number[];
}

/** `"NL x [2, NB, NH, BS, HS]"`, as `/status` shows it. */
export function formatShapeText(format: KvFormat): string {
  const prefix = { layer: 'NL x ', 'keys-or-values': '2 x NL x ', cache: '' }[format.role];
  if (format.blockRegions) return `${prefix}[NB, BSxVALS, BSxSCALES]`;
  const axes = format.axes.map((axis) => (axis === 'TWO' ? '2' : axis === 'ONE' ? '1' : axis));
  return `${prefix}[${axes.join(', ')}]`;
}
