/** Failures as gRPC says them: status codes and what goes with them. */
import { Metadata } from '@grpc/grpc-js';
import type { KvdError, WireErrorCode } from '../../errors.ts';

export const OK = 0;
const INVALID_ARGUMENT = 3;
const NOT_FOUND = 5;
const RESOURCE_EXHAUSTED = 8;
const UNIMPLEMENTED = 12;
const INTERNAL = 13;
export const UNAVAILABLE = 14;

const CODES: Readonly<Record<WireErrorCode, number>> = {
  BAD_REQUEST: INVALID_ARGUMENT,
  UNKNOWN_INSTANCE: NOT_FOUND,
  NOT_ENABLED: UNIMPLEMENTED,
  UNSUPPORTED: UNIMPLEMENTED,
  INTERNAL,
  OVERLOADED: RESOURCE_EXHAUSTED,
  SHUTTING_DOWN: UNAVAILABLE,
};

/** As in the error frames of the ZMQ door. */
const MESSAGE_CHARS_MAX = 1000;

export interface GrpcStatus {
  readonly code: number;
  readonly details: string;
}

export function statusOf(error: KvdError): GrpcStatus {
  const { wireCode } = error.row;
  // grpc-js throws where nobody can catch it when a text is cut inside a character.
  const message = error.message.slice(0, MESSAGE_CHARS_MAX).toWellFormed();
  return { code: CODES[wireCode], details: `${wireCode}: ${message}` };
}

/** The error map of `reply.ts`, behind a reply that says "failed" in its own type. */
const ERROR_KEY = 'kvd-error-bin';

export function errorTrailers(errorMap: Uint8Array): Metadata {
  const trailers = new Metadata();
  trailers.set(ERROR_KEY, Buffer.from(errorMap));
  return trailers;
}
