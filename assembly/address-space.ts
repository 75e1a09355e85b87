/**
 * The address space of the arena: which bytes are free. Knows offsets only, never memory.
 *
 * Problem: first fit by address (storage.md 4.1) over up to a million holes, where a plain list
 * costs a walk per call. Approach: the free blocks form a treap ordered by address, each node
 * knowing the largest block below it, so that the first block that fits is found by one descent.
 * The order of priorities comes from the node index, so equal inputs give equal trees.
 *
 * Everything is counted in units of the alignment, which makes a node 20 bytes:
 *
 *   +0  start   first unit of the block        +8   largest  of this node and all below
 *   +4  size    units                          +12  left     node index, 0 = none
 *                                              +16  right    (next spare node while unused)
 *
 * Invariants: blocks are disjoint and never adjacent; free + allocated = heap; `largest` is right.
 * There are at most as many free blocks as objects plus one, so the nodes cannot run out.
 * Bytes of the arena beyond the last whole unit belong to nobody and count as free.
 * How it fails: no room is answered with OUT_OF_MEMORY and nothing changed. Giving back what is
 * not allocated is a bug of ours and asserts.
 */
import { reserveRegion } from './memory-map';
import { OUT_OF_MEMORY, SUCCESS } from './result';

const NODE_SIZE: u32 = 20;
const SIZE: usize = 4;
const LARGEST: usize = 8;
const LEFT: usize = 12;
const RIGHT: usize = 16;

let nodes: usize = 0;
let nodeCountMax: u32 = 0;
let nodeCountUsed: u32 = 0;
let spareHead: u32 = 0;
let root: u32 = 0;

let unitShift: u32 = 0;
let heapUnits: u32 = 0;
let freeUnits: u32 = 0;
let blockCount: u32 = 0;

/** Reserves the nodes; `blockCountMax` is the largest number of allocations at a time. */
export function addressSpaceLayout(blockCountMax: u32): void {
  nodeCountMax = blockCountMax + 2;
  nodes = reserveRegion(<u64>NODE_SIZE * <u64>nodeCountMax);
}

/** Starts with `units` free units of `alignBytes` each, a power of two. */
export function addressSpaceReset(units: u32, alignBytes: u32): void {
  unitShift = ctz(alignBytes);
  emptyHeap(units);
}

/** Frees the whole heap at once, whatever was allocated. */
export function addressSpaceFreeAll(): void {
  emptyHeap(heapUnits);
}

function emptyHeap(units: u32): void {
  nodeCountUsed = 0;
  spareHead = 0;
  root = 0;
  heapUnits = 0;
  freeUnits = 0;
  blockCount = 0;
  if (units > 0) addressSpaceGrow(units);
}

export function addressUnitShift(): u32 {
  return unitShift;
}

/** Bytes that `units` units take. */
export function unitsToBytes(units: u32): f64 {
  return <f64>((<u64>units) << (<u64>unitShift));
}

export function addressHeapUnits(): u32 {
  return heapUnits;
}

export function addressFreeUnits(): u32 {
  return freeUnits;
}

/** Units of the largest free block. */
export function addressLargestUnits(): u32 {
  return largestOf(root);
}

export function addressBlockCount(): u32 {
  return blockCount;
}

function nodeAt(node: u32): usize {
  return nodes + <usize>(node - 1) * NODE_SIZE;
}

/** Start of the block of a node; nodes are named by `addressFirstBlock` and `addressNextBlock`. */
export function blockStart(node: u32): u32 {
  return load<u32>(nodeAt(node));
}

export function blockSize(node: u32): u32 {
  return load<u32>(nodeAt(node), SIZE);
}

function largestOf(node: u32): u32 {
  return node === 0 ? 0 : load<u32>(nodeAt(node), LARGEST);
}

function leftOf(node: u32): u32 {
  return load<u32>(nodeAt(node), LEFT);
}

function rightOf(node: u32): u32 {
  return load<u32>(nodeAt(node), RIGHT);
}

/** A fixed shuffle of the node index (the finalizer of MurmurHash3). */
function priorityOf(node: u32): u32 {
  let mixed = node;
  mixed = (mixed ^ (mixed >> 16)) * 0x85ebca6b;
  mixed = (mixed ^ (mixed >> 13)) * 0xc2b2ae35;
  return mixed ^ (mixed >> 16);
}

function updateLargest(node: u32): void {
  const at = nodeAt(node);
  const below = max(largestOf(load<u32>(at, LEFT)), largestOf(load<u32>(at, RIGHT)));
  store<u32>(at, max(load<u32>(at, SIZE), below), LARGEST);
}

function createNode(start: u32, size: u32): u32 {
  let node = spareHead;
  if (node !== 0) {
    spareHead = rightOf(node);
  } else {
    assert(nodeCountUsed < nodeCountMax, 'more free blocks than objects');
    nodeCountUsed += 1;
    node = nodeCountUsed;
  }
  const at = nodeAt(node);
  store<u32>(at, start);
  store<u32>(at, size, SIZE);
  store<u32>(at, size, LARGEST);
  store<u32>(at, 0, LEFT);
  store<u32>(at, 0, RIGHT);
  blockCount += 1;
  return node;
}

function dropNode(node: u32): void {
  store<u32>(nodeAt(node), spareHead, RIGHT);
  spareHead = node;
  blockCount -= 1;
}

let splitLeft: u32 = 0;
let splitRight: u32 = 0;

/** Cuts a tree before `start`; the halves come out in `splitLeft` and `splitRight`. */
function split(node: u32, start: u32): void {
  if (node === 0) {
    splitLeft = 0;
    splitRight = 0;
    return;
  }
  if (blockStart(node) < start) {
    split(rightOf(node), start);
    store<u32>(nodeAt(node), splitLeft, RIGHT);
    splitLeft = node;
  } else {
    split(leftOf(node), start);
    store<u32>(nodeAt(node), splitRight, LEFT);
    splitRight = node;
  }
  updateLargest(node);
}

/** Joins two trees of which all of `left` lies before all of `right`. */
function join(left: u32, right: u32): u32 {
  if (left === 0) return right;
  if (right === 0) return left;
  if (priorityOf(left) > priorityOf(right)) {
    store<u32>(nodeAt(left), join(rightOf(left), right), RIGHT);
    updateLargest(left);
    return left;
  }
  store<u32>(nodeAt(right), join(left, leftOf(right)), LEFT);
  updateLargest(right);
  return right;
}

function insertNode(tree: u32, node: u32): u32 {
  if (tree === 0) return node;
  if (priorityOf(node) > priorityOf(tree)) {
    split(tree, blockStart(node));
    store<u32>(nodeAt(node), splitLeft, LEFT);
    store<u32>(nodeAt(node), splitRight, RIGHT);
    updateLargest(node);
    return node;
  }
  if (blockStart(node) < blockStart(tree)) {
    store<u32>(nodeAt(tree), insertNode(leftOf(tree), node), LEFT);
  } else {
    store<u32>(nodeAt(tree), insertNode(rightOf(tree), node), RIGHT);
  }
  updateLargest(tree);
  return tree;
}

function removeNode(tree: u32, node: u32): u32 {
  if (tree === node) return join(leftOf(tree), rightOf(tree));
  if (blockStart(node) < blockStart(tree)) {
    store<u32>(nodeAt(tree), removeNode(leftOf(tree), node), LEFT);
  } else {
    store<u32>(nodeAt(tree), removeNode(rightOf(tree), node), RIGHT);
  }
  updateLargest(tree);
  return tree;
}

/** Mends `largest` from `node` up to `tree` after its block changed. */
function updatePath(tree: u32, node: u32): void {
  if (tree !== node) {
    updatePath(blockStart(node) < blockStart(tree) ? leftOf(tree) : rightOf(tree), node);
  }
  updateLargest(tree);
}

/** The first block by address with at least `units`; the caller knows that there is one. */
function findFirstFit(units: u32): u32 {
  let node = root;
  while (true) {
    if (largestOf(leftOf(node)) >= units) node = leftOf(node);
    else if (blockSize(node) >= units) return node;
    else node = rightOf(node);
  }
}

/** Takes `units` from the front of a block. The order by address stays as it is. */
function takeFront(node: u32, units: u32): void {
  const at = nodeAt(node);
  const size = load<u32>(at, SIZE);
  if (size === units) {
    root = removeNode(root, node);
    dropNode(node);
  } else {
    // A later start leaves the order as it is: blocks are disjoint.
    store<u32>(at, load<u32>(at) + units);
    store<u32>(at, size - units, SIZE);
    updatePath(root, node);
  }
  freeUnits -= units;
}

/**
 * Allocates `count` times `units` at once and writes the start units to `target` (u32 each).
 * Takes as many as fit from each hole, in address order; all or nothing.
 */
export function allocateBatch(units: u32, count: u32, target: usize): i32 {
  if (<u64>units * <u64>count > <u64>freeUnits) return OUT_OF_MEMORY;
  let done: u32 = 0;
  while (done < count) {
    if (largestOf(root) < units) {
      for (let i: u32 = 0; i < done; i++) freeRange(load<u32>(target + ((<usize>i) << 2)), units);
      return OUT_OF_MEMORY;
    }
    const node = findFirstFit(units);
    const start = blockStart(node);
    const taken = min(count - done, blockSize(node) / units);
    takeFront(node, taken * units);
    for (let i: u32 = 0; i < taken; i++) {
      store<u32>(target + ((<usize>(done + i)) << 2), start + i * units);
    }
    done += taken;
  }
  return SUCCESS;
}

/** Allocates exactly this range, which must be free. */
export function claimRange(start: u32, units: u32): void {
  const block = findBefore(start + 1);
  assert(block !== 0, 'claimed before the first free block');
  const at = nodeAt(block);
  const before = start - load<u32>(at);
  const size = load<u32>(at, SIZE);
  assert(before + units <= size, 'claimed what is not free');
  if (before === 0) {
    takeFront(block, units);
    return;
  }
  const after = size - before - units;
  freeUnits -= units;
  store<u32>(at, before, SIZE);
  updatePath(root, block);
  if (after > 0) root = insertNode(root, createNode(start + units, after));
}

/** The last block that starts before `start`, or 0. */
function findBefore(start: u32): u32 {
  let node = root;
  let best: u32 = 0;
  while (node !== 0) {
    if (blockStart(node) < start) {
      best = node;
      node = rightOf(node);
    } else {
      node = leftOf(node);
    }
  }
  return best;
}

/** The first block that starts at or after `start`, or 0. */
function findFrom(start: u32): u32 {
  let node = root;
  let best: u32 = 0;
  while (node !== 0) {
    if (blockStart(node) >= start) {
      best = node;
      node = leftOf(node);
    } else {
      node = rightOf(node);
    }
  }
  return best;
}

/** True when no unit of the range is free. */
export function isAllocated(start: u32, units: u32): bool {
  if (<u64>start + <u64>units > <u64>heapUnits) return false;
  const before = findBefore(start);
  if (before !== 0 && blockStart(before) + blockSize(before) > start) return false;
  const after = findFrom(start);
  return after === 0 || blockStart(after) >= start + units;
}

/** Gives a range back and merges it with its neighbours. */
export function freeRange(start: u32, units: u32): void {
  assert(units > 0 && <u64>start + <u64>units <= <u64>heapUnits, 'freed outside of the heap');
  const before = findBefore(start);
  const after = findFrom(start);
  const beforeEnd: u32 = before === 0 ? 0 : blockStart(before) + blockSize(before);
  assert(beforeEnd <= start, 'freed twice');
  assert(after === 0 || blockStart(after) >= start + units, 'freed twice');
  const joinsBefore = before !== 0 && beforeEnd === start;
  const joinsAfter = after !== 0 && blockStart(after) === start + units;
  freeUnits += units;
  if (joinsBefore) {
    let size = blockSize(before) + units;
    if (joinsAfter) {
      size += blockSize(after);
      root = removeNode(root, after);
      dropNode(after);
    }
    store<u32>(nodeAt(before), size, SIZE);
    updatePath(root, before);
  } else if (joinsAfter) {
    const at = nodeAt(after);
    store<u32>(at, start);
    store<u32>(at, load<u32>(at, SIZE) + units, SIZE);
    updatePath(root, after);
  } else {
    root = insertNode(root, createNode(start, units));
  }
}

/** Appends free units at the end of the heap (sbrk). */
export function addressSpaceGrow(units: u32): void {
  const start = heapUnits;
  heapUnits += units;
  freeRange(start, units);
}

/** The free block with the lowest address, or 0. */
export function addressFirstBlock(): u32 {
  return findFrom(0);
}

/** The free block after `node` by address, or 0. */
export function addressNextBlock(node: u32): u32 {
  return findFrom(blockStart(node) + 1);
}
