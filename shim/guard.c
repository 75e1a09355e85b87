/*
 * SIGBUS: a client may shorten a segment while kvd copies from it.
 *
 * Reading a mapped page that its file no longer has raises SIGBUS in the thread that reads, and
 * its default action ends the process: one client could end the server. So copies run under a
 * guard, a jump target that the handler takes when, and only when,
 *   - this thread is inside a guard,
 *   - the kernel raised the signal (not kill(2)), and
 *   - the address lies in a range that the guarded code named.
 * Anything else is somebody else's fault and goes to the handler that was there before.
 *
 * The guarded code is plain loads and stores: it holds no lock and no resource, so leaving it in
 * the middle is safe. SA_NODEFER keeps SIGBUS deliverable after the jump, which saves a system call
 * for the signal mask per piece.
 *
 *      worker ── kv_guard_run ── sigsetjmp ── copy … fault ─┐
 *                     ▲                                     │ SIGBUS handler
 *                     └──── KV_ERR_FAULT ◀── siglongjmp ────┘
 */
#define _GNU_SOURCE
#include "kv_shim.h"

#include <pthread.h>
#include <setjmp.h>
#include <stddef.h>
#include <stdlib.h>

#define RANGE_COUNT 2

struct kv_guard {
  sigjmp_buf escape;
  const char *volatile low[RANGE_COUNT];
  const char *volatile high[RANGE_COUNT];
};

/* Initial-exec: the handler must not call the loader to find its own variable. */
static _Thread_local struct kv_guard *volatile current
    __attribute__((tls_model("initial-exec")));

static struct sigaction previous_action;
static pthread_once_t install_once = PTHREAD_ONCE_INIT;

static bool is_in_range(const struct kv_guard *guard, const char *address) {
  for (int i = 0; i < RANGE_COUNT; i += 1)
    if (address >= guard->low[i] && address < guard->high[i]) return true;
  return false;
}

static void chain(int number, siginfo_t *info, void *context) {
  if (previous_action.sa_flags & SA_SIGINFO) {
    previous_action.sa_sigaction(number, info, context);
  } else if (previous_action.sa_handler != SIG_DFL && previous_action.sa_handler != SIG_IGN) {
    previous_action.sa_handler(number);
  } else if (info->si_code <= 0 && previous_action.sa_handler == SIG_IGN) {
    return;
  } else {
    /* Default action, with the right core: a fault repeats on return; kill(2) needs a raise. */
    signal(number, SIG_DFL);
    if (info->si_code <= 0) raise(number);
  }
}

static void on_bus_error(int number, siginfo_t *info, void *context) {
  struct kv_guard *guard = current;
  if (guard && info->si_code > 0 && is_in_range(guard, info->si_addr)) {
    current = NULL;
    siglongjmp(guard->escape, 1);
  }
  chain(number, info, context);
}

static void install(void) {
  struct sigaction action = {.sa_sigaction = on_bus_error,
                             .sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER};
  sigemptyset(&action.sa_mask);
  if (sigaction(SIGBUS, &action, &previous_action) != 0) abort();
}

void kv_guard_install(void) { pthread_once(&install_once, install); }

void kv_guard_range(struct kv_guard *guard, int index, const char *low, uint64_t size_bytes) {
  guard->low[index] = low;
  guard->high[index] = low + size_bytes;
}

int32_t kv_guard_run(kv_guarded_run run, void *context) {
  struct kv_guard guard;
  for (int i = 0; i < RANGE_COUNT; i += 1) kv_guard_range(&guard, i, NULL, 0);
  if (sigsetjmp(guard.escape, 0) != 0) return KV_ERR_FAULT;
  current = &guard;
  int32_t result = run(&guard, context);
  current = NULL;
  return result;
}

void kv_signals_block(sigset_t *previous) {
  sigset_t all;
  sigfillset(&all);
  /* Raised by the thread's own instructions: blocked, they would end the process unhandled. */
  sigdelset(&all, SIGBUS);
  sigdelset(&all, SIGSEGV);
  sigdelset(&all, SIGFPE);
  sigdelset(&all, SIGILL);
  pthread_sigmask(SIG_BLOCK, &all, previous);
}
