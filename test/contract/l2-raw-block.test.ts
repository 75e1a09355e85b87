import { KIB, MIB } from '../../src/units.ts';
import { DeviceFile } from '../support/raw-block-device.ts';
import { l2BackendContract } from './l2-backend.ts';

const LARGE_BYTES = MIB + 4321;
const HEADER_BYTES = 4 * KIB;

for (const isDirect of [true, false]) {
  l2BackendContract({
    name: isDirect ? 'raw_block past the page cache' : 'raw_block through the page cache',
    async makeStore() {
      const slotBytes = MIB + 3 * HEADER_BYTES;
      const device = new DeviceFile({ slotBytes, slotCount: 512, metaBytes: 2 * MIB });
      return {
        open: () => device.open({ use_odirect: isDirect }),
        dispose: async () => device.remove(),
        async plant(key, bytes) {
          const offset = device.offsetOf(key);
          const size = Buffer.alloc(8);
          size.writeBigUInt64LE(BigInt(bytes.length));
          device.write(offset + 16, size);
          device.write(offset + HEADER_BYTES, bytes);
        },
      };
    },
    isPersistent: true,
    isShared: false,
    largeSizeBytes: LARGE_BYTES,
  });
}
