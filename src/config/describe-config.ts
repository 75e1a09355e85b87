/**
 * `GET /conf` and `GET /config`: every setting by the reference's internal name, in its order, plus
 * our own table with sources under `kvd`. Field list: spec cli 3; example: vectors http/0.5.0-idle.
 * Secrets are masked. 0.5.6 added fields; the union is served on both paths.
 */
import type { ServerConfig } from './config.ts';
import { describeSettings, maskSecrets } from './help.ts';
import type { Settings } from './settings.ts';

function describeServer(config: ServerConfig, settings: Settings) {
  const maxWorkers = settings.number('--max-workers');
  return {
    transport: settings.text('--transport'),
    host: settings.text('--host'),
    port: settings.number('--port'),
    chunk_size: config.chunkSizeTokens,
    max_workers: maxWorkers,
    max_gpu_workers: settings.numberOrNull('--max-gpu-workers') ?? maxWorkers,
    max_cpu_workers: settings.numberOrNull('--max-cpu-workers') ?? maxWorkers,
    grpc_server_workers: settings.number('--grpc-server-workers'),
    hash_algorithm: config.hashAlgorithm,
    engine_type: settings.text('--engine-type'),
    separate_object_groups: config.hasSeparateObjects,
    enable_segmented_prefix: settings.isOn('--enable-segmented-prefix'),
    enable_dedup_content: settings.isOn('--enable-dedup-content'),
    enable_blend_reorder: settings.isOn('--enable-blend-reorder'),
    supported_transfer_mode: config.transferMode,
    isolated_ipc: settings.isOn('--isolated-ipc'),
    runtime_plugin_config: {
      locations: settings.texts('--runtime-plugin-locations'),
      extra_config: maskSecrets(settings.get('--runtime-plugin-config').value),
    },
    p2p_config: {
      advertise_url: settings.text('--p2p-advertise-url'),
      listen_url: settings.text('--p2p-listen-url'),
      lookup_timeout: settings.number('--p2p-lookup-timeout'),
      load_timeout: settings.number('--p2p-load-timeout'),
      transfer_engine: settings.text('--p2p-transfer-engine'),
    },
    shm_name: config.shmName,
    script_allowed_imports: settings.texts('--script-allowed-imports'),
    run_script_api_enabled: false,
    instance_id: config.instanceId,
    worker_reap_timeout_seconds: config.reapTimeoutMs / 1000,
    worker_registration_grace_seconds: config.registrationGraceMs / 1000,
    session_ttl_seconds: config.sessionTtlMs / 1000,
    enable: settings.texts('--enable'),
  };
}

/** The part that decides what the storage room does. */
export function describeStorage(config: ServerConfig) {
  const { settings } = config;
  return {
    l1_manager_config: {
      memory_config: {
        size_in_bytes: config.l1SizeBytes,
        use_lazy: config.isL1Lazy,
        init_size_in_bytes: config.l1InitSizeBytes,
        align_bytes: config.l1AlignBytes,
        shm_name: config.shmName,
        devdax_path: settings.textOrNull('--l1-devdax-path'),
        devdax_size_in_bytes: 0,
      },
      gds_l1_config: null,
      write_ttl_seconds: config.writeTtlMs / 1000,
      read_ttl_seconds: config.readTtlMs / 1000,
    },
    eviction_config: {
      eviction_policy: config.evictionPolicy,
      trigger_watermark: config.evictionTriggerWatermark,
      eviction_ratio: config.evictionRatio,
    },
    l2_adapter_config: { adapters: maskSecrets(settings.objects('--l2-adapter')) },
    store_policy: settings.text('--l2-store-policy'),
    prefetch_policy: settings.text('--l2-prefetch-policy'),
    prefetch_max_in_flight: settings.number('--l2-prefetch-max-in-flight'),
    periodic_notifier_interval_ms: settings.number('--periodic-notifier-interval-ms'),
  };
}

function describeObservability(config: ServerConfig, settings: Settings) {
  return {
    enabled: !settings.isOn('--disable-observability'),
    max_queue_size: settings.number('--event-bus-queue-size'),
    metrics_enabled: config.hasMetrics,
    logging_enabled: config.hasRequestLogs,
    tracing_enabled: settings.isOn('--enable-tracing'),
    otlp_endpoint: settings.textOrNull('--otlp-endpoint'),
    prometheus_port: settings.number('--prometheus-port'),
    metrics_sample_rate: settings.number('--metrics-sample-rate'),
    lookup_hash_log: {
      output_dir: settings.text('--lookup-hash-log-dir'),
      rotation_interval_sec: settings.number('--lookup-hash-log-rotation-interval'),
      rotation_max_size: settings.number('--lookup-hash-log-rotation-max-size'),
      max_files: settings.number('--lookup-hash-log-max-files'),
    },
    trace_level: settings.textOrNull('--trace-level'),
    trace_output: settings.textOrNull('--trace-output'),
    service_instance_id: config.instanceId,
  };
}

function describeCoordinator(settings: Settings) {
  return {
    url: settings.text('--coordinator-url'),
    advertise_ip: settings.text('--coordinator-advertise-ip'),
    heartbeat_interval: settings.number('--coordinator-heartbeat-interval'),
    l2_event_reporting: settings.isOn('--coordinator-event-reporting'),
    l2_event_flush_interval: settings.number('--coordinator-event-flush-interval'),
  };
}

export function describeConfig(config: ServerConfig): Record<string, unknown> {
  const { settings } = config;
  return {
    mp: describeServer(config, settings),
    storage_manager: describeStorage(config),
    observability: describeObservability(config, settings),
    http: { http_host: config.httpHost, http_port: config.httpPort },
    coordinator: describeCoordinator(settings),
    kvd: { endpoints: config.endpoints, settings: describeSettings(settings) },
  };
}
