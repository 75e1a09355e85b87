/**
 * The objects of a worker that moves its bytes itself: one tensor per chunk,
 *
 *   [2, layers, slots, hidden]     keys of all layers, then values
 *   [layers, slots, hidden]        MLA: one latent vector per slot; fused heads as well, where the
 *                                  client keeps keys and values of a head side by side
 *
 * which are the bytes of a server-driven object with one kernel group (kv-layout.ts), so that each
 * path reads what the other stored (spec engine 5.5, 6.1). A chunk has a slot per token, or as many
 * as the client says (a compressed cache).
 */
import { OBJECT_SIZE_MAX_BYTES } from '../../core/object-table.ts';
import { DTYPE_SIZE_BYTES, type DtypeName } from '../../device/tensor-wrapper.ts';
import { KvdError } from '../../errors.ts';
import { NO_WINDOW } from '../../storage/window-fold.ts';
import { formatBytes } from '../../units.ts';
import type { EngineDrivenContextRequest } from '../api.ts';
import type { LayoutRules } from '../client-traits.ts';
import type { EngineDrivenInstance } from '../instances.ts';
import { describeLayout, layoutTagOf } from '../layout-registry.ts';

/** Throws `ERR_BAD_REQUEST` or `ERR_LAYOUT` when the worker cannot be served. */
export function describeWorker(
  request: EngineDrivenContextRequest,
  chunkSizeTokens: number,
  layoutRules: LayoutRules,
): EngineDrivenInstance {
  const { instanceId, modelName, worldSize, layerCount, hiddenSize, dtype, usesMla } = request;
  if (modelName.includes('@')) {
    throw new KvdError('ERR_BAD_REQUEST', `expected a model_name without "@", got ${modelName}`);
  }
  const slotCount = request.physicalSlotCount ?? chunkSizeTokens;
  if (!(Number.isSafeInteger(slotCount) && slotCount >= 1)) {
    throw new KvdError(
      'ERR_BAD_REQUEST',
      `expected num_physical_slots of at least 1, got ${slotCount}`,
    );
  }
  const perKind = [layerCount, slotCount, hiddenSize];
  const shape = usesMla ? perKind : [2, ...perKind];
  const objectSizeBytes = shape.reduce((product, n) => product * n, DTYPE_SIZE_BYTES[dtype]);
  if (objectSizeBytes > OBJECT_SIZE_MAX_BYTES) {
    throw new KvdError(
      'ERR_LAYOUT',
      `a chunk of [${shape.join(', ')}] ${dtype} has ${formatBytes(objectSizeBytes)}, at most ` +
        `${formatBytes(OBJECT_SIZE_MAX_BYTES)} can be stored: lower --chunk-size`,
    );
  }
  const memoryLayout = { shapes: [shape], dtypes: [dtype] };
  const layoutText = describeLayout(memoryLayout);
  const object = {
    objectGroupId: 0,
    windowChunks: NO_WINDOW,
    isAuxiliary: false,
    memoryLayout,
    objectSizeBytes,
    layoutText,
    layoutTag: layoutTagOf(layoutText),
  };
  return {
    kind: 'engine-driven',
    instanceId,
    modelName,
    worldSize,
    engineType: 'vllm',
    layoutRules,
    layout: { isMla: usesMla, objectGroups: [object] },
    object,
    layerCount,
    blockSize: request.blockSize,
  };
}

/** The tensor of one chunk. */
export function chunkTensorOf(instance: EngineDrivenInstance): {
  readonly shape: readonly number[];
  readonly dtype: DtypeName;
} {
  const { shapes, dtypes } = instance.object.memoryLayout;
  return { shape: shapes[0] as readonly number[], dtype: dtypes[0] as DtypeName };
}

/** Everything that the worker said is as before. */
export function isSameWorker(a: EngineDrivenInstance, b: EngineDrivenInstance): boolean {
  const facts = ({ modelName, worldSize, blockSize, layoutRules, layout }: EngineDrivenInstance) =>
    JSON.stringify([modelName, worldSize, blockSize, layoutRules, layout]);
  return facts(a) === facts(b);
}
