// Stores and deletes on the raw block file in argv[2] without end, with checkpoints meanwhile, and
// prints a line after each. Run as a child by raw-block-crash.test.ts, which kills it.
import { backendType } from '../../src/l2/adapters/raw-block.ts';
import { KIB, MIB } from '../../src/units.ts';
import { openBackend } from './l2-context.ts';
import { l2Key, l2Value } from './l2-objects.ts';

const never = new AbortController().signal;
const VALUE_BYTES = 3001;

function objectOf(index, seed) {
  const bytes = l2Value(VALUE_BYTES, seed);
  new DataView(bytes.buffer).setUint32(0, seed);
  return { key: l2Key(index), bytes };
}

const backend = await openBackend(backendType, {
  device_path: process.argv[2],
  slot_bytes: 12 * KIB,
  meta_total_bytes: MIB,
});
await backend.store([objectOf(0, 1)], never);
for (let seed = 2; ; seed += 1) {
  const key = 1 + (seed % 3);
  if (seed % 10 === 0) backend.checkpoint().then(() => console.log(seed));
  await backend.delete([l2Key(key)], never);
  await backend.store([objectOf(key, seed)], never);
}
