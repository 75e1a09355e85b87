/**
 * The shapes in which engines keep their KV cache, and how to tell them apart (spec engine 5.3).
 *
 * A format is a row of a table: how many tensors per layer, and what each dimension means. The
 * copy plan is derived from the row alone (`kernel-groups.ts`), so a further format is a row plus a
 * detection rule. Recognising is deliberately narrow: a shape that no rule matches is refused,
 * because a wrong guess would serve permuted bytes that look like a valid cache.
 *
 * NB blocks, BS slots per block, NH heads, HS head size, NL layers, TWO keys and values.
 * Rows 0 and 4 never cross the wire (the engine would have to be in our process); they complete
 * the table so that the byte layout is checked against all vectors of the reference.
 */
import type { MappedTensor } from '../../device/device.ts';
import type { DtypeName } from '../../device/tensor-wrapper.ts';
import { KvdError } from '../../errors.ts';
import type { EngineType, LayoutHints } from '../api.ts';
import { type TightExtent, toTightExtent } from './tight-extent.ts';

export type Axis = 'NB' | 'BS' | 'NH' | 'HS' | 'NL' | 'TWO' | 'ONE';

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
}

type FormatRow = readonly [TensorRole, string, 1 | 2, number | null, string];

const format = (value: number, name: string, row: FormatRow): KvFormat => ({
  value,
  name,
  role: row[0],
  axes: row[1].split(' ') as Axis[],
  kvSize: row[2],
  blockAxis: row[3],
  backend: row[4],
});

const [LAYER, HALF, CACHE] = ['layer', 'keys-or-values', 'cache'] as const;

// biome-ignore format: a table reads best with one row per line
export const KV_FORMATS = {
  0: format(0, 'NB_NL_TWO_BS_NH_HS', [CACHE, 'NB NL TWO BS NH HS', 2, 0, 'vLLM one tensor (NHD)']),
  1: format(1, 'NL_X_TWO_NB_BS_NH_HS', [LAYER, 'TWO NB BS NH HS', 2, 1, 'vLLM (NHD)']),
  2: format(2, 'NL_X_NB_TWO_BS_NH_HS', [LAYER, 'NB TWO BS NH HS', 2, 0, 'vLLM blocks first (NHD)']),
  3: format(3, 'NL_X_NB_BS_HS', [LAYER, 'NB BS HS', 1, 0, 'vLLM MLA']),
  4: format(4, 'TWO_X_NL_X_NBBS_NH_HS', [HALF, 'NB BS NH HS', 2, null, 'SGLang slots']),
  5: format(5, 'NL_X_NBBS_ONE_HS', [LAYER, 'NB BS ONE HS', 1, null, 'SGLang MLA']),
  6: format(6, 'NL_X_TWO_NB_NH_BS_HS', [LAYER, 'TWO NB NH BS HS', 2, 1, 'vLLM (HND)']),
  7: format(7, 'NL_X_NB_TWO_NH_BS_HS', [LAYER, 'NB TWO NH BS HS', 2, 0, 'vLLM blocks first (HND)']),
  8: format(8, 'NB_NL_TWO_NH_BS_HS', [CACHE, 'NB NL TWO NH BS HS', 2, 0, 'TensorRT-LLM (HND)']),
  9: format(9, 'TWO_X_NL_X_NB_BS_NH_HS', [HALF, 'NB BS NH HS', 2, null, 'SGLang (NHD)']),
  10: format(10, 'NL_X_NB_NH_BS_TWO_HS', [LAYER, 'NB NH BS TWO HS', 2, 0, 'vLLM fused (HND)']),
} as const satisfies Record<number, KvFormat>;

/** A tensor seen through the axes of its format. Stride in elements. */
export interface TensorView {
  readonly dtype: DtypeName;
  readonly shape: readonly number[];
  readonly stride: readonly number[];
}

export interface DiscoveredFormat {
  readonly format: KvFormat;
  /** One view per tensor of the registration, in its order. */
  readonly views: readonly TensorView[];
}

export interface DiscoveryOptions {
  readonly tensors: readonly MappedTensor[];
  readonly engineType: EngineType;
  readonly hints: LayoutHints;
  /**
   * False: HND for vLLM whatever the hint says. CPU workers of LMCache 0.5.0 lay their caches out
   * as HND and report NHD.
   */
  readonly hasAccelerator: boolean;
}

/** The format of a registration and its tensors seen through it. Throws `ERR_LAYOUT`. */
export function discoverFormat(options: DiscoveryOptions): DiscoveredFormat {
  const { tensors } = options;
  if (tensors.length === 0) throw new KvdError('ERR_LAYOUT', 'a registration without tensors');
  const extents = tensors.map((tensor, index) => toTightExtent(tensor, tensorName(index)));
  const { format, reshape } = detect(extents, options);
  const views = extents.map((extent, index) => {
    const view = reshape(extent, tensorName(index));
    checkAxes(view, format, index);
    if (extent.isPadded && format.value !== KV_FORMATS[3].value) {
      throw new KvdError(
        'ERR_LAYOUT',
        `${tensorName(index)}: gaps between outermost elements are supported for ` +
          `${KV_FORMATS[3].name} only, the format is ${format.name}`,
      );
    }
    return { dtype: (tensors[index] as MappedTensor).dtype, ...view };
  });
  return { format, views };
}

/** `"NL x [2, NB, NH, BS, HS]"`, as `/status` shows it. */
export function formatShapeText(format: KvFormat): string {
  const prefix = { layer: 'NL x ', 'keys-or-values': '2 x NL x ', cache: '' }[format.role];
  const axes = format.axes.map((axis) => (axis === 'TWO' ? '2' : axis === 'ONE' ? '1' : axis));
  return `${prefix}[${axes.join(', ')}]`;
}

type Reshape = (extent: TightExtent, name: string) => Pick<TensorView, 'shape' | 'stride'>;
type Detected = { readonly format: KvFormat; readonly reshape: Reshape };

/** The first tensor alone decides for the whole list. */
function detect(extents: readonly TightExtent[], options: DiscoveryOptions): Detected {
  const first = extents[0] as TightExtent;
  switch (options.engineType) {
    case 'vllm':
      return detectVllm(first, options);
    case 'sglang':
      return detectSglang(first, options.hints);
    case 'trtllm':
      return detectTrtllm(extents, options.hints);
    default:
      throw new KvdError(
        'ERR_LAYOUT',
        `engine type ${options.engineType} has no known cache layout; ` +
          'expected vllm, sglang or trtllm',
      );
  }
}

const asIs: Reshape = ({ shape, stride }) => ({ shape, stride });

/** Order matters: [2, 2, …] is read as keys and values outermost, as the reference does. */
function detectVllm(first: TightExtent, options: DiscoveryOptions): Detected {
  const { shape } = first;
  const isHnd = !options.hasAccelerator || options.hints.kvLayout === 'HND';
  if (shape.length === 4) return { format: KV_FORMATS[10], reshape: splitFusedHead };
  if (shape.length === 5 && shape[0] === 2) {
    return { format: isHnd ? KV_FORMATS[6] : KV_FORMATS[1], reshape: asIs };
  }
  if (shape.length === 5 && shape[1] === 2) {
    return { format: isHnd ? KV_FORMATS[7] : KV_FORMATS[2], reshape: asIs };
  }
  if (shape.length === 3) return { format: KV_FORMATS[3], reshape: asIs };
  throw new KvdError(
    'ERR_LAYOUT',
    `no vLLM layout has the shape [${shape.join(', ')}]; expected [2, NB, ..], [NB, 2, ..] with ` +
      '5 dimensions, [NB, NH, BS, 2*HS], or [NB, BS, HS]',
  );
}

function detectSglang(first: TightExtent, hints: LayoutHints): Detected {
  const { shape } = first;
  if (shape.length !== 3) {
    throw new KvdError(
      'ERR_LAYOUT',
      `no SGLang layout has the shape [${shape.join(', ')}]; expected [slots, heads, head size]`,
    );
  }
  const slotsPerBlock = requireHint(hints.tokensPerBlock, 'tokens_per_block', 'SGLang');
  return {
    format: shape[1] === 1 ? KV_FORMATS[5] : KV_FORMATS[9],
    reshape: (extent, name) => splitSlots(extent, name, slotsPerBlock),
  };
}

function detectTrtllm(extents: readonly TightExtent[], hints: LayoutHints): Detected {
  const { shape } = extents[0] as TightExtent;
  const heads = requireHint(hints.numKvHeads, 'num_kv_heads', 'TensorRT-LLM');
  const slots = requireHint(hints.tokensPerBlock, 'tokens_per_block', 'TensorRT-LLM');
  const headSize = requireHint(hints.headDim, 'head_dim', 'TensorRT-LLM');
  const blockSize = heads * slots * headSize;
  if (extents.length !== 1 || shape.length !== 4 || shape[3] !== blockSize) {
    throw new KvdError(
      'ERR_LAYOUT',
      `TensorRT-LLM: expected one tensor [NB, NL, 2, ${heads}*${slots}*${headSize} = ` +
        `${blockSize}], got ${extents.length} with shape [${shape.join(', ')}]`,
    );
  }
  const reshape: Reshape = (extent) => ({
    shape: [...extent.shape.slice(0, 3), heads, slots, headSize],
    stride: [...extent.stride.slice(0, 3), slots * headSize, headSize, 1],
  });
  return { format: KV_FORMATS[8], reshape };
}

/** [NB, NH, BS, 2*HS] → [NB, NH, BS, 2, HS] */
function splitFusedHead(extent: TightExtent, name: string): ReturnType<Reshape> {
  const fused = extent.shape.at(-1) as number;
  if (extent.shape.length !== 4 || fused % 2 !== 0) {
    throw new KvdError(
      'ERR_LAYOUT',
      `${name}: expected [NB, NH, BS, 2*HS], got [${extent.shape.join(', ')}]`,
    );
  }
  return {
    shape: [...extent.shape.slice(0, 3), 2, fused / 2],
    stride: [...extent.stride.slice(0, 3), fused / 2, 1],
  };
}

/** [NB*BS, NH, HS] → [NB, BS, NH, HS] */
function splitSlots(extent: TightExtent, name: string, slotsPerBlock: number): ReturnType<Reshape> {
  const slots = extent.shape[0] as number;
  if (extent.shape.length !== 3 || slots % slotsPerBlock !== 0) {
    throw new KvdError(
      'ERR_LAYOUT',
      `${name}: expected [slots, heads, head size] with slots a multiple of tokens_per_block ` +
        `${slotsPerBlock}, got [${extent.shape.join(', ')}]`,
    );
  }
  const slotStride = extent.stride[0] as number;
  return {
    shape: [slots / slotsPerBlock, slotsPerBlock, ...extent.shape.slice(1)],
    stride: [slotStride * slotsPerBlock, slotStride, ...extent.stride.slice(1)],
  };
}

function checkAxes(view: Pick<TensorView, 'shape'>, format: KvFormat, index: number): void {
  const isFit =
    view.shape.length === format.axes.length &&
    format.axes.every((axis, dimension) => {
      if (axis === 'TWO') return view.shape[dimension] === 2;
      return axis !== 'ONE' || view.shape[dimension] === 1;
    });
  if (isFit) return;
  throw new KvdError(
    'ERR_LAYOUT',
    `${tensorName(index)}: shape [${view.shape.join(', ')}] does not fit ` +
      `${formatShapeText(format)}, which tensor 0 decided`,
  );
}

function requireHint(value: number | undefined, key: string, engine: string): number {
  if (value !== undefined && Number.isSafeInteger(value) && value > 0) return value;
  throw new KvdError(
    'ERR_LAYOUT',
    `${engine}: layout hint ${key} must be a positive integer, got ${value ?? 'none'}`,
  );
}

function tensorName(index: number): string {
  return `tensor ${index}`;
}
