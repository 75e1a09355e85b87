import * as assert from 'uvu/assert';
import { CommandError } from '../../../src/cli/arguments.ts';
import { type BenchArguments, parseBenchArguments } from '../../../src/cli/bench-arguments.ts';
import { formatShapeSpec, parseShapeSpec } from '../../../src/cli/bench-shape.ts';
import { suite } from '../../support/suite.ts';

function parse(...argv: string[]): BenchArguments {
  const parsed = parseBenchArguments(argv);
  if (!parsed) return assert.unreachable('help') as never;
  return parsed;
}

/** The lines of a usage error. */
function problemsOf(...argv: string[]): string[] {
  try {
    parseBenchArguments(argv);
  } catch (error) {
    assert.instance(error, CommandError);
    assert.is((error as CommandError).exitCode, 2);
    return (error as CommandError).message.split('\n');
  }
  return assert.unreachable(`accepted ${argv.join(' ')}`) as never;
}

suite('arguments of kvd bench', (test) => {
  test('nothing is required', () => {
    const { bench, httpUrl } = parse();
    assert.equal(bench, {
      url: 'tcp://localhost:5555',
      transferMode: 'auto',
      dialect: 'A',
      geometry: {
        blockCount: null,
        slotsPerBlock: 16,
        groups: [
          {
            kvSize: 2,
            headCount: 8,
            headSize: 128,
            dtype: 'float16',
            itemSizeBytes: 2,
            layerCount: 16,
          },
        ],
      },
      tokenCount: 512,
      firstSequence: 0,
      endSequence: 16,
      durationMs: Number.POSITIVE_INFINITY,
      clientCount: 1,
      intervalMs: 0,
      lookupDurationMs: 1000,
      timeoutMs: 30_000,
    });
    assert.is(httpUrl, null);
  });

  test("the acceptance command of the reference's users is understood", () => {
    const words =
      'server --rpc-url tcp://127.0.0.1:5555 --url http://127.0.0.1:8080/ --mode cpu ' +
      '--transfer-mode lmcache_driven --kvcache-shape-spec (2,256,16,2,32):float16:4 ' +
      '--num-blocks 256 --num-tokens 512 --start 3 --end 8 --interval 0.5 --format json';
    const { bench, httpUrl, report } = parse(...words.split(' '));
    assert.is(bench.transferMode, 'lmcache_driven');
    assert.is(bench.geometry.blockCount, 256);
    assert.equal([bench.firstSequence, bench.endSequence, bench.intervalMs], [3, 8, 500]);
    assert.is(httpUrl, 'http://127.0.0.1:8080');
    assert.is(report.format, 'json');
  });

  test('a duration alone sets no last request; a count or an end does', () => {
    const endOf = (...argv: string[]) => parse('--start', '5', ...argv).bench.endSequence;
    assert.is(endOf('--duration', '2'), Number.POSITIVE_INFINITY);
    assert.is(parse('--duration', '2').bench.durationMs, 2000);
    assert.is(endOf('--duration', '2', '--requests', '7'), 12);
    assert.is(endOf('--end', '6'), 6);
    assert.is(endOf('--requests', '1'), 6);
  });

  test('an address without a scheme is TCP; HTTP is refused', () => {
    assert.is(parse('--rpc-url', '10.0.0.1:6555').bench.url, 'tcp://10.0.0.1:6555');
    assert.is(parse('--rpc-url', 'ipc:///run/kvd.sock').bench.url, 'ipc:///run/kvd.sock');
    const [problem = ''] = problemsOf('--rpc-url', 'http://localhost:8080');
    assert.match(problem, /--rpc-url: expected tcp:\/\/HOST:PORT or ipc:\/\/PATH, got 'http:/);
  });

  test('every problem is one line', () => {
    const problems = problemsOf(
      ...['engine', '--mode', 'gpu', '--num-tokens', '0', '--clients', '1e3', '--interval', '-1'],
      ...['--timeout', '0', '--end', '1', '--requests', '2', '--dtype', 'float17'],
    );
    const flags = problems.map((line) => /^kvd bench: error: (\S+)[: ]/.exec(line)?.[1]);
    assert.equal(flags, [
      "'engine':",
      '--mode',
      '--dtype:',
      '--num-tokens:',
      '--end:',
      '--clients:',
      '--interval:',
      '--timeout:',
    ]);
  });

  test('a flag beside the shape spec must agree with it', () => {
    const spec = ['--kvcache-shape-spec', '(2,64,16,8,128):float16:32'];
    assert.is(parse(...spec, '--num-blocks', '64', '--block-size', '16').bench.tokenCount, 512);
    const other = ['--num-blocks', '65', '--block-size', '8', '--heads', '8'];
    assert.equal(problemsOf(...spec, ...other), [
      'kvd bench: error: --heads: not with --kvcache-shape-spec',
      'kvd bench: error: --num-blocks: --kvcache-shape-spec has 64, got 65',
      'kvd bench: error: --block-size: --kvcache-shape-spec has 16, got 8',
    ]);
  });
});

suite('KV cache shape spec', (test) => {
  const geometryOf = (spec: string) => {
    const parsed = parseShapeSpec(spec);
    return 'value' in parsed ? parsed.value : (assert.unreachable(parsed.problem) as never);
  };
  const problemOf = (spec: string) => {
    const parsed = parseShapeSpec(spec);
    return 'problem' in parsed ? parsed.problem : (assert.unreachable(spec) as never);
  };

  test('groups of layers, MLA included, are read and written back', () => {
    const spec = '(1,1024,16,1,128):bfloat16:4;(2,1024,16,8,128):float8_e4m3fn:28';
    const geometry = geometryOf(spec);
    assert.is(geometry.slotsPerBlock, 16);
    assert.equal(
      geometry.groups.map(({ kvSize, itemSizeBytes, layerCount }) => [
        kvSize,
        itemSizeBytes,
        layerCount,
      ]),
      [
        [1, 2, 4],
        [2, 1, 28],
      ],
    );
    assert.is(formatShapeSpec(geometry, 1024), spec);
    assert.equal(geometryOf(` ${spec.replaceAll(',', ', ')} `), geometry);
  });

  test('what is wrong is said', () => {
    assert.match(problemOf(''), /^expected '\(kv_size,NB,BS,NH,HS\):dtype:layers', got ''$/);
    assert.match(problemOf('(2,64,16,8):float16:4'), /^expected '\(kv_size/);
    assert.match(problemOf('(2,64,16,8,128):float16:4;'), /got ''$/);
    assert.is(problemOf('(3,64,16,8,128):float16:4'), 'expected kv_size 1 or 2, got 3');
    assert.is(problemOf('(2,64,16,8,128):half:4'), "unknown dtype 'half'");
    assert.match(problemOf('(2,64,0,8,128):float16:4'), /^expected numbers from 1 to 1048576/);
    assert.match(problemOf('(2,64,16,8,9999999):float16:4'), /^expected numbers from 1 to/);
    assert.is(
      problemOf('(2,64,16,8,128):float16:4;(2,64,32,8,128):float16:4'),
      'expected the same NB and BS in all groups',
    );
  });
});
