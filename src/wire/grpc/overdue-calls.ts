/**
 * Keeps calls from the door that were over before their request was complete.
 *
 *   message ──► deadline: the library answers ──► end of the request ──► handler     without this
 *                                      cancel ┘   no longer told of any end
 *
 * The library tells a handler that its call is over, but not when that was before the handler ran,
 * and a message that is written then is neither sent nor given back. Such a call would never end
 * for the door: a stream of it would stay open, and its client has an answer already.
 */
import { ServerInterceptingCall, type ServerInterceptor } from '@grpc/grpc-js';

export const withoutOverdueCalls: ServerInterceptor = (_method, call) =>
  new ServerInterceptingCall(call, {
    start(next) {
      let isOver = false;
      next({
        onReceiveMetadata: (metadata, pass) => pass(metadata),
        onReceiveMessage: (message, pass) => pass(message),
        onReceiveHalfClose(pass) {
          if (!isOver) pass();
        },
        onCancel() {
          isOver = true;
        },
      });
    },
    sendMetadata: (metadata, pass) => pass(metadata),
    sendMessage: (message, pass) => pass(message),
    sendStatus: (status, pass) => pass(status),
  });
