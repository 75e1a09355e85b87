/** Random numbers below a limit from a fixed seed (Lehmer's generator), so failures repeat. */
export function seededRandom(seed: number): (limit: number) => number {
  let state = seed;
  return (limit) => {
    state = (state * 48_271) % 0x7fff_ffff;
    return state % limit;
  };
}
