/**
 * `kvd <command>`. Each command is loaded when it is asked for, so that `kvd ping` and `--help`
 * do not wait for a server that they do not need.
 */
import { CommandError } from './arguments.ts';

type Command = { run(argv: readonly string[]): Promise<number> };

const COMMANDS: Readonly<Record<string, { help: string; load: () => Promise<Command> }>> = {
  server: { help: 'run the cache server', load: () => import('./server.ts') },
  ping: { help: 'send one PING to a server', load: () => import('./ping.ts') },
  status: { help: 'show what a server holds and how it is', load: () => import('./status.ts') },
  bench: { help: 'check and measure a server end to end', load: () => import('./bench.ts') },
  simulate: {
    help: 'hit rates by eviction policy and L1 size',
    load: () => import('./simulate.ts'),
  },
  trace: {
    help: 'look into recorded storage calls, replay them',
    load: () => import('./trace.ts'),
  },
  version: { help: 'print the version', load: () => import('./version.ts') },
};

function usage(): string {
  const lines = Object.entries(COMMANDS).map(([name, { help }]) => `  ${name.padEnd(10)}${help}`);
  return (
    'usage: kvd <command> [flags]\n\n' +
    `${lines.join('\n')}\n\n` +
    '`kvd <command> --help` lists the flags. A server for vLLM on this machine:\n' +
    '  kvd server --l1-size-gb 20 --eviction-policy LRU\n'
  );
}

async function main(argv: readonly string[]): Promise<number> {
  const [word = '', ...rest] = argv;
  const name = word === '--version' ? 'version' : word;
  if (name === '--help' || name === '-h' || name === 'help') {
    process.stdout.write(usage());
    return 0;
  }
  const command = Object.hasOwn(COMMANDS, name) ? COMMANDS[name] : undefined;
  if (!command) {
    const complaint = name === '' ? '' : `kvd: error: unknown command '${name}'\n\n`;
    process.stderr.write(complaint + usage());
    return name === '' ? 1 : 2;
  }
  try {
    const { run } = await command.load();
    return await run(rest);
  } catch (error) {
    if (error instanceof CommandError) {
      if (error.message !== '') process.stderr.write(`${error.message}\n`);
      return error.exitCode;
    }
    process.stderr.write(`kvd ${name}: error: ${error instanceof Error ? error.stack : error}\n`);
    return 1;
  }
}

// Not the exit code alone: an idle connection or a stuck native thread must not keep a finished
// command alive. stdout first: what a slow reader of a pipe has not taken yet would be lost.
// No top-level await: the single executable is a CommonJS bundle.
main(process.argv.slice(2)).then((exitCode) =>
  process.stdout.write('', () => process.exit(exitCode)),
);
