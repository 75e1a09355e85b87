import { openDeviceHouse } from '../support/device-house.ts';
import { MemoryDevice } from '../support/memory-device.ts';
import { deviceContract } from './device.ts';

deviceContract({
  name: 'CPU over shared memory',
  async open(sizeBytes) {
    const { device, memory, segment, close } = await openDeviceHouse({ sizeBytes });
    return { device, l1: memory.view(0, sizeBytes), segment, close };
  },
});

deviceContract({
  name: 'plain JavaScript, for tests',
  async open(sizeBytes) {
    const device = new MemoryDevice(sizeBytes);
    return {
      device,
      l1: device.l1,
      segment(content) {
        const name = `/lmcache_kv_test_${device.segments.size}`;
        device.segments.set(name, content.slice());
        return { name, read: () => device.segments.get(name) as Uint8Array };
      },
      close: () => device.close(),
    };
  },
});
