/** The golden messages of the gRPC transport, each with the msgpack frames that say the same. */
import { readFileSync } from 'node:fs';
import { METHODS, type MethodTable } from '../../src/wire/grpc/services.ts';
import { framesInFull, type VectorRequest, wireVectors056 } from './wire-vectors.ts';

interface GoldenMessage {
  readonly op: string;
  readonly case: string;
  readonly method: string;
  readonly hex: string;
}

const golden = JSON.parse(
  readFileSync(new URL('../vectors/grpc-0.5.6.json', import.meta.url), 'utf8'),
) as {
  readonly methods: readonly string[];
  readonly requests: readonly GoldenMessage[];
  readonly responses: readonly GoldenMessage[];
};

/** As in a proto file, of every service. */
export const goldenMethodNames = golden.methods;

export interface GrpcVector {
  readonly title: string;
  readonly method: MethodTable;
  readonly message: Buffer;
  /** Payload frames, or the response frame if there is one. */
  readonly frames: readonly Buffer[];
}

/** `lmcache.mp.DebugService.Noop` → `/lmcache.mp.DebugService/Noop`. */
export function pathOf(name: string): string {
  return `/${name.replace(/\.(\w+)$/, '/$1')}`;
}

export function methodNamed(path: string): MethodTable {
  return METHODS.find((method) => method.path.endsWith(path)) as MethodTable;
}

function vectorsOf(
  messages: readonly GoldenMessage[],
  entries: readonly VectorRequest[],
): readonly GrpcVector[] {
  return messages.map(({ op, case: name, method, hex }) => {
    const entry = entries.find((each) => each.op === op && each.case === name) as VectorRequest;
    return {
      title: `${op} ${name}`,
      method: methodNamed(pathOf(method)),
      message: Buffer.from(hex, 'hex'),
      frames: framesInFull(entry.frames.slice(2)),
    };
  });
}

export const requestVectors = vectorsOf(golden.requests, wireVectors056.requests);
export const responseVectors = vectorsOf(golden.responses, wireVectors056.responses);
