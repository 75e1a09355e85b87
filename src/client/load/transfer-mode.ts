/** Which transfer path a benchmark takes, and who its workers are. */
import { randomBytes } from 'node:crypto';
import { KvdError } from '../../errors.ts';
import { type BenchWorker, type Caller, isTimeout } from './bench-worker.ts';

/** A server of another make may not answer at all what it does not know. */
const PROBE_TIMEOUT_MS = 2_000;

/** `auto` is what a client on a machine without GPUs does: engine-driven if the server can. */
export async function chooseMode(
  caller: Caller,
  wanted: BenchWorker['mode'] | 'auto',
): Promise<BenchWorker['mode']> {
  if (wanted === 'auto') {
    return (await isServed(caller, 'engine_driven')) ? 'engine_driven' : 'lmcache_driven';
  }
  if (await isServed(caller, wanted)) return wanted;
  throw new KvdError(
    'ERR_UNSUPPORTED',
    `the server does not serve ${wanted} transfers (--supported-transfer-mode)`,
  );
}

/**
 * Asks with a request that is harmless where it is known. A registration would not do: the answer
 * to one that fails is silence.
 */
async function isServed(caller: Caller, mode: BenchWorker['mode']): Promise<boolean> {
  const name =
    mode === 'engine_driven' ? 'UNREGISTER_KV_CACHE_ENGINE_DRIVEN_CONTEXT' : 'UNREGISTER_KV_CACHE';
  try {
    const request = { instanceId: newInstanceId() };
    return (await caller.tryCall(name, request, PROBE_TIMEOUT_MS)).error === null;
  } catch (error) {
    if (isTimeout(error)) return false;
    throw error;
  }
}

/** Above 2^22, below which the server takes it for a process id of an SGLang worker. */
export function newInstanceId(): bigint {
  return (randomBytes(8).readBigUInt64LE() >> 1n) | (1n << 62n);
}
