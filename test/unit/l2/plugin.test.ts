import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import * as assert from 'uvu/assert';
import { backendType as nativePlugin } from '../../../src/l2/adapters/native-plugin.ts';
import { backendType as plugin } from '../../../src/l2/adapters/plugin.ts';
import type { L2Backend } from '../../../src/l2/backend.ts';
import { openBackend } from '../../support/l2-context.ts';
import { refuses } from '../../support/rejects.ts';
import { suite } from '../../support/suite.ts';

const METHODS = 'store() {} lookup() {} load() {} delete() {} async close() {}';

/** Files of a folder of their own, by name. */
async function withFiles(
  files: Readonly<Record<string, string>>,
  body: (folder: string) => Promise<void>,
): Promise<void> {
  const folder = await mkdtemp(path.join(tmpdir(), 'kvd-plugin-'));
  try {
    for (const [name, text] of Object.entries(files)) {
      await writeFile(path.join(folder, name), text);
    }
    await body(folder);
  } finally {
    await rm(folder, { recursive: true });
  }
}

const open = (module_path: string, class_name: string, rest = {}): Promise<L2Backend> =>
  openBackend(plugin, { module_path, class_name, ...rest });

suite('plugin', (test) => {
  test('a class of an ES module gets its parameters and is opened', () =>
    withFiles(
      {
        'store.mjs': `export class Store {
          constructor(params, context) { this.seen = { params, keys: Object.keys(context) }; }
          async open() { this.seen.isOpen = true; }
          status() { return this.seen; } ${METHODS} }`,
      },
      async (folder) => {
        const adapter_params = { url: 'x' };
        const backend = await open(path.join(folder, 'store.mjs'), 'Store', { adapter_params });
        const seen = backend.status();
        assert.equal(seen['params'], adapter_params);
        assert.is(seen['isOpen'], true);
        assert.ok((seen['keys'] as string[]).includes('log'));
      },
    ));

  test('CommonJS and TypeScript modules are loaded, too', () =>
    withFiles(
      {
        'store.cjs': `exports.Store = class { status() { return { in: 'cjs' }; } ${METHODS} };`,
        'store.ts': `export class Store { status(): object { return { in: 'ts' }; } ${METHODS} }`,
      },
      async (folder) => {
        for (const form of ['cjs', 'ts']) {
          const backend = await open(path.join(folder, `store.${form}`), 'Store');
          assert.is(backend.status()['in'], form);
        }
      },
    ));

  test('what cannot be loaded stops the start and says what can', () =>
    withFiles(
      {
        'async.mjs': 'await 0; export class Store {}',
        'broken.mjs': 'export class {',
        'throws.mjs': "throw new Error('no licence');",
        'other.mjs': 'export class Other { store() {} }\nexport const n = 1;',
        'addon.node': 'not an addon',
      },
      async (folder) => {
        const expect = (name: string, pattern: RegExp): Promise<void> =>
          refuses(open(path.join(folder, name), 'Store'), 'ERR_CONFIG', pattern);
        await expect('missing.mjs', /is not found from .*JavaScript modules or Node-API addons/);
        await expect('store.py', /is Python; plugins are JavaScript modules/);
        await expect('libstore.so.1', /without Node-API.*wrap it in an addon/);
        await expect('async.mjs', /awaits at its top level; do that in open\(\)/);
        await expect('broken.mjs', /cannot be loaded/);
        await expect('throws.mjs', /no licence/);
        await expect('other.mjs', /exports no class Store; classes: Other/);
        await refuses(open('my_package.adapters', 'Store'), 'ERR_CONFIG', /is not found/);
        const lacking = open(path.join(folder, 'other.mjs'), 'Other');
        await refuses(lacking, 'ERR_CONFIG', /lacks lookup, load, delete, status, close/);
        const addon = { module_path: path.join(folder, 'addon.node'), class_name: 'Store' };
        await refuses(openBackend(nativePlugin, addon), 'ERR_CONFIG', /cannot be loaded/);
      },
    ));

  test('an inherited name is no exported class', () =>
    withFiles({ 'store.cjs': `exports.Store = class {};` }, async (folder) => {
      const refused = open(path.join(folder, 'store.cjs'), 'constructor');
      await refuses(refused, 'ERR_CONFIG', /exports no class constructor/);
    }));

  test('its capacity is what the configuration says', () => {
    assert.is(plugin.capacityBytes({ max_capacity_gb: 0.5 }), 2 ** 29);
  });
});
