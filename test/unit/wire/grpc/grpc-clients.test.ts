/** Clients of the gRPC door: who they are, in which order they are heard, and when they leave. */
import { existsSync, writeFileSync } from 'node:fs';
import { mkdtemp, rm } from 'node:fs/promises';
import { connect } from 'node:net';
import os from 'node:os';
import path from 'node:path';
import * as assert from 'uvu/assert';
import type { RequestOf } from '../../../../src/engine/api.ts';
import type { RequestContext } from '../../../../src/engine/client-traits.ts';
import {
  type GrpcHouse,
  type GrpcHouseOptions,
  lookup,
  openGrpcHouse,
  ping,
  STATUS,
  soon,
  statusOf,
  withGrpcHouse,
} from '../../../support/grpc-house.ts';
import { refuses } from '../../../support/rejects.ts';
import { suite } from '../../../support/suite.ts';

/** Look-ups that wait until they are let go. */
function gate() {
  const { promise, resolve } = Promise.withResolvers<void>();
  const state = {
    runCount: 0,
    open: () => resolve(),
    LOOKUP: async () => {
      state.runCount += 1;
      await promise;
    },
  };
  return state;
}

suite('gRPC client', (test) => {
  const withConnectionIds = async (
    run: (house: GrpcHouse, ids: number[]) => Promise<void>,
    options: GrpcHouseOptions = {},
  ) => {
    const ids: number[] = [];
    const answers = {
      NOOP: (_request: never, { connectionId }: RequestContext) => {
        ids.push(connectionId);
        return 'OK';
      },
    };
    await withGrpcHouse(answers, (house) => run(house, ids), options);
  };

  test('is known by its id, over whatever connection', async () => {
    await withConnectionIds(async ({ client }, ids) => {
      for (const name of ['one', 'one', 'other']) await client(name).call('NOOP', {});
      assert.is(ids[0], ids[1]);
      assert.is.not(ids[0], ids[2]);
    });
  });

  test('without an id is known by its connection', async () => {
    await withConnectionIds(async ({ client }, ids) => {
      const [first, second] = [client(null), client(null)];
      for (const each of [first, second, first]) await each.call('NOOP', {});
      assert.is(ids[0], ids[2]);
      assert.is.not(ids[0], ids[1]);
    });
  });

  test('is forgotten when its last connection is gone, and new when it comes back', async () => {
    await withConnectionIds(async ({ client, door }, ids) => {
      const [first, second] = [client('one'), client('one')];
      await first.call('NOOP', {});
      await second.call('NOOP', {});
      first.close();
      await soon(() => door.statistics()['sockets'] === 1);
      assert.is(door.counts.clients, 1);
      second.close();
      await soon(() => door.counts.clients === 0);
      await client('one').call('NOOP', {});
      assert.is.not(ids[0], ids[2]);
    });
  });

  test('of a unix path is served like others, and the path goes with the door', async () => {
    const folder = await mkdtemp(path.join(os.tmpdir(), 'kvd-grpc-'));
    const file = path.join(folder, 'door.sock');
    const options = { endpoints: ['grpc://127.0.0.1:0', `grpc+unix://${file}`] };
    try {
      await withConnectionIds(async ({ client, door }, ids) => {
        const url = door.endpoints[1] as string;
        const [first, second] = [client(null, url), client(null, url)];
        for (const each of [first, second]) await each.call('NOOP', {});
        assert.is.not(ids[0], ids[1]);
      }, options);
      assert.not.ok(existsSync(file));
      writeFileSync(file, 'a document');
      await refuses(openGrpcHouse({}, options), 'ERR_ADDRESS', /a file that is not a socket/);
    } finally {
      await rm(folder, { recursive: true });
    }
  });

  test('gets its calls dispatched in the order in which it made them', async () => {
    const order: string[] = [];
    const LOOKUP = ({ key }: RequestOf<'LOOKUP'>) => {
      order.push(key.requestId);
      return Promise.resolve();
    };
    await withGrpcHouse({ LOOKUP }, async ({ client }) => {
      const tester = client();
      const names = Array.from({ length: 50 }, (_, index) => `request ${index}`);
      await Promise.all(names.map((name) => tester.call('LOOKUP', lookup(name))));
      assert.equal(order, names);
    });
  });

  test('that gives a call up is not waited for', async () => {
    const { LOOKUP, ...held } = gate();
    await withGrpcHouse({ LOOKUP }, async ({ client, door }) => {
      const tester = client();
      const overdue = await statusOf(tester.call('LOOKUP', lookup(), { deadlineMs: 100 }));
      assert.is(overdue[0], STATUS.DEADLINE_EXCEEDED);
      const onCall = (call: { cancel(): void }) =>
        void soon(() => door.statistics()['in_flight'] === 2).then(() => call.cancel());
      const cancelled = await statusOf(tester.call('LOOKUP', lookup(), { onCall }));
      assert.is(cancelled[0], STATUS.CANCELLED);
      await soon(() => door.statistics()['calls_open'] === 0);
      held.open();
      await soon(() => door.statistics()['in_flight'] === 0);
      assert.equal(door.statistics()['replies_lost'], { gone: 2, full: 0 });
      await ping(tester);
    });
  });

  test('may have so many calls in flight, and PINGs beside them', async () => {
    const held = gate();
    const { LOOKUP } = held;
    const options = { limits: { inFlightCountMax: 2 } };
    const run = async ({ client }: GrpcHouse) => {
      const tester = client();
      const running = [1, 2].map(() => tester.call('LOOKUP', lookup()));
      await soon(() => held.runCount === 2);
      const { error } = await tester.call('LOOKUP', lookup());
      assert.is(error?.error, 'OVERLOADED');
      await ping(tester);
      held.open();
      for (const each of running) assert.is((await each).error, null);
    };
    await withGrpcHouse({ LOOKUP }, run, options);
  });

  test('that sends no HTTP/2 does not disturb others', async () => {
    await withGrpcHouse({}, async ({ client, url, door }) => {
      const port = Number(url.split(':').at(-1));
      const socket = connect(port, '127.0.0.1');
      socket.on('error', () => {});
      socket.resume().end('GET / HTTP/1.1\r\n\r\n');
      await new Promise((resolve) => socket.once('close', resolve));
      await soon(() => door.statistics()['sockets'] === 0);
      await ping(client());
    });
  });

  test('hears of a method that nobody has', async () => {
    await withGrpcHouse({}, async ({ client }) => {
      const [code] = await statusOf(client().callUnknown('/lmcache.mp.DebugService/Noop2'));
      assert.is(code, STATUS.UNIMPLEMENTED);
    });
  });
});

suite('gRPC door that closes', (test) => {
  test('answers what is in flight, refuses what is new, and frees its port', async () => {
    const held = gate();
    const house = await openGrpcHouse({ LOOKUP: held.LOOKUP });
    const tester = house.client();
    const running = tester.call('LOOKUP', lookup());
    await soon(() => held.runCount === 1);
    const closing = house.door.close({ deadlineMs: 5000 });
    const late = await tester.call('LOOKUP', lookup());
    assert.is(late.error?.error, 'SHUTTING_DOWN');
    held.open();
    assert.is((await running).error, null);
    await closing;
    const again = await openGrpcHouse({}, { endpoints: [house.url] });
    await house.close();
    await again.close();
  });

  test('does not wait longer than it may', async () => {
    const house = await openGrpcHouse({ LOOKUP: () => new Promise(() => {}) });
    const running = statusOf(house.client().call('LOOKUP', lookup()));
    await soon(() => house.door.statistics()['in_flight'] === 1);
    await house.door.close({ deadlineMs: 20 });
    assert.is((await running)[0], STATUS.UNAVAILABLE);
    await house.close();
  });

  test('cannot be opened twice at one address', async () => {
    const house = await openGrpcHouse();
    const second = openGrpcHouse({}, { endpoints: [house.url] });
    await refuses(second, 'ERR_ADDRESS', /another process listens there/);
    await house.close();
  });
});
