/** `kvd status` = `lmcache describe kvcache`: the essence of `GET /status`. 1 when unhealthy. */
import { GIB } from '../units.ts';
import { clientCommand, parseArguments, parseSeconds } from './arguments.ts';
import {
  type ReportOptions,
  type ReportRow,
  type ReportSection,
  type ReportValue,
  writeReport,
} from './report.ts';
import { type Document, fetchStatus, isDocument, section, toBaseUrl } from './status-document.ts';

const REPORT_WIDTH = 50;

interface StatusOptions extends ReportOptions {
  readonly url: string;
  readonly timeout: string;
}

function scalar(value: unknown): ReportValue {
  if (typeof value === 'string' || typeof value === 'number' || typeof value === 'boolean') {
    return value;
  }
  return value === undefined || value === null ? null : JSON.stringify(value);
}

const row = (key: string, label: string, value: unknown): ReportRow => ({
  key,
  label,
  value: scalar(value),
});

function summaryRows(status: Document, url: string): ReportRow[] {
  const l1 = section(status, 'storage_manager', 'l1_manager');
  const eviction = section(status, 'storage_manager', 'l1_eviction_controller');
  const totalBytes = Number(l1['memory_total_bytes'] ?? Number.NaN);
  const usedBytes = Number(l1['memory_used_bytes'] ?? Number.NaN);
  const isKnown = Number.isFinite(totalBytes) && Number.isFinite(usedBytes);
  const percent = totalBytes === 0 ? 0 : (100 * usedBytes) / totalBytes;
  const used = `${(usedBytes / GIB).toFixed(2)} (${percent.toFixed(1)}%)`;
  return [
    row('health', 'Health', status['is_healthy'] === true ? 'OK' : 'UNHEALTHY'),
    row('url', 'URL', url),
    row('engine_type', 'Engine type', status['engine_type']),
    row('chunk_size', 'Chunk size', status['chunk_size']),
    row('l1_capacity_gb', 'L1 capacity (GB)', isKnown ? totalBytes / GIB : null),
    row('l1_used_gb', 'L1 used (GB)', isKnown ? used : null),
    row('eviction_policy', 'Eviction policy', eviction['eviction_policy']),
    row('cached_objects', 'Cached objects', l1['total_object_count']),
    row('active_sessions', 'Active sessions', status['active_sessions']),
  ];
}

function instanceSections(status: Document): ReportSection[] {
  const models: ReportRow[][] = [];
  const groups: ReportRow[][] = [];
  for (const [id, meta] of Object.entries(section(status, 'cache_context_meta'))) {
    if (!isDocument(meta)) continue;
    const layout = section(meta, 'kv_cache_layout');
    models.push([
      row('instance_id', 'Instance', id),
      row('model_name', 'Model', meta['model_name']),
      row('world_size', 'World size', meta['world_size']),
      row('num_layers', 'Layers', layout['num_layers']),
      row('num_blocks', 'Blocks', layout['num_blocks']),
      row('cache_size_per_token', 'Bytes per token', layout['cache_size_per_token']),
    ]);
    const kernelGroups = layout['kernel_groups'];
    for (const group of Array.isArray(kernelGroups) ? kernelGroups.filter(isDocument) : []) {
      groups.push([
        row('instance_id', 'Instance', id),
        row('kernel_group_idx', 'Group', group['kernel_group_idx']),
        row('engine_kv_format', 'Format', group['engine_kv_format']),
        row('engine_kv_concrete_shape', 'Shape', group['engine_kv_concrete_shape']),
        row('dtype', 'Type', group['dtype']),
      ]);
    }
  }
  return [
    { key: 'models', title: 'Model', entries: models },
    { key: 'kernel_groups', title: 'Kernel group', entries: groups },
  ];
}

function adapterSection(status: Document): ReportSection {
  const adapters = section(status, 'storage_manager')['l2_adapters'];
  const entries = (Array.isArray(adapters) ? adapters.filter(isDocument) : []).map((adapter) =>
    Object.entries(adapter)
      .filter(([, value]) => !isDocument(value) && !Array.isArray(value))
      .map(([key, value]) => row(key, key, value)),
  );
  return { key: 'l2_adapters', title: 'L2 adapter', entries };
}

export async function run(argv: readonly string[]): Promise<number> {
  const command = clientCommand('status', 'Show what a server holds and how it is.')
    .argument('[target]', 'kvcache; for compatibility with `lmcache describe kvcache`', 'kvcache')
    .option('--url <url>', 'HTTP address of the server', 'http://localhost:8080')
    .option('--timeout <seconds>', 'how long to wait for the answer', '10');
  const parsed = parseArguments<StatusOptions>(command, argv);
  if (!parsed) return 0;
  const { options } = parsed;
  const url = toBaseUrl(options.url);
  const status = await fetchStatus(url, parseSeconds(options.timeout) * 1000);
  const sections = [...instanceSections(status), adapterSection(status)];
  const rows = summaryRows(status, url);
  writeReport({ title: 'KV Cache Status', width: REPORT_WIDTH, rows, sections }, options);
  return status['is_healthy'] === true ? 0 : 1;
}
