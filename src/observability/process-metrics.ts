/**
 * The families of the process that every answer of `/metrics` begins with: those of the reference's
 * answer from the kernel, and two of our own that Node has and dashboards for Node know.
 *
 * Everything is read when somebody asks; in between nothing runs.
 */
import { readdirSync, readFileSync } from 'node:fs';
import { setImmediate as nextTurn } from 'node:timers/promises';
import type { Clock } from '../clock.ts';
import type { InstrumentKind } from './metrics/instrument.ts';
import type { Family } from './metrics/registry.ts';

/** Linux counts time since boot in ticks of 10 ms (USER_HZ is 100 on every supported machine). */
const TICKS_PER_SECOND = 100;

const readProcess = (name: string): string => readFileSync(`/proc/self/${name}`, 'utf8');

function family(name: string, kind: InstrumentKind, help: string, value: number): Family {
  const spec = { name, scope: '', kind, unit: '', labels: [], help };
  return { spec, points: [{ labelValues: [], value }] };
}

const gauge = (name: string, help: string, value: number): Family =>
  family(name, 'gauge', help, value);

function memoryBytes(status: string, field: string): number {
  return Number(new RegExp(`^${field}:\\s+(\\d+) kB$`, 'm').exec(status)?.[1] ?? 0) * 1024;
}

function startSeconds(): number {
  const stat = readProcess('stat');
  // The second field is the name of the program, which may hold anything.
  const startTicks = Number(stat.slice(stat.lastIndexOf(')') + 2).split(' ')[19]);
  const boot = /^btime (\d+)$/m.exec(readFileSync('/proc/stat', 'utf8'));
  return Number(boot?.[1] ?? 0) + startTicks / TICKS_PER_SECOND;
}

function maxDescriptorCount(): number {
  const limit = /^Max open files\s+(\S+)/m.exec(readProcess('limits'))?.[1];
  return limit === 'unlimited' ? Number.POSITIVE_INFINITY : Number(limit);
}

/** Less the descriptor that reads the folder. */
const openDescriptorCount = (): number => readdirSync('/proc/self/fd').length - 1;

/** What a callback waits for its turn now. */
async function loopLagSeconds(clock: Clock): Promise<number> {
  const startMs = clock.preciseMs();
  await nextTurn();
  return (clock.preciseMs() - startMs) / 1000;
}

export async function processFamilies(clock: Clock): Promise<Family[]> {
  const lagSeconds = await loopLagSeconds(clock);
  const status = readProcess('status');
  const { user, system } = process.cpuUsage();
  const { heapUsed } = process.memoryUsage();
  return [
    gauge(
      'process_virtual_memory_bytes',
      'Virtual memory size in bytes.',
      memoryBytes(status, 'VmSize'),
    ),
    gauge(
      'process_resident_memory_bytes',
      'Resident memory size in bytes, shared memory included.',
      memoryBytes(status, 'VmRSS'),
    ),
    gauge(
      'process_start_time_seconds',
      'When the process was started, in seconds since 1970.',
      startSeconds(),
    ),
    family(
      'process_cpu_seconds',
      'counter',
      'Processor time of the process, user and system, in seconds.',
      (user + system) / 1e6,
    ),
    gauge('process_open_fds', 'Open file descriptors.', openDescriptorCount()),
    gauge('process_max_fds', 'File descriptors that may be open.', maxDescriptorCount()),
    gauge(
      'nodejs_eventloop_lag_seconds',
      'How long a callback of the event loop waited for its turn at this scrape.',
      lagSeconds,
    ),
    gauge('nodejs_heap_size_used_bytes', 'JavaScript heap in use.', heapUsed),
  ];
}
