/**
 * MD5 of blocks of a registered KV cache, to compare before and after a store and retrieve (spec
 * http 5.8): `GET /kvcache/check` for the tools of 0.5.0, `POST /cache/checksums` for later ones.
 * The order of the checks is the reference's, its tools show the first text.
 */
import type { Context } from 'hono';
import { HTTPException } from 'hono/http-exception';
import type { ChecksumTarget } from '../backend.ts';
import { formatBlockIds, parseBlockIds } from '../block-ids.ts';
import { jsonResponse } from '../json.ts';
import type { OneAtATime } from '../one-at-a-time.ts';
import { backendOf, type Room } from '../room.ts';
import { FieldReader, requireBodyFields } from '../validation.ts';

/** Digests of one answer, over all layers: 4 MB of text and some seconds of small copies. */
const CHECKSUM_COUNT_MAX = 65_536;
/** Blocks that one answer reads, over all layers: 64 GiB where a block has 64 KiB. */
const READ_COUNT_MAX = 1_048_576;

type Status = 400 | 404 | 501;

function refuse(status: Status, message: string): never {
  throw new HTTPException(status, { message });
}

interface ChecksumQuestion {
  /** Null: the text could not be read. */
  readonly blockIds: readonly number[] | null;
  readonly chunkSizeBlocks: number;
  readonly instanceId: bigint;
  readonly isLayerwise: boolean;
}

async function readBody(c: Context): Promise<ChecksumQuestion> {
  const body = await requireBodyFields(c.req.raw);
  const fields = new FieldReader();
  const question = {
    blockIds: fields.bodyIntegers(['body', 'block_ids'], body['block_ids'], { isRequired: false }),
    chunkSizeBlocks: Number(fields.bodyInteger(['body', 'chunk_size'], body['chunk_size'], 0n)),
    instanceId: fields.bodyInteger(['body', 'instance_id'], body['instance_id'], 0n),
    isLayerwise: fields.boolean(['body', 'layerwise'], body['layerwise'], false),
  };
  fields.finish();
  return question;
}

function readQuery(c: Context): ChecksumQuestion {
  const text = c.req.query('block_ids') ?? '';
  const fields = new FieldReader();
  const query = {
    blockIds: text === '' ? [] : parseBlockIds(text),
    chunkSizeBlocks: Number(fields.integer(['query', 'chunk_size'], c.req.query('chunk_size'), 0n)),
    instanceId: fields.integer(['query', 'instance_id'], c.req.query('instance_id'), 0n),
    isLayerwise: fields.boolean(['query', 'layerwise'], c.req.query('layerwise'), false),
  };
  fields.finish();
  return query;
}

function findTarget(room: Room, instanceId: bigint): ChecksumTarget {
  const target = backendOf(room).checksumTarget(instanceId);
  if (target === 'not-enabled') {
    refuse(501, 'the lmcache_driven transfer module is not loaded (--supported-transfer-mode)');
  }
  if (target === 'unknown') refuse(404, `instance_id ${instanceId} not registered`);
  return target;
}

function checkBlockIds(question: ChecksumQuestion, target: ChecksumTarget): readonly number[] {
  const { blockIds: ids, chunkSizeBlocks } = question;
  if (ids === null) refuse(400, 'Invalid block_ids format');
  if (ids.length === 0) refuse(400, 'block_ids is required');
  if (chunkSizeBlocks <= 0) refuse(400, 'chunk_size must be positive');
  if (target.layerCount === 0) refuse(404, 'kv_caches empty');
  const { blockCount } = target;
  if (blockCount === null) refuse(501, 'the KV format has no block axis');
  const outside = ids.find((id) => id < 0 || id >= blockCount);
  if (outside !== undefined) {
    refuse(400, `block id ${outside} is out of range (${blockCount} blocks)`);
  }
  return ids;
}

/** Holds for both kinds of answers: each layer is read by itself also when digests join them. */
function checkCost(blockCount: number, chunkSizeBlocks: number, layerCount: number): void {
  const chunkCount = Math.ceil(blockCount / chunkSizeBlocks);
  const [checksumCount, readCount] = [chunkCount * layerCount, blockCount * layerCount];
  if (checksumCount > CHECKSUM_COUNT_MAX) {
    const sum = `${chunkCount} chunks of ${layerCount} layers are ${checksumCount} checksums`;
    refuse(400, `${sum}, at most ${CHECKSUM_COUNT_MAX}: raise chunk_size`);
  }
  if (readCount > READ_COUNT_MAX) {
    const sum = `${blockCount} blocks of ${layerCount} layers are ${readCount} reads`;
    refuse(400, `${sum}, at most ${READ_COUNT_MAX}: ask for fewer blocks`);
  }
}

async function answer(
  room: Room,
  heavy: OneAtATime,
  question: ChecksumQuestion,
): Promise<Response> {
  const { chunkSizeBlocks, isLayerwise } = question;
  const target = findTarget(room, question.instanceId);
  const blockIds = checkBlockIds(question, target);
  checkCost(blockIds.length, chunkSizeBlocks, target.layerCount);
  const request = { blockIds, chunkSizeBlocks, isLayerwise };
  const checksums = await heavy.run(() => target.checksum(request));
  return jsonResponse({
    status: 'success',
    chunk_size: chunkSizeBlocks,
    num_chunks: Math.ceil(blockIds.length / chunkSizeBlocks),
    chunk_checksums: checksums,
    layerwise: isLayerwise,
    block_id_ranges: formatBlockIds(blockIds),
  });
}

export function addKvCacheRoutes(room: Room, heavy: OneAtATime): void {
  const { app, guard } = room;
  app.get('/kvcache/check', guard('sensitive'), (c) => answer(room, heavy, readQuery(c)));
  app.post('/cache/checksums', guard('sensitive'), async (c) =>
    answer(room, heavy, await readBody(c)),
  );
}
