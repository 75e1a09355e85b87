/** What a client says about its tensors in shared memory, checked before anything is mapped. */
import { KvdError } from '../errors.ts';
import { storageBytesNeeded } from './tensor-geometry.ts';
import type { CpuShmWrapper, TensorWrapper } from './tensor-wrapper.ts';

const SAFE_NAME = /^\/lmcache_kv_[A-Za-z0-9_.-]{1,200}$/;
/** Layers × planes of the largest models are some hundreds. */
const TENSOR_COUNT_MAX = 4096;

/** All wrappers of one registration, checked; throws at the first that cannot be. */
export function readWrappers(wrappers: readonly TensorWrapper[]): CpuShmWrapper[] {
  if (wrappers.length > TENSOR_COUNT_MAX) {
    throw new KvdError(
      'ERR_DEVICE_MEMORY',
      `${wrappers.length} tensors, at most ${TENSOR_COUNT_MAX}`,
    );
  }
  return wrappers.map((wrapper, index) => {
    const label = `tensor ${index}`;
    if (wrapper.kind !== 'cpu-shm') {
      throw new KvdError(
        'ERR_UNSUPPORTED',
        `${label} is a ${wrapper.kind} handle: this server has no accelerator`,
      );
    }
    const bytes = storageBytesNeeded(wrapper, label);
    if (wrapper.shmName === '' && bytes === 0) return wrapper;
    if (!SAFE_NAME.test(wrapper.shmName)) {
      throw new KvdError(
        'ERR_DEVICE_MEMORY',
        `${label}: segment name ${JSON.stringify(wrapper.shmName)}, expected /lmcache_kv_…`,
      );
    }
    if (!(bytes <= wrapper.sizeBytes) || !Number.isSafeInteger(wrapper.sizeBytes)) {
      throw new KvdError(
        'ERR_DEVICE_MEMORY',
        `${label} needs ${bytes} bytes of ${wrapper.shmName}, which has ${wrapper.sizeBytes}`,
      );
    }
    return wrapper;
  });
}

/** Segment name → the largest size that a wrapper gives it, in order of first use. */
export function segmentSizes(wrappers: readonly CpuShmWrapper[]): Map<string, number> {
  const sizes = new Map<string, number>();
  for (const { shmName, sizeBytes } of wrappers) {
    if (shmName === '' || sizeBytes === 0) continue;
    sizes.set(shmName, Math.max(sizes.get(shmName) ?? 0, sizeBytes));
  }
  return sizes;
}
