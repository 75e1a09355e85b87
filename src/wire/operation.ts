/**
 * The parts of which the request table is made.
 *
 *   Operation   what every generation of clients has in common: the name, the reply, and the value
 *               that says "failed" in the reply's own type
 *   Form        one way to write a request: its payload frames
 *   Call        an operation as one generation calls it: the name or number that it sends, and the
 *               forms that it may use
 *
 * Operations and forms are in `requests/`, by subject; which of them make up a generation is said
 * in `dialects/`. Requests and replies are the engine's types (`engine/api.ts`).
 */
import type { OperationName, ReplyOf, ReplyStream, RequestOf } from '../engine/api.ts';
import { KvdError } from '../errors.ts';
import type { FramesCodec } from './payload-frames.ts';
import { type Codec, decode, encode, type PayloadReader } from './schema.ts';
import { ELEMENTS_PER_MESSAGE_MAX } from './wire-limits.ts';

/** How a failed request is answered in the reply's own type (spec wire 7.3). */
export type Neutral =
  /** A frame that never changes. */
  | { readonly kind: 'frame'; readonly frame: Uint8Array }
  /** A frame that says what was wrong. */
  | { readonly kind: 'explained'; frame(message: string): Uint8Array }
  /** `[event, false]`, whose event depends on the device. */
  | { readonly kind: 'refused transfer' }
  /** A registration: every reply means success, so only silence or an exception says no. */
  | { readonly kind: 'none' };

/** What one reply frame holds: the reply, or one part of a stream. */
export type ReplyPart<N extends OperationName> =
  ReplyOf<N> extends ReplyStream<infer Part> ? Part : ReplyOf<N>;

export interface Operation<N extends OperationName = OperationName> {
  readonly name: N;
  readonly neutral: Neutral;
  /** The reply has many parts, one message each (`streams.ts`). */
  readonly isStream: boolean;
  /** The response frame, or null when the protocol leaves it out. */
  encodeReply(reply: ReplyPart<N>): Uint8Array | null;
  decodeReply(frame: Uint8Array | undefined, reader: PayloadReader): ReplyPart<N>;
}

export interface Form<T> extends FramesCodec<T> {
  /** Kinds of the payloads, a letter each (`signature.ts`); several where a payload has several. */
  readonly signatures: readonly string[];
}

export interface Call<N extends OperationName = OperationName> {
  readonly operation: Operation<N>;
  /** Null: it is called by its label. */
  readonly id: number | null;
  /** The name as this generation spells it. */
  readonly label: string;
  /** Every form has another number of frames. Our own client writes the first one. */
  readonly forms: readonly Form<RequestOf<N>>[];
  /** Of the longest form. */
  readonly payloadCountMax: number;
  hasSignature(signature: string): boolean;
  /** Throws `KvdError` whose message names the payload; `payloads[first]` is the first one. */
  decodeRequest(
    payloads: readonly Uint8Array[],
    first: number,
    reader: PayloadReader,
  ): RequestOf<N>;
  encodeRequest(request: RequestOf<N>): Uint8Array[];
}

export function operation<N extends OperationName>(
  name: N,
  reply: Codec<ReplyPart<N>>,
  neutral: Neutral,
  options: { readonly isStream?: boolean } = {},
): Operation<N> {
  return {
    name,
    neutral,
    isStream: options.isStream ?? false,
    encodeReply: (value) => (value === null || value === undefined ? null : encode(reply, value)),
    decodeReply(frame, reader) {
      if (frame === undefined) return null as ReplyPart<N>;
      return decode(reply, frame, reader);
    },
  };
}

/** `signatures`: those that a request of this form can have, with spaces between. */
export function form<T>(signatures: string, codec: FramesCodec<T>): Form<T> {
  return { ...codec, signatures: signatures.split(' ') };
}

export function neutral<T>(codec: Codec<T>, value: T): Neutral {
  return { kind: 'frame', frame: encode(codec, value) };
}

export const REGISTRATION: Neutral = { kind: 'none' };
export const REFUSED_TRANSFER: Neutral = { kind: 'refused transfer' };

export function callOf<N extends OperationName>(
  { operation, id, label }: Pick<Call<N>, 'operation' | 'id' | 'label'>,
  forms: readonly Form<RequestOf<N>>[],
): Call<N> {
  const signatures = new Set(forms.flatMap((each) => each.signatures));
  const counts = forms.map(({ count }) => count);
  return {
    operation,
    id,
    label,
    forms,
    payloadCountMax: Math.max(...counts),
    hasSignature: (signature) => signatures.has(signature),
    decodeRequest(payloads, first, reader) {
      const count = payloads.length - first;
      const fitting = forms.find((each) => each.count === count);
      if (!fitting) {
        throw new KvdError(
          'ERR_WIRE_FRAME_COUNT',
          `expected ${counts.join(' or ')} payload frames, got ${count}`,
        );
      }
      reader.startMessage(ELEMENTS_PER_MESSAGE_MAX);
      return fitting.read(payloads, first, reader);
    },
    encodeRequest: (request) => (forms[0] as Form<RequestOf<N>>).write(request),
  };
}
