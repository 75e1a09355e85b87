import { Shim } from '../../src/device/shim.ts';
import { openL1Memory, type ShmOptions } from '../../src/storage/l1-memory/l1-memory.ts';
import { silentLogger } from '../support/silent-logger.ts';
import { l1MemoryContract } from './l1-memory.ts';

const shim = Shim.load();
const opener = (shm: ShmOptions | null) => (sizeBytes: number) =>
  openL1Memory({ shim, log: silentLogger, sizeBytes, hugePages: 'transparent', shm });

l1MemoryContract({ kind: 'anonymous', open: opener(null) });

l1MemoryContract({
  kind: 'posix-shm',
  // Other test files may run beside this one.
  open: opener({ name: `lmcache_l1_pool_contract-${process.pid}`, mode: 0o600 }),
});
