/**
 * The composition root: builds the house from the ground up and owns its shutdown.
 *
 *   HTTP ("starting") and ZMQ addresses ─ L1 memory ─ core ─ device ─ storage ─ engine ─ ready
 *
 * Only this file and its parts (house/) construct; every part receives what it needs. What was
 * built is closed in the reverse order, also when a later part fails to start, so nothing is left
 * in /dev/shm.
 */
import { systemClock } from './clock.ts';
import type { ServerConfig } from './config/config.ts';
import { COMMIT, VERSION } from './config/version.ts';
import { Shim } from './device/shim.ts';
import { buildBackend } from './house/backend-part.ts';
import { Closers } from './house/closers.ts';
import { buildEngine } from './house/engine-part.ts';
import type { Ground } from './house/ground.ts';
import { observeHouse } from './house/house-metrics.ts';
import { attachSummary, openObservability, openStorageTrace } from './house/observability-part.ts';
import { openRehearsalHouse } from './house/rehearsal-house.ts';
import { checkMemoryLimit, openMemory } from './house/storage-part.ts';
import { HttpServer } from './http/http-server.ts';
import { EventBus } from './observability/event-bus.ts';
import type { Logger } from './observability/log.ts';
import type { LogLevels } from './observability/log-levels.ts';
import { Doors } from './wire/doors.ts';
import { isGrpcEndpoint } from './wire/endpoints.ts';
import { LoopWatch } from './wire/loop-watch.ts';
import { Rehearsal } from './wire/rehearsal.ts';

export interface RunningServer {
  /** Endpoints with their real ports. */
  readonly endpoints: readonly string[];
  readonly httpUrl: string;
  /** Answers what is in flight, then leaves nothing behind. */
  close(): Promise<void>;
}

export interface ServerOptions {
  readonly config: ServerConfig;
  readonly log: Logger;
  /** What `log` goes by; `/loglevel` changes it. */
  readonly levels: LogLevels;
  /** Lines of the log that nobody has got, for `/status`. */
  readonly lostLineCount: () => number;
  /** Runs once, when what the start has used is not needed any more. */
  readonly collectGarbage: () => void;
}

/** Throws `ERR_CONFIG`, `ERR_ADDRESS` or `ERR_NATIVE`, and then leaves nothing behind. */
export async function startServer(options: ServerOptions): Promise<RunningServer> {
  const { config, log } = options;
  const clock = systemClock;
  const queueSize = config.eventQueueSize;
  const bus = new EventBus({ clock, queueSize, log: log.child('observability') });
  const closers = new Closers(log);
  try {
    return await build({ config, log, clock, bus }, options, closers);
  } catch (error) {
    // What failed meanwhile is in the log; the reason of the failed start is what counts.
    await closers.closeAll().catch(() => {});
    throw error;
  }
}

async function build(
  ground: Ground,
  { levels, lostLineCount, collectGarbage }: ServerOptions,
  closers: Closers,
): Promise<RunningServer> {
  const { config, log, clock, bus } = ground;
  checkMemoryLimit(config, log);
  const http = await HttpServer.bind({
    host: config.httpHost,
    port: config.httpPort,
    prometheus: config.prometheus,
    token: config.httpToken,
    version: { version: VERSION, commit: COMMIT },
    logLevels: levels,
    log: log.child('http'),
    clock,
  });
  closers.add(() => http.close(config.shutdownTimeoutMs));
  const observability = await openObservability(ground, levels, closers);
  const doors = await Doors.open({
    endpoints: config.endpoints,
    clock,
    log: log.child('wire'),
    bus,
    dialect: config.wireDialect,
  });
  closers.add(() => doors.close({ deadlineMs: 0 }));
  const shim = Shim.load();
  const memory = await openMemory(ground, shim);
  closers.add(() => memory.close());
  const trace = await openStorageTrace(ground, closers);
  const recorded = { ...ground, ...(trace && { trace }) };
  const engine = await buildEngine(recorded, { router: doors, shim, memory }, closers);
  const watch = new LoopWatch(doors, clock);
  closers.add(() => watch.close());
  attachSummary(ground, engine.storage.l1);
  const { registry, prometheus } = observability;
  if (registry) observeHouse(registry, engine, () => doors.dialectCounts());
  const texts = { metricsText: () => prometheus.text(), lostLineCount };
  const backend = buildBackend(ground, engine, texts, {
    statistics: () => doors.statistics(),
    problem: () => watch.problem,
    selfPing: (timeoutMs) => doors.selfPing(timeoutMs),
  });
  closers.add(async () => {
    backend.isDraining = true;
    await Promise.all([
      engine.dispatcher.drain(config.shutdownTimeoutMs),
      doors.close({ deadlineMs: config.shutdownTimeoutMs }),
    ]);
  });
  doors.run({ sink: engine.dispatcher, hasher: engine.core.hasher });
  http.serve(backend);
  for (const endpoint of doors.endpoints) {
    const transport = isGrpcEndpoint(endpoint) ? 'gRPC' : 'ZMQ';
    log.info(`LMCache ${transport} cache server is running on ${endpoint}`);
  }
  log.info('LMCache cache server is running...');
  rehearse(ground, shim, collectGarbage, closers);
  return {
    endpoints: doors.endpoints,
    httpUrl: http.url,
    close: () => closers.closeAll(),
  };
}

/** In the background: the server answers already. */
function rehearse(ground: Ground, shim: Shim, collectGarbage: () => void, closers: Closers): void {
  const rehearsal = new Rehearsal({
    openHouse: () => openRehearsalHouse(ground, shim),
    dialect: ground.config.wireDialect,
    onEnd: collectGarbage,
    clock: ground.clock,
    log: ground.log.child('wire'),
  });
  closers.add(() => rehearsal.stop());
}
