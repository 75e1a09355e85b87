/*
 * Copy plans: what moves between the paged tensors of an engine and the objects of L1.
 *
 * A plan is checked once, when it is bound, against the segments that it names: after that, a block
 * id below `engine_block_count` and an object inside the arena cannot lead outside, whatever a
 * client sends. A job is checked when it is submitted; the copy itself checks nothing.
 *
 * Work is ordered by object, plane, block, and a cursor (kv_cursor) names a place in it, so any
 * two cursors cut a piece that a worker can copy alone (pool.c).
 */
#define _GNU_SOURCE
#include "kv_shim.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define GROUP_WORDS 11
#define PLANE_WORDS 4
/* Sanity bounds on what a registration can describe. */
#define GROUP_COUNT_MAX 4096
#define PLANE_COUNT_MAX 65536
#define BLOCK_BYTES_MAX (1ull << 40)

struct group {
  struct kv_pattern patterns[2]; /* by kv_direction */
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
  group->patterns[KV_GATHER] = (struct kv_pattern){
      .outer_count = v[4], .target_outer = v[6], .source_outer = v[5],
      .inner_count = v[7], .target_inner = v[9], .source_inner = v[8], .run_bytes = v[10]};
  group->patterns[KV_SCATTER] = (struct kv_pattern){
      .outer_count = v[4], .target_outer = v[5], .source_outer = v[6],
      .inner_count = v[7], .target_inner = v[8], .source_inner = v[9], .run_bytes = v[10]};
  return true;
}

/* The bytes that one block spans in the engine (scatter's target) or in the object. */
static unsigned __int128 span_target(const struct kv_pattern *p) {
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
    kv_pattern_finish(&plan->groups[g].patterns[KV_GATHER]);
    kv_pattern_finish(&plan->groups[g].patterns[KV_SCATTER]);
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
    if (segment->fd < 0) continue; /* anonymous memory has no owner who could take it away */
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
  const struct kv_pattern *pattern = &group->patterns[work->direction];
  const uint32_t *ids = ids_of(work, group, object);
  uint32_t skip = skip_of(work, group, object);
  char *object_plane = work->plan->object_base + work->offsets[object] + plane->object_offset;
  for (uint32_t k = first > skip ? first : skip; k < end; k += 1) {
    char *engine = plane->engine_base + ids[k] * plane->engine_block_stride;
    char *stored = object_plane + k * group->object_block_stride;
    if (work->direction == KV_GATHER) kv_pattern_copy(stored, engine, pattern);
    else kv_pattern_copy(engine, stored, pattern);
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
  kv_pattern_flush();
  return 0;
}

int32_t kv_work_copy(const struct kv_work *work, struct kv_cursor from, struct kv_cursor to) {
  struct piece piece = {work, from, to};
  return kv_guard_run(copy_piece, &piece);
}
