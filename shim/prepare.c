/*
 * Pages before they are needed.
 *
 * The first touch of a page costs a fault and a page of zeros, which halves the speed of a copy,
 * and a pool of 100 GB touched at start would keep the first answer waiting for minutes. So L1
 * reserves addresses at start and this thread populates pages a bounded way ahead of use: the
 * owner tells how far the memory is in use and how far it should be ready; the thread works on the
 * part between, in pieces, and leaves what is in use to the copies that touch it at this moment.
 *
 * A piece is small because populating holds the address-space lock of the process for reading, and
 * any mmap elsewhere (a registration, the JavaScript heap) waits for the piece in hand.
 *
 * If the kernel has no memory to give, the thread notes the code and stops: L1 then works as
 * before, with faults in the copy. Populating never changes bytes, so it may race with copies.
 */
#define _GNU_SOURCE
#include "kv_shim.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

/* 2 MiB: one huge page, or about 1 ms of small ones. */
#define PIECE_BYTES ((uint64_t)2 << 20)
/* Behind the event loop and the copies: late pages only cost a copy its faults. */
#define PREPARER_NICE 10

struct kv_preparer {
  char *base;
  uint64_t size_bytes;
  pthread_t thread;
  pthread_mutex_t mutex;
  pthread_cond_t changed;
  uint64_t target_bytes;
  uint64_t prepared_bytes; /* in use, or populated */
  bool is_stopping;
  int32_t code;
};

struct range {
  char *base;
  uint64_t size_bytes;
};

static int32_t touch(struct kv_guard *guard, void *context) {
  const struct range *range = context;
  kv_guard_range(guard, 0, range->base, range->size_bytes);
  uint64_t page_bytes = (uint64_t)sysconf(_SC_PAGESIZE);
  for (uint64_t at = 0; at < range->size_bytes; at += page_bytes)
    __atomic_fetch_or(range->base + at, 0, __ATOMIC_RELAXED);
  return 0;
}

static int32_t populate(char *base, uint64_t size_bytes) {
  while (madvise(base, size_bytes, MADV_POPULATE_WRITE) != 0) {
    if (errno == EINTR || errno == EAGAIN) continue;
    if (errno != EINVAL) return -errno;
    /* Linux before 5.14. */
    struct range range = {base, size_bytes};
    return kv_guard_run(touch, &range);
  }
  return 0;
}

static void *prepare(void *context) {
  struct kv_preparer *preparer = context;
  setpriority(PRIO_PROCESS, (id_t)syscall(SYS_gettid), PREPARER_NICE);
  pthread_mutex_lock(&preparer->mutex);
  while (!preparer->is_stopping) {
    uint64_t done = preparer->prepared_bytes;
    if (done >= preparer->target_bytes || preparer->code != 0) {
      pthread_cond_wait(&preparer->changed, &preparer->mutex);
      continue;
    }
    pthread_mutex_unlock(&preparer->mutex);
    uint64_t rest = preparer->size_bytes - done;
    uint64_t piece = rest < PIECE_BYTES ? rest : PIECE_BYTES;
    int32_t code = populate(preparer->base + done, piece);
    pthread_mutex_lock(&preparer->mutex);
    preparer->code = code;
    if (code == 0 && done + piece > preparer->prepared_bytes)
      preparer->prepared_bytes = done + piece;
  }
  pthread_mutex_unlock(&preparer->mutex);
  return NULL;
}

int64_t kv_preparer_open(const struct kv_segment *segment) {
  struct kv_preparer *preparer = calloc(1, sizeof *preparer);
  if (!preparer) return -ENOMEM;
  kv_guard_install();
  preparer->base = segment->base;
  preparer->size_bytes = segment->size_bytes;
  pthread_mutex_init(&preparer->mutex, NULL);
  pthread_cond_init(&preparer->changed, NULL);
  sigset_t previous;
  kv_signals_block(&previous);
  int error = pthread_create(&preparer->thread, NULL, prepare, preparer);
  pthread_sigmask(SIG_SETMASK, &previous, NULL);
  if (error == 0) return (int64_t)(intptr_t)preparer;
  free(preparer);
  return -error;
}

void kv_preparer_target(struct kv_preparer *preparer, uint64_t used_bytes, uint64_t target_bytes) {
  if (target_bytes > preparer->size_bytes) target_bytes = preparer->size_bytes;
  /* Whole pieces, so that every call of madvise starts at a (huge) page. */
  used_bytes = (used_bytes < target_bytes ? used_bytes : target_bytes) & ~(PIECE_BYTES - 1);
  pthread_mutex_lock(&preparer->mutex);
  if (used_bytes > preparer->prepared_bytes) preparer->prepared_bytes = used_bytes;
  if (target_bytes > preparer->target_bytes) {
    preparer->target_bytes = target_bytes;
    pthread_cond_signal(&preparer->changed);
  }
  pthread_mutex_unlock(&preparer->mutex);
}

int64_t kv_preparer_prepared(struct kv_preparer *preparer) {
  pthread_mutex_lock(&preparer->mutex);
  uint64_t prepared_bytes = preparer->prepared_bytes;
  pthread_mutex_unlock(&preparer->mutex);
  return (int64_t)prepared_bytes;
}

int32_t kv_preparer_code(struct kv_preparer *preparer) {
  pthread_mutex_lock(&preparer->mutex);
  int32_t code = preparer->code;
  pthread_mutex_unlock(&preparer->mutex);
  return code;
}

void kv_preparer_close(struct kv_preparer *preparer) {
  pthread_mutex_lock(&preparer->mutex);
  preparer->is_stopping = true;
  pthread_cond_signal(&preparer->changed);
  pthread_mutex_unlock(&preparer->mutex);
  pthread_join(preparer->thread, NULL);
  pthread_cond_destroy(&preparer->changed);
  pthread_mutex_destroy(&preparer->mutex);
  free(preparer);
}
