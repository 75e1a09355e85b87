import * as assert from 'uvu/assert';
import { readL2Adapters, specReader } from '../../../src/config/l2-adapters.ts';
import type { AdapterSpec } from '../../../src/l2/adapter-spec.ts';
import type { L2BackendType } from '../../../src/l2/backend.ts';
import { maskSecrets } from '../../../src/l2/config-keys.ts';
import { loadBackendTypes } from '../../../src/l2/registry.ts';
import { GIB } from '../../../src/units.ts';
import { ScriptedBackend } from '../../support/scripted-backend.ts';
import { suite } from '../../support/suite.ts';

const STORE_TYPE: L2BackendType = {
  typeName: 'store',
  about: 'A store for tests.',
  keys: {
    base_path: { kind: 'text', about: 'Folder.' },
    port: {
      kind: 'integer',
      fallback: 6379,
      min: 1,
      max: 65_535,
      env: 'STORE_PORT',
      about: 'Port.',
    },
    password: { kind: 'text', fallback: '', isSecret: true, about: 'Password.' },
    mode: { kind: 'text', fallback: 'a', choices: ['a', 'b'], about: 'Mode.' },
    max_capacity_gb: { kind: 'number', fallback: 0, min: 0, about: 'Capacity.' },
    params: { kind: 'object', fallback: {}, about: 'Anything.' },
  },
  open: async () => new ScriptedBackend(),
  capacityBytes: (values) => (values['max_capacity_gb'] as number) * GIB,
};
const types = new Map([
  ['fs', STORE_TYPE],
  ['store', STORE_TYPE],
]);

function read(
  json: unknown,
  environment: Record<string, string> = {},
  warnings: string[] = [],
): AdapterSpec {
  const reader = specReader({ types, environment, warn: (text) => warnings.push(text) });
  const good = { type: 'store', base_path: '/tmp' };
  const [, spec] = readL2Adapters([good, json as Record<string, unknown>], reader);
  return spec as AdapterSpec;
}

const GOOD = { type: 'store', base_path: '/data' };
const refuses = (json: unknown, pattern: RegExp): void => assert.throws(() => read(json), pattern);

suite('--l2-adapter', (test) => {
  test('defaults stand in for what is not given', () => {
    const { settings, values, serde, capacityBytes } = read(GOOD);
    assert.equal(values, {
      base_path: '/data',
      port: 6379,
      password: '',
      mode: 'a',
      max_capacity_gb: 0,
      params: {},
    });
    assert.equal(settings, {
      eviction: null,
      isPersistent: true,
      affinityTag: '_default',
      isShared: false,
      taskTimeoutMs: 30_000,
      inFlightMaxBytes: 268_435_456,
      hasChecksum: false,
      scansOnStart: false,
    });
    assert.is(serde, null);
    assert.is(capacityBytes, 0);
  });

  test('what cannot work names the adapter by its place and type, the key and the mend', () => {
    refuses([], /^--l2-adapter #2: expected a JSON object, got list$/);
    refuses('x', /got string/);
    refuses({}, /^--l2-adapter #2: missing 'type' field$/);
    refuses(
      { type: 'stor' },
      /unknown adapter type 'stor'\. Known: fs, store; did you mean store\?/,
    );
    refuses({ type: 7 }, /unknown adapter type 7/);
    refuses({ type: 'store' }, /^--l2-adapter #2 \('store'\): missing "base_path"/);
    refuses({ ...GOOD, base_path: '' }, /"base_path" must be a non-empty string, got ""/);
    refuses({ ...GOOD, base_path: null }, /missing "base_path"/);
    refuses({ ...GOOD, port: true }, /"port" must be an integer/);
    refuses({ ...GOOD, port: 70_000 }, /at least 1 and of at most 65535, got 70000/);
    refuses({ ...GOOD, mode: 'c' }, /one of a, b/);
    refuses({ ...GOOD, persist_enabled: 'false' }, /"persist_enabled" must be true or false/);
    refuses({ ...GOOD, eviction: 'LRU' }, /"eviction" must be an object/);
    refuses({ ...GOOD, eviction: {} }, /eviction: missing "eviction_policy"/);
    const policy = (rest: object) => ({ ...GOOD, eviction: { eviction_policy: 'LRU', ...rest } });
    refuses(policy({ eviction_policy: 'MRU' }), /must be one of LRU, IsolatedLRU, ARC/);
    refuses(policy({ trigger_watermark: 7 }), /"trigger_watermark" must be a number.*at most 1/);
    refuses(policy({ eviction_ratio: -0.1 }), /"eviction_ratio"/);
    refuses(policy({ eviction_ratio: 0 }), /"eviction_ratio" must be a number above 0 and of at/);
    refuses({ ...GOOD, task_timeout_s: 0 }, /"task_timeout_s"/);
    refuses({ ...GOOD, serde: { type: 'gzip' } }, /\('store'\): Unknown serde type 'gzip'/);
    refuses({ ...GOOD, checksum: 'md5' }, /none, crc32/);
  });

  test('values that kvd knows and does nothing about are warned about', () => {
    const warnings: string[] = [];
    read({ ...GOOD, persist_enabled: true, affinity_tag: '_default' }, {}, warnings);
    assert.equal(warnings, []);
    read({ ...GOOD, persist_enabled: false, affinity_tag: 'fast' }, {}, warnings);
    assert.match(warnings[0] ?? '', /"persist_enabled": false does nothing/);
    assert.match(warnings[1] ?? '', /"affinity_tag": "fast" does nothing/);
  });

  test('unknown keys are warned about and ignored, for charts pass keys of other releases', () => {
    const warnings: string[] = [];
    const eviction = { eviction_policy: 'noop', trigger_watermrk: 1 };
    read({ ...GOOD, base_pth: 'x', toString: 1, eviction }, {}, warnings);
    assert.is(warnings.length, 3);
    assert.match(
      warnings[0] ?? '',
      /#2 \('store'\): unknown key "base_pth".*did you mean base_path/,
    );
    assert.match(warnings[1] ?? '', /"toString"/);
    assert.match(warnings[2] ?? '', /eviction: unknown key "trigger_watermrk".*trigger_watermark/);
  });

  test('the environment stands in for a missing key and is checked like it', () => {
    assert.is(read(GOOD, { STORE_PORT: '7000' }).values['port'], 7000);
    assert.is(read({ ...GOOD, port: 1 }, { STORE_PORT: '7000' }).values['port'], 1);
    assert.throws(() => read(GOOD, { STORE_PORT: 'many' }), /"port" must be an integer/);
  });

  test('what the store holds is counted at start where capacity or eviction need it', () => {
    const eviction = { eviction_policy: 'LRU' };
    assert.is(read({ ...GOOD, max_capacity_gb: 1 }).settings.scansOnStart, true);
    assert.is(read({ ...GOOD, eviction }).settings.scansOnStart, true);
    assert.is(read({ ...GOOD, eviction, scan_on_start: false }).settings.scansOnStart, false);
    assert.equal(read({ ...GOOD, eviction }).settings.eviction, {
      policy: 'LRU',
      triggerWatermark: 0.8,
      evictionRatio: 0.2,
    });
  });

  test('secrets are shown nowhere', () => {
    const params = { list: [{ api_key: 'S3CRET' }], Token: 'S3CRET', name: 'n' };
    const { shown, values } = read({ ...GOOD, password: 'S3CRET', params });
    assert.not.match(JSON.stringify(shown), /S3CRET/);
    assert.is(shown['password'], '***');
    assert.is(values['password'], 'S3CRET');
    assert.equal(maskSecrets(STORE_TYPE.keys, { password: '' }), { password: '' });
    assert.is(shown['type'], 'store');
  });
});

suite('registry', (test) => {
  test('every type of the folder is there, with keys that explain themselves', async () => {
    const found = await loadBackendTypes();
    assert.ok(found.has('plugin') && found.has('native_plugin') && found.has('fs'));
    assert.equal([...found.keys()], [...found.keys()].sort());
    for (const { typeName, about, keys } of found.values()) {
      assert.ok(about.length > 0, typeName);
      for (const [name, key] of Object.entries(keys)) {
        assert.match(name, /^[a-z0-9_]+$/);
        assert.ok(key.about.length > 0, `${typeName}.${name}`);
      }
    }
  });
});
