/**
 * Who the numbers and spans are from: the OpenTelemetry resource of this server.
 *
 *   the SDK's own attributes          telemetry.sdk.*, and
 *   service.name = unknown_service    as the reference, without the name of the runtime behind it
 *   OTEL_RESOURCE_ATTRIBUTES          win over these two,
 *   OTEL_SERVICE_NAME                 wins over that,
 *   service.instance.id               and the instance id over everything
 *
 * The SDK takes 60 ms and 7 MB to load, and no request may wait so long behind a first scrape. So
 * it is loaded for spans and pushed metrics only, and for the variables, which it knows to read.
 */
import type { Resource } from '@opentelemetry/resources';

/** What the SDK says of itself; a test compares. */
const SDK_ATTRIBUTES = {
  'telemetry.sdk.language': 'nodejs',
  'telemetry.sdk.name': 'opentelemetry',
  'telemetry.sdk.version': '3.1.0',
};
const DEFAULT_NAME = { 'service.name': 'unknown_service' };

export async function createResource(instanceId: string): Promise<Resource> {
  const resources = await import('@opentelemetry/resources');
  return resources
    .defaultResource()
    .merge(resources.resourceFromAttributes(DEFAULT_NAME))
    .merge(resources.detectResources({ detectors: [resources.envDetector] }))
    .merge(resources.resourceFromAttributes({ 'service.instance.id': instanceId }));
}

/**
 * Those of `createResource`. `hasVariables`: one of the two variables is set, so this takes a while
 * the first time.
 */
export async function resourceAttributes(
  instanceId: string,
  hasVariables: boolean,
): Promise<Resource['attributes']> {
  if (hasVariables) return (await createResource(instanceId)).attributes;
  return { ...SDK_ATTRIBUTES, ...DEFAULT_NAME, 'service.instance.id': instanceId };
}
