// Opens L1 in shared memory under the name in argv[2] (or '' for the default name), prints the
// name that it got or the error, and then waits to be killed. Run as a child by l1-memory.test.ts.
import { Shim } from '../../src/device/shim.ts';
import { openL1Memory } from '../../src/storage/l1-memory/l1-memory.ts';
import { silentLogger } from './silent-logger.ts';

try {
  const memory = await openL1Memory({
    shim: Shim.load(),
    log: silentLogger,
    sizeBytes: 1 << 20,
    hugePages: 'none',
    shm: { name: process.argv[2] || null, mode: 0o600 },
  });
  console.log(memory.shmName);
  process.stdin.on('data', () => process.exit(0));
} catch (error) {
  console.log(`error: ${error.message}`);
}
