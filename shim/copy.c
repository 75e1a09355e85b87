/*
 * Copy plans: what moves between the paged tensors of an engine and the objects of L1.
 *
 * A plan is checked once, when it is bound, against the segments that it names: after that, a block
 * id below `engine_block_count` and an object inside the arena cannot lead outside, whatever a
 * client sends. A job is checked when it is submitted; the copy itself checks nothing.
 *
 * Work is ordered by object, plane, block, and a cursor (kv_cursor) names a place in it, so any
 * two cursors cut a piece that a worker can copy alone (pool.c).
 *
 *   bytes per piece × 2 (read, write) ÷ memory bandwidth is the whole cost: one function call and
 *   one table read per block are lost in it from 4 KiB blocks on. What is worth having is a fixed
 *   run size where runs are short (head-major caches: 64 to 512 bytes), because a call of memcpy
 *   per run costs as much as the run.
 */
#define _GNU_SOURCE
#include "kv_shim.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#if defined(__x86_64__)
#include <emmintrin.h>
#endif

#define LINE_BYTES 64
#define STREAM_COUNT 4
#define STREAM_STEP_BYTES 256
#define GROUP_WORDS 11
#define PLANE_WORDS 4
/* Sanity bounds on what a registration can describe. */
#define GROUP_COUNT_MAX 4096
#define PLANE_COUNT_MAX 65536
#define BLOCK_BYTES_MAX (1ull << 40)

/* One direction of a block: `outer` rows of `inner` runs. */
struct pattern {
  uint64_t outer_count, target_outer, source_outer;
  uint64_t inner_count, target_inner, source_inner;
  uint64_t run_bytes;
  bool is_streamable; /* if the target's first byte is aligned, so is every run's */
  void (*copy)(char *target, const char *source, const struct pattern *pattern);
};

struct group {
  struct pattern patterns[2]; /* by kv_direction */
  uint32_t index;
  uint32_t block_count;
  uint32_t engine_block_count;
  uint64_t object_block_stride;
  uint64_t block_bytes;
  uint64_t ids_before; /* block ids per object in the groups before this one */
};

struct plane {
  const struct group *group;
  const struct kv_segment *segment;
  char *engine_base;
  uint64_t engine_block_stride;
  uint64_t object_offset;
};

struct kv_plan {
  uint32_t segment_count, group_count, plane_count;
  uint64_t ids_per_object;
  uint64_t object_size_bytes;
  char *object_base;
  uint64_t object_area_bytes;
  const struct kv_segment **segments;
  struct group *groups;
  struct plane *planes;
};

/* ---- kernels --------------------------------------------------------------------------------- */

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
static inline void end_streaming(void) { _mm_sfence(); }
#else
static inline void copy_line(char *target, const char *source) {
  memcpy(target, source, LINE_BYTES);
}
static inline void end_streaming(void) {}
#endif

static bool is_line_aligned(uint64_t value) { return value % LINE_BYTES == 0; }

/* Runs of a whole number of lines, known to the compiler so that it unrolls them. */
#define FIXED_RUN_COPY(lines)                                                             \
  static void copy_runs_##lines(char *target, const char *source,                         \
                                const struct pattern *pattern) {                          \
    for (uint64_t outer = 0; outer < pattern->outer_count; outer += 1) {                  \
      char *to = target;                                                                  \
      const char *from = source;                                                          \
      for (uint64_t inner = 0; inner < pattern->inner_count; inner += 1) {                \
        _Pragma("GCC unroll 8") for (int at = 0; at < (lines) * LINE_BYTES;               \
                                     at += LINE_BYTES) copy_line(to + at, from + at);     \
        to += pattern->target_inner;                                                      \
        from += pattern->source_inner;                                                    \
      }                                                                                   \
      target += pattern->target_outer;                                                    \
      source += pattern->source_outer;                                                    \
    }                                                                                     \
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

static void copy_runs_long(char *target, const char *source, const struct pattern *pattern) {
  for (uint64_t outer = 0; outer < pattern->outer_count; outer += 1)
    for (uint64_t inner = 0; inner < pattern->inner_count; inner += 1)
      copy_long(target + outer * pattern->target_outer + inner * pattern->target_inner,
                source + outer * pattern->source_outer + inner * pattern->source_inner,
                pattern->run_bytes);
}

static void copy_runs_any(char *target, const char *source, const struct pattern *pattern) {
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

static bool is_inner_joined(const struct pattern *p) {
  return p->inner_count == 1 ||
         (p->target_inner == p->run_bytes && p->source_inner == p->run_bytes);
}

/*
 * Brings a pattern to its simplest form: runs that lie side by side in both memories are joined, a
 * single row is the inner loop, and the inner loop is the one that steps through the target in
 * order. Then picks the kernel.
 */
static void finish_pattern(struct pattern *p) {
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

static void copy_block(char *target, const char *source, const struct pattern *pattern) {
  if (pattern->is_streamable && !is_line_aligned((uintptr_t)target))
    copy_runs_any(target, source, pattern);
  else pattern->copy(target, source, pattern);
}

/* ---- binding a plan -------------------------------------------------------------------------- */

/* A whole number of 0 .. 2^53; anything else (negative, NaN, fraction) is false. */
static bool read_word(double word, uint64_t *value) {
  if (!(word >= 0 && word <= 9007199254740992.0)) return false;
  *value = (uint64_t)word;
  return (double)*value == word;
}

/* Bytes from the first to behind the last byte of `count` steps; 128 bits cannot overflow here. */
static unsigned __int128 reach(uint64_t count, uint64_t stride) {
  return count == 0 ? 0 : (unsigned __int128)(count - 1) * stride;
}

static bool read_group(struct group *group, const double *words) {
  uint64_t v[GROUP_WORDS];
  for (int i = 0; i < GROUP_WORDS; i += 1)
    if (!read_word(words[i], &v[i])) return false;
  if (v[1] > UINT32_MAX || v[2] > UINT32_MAX) return false;
  if (v[4] == 0 || v[7] == 0 || v[10] == 0) return false;
  if ((unsigned __int128)v[4] * v[7] > BLOCK_BYTES_MAX) return false;
  if ((unsigned __int128)(v[4] * v[7]) * v[10] > BLOCK_BYTES_MAX) return false;
  group->block_count = (uint32_t)v[1];
  group->engine_block_count = (uint32_t)v[2];
  group->object_block_stride = v[3];
  group->block_bytes = v[4] * v[7] * v[10];
  group->patterns[KV_GATHER] = (struct pattern){
      .outer_count = v[4], .target_outer = v[6], .source_outer = v[5],
      .inner_count = v[7], .target_inner = v[9], .source_inner = v[8], .run_bytes = v[10]};
  group->patterns[KV_SCATTER] = (struct pattern){
      .outer_count = v[4], .target_outer = v[5], .source_outer = v[6],
      .inner_count = v[7], .target_inner = v[8], .source_inner = v[9], .run_bytes = v[10]};
  return true;
}

/* The bytes that one block spans in the engine (scatter's target) or in the object. */
static unsigned __int128 span_target(const struct pattern *p) {
  return reach(p->outer_count, p->target_outer) + reach(p->inner_count, p->target_inner) +
         p->run_bytes;
}

static bool read_plane(struct kv_plan *plan, struct plane *plane, const struct group *group,
                       const double *words) {
  uint64_t offset, stride, object_offset, index;
  if (!read_word(words[1], &offset) || !read_word(words[2], &stride) ||
      !read_word(words[3], &object_offset))
    return false;
  plane->group = group;
  plane->engine_block_stride = stride;
  plane->object_offset = object_offset;
  unsigned __int128 object_end = object_offset +
                                 reach(group->block_count, group->object_block_stride) +
                                 span_target(&group->patterns[KV_GATHER]);
  if (group->block_count > 0 && object_end > plan->object_size_bytes) return false;
  /* An empty tensor has no memory: no id is valid for it. */
  if (words[0] == -1) return group->engine_block_count == 0;
  if (!read_word(words[0], &index) || index >= plan->segment_count) return false;
  plane->segment = plan->segments[index];
  plane->engine_base = plane->segment->base + offset;
  unsigned __int128 engine_end = offset + reach(group->engine_block_count, stride) +
                                 span_target(&group->patterns[KV_SCATTER]);
  return group->engine_block_count == 0 || engine_end <= plane->segment->size_bytes;
}

static bool read_plan(struct kv_plan *plan, const double *words, uint32_t word_count) {
  uint64_t at = 2;
  for (uint32_t g = 0; g < plan->group_count; g += 1) {
    struct group *group = &plan->groups[g];
    if (at + GROUP_WORDS > word_count || !read_group(group, words + at)) return false;
    group->index = g;
    group->ids_before = plan->ids_per_object;
    plan->ids_per_object += group->block_count;
    uint64_t count;
    if (!read_word(words[at], &count) || count > PLANE_COUNT_MAX - plan->plane_count) return false;
    at += GROUP_WORDS;
    for (uint64_t p = 0; p < count; p += 1, at += PLANE_WORDS) {
      if (at + PLANE_WORDS > word_count) return false;
      if (!read_plane(plan, &plan->planes[plan->plane_count], group, words + at)) return false;
      plan->plane_count += 1;
    }
  }
  for (uint32_t g = 0; g < plan->group_count; g += 1) {
    finish_pattern(&plan->groups[g].patterns[KV_GATHER]);
    finish_pattern(&plan->groups[g].patterns[KV_SCATTER]);
  }
  return at == word_count && plan->plane_count > 0;
}

int64_t kv_plan_create(const uint64_t *segments, uint32_t segment_count, const double *words,
                       uint32_t word_count, uint64_t object_base, uint64_t object_area_bytes) {
  uint64_t group_count, object_size;
  if (word_count < 2 || !read_word(words[0], &group_count) || !read_word(words[1], &object_size))
    return KV_ERR_ARGUMENT;
  if (group_count == 0 || group_count > GROUP_COUNT_MAX) return KV_ERR_ARGUMENT;
  uint64_t plane_room = word_count / PLANE_WORDS + 1;
  struct kv_plan *plan = calloc(1, sizeof *plan);
  if (!plan) return -ENOMEM;
  plan->segment_count = segment_count;
  plan->group_count = (uint32_t)group_count;
  plan->object_size_bytes = object_size;
  plan->object_base = (char *)(uintptr_t)object_base;
  plan->object_area_bytes = object_area_bytes;
  plan->segments = calloc(segment_count + 1, sizeof *plan->segments);
  plan->groups = calloc(group_count, sizeof *plan->groups);
  plan->planes = calloc(plane_room, sizeof *plan->planes);
  int64_t result = (int64_t)(intptr_t)plan;
  if (!plan->segments || !plan->groups || !plan->planes) {
    result = -ENOMEM;
  } else {
    for (uint32_t i = 0; i < segment_count; i += 1)
      plan->segments[i] = (const struct kv_segment *)(uintptr_t)segments[i];
    if (!read_plan(plan, words, word_count)) result = KV_ERR_ARGUMENT;
  }
  if (result < 0) kv_plan_destroy(plan);
  return result;
}

void kv_plan_destroy(struct kv_plan *plan) {
  free(plan->segments);
  free(plan->groups);
  free(plan->planes);
  free(plan);
}

int32_t kv_plan_check_segments(const struct kv_plan *plan) {
  for (uint32_t i = 0; i < plan->segment_count; i += 1) {
    const struct kv_segment *segment = plan->segments[i];
    struct stat status;
    if (fstat(segment->fd, &status) != 0 || (uint64_t)status.st_size < segment->size_bytes)
      return KV_ERR_SHRUNK;
  }
  return 0;
}

uint64_t kv_plan_ids_per_object(const struct kv_plan *plan) { return plan->ids_per_object; }
uint32_t kv_plan_group_count(const struct kv_plan *plan) { return plan->group_count; }

/* ---- work --------------------------------------------------------------------------------- */

static const uint32_t *ids_of(const struct kv_work *work, const struct group *group,
                              uint32_t object) {
  return work->ids + group->ids_before * work->object_count +
         (uint64_t)object * group->block_count;
}

static uint32_t skip_of(const struct kv_work *work, const struct group *group, uint32_t object) {
  if (!work->skips) return 0;
  uint32_t skip = work->skips[(uint64_t)group->index * work->object_count + object];
  return skip < group->block_count ? skip : group->block_count;
}

int32_t kv_work_check(const struct kv_work *work) {
  const struct kv_plan *plan = work->plan;
  for (uint32_t o = 0; o < work->object_count; o += 1) {
    if (work->offsets[o] < 0) continue;
    uint64_t offset = (uint64_t)work->offsets[o];
    if (plan->object_size_bytes > plan->object_area_bytes ||
        offset > plan->object_area_bytes - plan->object_size_bytes)
      return KV_ERR_OBJECT;
    for (uint32_t g = 0; g < plan->group_count; g += 1) {
      const struct group *group = &plan->groups[g];
      const uint32_t *ids = ids_of(work, group, o);
      for (uint32_t k = skip_of(work, group, o); k < group->block_count; k += 1)
        if (ids[k] >= group->engine_block_count) return KV_ERR_BLOCK_ID;
    }
  }
  return 0;
}

bool kv_work_settle(const struct kv_work *work, struct kv_cursor *cursor) {
  const struct kv_plan *plan = work->plan;
  while (cursor->object < work->object_count) {
    if (work->offsets[cursor->object] >= 0 && cursor->plane < plan->plane_count) {
      if (cursor->block < plan->planes[cursor->plane].group->block_count) return true;
      cursor->plane += 1;
    } else {
      cursor->object += 1;
      cursor->plane = 0;
    }
    cursor->block = 0;
  }
  return false;
}

void kv_work_advance(const struct kv_work *work, struct kv_cursor *cursor, uint64_t bytes) {
  uint64_t taken = 0;
  while (taken < bytes && kv_work_settle(work, cursor)) {
    const struct group *group = work->plan->planes[cursor->plane].group;
    uint64_t wanted = (bytes - taken + group->block_bytes - 1) / group->block_bytes;
    uint32_t rest = group->block_count - cursor->block;
    uint32_t count = wanted < rest ? (uint32_t)wanted : rest;
    cursor->block += count;
    taken += count * group->block_bytes;
  }
}

/* Blocks [first, end) of one plane of one object. */
static void copy_blocks(const struct kv_work *work, const struct plane *plane, uint32_t object,
                        uint32_t first, uint32_t end) {
  const struct group *group = plane->group;
  const struct pattern *pattern = &group->patterns[work->direction];
  const uint32_t *ids = ids_of(work, group, object);
  uint32_t skip = skip_of(work, group, object);
  char *object_plane = work->plan->object_base + work->offsets[object] + plane->object_offset;
  for (uint32_t k = first > skip ? first : skip; k < end; k += 1) {
    char *engine = plane->engine_base + ids[k] * plane->engine_block_stride;
    char *stored = object_plane + k * group->object_block_stride;
    if (work->direction == KV_GATHER) copy_block(stored, engine, pattern);
    else copy_block(engine, stored, pattern);
  }
}

struct piece {
  const struct kv_work *work;
  struct kv_cursor from;
  struct kv_cursor to;
};

static int32_t copy_piece(struct kv_guard *guard, void *context) {
  const struct piece *piece = context;
  const struct kv_work *work = piece->work;
  const struct kv_plan *plan = work->plan;
  struct kv_cursor at = piece->from;
  kv_guard_range(guard, 1, plan->object_base, plan->object_area_bytes);
  while (kv_work_settle(work, &at)) {
    bool is_last = at.object == piece->to.object && at.plane == piece->to.plane;
    if (is_last && at.block >= piece->to.block) break;
    const struct plane *plane = &plan->planes[at.plane];
    uint32_t end = is_last ? piece->to.block : plane->group->block_count;
    if (plane->segment)
      kv_guard_range(guard, 0, plane->segment->base, plane->segment->size_bytes);
    copy_blocks(work, plane, at.object, at.block, end);
    at.block = end;
    if (is_last) break;
  }
  end_streaming();
  return 0;
}

int32_t kv_work_copy(const struct kv_work *work, struct kv_cursor from, struct kv_cursor to) {
  struct piece piece = {work, from, to};
  return kv_guard_run(copy_piece, &piece);
}
