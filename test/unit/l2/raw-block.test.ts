import fs from 'node:fs';
import * as assert from 'uvu/assert';
import type { KvdError } from '../../../src/errors.ts';
import { backendType } from '../../../src/l2/adapters/raw-block.ts';
import type { L2Backend } from '../../../src/l2/backend.ts';
import { decodeRawBlockKey } from '../../../src/l2/key-text.ts';
import type { ObjectKey } from '../../../src/l2/object-key.ts';
import { deviceBytesOf } from '../../../src/l2/raw-block/block-device.ts';
import { KIB, MIB } from '../../../src/units.ts';
import { L2AdapterHouse } from '../../support/l2-adapter-house.ts';
import { openBackend } from '../../support/l2-context.ts';
import { l2Key, l2Value } from '../../support/l2-objects.ts';
import { BLOCK_BYTES, DeviceFile, peerImage } from '../../support/raw-block-device.ts';
import { HOUSE_SLOT_BYTES, openRawBlock } from '../../support/raw-block-house.ts';
import { RecordingLogger } from '../../support/recording-logger.ts';
import { refuses } from '../../support/rejects.ts';
import { suite } from '../../support/suite.ts';
import { VirtualClock } from '../../support/virtual-clock.ts';
import { until } from '../../support/waiting.ts';

const never = new AbortController().signal;

const objectOf = (index: number, sizeBytes = 1000) => ({
  key: l2Key(index),
  bytes: l2Value(sizeBytes, index),
});
const objectsUpTo = (count: number) => Array.from({ length: count }, (_, index) => objectOf(index));

async function load(backend: L2Backend, key: ObjectKey, sizeBytes: number): Promise<Uint8Array> {
  const bytes = new Uint8Array(sizeBytes);
  assert.equal(await backend.load([{ key, bytes }], never), ['loaded']);
  return bytes;
}

function coreOf(backend: L2Backend): Record<string, number | boolean | string> {
  return backend.status()['core'] as Record<string, number | boolean | string>;
}

/** The payload of the newest container. */
function newestPayload(image: Buffer, containerBytes: number, blockBytes: number) {
  const [head] = [0, containerBytes]
    .map((offset) => image.subarray(offset))
    .sort((a, b) => Number(b.readBigUInt64LE(12) - a.readBigUInt64LE(12)));
  assert.ok(head);
  const payload = head.subarray(blockBytes, blockBytes + Number(head.readBigUInt64LE(20)));
  return JSON.parse(payload.toString('latin1'));
}

suite('raw block: images of the peer', (test) => {
  for (const release of ['050', '056'] as const) {
    test(`of ${release} are read, and go on with what is stored here`, async () => {
      const { expected, image } = peerImage(release);
      const { block_align, header_bytes, slot_bytes, meta_total_bytes } = expected.config;
      const device = new DeviceFile();
      const from = process.cwd();
      process.chdir(device.folder); // the image holds a path without a folder
      try {
        fs.writeFileSync(expected.device_path_in_image, image);
        const json = {
          ...{ device_path: expected.device_path_in_image, use_odirect: false },
          ...{ block_align, header_bytes, slot_bytes, meta_total_bytes },
        };
        const backend = await openBackend(backendType, json);
        const page = await backend.list?.({
          modelName: null,
          pageSize: 99,
          token: null,
          signal: never,
        });
        const keys = expected.live_after_recovery.map((text) => decodeRawBlockKey(text));
        assert.equal(
          page?.objects.map(({ key }) => key),
          keys,
        );
        for (const [i, slot] of [0, 3, 4].entries()) {
          const bytes = await load(backend, keys[i] as ObjectKey, 1000);
          assert.ok(bytes.every((byte, j) => byte === ((7 * j + slot) & 255)));
        }
        // Slots 1 and 2 are free, and no slot is lost: 7 in all.
        assert.is(coreOf(backend)['free_slot_count'], 2);
        const objects = objectsUpTo(4);
        assert.ok((await backend.store(objects, never)).every((result) => result === 'stored'));
        assert.instance((await backend.store([objectOf(9)], never))[0], Error);
        await backend.close();

        const written = fs.readFileSync(expected.device_path_in_image);
        const { entries, free_slots, next_slot, ...frame } = newestPayload(written, 16_384, 4096);
        const payload = expected.containers[1]?.payload ?? {};
        for (const [name, value] of Object.entries(frame)) assert.equal(value, payload[name], name);
        assert.equal(free_slots, []);
        assert.is(next_slot, 7);
        assert.is(Object.keys(entries).length, 7);
        // What the peer has said of its objects stays.
        for (const text of expected.live_after_recovery) {
          assert.equal(entries[text], (payload['entries'] as Record<string, unknown>)[text]);
        }
      } finally {
        process.chdir(from);
        device.remove();
      }
    });
  }
});

suite('raw block: start', (test) => {
  const refusals: readonly (readonly [Record<string, unknown>, RegExp])[] = [
    [{ io_engine: 'IO_URING' }, /io_uring is not part of this server.*"posix"/],
    [{ use_iouring: true }, /io_uring is not part/],
    [{ use_uring_cmd: true }, /NVMe passthrough is not part.*\/dev\/nvme0n1/],
    [{ io_engine: 'fast' }, /"io_engine" must be "posix", got "fast"/],
    [{ fdp_enabled: true }, /placement \(FDP\) is not part/],
    [{ fdp_placement_ids: [1] }, /placement \(FDP\) is not part/],
    [{ persist_enabled: false }, /"persist_enabled" must be true/],
    [{ per_tp_device_paths: {} }, /one adapter per device/],
    [{ slot_bytes: 5000 }, /"slot_bytes" must be a multiple of "block_align" \(4096\), got 5000/],
    [{ slot_bytes: 4096 }, /"slot_bytes" must exceed "header_bytes"/],
    [{ block_align: 3072 }, /"block_align" must be a power of two/],
    [{ meta_total_bytes: 8192 }, /"meta_total_bytes" must hold two copies/],
    [{ meta_magic: 'short' }, /"meta_magic" must be 8 ASCII characters/],
    [{ capacity_bytes: 4096 }, /"capacity_bytes" must exceed "meta_total_bytes"/],
    [{ meta_total_bytes: 64 * MIB }, /too little for "meta_total_bytes" \(64\.00 MiB\)/],
    [{ block_align: 8192, header_bytes: 8192, slot_bytes: 16_384 }, /an L1 alignment of at least/],
    [{ device_path: '/nowhere/x' }, /cannot be used \(ENOENT\).*truncate/],
    [{ device_path: '/dev' }, /neither a block device nor a file/],
    [{ device_path: '/dev/null' }, /neither a block device nor a file/],
  ];
  for (const [json, expected] of refusals) {
    test(`${JSON.stringify(json)} is refused`, async () => {
      const device = new DeviceFile();
      await refuses(device.open(json), 'ERR_CONFIG', expected);
      device.remove();
    });
  }

  test('a second server on the device is refused, until the first has gone', async () => {
    const device = new DeviceFile();
    const first = await device.open();
    await refuses(device.open(), 'ERR_CONFIG', /in use by another server/);
    await first.close();
    const second = await device.open();
    await second.close();
    device.remove();
  });

  test('the capacity is that of the slots, or what the metadata can tell of', () => {
    const device = new DeviceFile({ slotBytes: 12 * KIB, slotCount: 16, metaBytes: MIB });
    const values = { device_path: device.path, slot_bytes: 12 * KIB, capacity_bytes: 0 };
    const rest = { block_align: 4096, header_bytes: 4096, meta_magic: 'LMCIDX01', meta_version: 1 };
    const capacityWith = (json: Record<string, number>): number =>
      backendType.capacityBytes({ ...values, ...rest, meta_total_bytes: MIB, ...json });
    assert.is(capacityWith({}), 16 * 12 * KIB);
    assert.is(capacityWith({ capacity_bytes: MIB + 40 * KIB }), 3 * 12 * KIB);
    assert.is(capacityWith({ meta_total_bytes: 4 * BLOCK_BYTES }), 10 * 12 * KIB);
    assert.is(deviceBytesOf(device.path), MIB + 16 * 12 * KIB);
    device.remove();
  });

  test('a checkpoint of another layout is replaced at once and said so', async () => {
    const { backend, device } = await openRawBlock();
    await backend.store(objectsUpTo(2), never);
    await backend.close();
    const image = device.remains(() => 1).killed;
    const at = image.lastIndexOf('/dev/in-memory');
    const log = new RecordingLogger();
    image.write('/dev/other-one', at, 'latin1');
    // The CRC has to be right, or it is no checkpoint at all.
    const { crc32 } = await import('node:zlib');
    const head = image.subarray(0, 512);
    head.writeUInt32LE(crc32(image.subarray(512, 512 + Number(head.readBigUInt64LE(20)))), 28);
    const { backend: later } = await openRawBlock({ image, log });
    assert.ok(log.has(/its device_path is "\/dev\/other-one", here it is "\/dev\/in-memory"/));
    assert.is(coreOf(later)['indexed_key_count'], 0);
    assert.is(coreOf(later)['metadata_seq'], 2);
  });

  test('an object whose slot holds something else is dropped at start', async () => {
    const { backend, device, layout } = await openRawBlock();
    await backend.store(objectsUpTo(3), never);
    await backend.close();
    const image = device.remains(() => 1).killed;
    image.fill(
      0,
      layout.metaTotalBytes + HOUSE_SLOT_BYTES,
      layout.metaTotalBytes + 1.5 * HOUSE_SLOT_BYTES,
    );
    const { backend: later } = await openRawBlock({ image });
    const sizes = await later.lookup(
      [0, 1, 2].map((index) => l2Key(index)),
      never,
    );
    assert.equal(sizes, [1000, null, 1000]);
    assert.is(coreOf(later)['slot_mismatch_total'], 1);
  });
});

suite('raw block: slots', (test) => {
  test('when none is free a store fails, and a delete makes room', async () => {
    const { backend } = await openRawBlock({ slotCount: 3 });
    const results = await backend.store(objectsUpTo(4), never);
    assert.equal(results.slice(0, 3), ['stored', 'stored', 'stored']);
    assert.match((results[3] as Error).message, /no free slot/);
    await backend.checkpoint();
    await backend.delete([l2Key(1)], never);
    assert.equal(await backend.store([objectOf(3)], never), ['stored']);
    await load(backend, l2Key(3), 1000);
  });

  test('a value that exceeds its slot is refused', async () => {
    const { backend } = await openRawBlock();
    const [result] = await backend.store([objectOf(0, HOUSE_SLOT_BYTES)], never);
    assert.match((result as Error).message, /does not fit a slot, which takes up to 7680/);
  });

  test('a slot that is being read is not given on', async () => {
    const { backend, device } = await openRawBlock({ slotCount: 1 });
    await backend.store([objectOf(0)], never);
    const gate = Promise.withResolvers<void>();
    device.beforeRead = () => gate.promise;
    const loading = load(backend, l2Key(0), 1000);
    await backend.delete([l2Key(0)], never);
    assert.match(String((await backend.store([objectOf(1)], never))[0]), /no free slot/);
    gate.resolve();
    assert.equal(Buffer.from(await loading), Buffer.from(objectOf(0).bytes));
    assert.equal(await backend.store([objectOf(1)], never), ['stored']);
  });

  test('buffers that the kernel refuses are copied', async () => {
    const { backend, device } = await openRawBlock();
    for (const [index, sizeBytes] of [512, 1000, 7680, 5].entries()) {
      const object = objectOf(index, sizeBytes);
      device.refused = object.bytes.buffer;
      assert.equal(await backend.store([object], never), ['stored']);
      const bytes = new Uint8Array(sizeBytes);
      device.refused = bytes.buffer;
      assert.equal(await backend.load([{ key: object.key, bytes }], never), ['loaded']);
      assert.equal(bytes, object.bytes);
    }
  });

  test('a write that fails gives its slot back', async () => {
    const { backend, device } = await openRawBlock({ slotCount: 1 });
    device.writeError = new Error('EIO');
    assert.match(String((await backend.store([objectOf(0)], never))[0]), /EIO/);
    device.writeError = null;
    assert.equal(await backend.store([objectOf(0)], never), ['stored']);
  });
});

suite('raw block: capacity', (test) => {
  test('is used up slot by slot, however small the values are, also after a restart', async () => {
    const { backend, device } = await openRawBlock({ slotCount: 3 });
    const options = { capacityBytes: 3 * HOUSE_SLOT_BYTES, wrap: () => backend };
    const { adapter } = new L2AdapterHouse(options);
    const results = await adapter.store(objectsUpTo(4)).outcome;
    assert.equal(results.slice(0, 3), ['stored', 'stored', 'stored']);
    assert.is((results[3] as KvdError).code, 'ERR_L2_FULL');
    assert.is(adapter.usage().usedBytes, 3 * HOUSE_SLOT_BYTES);
    await adapter.delete([l2Key(1)]);
    assert.is(adapter.usage().usedBytes, 2 * HOUSE_SLOT_BYTES);
    await adapter.close();
    const image = device.remains(() => 1).killed;
    const { backend: second } = await openRawBlock({ slotCount: 3, image });
    const later = new L2AdapterHouse({ ...options, wrap: () => second, scansOnStart: true })
      .adapter;
    later.start();
    await until(() => !later.isScanning, 1000);
    assert.is(later.usage().usedBytes, 2 * HOUSE_SLOT_BYTES);
    await later.close();
  });
});

suite('raw block: checkpoints', (test) => {
  const INTERVAL_MS = 1000;
  const checkpoint = { intervalMs: INTERVAL_MS, quietMs: 100 };

  test('one is written after an interval with changes when the device is quiet', async () => {
    const clock = new VirtualClock();
    const { backend } = await openRawBlock({ clock, checkpoint });
    clock.advance(3 * INTERVAL_MS);
    assert.is(coreOf(backend)['metadata_seq'], 0);
    await backend.store([objectOf(0)], never);
    clock.advance(INTERVAL_MS);
    await until(() => coreOf(backend)['metadata_seq'] === 1, 1000);
    assert.is(coreOf(backend)['metadata_persisted'], 1);
    clock.advance(INTERVAL_MS);
    assert.is(coreOf(backend)['metadata_seq'], 1);
  });

  test('a busy device gets one at the fifth interval', async () => {
    const clock = new VirtualClock();
    const { backend } = await openRawBlock({ clock, checkpoint });
    for (let interval = 1; interval <= 5; interval += 1) {
      assert.is(coreOf(backend)['metadata_seq'], 0);
      clock.advance(INTERVAL_MS - 50);
      await backend.store([objectOf(interval)], never);
      clock.advance(50);
    }
    await until(() => coreOf(backend)['metadata_seq'] === 1, 1000);
  });

  test('one that fails is counted, shown, told, and tried again', async () => {
    const log = new RecordingLogger();
    const { backend, device, layout } = await openRawBlock({ log });
    await backend.store([objectOf(0)], never);
    device.writeError = new Error('EIO: no medium');
    device.writeErrorTo = layout.metaTotalBytes;
    await backend.checkpoint().then(
      () => assert.unreachable('the checkpoint was written'),
      (error: unknown) => assert.match(String(error), /no medium/),
    );
    assert.ok(log.has(/no checkpoint was written to \/dev\/in-memory: EIO: no medium/));
    assert.is(coreOf(backend)['metadata_failed_total'], 1);
    assert.is(backend.status()['is_healthy'], false);
    device.writeError = null;
    await backend.checkpoint();
    assert.is(backend.status()['is_healthy'], true);
  });

  test('what the metadata has no room for is refused, and all else is found again', async () => {
    const log = new RecordingLogger();
    const small = { slotCount: 200, metaBytes: 16 * KIB };
    const { backend, device } = await openRawBlock({ ...small, log });
    assert.ok(log.has(/"meta_total_bytes" \(16\.00 KiB\) has room for about 20 of 200 slots/));
    const results = await backend.store(objectsUpTo(200), never);
    const storedCount = results.filter((result) => result === 'stored').length;
    assert.ok(storedCount > 20 && storedCount < 100, `${storedCount}`);
    assert.match(String(results.at(-1)), /the metadata area is full.*enlarge "meta_total_bytes"/);
    assert.is(coreOf(backend)['metadata_full_total'], 200 - storedCount);
    await backend.close();
    assert.is(coreOf(backend)['metadata_failed_total'], 0);
    const image = device.remains(() => 1).killed;
    const { backend: later } = await openRawBlock({ ...small, image });
    assert.is(coreOf(later)['indexed_key_count'], storedCount);
  });

  test('one larger than the memory it passes through is whole', async () => {
    const large = { slotCount: 3000, metaBytes: 8 * MIB };
    const { backend, device } = await openRawBlock(large);
    const salt = { cacheSalt: 'ü'.repeat(100) };
    const objects = objectsUpTo(3000).map(({ bytes }, index) => ({
      key: l2Key(index, salt),
      bytes,
    }));
    await backend.store(objects, never);
    await backend.delete([l2Key(7, salt)], never);
    await backend.close();
    assert.ok(device.isClosed);
    const image = device.remains(() => 1).killed;
    const payload = newestPayload(image, 4 * MIB, 512);
    assert.equal(payload.free_slots, [7]);
    assert.is(Object.keys(payload.entries).length, 2999);
    const { backend: later } = await openRawBlock({ ...large, image });
    assert.is(coreOf(later)['indexed_key_count'], 2999);
    assert.is(coreOf(later)['free_slot_count'], 1);
  });
});
