/**
 * `raw_block`: values in slots of a block device or a pre-sized file, read and written past the
 * page cache, with images that the peer can use and the other way round.
 *
 * The peer's other ways to reach a device (io_uring, NVMe passthrough, placement hints) need parts
 * that this server does not have. Asked for, they stop the start: a device that is silently used in
 * another way than it was planned for is found out about too late.
 */
import { KvdError } from '../../errors.ts';
import { MIB } from '../../units.ts';
import type { L2BackendType } from '../backend.ts';
import type { ConfigKeys, ConfigValues } from '../config-keys.ts';
import { deviceBytesOf, openBlockDevice } from '../raw-block/block-device.ts';
import { type LayoutOptions, layOut, plannedSlotCount } from '../raw-block/layout.ts';
import { RawBlockBackend } from '../raw-block/raw-block-backend.ts';

const KEYS = {
  device_path: { kind: 'text', about: 'Block device, or file that has its size already.' },
  slot_bytes: {
    kind: 'integer',
    min: 1,
    about: 'What one object takes: the largest value plus `header_bytes`, in whole blocks.',
  },
  capacity_bytes: {
    kind: 'integer',
    fallback: 0,
    min: 0,
    about: 'Part of the device that is used, from its beginning on; 0 = all of it.',
  },
  use_odirect: {
    kind: 'boolean',
    fallback: true,
    about: 'Past the page cache (O_DIRECT). Needs an L1 alignment of at least `block_align`.',
  },
  block_align: {
    kind: 'integer',
    fallback: 4096,
    min: 512,
    about: 'Unit of reads and writes, a power of two.',
  },
  header_bytes: {
    kind: 'integer',
    fallback: 4096,
    min: 512,
    about: 'Before the value in each slot, in whole blocks.',
  },
  meta_total_bytes: {
    kind: 'integer',
    fallback: 256 * MIB,
    min: 1,
    about: 'For two copies of the index, at about 400 bytes per object each.',
  },
  meta_magic: { kind: 'text', fallback: 'LMCIDX01', about: 'Mark of the index: 8 characters.' },
  meta_version: {
    kind: 'integer',
    fallback: 1,
    min: 1,
    max: 0xffff_ffff,
    about: 'Version of the index; another one on the device makes that void.',
  },
  meta_checkpoint_interval_sec: {
    kind: 'integer',
    fallback: 60,
    min: 0,
    about: 'Time between two checkpoints of the index, at least 1: what a crash may lose.',
  },
  meta_idle_quiet_ms: {
    kind: 'integer',
    fallback: 100,
    min: 0,
    about:
      'Pause of reads and writes before a checkpoint. The fifth interval does not wait for it.',
  },
  meta_enable_periodic: {
    kind: 'boolean',
    fallback: true,
    about: 'False: checkpoints when slots run out and on close only.',
  },
  load_checkpoint_on_init: {
    kind: 'boolean',
    fallback: true,
    about: 'False: what the device holds is forgotten.',
  },
  meta_verify_on_load: {
    kind: 'boolean',
    fallback: true,
    about: 'Compare the header of every slot with the index at start.',
  },
  enable_zero_copy: {
    kind: 'boolean',
    fallback: true,
    about: 'Taken and not needed: values always go straight between L1 and the device.',
  },
  io_engine: { kind: 'text', fallback: 'posix', about: '`posix` is the only one.' },
  use_iouring: { kind: 'boolean', fallback: false, about: 'Must be false: there is no io_uring.' },
  use_uring: { kind: 'boolean', fallback: false, about: 'Must be false: there is no io_uring.' },
  use_uring_cmd: {
    kind: 'boolean',
    fallback: false,
    about: 'Must be false: there is no NVMe passthrough.',
  },
  iouring_queue_depth: {
    kind: 'integer',
    fallback: 256,
    min: 1,
    about: 'Taken and not needed: of io_uring.',
  },
  max_data_transfer_size: {
    kind: 'integer',
    fallback: 0,
    about: 'Taken and not needed: of NVMe passthrough.',
  },
  num_store_workers: {
    kind: 'integer',
    fallback: 2,
    min: 1,
    max: 256,
    about: 'Values that are written at the same time.',
  },
  num_lookup_workers: {
    kind: 'integer',
    fallback: 1,
    min: 1,
    about: 'Taken and not needed: lookups read memory.',
  },
  num_load_workers: {
    kind: 'integer',
    fallback: 4,
    min: 1,
    max: 256,
    about: 'Values that are read at the same time.',
  },
  persist_enabled: {
    kind: 'boolean',
    fallback: true,
    about: 'Must be true: what is stored stays on the device.',
  },
  per_tp_device_paths: {
    kind: 'object',
    fallback: null,
    about: 'Refused: one adapter uses one device.',
  },
  fdp_enabled: {
    kind: 'boolean',
    fallback: false,
    about: 'Must be false: there is no NVMe placement.',
  },
  fdp_placement_ids: { kind: 'list', fallback: [], about: 'Must be empty.' },
  fdp_data_placement_policy: {
    kind: 'text',
    fallback: 'none',
    choices: ['none', 'cache_salt_prefix', 'cache_salt_rank'],
    about: 'Must be `none`.',
  },
  fdp_slot_reuse_policy: {
    kind: 'text',
    fallback: 'none',
    choices: ['none', 'pid_affinity'],
    about: 'Must be `none`.',
  },
  meta_checkpoint_placement_id: { kind: 'integer', fallback: null, about: 'Must be absent.' },
} as const satisfies ConfigKeys;

export const backendType: L2BackendType = {
  typeName: 'raw_block',
  about: 'A raw block device, or a file that stands in for one.',
  keys: KEYS,
  async open(values, { alignBytes, clock, lockFile, log }) {
    refuseWhatIsMissing(values);
    const options = layoutOptions(values);
    const { devicePath, blockAlignBytes } = options;
    const layout = layOut(options, deviceBytesOf(devicePath));
    const isDirect = values['use_odirect'] as boolean;
    if (isDirect && alignBytes % blockAlignBytes !== 0) {
      refuse(
        `"use_odirect" needs an L1 alignment of at least "block_align" (${blockAlignBytes}), it ` +
          `is ${alignBytes}: raise --l1-align-bytes, or set "use_odirect": false`,
      );
    }
    const device = openBlockDevice({ path: devicePath, isDirect, lockFile });
    const intervalSeconds = Math.max(1, values['meta_checkpoint_interval_sec'] as number);
    const isPeriodic = values['meta_enable_periodic'] as boolean;
    try {
      return await RawBlockBackend.open({
        device,
        layout,
        storeLaneCount: values['num_store_workers'] as number,
        loadLaneCount: values['num_load_workers'] as number,
        checkpoint: {
          intervalMs: isPeriodic ? intervalSeconds * 1000 : 0,
          quietMs: values['meta_idle_quiet_ms'] as number,
          isLoaded: values['load_checkpoint_on_init'] as boolean,
          isVerified: values['meta_verify_on_load'] as boolean,
        },
        about: {
          use_odirect: isDirect,
          enable_zero_copy: true,
          io_engine: 'posix',
          iouring_queue_depth: values['iouring_queue_depth'],
          use_uring_cmd: false,
        },
        log,
        clock,
      });
    } catch (error) {
      await device.close();
      throw error;
    }
  },
  capacityBytes(values) {
    const options = layoutOptions(values);
    const layout = layOut(options, deviceBytesOf(options.devicePath));
    return plannedSlotCount(layout) * layout.slotBytes;
  },
};

function layoutOptions(values: ConfigValues): LayoutOptions {
  return {
    devicePath: values['device_path'] as string,
    slotBytes: values['slot_bytes'] as number,
    capacityBytes: values['capacity_bytes'] as number,
    blockAlignBytes: values['block_align'] as number,
    headerBytes: values['header_bytes'] as number,
    metaTotalBytes: values['meta_total_bytes'] as number,
    metaMagic: values['meta_magic'] as string,
    metaVersion: values['meta_version'] as number,
  };
}

function refuseWhatIsMissing(values: ConfigValues): void {
  const engine = (values['io_engine'] as string).toLowerCase();
  if (engine === 'io_uring' || values['use_iouring'] === true || values['use_uring'] === true) {
    refuse('io_uring is not part of this server: set "io_engine": "posix"');
  }
  if (engine !== 'posix') refuse(`"io_engine" must be "posix", got "${engine}"`);
  if (values['use_uring_cmd'] === true) {
    refuse(
      'NVMe passthrough is not part of this server: leave out "use_uring_cmd", and name the ' +
        'block device (/dev/nvme0n1) instead of the character device (/dev/ng0n1)',
    );
  }
  const hasPlacement =
    values['fdp_enabled'] === true ||
    (values['fdp_placement_ids'] as unknown[]).length > 0 ||
    values['fdp_data_placement_policy'] !== 'none' ||
    values['fdp_slot_reuse_policy'] !== 'none' ||
    values['meta_checkpoint_placement_id'] !== null;
  if (hasPlacement) {
    refuse('NVMe placement (FDP) is not part of this server: leave out the "fdp_…" keys');
  }
  if (values['per_tp_device_paths'] !== null) {
    refuse('"per_tp_device_paths" is not for this server: use one adapter per device');
  }
  if (values['persist_enabled'] !== true) {
    refuse('"persist_enabled" must be true: a device keeps what is stored');
  }
}

function refuse(message: string): never {
  throw new KvdError('ERR_CONFIG', message);
}
