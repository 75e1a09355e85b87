/**
 * An engine-driven worker whose objects have 4 KiB, to fill a server with many of them.
 *
 * It leaves the bytes out: PREPARE and COMMIT are real, what lies in the slots between them is
 * nothing that is measured, and a million objects need no four gigabytes of pages.
 */
import { KvdClient } from '../../src/client/client.ts';
import { promptOf } from '../../src/client/load/bench-requests.ts';
import { Caller } from '../../src/client/load/bench-worker.ts';
import { newInstanceId } from '../../src/client/load/transfer-mode.ts';

const TIMEOUT_MS = 60_000;
export const OBJECT_BYTES = 4096;
/** Keys and values of one layer in bfloat16. */
const BYTES_PER_HIDDEN = 4;
/** Longest chunk of which a token has at least one value in an object of this size. */
const CHUNK_SIZE_MAX = OBJECT_BYTES / BYTES_PER_HIDDEN;

export class SmallObjectWorker {
  readonly modelName: string;
  readonly chunkSizeTokens: number;
  readonly instanceId = newInstanceId();
  readonly #client: KvdClient;
  readonly #caller: Caller;

  private constructor(client: KvdClient, modelName: string, chunkSizeTokens: number) {
    this.#client = client;
    this.#caller = new Caller(client, TIMEOUT_MS);
    this.modelName = modelName;
    this.chunkSizeTokens = chunkSizeTokens;
  }

  static async register(url: string, modelName: string): Promise<SmallObjectWorker> {
    const client = KvdClient.connect(url);
    const chunkSizeTokens = await new Caller(client, TIMEOUT_MS).call('GET_CHUNK_SIZE', {});
    if (CHUNK_SIZE_MAX % chunkSizeTokens !== 0) {
      throw new Error(
        `expected chunks that divide ${CHUNK_SIZE_MAX} tokens, got ${chunkSizeTokens}`,
      );
    }
    const worker = new SmallObjectWorker(client, modelName, chunkSizeTokens);
    await worker.#caller.call('REGISTER_KV_CACHE_ENGINE_DRIVEN_CONTEXT', {
      instanceId: worker.instanceId,
      modelName,
      worldSize: 1,
      blockSize: chunkSizeTokens,
      layerCount: 1,
      hiddenSize: CHUNK_SIZE_MAX / chunkSizeTokens,
      dtype: 'bfloat16',
      usesMla: false,
      physicalSlotCount: null,
    });
    return worker;
  }

  /** Stores a prompt of `chunkCount` chunks that nobody has. */
  async store(sequence: number, chunkCount: number): Promise<void> {
    const slotCount = await this.storeMissing(sequence, chunkCount);
    if (slotCount !== chunkCount) {
      throw new Error(`PREPARE_STORE: expected ${chunkCount} slots, got ${slotCount}`);
    }
  }

  /** Stores those chunks of a prompt that are not there. Returns how many. */
  async storeMissing(sequence: number, chunkCount: number): Promise<number> {
    const { instanceId } = this;
    const prompt = promptOf(sequence, chunkCount * this.chunkSizeTokens, this.modelName);
    const key = prompt.transferKey('store');
    const { context } = await this.#caller.call('PREPARE_STORE', { key, instanceId });
    const slotCount = context.slots?.length ?? 0;
    if (slotCount === 0) return 0;
    const data = { kind: 'none' } as const;
    const isStored = await this.#caller.call('COMMIT_STORE', { key, instanceId, data });
    if (!isStored) throw new Error('COMMIT_STORE was refused');
    return slotCount;
  }

  /** Leaves a session open that holds the chunks of a stored prompt. */
  async openSession(sequence: number, chunkCount: number, name: string): Promise<string> {
    const prompt = promptOf(sequence, chunkCount * this.chunkSizeTokens, this.modelName);
    const key = prompt.lookupKey(name);
    await this.#caller.call('LOOKUP', { key, tpSize: 1 });
    const { requestId } = key;
    const hits = await this.#caller.call('QUERY_PREFETCH_STATUS', { requestId });
    if (hits !== chunkCount) throw new Error(`LOOKUP: expected ${chunkCount} chunks, got ${hits}`);
    return requestId;
  }

  async endSession(requestId: string): Promise<void> {
    await this.#caller.call('END_SESSION', { requestId });
  }

  async unregister(): Promise<void> {
    const { instanceId } = this;
    await this.#caller.call('UNREGISTER_KV_CACHE_ENGINE_DRIVEN_CONTEXT', { instanceId });
    this.#client.close();
  }
}
