/** /loglevel (spec http 7.5, 10.12): the reference's exchanges, rooms, and who may change what. */
import { Hono } from 'hono';
import * as assert from 'uvu/assert';
import { errorResponse } from '../../../src/http/json.ts';
import { addLogLevelRoutes } from '../../../src/http/routes/loglevel.ts';
import { createGuard } from '../../../src/http/security.ts';
import { LOG_ROOMS, LogLevels } from '../../../src/observability/log-levels.ts';
import { json } from '../../support/http-house.ts';
import { RecordingLogger } from '../../support/recording-logger.ts';
import { suite } from '../../support/suite.ts';
import idle from '../../vectors/http/0.5.0-idle.json' with { type: 'json' };
import newer from '../../vectors/http/0.5.6-idle.json' with { type: 'json' };

function house(token: string | null = null) {
  const levels = new LogLevels({ root: 'info' });
  const log = new RecordingLogger();
  const app = new Hono();
  const version = { version: '1', commit: '' };
  const room = { app, guard: createGuard(token), version, findBackend: () => null };
  addLogLevelRoutes(room, { levels, log });
  app.onError((error) => {
    const { status = 500, issues } = error as { status?: number; issues?: unknown };
    return errorResponse(status, issues ? JSON.stringify(issues) : error.message);
  });
  const get = async (query = '', headers: Record<string, string> = {}) => {
    const answer = await app.request(`http://kvd:8080/loglevel${query}`, { headers });
    return {
      status: answer.status,
      type: answer.headers.get('content-type'),
      text: await answer.text(),
    };
  };
  const post = (body: unknown, headers: Record<string, string> = {}) =>
    app.request('http://kvd:8080/loglevel', {
      method: 'POST',
      headers: { 'content-type': 'application/json', ...headers },
      body: JSON.stringify(body),
    });
  return { app, levels, log, get, post };
}

suite('http: /loglevel like the reference', (test) => {
  for (const [release, { exchanges }] of Object.entries({ '0.5.0': idle, '0.5.6': newer })) {
    test(`exchanges of ${release}`, async () => {
      const { get } = house();
      let count = 0;
      for (const { request, response } of exchanges) {
        const [, query] = /^\/loglevel(\?logger_name=.*)$/.exec(request.path) ?? [];
        if (query === undefined) continue;
        const answer = await get(query);
        const { status, headers, text } = response as {
          status: number;
          headers: Record<string, string>;
          text: string;
        };
        assert.equal(answer, { status, type: headers['content-type'], text }, query);
        count += 1;
      }
      assert.is(count, 4);
    });
  }

  test('the list has a title, the root and every room', async () => {
    const { levels, get } = house();
    levels.set('wire', 'debug');
    const { status, type, text } = await get();
    assert.is(status, 200);
    assert.is(type, 'text/plain; charset=utf-8');
    const lines = text.split('\n');
    assert.equal(lines.slice(0, 2), ['=== Loggers and Levels ===', 'kvd: INFO']);
    assert.is(lines.length, 2 + LOG_ROOMS.length);
    assert.ok(lines.includes('kvd.wire: DEBUG'));
    assert.ok(lines.includes('kvd.engine: NOTSET'));
  });

  test('a room goes by its name, with kvd before it or not', async () => {
    const { levels, log, get } = house();
    const answer = await get('?logger_name=kvd.wire&level=debug');
    assert.is(answer.text, 'Set kvd.wire level to DEBUG (including all handlers)');
    assert.is(levels.levelOf('wire'), 'debug');
    assert.is((await get('?logger_name=wire')).text, 'wire: DEBUG');
    assert.ok(log.has(/^log level of kvd\.wire: DEBUG$/), 'the log says so');
    await get('?logger_name=wire&level=notset');
    assert.is(levels.ownLevelOf('wire'), null);
    assert.is((await get('?logger_name=kvd.wire')).text, 'kvd.wire: NOTSET');
  });

  test('the root goes by kvd, root and lmcache, and alone', async () => {
    const { levels, get } = house();
    for (const [query, level] of [
      ['?logger_name=kvd&level=warning', 'warn'],
      ['?logger_name=root&level=error', 'error'],
      ['?logger_name=lmcache&level=DEBUG', 'debug'],
    ]) {
      assert.is((await get(query)).status, 200);
      assert.is(levels.root, level);
    }
    const alone = await get('?level=info');
    assert.is(alone.text, 'Set kvd level to INFO (including all handlers)');
    assert.is(levels.root, 'info');
    assert.is((await get('?logger_name=lmcache')).text, 'lmcache: INFO');
    assert.is((await get('?level=notset')).status, 400, 'the root always has a level');
  });

  test('levels that there are none and names that are none change nothing', async () => {
    const { levels, get } = house();
    const { version } = levels;
    assert.equal(await get('?logger_name=wire&level=nosuch'), {
      status: 400,
      type: 'text/plain; charset=utf-8',
      text: 'Invalid log level: nosuch',
    });
    assert.is((await get(`?logger_name=${'x'.repeat(201)}&level=info`)).status, 400);
    assert.is((await get('?logger_name=a%0Akvd:%20DEBUG&level=info')).status, 400);
    assert.is(levels.version, version);
    for (let i = 0; i < 100; i += 1) await get(`?logger_name=lmcache.${i}&level=info`);
    const full = await get('?logger_name=lmcache.x&level=info');
    assert.is(full.status, 400);
    assert.match(full.text, /too many loggers have a level/);
  });
});

suite('http: POST /loglevel', (test) => {
  test('changes a room or the root, and says what holds now', async () => {
    const { levels, post } = house();
    assert.equal(await json(await post({ logger: 'wire', level: 'debug' })), {
      logger: 'kvd.wire',
      level: 'DEBUG',
    });
    assert.is(levels.levelOf('wire'), 'debug');
    assert.equal(await json(await post({ level: 'ERROR' })), { logger: 'kvd', level: 'ERROR' });
    assert.is(levels.root, 'error');
    assert.equal(await json(await post({ logger: 'kvd.wire', level: 'NOTSET' })), {
      logger: 'kvd.wire',
      level: 'NOTSET',
    });
    assert.is(levels.levelOf('wire'), 'error');
  });

  test('a logger that there is none is 404 with those that there are', async () => {
    const { levels, post } = house();
    const answer = await post({ logger: 'wrie', level: 'debug' });
    assert.is(answer.status, 404);
    const { detail, error } = await json(answer);
    assert.match(String(detail), /no such logger; there are kvd, kvd\.wire, kvd\.http/);
    assert.is(detail, error);
    assert.is(levels.ownLevelOf('wrie'), null);
  });

  test('bad levels are 400, bad bodies 422', async () => {
    const { post, app } = house();
    const bad = await post({ logger: 'wire', level: 'loud' });
    assert.is(bad.status, 400);
    assert.is((await json(bad))['error'], 'Invalid log level: loud');
    for (const body of [{}, { logger: 'wire' }, { level: 7 }, { logger: 1, level: 'info' }, []]) {
      assert.is((await post(body)).status, 422, JSON.stringify(body));
    }
    assert.is((await app.request('/loglevel', { method: 'POST' })).status, 422);
  });
});

suite('http: who may change log levels', (test) => {
  const evil = { origin: 'http://evil.example' };

  test('pages of other sites may not, by GET neither', async () => {
    const { levels, get, post } = house();
    assert.is((await get('?logger_name=wire&level=debug', evil)).status, 403);
    assert.is((await get('?level=debug', evil)).status, 403);
    assert.is((await post({ level: 'debug' }, evil)).status, 403);
    assert.is(levels.version, 0);
    assert.is((await get('', evil)).status, 200, 'reading is not affected');
  });

  test('with a token only who has it may read and change', async () => {
    const { levels, get, post } = house('correct-horse-battery');
    for (const query of ['', '?logger_name=wire', '?logger_name=wire&level=debug']) {
      assert.is((await get(query)).status, 401, query);
    }
    assert.is((await post({ level: 'debug' })).status, 401);
    assert.is(levels.version, 0);
    const authorization = 'Bearer correct-horse-battery';
    assert.is((await get('?level=debug', { authorization })).status, 200);
    assert.is(levels.root, 'debug');
  });
});
