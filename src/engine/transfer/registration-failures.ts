/**
 * Registrations that failed. To older clients a reply means success whatever it contains, so the
 * door answers them by silence (spec wire 7.3); `/status` and the log, which the door writes, are
 * then all that the operator has, and both name the remedy.
 */
import type { Clock } from '../../clock.ts';
import { type KvdError, toKvdError } from '../../errors.ts';
import type { InstanceId } from '../api.ts';

/** Failures shown in `/status`; older ones are only counted. */
const RECENT_COUNT_MAX = 16;

interface RegistrationFailure {
  readonly instance_id: string;
  readonly model_name: string;
  readonly code: string;
  readonly message: string;
  readonly next: string;
  readonly time: string;
}

export class RegistrationFailures {
  readonly #clock: Clock;
  readonly #recent: RegistrationFailure[] = [];
  #count = 0;

  constructor(clock: Clock) {
    this.#clock = clock;
  }

  /** Records the failure and returns it, to be thrown. */
  record(
    request: { readonly instanceId: InstanceId; readonly modelName: string },
    cause: unknown,
  ): KvdError {
    const { instanceId, modelName } = request;
    const error = toKvdError(cause);
    const { message, code } = error;
    const next = error.row.next;
    this.#count += 1;
    if (this.#recent.length === RECENT_COUNT_MAX) this.#recent.shift();
    this.#recent.push({
      instance_id: String(instanceId),
      model_name: modelName,
      code,
      message,
      next,
      time: new Date(this.#clock.wallMs()).toISOString(),
    });
    return error;
  }

  status(): Record<string, unknown> {
    return {
      registration_failure_count: this.#count,
      recent_registration_failures: this.#recent,
    };
  }
}
