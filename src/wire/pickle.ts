/**
 * A reader for the pickles of device wrappers that executes nothing. (A codec; a table of opcodes.)
 *
 * A pickle is a program for a stack machine. Python's machine can call any function that can be
 * named, which is why unpickling a client's bytes means running the client's code. This machine has
 * no call: it knows the opcodes that build plain data and refuses every other one. A reference to
 * a class (`module`, `name`) is only a pair of strings, and only pairs of a closed table are let
 * through. What comes out is a `PickledObject`: a class reference with a dictionary of attributes.
 *
 *   PROTO 4, FRAME, "module" "name" STACK_GLOBAL     reference of the wrapper's class
 *   EMPTY_TUPLE NEWOBJ                               an object of it, empty
 *   EMPTY_DICT MARK key value … SETITEMS BUILD STOP  its attributes
 *
 * Bounds: 64 KiB of input, 1,000 values on the stack, 1,000 memo entries, nesting of 32; a length
 * is compared with the bytes that are left before anything is done with it. There is no recursion
 * over the data, so cycles (a list that holds itself) are harmless.
 *
 * Protocols 2 to 5 write these opcodes; protocol 2 has no opcode for bytes (it writes a call), so
 * wrappers with bytes attributes cannot be read from it.
 *
 * Reference: CPython's `Lib/pickletools.py` for the opcodes; spec wire 5.1 and 5.2 for the rules.
 */
import { KvdError } from '../errors.ts';

const INPUT_BYTES_MAX = 64 * 1024;
const STACK_COUNT_MAX = 1000;
const MEMO_COUNT_MAX = 1000;
const NESTING_MAX = 32;
/** Bytes of a LONG1: nine hold every unsigned 64-bit integer. */
const LONG_BYTES_MAX = 9;

/** A name, never the thing that it names. */
export class PickledClass {
  readonly module: string;
  readonly name: string;

  constructor(module: string, name: string) {
    this.module = module;
    this.name = name;
  }
}

export class PickledObject {
  readonly type: PickledClass;
  state: PickledDict | null = null;

  constructor(type: PickledClass) {
    this.type = type;
  }
}

/** A tuple or a list; nothing here depends on which. */
export class PickledSequence {
  readonly items: PickledValue[];
  depth: number;

  constructor(items: PickledValue[]) {
    this.items = items;
    this.depth = 1 + Math.max(0, ...items.map(depthOf));
  }
}

export class PickledDict {
  readonly entries = new Map<PickledValue, PickledValue>();
  depth = 1;
}

export type PickledValue =
  | null
  | boolean
  | number
  | bigint
  | string
  | Uint8Array
  | PickledClass
  | PickledObject
  | PickledSequence
  | PickledDict;

function depthOf(value: PickledValue): number {
  return value instanceof PickledSequence || value instanceof PickledDict ? value.depth : 0;
}

const utf8Decoder = new TextDecoder('utf-8', { fatal: true, ignoreBOM: true });

export interface PickleRules {
  /** True when `module.name` may be referred to. May throw a better error than false gives. */
  isKnownClass(module: string, name: string): boolean;
  /** True when objects of it may be made. */
  isObjectClass(type: PickledClass): boolean;
}

/** The one object in `data`. Throws `ERR_WIRE_WRAPPER` for anything else. */
export function readPickle(data: Uint8Array, rules: PickleRules): PickledObject {
  return new PickleMachine(data, rules).run();
}

type Step = (machine: PickleMachine) => void;

class PickleMachine {
  readonly #data: Uint8Array;
  readonly #view: DataView;
  readonly #rules: PickleRules;
  readonly #stack: PickledValue[] = [];
  /** Stack heights at the open MARKs. */
  readonly #marks: number[] = [];
  readonly #memo = new Map<number, PickledValue>();
  #offset = 0;

  constructor(data: Uint8Array, rules: PickleRules) {
    this.#data = data;
    this.#view = new DataView(data.buffer, data.byteOffset, data.byteLength);
    this.#rules = rules;
  }

  run(): PickledObject {
    const { length } = this.#data;
    if (length === 0) this.fail('expected a pickle, got no bytes');
    if (length > INPUT_BYTES_MAX) this.fail(`expected at most ${INPUT_BYTES_MAX} bytes`);
    if (this.#data[0] !== 0x80) this.fail('expected the opcode PROTO first');
    for (;;) {
      const opcode = this.readUint(1);
      if (opcode === STOP) return this.#finish();
      const step = STEPS.get(opcode);
      if (!step) this.fail(`opcode 0x${opcode.toString(16)} is not allowed`, this.#offset - 1);
      step(this);
    }
  }

  /** Bytes after STOP are nobody's and are ignored, as every pickle reader does. */
  #finish(): PickledObject {
    const [result] = this.#stack;
    if (this.#stack.length !== 1 || this.#marks.length !== 0) {
      this.fail(`expected one object at STOP, got ${this.#stack.length} values`);
    }
    if (!(result instanceof PickledObject)) this.fail('expected an object at STOP');
    return result as PickledObject;
  }

  fail(problem: string, offset = this.#offset): never {
    throw new KvdError('ERR_WIRE_WRAPPER', `device wrapper: ${problem} at byte ${offset}`);
  }

  readUint(size: 1 | 2 | 4): number {
    const at = this.#take(size);
    if (size === 1) return this.#view.getUint8(at);
    return size === 2 ? this.#view.getUint16(at, true) : this.#view.getUint32(at, true);
  }

  readInt32(): number {
    return this.#view.getInt32(this.#take(4), true);
  }

  /** A length of 8 bytes, checked so that a number holds it. */
  readLength8(): number {
    const length = this.#view.getBigUint64(this.#take(8), true);
    if (length > BigInt(this.#data.length)) this.fail('a length is larger than the input');
    return Number(length);
  }

  readBytes(length: number): Uint8Array {
    const at = this.#take(length);
    return this.#data.subarray(at, at + length);
  }

  readText(length: number): string {
    const raw = this.readBytes(length);
    try {
      return utf8Decoder.decode(raw);
    } catch {
      // The decoder's own error says no more than this.
      return this.fail('expected valid UTF-8');
    }
  }

  /** ASCII up to the next line feed, for GLOBAL. */
  readLine(): string {
    const end = this.#data.indexOf(0x0a, this.#offset);
    if (end < 0) this.fail('truncated: a line has no end');
    const line = this.readText(end - this.#offset);
    this.#offset = end + 1;
    return line;
  }

  /** FRAME announces how many bytes follow; they are read in place, so only the claim counts. */
  checkFrame(): void {
    const length = this.readLength8();
    if (length > this.#data.length - this.#offset) this.fail('a FRAME is larger than the input');
  }

  push(value: PickledValue): void {
    if (this.#stack.length >= STACK_COUNT_MAX) this.fail(`more than ${STACK_COUNT_MAX} values`);
    if (depthOf(value) > NESTING_MAX) this.fail(`nesting deeper than ${NESTING_MAX}`);
    this.#stack.push(value);
  }

  pop(): PickledValue {
    const floor = this.#marks.at(-1) ?? 0;
    if (this.#stack.length <= floor) this.fail('the stack is empty');
    return this.#stack.pop() as PickledValue;
  }

  popMany(count: number): PickledValue[] {
    const values: PickledValue[] = [];
    for (let index = 0; index < count; index += 1) values.unshift(this.pop());
    return values;
  }

  mark(): void {
    if (this.#marks.length >= NESTING_MAX) this.fail(`nesting deeper than ${NESTING_MAX}`);
    this.#marks.push(this.#stack.length);
  }

  popToMark(): PickledValue[] {
    const height = this.#marks.pop();
    if (height === undefined) this.fail('no MARK is open');
    return this.#stack.splice(height as number);
  }

  memoize(index: number): void {
    if (index >= MEMO_COUNT_MAX) this.fail(`memo index ${index} is above ${MEMO_COUNT_MAX - 1}`);
    const value = this.pop();
    this.#memo.set(index, value);
    this.push(value);
  }

  memoizeNext(): void {
    this.memoize(this.#memo.size);
  }

  recall(index: number): void {
    const value = this.#memo.get(index);
    if (value === undefined) this.fail(`nothing is remembered under ${index}`);
    this.push(value as PickledValue);
  }

  pushClass(module: PickledValue, name: PickledValue): void {
    if (typeof module !== 'string' || typeof name !== 'string') {
      this.fail('expected two strings as a class reference');
    }
    if (!this.#rules.isKnownClass(module as string, name as string)) {
      const shown = JSON.stringify(`${module}.${name}`.slice(0, 120));
      this.fail(`reference to ${shown} is not allowed`);
    }
    this.push(new PickledClass(module as string, name as string));
  }

  newObject(): void {
    const [type, args] = this.popMany(2);
    if (!(type instanceof PickledClass) || !this.#rules.isObjectClass(type)) {
      this.fail('expected a wrapper class for NEWOBJ');
    }
    if (!(args instanceof PickledSequence) || args.items.length > 0) {
      this.fail('expected no arguments for NEWOBJ');
    }
    this.push(new PickledObject(type as PickledClass));
  }

  /** BUILD: gives the object below the dictionary its attributes. */
  build(): void {
    const [target, state] = this.popMany(2);
    if (!(target instanceof PickledObject) || !(state instanceof PickledDict)) {
      this.fail('expected a wrapper and a dictionary for BUILD');
    }
    (target as PickledObject).state = state as PickledDict;
    this.push(target as PickledObject);
  }

  append(values: readonly PickledValue[]): void {
    const list = this.pop();
    if (!(list instanceof PickledSequence)) this.fail('expected a list to append to');
    const sequence = list as PickledSequence;
    for (const value of values) {
      sequence.items.push(value);
      sequence.depth = Math.max(sequence.depth, depthOf(value) + 1);
    }
    this.push(sequence);
  }

  setItems(values: readonly PickledValue[]): void {
    const target = this.pop();
    if (!(target instanceof PickledDict)) this.fail('expected a dictionary to set items in');
    if (values.length % 2 !== 0) this.fail('expected pairs of keys and values');
    const dict = target as PickledDict;
    for (let index = 0; index < values.length; index += 2) {
      const value = values[index + 1] as PickledValue;
      dict.entries.set(values[index] as PickledValue, value);
      dict.depth = Math.max(dict.depth, depthOf(value) + 1);
    }
    this.push(dict);
  }

  readProtocol(): void {
    const version = this.readUint(1);
    if (version < 2 || version > 5) this.fail(`pickle protocol ${version} is not supported`);
  }

  /** Little-endian two's complement of `LONG1`. */
  readLong(): number | bigint {
    const length = this.readUint(1);
    if (length > LONG_BYTES_MAX) this.fail(`an integer of ${length} bytes is too large`);
    let value = 0n;
    for (const byte of this.readBytes(length).toReversed()) value = (value << 8n) | BigInt(byte);
    const signed = BigInt.asIntN(length * 8, value);
    const number = Number(signed);
    return Number.isSafeInteger(number) ? number : signed;
  }

  #take(length: number): number {
    const at = this.#offset;
    if (length > this.#data.length - at) {
      this.fail(`truncated: ${length} bytes needed, ${this.#data.length - at} left`);
    }
    this.#offset = at + length;
    return at;
  }
}

const STOP = 0x2e;

/** Every opcode that is allowed besides STOP. */
const STEPS: ReadonlyMap<number, Step> = new Map<number, Step>([
  [0x80, (m) => m.readProtocol()], // PROTO
  [0x95, (m) => m.checkFrame()], // FRAME
  [0x28, (m) => m.mark()], // MARK
  // Plain values.
  [0x4e, (m) => m.push(null)], // NONE
  [0x88, (m) => m.push(true)], // NEWTRUE
  [0x89, (m) => m.push(false)], // NEWFALSE
  [0x4a, (m) => m.push(m.readInt32())], // BININT
  [0x4b, (m) => m.push(m.readUint(1))], // BININT1
  [0x4d, (m) => m.push(m.readUint(2))], // BININT2
  [0x8a, (m) => m.push(m.readLong())], // LONG1
  [0x8c, (m) => m.push(m.readText(m.readUint(1)))], // SHORT_BINUNICODE
  [0x58, (m) => m.push(m.readText(m.readUint(4)))], // BINUNICODE
  [0x8d, (m) => m.push(m.readText(m.readLength8()))], // BINUNICODE8
  [0x43, (m) => m.push(m.readBytes(m.readUint(1)))], // SHORT_BINBYTES
  [0x42, (m) => m.push(m.readBytes(m.readUint(4)))], // BINBYTES
  [0x8e, (m) => m.push(m.readBytes(m.readLength8()))], // BINBYTES8
  // Containers.
  [0x29, (m) => m.push(new PickledSequence([]))], // EMPTY_TUPLE
  [0x85, (m) => m.push(new PickledSequence(m.popMany(1)))], // TUPLE1
  [0x86, (m) => m.push(new PickledSequence(m.popMany(2)))], // TUPLE2
  [0x87, (m) => m.push(new PickledSequence(m.popMany(3)))], // TUPLE3
  [0x74, (m) => m.push(new PickledSequence(m.popToMark()))], // TUPLE
  [0x5d, (m) => m.push(new PickledSequence([]))], // EMPTY_LIST
  [0x61, (m) => m.append(m.popMany(1))], // APPEND
  [0x65, (m) => m.append(m.popToMark())], // APPENDS
  [0x7d, (m) => m.push(new PickledDict())], // EMPTY_DICT
  [0x73, (m) => m.setItems(m.popMany(2))], // SETITEM
  [0x75, (m) => m.setItems(m.popToMark())], // SETITEMS
  // Memo.
  [0x94, (m) => m.memoizeNext()], // MEMOIZE
  [0x71, (m) => m.memoize(m.readUint(1))], // BINPUT
  [0x72, (m) => m.memoize(m.readUint(4))], // LONG_BINPUT
  [0x68, (m) => m.recall(m.readUint(1))], // BINGET
  [0x6a, (m) => m.recall(m.readUint(4))], // LONG_BINGET
  // References and objects.
  [0x63, (m) => m.pushClass(m.readLine(), m.readLine())], // GLOBAL
  [0x93, (m) => m.pushClass(...(m.popMany(2) as [PickledValue, PickledValue]))], // STACK_GLOBAL
  [0x81, (m) => m.newObject()], // NEWOBJ
  [0x62, (m) => m.build()], // BUILD
]);
