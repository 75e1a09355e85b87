/** Arguments of the small client commands: a usage error is one line on stderr and exit code 2. */
import { Command, CommanderError, Option } from 'commander';

export const EXIT_CODE_USAGE = 2;

/** Ends a command with a message on stderr and an exit code. */
export class CommandError extends Error {
  override readonly name = 'CommandError';
  readonly exitCode: number;

  constructor(message: string, exitCode = 1) {
    super(message);
    this.exitCode = exitCode;
  }
}

/** A command with the report options that all client commands have. */
export function clientCommand(name: string, description: string): Command {
  const format = new Option('--format <format>', 'how to print the result').choices([
    'terminal',
    'json',
  ]);
  return new Command(`kvd ${name}`)
    .description(description)
    .addOption(format.default('terminal'))
    .option('--output <path>', 'write the result to a file')
    .option('-q, --quiet', 'print no result')
    .showSuggestionAfterError(false)
    .exitOverride()
    .configureOutput({ outputError: (text, write) => write(`kvd ${name}: ${text}`) });
}

/** null = help was asked for and printed. */
export function parseArguments<T extends object>(
  command: Command,
  argv: readonly string[],
): { readonly options: T; readonly args: readonly string[] } | null {
  try {
    command.parse(argv, { from: 'user' });
  } catch (error) {
    if (!(error instanceof CommanderError)) throw error;
    if (error.exitCode === 0) return null;
    // commander has already written its one line.
    throw new CommandError('', EXIT_CODE_USAGE);
  }
  return { options: command.opts<T>(), args: command.args };
}

export function parseSeconds(text: string): number {
  const seconds = Number(text);
  if (Number.isFinite(seconds) && seconds > 0) return seconds;
  throw new CommandError(`--timeout: expected seconds above 0, got '${text}'`, EXIT_CODE_USAGE);
}
