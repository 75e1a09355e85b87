import type { ObjectKey } from '../../src/l2/object-key.ts';
import { ScriptedBackend } from '../support/scripted-backend.ts';
import { l2BackendContract } from './l2-backend.ts';

// The tests' own backend, which stands for all others where the adapter around them is tested.
l2BackendContract({
  name: 'scripted',
  isPersistent: false,
  isShared: false,
  async makeStore() {
    const backend = new ScriptedBackend();
    return {
      open: async () => backend,
      dispose: async () => {},
      plant: async (key: ObjectKey, bytes: Uint8Array) => backend.plant(key, bytes),
    };
  },
});
