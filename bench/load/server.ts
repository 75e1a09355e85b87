/** The server under measurement: one that is started for it, or one at an address. */
import fs from 'node:fs';
import { type Flags, ServerProcess } from '../../test/support/server-process.ts';

export interface Server {
  readonly url: string;
  /** Null for a server that somebody else has started. */
  readonly httpUrl: string | null;
  /** Null likewise. */
  readonly pid: number | null;
  /** Null likewise. */
  objectCount(): Promise<number | null>;
  stop(): Promise<void>;
}

/** `url` = it runs already and should have these flags; null = start it. */
export async function openServer(flags: Flags, url: string | null): Promise<Server> {
  if (url !== null) {
    const words = Object.entries(flags).map(([flag, value]) => `${flag} ${value}`);
    console.error(`the server at ${url} should run with ${words.join(' ')}`);
    return { url, httpUrl: null, pid: null, objectCount: async () => null, stop: async () => {} };
  }
  const own = await ServerProcess.start(flags);
  const stop = async () => {
    try {
      await own.stop();
    } catch (error) {
      await own.kill();
      own.removeSegments();
      throw error;
    }
  };
  const objectCount = async () => (await own.l1())['total_object_count'] ?? null;
  return { url: own.url, httpUrl: own.httpUrl, pid: own.pid, objectCount, stop };
}

/** Resident memory that is not shared with workers: all but L1. Null if the server is not ours. */
export function privateBytes({ pid }: Server): number | null {
  if (pid === null) return null;
  const status = fs.readFileSync(`/proc/${pid}/status`, 'utf8');
  const kibibytes = (name: string) =>
    Number(new RegExp(`^${name}:\\s+(\\d+)`, 'm').exec(status)?.[1]);
  return 1024 * (kibibytes('VmRSS') - kibibytes('RssShmem'));
}

/** What the main thread of a process has had of the machine since it began. */
export interface CoreUse {
  readonly runMs: number;
  /** Runnable, but all cores were busy with others. */
  readonly waitMs: number;
}

export function coreUseOf(pid: number): CoreUse {
  const [run, wait] = fs.readFileSync(`/proc/${pid}/task/${pid}/schedstat`, 'utf8').split(' ');
  return { runMs: Number(run) / 1e6, waitMs: Number(wait) / 1e6 };
}
