import { once } from 'node:events';
import net from 'node:net';
import * as assert from 'uvu/assert';
import { hrTimeOf } from '../../../src/observability/otel-time.ts';
import { parseOtlpEndpoint } from '../../../src/observability/otlp.ts';
import { freePorts } from '../../support/free-ports.ts';
import { makeMetrics, openExport } from '../../support/otlp-house.ts';
import { suite } from '../../support/suite.ts';
import { VirtualClock } from '../../support/virtual-clock.ts';
import { until } from '../../support/waiting.ts';

const WAIT_MS = 10_000;
const SPAN = { scope: 's', name: 'n', startSeconds: 1, attributes: {} };

/** Takes connections and says nothing, as a stopped collector does. */
class SilentServer {
  readonly #sockets = new Set<net.Socket>();
  readonly #server = net.createServer((socket) => {
    socket.on('error', () => {});
    this.#sockets.add(socket);
  });

  async start(): Promise<string> {
    this.#server.listen(0, '127.0.0.1');
    await once(this.#server, 'listening');
    return `127.0.0.1:${(this.#server.address() as net.AddressInfo).port}`;
  }

  get connectionCount(): number {
    return this.#sockets.size;
  }

  stop(): void {
    this.#server.close();
    for (const socket of this.#sockets) socket.destroy();
  }
}

suite('OTLP endpoint', (test) => {
  test('without a scheme it is plaintext', () => {
    assert.is(parseOtlpEndpoint('collector:4317').href, 'http://collector:4317/');
    assert.is(parseOtlpEndpoint(' 10.0.0.1:4317 ').href, 'http://10.0.0.1:4317/');
    assert.is(parseOtlpEndpoint('https://collector:4317').protocol, 'https:');
  });

  test('what is no address is refused with what is expected', () => {
    for (const text of ['', 'ftp://host:1', 'http://', 'host:port', 'http://a b']) {
      assert.throws(() => parseOtlpEndpoint(text), /expected http:\/\/HOST:PORT, .* got "/);
    }
  });
});

suite('times of OpenTelemetry', (test) => {
  test('are seconds and nanoseconds, and nanoseconds carry over', () => {
    assert.equal(hrTimeOf(0), [0, 0]);
    assert.equal(hrTimeOf(1.5), [1, 500_000_000]);
    assert.equal(hrTimeOf(1_700_000_000), [1_700_000_000, 0]);
    assert.equal(hrTimeOf(2 - 1e-10), [2, 0]);
  });
});

suite('OTLP export', (test) => {
  test('a collector that is down is counted and reported, and waits for nobody', async () => {
    const [port] = await freePorts(1);
    const { registry } = makeMetrics();
    const endpoint = `127.0.0.1:${port}`;
    const { otlp, log } = await openExport({ endpoint, registry, hasSpans: true });
    otlp.spans?.startSpan({ ...SPAN, parent: null }).end(2);
    await otlp.close();
    assert.equal([...otlp.failureCounts].sort(), [
      ['metrics', 1],
      ['traces', 1],
    ]);
    const limited = log.lines.filter(({ key }) => key === 'otlp-export');
    const expected = new RegExp(`^cannot send \\w+ to ${endpoint}: .*ECONNREFUSED.*; 1 exports`);
    assert.is(limited.length, 2);
    for (const { level, message } of limited) {
      assert.is(level, 'warn');
      assert.match(message, expected);
    }
    // What the SDK says about it is nothing new.
    const others = log.lines.filter(({ key }) => key !== 'otlp-export');
    assert.ok(others.every(({ level }) => level === 'debug'));
  });

  test('a collector that says nothing holds close for 5 s and not longer', async () => {
    const silent = new SilentServer();
    const clock = new VirtualClock();
    const endpoint = await silent.start();
    const { registry } = makeMetrics();
    const { otlp, log } = await openExport({ endpoint, registry, clock });
    try {
      let isClosed = false;
      const closing = otlp.close().then(() => {
        isClosed = true;
      });
      await until(() => silent.connectionCount > 0, WAIT_MS, 'a connection');
      clock.advance(4999);
      await new Promise(setImmediate);
      assert.is(isClosed, false);
      clock.advance(1);
      await closing;
      assert.ok(log.has(/^127\S+ did not take the last metrics and spans within 5 s$/));
      assert.is(otlp.close(), otlp.close());
    } finally {
      silent.stop();
    }
  });

  test('without spans there is no sink, without anything nothing is sent', async () => {
    const silent = new SilentServer();
    const { otlp } = await openExport({ endpoint: await silent.start() });
    assert.is(otlp.spans, null);
    await otlp.close();
    assert.is(silent.connectionCount, 0);
    silent.stop();
  });
});
