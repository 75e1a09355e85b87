/** No secret of a field, a URL or a library's message gets into a log line. */
import { createHash } from 'node:crypto';
import * as assert from 'uvu/assert';
import { createLogger } from '../../../src/observability/log.ts';
import { redactFields, redactText, tenantDigest } from '../../../src/observability/redaction.ts';
import fc from '../../support/property.ts';
import { suite } from '../../support/suite.ts';
import { VirtualClock } from '../../support/virtual-clock.ts';

async function write(format: 'text' | 'json', message: string, fields?: Record<string, unknown>) {
  const lines: string[] = [];
  const log = await createLogger({
    format,
    level: 'info',
    clock: new VirtualClock(),
    hasColours: false,
    write: (line) => void lines.push(line),
  });
  log.error(message, fields);
  assert.is(lines.length, 1);
  return lines[0] ?? '';
}

suite('redaction: text', (test) => {
  test('a URL keeps everything but its credentials', () => {
    const pairs = [
      ['redis://user:hunter2@host:6379/0', 'redis://***@host:6379/0'],
      ['at redis://:hunter2@[::1]:6379, down', 'at redis://***@[::1]:6379, down'],
      ['https://hunter2@host/path', 'https://***@host/path'],
      ['"amqp+ssl://u:hunt@er2@host"', '"amqp+ssl://***@host"'],
      ['s3://u:hunt/er2@host/b', 's3://***@host/b'],
      ['a://u:hunter2@b and c://u:hunter2@d', 'a://***@b and c://***@d'],
    ];
    for (const [text, shown] of pairs) assert.is(redactText(text ?? ''), shown);
  });

  test('text without a secret stays as it is', () => {
    const texts = [
      'listening on tcp://127.0.0.1:5555 and ipc:///run/kvd@1.sock',
      'GET http://minio:9000/bucket/model@1@abc failed',
      'mail to a@b, c://d and e@f',
      'Stored 512 tokens in 0.010 seconds; tokens=512 max_tokens=9',
      'bearer of news; the token: expected; --http-token-file=/etc/kvd/token',
      '',
    ];
    for (const text of texts) assert.is(redactText(text), text);
  });

  test('named values and bearer tokens are masked', () => {
    const pairs = [
      ['https://h/b?X-Amz-Signature=hunter2&n=1', 'https://h/b?X-Amz-Signature=***&n=1'],
      ['GET /x?token=hunter2 failed', 'GET /x?token=*** failed'],
      ['password=hunter2, secret_key=hunter2;', 'password=***, secret_key=***;'],
      ['{"password": "hunter2","n":1}', '{"password": "***","n":1}'],
      ['Authorization: Bearer hunter2.hunter2==', 'Authorization: Bearer ***'],
    ];
    for (const [text, shown] of pairs) assert.is(redactText(text ?? ''), shown);
  });

  test('a password of any characters a URL can have is not shown', () => {
    const password = fc.stringMatching(/^[A-Z][A-Z0-9%.~!$&()*+,;=-]{7,40}$/);
    fc.assert(
      fc.property(password, (secret) => {
        assert.not.ok(redactText(`cannot reach redis://u:${secret}@h:1/0`).includes(secret));
      }),
    );
  });

  test('a client cannot make it slow', () => {
    for (const piece of ['a://', 'a://a:', 'a.', 'token=', 'bearer ']) {
      const text = piece.repeat(Math.ceil(100_000 / piece.length));
      const startMs = performance.now();
      redactText(text);
      const tookMs = performance.now() - startMs;
      assert.ok(tookMs < 2000, `${piece}: ${tookMs} ms for 100 kB`);
    }
  });
});

suite('redaction: fields', (test) => {
  test('secrets are known by the end of their names, at any depth', () => {
    const shown = redactFields({
      password: 'hunter2',
      httpToken: 'hunter2',
      deep: { list: [{ aws_secret_access_key: 'hunter2', region: 'x' }], credentials: { a: 1 } },
      authorization: ['hunter2'],
      empty: { password: '' },
    });
    assert.equal(shown, {
      password: '***',
      httpToken: '***',
      deep: { list: [{ aws_secret_access_key: '***', region: 'x' }], credentials: '***' },
      authorization: '***',
      empty: { password: '' },
    });
  });

  test('what only sounds like a secret is shown', () => {
    const fields = {
      tokenCount: 5,
      tokens: 'all',
      token: 7,
      passed: 'yes',
      key: 'wire',
      requestId: 'r',
      none: null,
      when: new Date(0),
    };
    assert.equal(redactFields(fields), fields);
  });

  test('a salt is its digest, the same as in the lookup-hash log', () => {
    const digest = createHash('sha256').update('acme').digest('hex').slice(0, 12);
    assert.is(tenantDigest('acme'), digest);
    assert.equal(redactFields({ cacheSalt: 'acme', salt: '', cache_salt: 'acme' }), {
      cacheSalt: `tenant:${digest}`,
      salt: '',
      cache_salt: `tenant:${digest}`,
    });
  });

  test('errors and URLs are looked into, and an object in itself ends', () => {
    const ring: Record<string, unknown> = { url: new URL('redis://u:hunter2@host/0') };
    ring['again'] = ring;
    const error = new TypeError('no redis://u:hunter2@host');
    const shown = redactFields({ ring, error });
    assert.not.match(JSON.stringify(shown), /hunter2/);
    assert.match(JSON.stringify(shown), /redis:\/\/\*\*\*@host\/0/);
    const { message, name, stack } = shown['error'] as Error;
    assert.is(message, 'no redis://***@host');
    assert.is(name, 'TypeError');
    assert.match(stack ?? '', /redaction\.test/);
    assert.not.match(stack ?? '', /hunter2/);
    assert.match(error.message, /hunter2/, 'the error itself stays as it is');
  });
});

suite('redaction: lines', (test) => {
  for (const format of ['text', 'json'] as const) {
    test(`${format} shows no secret of message, fields or errors`, async () => {
      const line = await write(format, 'no redis://u:hunter2@host', {
        password: 'hunter2',
        place: 'redis://u:hunter2@host',
        error: new Error('redis://u:hunter2@host'),
        adapter: { secret: 'hunter2', name: 'redis' },
        cacheSalt: 'hunter2',
        n: 12n,
      });
      assert.not.match(line, /hunter2/);
      assert.match(line, /no redis:\/\/\*\*\*@host/);
      assert.match(line, /tenant:[0-9a-f]{12}/);
      assert.match(line, /"redis"/);
      assert.match(line, /12/);
    });
  }

  test('an error is its message in text, and message and stack in JSON', async () => {
    const error = new Error('it broke');
    assert.match(await write('text', 'x', { reason: error }), / x reason="it broke" \(kvd\)\n$/);
    const { reason } = JSON.parse(await write('json', 'x', { reason: error }));
    assert.is(reason.message, 'it broke');
    assert.match(reason.stack, /redaction\.test/);
  });
});
