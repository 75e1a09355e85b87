/** LOOKUP and what follows it, over the real core, storage and sessions. */
import type { ReplyOf } from '../../src/engine/api.ts';
import type { RequestContext } from '../../src/engine/client-traits.ts';
import type { InstanceRegistry } from '../../src/engine/instances.ts';
import { ChunkAnnouncer } from '../../src/engine/kv-events/chunk-announcer.ts';
import { LookupModule } from '../../src/engine/lookup.ts';
import { SessionTable } from '../../src/engine/session.ts';
import type { GroupRule } from '../../src/storage/l1-manager.ts';
import { MsgpackWriter } from '../../src/wire/msgpack.ts';
import { LIVE_ATTEMPT } from './attempts.ts';
import { OLD_CLIENT } from './client-traits.ts';
import { ALIGN_BYTES, buildL1House, RULES } from './l1-house.ts';

export const CHUNK = 16;
export const REQUEST_ID = 'r';

interface KeyOptions {
  readonly tokenCount: number;
  readonly startToken?: number;
  readonly endToken?: number;
  readonly workerId?: number | null;
  readonly worldSize?: number;
  readonly modelName?: string;
  readonly cacheSalt?: string;
  readonly requestId?: string;
  readonly readerCount?: number | null;
}

export interface LookupHouseOptions {
  readonly isVllm?: boolean;
  readonly isVllmMla?: boolean;
  readonly objectGroupIds?: readonly number[];
  readonly groupRules?: readonly GroupRule[];
}

/** A LookupModule over the real core and sessions, for the one model `m`. */
export function setUp(kind: LookupHouseOptions = {}) {
  const house = buildL1House({ sizeBytes: 256 * ALIGN_BYTES });
  const { core, storage, clock, bus, log } = house;
  const sessions = new SessionTable({ storage, clock, idleTtlMs: 600_000 });
  const instances: Pick<InstanceRegistry, 'findLayout'> = {
    findLayout: (modelName) =>
      modelName === 'm'
        ? {
            objectGroups: [],
            objectGroupIds: [0],
            groupRules: RULES,
            isVllm: false,
            isVllmMla: false,
            ...kind,
          }
        : undefined,
  };
  const lookup = new LookupModule({
    storage,
    sessions,
    instances: instances as InstanceRegistry,
    hasher: core.hasher,
    announcer: new ChunkAnnouncer({ storage, instances, hasher: core.hasher, bus }),
    clock,
    bus,
    log,
  });
  return { ...house, sessions, instances, lookup };
}

export type LookupHouse = ReturnType<typeof setUp>;

/** Tokens 0, 1, 2, … as a client sends them. */
export function spanOf(tokenCount: number, house: LookupHouse) {
  const writer = new MsgpackWriter();
  writer.writeArrayHeader(tokenCount);
  for (let token = 0; token < tokenCount; token += 1) writer.writeInteger(token);
  return house.core.hasher.readTokens(writer.take(), 0).span;
}

export function keyOf(house: LookupHouse, options: KeyOptions) {
  const { tokenCount, startToken = 0, endToken = tokenCount, workerId = null } = options;
  const {
    worldSize = 1,
    modelName = 'm',
    cacheSalt = '',
    requestId = REQUEST_ID,
    readerCount = null,
  } = options;
  return {
    modelName,
    worldSize,
    workerId,
    tokens: spanOf(tokenCount, house),
    startToken,
    endToken,
    requestId,
    cacheSalt,
    readerCount,
    requestConfigs: null,
  };
}

export const from = (connectionId = 1, client = OLD_CLIENT): RequestContext => ({
  connectionId,
  client,
});

/** Stores `chunkCount` chunks of the prompt 0, 1, 2, … for every rank. */
export function storePrompt(
  house: LookupHouse,
  chunkCount: number,
  ranks = 1,
  part: { readonly objectGroupId?: number; readonly firstChunk?: number } = {},
): void {
  const { objectGroupId = 0, firstChunk = 0 } = part;
  const tokenCount = (firstChunk + chunkCount) * CHUNK;
  const hashes = house.core.hasher.hashChunks(spanOf(tokenCount, house));
  for (let workerId = 0; workerId < ranks; workerId += 1) {
    const namespace = { modelName: 'm', worldSize: ranks, workerId, objectGroupId };
    const namespaceIds = [house.storage.internNamespace({ ...namespace, cacheSalt: '' })];
    house.store({ hashes, firstChunk, chunkCount, namespaceIds });
  }
}

export function query(house: LookupHouse, connectionId = 1, requestId = REQUEST_ID) {
  const handler = house.lookup.handlers.QUERY_PREFETCH_STATUS!;
  return handler(
    { requestId },
    from(connectionId),
    LIVE_ATTEMPT,
  ) as ReplyOf<'QUERY_PREFETCH_STATUS'>;
}

export function look(house: LookupHouse, options: KeyOptions, tpSize = 1, context = from()): void {
  house.lookup.handlers.LOOKUP!({ key: keyOf(house, options), tpSize }, context, LIVE_ATTEMPT);
}
