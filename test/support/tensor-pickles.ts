/**
 * Pickled tensor lists put together from parts, any of which a test may replace by something wrong.
 * Text stands for bytes, one character each.
 */
export const latin1 = (text: string) => Buffer.from(text, 'latin1');
export const size = (value: number, width: number) => {
  const bytes = Buffer.alloc(width);
  bytes.writeUIntLE(value, 0, Math.min(width, 6));
  return bytes.toString('latin1');
};
export const global = (module: string, name: string) => `c${module}\n${name}\n`;
export const text = (value: string) => `X${size(value.length, 4)}${value}`;
export const integers = (...values: number[]) =>
  `(${values.map((value) => `J${size(value >>> 0, 4)}`).join('')}t`;

export interface BlobParts {
  magic?: string;
  version?: string;
  system?: string;
  kind?: string;
  storageClass?: string;
  key?: string;
  place?: string;
  count?: string;
  view?: string;
  keys?: string;
  countAgain?: string;
  data?: string;
}

/** A storage of four float32. */
export function blob(parts: BlobParts = {}): string {
  const {
    magic = '\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19.',
    version = '\x80\x02M\xe9\x03.',
    system = `}(${text('little_endian')}\x88u`,
    kind = text('storage'),
    storageClass = global('torch', 'FloatStorage'),
    key = text('k'),
    place = text('cpu'),
    count = 'K\x04',
    view = 'N',
    keys = `]${text('k')}a`,
    countAgain = size(4, 8),
    data = '\0\0\x80\x3f\0\0\0\x40\0\0\x40\x40\0\0\x80\x40',
  } = parts;
  const id = `(${kind}${storageClass}${key}${place}${count}${view}tQ`;
  return `${magic}${version}\x80\x02${system}.\x80\x02${id}.\x80\x02${keys}.${countAgain}${data}`;
}

export interface TensorParts {
  rebuild?: string;
  storage?: string;
  offset?: string;
  shape?: string;
  stride?: string;
  gradient?: string;
  hooks?: string;
  more?: string;
}

export function tensor(parts: TensorParts = {}): string {
  const {
    rebuild = global('torch._utils', '_rebuild_tensor_v2'),
    storage = `${LOAD}${bytesOpcode(blob())}\x85R`,
    offset = 'K\0',
    shape = integers(2, 2),
    stride = integers(2, 1),
    gradient = '\x89',
    hooks = `${global('collections', 'OrderedDict')})R`,
    more = '',
  } = parts;
  return `${rebuild}(${storage}${offset}${shape}${stride}${gradient}${hooks}${more}tR`;
}

export function bytesOpcode(value: string): string {
  return `B${size(value.length, 4)}${value}`;
}

/** A tensor whose storage is the blob of `parts`. */
export function tensorOf(parts: BlobParts, rest: TensorParts = {}): string {
  return tensor({ storage: `${LOAD}${bytesOpcode(blob(parts))}\x85R`, ...rest });
}

export function list(...tensors: readonly string[]): Buffer {
  return latin1(`\x80\x04](${tensors.join('')}e.`);
}

export const LOAD = global('torch.storage', '_load_from_bytes');
export const ORDERED = global('collections', 'OrderedDict');
export const V3 = global('torch._utils', '_rebuild_tensor_v3');
export const UNTYPED: BlobParts = {
  storageClass: global('torch.storage', 'UntypedStorage'),
  count: 'K\x10',
  countAgain: size(16, 8),
};
