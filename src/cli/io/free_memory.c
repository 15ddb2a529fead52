/* Linux reports what is available without swapping; containers limit it by control groups
 * (version 2): the group of the process and all above it. */
#include "cli/io/free_memory.h"

#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>

/* The number behind `label` in a file; UINT64_MAX: there is none, or no such file. */
static uint64_t read_labelled(const char *path, const char *label) {
  FILE *file = fopen(path, "re");
  uint64_t number = UINT64_MAX;
  char line[256];
  const size_t size = strlen(label);
  while (file != NULL && fgets(line, sizeof line, file) != NULL) {
    if (strncmp(line, label, size) == 0 && sscanf(line + size, "%" SCNu64, &number) == 1) {
      break;
    }
  }
  if (file != NULL) {
    (void)fclose(file);
  }
  return number;
}

/* The process's group as /proc/self/cgroup has it: "0::/a/b"; "" when it is not so. */
static void find_group(char *group, size_t size) {
  FILE *file = fopen("/proc/self/cgroup", "re");
  char line[PATH_MAX];
  group[0] = '\0';
  while (file != NULL && fgets(line, sizeof line, file) != NULL) {
    if (strncmp(line, "0::", 3) == 0) {
      line[strcspn(line, "\n")] = '\0';
      (void)snprintf(group, size, "%s", line + 3);
      break;
    }
  }
  if (file != NULL) {
    (void)fclose(file);
  }
}

static uint64_t left_in_group(const char *group) {
  char path[2 * PATH_MAX];
  (void)snprintf(path, sizeof path, "/sys/fs/cgroup%s/memory.max", group);
  const uint64_t most = read_labelled(path, ""); /* "max" is no number */
  (void)snprintf(path, sizeof path, "/sys/fs/cgroup%s/memory.current", group);
  const uint64_t used = read_labelled(path, "");
  return most == UINT64_MAX || used == UINT64_MAX ? UINT64_MAX : (most > used ? most - used : 0);
}

uint64_t weft_cli_free_memory(void) {
  const uint64_t available = read_labelled("/proc/meminfo", "MemAvailable:");
  char group[PATH_MAX];
  uint64_t least = available < UINT64_MAX / 1024 ? available * 1024 : UINT64_MAX;
  find_group(group, sizeof group);
  for (;;) { /* up to the root, which is "" */
    const uint64_t left = left_in_group(group);
    char *slash = strrchr(group, '/');
    least = left < least ? left : least;
    if (slash == NULL) {
      break;
    }
    *slash = '\0';
  }
  return least != UINT64_MAX ? least : 0;
}
