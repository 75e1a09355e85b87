/*
 * The inner loops: one block between a page of an engine and its place in an object.
 *
 * A pattern is outer_count × inner_count runs of run_bytes, with a stride per loop on each side.
 * It covers every layout: a token-major block is one run; a head-major one is transposed, with
 * runs of one head of one token (64 to 512 bytes).
 *
 *      head-major block          object, token-major
 *      h0 t0 t1 t2 …             t0: h0 h1 h2 …          inner loop: along the target, so that it
 *      h1 t0 t1 t2 …    ───▶     t1: h0 h1 h2 …          is written from front to back
 *
 * Cost: bytes × 2 (read, write) ÷ memory bandwidth. One indirect call per block is lost in that
 * from 4 KiB blocks on, but a call of memcpy per short run is not: hence the fixed sizes.
 */
#define _GNU_SOURCE
#include "kv_shim.h"

#include <string.h>
#if defined(__x86_64__)
#include <emmintrin.h>
#endif

#define LINE_BYTES 64
#define STREAM_COUNT 4
#define STREAM_STEP_BYTES 256

/*
 * Streaming stores. An object is written once and read much later, by somebody else, so fetching
 * its old lines into the cache and pushing other data out only costs bandwidth: measured 12 GB/s
 * against 6 for the same gather of 256 MiB with ordinary stores, and no less for 1 MiB
 * (bench/micro/copy.ts). Whole lines only: a line written in parts is worse than an ordinary one.
 * Ordered by one fence per piece.
 */
#if defined(__x86_64__)
static inline void copy_line(char *target, const char *source) {
  for (int at = 0; at < LINE_BYTES; at += 16)
    _mm_stream_si128((__m128i *)(target + at), _mm_loadu_si128((const __m128i *)(source + at)));
}
void kv_pattern_flush(void) { _mm_sfence(); }
#else
static inline void copy_line(char *target, const char *source) {
  memcpy(target, source, LINE_BYTES);
}
void kv_pattern_flush(void) {}
#endif

static bool is_line_aligned(uint64_t value) { return value % LINE_BYTES == 0; }

/* Runs of a whole number of lines, known to the compiler so that it unrolls them. */
#define FIXED_RUN_COPY(lines)                                                         \
  static void copy_runs_##lines(char *target, const char *source,                     \
                                const struct kv_pattern *pattern) {                   \
    for (uint64_t outer = 0; outer < pattern->outer_count; outer += 1) {              \
      char *to = target;                                                              \
      const char *from = source;                                                      \
      for (uint64_t inner = 0; inner < pattern->inner_count; inner += 1) {            \
        _Pragma("GCC unroll 8") for (int at = 0; at < (lines) * LINE_BYTES;           \
                                     at += LINE_BYTES) copy_line(to + at, from + at); \
        to += pattern->target_inner;                                                  \
        from += pattern->source_inner;                                                \
      }                                                                               \
      target += pattern->target_outer;                                                \
      source += pattern->source_outer;                                                \
    }                                                                                 \
  }

FIXED_RUN_COPY(1)
FIXED_RUN_COPY(2)
FIXED_RUN_COPY(3)
FIXED_RUN_COPY(4)
FIXED_RUN_COPY(8)

/*
 * A long run as four streams side by side: the processor fetches ahead in each, but only within a
 * page, so four pages at a time keep more of the memory busy than one after the other.
 */
static void copy_long(char *target, const char *source, uint64_t size_bytes) {
  uint64_t part = size_bytes / STREAM_COUNT & ~(uint64_t)(STREAM_STEP_BYTES - 1);
  if (!is_line_aligned((uintptr_t)target) || part == 0) {
    memcpy(target, source, size_bytes);
    return;
  }
  for (uint64_t at = 0; at < part; at += STREAM_STEP_BYTES)
    for (uint64_t stream = 0; stream < STREAM_COUNT * part; stream += part)
      for (uint64_t step = at; step < at + STREAM_STEP_BYTES; step += LINE_BYTES)
        copy_line(target + stream + step, source + stream + step);
  uint64_t done = STREAM_COUNT * part;
  memcpy(target + done, source + done, size_bytes - done);
}

static void copy_runs_long(char *target, const char *source, const struct kv_pattern *pattern) {
  for (uint64_t outer = 0; outer < pattern->outer_count; outer += 1)
    for (uint64_t inner = 0; inner < pattern->inner_count; inner += 1)
      copy_long(target + outer * pattern->target_outer + inner * pattern->target_inner,
                source + outer * pattern->source_outer + inner * pattern->source_inner,
                pattern->run_bytes);
}

static void copy_runs_any(char *target, const char *source, const struct kv_pattern *pattern) {
  for (uint64_t outer = 0; outer < pattern->outer_count; outer += 1) {
    char *to = target;
    const char *from = source;
    for (uint64_t inner = 0; inner < pattern->inner_count; inner += 1) {
      memcpy(to, from, pattern->run_bytes);
      to += pattern->target_inner;
      from += pattern->source_inner;
    }
    target += pattern->target_outer;
    source += pattern->source_outer;
  }
}

static void swap(uint64_t *a, uint64_t *b) {
  uint64_t kept = *a;
  *a = *b;
  *b = kept;
}

static bool is_inner_joined(const struct kv_pattern *p) {
  return p->inner_count == 1 ||
         (p->target_inner == p->run_bytes && p->source_inner == p->run_bytes);
}

/*
 * Brings a pattern to its simplest form: runs that lie side by side in both memories are joined, a
 * single row is the inner loop, and the inner loop is the one that steps through the target in
 * order. Then picks the kernel.
 */
void kv_pattern_finish(struct kv_pattern *p) {
  for (int i = 0; i < 2; i += 1) {
    if (is_inner_joined(p)) {
      p->run_bytes *= p->inner_count;
      p->inner_count = 1;
    }
    bool is_outer_next = p->outer_count > 1 && p->target_outer < p->target_inner;
    if (p->inner_count == 1 || is_outer_next) {
      swap(&p->inner_count, &p->outer_count);
      swap(&p->target_inner, &p->target_outer);
      swap(&p->source_inner, &p->source_outer);
    }
  }
  p->is_streamable = is_line_aligned(p->run_bytes) &&
                     (p->inner_count == 1 || is_line_aligned(p->target_inner)) &&
                     (p->outer_count == 1 || is_line_aligned(p->target_outer));
  p->copy = p->run_bytes >= STREAM_COUNT * STREAM_STEP_BYTES ? copy_runs_long : copy_runs_any;
  if (!p->is_streamable) return;
  if (p->run_bytes == 1 * LINE_BYTES) p->copy = copy_runs_1;
  if (p->run_bytes == 2 * LINE_BYTES) p->copy = copy_runs_2;
  if (p->run_bytes == 3 * LINE_BYTES) p->copy = copy_runs_3;
  if (p->run_bytes == 4 * LINE_BYTES) p->copy = copy_runs_4;
  if (p->run_bytes == 8 * LINE_BYTES) p->copy = copy_runs_8;
}

void kv_pattern_copy(char *target, const char *source, const struct kv_pattern *pattern) {
  if (pattern->is_streamable && !is_line_aligned((uintptr_t)target))
    copy_runs_any(target, source, pattern);
  else pattern->copy(target, source, pattern);
}
