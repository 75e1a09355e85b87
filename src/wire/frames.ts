/**
 * The frames of a message, as the ROUTER socket sees and sends them.
 *
 *   request    [identity, uid, op, payload 0, … payload n − 1]
 *   reply      [identity, uid, op, response?]
 *   failure    [identity, uid, op, neutral value, error map]     (reply.ts)
 *
 *   identity   chosen by ZMQ per connection (5 bytes) or by the client
 *   uid        the client's number of the request: opaque, echoed byte for byte
 *   op         msgpack integer or text, echoed byte for byte; empty = control of a stream
 *   payload    one msgpack value each
 */
import { MsgpackReader, MsgpackWriter } from './msgpack.ts';
import type { Call } from './operation.ts';

/** Index of the first payload behind identity, uid and op. */
export const FIRST_PAYLOAD = 3;

/** An operation's number or name, or what stands in its place. */
export type OperationFrame = number | { readonly text: string } | 'empty' | 'invalid';

/** Names of operations have up to 42 characters. */
const NAME_BYTES_MAX = 128;

const reader = new MsgpackReader();
const writer = new MsgpackWriter();

export function readOperationFrame(frame: Uint8Array): OperationFrame {
  const first = frame[0];
  if (first === undefined) return 'empty';
  if (first <= 0x7f) return frame.length === 1 ? first : 'invalid';
  try {
    reader.reset(frame);
    const op = reader.peek() === 'str' ? { text: reader.readText(NAME_BYTES_MAX) } : readId();
    return reader.remaining === 0 ? op : 'invalid';
  } catch {
    // Truncated, no UTF-8 or no integer: it names no operation, and the caller says so.
    return 'invalid';
  }
}

function readId(): number | 'invalid' {
  const id = reader.readInteger();
  return typeof id === 'number' && id >= 0 ? id : 'invalid';
}

/** The frame that `readOperationFrame` reads. */
export function operationFrame({ id, label }: Pick<Call, 'id' | 'label'>): Uint8Array {
  if (id !== null) return integerFrame(id);
  writer.writeText(label);
  return writer.take();
}

/** A frame with one integer, as a uid or an id of an operation. */
export function integerFrame(value: number): Uint8Array {
  writer.writeInteger(value);
  return writer.take();
}

/** Below this the collector does not notice a frame. */
const RELEASE_BYTES_MIN = 4096;

/**
 * Gives the memory of large payloads back now. A frame lies outside of V8's heap and is freed when
 * its Buffer is collected; prompts of half a megabyte would force a full collection every hundred
 * requests (2 to 25 ms each). Nobody may look at the payloads afterwards: they are empty then.
 */
export function releasePayloads(frames: readonly Buffer[]): void {
  for (let index = FIRST_PAYLOAD; index < frames.length; index += 1) {
    const { buffer, byteLength } = frames[index] as Buffer;
    const isWhole = byteLength >= RELEASE_BYTES_MIN && buffer.byteLength === byteLength;
    if (isWhole && buffer instanceof ArrayBuffer) buffer.transfer(0);
  }
}

/** Bytes of the frames in front of index `end`, all of them together. */
export function sizeOfFrames(frames: readonly Uint8Array[], end: number = frames.length): number {
  let size = 0;
  for (let index = Math.min(end, frames.length) - 1; index >= 0; index -= 1) {
    size += (frames[index] as Uint8Array).length;
  }
  return size;
}
