/** Time between two events. The wall clock may be set back; a histogram's sum must not shrink. */
export function elapsedSeconds(fromSeconds: number, toSeconds: number): number {
  return Math.max(0, toSeconds - fromSeconds);
}
