/** What the trace commands print about files that come from anywhere. */
import { TraceFileError } from '../observability/trace-file/frames.ts';
import { CommandError } from './arguments.ts';

/** A trace that cannot be read: one line, without a stack. Other errors come back as they are. */
export function traceProblem(command: string, error: unknown): unknown {
  if (!(error instanceof TraceFileError)) return error;
  return new CommandError(`${command}: error: ${error.message}`);
}

/** A text of a trace on a terminal, which must not obey it. */
export function printable(text: string): string {
  return text.replace(/\p{Cc}/gu, '?');
}
