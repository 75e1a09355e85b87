/** A text log that keeps its lines, without the time, for the test that asks. */
import type { Clock } from '../../src/clock.ts';
import { createLogger } from '../../src/observability/log.ts';
import type { LogLevels } from '../../src/observability/log-levels.ts';

export async function openLineLog(levels: LogLevels, clock: Clock) {
  const lines: string[] = [];
  const log = await createLogger({
    format: 'text',
    level: levels,
    clock,
    hasColours: false,
    write: (line) => void lines.push(line.replace(/^\[.*?\] KVD /, '').trimEnd()),
  });
  return { lines, log };
}
