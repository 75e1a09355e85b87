/** `kvd ping`: does a server answer on its message port? Exit code 1 if not. */
import { systemClock } from '../clock.ts';
import { CommandError, clientCommand, parseArguments, parseSeconds } from './arguments.ts';
import { type ReportOptions, writeReport } from './report.ts';

const REPORT_WIDTH = 30;

interface PingOptions extends ReportOptions {
  readonly url: string;
  readonly timeout: string;
}

async function ping(url: string, timeoutMs: number): Promise<number> {
  const { KvdClient } = await import('../client/client.ts');
  const client = await KvdClient.connect(url);
  try {
    const startMs = systemClock.preciseMs();
    await client.call('PING', { instanceId: null }, timeoutMs);
    return systemClock.preciseMs() - startMs;
  } finally {
    await client.close();
  }
}

export async function run(argv: readonly string[]): Promise<number> {
  const command = clientCommand('ping', 'Send one PING to a server over ZMQ.')
    .argument('[target]', 'kvcache; for compatibility with `lmcache ping kvcache`', 'kvcache')
    .option('--url <url>', 'message port of the server', 'tcp://localhost:5555')
    .option('--timeout <seconds>', 'how long to wait for the answer', '10');
  const parsed = parseArguments<PingOptions>(command, argv);
  if (!parsed) return 0;
  const { options } = parsed;
  const url = options.url.includes('://') ? options.url : `tcp://${options.url}`;
  if (url.startsWith('http')) {
    throw new CommandError(`--url: ${url} is an HTTP address; ping speaks ZMQ (tcp://, ipc://)`, 2);
  }
  let roundTripMs: number | null = null;
  let failure = '';
  try {
    roundTripMs = await ping(url, parseSeconds(options.timeout) * 1000);
  } catch (error) {
    if (error instanceof CommandError) throw error;
    failure = (error as Error).message;
  }
  const rows = [
    { key: 'status', label: 'Status', value: roundTripMs === null ? 'FAIL' : 'OK' },
    { key: 'round_trip_time_ms', label: 'Round trip time (ms)', value: roundTripMs },
  ];
  writeReport({ title: 'Ping KV Cache', width: REPORT_WIDTH, rows, sections: [] }, options);
  if (roundTripMs === null) throw new CommandError(`Cannot connect to ${url}: ${failure}`);
  return 0;
}
