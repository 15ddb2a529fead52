/* Which rank of this host keeps MPI from starting. MPI does not say; but all processes that the
 * launcher started here are its children: supervisors, whose child is their rank, and what is not a
 * supervisor yet, because a script runs another program first, say. */
#include <dirent.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <weft/support.h>

#include "launch/supervisor.h"

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
  return weft_launch_rank_in(text, size, rank);
}

/* Whether it runs this program; also where that cannot be seen. */
static bool is_like_this(intmax_t pid) {
  char path[64], own[PATH_MAX] = "", other[PATH_MAX] = "";
  (void)snprintf(path, sizeof path, "/proc/%jd/exe", pid);
  return readlink("/proc/self/exe", own, sizeof own - 1) <= 0 ||
         readlink(path, other, sizeof other - 1) <= 0 || strcmp(own, other) == 0;
}

static bool is_stopped(const struct process *process) {
  return process != NULL && (process->state == 'T' || process->state == 't');
}

bool weft_launch_find_missing(intmax_t launcher, char *text, size_t size) {
  size_t count;
  struct process *all = read_processes(&count);
  bool found = false;
  for (size_t k = 0; k < count && !found; k++) {
    const struct process *child = NULL;
    uint32_t rank;
    if (all[k].parent != launcher || !rank_of(all[k].pid, &rank)) {
      continue;
    }
    for (size_t n = 0; n < count && child == NULL; n++) {
      child = all[n].parent == all[k].pid ? &all[n] : NULL;
    }
    const bool stopped = is_stopped(&all[k]) || is_stopped(child);
    found = stopped || !is_like_this(all[k].pid);
    if (found) {
      (void)snprintf(text, size, "rank %" PRIu32 " (process %jd) %s", rank,
                     is_stopped(child) ? child->pid : all[k].pid,
                     stopped ? "is stopped" : "runs another program");
    }
  }
  weft_array_free(NULL, all, count, sizeof *all);
  return found;
}
