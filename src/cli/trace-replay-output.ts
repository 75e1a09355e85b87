/** Where a replay writes while it runs: a file of lines, and a bar on a terminal. */
import fs from 'node:fs';

/** Lines that are written together, so that a call does not wait behind each. */
const BATCH_CHARS = 64 * 1024;

export class LineFile {
  readonly #descriptor: number;
  #text = '';

  private constructor(descriptor: number) {
    this.#descriptor = descriptor;
  }

  /** Null: no file is asked for. */
  static open(path: string | null): LineFile | null {
    return path === null ? null : new LineFile(fs.openSync(path, 'w'));
  }

  write(line: string): void {
    this.#text += line;
    if (this.#text.length >= BATCH_CHARS) this.#flush();
  }

  close(): void {
    this.#flush();
    fs.closeSync(this.#descriptor);
  }

  #flush(): void {
    fs.writeFileSync(this.#descriptor, this.#text);
    this.#text = '';
  }
}

export interface Progress {
  advance(): void;
  stop(): void;
}

const NO_PROGRESS: Progress = { advance: () => {}, stop: () => {} };

/** A bar on stderr when that is a terminal, and otherwise nothing. */
export async function showProgress(recordCount: number, isQuiet: boolean): Promise<Progress> {
  if (isQuiet || process.stderr.isTTY !== true) return NO_PROGRESS;
  const { SingleBar, Presets } = (await import('cli-progress')).default;
  const bar = new SingleBar(
    {
      format: 'kvd trace replay |{bar}| {value}/{total} records, {eta_formatted} to go',
      stream: process.stderr,
      hideCursor: true,
      clearOnComplete: true,
    },
    Presets.shades_classic,
  );
  bar.start(recordCount, 0);
  return { advance: () => bar.increment(), stop: () => bar.stop() };
}
