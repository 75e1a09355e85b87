/**
 * Requests to one bucket: the only place that knows `@aws-sdk/client-s3`, which signs them, finds
 * credentials, and repeats what failed by chance (full jitter, 429, 5xx and broken connections).
 *
 *   https://<bucket>.<host>[:port]/<name>     virtual-hosted, as the peer does it
 *   https://<host>[:port]/<bucket>/<name>     path style, for servers without such names
 *
 * Payloads are not signed (as with the peer): a hash over every value would cost more than the
 * transfer, and `crc32` in the metadata finds what TLS does not protect.
 *
 * Buffers are parts of L1. A PUT writes out of one, so its socket must not write on when the call
 * has settled: the SDK destroys the request of an aborted or timed-out one, and
 * `endUnfinishedUpload` that of one which was answered before its body was sent.
 */
import http from 'node:http';
import https from 'node:https';
import type net from 'node:net';
import type { Duplex } from 'node:stream';
import type { ListObjectsV2CommandOutput, S3Client, S3ClientConfig } from '@aws-sdk/client-s3';
import { KvdError } from '../../errors.ts';

export type S3Library = typeof import('@aws-sdk/client-s3');

export interface S3Settings {
  readonly endpoint: S3Endpoint;
  readonly region: string;
  readonly isPathStyle: boolean;
  readonly isExpress: boolean;
  readonly isTls: boolean;
  /** Where to connect instead of the host of the endpoint; its name is still used and signed. */
  readonly connectAddress: { readonly host: string; readonly port: number } | null;
  /** Null = what the environment offers: variables, profile, web identity, container, IMDS. */
  readonly credentials: S3Credentials | null;
  readonly connectionCountMax: number;
  readonly requestTimeoutMs: number;
  readonly connectTimeoutMs: number;
  readonly attemptCountMax: number;
}

export interface S3Endpoint {
  /** `<bucket>.<host>[:port]` */
  readonly authority: string;
  readonly bucket: string;
  /** `<host>[:port]` */
  readonly hostAndPort: string;
}

export interface S3Credentials {
  readonly accessKeyId: string;
  readonly secretAccessKey: string;
  readonly sessionToken?: string;
}

export interface S3Part {
  readonly body: AsyncIterable<Uint8Array> & { destroy(): unknown };
  /** Of the whole object. */
  readonly objectSizeBytes: number;
  readonly sizeBytes: number;
  readonly metadata: Readonly<Record<string, string>>;
}

export interface PutOptions {
  readonly bytes: Uint8Array;
  readonly metadata: Readonly<Record<string, string>>;
  readonly signal: AbortSignal;
}

export class S3Connection {
  readonly #library: S3Library;
  readonly #client: S3Client;
  readonly #bucket: string;

  constructor(library: S3Library, settings: S3Settings) {
    this.#library = library;
    this.#client = new library.S3Client(clientConfig(settings));
    const { middlewareStack } = this.#client;
    middlewareStack.add(
      (next) => (args) => {
        const { headers } = args.request as { headers: Record<string, string> };
        headers['x-amz-content-sha256'] = 'UNSIGNED-PAYLOAD';
        return next(args);
      },
      { step: 'build' },
    );
    // Behind the one that repeats requests, so once for each attempt.
    middlewareStack.add(
      (next) => async (args) => {
        try {
          const result = await next(args);
          endUnfinishedUpload(result.response);
          return result;
        } catch (error) {
          endUnfinishedUpload((error as { $response?: unknown }).$response);
          throw error;
        }
      },
      { step: 'finalizeRequest', priority: 'low' },
    );
    const protocol = settings.isTls ? 'https' : 'http';
    const isNamed = settings.isPathStyle || settings.isExpress;
    const { authority, bucket } = settings.endpoint;
    this.#bucket = isNamed ? bucket : `${protocol}://${authority}`;
  }

  async put(name: string, { bytes, metadata, signal }: PutOptions): Promise<void> {
    const command = new this.#library.PutObjectCommand({
      Bucket: this.#bucket,
      Key: name,
      Body: Buffer.from(bytes.buffer, bytes.byteOffset, bytes.byteLength),
      ContentLength: bytes.length,
      ContentType: 'application/octet-stream',
      Metadata: { ...metadata },
    });
    await this.#client.send(command, { abortSignal: signal });
  }

  /** Bytes of the object; null = absent. */
  async head(name: string, signal: AbortSignal): Promise<number | null> {
    const command = new this.#library.HeadObjectCommand({ Bucket: this.#bucket, Key: name });
    return nullIfAbsent(async () => {
      const { ContentLength = 0 } = await this.#client.send(command, { abortSignal: signal });
      return ContentLength;
    });
  }

  /** Bytes from `firstByte` to `lastByte`, both included; null = absent. */
  async get(
    name: string,
    range: { readonly firstByte: number; readonly lastByte: number },
    signal: AbortSignal,
  ): Promise<S3Part | null> {
    const command = new this.#library.GetObjectCommand({
      Bucket: this.#bucket,
      Key: name,
      Range: `bytes=${range.firstByte}-${range.lastByte}`,
    });
    return nullIfAbsent(async () => {
      const reply = await this.#client.send(command, { abortSignal: signal });
      const { Body, ContentRange, ContentLength = 0, Metadata = {} } = reply;
      const total = /\/(\d+)$/.exec(ContentRange ?? '')?.[1];
      return {
        body: Body as unknown as S3Part['body'],
        // A server that knows no ranges answers with the whole object.
        objectSizeBytes: total === undefined ? ContentLength : Number(total),
        sizeBytes: ContentLength,
        metadata: Metadata,
      };
    });
  }

  async delete(name: string, signal: AbortSignal): Promise<void> {
    const command = new this.#library.DeleteObjectCommand({ Bucket: this.#bucket, Key: name });
    await nullIfAbsent(() => this.#client.send(command, { abortSignal: signal }));
  }

  list(
    options: { readonly prefix: string; readonly pageSize: number; readonly token: string | null },
    signal: AbortSignal,
  ): Promise<ListObjectsV2CommandOutput> {
    const command = new this.#library.ListObjectsV2Command({
      Bucket: this.#bucket,
      MaxKeys: options.pageSize,
      ...(options.prefix === '' ? {} : { Prefix: options.prefix }),
      ...(options.token === null ? {} : { ContinuationToken: options.token }),
    });
    return this.#client.send(command, { abortSignal: signal });
  }

  close(): void {
    this.#client.destroy();
  }
}

function clientConfig(settings: S3Settings): S3ClientConfig {
  const { isPathStyle, isExpress, isTls, credentials, endpoint } = settings;
  const protocol = isTls ? 'https' : 'http';
  const Agent = isTls ? TlsAgent : PlainAgent;
  const agent = new Agent(
    { keepAlive: true, maxSockets: settings.connectionCountMax },
    settings.connectAddress,
  );
  return {
    region: settings.region,
    // S3 Express finds the zone's endpoint by the name of the bucket.
    ...(isExpress ? {} : { endpoint: `${protocol}://${endpoint.hostAndPort}` }),
    bucketEndpoint: !isPathStyle && !isExpress,
    forcePathStyle: isPathStyle,
    ...(credentials === null ? {} : { credentials }),
    maxAttempts: settings.attemptCountMax,
    retryMode: 'standard',
    requestChecksumCalculation: 'WHEN_REQUIRED',
    responseChecksumValidation: 'WHEN_REQUIRED',
    expectContinueHeader: false,
    followRegionRedirects: false,
    requestHandler: {
      ...(isTls ? { httpsAgent: agent as https.Agent } : { httpAgent: agent as http.Agent }),
      connectionTimeout: settings.connectTimeoutMs,
      // Of silence, not of the whole: a large value on a slow line is no fault.
      socketTimeout: settings.requestTimeoutMs,
    },
  };
}

type ConnectAddress = S3Settings['connectAddress'];
type Connected = (error: Error | null, stream: Duplex) => void;

class PlainAgent extends http.Agent {
  readonly #address: ConnectAddress;

  constructor(options: http.AgentOptions, address: ConnectAddress) {
    super(options);
    this.#address = address;
  }

  override createConnection(options: net.NetConnectOpts, connected?: Connected) {
    return super.createConnection({ ...options, ...this.#address }, connected);
  }
}

class TlsAgent extends https.Agent {
  readonly #address: ConnectAddress;

  constructor(options: https.AgentOptions, address: ConnectAddress) {
    super(options);
    this.#address = address;
  }

  /** The name in the certificate stays that of the endpoint: the agent has set `servername`. */
  override createConnection(options: https.RequestOptions, connected?: Connected) {
    return super.createConnection({ ...options, ...this.#address }, connected);
  }
}

function endUnfinishedUpload(response: unknown): void {
  const { req } = (response as { body?: { req?: http.ClientRequest } } | undefined)?.body ?? {};
  if (req && !req.writableFinished) req.destroy();
}

/** 404: no such object. 416: it ends before the range that was asked for. */
async function nullIfAbsent<T>(request: () => Promise<T>): Promise<T | null> {
  try {
    return await request();
  } catch (error) {
    const status = statusOf(error);
    if (status === 404 || status === 416) return null;
    // A HEAD has no body that could say why.
    if (status !== 403) throw error;
    const hint = 'wrong credentials, or no s3:ListBucket, without which nothing is ever absent';
    throw new KvdError('ERR_L2_STORE', `403 ${(error as Error).message}: ${hint}`, {
      cause: error,
    });
  }
}

export function statusOf(error: unknown): number | undefined {
  return (error as { $metadata?: { httpStatusCode?: number } }).$metadata?.httpStatusCode;
}
