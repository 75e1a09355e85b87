/**
 * Who the numbers and spans are from: the OpenTelemetry resource of this server.
 *
 *   the SDK's own attributes          telemetry.sdk.*, and
 *   service.name = unknown_service    as the reference, without the name of the runtime behind it
 *   OTEL_RESOURCE_ATTRIBUTES          win over these two,
 *   OTEL_SERVICE_NAME                 wins over that,
 *   service.instance.id               and the instance id over everything
 *
 * Loaded when it is asked for: a server that nobody scrapes does not need it.
 */
import type { Resource } from '@opentelemetry/resources';

export async function createResource(instanceId: string): Promise<Resource> {
  const resources = await import('@opentelemetry/resources');
  return resources
    .defaultResource()
    .merge(resources.resourceFromAttributes({ 'service.name': 'unknown_service' }))
    .merge(resources.detectResources({ detectors: [resources.envDetector] }))
    .merge(resources.resourceFromAttributes({ 'service.instance.id': instanceId }));
}
