import { readFileSync } from 'node:fs';
import * as assert from 'uvu/assert';
import { Core } from '../../src/core/core.ts';
import { instantiate } from '../../src/core/instance.ts';
import { RESULT, resultName } from '../../src/core/result.ts';
import { readAsset } from '../../src/native.ts';
import { openCoreTable } from '../support/core-table.ts';
import { suite } from '../support/suite.ts';

const throwError = (error: unknown): never => {
  throw error;
};

/** `export const NAME: i32 = -3;` of assembly/result.ts, by name. */
function codesOfCore(): Map<string, number> {
  const source = readFileSync(new URL('../../assembly/result.ts', import.meta.url), 'utf8');
  const codes = new Map<string, number>();
  for (const [, name, value] of source.matchAll(/^export const (\w+): i32 = (-?\d+);$/gm)) {
    codes.set(name!, Number(value));
  }
  return codes;
}

function openBare() {
  const core = instantiate(readAsset('core.wasm'), throwError);
  const initialize = (part: Partial<Record<'tokens' | 'batch' | 'objects', number>> = {}) => {
    const { tokens = 256, batch = 64, objects = 64 } = part;
    return core.init(tokens, 16, batch, objects, 16, 0, 0);
  };
  return { core, initialize };
}

suite('door of the core', (test) => {
  test('has the same result codes as the core', () => {
    const codes = codesOfCore();
    for (const [name, value] of Object.entries(RESULT)) assert.is(codes.get(name), value, name);
  });

  test('names codes as the reference does', () => {
    assert.is(resultName(RESULT.SUCCESS), 'SUCCESS');
    assert.is(resultName(RESULT.ALREADY_RESIDENT), 'SUCCESS');
    assert.is(resultName(RESULT.KEY_IN_WRONG_STATE), 'KEY_IN_WRONG_STATE');
    assert.is(resultName(-99), 'code -99');
  });

  test('says which table does not fit into its memory', () => {
    assert.throws(() => openCoreTable({ objectCountMax: 100_000_000 }), /100000000 objects/);
  });

  test('answers a code to every bad argument and changes nothing', () => {
    const { core, initialize } = openBare();
    const { INVALID_ARGUMENT, NOT_INITIALIZED, ALREADY_INITIALIZED, MEMORY_LIMIT } = RESULT;
    assert.is(core.table_find(1, 1, 0), NOT_INITIALIZED);
    assert.is(core.table_init(4096, 4096, 1, 10, 10), NOT_INITIALIZED);
    assert.is(openBare().initialize({ tokens: 0 }), INVALID_ARGUMENT);
    assert.is(openBare().initialize({ objects: 2 ** 31 }), INVALID_ARGUMENT);
    assert.is(openBare().initialize({ tokens: 2 ** 30 }), MEMORY_LIMIT);
    assert.is(initialize(), 0);
    assert.is(initialize(), ALREADY_INITIALIZED);
    assert.is(core.table_init(4096, 3, 1, 10, 10), INVALID_ARGUMENT, 'alignment');
    assert.is(core.table_init(4096, 4096, 9, 10, 10), INVALID_ARGUMENT, 'policy');
    assert.is(core.table_init(-1, 4096, 1, 10, 10), INVALID_ARGUMENT, 'arena');
    assert.is(core.table_init(Number.NaN, 4096, 1, 10, 10), INVALID_ARGUMENT, 'arena');
    assert.is(core.table_init(4096, 4096, 1, Number.NaN, 10), INVALID_ARGUMENT, 'ttl');
    assert.is(core.table_init(4096, 4096, 1, 10, 10), 0);
    assert.is(core.table_init(4096, 4096, 1, 10, 10), ALREADY_INITIALIZED);
    const calls: [string, number][] = [
      ['batch too long', core.table_find(65, 1, 0)],
      ['batch overflow', core.table_find(2 ** 31, 2, 0)],
      ['no namespace', core.table_find(1, 0, 0)],
      ['too many namespaces', core.table_find(0, 4097, 0)],
      ['too many holds', core.table_hold_prefix(1, 1, 65_536)],
      ['too many holds on slots', core.table_hold(0, 65_536)],
      ['too many slots to hold', core.table_hold(65, 1)],
      ['too many slots', core.table_pin(65)],
      ['no time', core.table_clear(1, Number.NaN)],
      ['no time for a slice', core.table_clear_slice(1, 1, 10, Number.NaN)],
      ['a slice from no slot', core.table_clear_slice(1, 0, 10, 0)],
      ['a slice of no slots', core.table_clear_slice(1, 1, 0, 0)],
      ['negative time', core.table_sweep_expired(1, -1)],
      ['endless time', core.table_reserve_read(1, 1, 1, Number.POSITIVE_INFINITY)],
      ['unknown namespace', core.table_reserve_write(1, 1, 4096, 1, 0)],
      ['no writer', core.table_reserve_write(1, 1, 4096, 0, 0)],
      ['no size', core.table_reserve_write(1, 1, 0, 1, 0)],
      ['negative bytes', core.table_evict(-1, 1, 0, 0)],
      ['arena too large', core.table_grow_arena(1e18)],
      ['namespace id', core.namespace_define(16, 0, 0)],
      ['namespace id', core.namespace_object_count(16)],
      ['region', core.region_offset(99)],
    ];
    for (const [what, result] of calls) assert.is(result, INVALID_ARGUMENT, what);
    assert.is(core.table_check(), 0);
  });

  test('hands a failed assertion of the core over with its words and place', () => {
    const seen: string[] = [];
    const core = instantiate(readAsset('core.wasm'), (error) => {
      seen.push((error as Error).message);
      throw error;
    });
    assert.is(core.init(256, 16, 64, 64, 16, 0, 0), 0);
    assert.is(core.table_init(16 * 4096, 4096, 1, 10, 10), 0);
    core.namespace_define(0, 0, 0);
    assert.is(core.table_reserve_write(1, 1, 4096, 1, 0), 1);
    // Break the core's own memory: the place of the object points to memory that is free.
    const slot = new Uint32Array(core.memory.buffer, core.region_offset(6), 1)[0]!;
    new Uint32Array(core.memory.buffer, core.region_offset(11))[4 * slot + 1] = 5;
    assert.throws(() => core.table_clear(1, 100), /freed twice/);
    assert.is(seen.length, 1);
    assert.match(seen[0]!, /assertion of the core failed: freed twice \(.*address-space.ts:\d+/);
  });

  test('loads the core of this build by itself', () => {
    const core = Core.load({
      hashAlgorithm: 'blake3',
      chunkSizeTokens: 256,
      tokenCountMax: 1_048_576,
      objectCountMax: 1_000_000,
      arenaSizeBytes: 2 ** 36,
      alignBytes: 4096,
      evictionPolicy: 'LRU',
      writeTtlMs: 600_000,
      readTtlMs: 300_000,
      onTrap: throwError,
    });
    assert.is(core.table.statistics().arenaBytes, 2 ** 36);
    assert.ok(core.reservedBytes / 1_000_000 < 220, `${core.reservedBytes} bytes`);
  });
});
