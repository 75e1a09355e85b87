/** raw_block backends on a device in memory. */
import type { Clock } from '../../src/clock.ts';
import { type DeviceLayout, layOut } from '../../src/l2/raw-block/layout.ts';
import { RawBlockBackend, type RawBlockOptions } from '../../src/l2/raw-block/raw-block-backend.ts';
import type { Logger } from '../../src/observability/log.ts';
import { KIB } from '../../src/units.ts';
import { FailingDevice } from './failing-device.ts';
import { silentLogger } from './silent-logger.ts';
import { VirtualClock } from './virtual-clock.ts';

export const HOUSE_SLOT_BYTES = 8 * KIB;
const HOUSE_META_BYTES = 64 * KIB;

export interface HouseOptions {
  readonly slotCount?: number;
  readonly metaBytes?: number;
  readonly image?: Buffer;
  readonly clock?: Clock;
  readonly log?: Logger;
  readonly checkpoint?: Partial<RawBlockOptions['checkpoint']>;
}

export interface RawBlockHouse {
  readonly device: FailingDevice;
  readonly layout: DeviceLayout;
  readonly backend: RawBlockBackend;
}

export async function openRawBlock(options: HouseOptions = {}): Promise<RawBlockHouse> {
  const { slotCount = 8, metaBytes = HOUSE_META_BYTES, clock = new VirtualClock() } = options;
  const device = new FailingDevice(options.image ?? metaBytes + slotCount * HOUSE_SLOT_BYTES);
  const layout = layOut(
    {
      devicePath: '/dev/in-memory',
      slotBytes: HOUSE_SLOT_BYTES,
      capacityBytes: 0,
      blockAlignBytes: 512,
      headerBytes: 512,
      metaTotalBytes: metaBytes,
      metaMagic: 'LMCIDX01',
      metaVersion: 1,
    },
    device.sizeBytes,
  );
  const backend = await RawBlockBackend.open({
    device,
    layout,
    storeLaneCount: 2,
    loadLaneCount: 2,
    checkpoint: {
      intervalMs: 0,
      quietMs: 100,
      isLoaded: true,
      isVerified: true,
      ...options.checkpoint,
    },
    about: {},
    log: options.log ?? silentLogger,
    clock,
  });
  return { device, layout, backend };
}
