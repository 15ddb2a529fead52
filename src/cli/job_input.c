/* Standard input for all ranks. Rank 0 reads, and hands it on piece by piece; each rank
 * keeps a copy in a file without a name. */
#define _GNU_SOURCE /* memfd_create */
#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "cli/io/error_message.h"
#include "cli/job.h"

struct piece {
  int32_t size; /* 0: the end; below: reading failed, with this code */
  char bytes[WEFT_EXCHANGE_MAX - sizeof(int32_t)];
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

/* `pieces` has room for all ranks'; rank 0's is the first. */
static int copy_input(struct weft_cli_job *job, struct piece *pieces) {
  struct weft_error error;
  struct piece mine = {.size = 0};
  bool kept = true; /* a rank that could not keep it still takes part to the end */
  do {
    if (job->transport->rank == 0) {
      read_piece(job->cli.input, &mine);
    }
    if (weft_cli_job_exchange(job->transport, &mine, pieces, sizeof mine, &error) < 0) {
      return weft_cli_fail(&job->cli, NULL, &error);
    }
    kept = kept &&
           (pieces[0].size <= 0 || write_all(job->input, pieces[0].bytes, (size_t)pieces[0].size));
  } while (pieces[0].size > 0);
  if (pieces[0].size < 0) {
    weft_cli_say(&job->cli, "write it to a file, and give its name",
                 "cannot read standard input: %s", strerror(-pieces[0].size));
    return WEFT_CLI_IO;
  }
  return kept && lseek(job->input, 0, SEEK_SET) == 0 ? WEFT_CLI_OK
                                                     : weft_cli_fail_memory(&job->cli);
}

int weft_cli_job_share_input(struct weft_cli_job *job) {
  const struct weft_allocator *allocator = job->cli.allocator;
  const size_t size = job->transport->rank_count * sizeof(struct piece);
  if (job->transport->rank_count == 1) {
    return WEFT_CLI_OK;
  }
  job->input = memfd_create("weft-input", MFD_CLOEXEC);
  struct piece *pieces = allocator->reallocate(allocator->context, NULL, 0, size);
  if (pieces == NULL) {
    return weft_cli_fail_memory(&job->cli);
  }
  const int status = copy_input(job, pieces);
  (void)allocator->reallocate(allocator->context, pieces, size, 0);
  job->cli.input = job->input;
  job->cli.input_terminal = false;
  return status;
}
