/** A logger that keeps its lines for the test that asks. */
import type { Logger } from '../../src/observability/log.ts';

export interface RecordedLine {
  readonly level: string;
  readonly message: string;
  /** What limits the number of such lines; absent where nothing does. */
  readonly key?: string;
}

export class RecordingLogger implements Logger {
  readonly lines: RecordedLine[] = [];

  debug(message: string): void {
    this.lines.push({ level: 'debug', message });
  }

  info(message: string): void {
    this.lines.push({ level: 'info', message });
  }

  warn(message: string): void {
    this.lines.push({ level: 'warn', message });
  }

  error(message: string): void {
    this.lines.push({ level: 'error', message });
  }

  limited(level: 'info' | 'warn' | 'error', key: string, message: string): void {
    this.lines.push({ level, message, key });
  }

  child(): Logger {
    return this;
  }

  has(pattern: RegExp): boolean {
    return this.lines.some((line) => pattern.test(line.message));
  }
}
