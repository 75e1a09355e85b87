/*
 * The shim alone, for the sanitizers: `test/unit/device/shim-c.test.ts` compiles this file with
 * -fsanitize=address,undefined and runs it. What JavaScript sees is tested there, through koffi;
 * here are the things that a sanitizer must watch: copies at every edge, faults, threads, signals.
 */
#define _GNU_SOURCE
#include "../kv_shim.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK(condition)                                              \
  do {                                                                \
    if (!(condition)) {                                               \
      fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition); \
      exit(1);                                                        \
    }                                                                 \
  } while (0)

static uint64_t random_state = 88172645463325252ull;

static uint32_t random_below(uint32_t bound) {
  random_state ^= random_state << 13;
  random_state ^= random_state >> 7;
  random_state ^= random_state << 17;
  return (uint32_t)(random_state >> 33) % bound;
}

static char segment_name[64];

/* A client's segment with pseudo-random bytes, as the client sees it. */
static char *create_client_segment(uint64_t size_bytes) {
  snprintf(segment_name, sizeof segment_name, "/lmcache_kv_ctest_%d", getpid());
  int fd = shm_open(segment_name, O_RDWR | O_CREAT | O_EXCL, 0600);
  CHECK(fd >= 0 && ftruncate(fd, (off_t)size_bytes) == 0);
  char *bytes = mmap(NULL, size_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  CHECK(bytes != MAP_FAILED);
  close(fd);
  for (uint64_t i = 0; i < size_bytes; i += 1) bytes[i] = (char)random_below(256);
  return bytes;
}

static void remove_client_segment(char *bytes, uint64_t size_bytes) {
  munmap(bytes, size_bytes);
  CHECK(kv_segment_unlink(segment_name) == 0);
}

static struct kv_segment *open_segment(uint64_t size_bytes) {
  int64_t handle = kv_segment_open(segment_name, size_bytes);
  CHECK(handle > 0);
  return (struct kv_segment *)(intptr_t)handle;
}

/* Waits for one completion; answers its code. */
static int32_t wait_for(struct kv_pool *pool, double expected_id) {
  double id;
  int32_t code;
  while (kv_pool_collect(pool, &id, &code, 1) == 0) {
    struct pollfd wake = {kv_pool_wake_fd(pool), POLLIN, 0};
    CHECK(poll(&wake, 1, 10000) == 1);
    char byte;
    CHECK(read(wake.fd, &byte, 1) == 1);
  }
  CHECK(id == expected_id);
  return code;
}

static struct kv_pool *open_pool(uint32_t worker_count) {
  int64_t handle = kv_pool_open(worker_count, 0, 64, 1 << 20);
  CHECK(handle > 0);
  return (struct kv_pool *)(intptr_t)handle;
}

static void close_pool(struct kv_pool *pool) {
  int fd = kv_pool_wake_fd(pool);
  CHECK(kv_pool_close(pool) == 0);
  close(fd);
}

/* Head-major blocks in the engine, token-major objects, with a shift that breaks alignment. */
struct shape {
  uint32_t heads, tokens, run_bytes, blocks, object_blocks, shift;
};

static int64_t bind(const struct shape *s, const struct kv_segment *segment, const char *area,
                    uint64_t area_bytes) {
  uint64_t block_bytes = (uint64_t)s->heads * s->tokens * s->run_bytes;
  uint64_t handles[1] = {(uint64_t)(uintptr_t)segment};
  double words[] = {1, (double)(block_bytes * s->object_blocks),
                    1, s->object_blocks, s->blocks, (double)block_bytes,
                    s->tokens, s->run_bytes, (double)s->heads * s->run_bytes,
                    s->heads, (double)s->tokens * s->run_bytes, s->run_bytes, s->run_bytes,
                    0, s->shift, (double)block_bytes, 0};
  return kv_plan_create(handles, 1, words, sizeof words / sizeof *words,
                        (uint64_t)(uintptr_t)area, area_bytes);
}

static void expect_object(const struct shape *s, const char *engine, const uint32_t *ids,
                          const char *object) {
  uint64_t block_bytes = (uint64_t)s->heads * s->tokens * s->run_bytes;
  for (uint32_t k = 0; k < s->object_blocks; k += 1)
    for (uint32_t t = 0; t < s->tokens; t += 1)
      for (uint32_t h = 0; h < s->heads; h += 1) {
        const char *from =
            engine + s->shift + ids[k] * block_bytes + ((uint64_t)h * s->tokens + t) * s->run_bytes;
        const char *to = object + k * block_bytes + ((uint64_t)t * s->heads + h) * s->run_bytes;
        CHECK(memcmp(from, to, s->run_bytes) == 0);
      }
}

static void test_round_trip(struct kv_pool *pool, struct kv_lane *lane, const struct shape *s) {
  uint64_t block_bytes = (uint64_t)s->heads * s->tokens * s->run_bytes;
  uint64_t size_bytes = s->shift + block_bytes * s->blocks;
  uint64_t object_bytes = block_bytes * s->object_blocks;
  char *client = create_client_segment(size_bytes);
  struct kv_segment *segment = open_segment(size_bytes);
  /* On the heap and of exact size: the sanitizer sees one byte too many. */
  char *area = malloc(object_bytes);
  int64_t plan = bind(s, segment, area, object_bytes);
  CHECK(plan > 0);
  uint32_t ids[64];
  for (uint32_t k = 0; k < s->object_blocks; k += 1)
    ids[k] = (k * 7 + 3) % s->blocks; /* distinct: 7 does not divide the counts used here */
  double offset = 0;
  const struct kv_plan *bound = (const struct kv_plan *)(intptr_t)plan;
  CHECK(kv_job_submit(lane, bound, KV_GATHER, 1, 1, &offset, ids, s->object_blocks, NULL) == 0);
  CHECK(wait_for(pool, 1) == 0);
  expect_object(s, client, ids, area);
  for (uint64_t i = 0; i < object_bytes; i += 1) area[i] = (char)random_below(256);
  CHECK(kv_job_submit(lane, bound, KV_SCATTER, 2, 1, &offset, ids, s->object_blocks, NULL) == 0);
  CHECK(wait_for(pool, 2) == 0);
  expect_object(s, client, ids, area);
  kv_plan_destroy((struct kv_plan *)(intptr_t)plan);
  free(area);
  CHECK(kv_segment_close(segment) == 0);
  remove_client_segment(client, size_bytes);
}

static void test_kernels(void) {
  struct kv_pool *pool = open_pool(2);
  struct kv_lane *lane = (struct kv_lane *)(intptr_t)kv_lane_open(pool);
  static const uint32_t runs[] = {1, 16, 63, 64, 128, 160, 192, 256, 512, 1024, 4096, 5000};
  for (uint32_t r = 0; r < sizeof runs / sizeof *runs; r += 1)
    for (uint32_t shift = 0; shift <= 64; shift += shift ? 63 : 1) {
      struct shape many = {3, 4, runs[r], 11, 8, shift};
      test_round_trip(pool, lane, &many);
      struct shape whole = {1, 2, runs[r], 11, 8, shift};
      test_round_trip(pool, lane, &whole);
    }
  CHECK(kv_lane_close(lane) == 0);
  close_pool(pool);
}

static void test_refusals(void) {
  struct kv_pool *pool = open_pool(1);
  struct kv_lane *lane = (struct kv_lane *)(intptr_t)kv_lane_open(pool);
  struct shape s = {1, 1, 64, 8, 2, 0};
  char *client = create_client_segment(64 * 8);
  struct kv_segment *segment = open_segment(64 * 8);
  char area[256];
  struct shape beyond = {1, 1, 64, 8, 2, 1};
  CHECK(bind(&beyond, segment, area, sizeof area) == KV_ERR_ARGUMENT);
  struct kv_plan *plan = (struct kv_plan *)(intptr_t)bind(&s, segment, area, sizeof area);
  double offset = 0, negative = -1, outside = 129, odd = 0.5, huge = 1e300;
  uint32_t good[2] = {0, 7}, bad[2] = {0, 8};
  CHECK(kv_job_submit(lane, plan, KV_GATHER, 1, 1, &offset, bad, 2, NULL) == KV_ERR_BLOCK_ID);
  CHECK(kv_job_submit(lane, plan, KV_GATHER, 1, 1, &outside, good, 2, NULL) == KV_ERR_OBJECT);
  CHECK(kv_job_submit(lane, plan, KV_GATHER, 1, 1, &odd, good, 2, NULL) == KV_ERR_OBJECT);
  CHECK(kv_job_submit(lane, plan, KV_GATHER, 1, 1, &huge, good, 2, NULL) == KV_ERR_OBJECT);
  CHECK(kv_job_submit(lane, plan, KV_GATHER, 1, 1, &offset, good, 1, NULL) == KV_ERR_ARGUMENT);
  CHECK(kv_job_submit(lane, plan, 2, 1, 1, &offset, good, 2, NULL) == KV_ERR_ARGUMENT);
  /* Left out, and skipped: ids that are never used are never looked at. */
  CHECK(kv_job_submit(lane, plan, KV_GATHER, 1, 1, &negative, bad, 2, NULL) == 0);
  CHECK(wait_for(pool, 1) == 0);
  uint32_t skips[1] = {2};
  CHECK(kv_job_submit(lane, plan, KV_SCATTER, 2, 1, &offset, bad, 2, skips) == 0);
  CHECK(wait_for(pool, 2) == 0);
  kv_plan_destroy(plan);
  CHECK(kv_segment_open(segment_name, 64 * 8 + 1) == KV_ERR_SHORT);
  CHECK(kv_segment_open("/lmcache_kv_no_such_segment", 1) == -ENOENT);
  CHECK(kv_segment_close(segment) == 0);
  remove_client_segment(client, 64 * 8);
  CHECK(kv_lane_close(lane) == 0);
  close_pool(pool);
}

/* The segment shrinks while jobs are queued: each ends with a code, nothing dies. */
static void test_truncation(void) {
  uint64_t size_bytes = 8 << 20;
  struct kv_pool *pool = open_pool(2);
  struct kv_lane *lane = (struct kv_lane *)(intptr_t)kv_lane_open(pool);
  char *client = create_client_segment(4096);
  char path[96];
  snprintf(path, sizeof path, "/dev/shm%s", segment_name);
  CHECK(truncate(path, (off_t)size_bytes) == 0);
  struct kv_segment *segment = open_segment(size_bytes);
  char *area = malloc(size_bytes);
  struct shape s = {1, 1, 4096, 2048, 2048, 0};
  struct kv_plan *plan = (struct kv_plan *)(intptr_t)bind(&s, segment, area, size_bytes);
  uint32_t *ids = malloc(2048 * sizeof *ids);
  for (uint32_t i = 0; i < 2048; i += 1) ids[i] = i;
  double offset = 0;
  for (int round = 0; round < 20; round += 1) {
    CHECK(truncate(path, (off_t)size_bytes) == 0);
    CHECK(kv_job_submit(lane, plan, round % 2, 1, 1, &offset, ids, 2048, NULL) == 0);
    usleep(random_below(1500));
    CHECK(truncate(path, 4096) == 0);
    int32_t code = wait_for(pool, 1);
    CHECK(code == 0 || code == KV_ERR_FAULT || code == KV_ERR_SHRUNK);
    CHECK(kv_job_submit(lane, plan, round % 2, 2, 1, &offset, ids, 2048, NULL) == 0);
    CHECK(wait_for(pool, 2) == KV_ERR_SHRUNK);
  }
  kv_plan_destroy(plan);
  free(ids);
  free(area);
  CHECK(kv_segment_close(segment) == 0);
  remove_client_segment(client, 4096);
  CHECK(kv_lane_close(lane) == 0);
  close_pool(pool);
}

struct vanished {
  char *mapped;
  bool is_named;
};

static int32_t touch_vanished(struct kv_guard *guard, void *context) {
  struct vanished *vanished = context;
  if (vanished->is_named) kv_guard_range(guard, 0, vanished->mapped, 4096);
  *(volatile char *)vanished->mapped = 1;
  return 0;
}

/* Runs `body` in a child; answers how it ended. */
static int in_child(int32_t (*body)(void)) {
  pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) {
    struct rlimit no_core = {0, 0};
    setrlimit(RLIMIT_CORE, &no_core);
    _exit(body());
  }
  int status;
  CHECK(waitpid(child, &status, 0) == child);
  return status;
}

static char *map_vanished_page(void) {
  int fd = memfd_create("kvd-test", MFD_CLOEXEC);
  CHECK(fd >= 0 && ftruncate(fd, 4096) == 0);
  char *mapped = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  CHECK(mapped != MAP_FAILED && ftruncate(fd, 0) == 0);
  close(fd);
  return mapped;
}

static int32_t fault_of_a_named_range(void) {
  signal(SIGBUS, SIG_DFL);
  kv_guard_install();
  struct vanished vanished = {map_vanished_page(), true};
  /* Twice: the signal must be deliverable again. */
  if (kv_guard_run(touch_vanished, &vanished) != KV_ERR_FAULT) return 1;
  return kv_guard_run(touch_vanished, &vanished) == KV_ERR_FAULT ? 0 : 1;
}

static int32_t fault_of_another_address(void) {
  signal(SIGBUS, SIG_DFL);
  kv_guard_install();
  struct vanished vanished = {map_vanished_page(), false};
  return kv_guard_run(touch_vanished, &vanished) == 0 ? 1 : 2;
}

static void exit_by_handler(int number) {
  (void)number;
  _exit(42);
}

static int32_t fault_with_a_handler_before_us(void) {
  signal(SIGBUS, exit_by_handler);
  kv_guard_install();
  *(volatile char *)map_vanished_page() = 1;
  return 1;
}

static int32_t signal_from_outside(void) {
  signal(SIGBUS, SIG_DFL);
  kv_guard_install();
  raise(SIGBUS);
  return 1;
}

/* Must run first: the handler is installed once per process, and children inherit that. */
static void test_guard(void) {
  int status = in_child(fault_of_a_named_range);
  CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  status = in_child(fault_of_another_address);
  CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGBUS);
  status = in_child(fault_with_a_handler_before_us);
  CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 42);
  status = in_child(signal_from_outside);
  CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGBUS);
}

static char pool_name[64];

static int32_t create_pool_segment(void) {
  int64_t handle = kv_segment_create(pool_name, 8192, 0600, 0);
  return handle == KV_ERR_HELD ? 10 : handle <= 0;
}

static void test_ownership(void) {
  snprintf(pool_name, sizeof pool_name, "/lmcache_l1_pool_ctest_%d", getpid());
  /* A child creates and dies without unlinking: the segment is stale, and taken over. */
  CHECK(WEXITSTATUS(in_child(create_pool_segment)) == 0);
  int64_t handle = kv_segment_create(pool_name, 4096, 0600, KV_MEMORY_TRANSPARENT_HUGE);
  CHECK(handle > 0);
  struct kv_segment *segment = (struct kv_segment *)(intptr_t)handle;
  CHECK((uintptr_t)segment->base % (2 << 20) == 0);
  memset(segment->base, 1, 4096);
  CHECK(kv_segment_remove_stale(pool_name) == KV_ERR_HELD);
  CHECK(WEXITSTATUS(in_child(create_pool_segment)) == 10);
  CHECK(kv_segment_unlink(pool_name) == 0);
  CHECK(kv_segment_close(segment) == 0);
  CHECK(kv_segment_remove_stale(pool_name) == -ENOENT);
}

static void test_preparer(void) {
  uint64_t size_bytes = 9 << 20;
  int64_t handle = kv_memory_reserve(size_bytes, 0);
  CHECK(handle > 0);
  struct kv_segment *segment = (struct kv_segment *)(intptr_t)handle;
  memset(segment->base, 5, 4096);
  struct kv_preparer *preparer = (struct kv_preparer *)(intptr_t)kv_preparer_open(segment);
  kv_preparer_target(preparer, 0, 64ull << 30);
  while (kv_preparer_prepared(preparer) < (int64_t)size_bytes) usleep(100);
  CHECK(kv_preparer_code(preparer) == 0);
  CHECK(segment->base[0] == 5 && segment->base[size_bytes - 1] == 0);
  kv_preparer_close(preparer);
  CHECK(kv_segment_close(segment) == 0);
}

/* More jobs than the queue takes, on more lanes than workers. */
static void test_queue_bound(void) {
  struct kv_pool *pool = open_pool(3);
  struct kv_lane *lanes[8];
  for (int i = 0; i < 8; i += 1) lanes[i] = (struct kv_lane *)(intptr_t)kv_lane_open(pool);
  struct shape s = {1, 1, 4096, 64, 64, 0};
  char *client = create_client_segment(4096 * 64);
  struct kv_segment *segment = open_segment(4096 * 64);
  char *area = malloc(4096 * 64 * 8);
  struct kv_plan *plan = (struct kv_plan *)(intptr_t)bind(&s, segment, area, 4096 * 64 * 8);
  uint32_t ids[64];
  for (uint32_t i = 0; i < 64; i += 1) ids[i] = 63 - i;
  uint32_t accepted = 0;
  for (uint32_t i = 0; i < 200; i += 1) {
    double offset = 4096 * 64 * (i % 8);
    int32_t code = kv_job_submit(lanes[i % 8], plan, KV_GATHER, i, 1, &offset, ids, 64, NULL);
    CHECK(code == 0 || code == KV_ERR_QUEUE_FULL);
    accepted += code == 0;
  }
  CHECK(accepted == 64); /* nothing was collected, so exactly the bound */
  double seen[64], last[8] = {-1, -1, -1, -1, -1, -1, -1, -1};
  int32_t codes[64];
  for (uint32_t done = 0; done < accepted;) {
    int32_t count = kv_pool_collect(pool, seen, codes, 64);
    for (int32_t i = 0; i < count; i += 1) {
      CHECK(codes[i] == 0);
      uint32_t lane = (uint32_t)seen[i] % 8;
      CHECK(seen[i] > last[lane]); /* first in, first out */
      last[lane] = seen[i];
    }
    done += (uint32_t)count;
  }
  kv_plan_destroy(plan);
  for (int i = 0; i < 8; i += 1) CHECK(kv_lane_close(lanes[i]) == 0);
  free(area);
  CHECK(kv_segment_close(segment) == 0);
  remove_client_segment(client, 4096 * 64);
  close_pool(pool);
}

int main(void) {
  test_guard();
  test_ownership();
  test_kernels();
  test_refusals();
  test_truncation();
  test_preparer();
  test_queue_bound();
  puts("shim: all passed");
  return 0;
}
