/** A policy of the core whose families have the names of the traces: "salt:chunk number". */
import type { CoreParts } from './core-parts.ts';

export type PolicyParts = ReturnType<typeof import('./core-parts.ts').openCoreParts>;

/** The reference's number of victims for a ratio of `count` keys (storage.md 10.2). */
function victimCount(count: number, ratio: number): number {
  const clamped = Math.min(1, Math.max(0, ratio));
  return Math.max(Math.trunc(count * clamped), clamped > 0 ? 1 : 0);
}

export class NamedPolicy {
  readonly #parts: CoreParts;
  readonly #scratch: Uint32Array;
  readonly #kind: number;
  readonly #names = new Map<number, string>();
  readonly #keys = new Map<bigint, string>();
  readonly #tenants = new Map<string, number>();

  constructor({ parts, scratch }: PolicyParts, kind: number) {
    this.#parts = parts;
    this.#scratch = scratch;
    this.#kind = kind;
  }

  /** Nothing may be tracked: `forget` what was. */
  begin(): void {
    this.#parts.policy_select(this.#kind);
  }

  /** Removes everything by the policy's own rules. */
  forget(): void {
    for (const family of this.#names.keys()) this.#parts.policy_remove(family);
  }

  get count(): number {
    return this.#parts.policy_count();
  }

  insert(name: string): void {
    this.#parts.policy_insert(this.#familyOf(name));
  }

  reserve(name: string): void {
    this.#parts.policy_reserve(this.#familyOf(name));
  }

  refresh(name: string): void {
    this.#parts.policy_refresh(this.#familyOf(name));
  }

  touch(name: string): void {
    this.#parts.policy_touch(this.#familyOf(name));
  }

  remove(name: string): void {
    this.#parts.policy_remove(this.#familyOf(name));
  }

  /** True when the candidate may go. */
  take(name: string): boolean {
    return this.#parts.policy_take(this.#familyOf(name)) !== 0;
  }

  word(name: string): number {
    return this.#parts.policy_word(this.#familyOf(name));
  }

  /** One step of a walk; undefined at its end. */
  next(isFromStart: boolean, salt?: string): string | undefined {
    const start = isFromStart ? 1 : 0;
    const family =
      salt === undefined
        ? this.#parts.policy_victim(start)
        : this.#parts.policy_victim_of(this.#tenantOf(salt), start);
    return family === 0 ? undefined : (this.#names.get(family) ?? '?');
  }

  /** The rest of a walk, best victim first. */
  walk(isFromStart: boolean, salt?: string): string[] {
    const order: string[] = [];
    let name = this.next(isFromStart, salt);
    while (name !== undefined) {
      order.push(name);
      name = this.next(false, salt);
    }
    return order;
  }

  /** Up to `count` victims that the policy grants, passing over those that are locked. */
  takeVictims(count: number, locked: readonly string[], salt?: string): string[] {
    const victims: string[] = [];
    if (count === 0) return victims;
    let name = this.next(true, salt);
    while (name !== undefined) {
      if (!locked.includes(name) && this.take(name)) victims.push(name);
      if (victims.length === count) break;
      name = this.next(false, salt);
    }
    return victims;
  }

  /** The reference's selection by a ratio of the keys. */
  select(ratio: number, locked: readonly string[], salt?: string): string[] {
    const count = salt === undefined ? this.count : this.walk(true, salt).length;
    return this.takeVictims(victimCount(count, ratio), locked, salt);
  }

  get arcState(): { capacity: number; target: number } {
    const capacity = this.#parts.policy_arc_capacity();
    return { capacity, target: this.#parts.policy_arc_target() };
  }

  /** Names of the ghosts of a list, oldest first. */
  ghosts(list: number): string[] {
    const count = this.#parts.policy_ghosts(list);
    return Array.from({ length: count }, (_, i) => {
      const [low, high] = [this.#scratch[2 * i]!, this.#scratch[2 * i + 1]!];
      return this.#keys.get((BigInt(high) << 32n) | BigInt(low)) ?? '?';
    });
  }

  #tenantOf(salt: string): number {
    const known = this.#tenants.get(salt) ?? this.#tenants.size;
    this.#tenants.set(salt, known);
    return known;
  }

  #familyOf(name: string): number {
    const [salt, chunk] = name.split(':') as [string, string];
    const family = this.#parts.policy_family(Number(chunk), this.#tenantOf(salt));
    this.#names.set(family, name);
    this.#keys.set(BigInt.asUintN(64, this.#parts.policy_key(family)), name);
    return family;
  }
}
