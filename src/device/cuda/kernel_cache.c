/* See kernel_cache.h. The folder is opened once per call, and files only relative to it, so that
 * what was checked is what is used. */
#include "device/cuda/kernel_cache.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <weft/cuda.h>
#include <weft/support.h>

enum { PATH_SIZE = 4096, SHOWN_SIZE = 256 };

/* ---- The folder ---- */

static bool find_folder(char *out) {
  const char *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
  const bool is_default = cache == NULL || cache[0] != '/'; /* a relative one is ignored, by XDG */
  if (is_default && (home == NULL || home[0] != '/')) {
    return false;
  }
  const int length =
      snprintf(out, PATH_SIZE, "%s%s/weft", is_default ? home : cache, is_default ? "/.cache" : "");
  return length > 0 && length < PATH_SIZE;
}

/* NULL: it is this user's, and nobody else may write to it. */
static const char *distrust(const struct stat *facts) {
  return facts->st_uid != geteuid()    ? "belongs to another user"
         : (facts->st_mode & 022) != 0 ? "may be written to by others"
                                       : NULL;
}

static enum weft_status fail_folder(const char *folder, const char *reason,
                                    struct weft_error *error) {
  char shown[SHOWN_SIZE];
  return weft_fail(error, WEFT_ERR_UNAVAILABLE,
                   "have it be a folder of your own that only you may write to (chmod go-w), or "
                   "XDG_CACHE_HOME name another place",
                   "compiled kernels are not kept: %s %s",
                   weft_escape(shown, sizeof shown, folder, strlen(folder)), reason);
}

/* Folders on the way are the user's own as well, as XDG has it. */
static void make_folders(char *path) {
  for (char *slash = strchr(path + 1, '/'); slash != NULL; slash = strchr(slash + 1, '/')) {
    *slash = '\0';
    (void)mkdir(path, 0700);
    *slash = '/';
  }
  (void)mkdir(path, 0700);
}

/* -1 in *out: there is none yet. `make`: then it is made. */
static enum weft_status open_folder(bool make, int *out, struct weft_error *error) {
  char folder[PATH_SIZE];
  struct stat facts;
  *out = -1;
  if (!find_folder(folder)) {
    return weft_fail(error, WEFT_ERR_UNAVAILABLE, "set HOME or XDG_CACHE_HOME",
                     "compiled kernels are not kept: there is no folder for a cache");
  }
  if (make) {
    make_folders(folder);
  }
  const int fd = open(folder, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  if (fd < 0) {
    return errno == ENOENT ? WEFT_OK
                           : fail_folder(folder,
                                         errno == ELOOP || errno == ENOTDIR
                                             ? "is a link or a file, not a folder"
                                             : "cannot be opened",
                                         error);
  }
  const char *reason = fstat(fd, &facts) == 0 ? distrust(&facts) : "cannot be examined";
  if (reason != NULL) {
    (void)close(fd);
    return fail_folder(folder, reason, error);
  }
  *out = fd;
  return WEFT_OK;
}

enum weft_status weft_cuda_cache_check(struct weft_error *error) {
  int fd;
  WEFT_TRY(open_folder(false, &fd, error));
  if (fd >= 0) {
    (void)close(fd);
  }
  return WEFT_OK;
}

/* ---- Files: the code, and its checksum ---- */

static bool read_code(const struct weft_allocator *allocator, FILE *file, size_t file_size,
                      char **code, size_t *size) {
  uint64_t sum;
  if (file_size <= sizeof sum) {
    return false;
  }
  const size_t code_size = file_size - sizeof sum;
  char *read = weft_array_allocate(allocator, code_size, 1);
  if (read == NULL || fread(read, 1, code_size, file) != code_size ||
      fread(&sum, sizeof sum, 1, file) != 1 || sum != weft_checksum(read, code_size)) {
    weft_array_free(allocator, read, code_size, 1);
    return false;
  }
  *code = read;
  *size = code_size;
  return true;
}

/* Without O_NONBLOCK, opening a named pipe would wait for its writer. */
bool weft_kernel_cache_read(const struct weft_allocator *allocator, const char *name, char **code,
                            size_t *size) {
  assert(strlen(name) < WEFT_KERNEL_CACHE_NAME_SIZE && code != NULL && size != NULL);
  int folder;
  struct stat facts;
  bool done = false;
  if (open_folder(false, &folder, NULL) < 0 || folder < 0) {
    return false;
  }
  const int fd = openat(folder, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
  (void)close(folder);
  FILE *file = fd >= 0 ? fdopen(fd, "rb") : NULL;
  if (file == NULL) {
    if (fd >= 0) {
      (void)close(fd);
    }
    return false;
  }
  if (fstat(fd, &facts) == 0 && S_ISREG(facts.st_mode) && distrust(&facts) == NULL) {
    done = read_code(allocator, file, (size_t)facts.st_size, code, size);
  }
  (void)fclose(file);
  return done;
}

/* Written beside and renamed, so that nobody reads half of it; what had the name before, a link or
 * a pipe, is replaced. Two threads of a process may write at the same time. */
void weft_kernel_cache_write(const char *name, const char *code, size_t size) {
  assert(strlen(name) < WEFT_KERNEL_CACHE_NAME_SIZE && code != NULL && size > 0);
  char temporary[WEFT_KERNEL_CACHE_NAME_SIZE + 48];
  struct timespec now = {0};
  int folder;
  if (open_folder(true, &folder, NULL) < 0 || folder < 0) {
    return;
  }
  (void)clock_gettime(CLOCK_REALTIME, &now);
  (void)snprintf(temporary, sizeof temporary, "%.*s.%ld.%ld", WEFT_KERNEL_CACHE_NAME_SIZE, name,
                 (long)getpid(), now.tv_nsec);
  const int fd =
      openat(folder, temporary, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
  FILE *file = fd >= 0 ? fdopen(fd, "wb") : NULL;
  if (file != NULL) {
    const uint64_t sum = weft_checksum(code, size);
    const bool written =
        fwrite(code, 1, size, file) == size && fwrite(&sum, sizeof sum, 1, file) == 1;
    if (fclose(file) != 0 || !written || renameat(folder, temporary, folder, name) != 0) {
      (void)unlinkat(folder, temporary, 0);
    }
  } else if (fd >= 0) {
    (void)close(fd);
    (void)unlinkat(folder, temporary, 0);
  }
  (void)close(folder);
}
