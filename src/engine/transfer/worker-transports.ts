/**
 * How each engine-driven worker's bytes travel: through slots of the shared L1 segment, or inline.
 *
 * A worker is offered the segment when it registers and falls back to inline data when it cannot
 * open it, without telling (another container, another user). What it commits shows what it is:
 *
 *   unknown ── COMMIT_STORE without data ──▶ shm
 *      └────── COMMIT_STORE with data ─────▶ inline       both until it registers again
 */
import type { Logger } from '../../observability/log.ts';
import type { InstanceId } from '../api.ts';

export type Transport = 'unknown' | 'shm' | 'inline';

export class WorkerTransports {
  readonly #shmName: string | null;
  readonly #log: Logger;
  readonly #known = new Map<InstanceId, 'shm' | 'inline'>();

  /** `shmName` null: there is no segment, all workers are inline. */
  constructor(shmName: string | null, log: Logger) {
    this.#shmName = shmName;
    this.#log = log;
  }

  of(instanceId: InstanceId): Transport {
    if (this.#shmName === null) return 'inline';
    return this.#known.get(instanceId) ?? 'unknown';
  }

  /** The worker has committed slots, or data. */
  learn(instanceId: InstanceId, transport: 'shm' | 'inline'): void {
    const known = this.of(instanceId);
    // Who has once sent data has no segment to fill.
    if (known === transport || known === 'inline') return;
    this.#known.set(instanceId, transport);
    if (transport === 'shm') return;
    this.#log.limited(
      'warn',
      `inline:${instanceId}`,
      `Instance ${instanceId} sends its bytes inline although ${this.#shmName} is offered: it ` +
        'cannot open it. Give it the same /dev/shm (--ipc host) and user, or see --shm-mode',
    );
  }

  forget(instanceId: InstanceId): void {
    this.#known.delete(instanceId);
  }

  /** Workers that fell back to inline data. */
  get fallbackCount(): number {
    let count = 0;
    for (const transport of this.#known.values()) if (transport === 'inline') count += 1;
    return count;
  }
}
