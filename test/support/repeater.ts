/**
 * Sends every message twice, as a client or a network that is unsure would, and collects what
 * comes back: decoded replies, or how many there were.
 */
import { decode } from '@msgpack/msgpack';
import * as assert from 'uvu/assert';
import { KvdClient } from '../../src/client/client.ts';
import type { OperationName, RequestOf } from '../../src/engine/api.ts';
import { callNamed, dialectNamed } from '../../src/wire/dialect.ts';
import { until } from './waiting.ts';

const REPLY_DEADLINE_MS = 5000;

/** A request as a client of 0.5.0 writes it, without its uid: operation, payloads. */
export function framesOf<N extends OperationName>(name: N, request: RequestOf<N>): Uint8Array[] {
  const { id, encodeRequest } = callNamed(dialectNamed('A'), name);
  assert.ok(id !== null, `a number for ${name}`);
  return [Buffer.of(id as number), ...encodeRequest(request)];
}

/** Both messages of a pair under one uid, or under two. */
export type Uids = 'same uid' | 'other uid';

export class Repeater {
  readonly #client: KvdClient;
  readonly #uids: Uids;
  readonly #replies = new Map<string, Uint8Array[][]>();
  #uidCount = 0;
  messageCount = 0;

  constructor(url: string, uids: Uids) {
    this.#client = KvdClient.connect(url);
    this.#uids = uids;
    this.#client.onStrayReply((reply) => {
      const uid = Buffer.from(reply[0] as Uint8Array).toString('hex');
      const known = this.#replies.get(uid) ?? [];
      this.#replies.set(uid, known);
      known.push([...reply]);
    });
  }

  /** Replies to all messages so far. */
  get replyCount(): number {
    return [...this.#replies.values()].reduce((sum, replies) => sum + replies.length, 0);
  }

  /** The values of the two replies; null = a reply without a value. */
  async twice<N extends OperationName>(name: N, request: RequestOf<N>): Promise<unknown[]> {
    const uids = await this.sendTwice(framesOf(name, request));
    const areIn = () => this.#repliesTo(uids).length >= 2;
    await until(areIn, REPLY_DEADLINE_MS, `two replies to two ${name}`);
    const replies = this.#repliesTo(uids);
    assert.is(replies.length, 2, `one reply to each ${name}`);
    return replies.map(([, , value]) => (value ? decode(value) : null));
  }

  /** The frames behind the uid, twice. Returns the uids. */
  async sendTwice(frames: readonly Uint8Array[]): Promise<string[]> {
    const first = this.#nextUid();
    const uids = [first, this.#uids === 'same uid' ? first : this.#nextUid()];
    for (const uid of uids) await this.#client.send([uid, ...frames]);
    this.messageCount += uids.length;
    return uids.map((uid) => uid.toString('hex'));
  }

  close(): void {
    this.#client.close();
  }

  #repliesTo(uids: readonly string[]): Uint8Array[][] {
    return [...new Set(uids)].flatMap((uid) => this.#replies.get(uid) ?? []);
  }

  #nextUid(): Buffer {
    this.#uidCount += 1;
    return Buffer.from([0xcd, this.#uidCount >> 8, this.#uidCount & 0xff]);
  }
}
