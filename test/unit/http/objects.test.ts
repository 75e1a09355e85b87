/** L2 adapters and objects by key (spec http 5.1 to 5.6, 7.9, 10.8 to 10.10). */
import * as assert from 'uvu/assert';
import { KvdError } from '../../../src/errors.ts';
import { FakeChanges } from '../../support/fake-http-backend.ts';
import { house, json } from '../../support/http-house.ts';
import { type Exchange, expectAnswer, labelOf, send } from '../../support/http-vectors.ts';
import { l2Key } from '../../support/l2-objects.ts';
import { suite } from '../../support/suite.ts';
import idle from '../../vectors/http/0.5.0-idle.json' with { type: 'json' };
import first from '../../vectors/http/0.5.0-l2.json' with { type: 'json' };
import second from '../../vectors/http/0.5.3-l2.json' with { type: 'json' };
import newest from '../../vectors/http/0.5.6-idle.json' with { type: 'json' };
import third from '../../vectors/http/0.5.6-l2.json' with { type: 'json' };

interface Replay {
  readonly exchanges: unknown;
  readonly adapters: readonly string[];
  readonly paths: RegExp;
}

/** Routes of other releases are served too, other tiers can be cleared, and no L2 is a dax. */
function isDifferent({ request, response }: Exchange): boolean {
  if (['HEAD', 'OPTIONS'].includes(request.method)) return true;
  const { tier } = (request.body ?? {}) as { tier?: string };
  if (request.path === '/cache/clear' && ['l2', 'all'].includes(tier ?? '')) return true;
  // Where in the text JSON ends is not always told here.
  if (request.raw_body === 'junk') return true;
  return response.status === 404 && response.json?.['detail'] === 'Not Found';
}

/** Which class of the reference does not list is of no interest here. */
function isListRefusal({ response }: Exchange): boolean {
  return String(response.json?.['detail']).includes('does not support listing');
}

async function replay({ exchanges, adapters, paths }: Replay): Promise<number> {
  const { app, backend } = house();
  for (const typeName of adapters) backend.adapters.add(typeName, { canList: false });
  let count = 0;
  for (const exchange of exchanges as readonly Exchange[]) {
    if (!paths.test(exchange.request.path) || isDifferent(exchange)) continue;
    const answer = await send(app, exchange);
    count += 1;
    if (exchange.request.path === '/config/adapters') {
      const entries = (await json(answer))['adapters'] as Record<string, unknown>[];
      const names = entries.map((entry) => [entry['index'], entry['type_name'], entry['primary']]);
      assert.equal(
        names,
        adapters.map((name, index) => [index, name, index === 0]),
      );
    } else if (isListRefusal(exchange)) {
      assert.is(answer.status, exchange.response.status, labelOf(exchange));
      const [start] = String(exchange.response.json?.['detail']).split('listing:');
      assert.ok(String((await json(answer))['detail']).startsWith(start as string));
    } else await expectAnswer(answer, exchange);
  }
  return count;
}

suite('http: exchanges of the reference with L2', (test) => {
  test('0.5.0', async () => {
    const adapters = ['fs', 'mock', 'dax'];
    const paths = /^\/l2/;
    assert.ok((await replay({ exchanges: first.exchanges, adapters, paths })) > 20);
  });

  test('0.5.3', async () => {
    const adapters = ['fs', 'mock'];
    const paths = /^\/(cache\/(objects|clear)|config\/adapters)/;
    assert.ok((await replay({ exchanges: second.exchanges, adapters, paths })) > 25);
  });

  test('0.5.6', async () => {
    const adapters = ['fs', 'mock', 'dax'];
    const paths = /^\/(cache\/(objects|clear)|config\/adapters)/;
    assert.ok((await replay({ exchanges: third.exchanges, adapters, paths })) > 20);
  });

  test('without adapters, and the routes for devices', async () => {
    const paths = /^\/(l2|cache\/objects|reconfigure)/;
    for (const { exchanges } of [idle, newest]) {
      const known = (exchanges as unknown as Exchange[]).filter(
        // 0.5.0 takes `true` for the size 1; here it is an error, as in 0.5.6.
        ({ request, response }) =>
          !(
            (request.body as { size?: unknown } | undefined)?.size === true &&
            response.status === 404
          ),
      );
      assert.ok((await replay({ exchanges: known, adapters: [], paths })) > 20);
    }
  });
});

const HASH = 'ab'.repeat(32);
const KEY = { chunk_hash_hex: HASH, model_name: 'org/m', kv_rank: 7, cache_salt: 'a' };

function objectHouse() {
  const { app, backend } = house();
  const request = async (method: string, path: string, body?: unknown) => {
    const response = await app.request(path, {
      method,
      headers: { 'content-type': 'application/json' },
      body: body === undefined ? null : JSON.stringify(body),
    });
    return { status: response.status, body: await json(response) };
  };
  return { backend, adapters: backend.adapters, request };
}

suite('http: lists of objects', (test) => {
  test('a page has keys as clients send them, sizes, and how to go on', async () => {
    const { adapters, request } = objectHouse();
    adapters.add('fs');
    adapters.add('s3', { isShared: true });
    const key = l2Key(1, { cacheSalt: 'a', objectGroupId: 2 });
    adapters.page = { objects: [{ key, sizeBytes: 9, storedMs: 0 }], nextToken: 'next' };
    const path = '/cache/objects?adapter=s3&model_name=org/m&page_size=7&page_token=here';
    const { status, body } = await request('GET', path);
    assert.is(status, 200);
    assert.equal(body, {
      adapter: 's3',
      entries: [
        {
          key: {
            chunk_hash_hex: Buffer.from(key.chunkHash).toString('hex'),
            model_name: key.modelName,
            kv_rank: key.kvRank,
            object_group_id: 2,
            cache_salt: 'a',
          },
          size_bytes: 9,
        },
      ],
      next_page_token: 'next',
      shared: true,
    });
    assert.equal(adapters.listRequests, [[1, { modelName: 'org/m', pageSize: 7, token: 'here' }]]);
    await request('GET', '/l2/keys');
    assert.equal(adapters.listRequests[1], [0, { modelName: null, pageSize: 500, token: null }]);
  });

  test('a bad token is the client’s fault, a store that is down is a bad gateway', async () => {
    const { adapters, request } = objectHouse();
    adapters.add('fs');
    adapters.page = new KvdError('ERR_BAD_REQUEST', 'page_token is not of this adapter');
    const bad = await request('GET', '/l2/keys?page_token=zz');
    assert.equal([bad.status, bad.body['detail']], [400, 'page_token is not of this adapter']);
    adapters.page = new Error('connection refused');
    const down = await request('GET', '/cache/objects');
    assert.is(down.status, 502);
    assert.is(down.body['detail'], "L2 adapter 'fs' cannot be listed: connection refused");
  });
});

suite('http: deletion of objects', (test) => {
  test('counts are of what is really gone, tier by tier', async () => {
    const { backend, adapters, request } = objectHouse();
    adapters.add('fs');
    backend.l1Outcome = { deletedCount: 2, lockedCount: 1 };
    const locked = new KvdError('ERR_L2_LOCKED', 'locked');
    const results = ['deleted', 'absent', locked] as const;
    adapters.deleteResult = ({ kvRank }) => results[kvRank] ?? 'absent';
    const keys = [0, 1, 2].map((kv_rank) => ({ ...KEY, kv_rank }));
    const { body } = await request('DELETE', '/cache/objects', { keys, tier: 'all' });
    assert.equal(body, {
      deleted: 3,
      skipped: 1,
      ok: true,
      l1_deleted: 2,
      l2_deleted: 1,
      l2_skipped: 1,
    });
    const [deleted] = backend.l1Deletions;
    assert.is(deleted?.[1], false);
    assert.equal(deleted?.[0][1], {
      chunkHash: new Uint8Array(32).fill(0xab),
      modelName: 'org/m',
      kvRank: 1,
      objectGroupId: 0,
      cacheSalt: 'a',
    });
  });

  test('force reaches L1, and a tier alone leaves the other one', async () => {
    const { backend, adapters, request } = objectHouse();
    adapters.add('fs');
    const l1 = await request('DELETE', '/cache/objects', { keys: [KEY], tier: 'l1', force: true });
    assert.is(l1.body['deleted'], 0);
    assert.is(backend.l1Deletions[0]?.[1], true);
    assert.equal(adapters.deletions, []);
    await request('DELETE', '/cache/objects', { keys: [KEY] });
    assert.is(backend.l1Deletions.length, 1);
    assert.is(adapters.deletions.length, 1);
  });

  test('a failing store is told in the answer', async () => {
    const { adapters, request } = objectHouse();
    adapters.add('fs');
    adapters.deleteResult = () => new KvdError('ERR_L2_IO', 'read-only file system');
    const { status, body } = await request('DELETE', '/l2', { keys: [KEY] });
    assert.is(status, 200);
    assert.is(body['ok'], false);
    assert.is(body['error'], 'read-only file system');
    assert.is(body['l2_deleted'], 0);
  });

  test('an unknown adapter leaves L1 alone, too', async () => {
    const { backend, adapters, request } = objectHouse();
    const options = { keys: [KEY], tier: 'all' };
    assert.is((await request('DELETE', '/cache/objects', options)).status, 503);
    adapters.add('fs');
    const named = { ...options, adapter: 's3' };
    assert.is((await request('DELETE', '/cache/objects', named)).status, 404);
    assert.equal(backend.l1Deletions, []);
  });

  test('10,000 keys are taken, more are refused with the limit', async () => {
    const { adapters, request } = objectHouse();
    adapters.add('fs');
    const keys = Array.from({ length: 10_000 }, () => KEY);
    assert.is((await request('DELETE', '/l2', { keys })).body['l2_deleted'], 10_000);
    const { status, body } = await request('DELETE', '/l2', { keys: [...keys, KEY] });
    const detail = 'too many keys in a single request (limit=10000, got=10001)';
    assert.equal([status, body['detail']], [400, detail]);
    assert.is(adapters.deletions.length, 1);
  });

  test('keys of the wrong form are refused with their place', async () => {
    const { adapters, request } = objectHouse();
    adapters.add('fs');
    const entries: [unknown, number, unknown][] = [
      [{ ...KEY, chunk_hash_hex: 'AB cd' }, 200, undefined],
      [
        { ...KEY, chunk_hash_hex: 'ab c' },
        400,
        'keys[1]: non-hexadecimal number found in fromhex() arg at position 4',
      ],
      [
        { ...KEY, cache_salt: 's'.repeat(129) },
        400,
        'keys[1]: cache_salt must have at most 128 characters (got 129)',
      ],
      [7, 422, ['body', 'keys', 1]],
      [{ ...KEY, kv_rank: 1.5 }, 422, ['body', 'keys', 1, 'kv_rank']],
    ];
    for (const [entry, status, reason] of entries) {
      const answer = await request('DELETE', '/l2', { keys: [KEY, entry] });
      assert.is(answer.status, status);
      const { detail } = answer.body as { detail: unknown };
      const place = Array.isArray(detail) ? (detail[0] as { loc: unknown }).loc : detail;
      assert.equal(place, reason);
    }
  });
});

suite('http: clearing tiers', (test) => {
  const result = { removedObjectCount: 5, skippedObjectCount: 1, freedBytes: 500 };

  test('the answer has the counts of each tier', async () => {
    const { backend, adapters, request } = objectHouse();
    adapters.add('fs');
    adapters.add('s3');
    adapters.clears = [
      { ...result, error: null },
      { ...result, error: 'it cannot list its objects' },
    ];
    const both = (await request('POST', '/cache/clear', { tier: 'all' })).body;
    assert.is(both['status'], 'incomplete');
    assert.is(both['error'], 'it cannot list its objects');
    const entry = { removed_objects: 5, skipped_objects: 1, freed_bytes: 500 };
    assert.equal(both['tiers'], {
      l1: { removed_objects: 3, deferred_objects: 1, freed_bytes: 4096 },
      l2: {
        removed_objects: 10,
        skipped_objects: 2,
        freed_bytes: 1000,
        adapters: [
          { id: 0, type_name: 'fs', ...entry, ok: true },
          { id: 1, type_name: 's3', ...entry, ok: false, error: 'it cannot list its objects' },
        ],
      },
    });
    assert.equal(backend.clears, [false]);
  });

  test('one tier leaves the other; without adapters there is no second one', async () => {
    const { backend, adapters, request } = objectHouse();
    const none = await request('POST', '/cache/clear', { tier: 'l2' });
    assert.equal([none.status, none.body['detail']], [503, 'no L2 adapters configured']);
    adapters.add('fs');
    adapters.clears = [{ ...result, error: null }];
    const l2 = (await request('POST', '/cache/clear', { tier: 'l2' })).body;
    assert.equal(Object.keys(l2['tiers'] as object), ['l2']);
    assert.is(l2['status'], 'ok');
    assert.equal(backend.clears, []);
    const l1 = (await request('POST', '/cache/clear')).body;
    assert.equal(Object.keys(l1['tiers'] as object), ['l1']);
  });
});

suite('http: changes at runtime', (test) => {
  const changing = () => {
    const parts = objectHouse();
    const changes = new FakeChanges(parts.adapters);
    parts.backend.changes = changes;
    return { ...parts, changes };
  };

  test('they need the flag', async () => {
    const { adapters, request } = objectHouse();
    adapters.add('fs');
    const asked: [string, string, unknown][] = [
      ['POST', '/config/adapters', { type: 'fs' }],
      ['POST', '/config/adapters/0/drain', undefined],
      ['DELETE', '/config/adapters/0', undefined],
      ['PATCH', '/config/l1', { eviction_ratio: 0.5 }],
    ];
    for (const [method, path, body] of asked) {
      const answer = await request(method, path, body);
      assert.is(answer.status, 403, path);
      assert.match(String(answer.body['error']), '--enable-reconfigure-api');
    }
  });

  test('an adapter is added by the JSON of its flag, and shown', async () => {
    const { changes, request } = changing();
    const spec = { type: 'fs', base_path: '/data' };
    const { status, body } = await request('POST', '/config/adapters', spec);
    assert.is(status, 201);
    const { added } = body as { added: Record<string, unknown> };
    assert.equal([added['id'], added['type_name'], added['state']], [0, 'fs', 'active']);
    assert.equal(changes.calls, [['add', spec]]);
    changes.failure = new KvdError('ERR_CONFIG', 'base_path must be a non-empty string');
    const bad = await request('POST', '/config/adapters', { type: 'fs' });
    assert.equal([bad.status, bad.body['error']], [400, 'base_path must be a non-empty string']);
  });

  test('an adapter is drained and removed, or the wait ends', async () => {
    const { adapters, changes, request } = changing();
    adapters.add('fs');
    const drain = await request('POST', '/config/adapters/0/drain');
    assert.equal(drain.body, { id: 0, type_name: 'fs', status: 'drained' });
    changes.isIdle = false;
    const late = await request('DELETE', '/config/adapters/0?timeout_seconds=2');
    assert.is(late.status, 504);
    assert.equal(changes.calls, [
      ['drain', 0, 30_000],
      ['remove', 0, 2000],
    ]);
    assert.is((await request('DELETE', '/config/adapters/7')).status, 404);
    assert.is((await request('DELETE', '/config/adapters/x')).status, 422);
    assert.is((await request('DELETE', '/config/adapters/0?timeout_seconds=601')).status, 422);
  });

  test('limits of L1 are changed one by one, within (0, 1]', async () => {
    const { changes, request } = changing();
    const { body } = await request('PATCH', '/config/l1', { eviction_trigger_watermark: 0.5 });
    assert.equal(body, { status: 'ok', eviction_trigger_watermark: 0.5, eviction_ratio: 0.2 });
    for (const bad of [{ eviction_ratio: 0 }, { eviction_ratio: 1.1 }, { size_gb: 1 }]) {
      assert.is((await request('PATCH', '/config/l1', bad)).status, 400);
    }
    assert.equal(changes.limits, { triggerWatermark: 0.5, evictionRatio: 0.2 });
  });
});
