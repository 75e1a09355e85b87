/*
 * The C side of kvd: memory that JavaScript cannot map and copies that must not run on its thread.
 *
 * No GPU headers and nothing beyond libc. `src/device/shim.ts` is the only caller. Rules of the
 * interface:
 *   - Handles are pointers, passed as 64-bit integers. A function that returns a handle answers
 *     the pointer (> 0) or a negative code.
 *   - Codes are 0, a negative errno, or one of `enum kv_code`, which lie outside errno's range.
 *   - Lists go in as flat arrays of numbers; whatever outlives the call is copied.
 *   - Functions marked [blocks] may wait for the kernel: call them off the event loop.
 */
#ifndef KV_SHIM_H
#define KV_SHIM_H

#include <signal.h>
#include <stdbool.h>
#include <stdint.h>

#define KV_ABI_VERSION 3
#define KV_EXPORT __attribute__((visibility("default")))

enum kv_code {
  KV_ERR_ARGUMENT = -2001,   /* a number that no correct caller passes */
  KV_ERR_BLOCK_ID = -2002,   /* block id beyond the engine's cache */
  KV_ERR_OBJECT = -2003,     /* object outside its arena */
  KV_ERR_QUEUE_FULL = -2004, /* bound on jobs or on their descriptors reached */
  KV_ERR_FAULT = -2005,      /* memory vanished under the copy (SIGBUS) */
  KV_ERR_SHRUNK = -2006,     /* the segment is now smaller than its mapping */
  KV_ERR_SHORT = -2007,      /* the segment is smaller than asked for */
  KV_ERR_HELD = -2008,       /* another live process owns the segment */
  KV_ERR_BUSY = -2009,       /* jobs are still running */
};

KV_EXPORT int32_t kv_abi_version(void);

/* ---- shm.c: segments and arenas --------------------------------------------------------- */

/* A mapping. `fd` is -1 for anonymous memory. */
struct kv_segment {
  char *base;
  uint64_t size_bytes;
  uint64_t device;
  uint64_t inode;
  int fd;
};

enum kv_memory_flags {
  KV_MEMORY_TRANSPARENT_HUGE = 1, /* MADV_HUGEPAGE */
  KV_MEMORY_EXPLICIT_HUGE = 2,    /* MAP_HUGETLB, 2 MiB pages reserved by the administrator */
};

/* Maps `size_bytes` of a POSIX segment, shared. KV_ERR_SHORT when it has fewer. [blocks] */
KV_EXPORT int64_t kv_segment_open(const char *name, uint64_t size_bytes);
/*
 * Creates a POSIX segment, owned by an flock for as long as this process has it open, and maps it.
 * A segment of the same name without a living owner is replaced; KV_ERR_HELD otherwise. [blocks]
 */
KV_EXPORT int64_t kv_segment_create(const char *name, uint64_t size_bytes, uint32_t mode,
                                    uint32_t flags);
/* Reserves anonymous memory; pages come when they are touched. */
KV_EXPORT int64_t kv_memory_reserve(uint64_t size_bytes, uint32_t flags);
/* Fills out[4] = { base, size_bytes, device, inode }. */
KV_EXPORT void kv_segment_describe(const struct kv_segment *segment, uint64_t *out);
/* Unmaps, closes and frees the handle. No job may refer to it any more. [blocks] */
KV_EXPORT int32_t kv_segment_close(struct kv_segment *segment);
KV_EXPORT int32_t kv_segment_unlink(const char *name);
/* Removes the segment unless a living process owns it: 0, -ENOENT or KV_ERR_HELD. */
KV_EXPORT int32_t kv_segment_remove_stale(const char *name);
/*
 * Takes the flock of an open file: 0 or KV_ERR_HELD. It ends with the descriptor, so with the
 * process at the latest.
 */
KV_EXPORT int32_t kv_file_lock(int32_t fd);

/* ---- prepare.c: pages before they are needed ---------------------------------------------- */

struct kv_preparer;
/* Starts a thread that populates pages from the end of the used part up to a target, at first 0. */
KV_EXPORT int64_t kv_preparer_open(const struct kv_segment *segment);
/* Raises both marks; smaller ones are ignored. */
KV_EXPORT void kv_preparer_target(struct kv_preparer *preparer, uint64_t used_bytes,
                                  uint64_t target_bytes);
/* Bytes from the start on that are in use or populated. */
KV_EXPORT int64_t kv_preparer_prepared(struct kv_preparer *preparer);
/* 0, or the negative code for which it gave up. */
KV_EXPORT int32_t kv_preparer_code(struct kv_preparer *preparer);
/* Stops the thread; waits for the piece in hand. [blocks] */
KV_EXPORT void kv_preparer_close(struct kv_preparer *preparer);

/* ---- copy.c: what to copy ---------------------------------------------------------------- */

enum kv_direction { KV_GATHER = 0, KV_SCATTER = 1 };

struct kv_plan;
/*
 * A copy plan (device.ts, CopyPlan) bound to the memory of one instance. `words` is
 *   { group_count, object_size_bytes,
 *     per group: { plane_count, object_block_count, engine_block_count, object_block_stride,
 *                  outer_count, engine_outer_stride, object_outer_stride,
 *                  inner_count, engine_inner_stride, object_inner_stride, run_bytes,
 *                  per plane: { segment_index or -1, engine_offset, engine_block_stride,
 *                               object_offset } } }
 * with every offset in bytes. `segments` are handles; objects live in [object_base,
 * object_base + object_area_bytes). KV_ERR_ARGUMENT when anything leaves its memory.
 */
KV_EXPORT int64_t kv_plan_create(const uint64_t *segments, uint32_t segment_count,
                                 const double *words, uint32_t word_count, uint64_t object_base,
                                 uint64_t object_area_bytes);
KV_EXPORT void kv_plan_destroy(struct kv_plan *plan);

/* ---- pool.c: when and where to copy ------------------------------------------------------ */

struct kv_pool;
struct kv_lane;

/*
 * Starts `worker_count` threads. `nice` lowers their priority below the event loop's. At most
 * `job_count_max` jobs and `descriptor_bytes_max` bytes of ids wait or run at once.
 */
KV_EXPORT int64_t kv_pool_open(uint32_t worker_count, int32_t nice, uint32_t job_count_max,
                               uint64_t descriptor_bytes_max);
/* Read end of a pipe that becomes readable when there are completions. The caller closes it. */
KV_EXPORT int32_t kv_pool_wake_fd(const struct kv_pool *pool);
/* Takes up to `max` completions: ids (as doubles) and codes. Returns how many. */
KV_EXPORT int32_t kv_pool_collect(struct kv_pool *pool, double *ids, int32_t *codes, uint32_t max);
/* Joins the threads. KV_ERR_BUSY while jobs run. [blocks] */
KV_EXPORT int32_t kv_pool_close(struct kv_pool *pool);

/* One FIFO: its jobs run one after the other; lanes run side by side. */
KV_EXPORT int64_t kv_lane_open(struct kv_pool *pool);
KV_EXPORT int32_t kv_lane_close(struct kv_lane *lane);
/*
 * Queues one job. `offsets[object_count]` are byte offsets of the objects, or negative to leave one
 * out; `ids` holds object_count * object_block_count block ids per group, group after group;
 * `skips` is null or holds object_count counts per group. Everything is checked before it queues.
 */
KV_EXPORT int32_t kv_job_submit(struct kv_lane *lane, const struct kv_plan *plan,
                                int32_t direction, double id, uint32_t object_count,
                                const double *offsets, const uint32_t *ids, uint64_t id_count,
                                const uint32_t *skips);

/* ---- between the files of the shim ------------------------------------------------------- */

#pragma GCC visibility push(hidden)

/* kernels.c: one direction of a block. Strides in bytes. */
struct kv_pattern {
  uint64_t outer_count, target_outer, source_outer;
  uint64_t inner_count, target_inner, source_inner;
  uint64_t run_bytes;
  bool is_streamable; /* if the target's first byte is aligned, so is every run's */
  void (*copy)(char *target, const char *source, const struct kv_pattern *pattern);
};

/* Simplifies the pattern and chooses its kernel; counts and run_bytes are at least 1. */
void kv_pattern_finish(struct kv_pattern *pattern);
void kv_pattern_copy(char *target, const char *source, const struct kv_pattern *pattern);
/* Makes the copies of this thread visible to others before whatever it stores next. */
void kv_pattern_flush(void);

/* A place in a job: block `block` of plane `plane` of object `object`. */
struct kv_cursor {
  uint32_t object;
  uint32_t plane;
  uint32_t block;
};

/* What a worker needs to copy; owned by the job, read-only while it runs. */
struct kv_work {
  const struct kv_plan *plan;
  int32_t direction;
  uint32_t object_count;
  const int64_t *offsets;
  const uint32_t *ids;
  const uint32_t *skips;
};

uint64_t kv_plan_ids_per_object(const struct kv_plan *plan);
/* The number of groups of the plan, i.e. of skip counts per object. */
uint32_t kv_plan_group_count(const struct kv_plan *plan);
/* 0, KV_ERR_BLOCK_ID or KV_ERR_OBJECT. */
int32_t kv_work_check(const struct kv_work *work);
/* 0, or KV_ERR_SHRUNK when a segment of the plan no longer has the bytes of its mapping. */
int32_t kv_plan_check_segments(const struct kv_plan *plan);
/* Moves past exhausted planes and left-out objects. False at the end of the work. */
bool kv_work_settle(const struct kv_work *work, struct kv_cursor *cursor);
/* Moves `cursor` on by about `bytes`, whole blocks, at least one. */
void kv_work_advance(const struct kv_work *work, struct kv_cursor *cursor, uint64_t bytes);
/* Copies [from, to). 0, or KV_ERR_FAULT when memory vanished. */
int32_t kv_work_copy(const struct kv_work *work, struct kv_cursor from, struct kv_cursor to);

/*
 * guard.c: a piece of work during which memory may vanish. `run` names, before it touches them,
 * the two ranges in which a fault means "stop here" rather than "the process is broken".
 */
struct kv_guard;
typedef int32_t (*kv_guarded_run)(struct kv_guard *guard, void *context);
/* What `run` answers, or KV_ERR_FAULT when it touched memory of a range that is no longer there. */
int32_t kv_guard_run(kv_guarded_run run, void *context);
/* Catches SIGBUS from now on. Safe to call again. */
void kv_guard_install(void);
void kv_guard_range(struct kv_guard *guard, int index, const char *low, uint64_t size_bytes);

/* Blocks every signal that the event loop's thread should get; returns the old set. */
void kv_signals_block(sigset_t *previous);

#pragma GCC visibility pop

#endif
