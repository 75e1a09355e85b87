/** Evicts nothing and remembers nothing (storage.md 10.4): L1 is full when it is full. */

export function noopReset(): void {}

export function noopCount(): u32 {
  return 0;
}

export function noopInsert(_family: u32): void {}

export function noopTouch(_family: u32): void {}

export function noopRemove(_family: u32): void {}

export function noopVictim(_isFromStart: bool): u32 {
  return 0;
}
