/** S3 and servers that speak its protocol, with the keys of the peer's `s3` and some more. */
import { KvdError } from '../../errors.ts';
import { GIB } from '../../units.ts';
import type { L2BackendType } from '../backend.ts';
import {
  CONNECTION_TIMEOUT_KEY,
  type ConfigKeys,
  type ConfigValues,
  OWN_CAPACITY_KEY,
} from '../config-keys.ts';
import { S3Connection, type S3Settings } from '../s3/connection.ts';
import { S3Backend } from '../s3/s3-backend.ts';

const KEYS = {
  s3_endpoint: { kind: 'text', about: '"<bucket>.<host>[:port]", with or without "s3://" before' },
  s3_region: { kind: 'text', about: 'region that requests are signed for' },
  s3_path_style: {
    kind: 'boolean',
    fallback: false,
    about: 'the bucket is part of the path, not of the host name',
  },
  s3_connect_address: {
    kind: 'text',
    fallback: '',
    about: '"host:port" to connect to, when the host of the endpoint does not lead there',
  },
  s3_num_io_threads: {
    kind: 'integer',
    fallback: 64,
    min: 1,
    max: 4096,
    about: 'connections and requests at a time',
  },
  s3_prefer_http2: { kind: 'boolean', fallback: true, about: 'accepted; requests are HTTP/1.1' },
  s3_enable_s3express: {
    kind: 'boolean',
    fallback: false,
    about: 'the bucket is a directory bucket of S3 Express One Zone',
  },
  disable_tls: { kind: 'boolean', fallback: false, about: 'plain HTTP' },
  aws_access_key_id: {
    kind: 'text',
    fallback: '',
    isSecret: true,
    about: 'with the secret key: fixed credentials; empty = the default chain of AWS',
  },
  aws_secret_access_key: { kind: 'text', fallback: '', isSecret: true, about: 'see above' },
  aws_session_token: {
    kind: 'text',
    fallback: '',
    isSecret: true,
    about: 'third part of temporary credentials',
  },
  metadata_checksum: {
    kind: 'boolean',
    fallback: false,
    about: 'store a CRC-32 in the metadata of each object and check it on load',
  },
  request_timeout: {
    kind: 'number',
    fallback: 5,
    min: 0.001,
    max: 3600,
    about: 'seconds of silence after which a request is given up',
  },
  connection_timeout: CONNECTION_TIMEOUT_KEY,
  max_attempts: {
    kind: 'integer',
    fallback: 3,
    min: 1,
    max: 10,
    about: 'tries of a request that failed by chance, with growing random pauses',
  },
  max_capacity_gb: OWN_CAPACITY_KEY,
} as const satisfies ConfigKeys;

export const backendType: L2BackendType = {
  typeName: 's3',
  about: 'a bucket of S3 or of a server that speaks its protocol',
  keys: KEYS,
  async open(values, { clock }) {
    const settings = readSettings(values);
    const library = await import('@aws-sdk/client-s3');
    return new S3Backend({
      connection: new S3Connection(library, settings),
      requestCountMax: settings.connectionCountMax,
      hasChecksum: values['metadata_checksum'] as boolean,
      clock,
      about: {
        type: 'S3L2Adapter',
        endpoint: settings.endpoint.authority,
        region: settings.region,
        path_style: settings.isPathStyle,
      },
    });
  },
  capacityBytes: (values) => Math.floor((values['max_capacity_gb'] as number) * GIB),
};

function readSettings(values: ConfigValues): S3Settings {
  return {
    endpoint: readEndpoint(values['s3_endpoint'] as string),
    region: values['s3_region'] as string,
    isPathStyle: values['s3_path_style'] as boolean,
    isExpress: values['s3_enable_s3express'] as boolean,
    isTls: values['disable_tls'] === false,
    connectAddress: readAddress(values['s3_connect_address'] as string),
    credentials: readCredentials(values),
    connectionCountMax: values['s3_num_io_threads'] as number,
    requestTimeoutMs: 1000 * (values['request_timeout'] as number),
    connectTimeoutMs: 1000 * (values['connection_timeout'] as number),
    attemptCountMax: values['max_attempts'] as number,
  };
}

function readEndpoint(text: string): S3Settings['endpoint'] {
  const form = /^(?:s3:\/\/)?(([^./:@\s]+)\.([^/:@\s]+(?::\d+)?))\/?$/;
  const [, authority, bucket, hostAndPort] = form.exec(text) ?? [];
  if (!authority || !bucket || !hostAndPort) {
    throw new KvdError(
      'ERR_CONFIG',
      `"s3_endpoint" must be "<bucket>.<host>[:port]", got "${text}"`,
    );
  }
  return { authority, bucket, hostAndPort };
}

function readAddress(text: string): S3Settings['connectAddress'] {
  if (text === '') return null;
  const [, host, port] = /^\[?([^[\]\s]+?)\]?:(\d+)$/.exec(text) ?? [];
  if (!host || !port) {
    throw new KvdError('ERR_CONFIG', `"s3_connect_address" must be "host:port", got "${text}"`);
  }
  return { host, port: Number(port) };
}

function readCredentials(values: ConfigValues): S3Settings['credentials'] {
  const accessKeyId = values['aws_access_key_id'] as string;
  const secretAccessKey = values['aws_secret_access_key'] as string;
  const sessionToken = values['aws_session_token'] as string;
  if (accessKeyId === '' && secretAccessKey === '') return null;
  if (accessKeyId === '' || secretAccessKey === '') {
    throw new KvdError(
      'ERR_CONFIG',
      'only one of "aws_access_key_id" and "aws_secret_access_key" is given: set both or none',
    );
  }
  return { accessKeyId, secretAccessKey, ...(sessionToken === '' ? {} : { sessionToken }) };
}
