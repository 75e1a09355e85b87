/**
 * A reader for pickles that executes nothing. (A codec; a table of opcodes, longer than 400 lines.)
 *
 * A pickle is a program for a stack machine. Python's machine can call any function that can be
 * named, which is why unpickling a client's bytes means running the client's code. This machine has
 * no call: it knows the opcodes that build plain data and refuses every other one. A reference to
 * a class or function (`module`, `name`) is only a pair of strings, and only pairs of a closed
 * table are let through. Two formats are read with it, each with its own `PickleRules`:
 *
 *   device wrapper (`device-wrapper.ts`)      an object with a dictionary of attributes
 *     PROTO 4, FRAME, "module" "name" STACK_GLOBAL     reference of the wrapper's class
 *     EMPTY_TUPLE NEWOBJ                               an object of it, empty
 *     EMPTY_DICT MARK key value … SETITEMS BUILD STOP  its attributes
 *
 *   tensor list (`tensor-list.ts`, `storage-blob.ts`)      a list of the results of calls
 *     reference, arguments, REDUCE      stands for what the rule of that one name makes of them
 *     tuple, BINPERSID                  likewise for PyTorch's persistent ids
 *
 * REDUCE and BINPERSID are opcodes only where the rules say what they mean, and the rules mean
 * plain data again: they look at the arguments and return a tag.
 *
 * Bounds: those of the rules for input, stack, memo and steps; nesting of 32; 64 KiB per string. A
 * length is compared with the bytes that are left before anything is done with it, and bytes are
 * views of the input. There is no recursion over the data, so cycles (a list that holds itself) are
 * harmless.
 *
 * Protocols 2 to 5 write these opcodes; protocol 2 has no opcode for bytes (it writes a call), so
 * pickles with bytes cannot be read from it.
 *
 * Reference: CPython's `Lib/pickletools.py` for the opcodes; spec wire 5.1, 5.2, 6 for the rules.
 */
import { type ErrorCode, KvdError } from '../errors.ts';

const NESTING_MAX = 32;
/** Names of classes, segments and dtypes; real ones have less than a hundred bytes. */
const TEXT_BYTES_MAX = 64 * 1024;
/** Texts up to this are decoded here; calling the decoder costs more than they do. */
const SHORT_TEXT_MAX = 32;
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
    let depth = 0;
    for (const item of items) depth = Math.max(depth, depthOf(item));
    this.depth = depth + 1;
  }
}

export class PickledDict {
  readonly entries = new Map<PickledValue, PickledValue>();
  depth = 1;
}

/** What the rules made of a call or a persistent id. The machine only carries it about. */
export abstract class PickledTag {
  abstract readonly kind: string;
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
  | PickledTag
  | PickledSequence
  | PickledDict;

function depthOf(value: PickledValue): number {
  return value instanceof PickledSequence || value instanceof PickledDict ? value.depth : 0;
}

const utf8Decoder = new TextDecoder('utf-8', { fatal: true, ignoreBOM: true });

export interface PickleBounds {
  readonly inputBytesMax: number;
  readonly stackCountMax: number;
  readonly memoCountMax: number;
  /** Opcodes that are followed. */
  readonly stepCountMax: number;
}

export interface PickleRules {
  /** What is being read, and the code of the error when it cannot be. */
  readonly subject: string;
  readonly errorCode: ErrorCode;
  readonly bounds: PickleBounds;
  /** True when `module.name` may be referred to. May throw a better error than false gives. */
  isKnownClass(module: string, name: string): boolean;
  /** True when objects of it may be made. */
  isObjectClass(type: PickledClass): boolean;
  /** What REDUCE stands for; without it the opcode is refused. Throws for all but known calls. */
  readonly call?: (callee: PickledClass, args: readonly PickledValue[]) => PickledValue;
  /** What BINPERSID stands for; without it the opcode is refused. */
  readonly resolve?: (id: PickledValue) => PickledValue;
}

export interface PickleResult {
  readonly value: PickledValue;
  /** Behind STOP. What follows is nobody's, as for every pickle reader. */
  readonly endOffset: number;
}

/** The value of the pickle at `start`. Throws `rules.errorCode`. */
export function readPickle(data: Uint8Array, rules: PickleRules, start = 0): PickleResult {
  return new PickleMachine(data, rules, start).run();
}

type Step = (machine: PickleMachine) => void;

/** Plain ASCII, or null for the decoder. */
function shortText(raw: Uint8Array): string | null {
  let text = '';
  for (const byte of raw) {
    if (byte >= 0x80) return null;
    text += String.fromCharCode(byte);
  }
  return text;
}

class PickleMachine {
  readonly #data: Uint8Array;
  readonly #view: DataView;
  readonly #rules: PickleRules;
  readonly #stack: PickledValue[] = [];
  /** Stack heights at the open MARKs. */
  readonly #marks: number[] = [];
  readonly #memo = new Map<number, PickledValue>();
  #offset: number;

  constructor(data: Uint8Array, rules: PickleRules, start: number) {
    this.#data = data;
    this.#view = new DataView(data.buffer, data.byteOffset, data.byteLength);
    this.#rules = rules;
    this.#offset = start;
  }

  run(): PickleResult {
    const { length } = this.#data;
    const { inputBytesMax, stepCountMax } = this.#rules.bounds;
    const start = this.#offset;
    if (length - start <= 0) this.fail('expected a pickle, got no bytes');
    if (length - start > inputBytesMax) this.fail(`expected at most ${inputBytesMax} bytes`);
    if (this.#data[start] !== 0x80) this.fail('expected the opcode PROTO first');
    for (let count = 0; count < stepCountMax; count += 1) {
      const opcode = this.readUint(1);
      if (opcode === STOP) return this.#finish();
      const step = STEPS[opcode] ?? this.refuseOpcode(opcode);
      step(this);
    }
    return this.fail(`more than ${stepCountMax} opcodes`);
  }

  #finish(): PickleResult {
    const [value] = this.#stack;
    if (this.#stack.length !== 1 || this.#marks.length !== 0) {
      this.fail(`expected one object at STOP, got ${this.#stack.length} values`);
    }
    return { value: value as PickledValue, endOffset: this.#offset };
  }

  refuseOpcode(opcode: number): never {
    return this.fail(`opcode 0x${opcode.toString(16)} is not allowed`, this.#offset - 1);
  }

  fail(problem: string, offset = this.#offset): never {
    const { errorCode, subject } = this.#rules;
    throw new KvdError(errorCode, `${subject}: ${problem} at byte ${offset}`);
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
    if (length > TEXT_BYTES_MAX) this.fail(`a text of ${length} bytes is too long`);
    const raw = this.readBytes(length);
    const short = length <= SHORT_TEXT_MAX ? shortText(raw) : null;
    if (short !== null) return short;
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
    const { stackCountMax } = this.#rules.bounds;
    if (this.#stack.length >= stackCountMax) this.fail(`more than ${stackCountMax} values`);
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
    const { memoCountMax } = this.#rules.bounds;
    if (index >= memoCountMax) this.fail(`memo index ${index} is above ${memoCountMax - 1}`);
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

  /** REDUCE: Python would call the function; here its rule says what the call stands for. */
  reduce(): void {
    const call = this.#rules.call ?? this.refuseOpcode(REDUCE);
    const [callee, args] = this.popMany(2);
    if (!(callee instanceof PickledClass) || !(args instanceof PickledSequence)) {
      this.fail('expected a reference and a tuple for REDUCE');
    }
    this.push(call(callee as PickledClass, (args as PickledSequence).items));
  }

  /** BINPERSID: Python would look the id up; here a rule says what it stands for. */
  resolve(): void {
    const resolve = this.#rules.resolve ?? this.refuseOpcode(BINPERSID);
    this.push(resolve(this.pop()));
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
const REDUCE = 0x52;
const BINPERSID = 0x51;

/** Every opcode that is allowed besides STOP. */
const STEP_ENTRIES: readonly (readonly [opcode: number, step: Step])[] = [
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
  // Only where the rules give them a meaning.
  [REDUCE, (m) => m.reduce()],
  [BINPERSID, (m) => m.resolve()],
];

/** By opcode. */
const STEPS: readonly (Step | undefined)[] = Array.from(
  { length: 256 },
  (_, opcode) => STEP_ENTRIES.find(([known]) => known === opcode)?.[1],
);
