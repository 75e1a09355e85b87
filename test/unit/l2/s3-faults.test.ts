/** What `s3` sends, and what it does with a server that is broken, slow, lying or away. */
import type http from 'node:http';
import * as assert from 'uvu/assert';
import { backendType as s3 } from '../../../src/l2/adapters/s3.ts';
import type { L2Backend } from '../../../src/l2/backend.ts';
import { encodeS3Path } from '../../../src/l2/key-text.ts';
import { SizeCache } from '../../../src/l2/s3/size-cache.ts';
import { FakeS3, type S3Fault } from '../../support/fake-s3.ts';
import { freePorts } from '../../support/free-ports.ts';
import { openBackend } from '../../support/l2-context.ts';
import { l2Key, l2Value, SlotArena } from '../../support/l2-objects.ts';
import { rejects } from '../../support/rejects.ts';
import { suite } from '../../support/suite.ts';
import { VirtualClock } from '../../support/virtual-clock.ts';
import { timed, until } from '../../support/waiting.ts';

const never = new AbortController().signal;
const SIZE_BYTES = 100_000;
const LARGE_BYTES = (20 << 20) + 17;

const objectOf = (index: number, sizeBytes = SIZE_BYTES) => ({
  key: l2Key(index),
  bytes: l2Value(sizeBytes, index),
});

interface House {
  readonly fake: FakeS3;
  readonly backend: L2Backend;
  readonly arena: SlotArena;
}

const jsonFor = (port: number) => ({
  s3_endpoint: `bucket.store.test:${port}`,
  s3_connect_address: `127.0.0.1:${port}`,
  s3_region: 'eu-test-1',
  disable_tls: true,
  aws_access_key_id: 'AK',
  aws_secret_access_key: 'secret-word',
  request_timeout: 0.5,
  max_attempts: 1,
});

/** Objects 0 to 2 are there. */
function inHouse(body: (house: House) => Promise<void>, json: Record<string, unknown> = {}) {
  return async () => {
    const fake = await FakeS3.listen();
    for (const i of [0, 1, 2])
      fake.objects.set(encodeS3Path(l2Key(i)), Buffer.from(objectOf(i).bytes));
    const arena = await SlotArena.open(64 << 20);
    const backend = await openBackend(s3, { ...jsonFor(fake.port), ...json });
    try {
      await body({ fake, backend, arena });
    } finally {
      await backend.close();
      await fake.close();
      await arena.close();
    }
  };
}

/** For the GET or HEAD of object 1. */
function faultAt(method: string, answer: (response: http.ServerResponse) => void): S3Fault {
  return (request, response) => {
    if (request.method !== method || request.url?.split('?')[0] !== encodeS3Path(l2Key(1))) {
      return false;
    }
    answer(response);
    return true;
  };
}

/** Loads 0 to 2 into guarded slots, of which 1 must fail and the others must not. */
async function expectOnlyOneFails({ backend, arena }: House): Promise<unknown> {
  const targets = [0, 1, 2].map((i) => arena.object(l2Key(i), SIZE_BYTES));
  const results = await backend.load(targets, never);
  assert.equal([results[0], results[2]], ['loaded', 'loaded']);
  assert.is.not(results[1], 'loaded');
  assert.ok(arena.guardsHold(targets.map(({ bytes }) => bytes)), 'bytes outside have changed');
  return results[1];
}

suite('requests of s3', (test) => {
  test(
    'they are signed, virtual-hosted, without a payload hash, and named as by the peer',
    inHouse(
      async ({ fake, backend }) => {
        await backend.store([objectOf(9)], never);
        await backend.load([{ key: l2Key(0), bytes: new Uint8Array(SIZE_BYTES) }], never);
        const [put, get] = fake.requests;
        assert.is(put?.path.split('?')[0], encodeS3Path(l2Key(9)));
        assert.match(put?.path ?? '', /^\/org\/model-8B%4001000100%400%40/);
        assert.is(put?.headers.host, `bucket.store.test:${fake.port}`);
        assert.match(
          put?.headers.authorization ?? '',
          /^AWS4-HMAC-SHA256 Credential=AK\/\d{8}\/eu-test-1\/s3\/aws4_request, .*Signature=/,
        );
        assert.is(put?.headers['x-amz-content-sha256'], 'UNSIGNED-PAYLOAD');
        assert.is(put?.headers['x-amz-security-token'], 'token-word');
        assert.is(put?.headers['content-type'], 'application/octet-stream');
        assert.is(put?.headers['content-length'], String(SIZE_BYTES));
        assert.is(put?.headers.expect, undefined);
        assert.is(get?.headers.range, `bytes=0-${SIZE_BYTES - 1}`);
      },
      { aws_session_token: 'token-word' },
    ),
  );

  test(
    'path style has the bucket in the path',
    inHouse(
      async ({ fake, backend }) => {
        await backend.lookup([l2Key(9)], never);
        assert.is(fake.requests[0]?.path, `/bucket${encodeS3Path(l2Key(9))}`);
        assert.is(fake.requests[0]?.headers.host, `store.test:${fake.port}`);
      },
      { s3_path_style: true },
    ),
  );

  test(
    'a large value is fetched in ranges that cover it once',
    inHouse(async ({ fake, backend, arena }) => {
      const object = objectOf(5, LARGE_BYTES);
      await backend.store([object], never);
      const target = arena.object(l2Key(5), LARGE_BYTES);
      assert.equal(await backend.load([target], never), ['loaded']);
      assert.is(Buffer.compare(target.bytes, object.bytes), 0);
      const ranges = fake.requests.map(({ headers }) => headers.range).filter(Boolean);
      assert.equal(ranges.sort(), [
        'bytes=0-8388607',
        `bytes=16777216-${LARGE_BYTES - 1}`,
        'bytes=8388608-16777215',
      ]);
    }),
  );

  test(
    'a size that was seen is not asked for again for a minute',
    inHouse(async ({ fake, backend }) => {
      await backend.lookup([l2Key(0), l2Key(0), l2Key(8)], never);
      await backend.lookup([l2Key(0), l2Key(8)], never);
      const asked = fake.requests.filter(({ path }) => path === encodeS3Path(l2Key(8)));
      assert.is(asked.length, 2, 'an absent object is asked for each time');
      assert.is.not(fake.requests.length, 5, 'the present one is not');
    }),
  );
});

suite('s3 with a faulty server', (test) => {
  test(
    'a server that never answers costs the timeout, not a hang',
    inHouse(async ({ fake, backend }) => {
      fake.fault = () => true;
      const { result, ms } = await timed(() => backend.lookup([l2Key(0), l2Key(1)], never));
      assert.ok(result.every((size) => size instanceof Error));
      assert.ok(ms < 3_000, `${ms} ms`);
      assert.is(backend.status()['is_healthy'], false);
      fake.fault = () => false;
      assert.equal(await backend.lookup([l2Key(0)], never), [SIZE_BYTES]);
      assert.is(backend.status()['is_healthy'], true);
    }),
  );

  test(
    'a body that breaks off is an error',
    inHouse(async (house) => {
      house.fake.fault = faultAt('GET', (response) => {
        response.writeHead(206, rangeHeaders(SIZE_BYTES, SIZE_BYTES));
        response.write(objectOf(1).bytes.subarray(0, 60_000), () => response.destroy());
      });
      assert.instance(await expectOnlyOneFails(house), Error);
    }),
  );

  test(
    'a body that stalls is an error',
    inHouse(async (house) => {
      house.fake.fault = faultAt('GET', (response) => {
        response.writeHead(206, rangeHeaders(SIZE_BYTES, SIZE_BYTES));
        response.write(objectOf(1).bytes.subarray(0, 60_000));
      });
      assert.instance(await expectOnlyOneFails(house), Error);
    }),
  );

  test(
    'a body beyond the range is not written',
    inHouse(async (house) => {
      house.fake.fault = faultAt('GET', (response) => {
        // No length: the only way to send more than a client expects.
        response.writeHead(206, { 'content-range': `bytes 0-${SIZE_BYTES - 1}/${SIZE_BYTES}` });
        response.end(l2Value(3 * SIZE_BYTES, 1));
      });
      assert.instance(await expectOnlyOneFails(house), Error);
    }),
  );

  test(
    'an object of another size is missing and is not read',
    inHouse(async (house) => {
      for (const sizeBytes of [SIZE_BYTES - 1, SIZE_BYTES + 1, 10, 50_000_000]) {
        house.arena.reset();
        house.fake.objects.set(encodeS3Path(l2Key(1)), Buffer.alloc(sizeBytes));
        assert.is(await expectOnlyOneFails(house), 'missing');
      }
    }),
  );

  test(
    'a large value that is shorter in the store is missing',
    inHouse(async ({ fake, backend, arena }) => {
      for (const sizeBytes of [100, 9 << 20, LARGE_BYTES - 1]) {
        fake.objects.set(encodeS3Path(l2Key(1)), Buffer.alloc(sizeBytes));
        arena.reset();
        const target = arena.object(l2Key(1), LARGE_BYTES);
        assert.equal(await backend.load([target], never), ['missing']);
        assert.ok(arena.guardsHold([target.bytes]));
      }
    }),
  );

  test(
    'a server that knows no ranges is understood',
    inHouse(async ({ fake, backend, arena }) => {
      fake.fault = faultAt('GET', (response) => response.end(objectOf(1).bytes));
      const target = arena.object(l2Key(1), SIZE_BYTES);
      assert.equal(await backend.load([target], never), ['loaded']);
      assert.is(Buffer.compare(target.bytes, objectOf(1).bytes), 0);
    }),
  );

  test(
    'a server that is busy is asked again',
    inHouse(
      async ({ fake, backend }) => {
        fake.fault = (_, response, count) => {
          if (count > 2) return false;
          response.writeHead(503).end('<Error><Code>SlowDown</Code></Error>');
          return true;
        };
        assert.equal(await backend.store([objectOf(7)], never), ['stored']);
        assert.is(fake.requests.length, 3);
        assert.is(fake.objects.get(encodeS3Path(l2Key(7)))?.length, SIZE_BYTES);
      },
      { max_attempts: 3 },
    ),
  );

  test(
    'an upload that is refused before it has been sent ends its connection',
    inHouse(async ({ fake, backend }) => {
      fake.fault = (_, response) => {
        response.writeHead(403).end('<Error><Code>AccessDenied</Code></Error>');
        return true;
      };
      const [result] = await backend.store([objectOf(7, 32 << 20)], never);
      assert.match(`${result}`, /AccessDenied|403/);
      await until(async () => (await fake.connectionCount()) === 0, 2_000, 'the connection ends');
    }),
  );

  test(
    'nothing of a buffer is sent after its task was broken off',
    inHouse(async ({ fake, backend }) => {
      let upload: http.IncomingMessage | null = null;
      fake.fault = (request) => {
        upload = request;
        return true;
      };
      const sizeBytes = 32 << 20;
      const abort = new AbortController();
      const running = backend.store([objectOf(7, sizeBytes)], abort.signal);
      await until(() => upload !== null, 2_000, 'the request');
      abort.abort(new Error('broken off'));
      assert.instance((await running)[0], Error);
      let receivedBytes = 0;
      const body = upload as unknown as http.IncomingMessage;
      body.on('data', (part: Buffer) => {
        receivedBytes += part.length;
      });
      await until(async () => (await fake.connectionCount()) === 0, 2_000, 'its end');
      assert.ok(receivedBytes < sizeBytes, 'all of it came');
    }),
  );

  test('a store that is away is an error at once, and no hang', async () => {
    const [port] = (await freePorts(1)) as [number];
    const backend = await openBackend(s3, jsonFor(port));
    const { result, ms } = await timed(() => backend.store([objectOf(1)], never));
    assert.instance(result[0], Error);
    assert.ok(ms < 2_000, `${ms} ms`);
    assert.not.match(`${result[0]} ${JSON.stringify(backend.status())}`, /secret-word/);
    await backend.close();
  });
});

const rangeHeaders = (sizeBytes: number, objectSizeBytes: number) => ({
  'content-length': sizeBytes,
  'content-range': `bytes 0-${sizeBytes - 1}/${objectSizeBytes}`,
});

suite('configuration of s3', (test) => {
  test('values that cannot work are refused by name', async () => {
    const good = jsonFor(1);
    for (const [json, fault] of [
      [{ s3_endpoint: 'bucket' }, /"s3_endpoint"/],
      [{ s3_endpoint: 'https://bucket.host' }, /"s3_endpoint"/],
      [{ s3_connect_address: 'host' }, /"s3_connect_address"/],
      [{ aws_secret_access_key: '' }, /"aws_access_key_id" and "aws_secret_access_key"/],
    ] as const) {
      await rejects(openBackend(s3, { ...good, ...json }), fault);
    }
    const backend = await openBackend(s3, { ...good, s3_endpoint: 's3://b.s3.amazonaws.com' });
    assert.is(backend.status()['endpoint'], 'b.s3.amazonaws.com');
    await backend.close();
  });
});

suite('size cache', (test) => {
  test('an entry is believed for a minute and until it is dropped', () => {
    const clock = new VirtualClock();
    const sizes = new SizeCache(clock);
    sizes.set('a', 1);
    sizes.set('b', 2);
    clock.advance(59_999);
    assert.is(sizes.get('a'), 1);
    sizes.set('a', 3);
    sizes.drop('b');
    assert.is(sizes.get('b'), null);
    clock.advance(1);
    assert.is(sizes.get('a'), 3);
    clock.advance(60_000);
    assert.is(sizes.get('a'), null);
  });

  test('the oldest entry makes room', () => {
    const sizes = new SizeCache(new VirtualClock());
    for (let i = 0; i <= 100_000; i += 1) sizes.set(`${i}`, i + 1);
    assert.is(sizes.entryCount, 100_000);
    assert.is(sizes.get('0'), null);
    assert.is(sizes.get('1'), 2);
  });
});
