/** Numbers of a command line; what is wrong with them is collected, so that all of it is said. */

const COUNT_MAX = 1_000_000_000;
const SECONDS_MAX = 365 * 86_400;

export class NumberReader {
  readonly problems: string[] = [];

  integer(flag: string, text: string, min: number, max: number = COUNT_MAX): number {
    const value = /^\d+$/.test(text) ? Number(text) : Number.NaN;
    if (value >= min && value <= max) return value;
    this.problems.push(`${flag}: expected a whole number from ${min} to ${max}, got '${text}'`);
    return min;
  }

  /** A part: above 0, at most 1. */
  ratio(flag: string, text: string): number {
    const value = text.trim() === '' ? Number.NaN : Number(text);
    if (value > 0 && value <= 1) return value;
    this.problems.push(`${flag}: expected a number above 0, at most 1, got '${text}'`);
    return 1;
  }

  /** A number from `min` to `max`. */
  number(flag: string, text: string, min: number, max: number): number {
    const value = text.trim() === '' ? Number.NaN : Number(text);
    if (value >= min && value <= max) return value;
    this.problems.push(`${flag}: expected a number from ${min} to ${max}, got '${text}'`);
    return min;
  }

  /** `Infinity` is for a flag that was not given. */
  milliseconds(flag: string, text: string): number {
    const seconds = Number(text);
    if (text === 'Infinity') return Number.POSITIVE_INFINITY;
    if (text.trim() !== '' && seconds >= 0 && seconds <= SECONDS_MAX) return seconds * 1000;
    this.problems.push(`${flag}: expected seconds from 0 to ${SECONDS_MAX}, got '${text}'`);
    return 0;
  }
}
