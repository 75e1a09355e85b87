/**
 * The peer's routes for devices of a running server (spec http 7.9). There they add, resize and
 * remove Device-DAX memory. kvd has none, so bodies are checked as there and the answer is that no
 * such adapter exists; `routes/adapters.ts` is how adapters of kvd change.
 */
import type { Context } from 'hono';
import { HTTPException } from 'hono/http-exception';
import { jsonResponse } from '../json.ts';
import type { Room } from '../room.ts';
import { FieldReader, requireBodyFields } from '../validation.ts';

/** The only backend that the peer can change; its operations and their fields. */
const DEVICE_BACKEND = 'dax';
const OPERATIONS: Readonly<Record<string, Operation>> = {
  add: { hasSize: true, modes: [] },
  remove: { hasSize: false, modes: ['migrate', 'evict', 'drain'] },
  resize: { hasSize: true, modes: ['migrate', 'evict'] },
};

interface Operation {
  readonly hasSize: boolean;
  readonly modes: readonly string[];
}

type Body = Readonly<Record<string, unknown>>;
type Place = readonly (string | number)[];

const SIZE_CHARS_MAX = 64;
const SIZE = /^\s*(\d+(\.\d+)?)\s*(b|k|kb|kib|m|mb|mib|g|gb|gib|t|tb|tib)?\s*$/i;
const SIZE_EXPECTED = "size must be a positive integer byte count or a string like '100GiB'";

function refuse(status: 400 | 404 | 409, message: string): never {
  throw new HTTPException(status, { message });
}

function readBackend(c: Context): string {
  const backend = (c.req.param('backend') ?? '').trim().toLowerCase();
  if (backend === '') refuse(400, 'backend must be non-empty');
  return backend;
}

/** `fractionType`: what the release that has the route calls a number with a fraction. */
function checkSizeType(
  fields: FieldReader,
  place: Place,
  raw: unknown,
  fractionType = 'int_type',
): void {
  if (raw === undefined) {
    fields.report({ type: 'missing', loc: place, msg: 'Field required', input: null });
    return;
  }
  if (typeof raw === 'string' || Number.isSafeInteger(raw)) return;
  fields.report({
    type: typeof raw === 'number' ? fractionType : 'int_type',
    loc: [...place, 'int'],
    msg: 'Input should be a valid integer',
    input: raw,
  });
  fields.report({
    type: 'string_type',
    loc: [...place, 'str'],
    msg: 'Input should be a valid string',
    input: raw,
  });
}

function checkSize(raw: unknown): void {
  const isText = typeof raw === 'string' && raw.length <= SIZE_CHARS_MAX && SIZE.test(raw);
  const size = isText ? Number.parseFloat(raw) : raw;
  if (!(typeof size === 'number' && size > 0)) refuse(400, SIZE_EXPECTED);
}

function checkOperation(body: Body, { hasSize, modes }: Operation, fractionType: string): void {
  const fields = new FieldReader();
  fields.bodyText(['device_path'], body['device_path'], null);
  if (hasSize) checkSizeType(fields, ['size'], body['size'], fractionType);
  const mode = body['mode'];
  if (modes.length > 0 && mode !== undefined && !modes.includes(mode as string)) {
    const expected = modes.map((name) => `'${name}'`).join(', ');
    const msg = `Input should be ${expected}`;
    fields.report({ type: 'literal_error', loc: ['mode'], msg, input: mode, ctx: { expected } });
  }
  if (modes.length > 0) fields.boolean(['force'], body['force'], false);
  const known = ['adapter_index', 'device_path'];
  if (hasSize) known.push('size');
  if (modes.length > 0) known.push('mode', 'force');
  for (const name of Object.keys(body)) {
    if (known.includes(name)) continue;
    const msg = 'Extra inputs are not permitted';
    fields.report({ type: 'extra_forbidden', loc: [name], msg, input: body[name] });
  }
  fields.finish();
  if (hasSize) checkSize(body['size']);
}

async function answerOperation(c: Context, fractionType: string): Promise<Response> {
  const backend = readBackend(c);
  const name = (c.req.param('operation') ?? '').trim().toLowerCase();
  const body = await requireBodyFields(c.req.raw, 'dict_type');
  const fields = new FieldReader();
  fields.bodyInteger(['adapter_index'], body['adapter_index'], 0n);
  fields.finish();
  if (backend === DEVICE_BACKEND) {
    const operation = Object.hasOwn(OPERATIONS, name) ? OPERATIONS[name] : undefined;
    if (!operation) refuse(400, `unsupported ${backend} reconfigure operation: ${name}`);
    checkOperation(body, operation, fractionType);
  }
  return refuse(404, `${backend} adapter not found`);
}

function answerStatus(c: Context): Response {
  const backend = readBackend(c);
  return jsonResponse({ enabled: false, backend, num_adapters: 0, adapters: [] });
}

/** 0.5.6: L1 itself may be such a device. */
async function answerL1(c: Context): Promise<Response> {
  if (c.req.method !== 'GET') {
    const body = await requireBodyFields(c.req.raw);
    const fields = new FieldReader();
    const isAddition = c.req.param('operation') === 'add';
    fields.bodyText(['body', 'device_path'], body['device_path'], null);
    if (isAddition) checkSizeType(fields, ['body', 'size'], body['size']);
    else fields.choice(['body', 'mode'], body['mode'], ['drain'], 'drain');
    fields.finish();
    if (isAddition) checkSize(body['size']);
  }
  return refuse(409, 'L1 is not Device-DAX backed (--l1-devdax-path not set)');
}

export function addReconfigureRoutes({ app, guard }: Room): void {
  app.get('/reconfigure/backends', guard('internal'), () =>
    jsonResponse({ enabled: false, num_backends: 0, backends: [] }),
  );
  app.get('/reconfigure/dax/l1/status', guard('internal'), answerL1);
  app.post('/reconfigure/dax/l1/:operation{add|remove}', guard('mutating'), answerL1);
  const releases = [
    { path: '/reconfigure/:backend', fractionType: 'int_from_float' },
    { path: '/reconfigure/:backend/l2', fractionType: 'int_type' },
  ];
  for (const { path, fractionType } of releases) {
    app.get(`${path}/status`, guard('internal'), answerStatus);
    app.post(`${path}/:operation`, guard('mutating'), (c) => answerOperation(c, fractionType));
  }
}
