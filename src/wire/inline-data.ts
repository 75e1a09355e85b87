/**
 * Data that already stands where its message needs it.
 *
 *   | headroom | data …                                  | tailroom |      one allocation
 *              ^ what the owner of the data sees
 *   |   | header of the message, `bin` of N bytes | data … | rest |        the encoded frame
 *
 * Inline replies have up to 4 GiB. Whoever fills in the data gets it with room on both sides, and
 * the encoder writes around it instead of copying it into a buffer of its own.
 */
import { bytes, type Codec } from './schema.ts';

/** Map header, two keys, a bool and the `bin` header are 20 bytes. */
const HEADROOM_BYTES = 64;
/** One more key with an empty map is 9. More is written correctly, by copying everything. */
const TAILROOM_BYTES = 64;

/** The data allocated here, each inside a buffer of its own. */
const roomy = new WeakSet<Uint8Array>();

/** Uninitialised: send it only when every byte has been written. */
export function allocateInlineData(sizeBytes: number): Uint8Array {
  const frame = Buffer.allocUnsafeSlow(HEADROOM_BYTES + sizeBytes + TAILROOM_BYTES);
  const data = frame.subarray(HEADROOM_BYTES, HEADROOM_BYTES + sizeBytes);
  roomy.add(data);
  return data;
}

/** `bytes`, which are not copied when they come from `allocateInlineData`. */
export const inlineData: Codec<Uint8Array> = {
  read: bytes.read,
  write(writer, data) {
    if (roomy.has(data)) {
      const { byteOffset, length } = data;
      writer.writeBytesInPlace(Buffer.from(data.buffer), byteOffset, byteOffset + length);
    } else {
      bytes.write(writer, data);
    }
  },
};
