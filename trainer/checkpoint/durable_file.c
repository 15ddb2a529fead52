/* The file operations of checkpoints; the hook is asked before each. checkpoint_store.c has the
 * order that makes them safe. */
#include "trainer/checkpoint/durable_file.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <weft/support.h>

#include "trainer/model/aligned_memory.h"

/* Of one call of write() or read(): some systems take less than 2 GiB. */
#define CALL_BYTES_MAX ((uint64_t)64 << 20)

/* ---- Faults ---- */

static const char *hint_for(int code) {
  switch (code) {
    case ENOSPC:
    case EDQUOT:
    case EFBIG: return "free some space; checkpoints written before are untouched";
    case ENOENT: return "see that the folder is there, and spelled so";
    case ENOTDIR: return "a checkpoint is a folder: give the one that --checkpoint wrote";
    case EMFILE: return "this process may open too few files: raise 'ulimit -n'";
    case ENFILE: return "the system has too many files open: close programs";
    case EACCES:
    case EPERM:
    case EROFS: return "see who may read and write there";
    case EIO: return "see what the system's log says of this disk";
    default: return "";
  }
}

enum weft_status weft_gpt_fail_system(struct weft_error *error, int code, const char *action,
                                      const char *path) {
  char reason[128];
  if (strerror_r(code, reason, sizeof reason) != 0) {
    (void)snprintf(reason, sizeof reason, "error %d", code);
  }
  return weft_fail(error, code == ENOENT || code == ENOTDIR ? WEFT_ERR_MISSING : WEFT_ERR_IO,
                   hint_for(code), "cannot %s '%s': %s", action, path, reason);
}

/* Writing fails as IO, whatever the reason. */
static enum weft_status fail_writing(struct weft_error *error, int code, const char *action,
                                     const char *path) {
  (void)weft_gpt_fail_system(error, code, action, path);
  if (error != NULL) {
    error->status = WEFT_ERR_IO;
  }
  return WEFT_ERR_IO;
}

/* ---- Operations: 0, or an errno ---- */

static int ask(const struct weft_gpt_files *files, const char *operation, const char *path) {
  return files != NULL && files->before != NULL ? files->before(files->context, operation, path)
                                                : 0;
}

/* Repeats `call` while it is interrupted. */
#define DO(files, operation, path, call, code)  \
  do {                                          \
    (code) = ask((files), (operation), (path)); \
    if ((code) == 0) {                          \
      (code) = (call) < 0 ? errno : 0;          \
    }                                           \
  } while ((code) == EINTR)

static int do_open(const struct weft_gpt_files *files, const char *path, int *descriptor) {
  int code;
  DO(files, "open", path,
     *descriptor = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0666), code);
  return code;
}

static int do_write(const struct weft_gpt_files *files, const char *path, int descriptor,
                    const void *data, size_t size, size_t *written) {
  int code;
  ssize_t count = 0;
  DO(files, "write", path, count = write(descriptor, data, size), code);
  if (code == 0 && count == 0) {
    code = EIO; /* a write of something that wrote nothing would go on forever */
  }
  *written = code == 0 ? (size_t)count : 0;
  return code;
}

static int do_fsync(const struct weft_gpt_files *files, const char *path, int descriptor) {
  int code;
  DO(files, "fsync", path, fsync(descriptor), code);
  return code;
}

/* The descriptor is gone in any case: an interrupted close() must not be repeated,
 * since another thread may have got the number. All was synced before. */
static int do_close(const struct weft_gpt_files *files, const char *path, int descriptor) {
  const int refused = ask(files, "close", path);
  const int code = close(descriptor) < 0 ? errno : 0;
  if (refused != 0 && refused != EINTR) {
    return refused;
  }
  return code == EINTR ? 0 : code;
}

static int do_fsync_folder(const struct weft_gpt_files *files, const char *path) {
  int descriptor, code;
  code = ask(files, "fsync-directory", path);
  if (code != 0 && code != EINTR) {
    return code;
  }
  DO(NULL, "", path, descriptor = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC), code);
  if (code != 0) {
    return code;
  }
  DO(NULL, "", path, fsync(descriptor), code);
  (void)close(descriptor);
  return code == EINVAL ? 0 : code; /* a file system that has no such thing */
}

/* ---- Paths and folders ---- */

enum weft_status weft_gpt_path_join(struct weft_gpt_path *path, const char *folder,
                                    const char *name, struct weft_error *error) {
  const int length = snprintf(path->text, sizeof path->text, "%s/%s", folder, name);
  if (length < 0 || (size_t)length >= sizeof path->text) {
    return weft_fail(error, WEFT_ERR_USAGE, "use a folder with a shorter name",
                     "the path of '%s' has %d bytes; the limit is %d", name, length,
                     WEFT_GPT_PATH_MAX - 1);
  }
  return WEFT_OK;
}

/* The folder that holds `folder`. */
static void parent_of(struct weft_gpt_path *parent, const char *folder) {
  size_t length = strlen(folder);
  while (length > 1 && folder[length - 1] == '/') {
    length--;
  }
  while (length > 0 && folder[length - 1] != '/') {
    length--;
  }
  if (length == 0) {
    (void)snprintf(parent->text, sizeof parent->text, ".");
  } else {
    (void)snprintf(parent->text, sizeof parent->text, "%.*s", (int)length, folder);
  }
}

enum weft_status weft_gpt_folder_make(const struct weft_gpt_files *files, const char *folder,
                                      struct weft_error *error) {
  int code;
  DO(files, "mkdir", folder, mkdir(folder, 0777), code);
  if (code != 0 && code != EEXIST) {
    return fail_writing(error, code, "make the folder", folder);
  }
  return WEFT_OK;
}

enum weft_status weft_gpt_folder_sync(const struct weft_gpt_files *files, const char *folder,
                                      struct weft_error *error) {
  const int code = do_fsync_folder(files, folder);
  return code == 0 ? WEFT_OK : fail_writing(error, code, "sync the folder", folder);
}

enum weft_status weft_gpt_folder_sync_entry(const struct weft_gpt_files *files, const char *folder,
                                            struct weft_error *error) {
  struct weft_gpt_path parent;
  parent_of(&parent, folder);
  const int code = do_fsync_folder(files, parent.text);
  return code == 0 || code == EACCES ? WEFT_OK
                                     : fail_writing(error, code, "sync the folder", parent.text);
}

enum weft_status weft_gpt_folder_remove(const struct weft_gpt_files *files, const char *folder,
                                        struct weft_error *error) {
  int code;
  DO(files, "unlink", folder, rmdir(folder), code);
  if (code != 0 && code != ENOTEMPTY && code != EEXIST && code != ENOENT) {
    return fail_writing(error, code, "remove the folder", folder);
  }
  return WEFT_OK;
}

enum weft_status weft_gpt_file_rename(const struct weft_gpt_files *files, const char *folder,
                                      const char *from, const char *to, struct weft_error *error) {
  struct weft_gpt_path source, target;
  WEFT_TRY(weft_gpt_path_join(&source, folder, from, error));
  WEFT_TRY(weft_gpt_path_join(&target, folder, to, error));
  int code;
  DO(files, "rename", target.text, rename(source.text, target.text), code);
  return code == 0 ? WEFT_OK : fail_writing(error, code, "rename to", target.text);
}

enum weft_status weft_gpt_file_remove(const struct weft_gpt_files *files, const char *folder,
                                      const char *name, struct weft_error *error) {
  struct weft_gpt_path path;
  WEFT_TRY(weft_gpt_path_join(&path, folder, name, error));
  int code;
  DO(files, "unlink", path.text, unlink(path.text), code);
  if (code != 0 && code != ENOENT) {
    return fail_writing(error, code, "remove", path.text);
  }
  return WEFT_OK;
}

/* ---- A file that is written ---- */

enum weft_status weft_gpt_output_begin(struct weft_gpt_output *output,
                                       const struct weft_gpt_files *files, const char *folder,
                                       const char *name, struct weft_error *error) {
  output->files = files;
  output->folder = folder;
  output->size = 0;
  output->descriptor = -1;
  weft_gpt_checksum_init(&output->checksum);
  const int length =
      snprintf(output->temporary, sizeof output->temporary, WEFT_GPT_TEMPORARY "%s", name);
  assert(length > 0 && (size_t)length < sizeof output->temporary);
  (void)length;
  WEFT_TRY(weft_gpt_path_join(&output->path, folder, output->temporary, error));
  const int code = do_open(files, output->path.text, &output->descriptor);
  return code == 0 ? WEFT_OK : fail_writing(error, code, "create", output->path.text);
}

/* Nothing is left; what failed is in *error already. */
static enum weft_status abandon(struct weft_gpt_output *output, enum weft_status why) {
  if (output->descriptor >= 0) {
    (void)do_close(output->files, output->path.text, output->descriptor);
    output->descriptor = -1;
  }
  (void)weft_gpt_file_remove(output->files, output->folder, output->temporary, NULL);
  return why;
}

enum weft_status weft_gpt_output_write(struct weft_gpt_output *output, const void *data,
                                       uint64_t size, struct weft_error *error) {
  assert(output->descriptor >= 0);
  const unsigned char *bytes = data;
  weft_gpt_checksum_add(&output->checksum, data, (size_t)size);
  output->size += size;
  while (size > 0) {
    size_t written;
    const int code = do_write(output->files, output->path.text, output->descriptor, bytes,
                              (size_t)(size < CALL_BYTES_MAX ? size : CALL_BYTES_MAX), &written);
    if (code != 0) {
      return abandon(output, fail_writing(error, code, "write", output->path.text));
    }
    bytes += written;
    size -= written;
  }
  return WEFT_OK;
}

enum weft_status weft_gpt_output_end(struct weft_gpt_output *output, const char *name,
                                     struct weft_error *error) {
  assert(output->descriptor >= 0 && name != NULL);
  const char *path = output->path.text;
  int code = do_fsync(output->files, path, output->descriptor);
  if (code != 0) {
    return abandon(output, fail_writing(error, code, "sync", path));
  }
  code = do_close(output->files, path, output->descriptor);
  output->descriptor = -1;
  if (code != 0) {
    return abandon(output, fail_writing(error, code, "close", path));
  }
  const enum weft_status status =
      weft_gpt_file_rename(output->files, output->folder, output->temporary, name, error);
  return status < 0 ? abandon(output, status) : WEFT_OK;
}

/* ---- A file that is read ---- */

bool weft_gpt_file_is_there(const char *folder, const char *name) {
  struct weft_gpt_path path;
  struct stat status;
  return weft_gpt_path_join(&path, folder, name, NULL) == WEFT_OK &&
         stat(path.text, &status) == 0 && S_ISREG(status.st_mode);
}

enum weft_status weft_gpt_file_size(const char *path, uint64_t *size, struct weft_error *error) {
  struct stat status;
  if (stat(path, &status) != 0) {
    return weft_gpt_fail_system(error, errno, "read", path);
  }
  if (!S_ISREG(status.st_mode) || status.st_size < 0) {
    return weft_fail(error, WEFT_ERR_FORMAT, "a checkpoint is a folder of plain files",
                     "'%s' is not a plain file", path);
  }
  *size = (uint64_t)status.st_size;
  return WEFT_OK;
}

/* Up to `size` bytes; fewer at the end of the file. */
static int read_bytes(int descriptor, unsigned char *bytes, uint64_t size, uint64_t *got) {
  *got = 0;
  while (*got < size) {
    const uint64_t left = size - *got;
    const ssize_t count =
        read(descriptor, bytes + *got, (size_t)(left < CALL_BYTES_MAX ? left : CALL_BYTES_MAX));
    if (count < 0 && errno != EINTR) {
      return errno;
    }
    if (count == 0) {
      return 0;
    }
    *got += count > 0 ? (uint64_t)count : 0;
  }
  return 0;
}

static enum weft_status read_open(int descriptor, const char *path, unsigned char *bytes,
                                  uint64_t size, struct weft_error *error) {
  unsigned char beyond;
  uint64_t got, more = 0;
  int code = read_bytes(descriptor, bytes, size, &got);
  if (code == 0 && got == size) {
    code = read_bytes(descriptor, &beyond, 1, &more);
  }
  if (code != 0) {
    return weft_gpt_fail_system(error, code, "read", path);
  }
  if (got != size || more != 0) {
    return weft_fail(error, WEFT_ERR_FORMAT, "nothing may write there during a load",
                     "'%s' has %s than the %" PRIu64 " bytes that it had just now", path,
                     more != 0 ? "more" : "fewer", size);
  }
  return WEFT_OK;
}

enum weft_status weft_gpt_file_read(const struct weft_allocator *allocator, const char *path,
                                    uint64_t size, unsigned char **bytes,
                                    struct weft_error *error) {
  assert(bytes != NULL);
  unsigned char *all = weft_gpt_allocate(allocator, size, 1);
  int descriptor, code;
  if (all == NULL) {
    return weft_fail_memory(error, size);
  }
  /* Not to hang if it has become a pipe. */
  DO(NULL, "", path, descriptor = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK), code);
  enum weft_status status;
  if (code != 0) {
    status = weft_gpt_fail_system(error, code, "open", path);
  } else {
    status = read_open(descriptor, path, all, size, error);
    (void)close(descriptor);
  }
  if (status < 0) {
    weft_gpt_free(allocator, all);
    return status;
  }
  *bytes = all;
  return WEFT_OK;
}
