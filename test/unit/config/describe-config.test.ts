import * as assert from 'uvu/assert';
import { describeConfig } from '../../../src/config/describe-config.ts';
import { maskSecrets } from '../../../src/config/help.ts';
import { loadServerConfig } from '../../../src/config/load.ts';
import { suite } from '../../support/suite.ts';
import vectors from '../../vectors/http/0.5.0-idle.json' with { type: 'json' };

type Tree = { readonly [key: string]: unknown };

function conf(): Tree {
  const exchange = vectors.exchanges.find(({ request }) => request.path === '/conf');
  return (exchange!.response as { json: Tree }).json;
}

/** What the reference answers here depends on its machine. */
const DIFFERENT = new Set([
  'storage_manager.l1_manager_config.memory_config.use_lazy',
  'storage_manager.l1_manager_config.memory_config.shm_name',
]);

function compare(expected: unknown, actual: unknown, at: string): void {
  if (DIFFERENT.has(at)) return;
  const isTree = typeof expected === 'object' && expected !== null && !Array.isArray(expected);
  if (!isTree) {
    assert.equal(actual, expected, at);
    return;
  }
  assert.ok(typeof actual === 'object' && actual !== null, `${at} is missing`);
  for (const [key, value] of Object.entries(expected)) {
    assert.ok(key in (actual as Tree), `${at}.${key} is missing`);
    compare(value, (actual as Tree)[key], at === '' ? key : `${at}.${key}`);
  }
}

suite('GET /conf', (test) => {
  test('has every field of the reference 0.5.0 with the same value', () => {
    const placeholders: Record<string, string> = { '<P>': '21501', '<Q>': '21502' };
    const args = vectors.server_args.map((word) => placeholders[word] ?? word);
    const { config, problems } = loadServerConfig(args, {});
    assert.equal(problems, []);
    compare(conf(), describeConfig(config!), '');
  });

  test('shows the source of every setting', () => {
    const argv = ['--l1-size-gb', '1', '--eviction-policy', 'LRU'];
    const { config } = loadServerConfig(argv, { KVD_PORT: '77' });
    const { kvd } = describeConfig(config!) as { kvd: { settings: Record<string, unknown> } };
    assert.equal(kvd.settings['--port'], {
      value: 77,
      source: 'environment',
      origin: 'KVD_PORT',
      variable: 'KVD_PORT',
    });
  });

  test('the token is not in it', () => {
    const token = 'a-secret-of-some-length';
    const argv = ['--l1-size-gb', '1', '--eviction-policy', 'LRU'];
    const { config } = loadServerConfig(argv, { KVD_HTTP_TOKEN: token });
    assert.is(config!.httpToken, token);
    assert.not.match(JSON.stringify(describeConfig(config!)), token);
  });

  test('secrets inside JSON settings are masked at any depth', () => {
    const masked = maskSecrets({
      type: 'resp',
      password: 'x',
      a: [{ aws_secret_access_key: 'y' }],
    });
    assert.equal(masked, { type: 'resp', password: '***', a: [{ aws_secret_access_key: '***' }] });
  });
});
