/**
 * The reference's L1Manager traces against the object table.
 *
 * The table has no listeners; what a listener would be told follows from the answers, and that
 * mapping is here. Where section 18 of storage.md asks for better than the reference did, the
 * traces are read as section 17 says: memory that a forced call takes from under a holder is
 * counted apart (`deferredBytes`) until the last holder lets go.
 */
import * as assert from 'uvu/assert';
import { type CoreExports, instantiate } from '../../src/core/instance.ts';
import { NamespaceTable } from '../../src/core/namespaces.ts';
import { NO_SLOT, ObjectTable } from '../../src/core/object-table.ts';
import { RESULT, resultName } from '../../src/core/result.ts';
import { compileAssembly } from '../support/compile-assembly.ts';
import { keysOf, namespaceKey, UNIT_BYTES } from '../support/core-table.ts';
import { policyVectors } from '../support/policy-vectors.ts';
import { suite } from '../support/suite.ts';

type Placed = [result: string, address: number | null];
type Event = [listener: string, keys: string[]];

interface Step {
  t: number;
  op: string;
  ms?: number;
  keys?: string[];
  tag?: string;
  mode?: string;
  locks?: number;
  temporary?: boolean[];
  units?: number;
  force?: boolean;
  result?: Results;
  events?: Event[];
  status: Record<string, number>;
}

interface Trace {
  name: string;
  units: number;
  write_ttl_seconds: number;
  read_ttl_seconds: number;
  ops: Step[];
}

/** Exports of assembly/test/table.ts. */
interface TableExports extends CoreExports {
  object_is_leased(slot: number): number;
  object_is_unheld(slot: number): number;
  object_is_temporary(slot: number): number;
}

type Results = Record<string, Placed | string | boolean>;

interface Answer {
  result?: Results;
  events: Event[];
}

const CHUNK_COUNT = 32;
const wasm = compileAssembly('assembly/test/table.ts');
const onTrap = (error: unknown): never => {
  throw error;
};

/** The operations of the reference's L1Manager, in calls of the table. */
class TracedManager {
  readonly #core: TableExports;
  readonly table: ObjectTable;
  readonly #namespaceIds: number[];
  readonly #tags = new Map<string, number>();

  constructor(trace: Trace) {
    const limits = { objectCountMax: 64, batchCountMax: 256, alignBytes: UNIT_BYTES };
    this.#core = instantiate(wasm, onTrap) as TableExports;
    assert.is(this.#core.init(256, 16, limits.batchCountMax, limits.objectCountMax, 16, 1, 2), 0);
    const ttlMs = [1000 * trace.write_ttl_seconds, 1000 * trace.read_ttl_seconds] as const;
    assert.is(this.#core.table_init(trace.units * UNIT_BYTES, UNIT_BYTES, 1, ...ttlMs), 0);
    this.table = new ObjectTable(this.#core, limits, onTrap);
    this.#namespaceIds = [new NamespaceTable(this.#core, 16).intern(namespaceKey())];
  }

  apply(step: Step): Answer {
    const keys = step.keys ?? [];
    switch (step.op) {
      case 'reserve_write':
        return this.#reserveWrite(keys, step);
      case 'finish_write':
      case 'finish_write_and_reserve_read':
        return this.#finishWrite(keys, step);
      case 'finish_write_and_delete':
        return this.#discard(keys, step);
      case 'reserve_read':
        return this.#reserveRead(keys, step);
      case 'finish_read':
        return this.#finishRead(keys, step);
      case 'delete':
        return this.#delete(keys, step);
      case 'clear':
        return this.#clear(step);
      case 'touch':
        this.table.touch(this.#keys(keys));
        return { events: [['accessed', keys]] };
      case 'unsafe_read':
      case 'evictable':
        return { result: this.#ask(keys, step), events: [] };
      default:
        throw new Error(`no operation ${step.op}`);
    }
  }

  /** Figures under the names of the traces. */
  status(nowMs: number): Record<string, number> {
    const figures = this.table.statistics(nowMs);
    return {
      total_object_count: figures.objectCount + figures.stagingCount,
      write_locked_count: figures.writeLockedCount,
      read_locked_count: figures.readLockedCount,
      temporary_count: figures.temporaryCount,
      memory_used_bytes: figures.usedBytes - figures.deferredBytes,
      staging_object_count: figures.stagingCount,
    };
  }

  #keys(keys: readonly string[]) {
    return keysOf(
      keys.map((key) => Number(key.slice(1))),
      this.#namespaceIds,
    );
  }

  #tag(step: Step): number {
    const name = step.tag ?? '';
    const tag = this.#tags.get(name) ?? this.#tags.size + 1;
    this.#tags.set(name, tag);
    return tag;
  }

  #isResident(key: string): boolean {
    return this.table.find(this.#keys([key]))[0] !== NO_SLOT;
  }

  #isStaged(key: string, tag?: number): boolean {
    const tags = tag === undefined ? [...this.#tags.values()] : [tag];
    return tags.some((each) => this.table.findStaged(this.#keys([key]), each)[0] !== NO_SLOT);
  }

  /** Keys that are neither resident nor staged any more. */
  #gone(keys: readonly string[]): string[] {
    return keys.filter((key) => !this.#isResident(key) && !this.#isStaged(key));
  }

  #place(code: number, slot: number): Placed {
    return [resultName(code), code >= 0 ? this.table.offsetOf(slot) : null];
  }

  #reserveWrite(keys: string[], step: Step): Answer {
    const tag = this.#tag(step);
    // Only a call that had something to allocate tells the listeners.
    const isAbsent = keys.map((key) => !this.#isResident(key) && !this.#isStaged(key, tag));
    const codes: number[] = [];
    const result: Results = {};
    for (const [sizeBytes, indexes] of this.#sizes(keys, tag, (step.units ?? 1) * UNIT_BYTES)) {
      const reserved = this.table.reserveWrite(
        this.#keys(indexes.map((i) => keys[i]!)),
        sizeBytes,
        tag,
        step.t,
        indexes.map((i) => step.temporary?.[i] ?? false),
      );
      for (const [part, i] of indexes.entries()) {
        codes[i] = reserved.codes[part]!;
        result[keys[i]!] = this.#place(codes[i]!, reserved.slots[part]!);
      }
    }
    const isReserved = (_: string, i: number) => codes[i] === RESULT.SUCCESS;
    const handedOver = keys.filter((key, i) => isReserved(key, i) && !isAbsent[i]);
    const allocated = keys.filter((key, i) => isReserved(key, i) && isAbsent[i]);
    const events: Event[] = [['reserved_write', [...handedOver, ...allocated]]];
    return { result, events: isAbsent.includes(true) ? events : [] };
  }

  /**
   * Indexes of the keys by size: the reference hands an expired reservation over whatever its size
   * is. kvd makes a new one then (18.29), so the traces are replayed with the size it has.
   */
  #sizes(keys: string[], tag: number, sizeBytes: number): Map<number, number[]> {
    const bySize = new Map<number, number[]>();
    for (const [i, key] of keys.entries()) {
      const slot = this.table.findStaged(this.#keys([key]), tag)[0]!;
      const size = slot === NO_SLOT ? sizeBytes : this.table.sizeOf(slot);
      bySize.set(size, [...(bySize.get(size) ?? []), i]);
    }
    return bySize;
  }

  #finishWrite(keys: string[], step: Step): Answer {
    const isRead = step.op === 'finish_write_and_reserve_read';
    const staged = this.table.findStaged(this.#keys(keys), this.#tag(step));
    const isTemporary = [...staged].map((slot) => this.#core.object_is_temporary(slot) !== 0);
    const leaseCount = isRead ? step.locks! : 0;
    const { slots, codes } = this.table.finishWriteAndHold(staged, step.t, { leaseCount });
    const result: Results = {};
    for (const [i, key] of keys.entries()) {
      const code = codes[i]!;
      result[key] = isRead ? this.#place(code, slots[i]!) : resultName(code);
    }
    const admitted = keys.filter((_, i) => codes[i] === RESULT.SUCCESS);
    const resident = keys.filter((_, i) => codes[i] === RESULT.ALREADY_RESIDENT);
    if (isRead) {
      const reading: Event[] = resident.length > 0 ? [['reserved_read', resident]] : [];
      return { result, events: [...reading, [step.op, admitted]] };
    }
    const lasting = admitted.filter((key) => !isTemporary[keys.indexOf(key)]);
    return { result, events: lasting.length > 0 ? [['write_finished', lasting]] : [] };
  }

  #discard(keys: string[], step: Step): Answer {
    const staged = this.table.findStaged(this.#keys(keys), this.#tag(step));
    const codes = this.table.discardWrite(staged);
    const discarded = keys.filter((_, i) => codes[i] === RESULT.SUCCESS);
    const gone = this.#gone(discarded);
    return {
      result: nameCodes(keys, codes),
      events: gone.length > 0 ? [['deleted_by_manager', gone]] : [],
    };
  }

  #reserveRead(keys: string[], step: Step): Answer {
    const { slots, codes } = this.table.reserveRead(this.#keys(keys), step.locks!, step.t);
    const result: Results = {};
    for (const [i, key] of keys.entries()) result[key] = this.#place(codes[i]!, slots[i]!);
    const reserved = keys.filter((_, i) => codes[i] === RESULT.SUCCESS);
    return { result, events: [['reserved_read', reserved]] };
  }

  #finishRead(keys: string[], step: Step): Answer {
    const slots = this.table.find(this.#keys(keys));
    const codes = this.table.finishRead(slots, step.locks!, step.t);
    const finished = keys.filter((_, i) => codes[i] === RESULT.SUCCESS);
    const removed = finished.filter((key) => !this.#isResident(key));
    return {
      result: nameCodes(keys, codes),
      events: [
        ['read_finished', finished],
        ['deleted_by_manager', removed],
      ],
    };
  }

  #delete(keys: string[], step: Step): Answer {
    const wasResident = keys.map((key) => this.#isResident(key));
    const wasStaged = keys.map((key) => this.#isStaged(key));
    const codes = this.table.deleteObjects(this.#keys(keys), step.force ?? false, step.t);
    const removed = keys.filter((_, i) => codes[i] === RESULT.SUCCESS && wasResident[i]);
    const reclaimed = keys.filter((_, i) => wasStaged[i] && !wasResident[i]);
    const gone = this.#gone(reclaimed);
    return {
      result: nameCodes(keys, codes),
      events: [
        ['deleted_by_manager', removed],
        ...(gone.length > 0 ? [['deleted_by_manager', gone] satisfies Event] : []),
      ],
    };
  }

  #clear(step: Step): Answer {
    const keys = Array.from({ length: CHUNK_COUNT }, (_, chunk) => `:${chunk}`);
    const present = keys.filter((key) => this.#isResident(key) || this.#isStaged(key));
    this.table.clear(step.force ?? false, step.t);
    const gone = this.#gone(present);
    const isTold = step.force || gone.length > 0;
    return { events: isTold ? [['deleted_by_manager', gone]] : [] };
  }

  #ask(keys: string[], step: Step): Results {
    const result: Results = {};
    const slots = this.table.find(this.#keys(keys));
    for (const [i, key] of keys.entries()) {
      const slot = slots[i]!;
      if (step.op === 'unsafe_read') {
        const isLeased = slot !== NO_SLOT && this.#core.object_is_leased(slot);
        const refusal = slot === NO_SLOT ? 'KEY_NOT_EXIST' : 'KEY_NOT_READABLE';
        result[key] = isLeased ? this.#place(0, slot) : [refusal, null];
      } else {
        const staged = [...this.#tags.values()].flatMap((tag) => [
          ...this.table.findStaged(this.#keys([key]), tag),
        ]);
        const objects = [slot, ...staged].filter((each) => each !== NO_SLOT);
        result[key] = objects.some((each) => this.#core.object_is_unheld(each) !== 0);
      }
    }
    return result;
  }
}

function nameCodes(keys: string[], codes: Int32Array): Record<string, string> {
  return Object.fromEntries(keys.map((key, i) => [key, resultName(codes[i]!)]));
}

function replay(trace: Trace): void {
  const manager = new TracedManager(trace);
  for (const [index, step] of trace.ops.entries()) {
    const where = `step ${index}: ${step.op} ${step.keys ?? ''} at ${step.t} ms`;
    if (step.op === 'advance') {
      compareStatus(manager.status(step.t + step.ms!), step, where);
      continue;
    }
    const { result, events } = manager.apply(step);
    assert.equal(result, step.result, where);
    assert.equal(normalize(events, step), normalize(step.events ?? [], step), where);
    compareStatus(manager.status(step.t), step, where);
    manager.table.checkConsistency();
  }
}

/** `clear` names the keys in no order that a listener could rely on. */
function normalize(events: Event[], step: Step): Event[] {
  if (step.op !== 'clear') return events;
  return events.map(([listener, keys]) => [listener, keys.toSorted()]);
}

/** The traces of 0.5.0 count no staging objects. */
function compareStatus(actual: Record<string, number>, step: Step, where: string): void {
  const compared = Object.fromEntries(Object.keys(step.status).map((key) => [key, actual[key]]));
  assert.equal(compared, step.status, where);
}

/** What of 0.5.0 holds for kvd too (storage.md 17). */
const SCENARIOS_050 = ['read-lock-expiry', 'temporary-expired', 'duplicates-and-clamp'];

suite('object table as the L1Manager of the reference', (test) => {
  for (const trace of policyVectors<Trace[]>('l1_manager_056')) {
    test(`follows 0.5.6: ${trace.name}`, () => replay(trace));
  }

  for (const trace of policyVectors<Trace[]>('l1_manager_050')) {
    if (SCENARIOS_050.includes(trace.name)) {
      test(`follows 0.5.0: ${trace.name}`, () => replay(trace));
    }
  }
});
