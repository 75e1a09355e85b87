/**
 * The doors of the server as one: ZMQ, and gRPC beside it when an address asks for it.
 *
 * The ZMQ door exists always, without an address if all are of the other kind: its probe is what
 * liveness and readiness ask (`loop-probe.ts`), and messages from inside the process come through
 * it. The gRPC door and its library are loaded for those who use it only.
 */

import { isGrpcEndpoint } from './endpoints.ts';
import type { GrpcDoor } from './grpc/grpc-door.ts';
import { type DialectCounts, Router, type RouterOptions, type RouterTarget } from './router.ts';

export class Doors {
  readonly #router: Router;
  readonly #grpc: GrpcDoor | null;

  private constructor(router: Router, grpc: GrpcDoor | null) {
    this.#router = router;
    this.#grpc = grpc;
  }

  /** Binds every endpoint. Throws `ERR_ADDRESS` and leaves nothing open when one cannot be. */
  static async open(options: RouterOptions): Promise<Doors> {
    const grpcEndpoints = options.endpoints.filter(isGrpcEndpoint);
    const zmqEndpoints = options.endpoints.filter((endpoint) => !isGrpcEndpoint(endpoint));
    const router = await Router.bind({ ...options, endpoints: zmqEndpoints });
    if (grpcEndpoints.length === 0) return new Doors(router, null);
    try {
      const { GrpcDoor } = await import('./grpc/grpc-door.ts');
      return new Doors(router, await GrpcDoor.open({ ...options, endpoints: grpcEndpoints }));
    } catch (error) {
      await router.close({ deadlineMs: 0 });
      throw error;
    }
  }

  /** Endpoints with their real ports, those of ZMQ first. */
  get endpoints(): readonly string[] {
    return [...this.#router.endpoints, ...(this.#grpc?.endpoints ?? [])];
  }

  run(target: RouterTarget): void {
    this.#router.run(target);
    this.#grpc?.run(target);
  }

  /** Of the ZMQ door. gRPC has no queue of its own: what the kernel holds is read at once. */
  get isDry(): boolean {
    return this.#router.isDry;
  }

  selfPing(timeoutMs: number): Promise<number> {
    return this.#router.selfPing(timeoutMs);
  }

  /** All clients of gRPC are of the newest dialect, whether ZMQ clients may speak it or not. */
  dialectCounts(): DialectCounts {
    const counts = this.#router.dialectCounts();
    if (this.#grpc === null) return counts;
    const { name, releases, counts: own } = this.#grpc;
    const zmq = counts.dialects.find((dialect) => dialect.name === name);
    const both = {
      ...{ name, releases },
      clients: own.clients + (zmq?.clients ?? 0),
      requests: own.requests + (zmq?.requests ?? 0),
    };
    const others = counts.dialects.filter((dialect) => dialect.name !== name);
    return { ...counts, dialects: [...others, both] };
  }

  statistics(): Record<string, unknown> {
    const zmq = this.#router.statistics();
    return this.#grpc === null ? zmq : { ...zmq, grpc: this.#grpc.statistics() };
  }

  /** Never rejects. */
  async close(options: { deadlineMs?: number } = {}): Promise<void> {
    await Promise.all([this.#router.close(options), this.#grpc?.close(options)]);
  }
}
