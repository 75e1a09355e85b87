import * as assert from 'uvu/assert';
import type { KvdError } from '../../../src/errors.ts';
import type { L2Object } from '../../../src/l2/backend.ts';
import { encodeLayoutRecord, layoutRecordKey } from '../../../src/l2/layout-record.ts';
import type { Serde } from '../../../src/l2/serde/serde.ts';
import { withSerde } from '../../../src/l2/serde/serde-backend.ts';
import { readSerdeSpec } from '../../../src/l2/serde/serde-types.ts';
import { emptyObject, L2AdapterHouse, objectOf, turns } from '../../support/l2-adapter-house.ts';
import { l2Key, l2Value } from '../../support/l2-objects.ts';
import { ScriptedBackend, scriptedName } from '../../support/scripted-backend.ts';
import { suite } from '../../support/suite.ts';

const never = new AbortController().signal;

async function openSerde(json: Record<string, unknown>): Promise<Serde> {
  const { type, values, where } = readSerdeSpec(json, { where: 'test', env: {} });
  return type.open(values, where);
}

const zstd = await openSerde({ type: 'zstd', max_workers: 2 });
const fp8 = await openSerde({ type: 'fp8' });

const textOf = (id: number): Uint8Array => l2Value(4000, id).map((byte) => byte & 7);
const smallObject = (id: number): L2Object => ({ key: l2Key(id), bytes: textOf(id) });
const halves = (id: number, layout?: string): L2Object => ({
  key: l2Key(id),
  bytes: new Uint8Array(new Uint16Array(50).fill(0x3f80 + 16 * id).buffer),
  layout,
});

suite('serde around a backend', (test) => {
  test('objects come back, and the usage is that of the store', async () => {
    const { adapter, backend } = new L2AdapterHouse({ wrap: (inner) => withSerde(inner, zstd) });
    const objects = [1, 2, 3, 4, 5].map(smallObject);
    const sizes = (await adapter.store(objects).outcome) as number[];
    const stored = [...backend.values.values()].reduce((sum, { bytes }) => sum + bytes.length, 0);
    assert.is(adapter.usage().usedBytes, stored);
    assert.is(
      sizes.reduce((sum, size) => sum + size, 0),
      stored,
    );
    assert.ok(stored < 5 * 4000);
    const keys = objects.map(({ key }) => key);
    assert.equal(
      [
        ...(await adapter.lookup(
          keys,
          keys.map(() => 4000),
        )),
      ],
      [1, 1, 1, 1, 1],
    );
    const targets = objects.map(({ key }) => ({ key, bytes: new Uint8Array(4000) }));
    assert.equal(
      await adapter.load(targets).outcome,
      targets.map(() => 'loaded'),
    );
    for (const [i, { bytes }] of targets.entries()) assert.equal(bytes, objects[i]?.bytes);
    assert.is(adapter.usage().usedBytes, stored);
    assert.equal(
      await adapter.store(objects).outcome,
      objects.map(() => 'present'),
    );
    assert.is(adapter.usage().usedBytes, stored);
  });

  test('one object that cannot be transformed fails alone', async () => {
    const { adapter, backend } = new L2AdapterHouse({ wrap: (inner) => withSerde(inner, fp8) });
    const objects = [halves(1, 'bfloat16[50]'), halves(2), halves(3, 'bfloat16[50]')];
    const results = await adapter.store(objects).outcome;
    assert.equal([results[0], results[2]], [50, 50]);
    assert.is((results[1] as KvdError).code, 'ERR_L2_REFUSED');
    assert.is(backend.values.size, 2);
    assert.is(adapter.isHealthy, true);
    const targets = objects.map((object) => ({ ...object, bytes: new Uint8Array(100) }));
    const loaded = await adapter.load(targets).outcome;
    assert.equal([loaded[0], loaded[2]], ['loaded', 'loaded']);
    assert.instance(loaded[1], Error);
    assert.equal(targets[0]?.bytes, objects[0]?.bytes);
  });

  test('one damaged value fails alone, and is deleted', async () => {
    const { adapter, backend } = new L2AdapterHouse({ wrap: (inner) => withSerde(inner, zstd) });
    await adapter.store([1, 2].map(smallObject)).outcome;
    const value = backend.values.get(scriptedName(l2Key(1)))?.bytes as Uint8Array;
    value[value.length - 1] = (value.at(-1) as number) ^ 1;
    const targets = [1, 2].map((id) => emptyObject(id, 4000));
    const results = await adapter.load(targets).outcome;
    assert.is((results[0] as KvdError).code, 'ERR_L2_CORRUPT');
    assert.is(results[1], 'loaded');
    await turns();
    assert.is(backend.values.size, 1);
  });

  test('a value of another size is missing, and an absent one', async () => {
    const inner = new ScriptedBackend();
    const backend = withSerde(inner, fp8);
    inner.plant(l2Key(1), new Uint8Array(49));
    const target = (id: number) => ({ ...halves(id, 'bfloat16[50]'), bytes: new Uint8Array(100) });
    assert.equal(await backend.load([target(1), target(2)], never), ['missing', 'missing']);
    const compressed = withSerde(inner, zstd);
    assert.equal(await compressed.load([emptyObject(7)], never), ['missing']);
    assert.equal(await compressed.store([], never), []);
    assert.equal(await compressed.load([], never), []);
  });

  test('layout records stay as they are where elements are converted', async () => {
    const { adapter, backend } = new L2AdapterHouse({ wrap: (inner) => withSerde(inner, fp8) });
    const key = layoutRecordKey({ modelName: 'm', kvRank: 0, objectGroupId: 0 });
    const bytes = encodeLayoutRecord('0'.repeat(64), 'bfloat16[50]');
    assert.equal(await adapter.store([{ key, bytes }]).outcome, [4096]);
    assert.equal(backend.values.get(scriptedName(key))?.bytes, Uint8Array.from(bytes));
    assert.equal([...(await adapter.lookup([key], [4096]))], [1]);
    const target = { key, bytes: new Uint8Array(4096) };
    assert.equal(await adapter.load([target]).outcome, ['loaded']);
    assert.equal(target.bytes, Uint8Array.from(bytes));
  });

  test('a load whose time is over does not write to its buffer', async () => {
    const { adapter, backend, clock } = new L2AdapterHouse({ wrap: (b) => withSerde(b, zstd) });
    await adapter.store([smallObject(1)]).outcome;
    backend.conduct = (operation) => (operation === 'load' ? 'wait' : 'answer');
    const target = emptyObject(1, 4000);
    const task = adapter.load([target]);
    await turns();
    clock.advance(60_000);
    await task.outcome;
    backend.waiting('load')[0]?.answer();
    await task.released;
    assert.ok(target.bytes.every((byte) => byte === 0));
  });

  test('a backend that rejects or answers too little is heard', async () => {
    const inner = new ScriptedBackend();
    const backend = withSerde(inner, zstd);
    inner.conduct = { lie: () => [] };
    const [result] = await backend.store([objectOf(1)], never);
    assert.match(String(result), /not answered/);
  });
});
