/* The lock of a folder of checkpoints. */
#include "trainer/checkpoint/checkpoint_lock.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <weft/support.h>

#include "trainer/checkpoint/durable_file.h"

#define LOCK_NAME ".weft-lock"
#define OWNER_BYTES 256

/* "process 4711 on node3 since 2026-11-16T01:23:45Z": for people, and never read back. */
static void write_owner(int descriptor) {
  char host[128] = "", since[32] = "", line[OWNER_BYTES];
  const time_t now = time(NULL);
  struct tm utc;
  (void)gethostname(host, sizeof host - 1);
  if (gmtime_r(&now, &utc) != NULL) {
    (void)strftime(since, sizeof since, "%Y-%m-%dT%H:%M:%SZ", &utc);
  }
  const int size =
      snprintf(line, sizeof line, "process %jd on %s since %s\n", (intmax_t)getpid(), host, since);
  if (ftruncate(descriptor, 0) == 0) {
    (void)!pwrite(descriptor, line, (size_t)size, 0);
  }
}

static enum weft_status refuse(const char *dir, int descriptor, struct weft_error *error) {
  char line[OWNER_BYTES] = "";
  const ssize_t size = pread(descriptor, line, sizeof line - 1, 0);
  int length = 0;
  while (length < size && line[length] >= ' ' && line[length] <= '~') {
    length++;
  }
  return weft_fail(
      error, WEFT_ERR_USAGE, "give another folder, or wait; the lock ends with that process",
      "another training writes its checkpoints into '%s': %.*s", dir,
      length > 0 ? length : (int)sizeof "a process" - 1, length > 0 ? line : "a process");
}

/* Whether the path still leads to the open file, which the owner before may have removed. */
static bool is_current(int descriptor, const char *path) {
  struct stat open_file, named;
  return fstat(descriptor, &open_file) == 0 && stat(path, &named) == 0 &&
         open_file.st_dev == named.st_dev && open_file.st_ino == named.st_ino;
}

enum weft_status weft_gpt_checkpoint_lock(const char *dir, struct weft_gpt_checkpoint_lock *lock,
                                          struct weft_error *error) {
  assert(dir != NULL && lock != NULL);
  struct weft_gpt_path path;
  lock->descriptor = -1;
  WEFT_TRY(weft_gpt_path_join(&path, dir, LOCK_NAME, error));
  (void)mkdir(dir, 0777);
  for (;;) {
    const int descriptor = open(path.text, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666);
    if (descriptor < 0) {
      return WEFT_OK;
    }
    const int code = flock(descriptor, LOCK_EX | LOCK_NB) == 0 ? 0 : errno;
    if (code == 0 && is_current(descriptor, path.text)) {
      write_owner(descriptor);
      lock->descriptor = descriptor;
      return WEFT_OK;
    }
    const enum weft_status status = code == EWOULDBLOCK ? refuse(dir, descriptor, error) : WEFT_OK;
    (void)close(descriptor);
    if (code != 0 && code != EINTR) {
      return status; /* no locks here: WEFT_OK */
    }
  }
}

void weft_gpt_checkpoint_unlock(const char *dir, struct weft_gpt_checkpoint_lock *lock) {
  assert(lock != NULL);
  struct weft_gpt_path path;
  if (lock->descriptor < 0) {
    return;
  }
  if (weft_gpt_path_join(&path, dir, LOCK_NAME, NULL) == WEFT_OK) {
    (void)unlink(path.text);
  }
  (void)close(lock->descriptor);
  lock->descriptor = -1;
}
