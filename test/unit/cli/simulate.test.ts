import fs from 'node:fs';
import os from 'node:os';
import path from 'node:path';
import * as assert from 'uvu/assert';
import { CommandError } from '../../../src/cli/arguments.ts';
import { run } from '../../../src/cli/simulate.ts';
import { parseSimulateArguments } from '../../../src/cli/simulate-arguments.ts';
import { SimulatedCache } from '../../../src/cli/simulate-cache.ts';
import { readLogs } from '../../../src/cli/simulate-log.ts';
import { summarize } from '../../../src/cli/simulate-report.ts';
import { makeWorkload, type SyntheticOptions } from '../../../src/cli/simulate-workload.ts';
import { EVICTION_POLICIES, type EvictionPolicy } from '../../../src/core/policy.ts';
import { formatLookupLine } from '../../../src/observability/logging/lookup-hash-line.ts';
import { ALIGN_BYTES, buildL1House } from '../../support/l1-house.ts';
import { rejects } from '../../support/rejects.ts';
import { suite } from '../../support/suite.ts';

const SYNTHETIC: SyntheticOptions = {
  requestCount: 800,
  tenantCount: 3,
  prefixCount: 20,
  prefixChunks: 4,
  suffixChunks: 2,
  zipfExponent: 0.9,
  scanRatio: 0.3,
  chunkSizeBytes: ALIGN_BYTES,
  chunkSizeTokens: 16,
  seed: 7,
};
const RULES = { watermarkRatio: 0.8, evictionRatio: 0.2 };

/** The lines of the command's complaint. */
function complaints(argv: readonly string[]): string[] {
  try {
    parseSimulateArguments(argv);
  } catch (error) {
    assert.instance(error, CommandError);
    assert.is((error as CommandError).exitCode, 2);
    return (error as CommandError).message.split('\n');
  }
  throw new Error(`accepted: ${argv.join(' ')}`);
}

suite('kvd simulate: arguments', (test) => {
  test('without any it makes requests up and tries every policy that evicts', () => {
    const { policies, sizesBytes, log, synthetic } = parseSimulateArguments([])!;
    assert.equal(policies, ['LRU', 'IsolatedLRU', 'ARC', 'S3FIFO']);
    assert.is(sizesBytes, null);
    assert.is(log, null);
    assert.is(synthetic!.seed, 1);
  });

  test('sizes are sorted, policies are taken in the order given', () => {
    const { policies, sizesBytes } = parseSimulateArguments([
      ...['--l1-size-gb', '2,0.5', '--policies', 'noop,LRU'],
    ])!;
    assert.equal(sizesBytes, [2 ** 29, 2 ** 31]);
    assert.equal(policies, ['noop', 'LRU']);
  });

  test('says everything that is wrong at once', () => {
    const lines = complaints([
      ...['--policies', 'LRU,FIFO', '--l1-size-gb', '1,x', '--scan-share', '2', '--seed', '-1'],
      ...['--eviction-ratio', '0', '--model', 'm'],
    ]);
    assert.equal(
      lines.map((line) => /error: (--[a-z0-9-]+):/.exec(line)?.[1]),
      ['--model', '--policies', '--l1-size-gb', '--eviction-ratio', '--scan-share', '--seed'],
    );
  });

  test('refuses what only made-up requests have when there are logs', () => {
    assert.match(complaints(['log.jsonl', '--zipf', '1'])[0]!, /--zipf: not with logs/);
  });

  test('refuses more than fits into memory', () => {
    const argv = ['--requests', '10000000', '--prefix-chunks', '65536'];
    assert.match(complaints(argv)[0]!, /--requests: more than/);
  });
});

suite('kvd simulate: workload', (test) => {
  test('equal seeds make equal requests, other seeds others', () => {
    assert.equal(makeWorkload(SYNTHETIC), makeWorkload(SYNTHETIC));
    assert.not.equal(makeWorkload(SYNTHETIC), makeWorkload({ ...SYNTHETIC, seed: 8 }));
  });

  test('has the shares that were asked for', () => {
    const { requests, tenants } = makeWorkload({ ...SYNTHETIC, requestCount: 4000 });
    const sharedCount = 3 * 20 * 4;
    const scans = requests.filter(({ chunks }) => chunks[0]! >= sharedCount);
    assert.ok(Math.abs(scans.length / 4000 - 0.3) < 0.03, `${scans.length} scans`);
    assert.is(tenants.length, 3);
    const uses = (rank: number) =>
      requests.filter(({ chunks, tenant }) => chunks[0] === (tenant * 20 + rank) * 4).length;
    assert.ok(uses(0) > 3 * uses(9), 'the first prefix is used much more than the tenth');
    const suffixes = requests.map(({ chunks }) => chunks[5]!);
    assert.is(new Set(suffixes).size, 4000, 'a suffix comes once');
  });
});

suite('kvd simulate: cache', (test) => {
  /** Hits of every request in the real storage room, in chunks. */
  function replayInServer(policy: EvictionPolicy, sizeBytes: number): number {
    const { requests, tenants } = makeWorkload(SYNTHETIC);
    const house = buildL1House({ sizeBytes, evictionPolicy: policy, ...RULES });
    let hitCount = 0;
    for (const { chunks, tenant } of requests) {
      const keys = house.keysOf(0, chunks.length, 1, tenants[tenant]);
      const view = new DataView(keys.hashes.bytes.buffer);
      for (const [i, chunk] of chunks.entries()) view.setUint32(32 * i, chunk);
      const found = house.hitChunks(keys);
      hitCount += found;
      house.store(keys);
      house.storage.touch(keys, found);
      house.clock.advance(1);
    }
    return hitCount;
  }

  for (const policy of EVICTION_POLICIES) {
    test(`${policy} hits as often as in the server`, () => {
      const sizeBytes = 150 * ALIGN_BYTES;
      const workload = makeWorkload(SYNTHETIC);
      const cache = new SimulatedCache({ workload, policy, sizeBytes, ...RULES });
      for (const request of workload.requests) cache.replay(request);
      const hitTokens = cache.perTenant.reduce((sum, each) => sum + each.hitTokens, 0);
      assert.ok(hitTokens > 0);
      assert.is(hitTokens / 16, replayInServer(policy, sizeBytes));
    });
  }

  test('a cache with room for everything hits whatever was there before', () => {
    const workload = makeWorkload(SYNTHETIC);
    const { distinctBytes, unlimited } = summarize(workload);
    const options = { workload, policy: 'LRU', sizeBytes: 2 * distinctBytes, ...RULES } as const;
    const cache = new SimulatedCache(options);
    for (const request of workload.requests) cache.replay(request);
    const hitTokens = cache.perTenant.reduce((sum, each) => sum + each.hitTokens, 0);
    assert.is(hitTokens, unlimited.hitTokens);
    assert.is(cache.evictedChunkCount, 0);
  });

  test('a prompt that is larger than L1 is stored as far as it fits', () => {
    const workload = makeWorkload({ ...SYNTHETIC, requestCount: 1, prefixChunks: 30 });
    const sizeBytes = 10 * ALIGN_BYTES;
    const whole = { watermarkRatio: 1, evictionRatio: 0.2 };
    const cache = new SimulatedCache({ workload, policy: 'LRU', sizeBytes, ...whole });
    cache.replay(workload.requests[0]!);
    assert.is(cache.refusedChunkCount, 22);
  });
});

suite('kvd simulate: logs', (test) => {
  let folder = '';
  test.beforeEach(() => {
    folder = fs.mkdtempSync(path.join(os.tmpdir(), 'kvd-simulate-'));
  });
  test.afterEach(() => fs.rmSync(folder, { recursive: true, force: true }));

  const lineOf = (
    atSeconds: number,
    chunks: readonly number[],
    modelName = 'm',
    cacheSalt = '',
  ) => {
    const bytes = new Uint8Array(32 * chunks.length);
    for (const [i, chunk] of chunks.entries()) bytes[32 * i] = chunk;
    const hashes = { bytes, count: chunks.length, hashSizeBytes: 32 };
    return formatLookupLine(
      {
        ...{ requestId: 'r', modelName, worldSize: 1, cacheSalt, hashes },
        ...{ chunkSizeTokens: 16, tokenCount: 16 * chunks.length },
        layouts: [{ shapes: [[2, 4]], dtypes: ['float16'] }],
      },
      atSeconds,
    );
  };
  const write = (name: string, text: string) => fs.writeFileSync(path.join(folder, name), text);
  const options = (part = {}) => ({
    ...{ paths: [folder], modelName: null, lookupCountMax: Number.POSITIVE_INFINITY },
    ...{ chunkSizeBytes: null },
    ...part,
  });

  test('reads the files of a folder in the order of time, tenants and models apart', async () => {
    write('lookup_hashes_1.jsonl', lineOf(3000, [1, 2]) + lineOf(2000, [1], 'other'));
    write(
      'lookup_hashes_2.jsonl',
      `${lineOf(1000, [1, 2, 3])}{"half": \n${lineOf(4000, [1], 'm', 's')}`,
    );
    write('notes.txt', 'not a log');
    const workload = await readLogs(options());
    assert.equal(
      workload.requests.map(({ chunks }) => chunks.length),
      [3, 1, 2, 1],
    );
    const [first, other, again, salted] = workload.requests.map(({ chunks }) => chunks);
    assert.equal([...again!], [...first!.subarray(0, 2)]);
    assert.is(new Set([first![0], other![0], salted![0]]).size, 3);
    assert.is(workload.skippedLineCount, 1);
    assert.is(workload.tenants.length, 2);
    assert.equal([...new Set(workload.chunkSizesBytes)], [16]);
  });

  test('takes one model, and the first so many lookups', async () => {
    write('lookup_hashes_1.jsonl', lineOf(2000, [1, 2]) + lineOf(1000, [3]) + lineOf(1, [1], 'x'));
    const workload = await readLogs(options({ modelName: 'm', lookupCountMax: 1 }));
    assert.equal(
      workload.requests.map(({ chunks }) => chunks.length),
      [1],
    );
  });

  test('a log that does not say the size of a chunk needs --chunk-bytes', async () => {
    write('a.jsonl', lineOf(1000, [1]).replace('torch.float16', 'torch.unknown'));
    const paths = [path.join(folder, 'a.jsonl')];
    await rejects(readLogs(options({ paths })), /give --chunk-bytes/);
    const workload = await readLogs(options({ paths, chunkSizeBytes: 5 }));
    assert.equal([...workload.chunkSizesBytes], [5]);
  });

  test('a missing path and a log without lookups end the command with one line', async () => {
    await rejects(run([path.join(folder, 'none.jsonl')]), /^kvd simulate: error: ENOENT/);
    write('lookup_hashes_1.jsonl', 'x\n');
    const empty = await rejects(run([folder]), /no lookups in .*, 1 lines are none/);
    assert.is((empty as CommandError).exitCode, 1);
  });

  test('prints the same JSON every time', async () => {
    const output = path.join(folder, 'result.json');
    const argv = ['--requests', '300', '--tenants', '2', '--format', 'json', '--output', output];
    const results = [];
    for (let i = 0; i < 2; i += 1) {
      assert.is(await run(argv), 0);
      results.push(fs.readFileSync(output, 'utf8'));
    }
    assert.is(results[0], results[1]);
    const { metrics } = JSON.parse(results[0]!);
    assert.is(metrics.results.length, 20);
    assert.is(metrics.results[0].tenants.length, 2);
  });
});
