/**
 * The object table as plain JavaScript that is obviously right: one set of objects, every question
 * answered by a search through all of it. The oracle of test/core/object-table-model.test.ts.
 *
 * It does not choose slots and addresses, it is told them (`place`) and checks that they are free.
 */
import { RESULT } from '../../src/core/result.ts';

export interface ModelKey {
  readonly chunk: number;
  readonly namespaceId: number;
}

export interface ModelObject extends ModelKey {
  readonly units: number;
  state: 'staged' | 'resident' | 'detached';
  /** 0 when resident. */
  tag: number;
  isTemporary: boolean;
  slot: number;
  offset: number;
  lockCount: number;
  lockExpiryMs: number;
  holds: number;
  pins: number;
}

export interface Handle {
  readonly slot: number;
  readonly generation: number;
}

export interface ModelOptions {
  readonly units: number;
  readonly writeTtlMs: number;
  readonly readTtlMs: number;
  /** Namespaces with one number here are ranks of one model. */
  readonly scopeOf: (namespaceId: number) => number;
}

const LEASE_COUNT_MAX = 128;

export class TableModel {
  nowMs = 0;
  readonly objects = new Set<ModelObject>();
  /** Families in the order of eviction, oldest first. */
  order: string[] = [];
  readonly #options: ModelOptions;
  readonly #generations = new Map<number, number>();

  constructor(options: ModelOptions) {
    this.#options = options;
  }

  advance(nowMs: number): void {
    this.nowMs = Math.max(this.nowMs, nowMs);
    for (const object of this.objects) this.#freeIfUnheld(object);
  }

  isLocked(object: ModelObject): boolean {
    return object.lockCount > 0 && this.nowMs < object.lockExpiryMs;
  }

  isHeld(object: ModelObject): boolean {
    return this.isLocked(object) || object.holds > 0 || object.pins > 0;
  }

  find(key: ModelKey, tag: number): ModelObject | undefined {
    for (const object of this.objects) {
      const isSame = object.chunk === key.chunk && object.namespaceId === key.namespaceId;
      if (isSame && object.state !== 'detached' && object.tag === tag) return object;
    }
    return undefined;
  }

  at(slot: number): ModelObject | undefined {
    for (const object of this.objects) if (object.slot === slot) return object;
    return undefined;
  }

  generationOf(slot: number): number {
    return this.#generations.get(slot) ?? 0;
  }

  // Writing

  /**
   * Codes of a reservation, and the object that each key has reserved. New objects are not in the
   * table yet: `place` puts them there.
   */
  reserve(
    keys: readonly ModelKey[],
    units: number,
    tag: number,
    isTemporary: boolean,
  ): { codes: number[]; objects: (ModelObject | null)[] } {
    const made: ModelObject[] = [];
    const kept = new Set<ModelObject>();
    const codes: number[] = [];
    const objects = keys.map((key) => {
      const again = [...made, ...kept].find(
        (object) => object.chunk === key.chunk && object.namespaceId === key.namespaceId,
      );
      const object = again ?? this.#reserveOne(key, units, tag, kept);
      codes.push(object ? RESULT.SUCCESS : RESULT.KEY_NOT_WRITABLE);
      if (!object) return null;
      if (!again && !kept.has(object)) made.push(object);
      object.isTemporary = isTemporary;
      return object;
    });
    if (this.#fits(units, made.length)) return { codes, objects };
    return {
      codes: codes.map((code, i) => (isMade(objects[i]) ? RESULT.OUT_OF_MEMORY : code)),
      objects: objects.map((object) => (isMade(object) ? null : (object ?? null))),
    };

    function isMade(object: ModelObject | null | undefined): boolean {
      return object !== null && object !== undefined && made.includes(object);
    }
  }

  #reserveOne(
    key: ModelKey,
    units: number,
    tag: number,
    kept: Set<ModelObject>,
  ): ModelObject | null {
    if (this.find(key, 0)) return null;
    const staged = this.find(key, tag);
    if (staged && this.isHeld(staged)) return null;
    if (staged && staged.units === units) {
      this.#lock(staged, 1, this.#options.writeTtlMs);
      kept.add(staged);
      return staged;
    }
    if (staged) this.#remove(staged);
    return {
      ...key,
      units,
      state: 'staged',
      tag,
      isTemporary: false,
      slot: 0,
      offset: -1,
      lockCount: 0,
      lockExpiryMs: 0,
      holds: 0,
      pins: 0,
    };
  }

  /** Puts a new object where the table says. */
  place(object: ModelObject, slot: number, offset: number): void {
    if (this.at(slot)) throw new Error(`slot ${slot} belongs to somebody already`);
    object.slot = slot;
    object.offset = offset;
    this.objects.add(object);
    this.#lock(object, 1, this.#options.writeTtlMs);
  }

  finish(handles: readonly Handle[], leaseCount: number, holdCount: number): number[] {
    const codes: number[] = [];
    const finished = new Set<ModelObject>();
    for (let i = handles.length - 1; i >= 0; i -= 1) {
      const object = this.at(handles[i]!.slot);
      if (object && finished.has(object)) {
        codes[i] = RESULT.SUCCESS;
        continue;
      }
      codes[i] = this.#check(handles[i]!);
      if (codes[i] !== RESULT.SUCCESS || !object) continue;
      codes[i] = this.#admit(object, leaseCount, holdCount);
      if (codes[i] === RESULT.SUCCESS) finished.add(object);
    }
    return codes;
  }

  discard(handles: readonly Handle[]): number[] {
    return handles.map((handle) => {
      const code = this.#check(handle);
      const object = this.at(handle.slot);
      if (code === RESULT.SUCCESS && object) {
        object.lockCount = 0;
        this.#remove(object);
      }
      return code;
    });
  }

  #check(handle: Handle): number {
    const object = this.at(handle.slot);
    if (!object) return RESULT.KEY_NOT_EXIST;
    if (handle.generation !== this.generationOf(handle.slot)) return RESULT.KEY_IN_WRONG_STATE;
    if (object.state === 'detached') {
      object.lockCount = 0;
      this.#freeIfUnheld(object);
      return RESULT.KEY_NOT_EXIST;
    }
    if (object.state === 'resident') return RESULT.KEY_NOT_EXIST;
    return this.isLocked(object) ? RESULT.SUCCESS : RESULT.KEY_IN_WRONG_STATE;
  }

  #admit(object: ModelObject, leaseCount: number, holdCount: number): number {
    object.lockCount = 0;
    const resident = this.find(object, 0);
    if (resident) {
      this.#remove(object);
      this.#hold(resident, leaseCount, holdCount);
      return RESULT.ALREADY_RESIDENT;
    }
    object.state = 'resident';
    object.tag = 0;
    object.lockExpiryMs = 0;
    const family = this.family(object);
    this.order = [...this.order.filter((each) => each !== family), family];
    this.#hold(object, leaseCount, holdCount);
    return RESULT.SUCCESS;
  }

  #hold(object: ModelObject, leaseCount: number, holdCount: number): void {
    if (leaseCount > 0) this.lease(object, leaseCount);
    object.holds += holdCount;
  }

  // Reading

  lease(object: ModelObject, leaseCount: number): number {
    this.#lock(object, Math.min(leaseCount, LEASE_COUNT_MAX), this.#options.readTtlMs);
    return this.generationOf(object.slot);
  }

  finishRead(handles: readonly Handle[], leaseCount: number): number[] {
    return handles.map(({ slot, generation }) => {
      const object = this.at(slot);
      if (!object || object.state === 'staged') return RESULT.KEY_NOT_EXIST;
      if (generation !== this.generationOf(slot) || !this.isLocked(object)) {
        return RESULT.KEY_IN_WRONG_STATE;
      }
      object.lockCount = Math.max(0, object.lockCount - Math.min(leaseCount, LEASE_COUNT_MAX));
      this.#afterRelease(object);
      return RESULT.SUCCESS;
    });
  }

  releaseHolds(slot: number, holdCount: number): void {
    const object = this.at(slot)!;
    object.holds -= holdCount;
    this.#afterRelease(object);
  }

  unpin(slot: number): void {
    const object = this.at(slot)!;
    object.pins -= 1;
    this.#freeIfUnheld(object);
  }

  #afterRelease(object: ModelObject): void {
    const isRead = object.holds > 0 || this.isLocked(object);
    if (object.state === 'resident' && object.isTemporary && !isRead) this.#remove(object);
    else this.#freeIfUnheld(object);
  }

  touch(keys: readonly ModelKey[]): void {
    for (const key of keys.toReversed()) {
      const family = this.family(key);
      if (!this.find(key, 0)) continue;
      this.order = [...this.order.filter((each) => each !== family), family];
    }
  }

  // Reclaiming

  delete(key: ModelKey, isForced: boolean): number {
    const same = [...this.objects].filter(
      (object) =>
        object.state !== 'detached' &&
        object.chunk === key.chunk &&
        object.namespaceId === key.namespaceId,
    );
    if (same.length === 0) return RESULT.KEY_NOT_EXIST;
    let isLocked = false;
    for (const object of same) {
      if (object.state !== 'staged') continue;
      if (isForced || !this.isHeld(object)) this.#remove(object);
      else isLocked = true;
    }
    const resident = this.find(key, 0);
    if (isLocked || (resident && !isForced && this.isHeld(resident))) return RESULT.KEY_IS_LOCKED;
    if (resident) this.#remove(resident);
    return RESULT.SUCCESS;
  }

  clear(isForced: boolean): number {
    const victims = [...this.objects].filter(
      (object) => object.state !== 'detached' && (isForced || !this.isHeld(object)),
    );
    for (const object of victims) this.#remove(object);
    return victims.length;
  }

  sweep(): number {
    const expired = [...this.objects].filter(
      (object) => object.state === 'staged' && !this.isHeld(object),
    );
    for (const object of expired) this.#remove(object);
    return expired.length;
  }

  /** The families that go, until `units` are free. */
  evict(units: number): { families: string[]; freedUnits: number } {
    const before = this.usedUnits;
    this.sweep();
    const families: string[] = [];
    for (const family of [...this.order]) {
      if (before - this.usedUnits >= units) break;
      const members = this.members(family);
      if (members.some((object) => this.isHeld(object))) continue;
      families.push(family);
      for (const object of members) this.#remove(object);
    }
    return { families, freedUnits: before - this.usedUnits };
  }

  // Looking

  family(key: ModelKey): string {
    return `${this.#options.scopeOf(key.namespaceId)}:${key.chunk}`;
  }

  members(family: string): ModelObject[] {
    return [...this.objects].filter(
      (object) => object.state !== 'detached' && this.family(object) === family,
    );
  }

  count(state: ModelObject['state']): number {
    return [...this.objects].filter((object) => object.state === state).length;
  }

  get usedUnits(): number {
    return [...this.objects].reduce((sum, object) => sum + object.units, 0);
  }

  /** Throws when two objects share a unit of the arena, or one leaves it. */
  checkPlaces(): void {
    const owner = new Map<number, ModelObject>();
    for (const object of this.objects) {
      for (let unit = object.offset; unit < object.offset + object.units; unit += 1) {
        if (owner.has(unit) || unit >= this.#options.units) {
          throw new Error(`unit ${unit} has two owners or does not exist`);
        }
        owner.set(unit, object);
      }
    }
  }

  #fits(units: number, count: number): boolean {
    const taken = new Array<boolean>(this.#options.units).fill(false);
    for (const { offset, units: size } of this.objects) taken.fill(true, offset, offset + size);
    let fitting = 0;
    let run = 0;
    for (const isTaken of [...taken, true]) {
      if (isTaken) {
        fitting += Math.floor(run / units);
        run = 0;
      } else {
        run += 1;
      }
    }
    return fitting >= count;
  }

  #lock(object: ModelObject, times: number, ttlMs: number): void {
    if (!this.isLocked(object)) {
      object.lockCount = 0;
      this.#generations.set(object.slot, this.generationOf(object.slot) + 1);
    }
    object.lockCount += times;
    object.lockExpiryMs = this.nowMs + ttlMs;
  }

  #remove(object: ModelObject): void {
    object.state = 'detached';
    const family = this.family(object);
    if (!this.members(family).some(({ state }) => state === 'resident')) {
      this.order = this.order.filter((each) => each !== family);
    }
    this.#freeIfUnheld(object);
  }

  #freeIfUnheld(object: ModelObject): void {
    if (object.state === 'detached' && !this.isHeld(object)) this.objects.delete(object);
  }
}
