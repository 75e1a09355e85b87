/** `kvd trace <info|replay>`: what is in a trace of storage calls, and what it costs here. */
import { CommandError, EXIT_CODE_USAGE } from './arguments.ts';

type Command = { run(argv: readonly string[]): Promise<number> };

const COMMANDS: Readonly<Record<string, { help: string; load: () => Promise<Command> }>> = {
  info: { help: 'print a summary of a trace', load: () => import('./trace-info.ts') },
  replay: {
    help: 'make its calls again, of a fresh storage room',
    load: () => import('./trace-replay.ts'),
  },
};

function usage(): string {
  const lines = Object.entries(COMMANDS).map(([name, { help }]) => `  ${name.padEnd(10)}${help}`);
  return (
    'usage: kvd trace <command> FILE [flags]\n\n' +
    `${lines.join('\n')}\n\n` +
    '`kvd server --trace-level storage` records one.\n'
  );
}

export async function run(argv: readonly string[]): Promise<number> {
  const [name = '', ...rest] = argv;
  if (name === '--help' || name === '-h') {
    process.stdout.write(usage());
    return 0;
  }
  const command = Object.hasOwn(COMMANDS, name) ? COMMANDS[name] : undefined;
  if (!command) {
    const complaint = name === '' ? '' : `kvd trace: error: unknown command '${name}'\n\n`;
    throw new CommandError((complaint + usage()).trimEnd(), EXIT_CODE_USAGE);
  }
  return (await command.load()).run(rest);
}
