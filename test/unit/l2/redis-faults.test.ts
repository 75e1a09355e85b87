/** What `resp` does with a server that is broken, slow, lying or away (field-lessons 9, 10). */
import * as assert from 'uvu/assert';
import { backendType as resp } from '../../../src/l2/adapters/resp.ts';
import { backendType as valkey } from '../../../src/l2/adapters/valkey.ts';
import type { L2Backend, L2Object } from '../../../src/l2/backend.ts';
import { encodeWireKey } from '../../../src/l2/key-text.ts';
import { bulk, FakeResp, type Fault } from '../../support/fake-resp.ts';
import { freePorts } from '../../support/free-ports.ts';
import { openBackend } from '../../support/l2-context.ts';
import { l2Key, l2Value } from '../../support/l2-objects.ts';
import { RecordingLogger } from '../../support/recording-logger.ts';
import { rejects } from '../../support/rejects.ts';
import { suite } from '../../support/suite.ts';
import { timed, until } from '../../support/waiting.ts';

const never = new AbortController().signal;
const SIZE_BYTES = 4096;
const WAIT_MS = 5_000;

const nameOf = (index: number): string => encodeWireKey(l2Key(index));
const objectOf = (index: number): L2Object => ({
  key: l2Key(index),
  bytes: l2Value(SIZE_BYTES, index),
});
const slotOf = (index: number): L2Object => ({
  key: l2Key(index),
  bytes: new Uint8Array(SIZE_BYTES),
});
const isRight = ({ bytes }: L2Object, index: number): boolean =>
  Buffer.compare(bytes, l2Value(SIZE_BYTES, index)) === 0;

interface House {
  readonly fake: FakeResp;
  readonly backend: L2Backend;
}

/** One connection, so that what a fault does to it shows; values 0 to 4 are there. */
function inHouse(body: (house: House) => Promise<void>, json: Record<string, unknown> = {}) {
  return async () => {
    const fake = await FakeResp.listen();
    for (let i = 0; i < 5; i += 1) fake.values.set(nameOf(i), Buffer.from(objectOf(i).bytes));
    const backend = await openBackend(resp, {
      host: '127.0.0.1',
      port: fake.port,
      num_workers: 1,
      request_timeout: 0.3,
      ...json,
    });
    try {
      await body({ fake, backend });
    } finally {
      await backend.close();
      await fake.close();
    }
  };
}

/** For `command` with the key of value `index`; once or always. */
function faultAt(
  command: string,
  index: number,
  answer: (...at: Parameters<Fault>) => void,
): Fault {
  return (parts, socket) => {
    if (parts[0] !== command || parts[1] !== nameOf(index)) return false;
    answer(parts, socket);
    return true;
  };
}

async function loadsAgain({ fake, backend }: House): Promise<void> {
  fake.fault = () => false;
  await until(() => backend.status()['is_healthy'] === true, WAIT_MS, 'a new connection');
  const slot = slotOf(3);
  assert.equal(await backend.load([slot], never), ['loaded']);
  assert.ok(isRight(slot, 3));
}

suite('resp with a faulty server', (test) => {
  test(
    'a value of another size is missing and deleted, and the next one is right',
    inHouse(async ({ fake, backend }) => {
      fake.values.set(nameOf(1), Buffer.alloc(100));
      fake.values.set(nameOf(2), Buffer.alloc(5000));
      const slots = [1, 2, 3, 4].map(slotOf);
      assert.equal(await backend.load(slots, never), ['missing', 'missing', 'loaded', 'loaded']);
      assert.ok(isRight(slots[2] as L2Object, 3) && isRight(slots[3] as L2Object, 4));
      assert.equal(
        fake.commands.filter((command) => command.startsWith('DEL')),
        [`DEL ${nameOf(1)}`, `DEL ${nameOf(2)}`],
      );
      assert.is(backend.status()['connection_failures'], 0);
    }),
  );

  test(
    'a key that is gone between lookup and load is missing and costs nobody else',
    inHouse(async ({ fake, backend }) => {
      assert.equal(await backend.lookup([l2Key(1)], never), [SIZE_BYTES]);
      fake.values.delete(nameOf(1));
      assert.equal(await backend.load([1, 2].map(slotOf), never), ['missing', 'loaded']);
    }),
  );

  test(
    'an error for one key is that key’s result',
    inHouse(async ({ fake, backend }) => {
      fake.fault = faultAt('STRLEN', 1, (_, socket) => socket.write('-WRONGTYPE not a string\r\n'));
      const sizes = await backend.lookup(
        [0, 1, 2].map((i) => l2Key(i)),
        never,
      );
      assert.match(`${sizes[1]}`, /WRONGTYPE/);
      assert.equal([sizes[0], sizes[2]], [SIZE_BYTES, SIZE_BYTES]);
    }),
  );

  test(
    'a server that stops answering costs the timeout once, not a hang',
    inHouse(async (house) => {
      const { fake, backend } = house;
      fake.fault = () => true;
      const { result, ms } = await timed(() => backend.load([0, 1, 2].map(slotOf), never));
      assert.ok(result.every((outcome) => outcome instanceof Error));
      assert.ok(ms < 2_000, `${ms} ms`);
      assert.match(`${result[0]}`, /no reply for 300 ms/);
      await loadsAgain(house);
    }),
  );

  test(
    'a store to a server that stops reading settles with errors',
    inHouse(async (house) => {
      const { fake, backend } = house;
      fake.fault = (_, socket) => {
        socket.pause();
        return true;
      };
      const large = [0, 1, 2].map((i) => ({ key: l2Key(i), bytes: l2Value(8 << 20, i) }));
      const { result, ms } = await timed(() => backend.store([objectOf(4), ...large], never));
      assert.ok(result.every((outcome) => outcome instanceof Error));
      assert.ok(ms < 2_000, `${ms} ms`);
      for (const { bytes } of large) bytes.fill(0);
      await loadsAgain(house);
    }),
  );

  test(
    'a connection that breaks inside a value is an error, and is made again',
    inHouse(async (house) => {
      const { fake, backend } = house;
      fake.fault = faultAt('GET', 1, (_, socket) => {
        socket.end(bulk(objectOf(1).bytes).subarray(0, 1000));
      });
      const slots = [0, 1, 2].map(slotOf);
      const results = await backend.load(slots, never);
      assert.is(results[0], 'loaded');
      assert.instance(results[1], Error);
      await loadsAgain(house);
      assert.ok((backend.status()['connection_failures'] as number) > 0);
    }),
  );

  test(
    'a value that never ends is given up',
    inHouse(async (house) => {
      const { fake, backend } = house;
      fake.fault = faultAt('GET', 1, (_, socket) => socket.write('$9000000000\r\nabc'));
      assert.instance((await backend.load([slotOf(1)], never))[0], Error);
      await loadsAgain(house);
    }),
  );

  test(
    'bytes that are no protocol end the connection',
    inHouse(async (house) => {
      const { fake, backend } = house;
      fake.fault = faultAt('GET', 1, (_, socket) =>
        socket.write('HTTP/1.1 400 Bad Request\r\n\r\n'),
      );
      assert.instance((await backend.load([slotOf(1)], never))[0], Error);
      await loadsAgain(house);
    }),
  );

  test(
    'an answer in single bytes is whole',
    inHouse(async ({ fake, backend }) => {
      fake.fault = faultAt('GET', 1, (_, socket) => {
        const bytes = bulk(objectOf(1).bytes);
        let offset = 0;
        const next = (): void => {
          if (offset < 40)
            socket.write(bytes.subarray(offset, offset + 1), () => setImmediate(next));
          else socket.write(bytes.subarray(offset));
          offset += 1;
        };
        next();
      });
      const slot = slotOf(1);
      assert.equal(await backend.load([slot], never), ['loaded']);
      assert.ok(isRight(slot, 1));
      assert.equal(await backend.load([slotOf(2)], never), ['loaded']);
    }),
  );

  test(
    'an answer of the wrong kind is an error',
    inHouse(async ({ fake, backend }) => {
      fake.fault = faultAt('GET', 1, (_, socket) => socket.write(':4096\r\n'));
      const results = await backend.load([0, 1, 2].map(slotOf), never);
      assert.instance(results[1], Error);
      assert.equal([results[0], results[2]], ['loaded', 'loaded']);
    }),
  );

  test(
    'a connection that breaks leaves the batch to the others',
    inHouse(
      async ({ fake, backend }) => {
        for (let i = 0; i < 200; i += 1) fake.values.set(nameOf(i), Buffer.from(objectOf(i).bytes));
        fake.fault = faultAt('STRLEN', 0, (_, socket) => socket.destroy());
        const keys = Array.from({ length: 200 }, (_, i) => l2Key(i));
        const sizes = await backend.lookup(keys, never);
        // What was on the wire of the broken one is lost, and nothing else.
        assert.ok(sizes.filter((size) => size instanceof Error).length <= 16);
        assert.ok(sizes.filter((size) => size === SIZE_BYTES).length >= 184);
      },
      { num_workers: 3 },
    ),
  );
});

suite('resp with a server that is away', (test) => {
  test('it opens without a server, fails at once, and uses the server that comes', async () => {
    const [port] = (await freePorts(1)) as [number];
    const log = new RecordingLogger();
    const json = { host: '127.0.0.1', port, num_workers: 2 };
    const backend = await openBackend(resp, json, {}, { log });
    const { result, ms } = await timed(() => backend.store([objectOf(1)], never));
    assert.instance(result[0], Error);
    assert.ok(ms < 100, `${ms} ms`);
    assert.is(backend.status()['is_healthy'], false);
    assert.ok(log.has(/connection lost/));
    const fake = await FakeResp.listen(port);
    try {
      await until(() => backend.status()['connections'] === 2, WAIT_MS, 'connections');
      assert.equal(await backend.store([objectOf(1)], never), ['stored']);
    } finally {
      await backend.close();
      await fake.close();
    }
  });

  test('a server that takes connections and no password does not hold up the start', async () => {
    const fake = await FakeResp.listen();
    fake.fault = () => true;
    const { result: backend, ms } = await timed(() =>
      openBackend(resp, { host: '127.0.0.1', port: fake.port, num_workers: 1, password: 'x' }),
    );
    assert.ok(ms < 2_000, `${ms} ms`);
    assert.instance((await backend.lookup([l2Key(1)], never))[0], Error);
    await backend.close();
    await fake.close();
  });

  test('nothing is dialled after close', async () => {
    const fake = await FakeResp.listen();
    const backend = await openBackend(resp, { host: '127.0.0.1', port: fake.port });
    await until(() => fake.connectionCount === 8, WAIT_MS, 'connections');
    await backend.close();
    await until(() => fake.connectionCount === 0, WAIT_MS, 'their end');
    assert.instance((await backend.store([objectOf(1)], never))[0], Error);
    await fake.close();
  });
});

suite('configuration of resp and valkey', (test) => {
  test('server, port, user and password come from the environment', async () => {
    const fake = await FakeResp.listen();
    const env = {
      LMCACHE_RESP_HOST: '127.0.0.1',
      LMCACHE_RESP_PORT: String(fake.port),
      LMCACHE_RESP_USERNAME: 'someone',
      LMCACHE_RESP_PASSWORD: 'secret-word',
    };
    const backend = await openBackend(resp, { num_workers: 1 }, env);
    assert.equal(await backend.store([objectOf(1)], never), ['stored']);
    assert.equal(fake.commands, ['AUTH someone secret-word', `SET ${nameOf(1)}`]);
    assert.not.match(JSON.stringify(backend.status()), /secret-word/);
    await backend.close();
    await fake.close();
  });

  test('a prefix and a time to live go with every key', async () => {
    const fake = await FakeResp.listen();
    const backend = await openBackend(valkey, {
      startup_nodes: `127.0.0.1:${fake.port}, other:1`,
      key_prefix: 'team',
      ttl_seconds: 60,
      num_workers: 1,
    });
    await backend.store([objectOf(1)], never);
    await backend.lookup([l2Key(1)], never);
    assert.equal(fake.commands, [`SET team@${nameOf(1)} EX 60`, `STRLEN team@${nameOf(1)}`]);
    await backend.close();
    await fake.close();
  });

  test('values that cannot work are refused by name', async () => {
    for (const [json, fault] of [
      [{ startup_nodes: 'host' }, /"startup_nodes"/],
      [{ startup_nodes: 'host:99999' }, /"startup_nodes"/],
      [{ startup_nodes: 'a:1,,b:2' }, /"startup_nodes"/],
      [{ startup_nodes: 'a:1', key_prefix: 'a@b' }, /"key_prefix"/],
      [{ startup_nodes: 'a:1', cluster_mode: true, database_id: 2 }, /"database_id"/],
      [{ startup_nodes: 'a:1', tls_enable: true, tls_ca_file: '/no/such.pem' }, /"tls_ca_file"/],
    ] as const) {
      await rejects(openBackend(valkey, json), fault);
    }
  });
});
