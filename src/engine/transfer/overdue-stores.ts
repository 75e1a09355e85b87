/**
 * Stores of workers that may have given them up while this process stood still (stall-watch.ts).
 *
 * Since 0.5.5 a worker with an accelerator does each store in a thread of its own: PREPARE, gather,
 * COMMIT. When its heartbeat fails it gives the store up and hands the blocks to other requests,
 * but the thread goes on as soon as the PREPARE is answered, and gathers what is not of its prompt
 * any more. So an overdue PREPARE gets no slots, as if all was stored: a worker with slots then
 * gathers nothing. One that sends its bytes sends them whatever the answer was. That COMMIT is in
 * time itself, so it is known by its PREPARE, which is remembered here.
 */
import type { RequestOf } from '../api.ts';

/** Those that waited while the process stood still; a worker has a few threads. */
const REMEMBERED_COUNT_MAX = 1024;

type Store = Pick<RequestOf<'PREPARE_STORE'>, 'instanceId'> & {
  readonly key: Pick<RequestOf<'PREPARE_STORE'>['key'], 'requestId' | 'startToken' | 'endToken'>;
};

export class OverdueStores {
  /** In the order of their PREPAREs. */
  readonly #names = new Set<string>();
  #count = 0;

  /** Since the start. */
  get count(): number {
    return this.#count;
  }

  add(store: Store): void {
    this.#count += 1;
    this.#names.add(nameOf(store));
    if (this.#names.size <= REMEMBERED_COUNT_MAX) return;
    const oldest = this.#names.values().next().value as string;
    this.#names.delete(oldest);
  }

  /** True once for a store whose last PREPARE was overdue. */
  take(store: Store): boolean {
    return this.#names.size > 0 && this.#names.delete(nameOf(store));
  }
}

function nameOf({ key, instanceId }: Store): string {
  return `${instanceId} ${key.startToken} ${key.endToken} ${key.requestId}`;
}
