/*
 * Shared memory segments of engines, and the memory of L1.
 *
 * Ownership of a created segment is an flock on its inode: the kernel drops it with the process,
 * however it dies, so "unlocked" means "nobody lives here", also across pid namespaces. Creating
 * and locking are two steps; the window between them is closed by looking, once the lock is held,
 * whether the name still leads to our inode:
 *
 *     creator                                  second server, same name
 *     shm_open(O_EXCL) ─┐                      shm_open → finds it
 *                       │ window               flock succeeds (not locked yet)
 *     flock ────────────┘ fails, or succeeds   unlink, create its own, flock
 *     same inode behind the name? no → try again, and now find the name held
 *
 * A segment is mapped with the size that the caller needs, and only if it has that size now. What
 * happens if it shrinks later is the matter of copy.c.
 */
#define _GNU_SOURCE
#include "kv_shim.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define HUGE_PAGE_BYTES ((uint64_t)2 << 20)
/* Each try means that another process took the name in between; four in a row is no accident. */
#define CREATE_TRIES 4

int32_t kv_abi_version(void) { return KV_ABI_VERSION; }

static int64_t segment_handle(char *base, uint64_t size_bytes, int fd, const struct stat *status) {
  struct kv_segment *segment = malloc(sizeof *segment);
  if (!segment) {
    munmap(base, size_bytes);
    return -ENOMEM;
  }
  segment->base = base;
  segment->size_bytes = size_bytes;
  segment->device = status ? status->st_dev : 0;
  segment->inode = status ? status->st_ino : 0;
  segment->fd = fd;
  return (int64_t)(intptr_t)segment;
}

/*
 * Maps at a 2 MiB boundary, so that huge pages fit from the first byte on: reserves one huge page
 * more than needed and gives back what is left over on both sides.
 */
static char *map_aligned(uint64_t size_bytes, int flags, int fd) {
  uint64_t reserved_bytes = size_bytes + HUGE_PAGE_BYTES;
  char *reserved = mmap(NULL, reserved_bytes, PROT_NONE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (reserved == MAP_FAILED) return MAP_FAILED;
  uint64_t head_bytes = -(uint64_t)(uintptr_t)reserved & (HUGE_PAGE_BYTES - 1);
  char *base = reserved + head_bytes;
  char *mapped = mmap(base, size_bytes, PROT_READ | PROT_WRITE, flags | MAP_FIXED, fd, 0);
  if (mapped == MAP_FAILED) {
    int error = errno;
    munmap(reserved, reserved_bytes);
    errno = error;
    return MAP_FAILED;
  }
  uint64_t page_bytes = (uint64_t)sysconf(_SC_PAGESIZE);
  uint64_t kept_bytes = (size_bytes + page_bytes - 1) & ~(page_bytes - 1);
  if (head_bytes > 0) munmap(reserved, head_bytes);
  if (reserved_bytes - head_bytes > kept_bytes)
    munmap(base + kept_bytes, reserved_bytes - head_bytes - kept_bytes);
  return base;
}

int64_t kv_segment_open(const char *name, uint64_t size_bytes) {
  if (size_bytes == 0) return KV_ERR_ARGUMENT;
  int fd = shm_open(name, O_RDWR | O_NOFOLLOW | O_CLOEXEC, 0);
  if (fd < 0) return -errno;
  int64_t result;
  struct stat status;
  if (fstat(fd, &status) != 0) {
    result = -errno;
  } else if (!S_ISREG(status.st_mode)) {
    result = -EINVAL;
  } else if ((uint64_t)status.st_size < size_bytes) {
    result = KV_ERR_SHORT;
  } else {
    char *base = mmap(NULL, size_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    result = base == MAP_FAILED ? -errno : segment_handle(base, size_bytes, fd, &status);
  }
  if (result < 0) close(fd);
  return result;
}

/* The name leads to the file behind `fd`. */
static bool is_current(const char *name, const struct stat *status) {
  int fd = shm_open(name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC, 0);
  if (fd < 0) return false;
  struct stat current;
  bool is_same = fstat(fd, &current) == 0 && current.st_dev == status->st_dev &&
                 current.st_ino == status->st_ino;
  close(fd);
  return is_same;
}

int32_t kv_file_lock(int32_t fd) {
  if (flock(fd, LOCK_EX | LOCK_NB) == 0) return 0;
  return errno == EWOULDBLOCK ? KV_ERR_HELD : -errno;
}

int32_t kv_segment_remove_stale(const char *name) {
  /* Read-only is enough for flock, and works for segments of another user's dead server too. */
  int fd = shm_open(name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC, 0);
  if (fd < 0) return -errno;
  int32_t result = kv_file_lock(fd);
  if (result == 0) {
    struct stat status;
    bool is_ours = fstat(fd, &status) == 0 && is_current(name, &status);
    if (is_ours && shm_unlink(name) != 0) result = -errno;
  }
  close(fd);
  return result;
}

/* Creates and locks the segment; answers its descriptor, or -EAGAIN when the name was taken. */
static int create_owned(const char *name, uint64_t size_bytes, uint32_t mode, struct stat *status) {
  int fd = shm_open(name, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
  if (fd < 0) return errno == EEXIST ? -EAGAIN : -errno;
  int result = kv_file_lock(fd);
  if (result != 0) {
    if (result == KV_ERR_HELD) result = -EAGAIN;
  } else if (fstat(fd, status) != 0) {
    result = -errno;
  } else if (!is_current(name, status)) {
    result = -EAGAIN;
  } else if (ftruncate(fd, (off_t)size_bytes) != 0 || fchmod(fd, (mode_t)mode) != 0) {
    result = -errno;
    shm_unlink(name);
  }
  if (result == 0) return fd;
  close(fd);
  return result;
}

static void advise_huge(char *base, uint64_t size_bytes, uint32_t flags) {
  /* Refused by kernels without transparent huge pages: small pages work as well. */
  if (flags & KV_MEMORY_TRANSPARENT_HUGE) (void)madvise(base, size_bytes, MADV_HUGEPAGE);
  /* L1 is far too large for a useful core file, and holds what users typed. */
  (void)madvise(base, size_bytes, MADV_DONTDUMP);
}

int64_t kv_segment_create(const char *name, uint64_t size_bytes, uint32_t mode, uint32_t flags) {
  if (size_bytes == 0) return KV_ERR_ARGUMENT;
  int fd = -EAGAIN;
  struct stat status;
  for (int tries = 0; fd == -EAGAIN && tries < CREATE_TRIES; tries += 1) {
    int32_t removed = kv_segment_remove_stale(name);
    if (removed != 0 && removed != -ENOENT) return removed;
    fd = create_owned(name, size_bytes, mode, &status);
  }
  if (fd < 0) return fd == -EAGAIN ? KV_ERR_HELD : fd;
  char *base = map_aligned(size_bytes, MAP_SHARED | MAP_NORESERVE, fd);
  int64_t result =
      base == MAP_FAILED ? -errno : segment_handle(base, size_bytes, fd, &status);
  if (result < 0) {
    shm_unlink(name);
    close(fd);
    return result;
  }
  advise_huge(base, size_bytes, flags);
  return result;
}

int64_t kv_memory_reserve(uint64_t size_bytes, uint32_t flags) {
  if (size_bytes == 0) return KV_ERR_ARGUMENT;
  /* Explicit huge pages are reserved here, so that a missing one is an error now and no signal
     later; ordinary memory is not, so that a pool of any size opens at once. */
  int kind = flags & KV_MEMORY_EXPLICIT_HUGE ? MAP_HUGETLB : MAP_NORESERVE;
  if (flags & KV_MEMORY_EXPLICIT_HUGE)
    size_bytes = (size_bytes + HUGE_PAGE_BYTES - 1) & ~(HUGE_PAGE_BYTES - 1);
  char *base = map_aligned(size_bytes, MAP_PRIVATE | MAP_ANONYMOUS | kind, -1);
  if (base == MAP_FAILED) return -errno;
  advise_huge(base, size_bytes, flags);
  return segment_handle(base, size_bytes, -1, NULL);
}

void kv_segment_describe(const struct kv_segment *segment, uint64_t *out) {
  out[0] = (uint64_t)(uintptr_t)segment->base;
  out[1] = segment->size_bytes;
  out[2] = segment->device;
  out[3] = segment->inode;
}

int32_t kv_segment_close(struct kv_segment *segment) {
  int32_t result = munmap(segment->base, segment->size_bytes) == 0 ? 0 : -errno;
  if (segment->fd >= 0) close(segment->fd);
  free(segment);
  return result;
}

int32_t kv_segment_unlink(const char *name) { return shm_unlink(name) == 0 ? 0 : -errno; }
