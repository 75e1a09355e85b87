import fs from 'node:fs';
import os from 'node:os';
import path from 'node:path';
import * as assert from 'uvu/assert';
import { checkL2Adapters } from '../../../src/config/l2-adapters.ts';
import { loadServerConfig } from '../../../src/config/load.ts';
import { suite } from '../../support/suite.ts';
import vectors from '../../vectors/http/cli-startup-0.5.0.json' with { type: 'json' };

const BASE = ['--l1-size-gb', '0.5', '--eviction-policy', 'LRU'];

function good(args: readonly string[], environment: Record<string, string> = {}) {
  const { config, problems } = loadServerConfig([...BASE, ...args], environment);
  assert.equal(problems, []);
  assert.ok(config);
  return config!;
}

/** `flag: reason` of every problem. */
function bad(args: readonly string[], environment: Record<string, string> = {}): string[] {
  const { config, problems } = loadServerConfig([...BASE, ...args], environment);
  assert.is(config, null, `accepted: ${args.join(' ')}`);
  return problems.map(({ flag, reason }) => `${flag}: ${reason}`);
}

function warningsOf(args: readonly string[], environment: Record<string, string> = {}) {
  return loadServerConfig([...BASE, ...args], environment).warnings;
}

suite('configuration: command line', (test) => {
  test('a flag may be an unambiguous prefix, and names of 0.5.0 win over later ones', () => {
    assert.is(good(['--chunk', '128']).chunkSizeTokens, 128);
    // --shutdown-timeout and --session-ttl-seconds are not of 0.5.0; --shm-name is.
    assert.is(good(['--sh', 'x']).shmName, 'x');
    assert.match(bad(['--max', '4'])[0]!, /^--max: could mean --max-workers, --max-gpu-workers/);
  });

  test('the last one of a repeated flag wins, also in the other spelling of a pair', () => {
    assert.is(good(['--port', '1', '--port=2']).endpoints[0], 'tcp://localhost:2');
    assert.is(good(['--no-l1-use-lazy', '--l1-use-lazy']).isL1Lazy, true);
    assert.is(good(['--l1-use-lazy', '--no-l1-use-lazy']).isL1Lazy, false);
  });

  test('a list takes all words up to the next flag, and the last list wins', () => {
    const { settings } = good([
      ...['--script-allowed-imports', 'a', 'b', '--port', '7'],
      ...['--script-allowed-imports', 'c', 'd'],
    ]);
    assert.equal(settings.texts('--script-allowed-imports'), ['c', 'd']);
    const empty = good(['--script-allowed-imports', 'a', '--script-allowed-imports', '--port=7']);
    assert.equal(empty.settings.texts('--script-allowed-imports'), []);
  });

  test('an empty value is a value', () => {
    assert.is(good(['--shm-name', '']).shmName, '');
    assert.is(good(['--shm-name=']).shmName, '');
    assert.is(good([]).shmName, null);
  });

  test('an unknown flag is one problem together with its values, and names the nearest', () => {
    assert.equal(bad(['--nope', '1', '2']), ['--nope: unknown flag']);
    assert.equal(bad(['--evictoin-policy', 'LRU']), [
      '--evictoin-policy: unknown flag; did you mean --eviction-policy?',
    ]);
    assert.equal(bad(['stray']), ['stray: unexpected argument']);
    assert.equal(bad(['-x']), ['-x: unexpected argument']);
    assert.equal(bad(['--memory-strict=1']), ['--memory-strict: takes no value']);
  });

  test('a missing value does not swallow the next flag', () => {
    assert.equal(bad(['--port', '--chunk-size', '16']), ['--port: expected a value']);
  });

  test('all problems are reported at once', () => {
    const { problems } = loadServerConfig(['--port', 'abc', '--nope', '--eviction-ratio', '2'], {});
    const flags = problems.map(({ flag }) => flag);
    assert.equal(flags.sort(), [
      '--eviction-policy',
      '--eviction-ratio',
      '--l1-size-gb',
      '--nope',
      '--port',
    ]);
  });

  test('old names of renamed flags are accepted', () => {
    const reasons = bad(['--coordinator-l2-event-reporting']);
    assert.match(reasons[0]!, /^--coordinator-event-reporting: needs coordinator membership/);
    assert.is(good(['--disable-prometheus']).hasMetrics, false);
  });
});

suite('configuration: precedence', (test) => {
  const folder = fs.mkdtempSync(path.join(os.tmpdir(), 'kvd-config-'));
  const write = (name: string, content: string) => {
    const file = path.join(folder, name);
    fs.writeFileSync(file, content);
    return file;
  };
  test.after(() => fs.rmSync(folder, { recursive: true }));

  test('flag over KVD_ variable over reference variable over file over default', () => {
    const file = write('a.json', '{"log-level": "ERROR", "chunk_size": 32, "--port": 1234}');
    const environment = { KVD_LOG_LEVEL: 'debug', LMCACHE_LOG_LEVEL: 'WARNING', KVD_PORT: '77' };
    const config = good(['--config', file, '--port', '78'], environment);
    const sourceOf = (flag: string) => config.settings.get(flag).source;
    assert.is(config.logLevel, 'DEBUG');
    assert.is(config.endpoints[0], 'tcp://localhost:78');
    assert.is(config.chunkSizeTokens, 32);
    assert.equal(['--port', '--log-level', '--chunk-size', '--http-port'].map(sourceOf), [
      'flag',
      'environment',
      'file',
      'default',
    ]);
    assert.is(config.settings.get('--log-level').origin, 'KVD_LOG_LEVEL');
    const reference = good(['--config', file], { LMCACHE_LOG_LEVEL: 'warning', KVD_LOG_LEVEL: '' });
    assert.is(reference.logLevel, 'WARNING');
    assert.is(good(['--config', file]).logLevel, 'ERROR');
  });

  test('required flags may come from the environment or the file', () => {
    const file = write('b.json', '{"eviction-policy": "noop"}');
    const loaded = loadServerConfig(['--config', file], { KVD_L1_SIZE_GB: '2' });
    assert.equal(loaded.problems, []);
    assert.is(loaded.config?.l1SizeBytes, 2 ** 31);
    assert.is(loaded.config?.evictionPolicy, 'noop');
  });

  test('a bad variable names the variable', () => {
    assert.equal(bad([], { KVD_PORT: 'abc' }), [
      "--port: expected a whole number, got 'abc' (from KVD_PORT)",
    ]);
    assert.equal(bad([], { LMCACHE_COORDINATOR_HEARTBEAT_INTERVAL: 'abc' }), [
      "--coordinator-heartbeat-interval: expected a number, got 'abc' " +
        '(from LMCACHE_COORDINATOR_HEARTBEAT_INTERVAL)',
    ]);
  });

  test('a bad log level in the variable of the reference means INFO, with a warning', () => {
    const { config, warnings } = loadServerConfig(BASE, { LMCACHE_LOG_LEVEL: 'loud' });
    assert.is(config?.logLevel, 'INFO');
    assert.match(warnings[0]!, /LMCACHE_LOG_LEVEL/);
    assert.match(bad([], { KVD_LOG_LEVEL: 'loud' })[0]!, /^--log-level: must be one of/);
  });

  test('a file with unknown keys, wrong types or broken JSON is refused', () => {
    const unknown = bad(['--config', write('c.json', '{"chunksize": 1}')]);
    assert.match(unknown[0]!, /unknown setting 'chunksize'; did you mean chunk-size\?/);
    assert.match(
      bad(['--config', write('d.json', '{"port": true}')])[0]!,
      /^--port: expected a wh/,
    );
    assert.match(bad(['--config', write('e.json', '{')])[0]!, /^--config: .*e\.json: /);
    assert.match(bad(['--config', write('f.json', '[]')])[0]!, /expected one JSON object/);
    assert.match(bad(['--config', path.join(folder, 'missing.json')])[0]!, /ENOENT/);
    assert.match(bad(['--config', write('g.json', '{"check": true}')])[0]!, /unknown setting/);
  });
});

suite('configuration: checks', (test) => {
  const REFUSED: [readonly string[], RegExp][] = [
    [['--port', '0'], /^--port: must be 1 to 65535, got '0'$/],
    [['--port', '70000'], /^--port: must be 1 to 65535/],
    [['--port', '5.5'], /^--port: expected a whole number/],
    [['--http-port', '-1'], /^--http-port: must be 1 to 65535/],
    [['--chunk-size', '0'], /^--chunk-size: must be 1 to/],
    [['--max-workers', '0'], /^--max-workers: must be 1 to/],
    [['--l1-size-gb', '0'], /^--l1-size-gb: must be above 0/],
    [['--l1-size-gb', '-1'], /^--l1-size-gb: must be above 0/],
    [['--l1-size-gb', 'inf'], /^--l1-size-gb: must be a finite number/],
    [['--l1-size-gb', '0.000001'], /^--l1-size-gb: 1.05 KiB is less than one aligned unit of 4096/],
    [['--l1-align-bytes', '3'], /^--l1-align-bytes: must be a power of two, got 3/],
    [['--l1-align-bytes', '1', '--l1-size-gb', '8'], /^--l1-align-bytes: too small for 8.00 GiB/],
    [['--l1-write-ttl-seconds', '0'], /^--l1-write-ttl-seconds: must be 1 to/],
    [['--l1-read-ttl-seconds', '0'], /^--l1-read-ttl-seconds: must be 1 to/],
    [
      ['--eviction-trigger-watermark', '7'],
      /^--eviction-trigger-watermark: must be above 0, at mo/,
    ],
    [['--eviction-ratio', '-1'], /^--eviction-ratio: must be above 0, at most 1, got '-1'/],
    [['--eviction-policy', 'FIFO'], /^--eviction-policy: must be one of LRU, IsolatedLRU, noop/],
    [
      ['--hash-algorithm', 'md5x'],
      /^--hash-algorithm: must be one of blake3, sha256_cbor, builtin/,
    ],
    [['--engine-type', 'blend_v3'], /^--engine-type: must be one of default, blend/],
    [['--worker-reap-timeout-seconds', '10'], /must be 0 \(never\) or at least 30 seconds, got 10/],
    [['--worker-reap-timeout-seconds', 'nan'], /must be a finite number/],
    [['--worker-registration-grace-seconds', '60'], /at least the reap timeout \(120 seconds\)/],
    [['--metrics-sample-rate', '0'], /^--metrics-sample-rate: must be above 0, at most 1/],
    [['--shm-name', 'a/b'], /^--shm-name: expected letters/],
    [['--shm-mode', '060'], /^--shm-mode: must let the owner read and write/],
    [['--shm-mode', 'rw'], /^--shm-mode: expected an octal file mode/],
    [['--l1-use-hugepages'], /^--l1-use-hugepages: huge pages cannot be shared memory/],
    [['--endpoint', 'tcp://x'], /^--endpoint: expected tcp:\/\/HOST:PORT, ipc.* or grpc\+unix/],
    [['--endpoint', 'grpc://x'], /^--endpoint: expected tcp:.*got 'grpc:\/\/x'/],
    [['--endpoint', 'grpc+unix://x'], /^--endpoint: expected tcp:/],
    [['--kv-events-endpoint', 'grpc://x:1'], /^--kv-events-endpoint: expected tcp:.* or ipc/],
    [['--endpoint', 'tcp://x:65536'], /^--endpoint: expected tcp:/],
    [['--host', 'http://x:1'], /^--host: expected tcp:/],
    [['--host', 'a b'], /^--host: expected an address/],
    [['--runtime-plugin-config', '{x'], /^--runtime-plugin-config: not valid JSON/],
    [['--runtime-plugin-config', '[1]'], /expected a JSON object, got a list/],
    [['--l2-adapter', '{bad'], /^--l2-adapter: #1: not valid JSON/],
    [['--l2-adapter', '{}', '--l2-adapter', '[1]'], /#2: expected a JSON object, got a list/],
  ];

  for (const [args, expected] of REFUSED) {
    test(`refuses ${args.join(' ')}`, () => assert.match(bad(args).join('\n'), expected));
  }

  test('units are converted, and the size is cut to whole bytes as in the reference', () => {
    const config = good(['--l1-size-gb', '0.1', '--l1-init-size-gb', '20']);
    assert.is(config.l1SizeBytes, 107374182);
    assert.is(config.l1InitSizeBytes, 107374182);
    assert.is(config.writeTtlMs, 600_000);
    assert.is(config.reapTimeoutMs, 120_000);
    assert.is(good(['--shm-mode', '660']).shmMode, 0o660);
  });

  test('huge pages need private memory: no name, or no engine-driven workers', () => {
    const huge = '--l1-use-hugepages';
    assert.match(bad([huge]).join('\n'), /huge pages cannot be shared memory/);
    assert.ok(good([huge, '--shm-name', '']).usesHugePages);
    assert.ok(good([huge, '--supported-transfer-mode', 'lmcache_driven']).usesHugePages);
  });

  test('addresses become endpoints', () => {
    const endpoints = (...args: string[]) => good(args).endpoints;
    assert.equal(endpoints(), ['tcp://localhost:5555']);
    assert.equal(endpoints('--host', '::1', '--port', '6'), ['tcp://[::1]:6']);
    assert.equal(endpoints('--host', '[::1]'), ['tcp://[::1]:5555']);
    assert.equal(endpoints('--host', '*', '--endpoint', 'ipc:///tmp/a', '--endpoint=tcp://*:9'), [
      'tcp://*:5555',
      'ipc:///tmp/a',
      'tcp://*:9',
    ]);
    assert.equal(endpoints('--host', 'ipc:///tmp/b'), ['ipc:///tmp/b']);
    assert.equal(endpoints('--transport', 'grpc', '--host', '::1'), ['grpc://[::1]:5555']);
    assert.equal(endpoints('--endpoint', 'grpc://*:6', '--endpoint', 'grpc+unix:///tmp/c'), [
      'tcp://localhost:5555',
      'grpc://*:6',
      'grpc+unix:///tmp/c',
    ]);
  });

  test('a second metrics listener exists only when its flag is given', () => {
    assert.is(good([]).prometheus, null);
    assert.equal(good(['--prometheus-port', '9090']).prometheus, { host: '127.0.0.1', port: 9090 });
    const both = ['--prometheus-port', '1', '--prometheus-host', '0.0.0.0'];
    assert.equal(good(both).prometheus, { host: '0.0.0.0', port: 1 });
  });

  test('copy threads follow the worker flags only when one is given', () => {
    assert.is(good([]).copyThreadCount, null);
    assert.is(good(['--max-workers', '4']).copyThreadCount, 4);
    assert.is(good(['--max-workers', '4', '--max-gpu-workers', '2']).copyThreadCount, 2);
  });

  test('settings without an effect are warned about, once each', () => {
    const given = ['--enable-gc-monitor', '--run-script-api-enabled', '--quiet'];
    const text = warningsOf(given).join('\n');
    assert.match(text, /--enable-gc-monitor has no effect/);
    assert.match(text, /--run-script-api-enabled has no effect: kvd never runs scripts/);
    assert.equal(warningsOf(['--event-bus-queue-size', '10000']), []);
    assert.match(warningsOf(['--hash-algorithm', 'builtin'])[0]!, /not collision resistant/);
    const handle = ['--supported-transfer-mode', 'lmcache_driven', '--shm-name', 'x'];
    assert.match(warningsOf(handle)[0]!, /--shm-name has no effect/);
    assert.equal(warningsOf([...handle.slice(0, 2), '--shm-name', '']), []);
    const noop = ['--eviction-policy', 'noop', '--eviction-ratio', '0.3'];
    assert.match(warningsOf(noop)[0]!, /--eviction-ratio has no effect/);
  });
});

suite('configuration: features that are not built', (test) => {
  const REFUSED = [
    ['--engine-type', 'blend'],
    ['--p2p-advertise-url', 'h:1'],
    ['--coordinator-url', 'http://x'],
    ['--gds-l1-path', '/x'],
    ['--l1-devdax-path', '/dev/dax0'],
    ['--trace-level', 'events'],
    ['--runtime-plugin-locations', '/x'],
    ['--runtime-plugin-config', '{"a":1}'],
    ['--server-module', '{}'],
    ['--no-gds-l1-use-direct-io'],
  ];
  for (const args of REFUSED) {
    test(`refuses ${args.join(' ')} and says why`, () => {
      const reasons = bad(args);
      assert.is(reasons.length, 1);
      assert.match(reasons[0]!, /needs .+, which this build does not have/);
    });
  }

  test('every eviction policy is accepted', () => {
    for (const policy of ['LRU', 'IsolatedLRU', 'ARC', 'S3FIFO', 'noop']) {
      assert.is(good(['--eviction-policy', policy]).evictionPolicy, policy);
    }
  });

  test('default and neutral values are accepted', () => {
    good(['--l2-store-policy', 'default', '--supported-transfer-mode', 'auto']);
    good(['--supported-transfer-mode', 'lmcache_driven', '--kv-event-log-size', '0']);
    good(['--runtime-plugin-config', '{}', '--coordinator-url', '', '--metrics-sample-rate=0.01']);
  });

  test('KV events are published where an address is given, with everything else optional', () => {
    assert.is(good([]).kvEventPublisher, null);
    assert.is(good(['--kv-events-endpoint', '']).kvEventPublisher, null);
    const endpoint = 'tcp://*:5557';
    const { kvEventPublisher, kvEventLogSize } = good(['--kv-events-endpoint', endpoint]);
    assert.equal(kvEventPublisher, { endpoint, replayEndpoint: null, topic: '' });
    assert.is(kvEventLogSize, 32_768);
    assert.match(bad(['--kv-events-endpoint', '5557'])[0]!, /expected tcp:\/\/HOST:PORT/);
    assert.match(bad(['--kv-events-replay-endpoint', 'x'])[0]!, /expected tcp:\/\/HOST:PORT/);
    const warning = warningsOf(['--kv-events-topic', 'kv'])[0]!;
    assert.match(warning, /--kv-events-topic has no effect without --kv-events-endpoint/);
  });

  test('what the Kubernetes operator always passes starts', () => {
    const args = [
      ...['--host', '0.0.0.0', '--port', '5555', '--chunk-size', '256', '--max-workers', '4'],
      ...['--hash-algorithm', 'blake3', '--eviction-trigger-watermark', '0.80'],
      ...['--eviction-ratio', '0.20', '--prometheus-port', '9090'],
    ];
    const environment = { LMCACHE_COORDINATOR_ADVERTISE_IP: '10.0.0.1', LMCACHE_LOG_LEVEL: 'INFO' };
    good(args, environment);
    const [warning] = warningsOf(args, environment);
    assert.match(warning!, /LMCACHE_COORDINATOR_ADVERTISE_IP has no effect/);
  });

  test('a variable that turns a missing feature on is refused like the flag', () => {
    assert.match(bad([], { LMCACHE_COORDINATOR_URL: 'http://x' })[0]!, /^--coordinator-url: needs/);
  });
});

suite('configuration: bearer token', (test) => {
  const file = path.join(fs.mkdtempSync(path.join(os.tmpdir(), 'kvd-token-')), 'token');
  test.after(() => fs.rmSync(path.dirname(file), { recursive: true }));

  test('is the first line of the file, or the variable', () => {
    fs.writeFileSync(file, 'sixteen-or-more-x \nsecond line\n');
    assert.is(good(['--http-token-file', file]).httpToken, 'sixteen-or-more-x');
    assert.is(good([], { KVD_HTTP_TOKEN: 'from-the-variable' }).httpToken, 'from-the-variable');
    assert.is(good([]).httpToken, null);
  });

  test('a file that is empty, missing or short stops the start instead of opening the door', () => {
    fs.writeFileSync(file, '\n');
    assert.match(bad(['--http-token-file', file])[0]!, /at least 16 visible ASCII characters/);
    assert.match(bad(['--http-token-file', `${file}.no`])[0]!, /ENOENT/);
    assert.match(bad([], { KVD_HTTP_TOKEN: 'short' })[0]!, /in KVD_HTTP_TOKEN/);
  });
});

suite('configuration: start-up cases of the reference 0.5.0', (test) => {
  /** Found at run time, not by reading the configuration. */
  const RUN_TIME = ['zmq_port_used', 'http_port_used', 'bad_host', 'shm_too_small'];
  /** The reference starts with a value that cannot work (spec cli 14.2). */
  const STRICTER = [
    ...['plugin_list_json', 'bad_hash', 'l1_zero', 'watermark_2', 'port_70000', 'chunk_0'],
  ];
  const base = vectors.base_args.slice(1);

  for (const { case: name, extra_args, env, outcome } of vectors.cases) {
    test(`${name}: ${outcome === 'exits' ? 'refused' : 'accepted'} as expected`, async () => {
      const isRefused =
        (outcome === 'exits' && !RUN_TIME.includes(name)) || STRICTER.includes(name);
      const { config, problems } = loadServerConfig(
        [...base, ...extra_args],
        env as Record<string, string>,
      );
      const adapters = await checkL2Adapters(config?.l2.adapters ?? []);
      const all = [...problems, ...adapters.problems];
      assert.is(all.length > 0, isRefused, JSON.stringify(all));
    });
  }
});
