/**
 * Which format the tensors of a registration have (spec engine 5.3).
 *
 * A shape alone does not tell: heads and slots can change places. So the engine and its hints
 * count as well, and the rules of the client's generation, because old and new servers read the
 * same tensors differently and objects must mean what their writer's peers expect:
 *
 *   `first-tensor`   the first tensor decides for all; fused heads are stored as keys, then values
 *   `per-layer`      each layer decides for itself; fused heads are stored as they are, which
 *                    spares a shuffle; a layer that no engine group names is not looked at
 *
 * Recognising is deliberately narrow: a shape that no rule matches is refused, because a wrong
 * guess would serve permuted bytes that look like a valid cache.
 */
import type { MappedTensor } from '../../device/device.ts';
import type { DtypeName } from '../../device/tensor-wrapper.ts';
import { KvdError } from '../../errors.ts';
import type { EngineGroupInfo, EngineType, LayoutHints } from '../api.ts';
import type { ClientTraits } from '../client-traits.ts';
import {
  formatShapeText,
  KV_FORMATS,
  type KvFormat,
  SCALED_SLOT_REGIONS,
  type TensorView,
} from './kv-format.ts';
import { type TightExtent, toTightExtent } from './tight-extent.ts';

export interface DiscoveryOptions
  extends Readonly<Pick<ClientTraits, 'layoutRules' | 'reportsKvLayout'>> {
  readonly tensors: readonly MappedTensor[];
  readonly engineType: EngineType;
  readonly hints: LayoutHints;
  readonly infos: readonly EngineGroupInfo[];
  readonly hasAccelerator: boolean;
}

export interface FormattedTensor {
  readonly format: KvFormat;
  readonly view: TensorView;
}

/** One entry per tensor, in its order; null for a layer that is not served. */
export type FormattedTensors = readonly (FormattedTensor | null)[];

/** Throws `ERR_LAYOUT` naming the tensor and what would have been accepted. */
export function discoverFormats(options: DiscoveryOptions): FormattedTensors {
  const { tensors, layoutRules, infos } = options;
  if (tensors.length === 0) throw new KvdError('ERR_LAYOUT', 'a registration without tensors');
  const served = layoutRules === 'per-layer' && infos.length > 0 ? layersOf(infos) : null;
  const lead = Math.max(
    0,
    tensors.findIndex((_, index) => served?.has(index)),
  );
  const first = detect(tensorAt(options, lead), options);
  const isUniform = layoutRules === 'first-tensor' || first.format.role !== 'layer';
  return tensors.map((_, index) => {
    if (!isUniform && served && !served.has(index)) return null;
    const tensor = tensorAt(options, index);
    const detected = isUniform || index === lead ? first : detect(tensor, options);
    if (detected.format.role === first.format.role) return applyFormat(detected, tensor, lead);
    throw misfit(tensor.shape, tensor.name, first.format, lead);
  });
}

interface Tensor extends TightExtent {
  readonly name: string;
  readonly dtype: DtypeName;
}

type Reshape = (tensor: Tensor) => Pick<TensorView, 'shape' | 'stride'>;
type Detected = { readonly format: KvFormat; readonly reshape: Reshape };

function layersOf(infos: readonly EngineGroupInfo[]): ReadonlySet<number> {
  return new Set(infos.flatMap((info) => info.layerIndices));
}

function tensorAt({ tensors }: DiscoveryOptions, index: number): Tensor {
  const tensor = tensors[index] as MappedTensor;
  const name = `tensor ${index}`;
  return { ...toTightExtent(tensor, name), dtype: tensor.dtype, name };
}

function applyFormat({ format, reshape }: Detected, tensor: Tensor, lead: number): FormattedTensor {
  const view = reshape(tensor);
  if (!fitsAxes(view.shape, format)) throw misfit(view.shape, tensor.name, format, lead);
  if (tensor.isPadded && !format.mayHaveGaps) throw gapError(tensor, format);
  return { format, view: { dtype: tensor.dtype, ...view } };
}

function fitsAxes(shape: readonly number[], { axes }: KvFormat): boolean {
  if (shape.length !== axes.length) return false;
  return axes.every((axis, dimension) => {
    if (axis === 'TWO') return shape[dimension] === 2;
    return axis !== 'ONE' || shape[dimension] === 1;
  });
}

function gapError({ name }: Tensor, format: KvFormat): KvdError {
  return new KvdError(
    'ERR_LAYOUT',
    `${name}: gaps between outermost elements are not supported for ${format.name}`,
  );
}

function misfit(shape: readonly number[], name: string, format: KvFormat, lead: number): KvdError {
  return new KvdError(
    'ERR_LAYOUT',
    `${name}: shape [${shape.join(', ')}] does not fit ${formatShapeText(format)}, ` +
      `which tensor ${lead} decided`,
  );
}

function detect(tensor: Tensor, options: DiscoveryOptions): Detected {
  const { engineType, layoutRules, hints } = options;
  switch (engineType) {
    case 'vllm':
      return detectVllm(tensor, options);
    case 'sglang':
      return detectSglang(tensor, options);
    case 'trtllm':
      return detectTrtllm(tensor, options.tensors.length, hints);
    case 'atom':
      if (layoutRules === 'per-layer') return detectAtom(tensor);
      break;
    case 'mock':
      break;
  }
  throw new KvdError(
    'ERR_LAYOUT',
    `engine type ${engineType} has no known cache layout; expected vllm, sglang or trtllm`,
  );
}

const asIs = (format: KvFormat): Detected => ({
  format,
  reshape: ({ shape, stride }) => ({ shape, stride }),
});

/**
 * Whether heads come before slots. CPU workers that do not report their layout lay it out so,
 * whatever they say; of those that do, the ones before there was a hint did so too.
 */
function isHeadMajor({ hints, hasAccelerator, reportsKvLayout }: DiscoveryOptions): boolean {
  if (!hasAccelerator && !reportsKvLayout) return true;
  const layout = hints.kvLayout ?? (hasAccelerator ? 'NHD' : 'HND');
  switch (layout) {
    case 'HND':
    case 'BLHNC':
      return true;
    case 'NHD':
    case 'BLNHC':
      return false;
    default:
      throw new KvdError(
        'ERR_LAYOUT',
        `layout hint kv_layout ${layout satisfies never} is unknown; ` +
          'expected NHD, HND, BLHNC or BLNHC',
      );
  }
}

/** Order matters: [2, 2, …] is read as keys and values outermost, as the reference does. */
function detectVllm(tensor: Tensor, options: DiscoveryOptions): Detected {
  const { shape } = tensor;
  const isPerLayer = options.layoutRules === 'per-layer';
  const isHnd = isHeadMajor(options);
  switch (shape.length) {
    case 3:
      return asIs(isPerLayer && isScaled(tensor) ? KV_FORMATS[14] : KV_FORMATS[3]);
    case 4:
      return isPerLayer ? detectFused(tensor, isHnd) : detectSplit(options);
    case 5:
      if (shape[0] === 2) return asIs(isHnd ? KV_FORMATS[6] : KV_FORMATS[1]);
      if (shape[1] === 2) return asIs(isHnd ? KV_FORMATS[7] : KV_FORMATS[2]);
      break;
    case 6:
      if (isPerLayer && shape[0] === 2 && shape[3] === 1) return asIs(KV_FORMATS[15]);
      break;
  }
  throw new KvdError(
    'ERR_LAYOUT',
    `${tensor.name}: no vLLM layout has the shape [${shape.join(', ')}]; expected [2, NB, ..] or ` +
      `[NB, 2, ..] with 5 dimensions, [NB, NH, BS, 2*HS], or [NB, BS, HS]`,
  );
}

/** Fused heads as keys and values apart. Without a hint heads come first, as they always did. */
function detectSplit({ hints, hasAccelerator }: DiscoveryOptions): Detected {
  const isSlotMajor = hasAccelerator && hints.kvLayout === 'NHD';
  return { format: isSlotMajor ? KV_FORMATS[11] : KV_FORMATS[10], reshape: splitFusedHead };
}

function detectFused(tensor: Tensor, isHnd: boolean): Detected {
  const headAxis = isHnd ? 1 : 2;
  if (tensor.shape[headAxis] === 1 && isScaled(tensor)) {
    const withoutHead = (list: readonly number[]) => list.filter((_, axis) => axis !== headAxis);
    return {
      format: KV_FORMATS[14],
      reshape: ({ shape, stride }) => ({ shape: withoutHead(shape), stride: withoutHead(stride) }),
    };
  }
  return asIs(isHnd ? KV_FORMATS[12] : KV_FORMATS[13]);
}

/** A plane of 8-bit values with their scales, which lie behind the values of all slots. */
function isScaled({ dtype, shape }: Tensor): boolean {
  const [values, scale] = SCALED_SLOT_REGIONS;
  return dtype === 'uint8' && shape.at(-1) === values + scale;
}

/**
 * Which list it is cannot be seen when tensor parallelism leaves one head, so newer clients say
 * it. Older ones leave it to the head count.
 */
function detectSglang(tensor: Tensor, { hints, layoutRules }: DiscoveryOptions): Detected {
  const { shape } = tensor;
  if (hints.kvListLayout === 'unified') {
    if (shape.length === 3) return asIs(KV_FORMATS[3]);
    if (shape.length === 4) return asIs(KV_FORMATS[18]);
    throw new KvdError(
      'ERR_LAYOUT',
      `${tensor.name}: no unified SGLang layout has the shape [${shape.join(', ')}]; ` +
        'expected [NB, BS, HS] or [NB, BS, NH, HS]',
    );
  }
  if (shape.length !== 3) {
    throw new KvdError(
      'ERR_LAYOUT',
      `${tensor.name}: no SGLang layout has the shape [${shape.join(', ')}]; ` +
        'expected [slots, heads, head size]',
    );
  }
  const slotsPerBlock = requireHint(hints.tokensPerBlock, 'tokens_per_block', 'SGLang');
  const reshape: Reshape = (each) => splitSlots(each, slotsPerBlock);
  if (hints.kvListLayout === 'k_v' || shape[1] !== 1) return { format: KV_FORMATS[9], reshape };
  if (layoutRules === 'first-tensor') return { format: KV_FORMATS[5], reshape };
  return { format: KV_FORMATS[3], reshape: dropHead(reshape) };
}

function detectTrtllm({ shape }: Tensor, tensorCount: number, hints: LayoutHints): Detected {
  const heads = requireHint(hints.numKvHeads, 'num_kv_heads', 'TensorRT-LLM');
  const slots = requireHint(hints.tokensPerBlock, 'tokens_per_block', 'TensorRT-LLM');
  const headSize = requireHint(hints.headDim, 'head_dim', 'TensorRT-LLM');
  const blockSize = heads * slots * headSize;
  if (tensorCount !== 1 || shape.length !== 4 || shape[3] !== blockSize) {
    throw new KvdError(
      'ERR_LAYOUT',
      `TensorRT-LLM: expected one tensor [NB, NL, 2, ${heads}*${slots}*${headSize} = ` +
        `${blockSize}], got ${tensorCount} with shape [${shape.join(', ')}]`,
    );
  }
  const reshape: Reshape = (tensor) => ({
    shape: [...tensor.shape.slice(0, 3), heads, slots, headSize],
    stride: [...tensor.stride.slice(0, 3), slots * headSize, headSize, 1],
  });
  return { format: KV_FORMATS[8], reshape };
}

function detectAtom({ name, shape }: Tensor): Detected {
  if (shape.length === 3) return asIs(KV_FORMATS[3]);
  throw new KvdError(
    'ERR_LAYOUT',
    `${name}: no ATOM layout has the shape [${shape.join(', ')}]; expected [NB, BS, HS]`,
  );
}

/** [NB, NH, BS, 2*HS] → [NB, NH, BS, 2, HS] */
function splitFusedHead({ name, shape, stride }: Tensor): ReturnType<Reshape> {
  const fused = shape.at(-1) as number;
  if (shape.length !== 4 || fused % 2 !== 0) {
    throw new KvdError(
      'ERR_LAYOUT',
      `${name}: expected [NB, NH, BS, 2*HS], got [${shape.join(', ')}]`,
    );
  }
  return {
    shape: [...shape.slice(0, 3), 2, fused / 2],
    stride: [...stride.slice(0, 3), fused / 2, 1],
  };
}

/** [NB*BS, NH, HS] → [NB, BS, NH, HS] */
function splitSlots(tensor: Tensor, slotsPerBlock: number): ReturnType<Reshape> {
  const { name, shape, stride } = tensor;
  const slots = shape[0] as number;
  if (shape.length !== 3 || slots % slotsPerBlock !== 0) {
    throw new KvdError(
      'ERR_LAYOUT',
      `${name}: expected [slots, heads, head size] with slots a multiple of tokens_per_block ` +
        `${slotsPerBlock}, got [${shape.join(', ')}]`,
    );
  }
  const slotStride = stride[0] as number;
  return {
    shape: [slots / slotsPerBlock, slotsPerBlock, ...shape.slice(1)],
    stride: [slotStride * slotsPerBlock, slotStride, ...stride.slice(1)],
  };
}

/** [NB, BS, 1, HS] → [NB, BS, HS]. Gaps are between slots here, not between blocks. */
function dropHead(reshape: Reshape): Reshape {
  return (tensor) => {
    if (tensor.isPadded) throw gapError(tensor, KV_FORMATS[5]);
    const { shape, stride } = reshape(tensor);
    return {
      shape: [...shape.slice(0, 2), shape[3] as number],
      stride: [...stride.slice(0, 2), stride[3] as number],
    };
  };
}

function requireHint(value: number | undefined, key: string, engine: string): number {
  if (value !== undefined && Number.isSafeInteger(value) && value > 0) return value;
  throw new KvdError(
    'ERR_LAYOUT',
    `${engine}: layout hint ${key} must be a positive integer, got ${value ?? 'none'}`,
  );
}
