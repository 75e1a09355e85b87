/** What an adapter has done, for metrics and status. Exact, also for results that came late. */
import { KvdError } from '../errors.ts';

export const FAILURE_REASONS = [
  'timeout',
  'unavailable',
  'full',
  'refused',
  'corrupt',
  'wrong_size',
  'locked',
  'store',
] as const;
export type FailureReason = (typeof FAILURE_REASONS)[number];
export type L2Operation = 'store' | 'lookup' | 'load' | 'delete';

const REASON_OF_CODE: Readonly<Record<string, FailureReason>> = {
  ERR_L2_TIMEOUT: 'timeout',
  ERR_L2_UNAVAILABLE: 'unavailable',
  ERR_SHUTTING_DOWN: 'unavailable',
  ERR_L2_FULL: 'full',
  ERR_L2_REFUSED: 'refused',
  ERR_L2_CORRUPT: 'corrupt',
  ERR_L2_LOCKED: 'locked',
};

export function failureReason(error: Error): FailureReason {
  return (error instanceof KvdError && REASON_OF_CODE[error.code]) || 'store';
}

export class AdapterCounters {
  storedCount = 0;
  /** As they are in L1. */
  storedBytes = 0;
  presentCount = 0;
  hitCount = 0;
  missCount = 0;
  loadedCount = 0;
  loadedBytes = 0;
  /** Locked by a lookup and gone when they were to be loaded. */
  vanishedCount = 0;
  deletedCount = 0;
  readonly #failures = new Map<string, number>();

  addFailure(operation: L2Operation, reason: FailureReason, count = 1): void {
    const name = `${operation}/${reason}`;
    this.#failures.set(name, (this.#failures.get(name) ?? 0) + count);
  }

  /** Objects by `operation/reason`. */
  get failures(): ReadonlyMap<string, number> {
    return this.#failures;
  }

  failureCount(operation: L2Operation): number {
    let count = 0;
    for (const [name, value] of this.#failures)
      if (name.startsWith(`${operation}/`)) count += value;
    return count;
  }
}
