/**
 * L2 → L1: prefetches of what L1 lacks (prefetch-request.ts), a bounded number of them at a time.
 *
 * Requests beyond that wait in the order of their arrival. Their time to ask the adapters begins
 * when they come, so a store that does not answer holds up nobody for longer than that. Whoever
 * comes to a full queue gets what L1 has.
 */
import { NO_NAMESPACE } from '../../core/namespaces.ts';
import type { SlowRequest, SlowTier } from '../prefetch-controller.ts';
import { PrefetchRequest } from './prefetch-request.ts';
import type { PrefetchRoom } from './prefetch-room.ts';

const QUEUED_COUNT_MAX = 4096;

export class L2Prefetch implements SlowTier {
  readonly #room: PrefetchRoom;
  readonly #maxInFlight: number;
  readonly #queue = new Set<PrefetchRequest>();
  readonly #running = new Set<PrefetchRequest>();
  #isClosed = false;

  constructor(room: PrefetchRoom, maxInFlight: number) {
    this.#room = room;
    this.#maxInFlight = maxInFlight;
  }

  get isOpen(): boolean {
    return !this.#isClosed && this.#room.adapters.hasActive;
  }

  prefetch(request: SlowRequest): void {
    const { keys, held, task } = request;
    if (keys.namespaceIds.includes(NO_NAMESPACE)) {
      task.complete({ slots: held, chunkCount: held.length / keys.namespaceIds.length });
      return;
    }
    const one: PrefetchRequest = new PrefetchRequest(this.#room, request, () => this.#end(one));
    this.#queue.add(one);
    if (this.#running.size < this.#maxInFlight) this.#startNext();
    else if (this.#queue.size > QUEUED_COUNT_MAX) one.giveUp('overload');
  }

  /** `storage_manager.prefetch_controller` of `GET /status`. */
  status(): Record<string, unknown> {
    const running = [...this.#running];
    const { adapters, loads } = this.#room;
    return {
      is_healthy: true,
      thread_alive: true,
      max_in_flight: this.#maxInFlight,
      submission_queue_size: 0,
      pending_queue_size: this.#queue.size,
      in_flight_request_count: running.length,
      lookup_phase_count: running.filter(({ phase }) => phase === 'asking').length,
      load_phase_count: running.filter(({ phase }) => phase === 'loading').length,
      completed_results_count: 0,
      loading_object_count: loads.cellCount,
      ...adapters.counts(),
    };
  }

  /** No new ones; those that wait end with what L1 has. */
  close(): void {
    this.#isClosed = true;
    for (const request of this.#queue) request.giveUp('overload');
  }

  #startNext(): void {
    for (const next of this.#queue) {
      this.#queue.delete(next);
      this.#running.add(next);
      next.start();
      return;
    }
  }

  #end(request: PrefetchRequest): void {
    this.#queue.delete(request);
    if (this.#running.delete(request)) this.#startNext();
  }
}
