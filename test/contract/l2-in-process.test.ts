import { backendType as faultInject } from '../../src/l2/adapters/fault-inject.ts';
import { backendType as mock } from '../../src/l2/adapters/mock.ts';
import type { L2Backend } from '../../src/l2/backend.ts';
import { openBackend } from '../support/l2-context.ts';
import { l2BackendContract } from './l2-backend.ts';

const openMock = (): Promise<L2Backend> =>
  openBackend(mock, { max_size_gb: 1, mock_bandwidth_gb: 1000 });

for (const [name, open] of [
  ['mock', openMock],
  [
    'fault_inject that injects nothing',
    () => openBackend(faultInject, { inner: {} }, {}, { openInner: openMock }),
  ],
] as const) {
  l2BackendContract({
    name,
    isPersistent: false,
    isShared: false,
    makeStore: async () => ({ open, dispose: async () => {} }),
  });
}
