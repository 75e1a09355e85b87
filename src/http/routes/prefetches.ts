/**
 * Warm prefetch: bring a prompt's chunks from slower stores into L1 before anybody asks for them
 * (spec http 5.7). The answer to a job is handed out once; jobs that nobody asks for end by time.
 */
import { HTTPException } from 'hono/http-exception';
import { jsonResponse } from '../json.ts';
import { backendOf, type Room } from '../room.ts';
import { FieldReader, requireBodyFields } from '../validation.ts';

const TOKEN_COUNT_MAX = 1_000_000;
const SALT_CHARS_MAX = 128;
const SALT_FORBIDDEN = /[@/\\\0]/;

async function readPrefetch(request: Request) {
  const body = await requireBodyFields(request);
  const fields = new FieldReader();
  const prefetch = {
    modelName: fields.bodyText(['body', 'model_name'], body['model_name'], null),
    worldSize: Number(fields.bodyInteger(['body', 'world_size'], body['world_size'], null)),
    tokenIds: fields.bodyIntegers(['body', 'token_ids'], body['token_ids'], { isRequired: true }),
    cacheSalt: fields.bodyText(['body', 'cache_salt'], body['cache_salt'], ''),
  };
  const source = fields.bodyText(['body', 'source_tier'], body['source_tier'], 'l2');
  const target = fields.bodyText(['body', 'target_tier'], body['target_tier'], 'l1');
  fields.finish();
  if (source !== 'l2' || target !== 'l1') {
    const direction = `'${source}'->'${target}'`;
    refuse(400, `unsupported prefetch direction ${direction}; only 'l2'->'l1'`);
  }
  return prefetch;
}

function refuse(status: 400 | 404 | 503, message: string): never {
  throw new HTTPException(status, { message });
}

function checkContent(tokenIds: readonly number[], cacheSalt: string): void {
  if (tokenIds.length > TOKEN_COUNT_MAX) {
    refuse(400, `expected at most ${TOKEN_COUNT_MAX} token_ids, got ${tokenIds.length}`);
  }
  const stranger = tokenIds.findIndex((id) => !(id >= 0 && id <= 0xffff_ffff));
  if (stranger >= 0) {
    refuse(400, `token_ids[${stranger}]: expected 0 to 4294967295, got ${tokenIds[stranger]}`);
  }
  if ([...cacheSalt].length > SALT_CHARS_MAX || SALT_FORBIDDEN.test(cacheSalt)) {
    const expected = `at most ${SALT_CHARS_MAX} characters, none of @ / \\ and NUL`;
    refuse(400, `cache_salt: expected ${expected}`);
  }
}

export function addPrefetchRoutes(room: Room): void {
  const { app, guard } = room;
  app.post('/cache/prefetches', guard('mutating'), async (c) => {
    const prefetch = await readPrefetch(c.req.raw);
    const { modelName, worldSize, tokenIds, cacheSalt } = prefetch;
    const backend = backendOf(room);
    if (!backend.hasLayout(modelName, worldSize)) {
      const pair = `model_name='${modelName}' world_size=${worldSize}`;
      const reason = 'the model has not allocated KV cache on this node yet';
      refuse(503, `no layout registered for ${pair}; ${reason}`);
    }
    checkContent(tokenIds, cacheSalt);
    const job = await backend.startPrefetch(prefetch);
    if (job === null) return jsonResponse({ chunks: 0, status: 'noop' }, 202);
    const { requestId, chunkCount } = job;
    return jsonResponse({ request_id: requestId, chunks: chunkCount, status: 'submitted' }, 202);
  });

  app.get('/cache/prefetches/:id', guard('sensitive'), (c) => {
    const requestId = c.req.param('id');
    const state = backendOf(room).takePrefetch(requestId);
    if (state === null) {
      const why = '(already completed or never submitted)';
      return refuse(404, `unknown prefetch request_id='${requestId}' ${why}`);
    }
    if (state === 'pending') return jsonResponse({ request_id: requestId, status: 'pending' });
    return jsonResponse({
      request_id: requestId,
      status: 'completed',
      found_keys: state.foundKeyCount,
      total_keys: state.totalKeyCount,
    });
  });
}
