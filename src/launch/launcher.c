/* Launchers and the environment variables that they set: mpirun of Open MPI, PMI (MPICH and
 * its kin), Slurm. */
#include <dirent.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <weft/launch.h>
#include <weft/support.h>

#include "comm/mpi/mpi_driver.h"
#include "launch/supervisor.h"

bool weft_launch_read_number(const char *text, uint64_t *number) {
  char *end = NULL;
  if (text == NULL || text[0] < '0' || text[0] > '9') {
    return false;
  }
  *number = strtoull(text, &end, 10);
  return *end == '\0';
}

/* The first of these variables that is a number. */
static uint32_t first_number(const char *const *names, size_t count, uint32_t otherwise) {
  for (size_t i = 0; i < count; i++) {
    uint64_t number;
    if (weft_launch_read_number(getenv(names[i]), &number) && number <= UINT32_MAX) {
      return (uint32_t)number;
    }
  }
  return otherwise;
}

static const char *const ranks[] = {"OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK",
                                    "SLURM_PROCID"};

/* The rank that a process has whose environment this is, NAME=VALUE after NAME=VALUE, each with its
 * NUL. False: no launcher started it. */
static bool find_rank(const char *environment, size_t size, uint32_t *rank) {
  for (size_t k = 0; k < WEFT_ARRAY_LENGTH(ranks); k++) {
    const size_t length = strlen(ranks[k]);
    for (const char *at = environment; at < environment + size; at += strlen(at) + 1) {
      uint64_t number;
      if (strncmp(at, ranks[k], length) == 0 && at[length] == '=' &&
          weft_launch_read_number(at + length + 1, &number) && number <= UINT32_MAX) {
        *rank = (uint32_t)number;
        return true;
      }
    }
  }
  return false;
}

struct weft_launch_info weft_launch_info(void) {
  static const char *const counts[] = {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_NTASKS"};
  static const char *const local_counts[] = {"OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS"};
  const char *launcher = weft_mpi_launcher();
  if (launcher == NULL) {
    return (struct weft_launch_info){.rank_count = 1, .ranks_on_host = 1};
  }
  const uint32_t count = first_number(counts, WEFT_ARRAY_LENGTH(counts), 1);
  return (struct weft_launch_info){
      .launcher = launcher,
      .rank = first_number(ranks, WEFT_ARRAY_LENGTH(ranks), 0),
      .rank_count = count,
      .ranks_on_host = first_number(local_counts, WEFT_ARRAY_LENGTH(local_counts), count)};
}

/* ---- Which rank of this host keeps MPI from starting ----
 *
 * MPI does not say; but all processes that the launcher started here are its children: supervisors,
 * whose child is their rank, and what is not a supervisor yet, because a script runs another
 * program first, say. */

struct process {
  intmax_t pid, parent;
  char state; /* of /proc/PID/stat: T is stopped, t is stopped by a debugger */
};

static bool read_process(const char *name, struct process *process) {
  char path[64], line[512];
  uint64_t pid;
  if (!weft_launch_read_number(name, &pid)) {
    return false;
  }
  (void)snprintf(path, sizeof path, "/proc/%" PRIu64 "/stat", pid);
  FILE *file = fopen(path, "re");
  const bool got = file != NULL && fgets(line, sizeof line, file) != NULL;
  const char *rest = got ? strrchr(line, ')') : NULL; /* a name may have any characters */
  if (file != NULL) {
    (void)fclose(file);
  }
  process->pid = (intmax_t)pid;
  return rest != NULL && sscanf(rest + 1, " %c %jd", &process->state, &process->parent) == 2;
}

static struct process *read_processes(size_t *count) {
  struct process *all = NULL, one;
  DIR *folder = opendir("/proc");
  *count = 0;
  for (const struct dirent *entry; folder != NULL && (entry = readdir(folder)) != NULL;) {
    if (!read_process(entry->d_name, &one)) {
      continue;
    }
    struct process *more = weft_array_resize(NULL, all, *count, *count + 1, sizeof *all);
    if (more == NULL) {
      break;
    }
    all = more;
    all[(*count)++] = one;
  }
  if (folder != NULL) {
    (void)closedir(folder);
  }
  return all;
}

/* What it was started with; false: it is no rank. */
static bool rank_of(intmax_t pid, uint32_t *rank) {
  char path[64], text[65536];
  (void)snprintf(path, sizeof path, "/proc/%jd/environ", pid);
  FILE *file = fopen(path, "re");
  const size_t size = file != NULL ? fread(text, 1, sizeof text - 1, file) : 0;
  if (file != NULL) {
    (void)fclose(file);
  }
  text[size] = '\0';
  return find_rank(text, size, rank);
}

/* Whether it runs this program; also where that cannot be seen. */
static bool is_like_this(intmax_t pid) {
  char path[64], own[PATH_MAX] = "", other[PATH_MAX] = "";
  (void)snprintf(path, sizeof path, "/proc/%jd/exe", pid);
  return readlink("/proc/self/exe", own, sizeof own - 1) <= 0 ||
         readlink(path, other, sizeof other - 1) <= 0 || strcmp(own, other) == 0;
}

static bool is_stopped(const struct process *process) {
  return process->state == 'T' || process->state == 't';
}

/* The process itself, or a child of it: a script that became a supervisor has more than its rank. */
static const struct process *find_stopped(const struct process *all, size_t count,
                                          const struct process *process) {
  const struct process *found = is_stopped(process) ? process : NULL;
  for (size_t k = 0; k < count; k++) {
    if (all[k].parent == process->pid && is_stopped(&all[k])) {
      found = &all[k];
    }
  }
  return found;
}

bool weft_launch_find_missing(intmax_t launcher, char *text, size_t size) {
  size_t count;
  struct process *all = read_processes(&count);
  bool found = false;
  for (size_t k = 0; k < count && !found; k++) {
    uint32_t rank;
    if (all[k].parent != launcher || !rank_of(all[k].pid, &rank)) {
      continue;
    }
    const struct process *stopped = find_stopped(all, count, &all[k]);
    found = stopped != NULL || !is_like_this(all[k].pid);
    if (found) {
      (void)snprintf(text, size, "rank %" PRIu32 " (process %jd) %s", rank,
                     stopped != NULL ? stopped->pid : all[k].pid,
                     stopped != NULL ? "is stopped" : "runs another program");
    }
  }
  weft_array_free(NULL, all, count, sizeof *all);
  return found;
}
