/** A logger for tests and benches that look elsewhere. */
import type { Logger } from '../../src/observability/log.ts';

const ignore = (): void => {};

export const silentLogger: Logger = {
  debug: ignore,
  info: ignore,
  warn: ignore,
  error: ignore,
  limited: ignore,
  child: () => silentLogger,
};
