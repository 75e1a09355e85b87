/** Both doors of the server as one. */
import * as assert from 'uvu/assert';
import { KvdClient } from '../../../src/client/client.ts';
import { systemClock } from '../../../src/clock.ts';
import { EventBus } from '../../../src/observability/event-bus.ts';
import type { DialectChoice } from '../../../src/wire/dialect.ts';
import { Doors } from '../../../src/wire/doors.ts';
import { openHasher } from '../../support/core-hasher.ts';
import { freePorts } from '../../support/free-ports.ts';
import { GrpcTester, ping as pingByGrpc } from '../../support/grpc-house.ts';
import { RecordingLogger } from '../../support/recording-logger.ts';
import { refuses } from '../../support/rejects.ts';
import { suite } from '../../support/suite.ts';
import { ping } from '../../support/wire-house.ts';

const ZMQ = 'tcp://127.0.0.1:0';
const GRPC = 'grpc://127.0.0.1:0';

async function openDoors(
  endpoints: readonly string[],
  dialect: DialectChoice = 'auto',
): Promise<Doors> {
  const log = new RecordingLogger();
  const options = { endpoints, dialect, clock: systemClock, log, bus: new EventBus() };
  const doors = await Doors.open(options);
  doors.run({
    sink: {
      dispatch: (name) => (name === 'NOOP' ? 'OK' : true) as never,
      refuse: (_name, _instanceId, _context, error) => error,
    },
    hasher: openHasher({ chunkSizeTokens: 16, tokenCountMax: 16 }),
  });
  return doors;
}

suite('doors', (test) => {
  test('serve both kinds of clients at once, and count them together', async () => {
    const doors = await openDoors([GRPC, ZMQ], 'C');
    const [zmqUrl, grpcUrl] = doors.endpoints as [string, string];
    assert.match(zmqUrl, /^tcp:/);
    assert.match(grpcUrl, /^grpc:/);
    const zmq = KvdClient.connect(zmqUrl, { dialect: 'C' });
    const grpc = new GrpcTester(grpcUrl);
    try {
      await ping(zmq);
      await pingByGrpc(grpc);
      await pingByGrpc(grpc);
      const counts = doors.dialectCounts().dialects.find(({ name }) => name === 'C');
      assert.equal([counts?.clients, counts?.requests], [2, 3]);
      const { messages_received, grpc: own } = doors.statistics() as Record<string, unknown>;
      assert.is(messages_received, 1);
      assert.is((own as Record<string, unknown>)['messages_received'], 2);
    } finally {
      zmq.close();
      grpc.close();
      await doors.close({ deadlineMs: 100 });
    }
  });

  test('prove that they are alive when there is no ZMQ address', async () => {
    const doors = await openDoors([GRPC], 'A');
    assert.is(doors.endpoints.length, 1);
    assert.ok((await doors.selfPing(5000)) >= 0);
    const names = doors.dialectCounts().dialects.map(({ name }) => name);
    assert.equal(names, ['A', 'C'], 'gRPC clients are of C whatever ZMQ clients may be');
    await doors.close({ deadlineMs: 100 });
  });

  test('say nothing of gRPC when nobody asked for it', async () => {
    const doors = await openDoors([ZMQ]);
    assert.not.ok('grpc' in doors.statistics());
    await doors.close({ deadlineMs: 100 });
  });

  test('leave nothing open when one cannot be opened', async () => {
    const [port] = await freePorts(1);
    const url = `tcp://127.0.0.1:${port}`;
    await refuses(openDoors([url, 'grpc://127.0.0.1:99999']), 'ERR_ADDRESS', /99999/);
    const again = await openDoors([url]);
    await again.close({ deadlineMs: 100 });
  });
});
