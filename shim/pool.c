/*
 * The job queue: worker threads that copy, and the way back to the event loop.
 *
 * Lanes. Each instance has a lane, a FIFO of which only the head runs. Lanes with something to
 * hand out stand in a ring; a worker takes the lane in front, cuts one piece off its job and moves
 * the lane to the back. So a small job never waits behind a large one of another instance for
 * longer than one piece per worker, and idle workers help with whatever job is left.
 *
 *     ring:  lane A ──▶ lane C ──▶ lane B          states of a lane's head job
 *              │                                      NEW ── segments checked ──▶ OPEN
 *            job ── piece ── piece ── piece           OPEN ── all handed out ───▶ CLOSED
 *              │                                      CLOSED ── last piece back ─▶ completion
 *            job (waits for the head)
 *
 * Completions. A finished job turns into an entry of a ring that has room for every job that may
 * be in the queue, so it is never lost and a worker never waits for JavaScript. The pipe only
 * wakes the event loop: one byte when the ring stops being empty, none until it was emptied.
 *
 * Failure. A piece that faults, or a segment that shrank, gives the job its code; pieces already
 * handed out end first, so nobody touches memory of a job whose completion was delivered. The
 * check after the copy is needed because the tail of a file's last page reads as zeros instead of
 * raising a signal.
 *
 * Bounds: jobs and bytes of descriptors in the queue; both are refused beyond, never waited for.
 */
#define _GNU_SOURCE
#include "kv_shim.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

/* About 25 us of one worker: small beside a wake-up, large beside taking the mutex. */
#define PIECE_BYTES ((uint64_t)256 << 10)
#define WORKER_COUNT_MAX 64

enum job_state { JOB_NEW, JOB_OPEN, JOB_CLOSED };

struct job {
  struct job *next;
  double id;
  uint64_t size_bytes; /* of this descriptor */
  enum job_state state;
  int32_t code;
  uint32_t running_count; /* pieces in the hands of workers */
  struct kv_cursor cursor;
  struct kv_work work;
};

struct kv_lane {
  struct kv_pool *pool;
  struct job *head, *tail;
  struct kv_lane *ring_next;
  bool is_in_ring;
};

struct completion {
  double id;
  int32_t code;
};

struct kv_pool {
  pthread_mutex_t mutex;
  pthread_cond_t work_ready;
  struct kv_lane *ring_head, *ring_tail;
  uint32_t idle_count;
  bool is_stopping;
  uint32_t job_count, job_count_max; /* queued, running or completed and not collected */
  uint64_t descriptor_bytes, descriptor_bytes_max;
  struct completion *completions; /* ring of job_count_max entries */
  uint32_t completion_first, completion_count;
  bool is_signalled;
  int wake_read_fd, wake_write_fd;
  int32_t nice;
  uint32_t worker_count;
  pthread_t workers[WORKER_COUNT_MAX];
};

/* ---- the ring of lanes (mutex held) ------------------------------------------------------- */

static void ring_append(struct kv_pool *pool, struct kv_lane *lane) {
  if (lane->is_in_ring) return;
  lane->is_in_ring = true;
  lane->ring_next = NULL;
  if (pool->ring_tail) pool->ring_tail->ring_next = lane;
  else pool->ring_head = lane;
  pool->ring_tail = lane;
  if (pool->idle_count > 0) pthread_cond_signal(&pool->work_ready);
}

static void ring_remove(struct kv_pool *pool, struct kv_lane *lane) {
  if (!lane->is_in_ring) return;
  struct kv_lane **link = &pool->ring_head, *before = NULL;
  while (*link != lane) {
    before = *link;
    link = &before->ring_next;
  }
  *link = lane->ring_next;
  if (pool->ring_tail == lane) pool->ring_tail = before;
  lane->is_in_ring = false;
}

static struct kv_lane *ring_take(struct kv_pool *pool) {
  struct kv_lane *lane = pool->ring_head;
  pool->ring_head = lane->ring_next;
  if (!pool->ring_head) pool->ring_tail = NULL;
  lane->is_in_ring = false;
  return lane;
}

/* ---- workers ------------------------------------------------------------------------------ */

/* Turns the lane's head into a completion. True when the event loop must be woken. Mutex held. */
static bool complete_head(struct kv_pool *pool, struct kv_lane *lane) {
  struct job *job = lane->head;
  lane->head = job->next;
  if (!lane->head) lane->tail = NULL;
  uint32_t at = (pool->completion_first + pool->completion_count) % pool->job_count_max;
  pool->completions[at] = (struct completion){job->id, job->code};
  pool->completion_count += 1;
  pool->descriptor_bytes -= job->size_bytes;
  free(job);
  if (lane->head) ring_append(pool, lane);
  bool must_wake = !pool->is_signalled;
  pool->is_signalled = true;
  return must_wake;
}

/* Nothing more of the lane's job is handed out, so the lane leaves the ring. Mutex held. */
static void close_job(struct kv_pool *pool, struct kv_lane *lane, int32_t code) {
  struct job *job = lane->head;
  if (job->code == 0) job->code = code;
  job->state = JOB_CLOSED;
  ring_remove(pool, lane);
}

/*
 * Takes the next piece of the lane's job and copies it. Called and left with the mutex held. The
 * lane was taken out of the ring and goes back as soon as there is more to hand out.
 */
static void run_piece(struct kv_pool *pool, struct kv_lane *lane) {
  struct job *job = lane->head;
  job->running_count += 1;
  if (job->state == JOB_NEW) {
    pthread_mutex_unlock(&pool->mutex);
    int32_t code = kv_plan_check_segments(job->work.plan);
    pthread_mutex_lock(&pool->mutex);
    job->state = JOB_OPEN;
    if (code != 0) close_job(pool, lane, code);
  }
  if (job->state == JOB_OPEN && !kv_work_settle(&job->work, &job->cursor)) close_job(pool, lane, 0);
  if (job->state == JOB_OPEN) {
    struct kv_cursor from = job->cursor;
    kv_work_advance(&job->work, &job->cursor, PIECE_BYTES);
    struct kv_cursor to = job->cursor;
    if (kv_work_settle(&job->work, &job->cursor)) ring_append(pool, lane);
    else close_job(pool, lane, 0);
    pthread_mutex_unlock(&pool->mutex);
    int32_t code = kv_work_copy(&job->work, from, to);
    pthread_mutex_lock(&pool->mutex);
    if (code != 0) close_job(pool, lane, code);
  }
  job->running_count -= 1;
}

/* The job has ended for every worker: look at the segments once more and deliver. Mutex held. */
static void finish_job(struct kv_pool *pool, struct kv_lane *lane) {
  struct job *job = lane->head;
  if (job->code == 0) {
    pthread_mutex_unlock(&pool->mutex);
    int32_t code = kv_plan_check_segments(job->work.plan);
    pthread_mutex_lock(&pool->mutex);
    job->code = code;
  }
  if (!complete_head(pool, lane)) return;
  pthread_mutex_unlock(&pool->mutex);
  /* The pipe holds at most a few bytes, so this neither blocks nor fails for want of room. */
  while (write(pool->wake_write_fd, "", 1) < 0 && errno == EINTR) continue;
  pthread_mutex_lock(&pool->mutex);
}

static void *work(void *context) {
  struct kv_pool *pool = context;
  if (pool->nice != 0) setpriority(PRIO_PROCESS, (id_t)syscall(SYS_gettid), pool->nice);
  pthread_mutex_lock(&pool->mutex);
  for (;;) {
    if (!pool->ring_head) {
      if (pool->is_stopping) break;
      pool->idle_count += 1;
      pthread_cond_wait(&pool->work_ready, &pool->mutex);
      pool->idle_count -= 1;
      continue;
    }
    struct kv_lane *lane = ring_take(pool);
    struct job *job = lane->head;
    run_piece(pool, lane);
    if (job->state == JOB_CLOSED && job->running_count == 0) finish_job(pool, lane);
  }
  pthread_mutex_unlock(&pool->mutex);
  return NULL;
}

/* ---- the caller's side -------------------------------------------------------------------- */

static void pool_free(struct kv_pool *pool) {
  if (pool->wake_write_fd >= 0) close(pool->wake_write_fd);
  pthread_cond_destroy(&pool->work_ready);
  pthread_mutex_destroy(&pool->mutex);
  free(pool->completions);
  free(pool);
}

static void stop_workers(struct kv_pool *pool) {
  pthread_mutex_lock(&pool->mutex);
  pool->is_stopping = true;
  pthread_cond_broadcast(&pool->work_ready);
  pthread_mutex_unlock(&pool->mutex);
  for (uint32_t i = 0; i < pool->worker_count; i += 1) pthread_join(pool->workers[i], NULL);
}

static int start_workers(struct kv_pool *pool, uint32_t worker_count) {
  sigset_t previous;
  kv_signals_block(&previous);
  int error = 0;
  while (error == 0 && pool->worker_count < worker_count) {
    error = pthread_create(&pool->workers[pool->worker_count], NULL, work, pool);
    if (error == 0) pool->worker_count += 1;
  }
  pthread_sigmask(SIG_SETMASK, &previous, NULL);
  return error;
}

int64_t kv_pool_open(uint32_t worker_count, int32_t nice, uint32_t job_count_max,
                     uint64_t descriptor_bytes_max) {
  if (worker_count == 0 || worker_count > WORKER_COUNT_MAX || job_count_max == 0)
    return KV_ERR_ARGUMENT;
  struct kv_pool *pool = calloc(1, sizeof *pool);
  if (!pool) return -ENOMEM;
  kv_guard_install();
  pthread_mutex_init(&pool->mutex, NULL);
  pthread_cond_init(&pool->work_ready, NULL);
  pool->nice = nice;
  pool->job_count_max = job_count_max;
  pool->descriptor_bytes_max = descriptor_bytes_max;
  pool->completions = calloc(job_count_max, sizeof *pool->completions);
  int fds[2] = {-1, -1};
  int error = pool->completions ? 0 : ENOMEM;
  if (error == 0 && pipe2(fds, O_CLOEXEC | O_NONBLOCK) != 0) error = errno;
  pool->wake_read_fd = fds[0];
  pool->wake_write_fd = fds[1];
  if (error == 0) error = start_workers(pool, worker_count);
  if (error == 0) return (int64_t)(intptr_t)pool;
  stop_workers(pool);
  if (fds[0] >= 0) close(fds[0]);
  pool_free(pool);
  return -error;
}

int32_t kv_pool_wake_fd(const struct kv_pool *pool) { return pool->wake_read_fd; }

int32_t kv_pool_collect(struct kv_pool *pool, double *ids, int32_t *codes, uint32_t max) {
  pthread_mutex_lock(&pool->mutex);
  uint32_t count = pool->completion_count < max ? pool->completion_count : max;
  for (uint32_t i = 0; i < count; i += 1) {
    const struct completion *completion = &pool->completions[pool->completion_first];
    ids[i] = completion->id;
    codes[i] = completion->code;
    pool->completion_first = (pool->completion_first + 1) % pool->job_count_max;
  }
  pool->completion_count -= count;
  pool->job_count -= count;
  if (pool->completion_count == 0) pool->is_signalled = false;
  pthread_mutex_unlock(&pool->mutex);
  return (int32_t)count;
}

int32_t kv_pool_close(struct kv_pool *pool) {
  pthread_mutex_lock(&pool->mutex);
  bool is_busy = pool->job_count > pool->completion_count;
  pthread_mutex_unlock(&pool->mutex);
  if (is_busy) return KV_ERR_BUSY;
  stop_workers(pool);
  pool_free(pool);
  return 0;
}

int64_t kv_lane_open(struct kv_pool *pool) {
  struct kv_lane *lane = calloc(1, sizeof *lane);
  if (!lane) return -ENOMEM;
  lane->pool = pool;
  return (int64_t)(intptr_t)lane;
}

int32_t kv_lane_close(struct kv_lane *lane) {
  pthread_mutex_lock(&lane->pool->mutex);
  bool is_busy = lane->head != NULL || lane->is_in_ring;
  pthread_mutex_unlock(&lane->pool->mutex);
  if (is_busy) return KV_ERR_BUSY;
  free(lane);
  return 0;
}

/* One allocation: the job, then offsets, ids and skips. */
static struct job *job_create(const struct kv_plan *plan, int32_t direction, uint32_t object_count,
                              const double *offsets, const uint32_t *ids, uint64_t id_count,
                              const uint32_t *skips) {
  uint64_t skip_count = skips ? (uint64_t)object_count * kv_plan_group_count(plan) : 0;
  uint64_t size_bytes =
      sizeof(struct job) + object_count * sizeof(int64_t) + (id_count + skip_count) * sizeof *ids;
  struct job *job = malloc(size_bytes);
  if (!job) return NULL;
  memset(job, 0, sizeof *job);
  job->size_bytes = size_bytes;
  int64_t *offset_copy = (int64_t *)(job + 1);
  uint32_t *id_copy = (uint32_t *)(offset_copy + object_count);
  uint32_t *skip_copy = id_copy + id_count;
  /* Whatever is no whole number of bytes becomes an offset that the check refuses. */
  for (uint32_t i = 0; i < object_count; i += 1) {
    bool is_offset = offsets[i] < 9007199254740992.0 && offsets[i] == (double)(int64_t)offsets[i];
    offset_copy[i] = offsets[i] < 0 ? -1 : is_offset ? (int64_t)offsets[i] : INT64_MAX;
  }
  memcpy(id_copy, ids, id_count * sizeof *ids);
  if (skips) memcpy(skip_copy, skips, skip_count * sizeof *skips);
  job->work = (struct kv_work){plan,        direction, object_count,
                               offset_copy, id_copy,   skips ? skip_copy : NULL};
  return job;
}

int32_t kv_job_submit(struct kv_lane *lane, const struct kv_plan *plan, int32_t direction,
                      double id, uint32_t object_count, const double *offsets,
                      const uint32_t *ids, uint64_t id_count, const uint32_t *skips) {
  struct kv_pool *pool = lane->pool;
  if (direction != KV_GATHER && direction != KV_SCATTER) return KV_ERR_ARGUMENT;
  if (id_count != (unsigned __int128)kv_plan_ids_per_object(plan) * object_count)
    return KV_ERR_ARGUMENT;
  if ((id_count + object_count) * sizeof(int64_t) > pool->descriptor_bytes_max)
    return KV_ERR_QUEUE_FULL;
  struct job *job = job_create(plan, direction, object_count, offsets, ids, id_count, skips);
  if (!job) return -ENOMEM;
  job->id = id;
  int32_t code = kv_work_check(&job->work);
  pthread_mutex_lock(&pool->mutex);
  if (code == 0 && (pool->job_count >= pool->job_count_max ||
                    pool->descriptor_bytes + job->size_bytes > pool->descriptor_bytes_max))
    code = KV_ERR_QUEUE_FULL;
  if (code == 0) {
    pool->job_count += 1;
    pool->descriptor_bytes += job->size_bytes;
    if (lane->tail) lane->tail->next = job;
    else lane->head = job;
    lane->tail = job;
    if (lane->head == job) ring_append(pool, lane);
  }
  pthread_mutex_unlock(&pool->mutex);
  if (code != 0) free(job);
  return code;
}
