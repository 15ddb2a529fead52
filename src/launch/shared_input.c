/* Standard input for all ranks: rank 0 reads it and sends it on in pieces; each rank keeps a
 * copy in an anonymous file. */
#define _GNU_SOURCE /* memfd_create */
#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <weft/launch.h>
#include <weft/support.h>

enum { PIECE_BYTES = 4092 };

struct piece {
  int32_t size; /* 0: the end; below: reading failed, with this errno */
  char bytes[PIECE_BYTES];
};

static void read_piece(int fd, struct piece *piece) {
  ssize_t got;
  do {
    got = read(fd, piece->bytes, sizeof piece->bytes);
  } while (got < 0 && errno == EINTR);
  piece->size = got < 0 ? -errno : (int32_t)got;
}

static bool write_all(int fd, const char *bytes, size_t size) {
  while (size > 0) {
    const ssize_t written = write(fd, bytes, size);
    if (written < 0 && errno != EINTR) {
      return false;
    }
    bytes += written > 0 ? written : 0;
    size -= written > 0 ? (size_t)written : 0;
  }
  return true;
}

/* `pieces` has room for those of all ranks; rank 0's is the first. A rank that cannot keep
 * its copy still takes part to the end. */
static enum weft_status copy_input(struct weft_transport *transport, int input, int copy,
                                   struct piece *pieces, struct weft_error *error) {
  struct piece mine = {.size = 0, .bytes = ""};
  bool kept = copy >= 0;
  do {
    if (transport->rank == 0) {
      read_piece(input, &mine);
    }
    WEFT_TRY(weft_allgather(transport, &mine, pieces, sizeof mine, 0, error));
    kept =
        kept && (pieces[0].size <= 0 || write_all(copy, pieces[0].bytes, (size_t)pieces[0].size));
  } while (pieces[0].size > 0);
  if (pieces[0].size < 0) {
    return weft_fail(error, WEFT_ERR_IO, "write it to a file, and give its name",
                     "cannot read standard input: %s", strerror(-pieces[0].size));
  }
  return kept && lseek(copy, 0, SEEK_SET) == 0
             ? WEFT_OK
             : weft_fail(error, WEFT_ERR_MEMORY, "", "there is no memory for standard input");
}

enum weft_status weft_launch_share_input(struct weft_transport *transport, int input, int *copy,
                                         struct weft_error *error) {
  WEFT_NEED(transport, error);
  WEFT_NEED(copy, error);
  const uint32_t p = transport->rank_count;
  struct piece *pieces = weft_array_allocate(NULL, p, sizeof *pieces);
  if (pieces == NULL) {
    return weft_fail_memory(error, p * sizeof *pieces);
  }
  const int fd = memfd_create("weft-input", MFD_CLOEXEC);
  const enum weft_status status = copy_input(transport, input, fd, pieces, error);
  weft_array_free(NULL, pieces, p, sizeof *pieces);
  if (status < 0 && fd >= 0) {
    (void)close(fd);
  } else if (status == WEFT_OK) {
    *copy = fd;
  }
  return status;
}
