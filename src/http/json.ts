/**
 * JSON with 63-bit integers. Instance ids are bigints here and plain integers in the reference's
 * answers; `JSON.rawJSON` writes the digits as they are.
 */
const rawJson = (JSON as typeof JSON & { rawJSON(text: string): unknown }).rawJSON;

export function toJson(value: unknown, indent = 0): string {
  return JSON.stringify(
    value,
    (_, entry: unknown) => (typeof entry === 'bigint' ? rawJson(entry.toString()) : entry),
    indent,
  );
}

export function jsonResponse(value: unknown, status = 200, indent = 0): Response {
  return new Response(toJson(value, indent), {
    status,
    headers: { 'content-type': 'application/json' },
  });
}

/** One error shape on all routes: old clients read `error`, newer ones and tools `detail`. */
export function errorResponse(
  status: number,
  text: string,
  headers: Readonly<Record<string, string>> = {},
): Response {
  return new Response(toJson({ detail: text, error: text }), {
    status,
    headers: { 'content-type': 'application/json', ...headers },
  });
}
