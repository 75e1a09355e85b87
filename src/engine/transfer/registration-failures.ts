/**
 * Registrations that failed. A reply to one means success whatever it contains, so the client is
 * answered by silence (spec wire 7.3); the log and `/status` are all that the operator has, and
 * both name the remedy.
 */
import type { Clock } from '../../clock.ts';
import { type KvdError, WithheldReplyError } from '../../errors.ts';
import type { Logger } from '../../observability/log.ts';
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
  readonly #log: Logger;
  readonly #recent: RegistrationFailure[] = [];
  #count = 0;

  constructor(clock: Clock, log: Logger) {
    this.#clock = clock;
    this.#log = log;
  }

  /** Records the failure; the error to throw instead of it. */
  withhold(
    request: { readonly instanceId: InstanceId; readonly modelName: string },
    error: KvdError,
  ): WithheldReplyError {
    const { instanceId, modelName } = request;
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
    this.#log.limited(
      'error',
      `registration:${instanceId}`,
      `Registration of instance ${instanceId} (${modelName}) failed: ${message}. ${next}`,
    );
    return new WithheldReplyError(code, message, { cause: error });
  }

  status(): Record<string, unknown> {
    return {
      registration_failure_count: this.#count,
      recent_registration_failures: this.#recent,
    };
  }
}
