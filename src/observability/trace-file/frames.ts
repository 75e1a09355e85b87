/**
 * The three kinds of frames of a trace (`.lct`, spec observability 9.1), each one map:
 *
 *   header    type, magic, format_version, level, trace_schema_version, t_mono_start,
 *             t_wall_start, sm_config_json, sm_config_digest
 *   record    type, t_mono, t_wall, qualname, args
 *   trailer   type, t_mono, records, dropped        ours, behind the last record
 *
 * Times are seconds, always float64. A trace without a trailer was cut off, or is the reference's;
 * the reference's reader takes a trailer for a malformed record and skips it with a warning, and
 * ours treats whatever else stands between records the same way.
 */
import { decode } from '@msgpack/msgpack';
import { faultOfFrame } from './frame-check.ts';
import { Packer } from './packer.ts';
import { packValue, readValue, type TraceValue, TraceValueError } from './values.ts';

export const FORMAT_VERSION = 1;
export const SCHEMA_VERSION = 1;
/** A lookup of a million tokens in chunks of 16, eight ranks: 60 MB. */
export const FRAME_SIZE_MAX_BYTES = 64 * 1024 * 1024;
const MAGIC = Buffer.from('LMCT', 'latin1');

export interface TraceHeader {
  readonly formatVersion: number;
  readonly level: string;
  readonly schemaVersion: number;
  readonly monoStartSeconds: number;
  readonly wallStartSeconds: number;
  /** Both '' when the configuration is not known. */
  readonly configText: string;
  readonly configDigest: string;
}

export interface TraceRecord {
  /** Since the start of the recording. */
  readonly monoSeconds: number;
  readonly wallSeconds: number;
  readonly qualname: string;
  /** As decoded by @msgpack/msgpack; `readArguments` makes values of them. */
  readonly rawArguments: Readonly<Record<string, unknown>>;
}

export type Arguments = ReadonlyMap<string, TraceValue>;

export interface TraceTrailer {
  readonly monoSeconds: number;
  readonly recordCount: number;
  /** Calls that the file lacks. */
  readonly droppedCount: number;
}

/** A file that is no trace, or none that can be read here. */
export class TraceFileError extends Error {
  override readonly name = 'TraceFileError';
}

export function encodeHeader(header: TraceHeader): Buffer {
  const packer = new Packer();
  packer.map(9);
  packer.entry('type', 'header');
  packer.entry('magic', MAGIC);
  packer.entry('format_version', header.formatVersion);
  packer.entry('level', header.level);
  packer.entry('trace_schema_version', header.schemaVersion);
  packer.floatEntry('t_mono_start', header.monoStartSeconds);
  packer.floatEntry('t_wall_start', header.wallStartSeconds);
  packer.entry('sm_config_json', header.configText);
  packer.entry('sm_config_digest', header.configDigest);
  return packer.frame();
}

export function encodeRecord(
  { monoSeconds, wallSeconds, qualname }: Omit<TraceRecord, 'rawArguments'>,
  args: Arguments,
): Buffer {
  const packer = new Packer();
  packer.map(5);
  packer.entry('type', 'record');
  packer.floatEntry('t_mono', monoSeconds);
  packer.floatEntry('t_wall', wallSeconds);
  packer.entry('qualname', qualname);
  packer.value('args');
  packValue(packer, args);
  return packer.frame();
}

export function encodeTrailer({ monoSeconds, recordCount, droppedCount }: TraceTrailer): Buffer {
  const packer = new Packer();
  packer.map(4);
  packer.entry('type', 'trailer');
  packer.floatEntry('t_mono', monoSeconds);
  packer.entry('records', recordCount);
  packer.entry('dropped', droppedCount);
  return packer.frame();
}

/** Throws `TraceFileError`. `frame`: without its length, like those of the others. */
export function decodeHeader(frame: Uint8Array): TraceHeader {
  const fields = decodeMap(frame);
  if (fields instanceof Error) throw notATrace(fields.message);
  const { type, magic, level, format_version: format, trace_schema_version: schema } = fields;
  if (type !== 'header') throw notATrace(`expected a header first, got type ${show(type)}`);
  if (!(magic instanceof Uint8Array && MAGIC.equals(magic))) {
    throw notATrace(`expected magic "LMCT", got ${show(magic)}`);
  }
  if (format !== FORMAT_VERSION) {
    throw new TraceFileError(`expected format_version ${FORMAT_VERSION}, got ${show(format)}`);
  }
  if (schema !== SCHEMA_VERSION) {
    throw new TraceFileError(
      `expected trace_schema_version ${SCHEMA_VERSION}, got ${show(schema)}`,
    );
  }
  const textOf = (value: unknown) => (typeof value === 'string' ? value : '');
  return {
    formatVersion: format,
    level: textOf(level),
    schemaVersion: schema,
    monoStartSeconds: Number(fields['t_mono_start']),
    wallStartSeconds: Number(fields['t_wall_start']),
    configText: textOf(fields['sm_config_json']),
    configDigest: textOf(fields['sm_config_digest']),
  };
}

/** A record, the trailer, or what is wrong with the frame. */
export function decodeFrame(frame: Uint8Array): TraceRecord | TraceTrailer | Error {
  const fields = decodeMap(frame);
  if (fields instanceof Error) return fields;
  const monoSeconds = fields['t_mono'];
  if (!isTime(monoSeconds))
    return new Error(`expected t_mono of at least 0, got ${show(monoSeconds)}`);
  if (fields['type'] === 'trailer') {
    const { records: recordCount, dropped: droppedCount } = fields;
    if (!isCount(recordCount) || !isCount(droppedCount)) return new Error('expected counts');
    return { monoSeconds, recordCount, droppedCount };
  }
  if (fields['type'] !== 'record') {
    return new Error(`expected type "record", got ${show(fields['type'])}`);
  }
  const { t_wall: wallSeconds, qualname, args } = fields;
  if (typeof wallSeconds !== 'number')
    return new Error(`expected t_wall, got ${show(wallSeconds)}`);
  if (typeof qualname !== 'string') return new Error(`expected qualname, got ${show(qualname)}`);
  if (!isMap(args)) return new Error(`expected args to be a map, got ${show(args)}`);
  return { monoSeconds, wallSeconds, qualname, rawArguments: args };
}

/** Throws `TraceValueError` when one of them is not what it says it is. */
export function readArguments({ rawArguments }: Pick<TraceRecord, 'rawArguments'>): Arguments {
  return new Map(
    Object.entries(rawArguments).map(([name, raw]) => {
      try {
        return [name, readValue(raw)];
      } catch (error) {
        if (!(error instanceof TraceValueError)) throw error;
        throw new TraceValueError(`${name}: ${error.message}`);
      }
    }),
  );
}

function decodeMap(frame: Uint8Array): Readonly<Record<string, unknown>> | Error {
  const fault = faultOfFrame(frame);
  if (fault !== null) return new Error(fault);
  try {
    const value = decode(frame, { useBigInt64: true });
    return isMap(value) ? value : new Error(`expected a map, got ${show(value)}`);
  } catch (error) {
    return error as Error;
  }
}

function isMap(value: unknown): value is Readonly<Record<string, unknown>> {
  return (
    typeof value === 'object' && value !== null && Object.getPrototypeOf(value) === Object.prototype
  );
}

const isTime = (value: unknown): value is number =>
  typeof value === 'number' && Number.isFinite(value) && value >= 0;

const isCount = (value: unknown): value is number =>
  typeof value === 'number' && Number.isSafeInteger(value) && value >= 0;

function notATrace(reason: string): TraceFileError {
  return new TraceFileError(`not a trace file: ${reason}`);
}

const TEXT_SHOWN_MAX = 40;

function show(value: unknown): string {
  if (value === undefined) return 'nothing';
  if (value instanceof Uint8Array)
    return `bytes ${Buffer.from(value.subarray(0, 8)).toString('hex')}`;
  if (typeof value === 'object' && value !== null) return Array.isArray(value) ? 'a list' : 'a map';
  return typeof value === 'string' ? JSON.stringify(value.slice(0, TEXT_SHOWN_MAX)) : String(value);
}
