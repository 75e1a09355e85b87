/**
 * What becomes of blocks in the engines' memory, as far as engines report it (spec observability
 * 5.4). An engine says which blocks a request was given and which tokens are in them; of the rest
 * nobody speaks. So a block is
 *
 *           same tokens, another request: one more owner
 *                        ┌──┐
 *     first seen ─▶ active  │  ──── last owner ends ────▶ released
 *                        └──┘ ◀─── same tokens: reuse ──────┘
 *                  other tokens, active or released: evicted, and first seen again
 *
 * A coin decides which blocks are followed. Its throw follows from the block's number and a word
 * drawn for the instance, so it is the same each time and needs no list of blocks not followed. Of
 * the tokens only a digest is kept: a wrong match is one wrong sample in 2^53.
 *
 * Bounds: blocks, instances, and requests without an END_SESSION; what was first makes room.
 */
import type { Subscriber } from '../event-bus.ts';
import type { EventCatalogue } from '../events.ts';
import { KVD } from './catalogue/kvd.ts';
import { L0 } from './catalogue/l0.ts';
import { elapsedSeconds } from './elapsed.ts';
import { hashThresholdOf, isTossed, type Random, systemRandom } from './key-sampling.ts';
import { PendingMap } from './pending-map.ts';
import type { MetricRegistry } from './registry.ts';

type Allocation = EventCatalogue['mp.vllm.block_allocation'];
type AllocationRecord = Allocation['records'][number];

/** An entry takes about 400 bytes. */
const BLOCK_COUNT_MAX = 100_000;
const INSTANCE_COUNT_MAX = 1024;
/** Reuses of a block of which the gaps are recorded. */
const HISTORY_COUNT = 4;

interface Block {
  readonly modelName: string;
  readonly digest: number;
  /** Empty: released. */
  readonly owners: Set<string>;
  readonly allocSeconds: number;
  lastSeconds: number;
  readonly reuseSeconds: number[];
}

interface InstanceBlocks {
  readonly instanceId: string;
  /** For `isTossed`. */
  readonly seed: number;
  readonly blocks: Map<number, Block>;
}

/** Whose report it is, and when it came. */
interface Report {
  readonly instance: InstanceBlocks;
  readonly modelName: string;
  readonly now: number;
}

export interface L0LifecycleOptions {
  readonly registry: MetricRegistry;
  /** `--metrics-sample-rate`. */
  readonly sampleRate: number;
  readonly random?: Random;
  readonly blockCountMax?: number;
}

export function l0Lifecycle(options: L0LifecycleOptions): Subscriber {
  const blocks = new Blocks(options);
  return {
    name: 'L0LifecycleSubscriber',
    subscriptions: {
      'mp.vllm.block_allocation': (allocation, now) => blocks.allocated(allocation, now),
      'mp.vllm.end_session': ({ requestId }) => blocks.requestEnded(requestId),
      'instance.dropped': ({ instanceId }) => blocks.dropInstance(`${instanceId}`),
    },
  };
}

class Blocks {
  readonly #threshold: number;
  readonly #random: Random;
  readonly #blockCountMax: number;
  readonly #instances = new Map<string, InstanceBlocks>();
  #blockCount = 0;
  readonly #requests: PendingMap<string, Set<Block>>;
  readonly #lifetime;
  readonly #idle;
  readonly #reuseGap;
  readonly #expired;

  constructor({ registry, sampleRate, random, blockCountMax }: L0LifecycleOptions) {
    this.#threshold = hashThresholdOf(sampleRate);
    this.#random = random ?? systemRandom;
    this.#blockCountMax = blockCountMax ?? BLOCK_COUNT_MAX;
    this.#lifetime = registry.histogram(L0.blockLifetime);
    this.#idle = registry.histogram(L0.blockIdleBeforeEvict);
    this.#reuseGap = registry.histogram(L0.blockReuseGap);
    this.#expired = registry.counter(KVD.expiredPending);
    this.#requests = new PendingMap({
      kind: 'l0_request',
      registry,
      onExpired: (requestId, blocks) => disown(requestId, blocks),
    });
  }

  allocated({ instanceId, modelName, records }: Allocation, now: number): void {
    const instance = this.#instances.get(instanceId) ?? this.#addInstance(instanceId);
    for (const record of records) this.#recordAllocated({ instance, modelName, now }, record);
  }

  requestEnded(requestId: string): void {
    const request = this.#requests.take(requestId);
    if (request) disown(requestId, request.value);
  }

  dropInstance(instanceId: string): void {
    const instance = this.#instances.get(instanceId);
    if (!instance) return;
    this.#instances.delete(instanceId);
    this.#blockCount -= instance.blocks.size;
  }

  #addInstance(instanceId: string): InstanceBlocks {
    if (this.#instances.size >= INSTANCE_COUNT_MAX) {
      this.dropInstance(this.#instances.keys().next().value as string);
      this.#expired.add(1, 'l0_instance');
    }
    const seed = Math.floor(this.#random() * 2 ** 32);
    const instance = { instanceId, seed, blocks: new Map() };
    this.#instances.set(instanceId, instance);
    return instance;
  }

  #recordAllocated(report: Report, record: AllocationRecord): void {
    const { instance, modelName, now } = report;
    const { requestId, newBlockIds, newTokenIds } = record;
    const size = Math.ceil(newTokenIds.length / newBlockIds.length);
    for (let i = 0; i < newBlockIds.length && i * size < newTokenIds.length; i += 1) {
      const blockId = newBlockIds[i] as number;
      if (!isTossed(instance.seed, blockId, this.#threshold)) continue;
      const digest = digestOf(newTokenIds, i * size, Math.min((i + 1) * size, newTokenIds.length));
      const block = instance.blocks.get(blockId);
      if (block?.digest === digest) {
        this.#usedAgain(block, requestId, now);
        continue;
      }
      if (block) this.#evict(report, blockId, block);
      const fresh = {
        ...{ modelName, digest, owners: new Set<string>(), reuseSeconds: [] },
        ...{ allocSeconds: now, lastSeconds: now },
      };
      if (!this.#makeRoom(instance)) continue;
      instance.blocks.set(blockId, fresh);
      this.#blockCount += 1;
      this.#own(fresh, requestId, now);
    }
  }

  #usedAgain(block: Block, requestId: string, now: number): void {
    if (block.owners.has(requestId)) return;
    if (block.owners.size === 0) {
      block.lastSeconds = now;
      if (block.reuseSeconds.push(now) > HISTORY_COUNT) block.reuseSeconds.shift();
    }
    this.#own(block, requestId, now);
  }

  #own(block: Block, requestId: string, now: number): void {
    const blocks = this.#requests.get(requestId) ?? new Set();
    blocks.add(block);
    // Entered again, so that its time begins again.
    this.#requests.put(requestId, blocks, now);
    block.owners.add(requestId);
  }

  #evict({ instance, now }: Report, blockId: number, block: Block): void {
    const { instanceId, blocks } = instance;
    const { modelName, reuseSeconds } = block;
    this.#lifetime.record(elapsedSeconds(block.allocSeconds, now), instanceId, modelName);
    this.#idle.record(elapsedSeconds(block.lastSeconds, now), instanceId, modelName);
    for (let i = 1; i < reuseSeconds.length; i += 1) {
      const gap = elapsedSeconds(reuseSeconds[i - 1] as number, reuseSeconds[i] as number);
      this.#reuseGap.record(gap, instanceId, modelName);
    }
    this.#remove(blocks, blockId, block);
  }

  #remove(blocks: Map<number, Block>, blockId: number, block: Block): void {
    blocks.delete(blockId);
    this.#blockCount -= 1;
    for (const owner of block.owners) this.#requests.get(owner)?.delete(block);
  }

  /** False: all blocks that are followed are other instances', and they keep them. */
  #makeRoom({ blocks }: InstanceBlocks): boolean {
    if (this.#blockCount < this.#blockCountMax) return true;
    this.#expired.add(1, 'l0_block');
    for (const [blockId, block] of blocks) {
      this.#remove(blocks, blockId, block);
      return true;
    }
    return false;
  }
}

function disown(requestId: string, blocks: ReadonlySet<Block>): void {
  for (const block of blocks) block.owners.delete(requestId);
}

/** Of the tokens from `start` to `end`: two FNV-1a hashes over words, as much as a number holds. */
function digestOf(tokens: ArrayLike<number>, start: number, end: number): number {
  let [low, high] = [0x811c_9dc5, end - start];
  for (let i = start; i < end; i += 1) {
    const token = tokens[i] as number;
    low = Math.imul(low ^ token, 0x0100_0193);
    high = Math.imul(high ^ (token >>> 11) ^ (token << 7), 0x85eb_ca6b);
    high ^= high >>> 15;
  }
  return (high >>> 11) * 2 ** 32 + (low >>> 0);
}
