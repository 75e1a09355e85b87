/**
 * OpenTelemetry's times: whole seconds and nanoseconds since 1970. A single number of nanoseconds
 * would be beyond what a JavaScript number holds exactly.
 */
import type { HrTime } from '@opentelemetry/api';

const NANOS_PER_SECOND = 1e9;

export function hrTimeOf(seconds: number): HrTime {
  const whole = Math.floor(seconds);
  const nanos = Math.round((seconds - whole) * NANOS_PER_SECOND);
  return nanos < NANOS_PER_SECOND ? [whole, nanos] : [whole + 1, 0];
}
