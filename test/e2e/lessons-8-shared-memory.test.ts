/**
 * L1 in shared memory (spec field-lessons 8, server side). That a client of another user falls back
 * to inline data (second half of 8.3) belongs to the engine-driven path.
 */
import { spawnSync } from 'node:child_process';
import fs from 'node:fs';
import * as assert from 'uvu/assert';
import { hitsOf, promptOf } from '../support/fake-worker.ts';
import { expectCalm, scenario } from '../support/scenario.ts';
import { suite } from '../support/suite.ts';

const GIB = 1024 ** 3;

const named = (suffix: string) => ({ '--shm-name': `kvd_test_${process.pid}_${suffix}` });

/** Runs a server's command line behind a mount namespace with a small /dev/shm. */
const SMALL_SHM = [
  ...['unshare', '--map-root-user', '--mount', 'sh', '-c'],
  'mount -t tmpfs -o size=64m tmpfs /dev/shm && exec "$0" "$@"',
] as const;
const hasNamespaces = spawnSync(SMALL_SHM[0], [...SMALL_SHM.slice(1), 'true']).status === 0;

suite('lesson 8: shared memory', (test) => {
  test(
    '8.1 an L1 larger than the free shared memory stops a start that names a segment',
    scenario(async (s) => {
      const { bavail, bsize } = fs.statfsSync('/dev/shm');
      const sizeGib = hasNamespaces ? 0.25 : Math.ceil((bavail * bsize) / GIB) + 1;
      const server = await s.spawn(
        { ...named('large'), '--l1-size-gb': sizeGib },
        hasNamespaces ? { wrapper: SMALL_SHM } : {},
      );
      const code = await server.exitCode();
      assert.ok(code === 1 || code === 2, `exit code ${code}`);
      const errors = server.linesWith(/^kvd server: error: /);
      assert.is(errors.length, 1, server.output);
      const wanted = hasNamespaces ? /256\.00 MiB/ : new RegExp(`${sizeGib}\\.00 GiB`);
      assert.match(errors[0] as string, wanted);
      assert.match(errors[0] as string, hasNamespaces ? /64\.00 MiB free/ : /[\d.]+ GiB free/);
      assert.match(errors[0] as string, /lower --l1-size-gb or enlarge it/);
    }),
  );

  test(
    '8.1 status names the segment in use, and null when there is none',
    scenario(async (s) => {
      const server = await s.serve(named('status'));
      const { memory_shm_name } = await server.l1();
      assert.is(memory_shm_name, `lmcache_l1_pool_kvd_test_${process.pid}_status`);
      await expectCalm(server);
      const without = await s.serve({ '--shm-name': '' });
      assert.is((await without.l1()).memory_shm_name, null);
      await expectCalm(without);
    }),
  );

  test(
    '8.2 a restart takes over the segment of a killed server, but not of a running one',
    scenario(async (s) => {
      const killed = await s.serve(named('owner'));
      await killed.kill();
      const owner = await s.serve(named('owner'));
      const rival = await s.spawn(named('owner'));
      const code = await rival.exitCode();
      assert.ok(code === 1 || code === 2, `exit code ${code}`);
      const errors = rival.linesWith(/^kvd server: error: /);
      assert.is(errors.length, 1, rival.output);
      assert.match(errors[0] as string, /belongs to a running server: choose another --shm-name/);
      const worker = await s.worker(owner);
      const client = s.connect(owner);
      await worker.store(promptOf(1, 4));
      assert.is(await hitsOf(client, promptOf(1, 4)), 4);
      assert.is(fs.existsSync(`/dev/shm/${(await owner.l1()).memory_shm_name}`), true);
      await expectCalm(owner);
    }),
  );

  for (const mode of ['600', '660'] as const) {
    test(
      `8.3 --shm-mode ${mode} is the mode of the segment, whatever the umask`,
      scenario(async (s) => {
        const server = await s.serve({ ...named(`mode${mode}`), '--shm-mode': mode });
        const { memory_shm_name } = await server.l1();
        const stat = fs.statSync(`/dev/shm/${memory_shm_name}`);
        assert.is((stat.mode & 0o777).toString(8), mode);
        await expectCalm(server);
      }),
    );
  }
});
