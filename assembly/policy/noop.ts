/** Evicts nothing and remembers nothing (storage.md 10.4): what is full is full. */

export function noopReset(): void {}

export function noopCount(): u32 {
  return 0;
}

export function noopInsert(_entry: u32): void {}

export function noopTouch(_entry: u32): void {}

export function noopRemove(_entry: u32): void {}

export function noopVictim(_isFromStart: bool): u32 {
  return 0;
}
