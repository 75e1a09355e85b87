/**
 * Device wrappers: msgpack ext type 1 that says where one tensor lies (spec wire 5).
 *
 * The first byte of the data tells the two forms apart, whoever sends them:
 *
 *   0x80                      a pickle of one wrapper object   `pickled-wrapper.ts`
 *   anything else             a msgpack map of plain values    `described-wrapper.ts`
 *
 * Only wrappers of host memory are ever written, by our client, in the form of its generation.
 */
import type { CpuShmWrapper, TensorWrapper } from '../device/tensor-wrapper.ts';
import { KvdError } from '../errors.ts';
import { readDescribedWrapper, writeShmDescription } from './described-wrapper.ts';
import { writeShmWrapperPickle } from './pickle-writer.ts';
import { readPickledWrapper } from './pickled-wrapper.ts';
import type { Codec } from './schema.ts';
import { fail } from './wrapper-checks.ts';

const EXTENSION_TYPE = 1;
/** The opcode that every pickle of today begins with; as msgpack it would be an empty map. */
export const PICKLE_PROTO = 0x80;

/** The wrapper in the data of an ext 1. Throws `ERR_WIRE_WRAPPER` or `ERR_UNSUPPORTED`. */
export function readDeviceWrapper(data: Uint8Array): TensorWrapper {
  if (data.length === 0) fail('expected a pickle or a map, got no bytes');
  return data[0] === PICKLE_PROTO ? readPickledWrapper(data) : readDescribedWrapper(data);
}

function codecOf(writeShm: (wrapper: CpuShmWrapper) => Uint8Array): Codec<TensorWrapper> {
  return {
    read(reader) {
      const start = reader.offset;
      const { type, data } = reader.readExtension();
      if (type !== EXTENSION_TYPE) {
        reader.fail(`expected ext type ${EXTENSION_TYPE}, got ${type}`, start);
      }
      return readDeviceWrapper(data);
    },
    write(writer, wrapper) {
      if (wrapper.kind !== 'cpu-shm') {
        throw new KvdError('ERR_UNSUPPORTED', `kvd does not write ${wrapper.kind} wrappers`);
      }
      writer.writeExtension(EXTENSION_TYPE, writeShm(wrapper));
    },
  };
}

/** Written as a pickle, as clients up to 0.5.5 do. */
export const pickledWrapper = codecOf(writeShmWrapperPickle);
/** Written as a map, as clients do since 0.5.6. */
export const describedWrapper = codecOf(writeShmDescription);
