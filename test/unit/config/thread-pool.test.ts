import { spawnSync } from 'node:child_process';
import path from 'node:path';
import * as assert from 'uvu/assert';
import { sizeThreadPool } from '../../../src/config/thread-pool.ts';
import { suite } from '../../support/suite.ts';

function sizeFor(adapters: readonly unknown[], environment: Record<string, string> = {}): string {
  sizeThreadPool(adapters, environment);
  return environment['UV_THREADPOOL_SIZE'] ?? '';
}

suite('thread pool', (test) => {
  test('has a thread for every worker of the adapters and some for the rest', () => {
    assert.is(sizeFor([{ type: 'fs', num_workers: 20 }, { type: 'fs_native' }]), '36');
    assert.is(sizeFor([{ num_store_workers: 9, num_load_workers: 11 }]), '28');
    assert.is(sizeFor([{ type: 'fault_inject', inner: { type: 'fs', num_workers: 30 } }]), '46');
  });

  test('is never smaller than what adapters that are added later need', () => {
    assert.is(sizeFor([]), '16');
  });

  test('has a bound, and takes no nonsense for a number', () => {
    assert.is(sizeFor([{ num_workers: 1e6 }]), '1024');
    assert.is(sizeFor([{ num_workers: 'many' }, null, 7]), '24');
  });

  test('stays as the operator has set it', () => {
    assert.is(sizeFor([{ num_workers: 50 }], { UV_THREADPOOL_SIZE: '5' }), '5');
  });

  test('is what Node starts when it is set before the first call', () => {
    const module = path.resolve(import.meta.dirname, '../../../src/config/thread-pool.ts');
    const script = `
      import fs from 'node:fs';
      import { sizeThreadPool } from ${JSON.stringify(module)};
      sizeThreadPool([{ num_workers: 19 }]);
      await Promise.all(Array.from({ length: 60 }, () => fs.promises.readFile('/proc/self/stat')));
      const names = fs.readdirSync('/proc/self/task').map(
        (id) => fs.readFileSync('/proc/self/task/' + id + '/comm', 'utf8'));
      console.log(names.filter((name) => name.startsWith('libuv-worker')).length);`;
    const { UV_THREADPOOL_SIZE: _, ...env } = process.env;
    const child = spawnSync(process.execPath, ['--input-type=module', '-e', script], {
      encoding: 'utf8',
      env,
    });
    assert.is(child.stdout.trim(), '27', child.stderr);
  });
});
