/**
 * Failed reads of workers that take a failure for a success (spec engine 9.3).
 *
 * A vLLM worker of an old generation goes on with garbage after a failed PREPARE_RETRIEVE, unless
 * it is unhealthy by then: an unhealthy worker reports the blocks as load errors. A PING that is
 * answered with false makes it so. Hence:
 *
 *   failure ──▶ hold ──▶ next PING: false ──▶ 100 ms ──▶ the failure is answered
 *                 └────── no PING for 15 s ────────────▶ the failure is answered
 *                 └────── 4096 are held already ───────▶ no answer, the next PING says false
 *                 └────── the server shuts down ───────▶ no answer: the worker will find it gone
 *
 * A held reply blocks nobody: the dispatch goes on with the connection's next request.
 */
import type { Clock } from '../../clock.ts';
import { HeldReplyError, type KvdError, WithheldReplyError } from '../../errors.ts';
import type { InstanceId } from '../api.ts';
import type { InstanceRegistry } from '../instances.ts';

/** The worker has to take the PING's answer off its socket before the failure arrives. */
const AFTER_PING_MS = 100;
/** One and a half heartbeat intervals of vLLM. Who has not pinged by then has no heartbeat. */
const HOLD_MS_MAX = 15_000;
/** Beyond it a failure is not answered at all, which is as safe for its worker. */
const HELD_COUNT_MAX = 4096;

type FalsePings = Pick<InstanceRegistry, 'oweFalsePing' | 'oweFalsePingAndWait'>;

export class HeldReplies {
  readonly #clock: Clock;
  readonly #instances: FalsePings;
  readonly #held = new Set<() => void>();
  #isDraining = false;

  constructor(clock: Clock, instances: FalsePings) {
    this.#clock = clock;
    this.#instances = instances;
  }

  get count(): number {
    return this.#held.size;
  }

  /** The error to throw in place of `error`. */
  hold(instanceId: InstanceId, error: KvdError): KvdError {
    if (this.#isDraining) return withheld(error);
    if (this.#held.size >= HELD_COUNT_MAX) {
      this.#instances.oweFalsePing(instanceId);
      return withheld(error);
    }
    const { promise, resolve } = Promise.withResolvers<KvdError>();
    const answer = (reply: KvdError): void => {
      timer.cancel();
      stopWaiting();
      this.#held.delete(withdraw);
      resolve(reply);
    };
    const withdraw = (): void => answer(withheld(error));
    let timer = this.#clock.after(HOLD_MS_MAX, () => answer(error));
    const stopWaiting = this.#instances.oweFalsePingAndWait(instanceId, () => {
      timer.cancel();
      timer = this.#clock.after(AFTER_PING_MS, () => answer(error));
    });
    this.#held.add(withdraw);
    return new HeldReplyError(error, promise);
  }

  /** The server shuts down: nothing is held any more, now or later. */
  withdrawAll(): void {
    this.#isDraining = true;
    for (const withdraw of [...this.#held]) withdraw();
  }
}

/** No answer in place of this one. */
export function withheld(error: KvdError): WithheldReplyError {
  return new WithheldReplyError(error.code, error.message, { cause: error });
}
