/**
 * The objects of a worker that moves its bytes itself: one tensor per chunk,
 *
 *   [2, layers, chunk tokens, hidden]     keys of all layers, then values
 *   [layers, chunk tokens, hidden]        MLA: one latent vector per token
 *
 * which are the bytes of a server-driven object with one kernel group (kv-layout.ts), so that each
 * path reads what the other stored (spec engine 5.5, 6.1).
 */
import { OBJECT_SIZE_MAX_BYTES } from '../../core/object-table.ts';
import { DTYPE_SIZE_BYTES, type DtypeName } from '../../device/tensor-wrapper.ts';
import { KvdError } from '../../errors.ts';
import { formatBytes } from '../../units.ts';
import type { EngineDrivenContextRequest } from '../api.ts';
import type { EngineDrivenInstance } from '../instances.ts';
import { layoutTagOf } from '../layout-registry.ts';

/** Throws `ERR_BAD_REQUEST` or `ERR_LAYOUT` when the worker cannot be served. */
export function describeWorker(
  request: EngineDrivenContextRequest,
  chunkSizeTokens: number,
): EngineDrivenInstance {
  const { instanceId, modelName, worldSize, layerCount, hiddenSize, dtype, usesMla } = request;
  if (modelName.includes('@')) {
    throw new KvdError('ERR_BAD_REQUEST', `expected a model_name without "@", got ${modelName}`);
  }
  const perKind = [layerCount, chunkSizeTokens, hiddenSize];
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
  return {
    kind: 'engine-driven',
    instanceId,
    modelName,
    worldSize,
    engineType: 'vllm',
    layout: {
      memoryLayout,
      objectSizeBytes,
      isMla: usesMla,
      layoutTag: layoutTagOf(memoryLayout),
    },
    layerCount,
    blockSize: request.blockSize,
  };
}

/** The tensor of one chunk. */
export function chunkTensorOf(instance: EngineDrivenInstance): {
  readonly shape: readonly number[];
  readonly dtype: DtypeName;
} {
  const { shapes, dtypes } = instance.layout.memoryLayout;
  return { shape: shapes[0] as readonly number[], dtype: dtypes[0] as DtypeName };
}

/** Everything that the worker said is as before. */
export function isSameWorker(a: EngineDrivenInstance, b: EngineDrivenInstance): boolean {
  const facts = ({ modelName, worldSize, blockSize, layout }: EngineDrivenInstance) =>
    JSON.stringify([modelName, worldSize, blockSize, layout]);
  return facts(a) === facts(b);
}
