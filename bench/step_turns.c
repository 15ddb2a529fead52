/* Turns by named pipes: a byte on one is the word to go, or that a rank is done. A rank that
 * waits sleeps, and takes nothing from the one whose turn it is. */
#include "bench/step_turns.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "bench/bench_clock.h"
#include "cli/cli.h"

enum { NS_PER_MS = 1000 * 1000, LOOK_MS = 50 };

/* ---- Pipes ---- */

/* Of a rank, or of a party's end of steps where the rank is none of it. */
static bool name_pipe(const char *path, uint32_t rank, char name[WEFT_CLI_TURN_PATH]) {
  const int length = rank < WEFT_CLI_TURN_RANKS
                         ? snprintf(name, WEFT_CLI_TURN_PATH, "%s-%u", path, (unsigned)rank)
                         : snprintf(name, WEFT_CLI_TURN_PATH, "%s-done", path);
  return length > 0 && length < WEFT_CLI_TURN_PATH;
}

static int open_pipe(const char *path, uint32_t rank, int how) {
  char name[WEFT_CLI_TURN_PATH];
  return name_pipe(path, rank, name) ? open(name, how | O_CLOEXEC) : -1;
}

static void remove_pipe(const char *path, uint32_t rank) {
  char name[WEFT_CLI_TURN_PATH];
  if (name_pipe(path, rank, name)) {
    (void)unlink(name);
  }
}

/* For both directions: so it can be opened before anybody else is there, and never ends. */
static int make_pipe(const char *path, uint32_t rank) {
  char name[WEFT_CLI_TURN_PATH];
  return name_pipe(path, rank, name) && mkfifo(name, 0600) == 0 ? open_pipe(path, rank, O_RDWR)
                                                                : -1;
}

static void close_pipe(int *fd) {
  if (*fd >= 0) {
    (void)close(*fd);
  }
  *fd = -1;
}

static bool write_byte(int fd) {
  ssize_t wrote;
  do {
    wrote = write(fd, "", 1);
  } while (wrote < 0 && errno == EINTR);
  return wrote == 1;
}

static bool read_byte(int fd) {
  char byte;
  ssize_t got;
  do {
    got = read(fd, &byte, 1);
  } while (got < 0 && errno == EINTR);
  return got == 1;
}

/* ---- Who gives turns ---- */

void weft_cli_turns_path(const struct weft_cli_turns *turns, uint32_t party,
                         char path[WEFT_CLI_TURN_PATH]) {
  (void)snprintf(path, WEFT_CLI_TURN_PATH, "%.200s/party%u", turns->folder, (unsigned)party);
}

bool weft_cli_turns_open(struct weft_cli_turns *turns) {
  const char *where = getenv("TMPDIR");
  char path[WEFT_CLI_TURN_PATH];
  memset(turns->go, -1, sizeof turns->go);
  memset(turns->done, -1, sizeof turns->done);
  (void)snprintf(turns->folder, sizeof turns->folder, "%.150s/weft-turns-XXXXXX",
                 where != NULL && where[0] != '\0' ? where : "/tmp");
  if (mkdtemp(turns->folder) == NULL) {
    turns->folder[0] = '\0';
    return false;
  }
  bool is_whole = true;
  for (uint32_t party = 0; party < WEFT_CLI_TURN_PARTIES && is_whole; party++) {
    weft_cli_turns_path(turns, party, path);
    turns->done[party] = make_pipe(path, WEFT_CLI_TURN_RANKS);
    is_whole = turns->done[party] >= 0;
    for (uint32_t r = 0; r < WEFT_CLI_TURN_RANKS && is_whole; r++) {
      turns->go[party][r] = make_pipe(path, r);
      is_whole = turns->go[party][r] >= 0;
    }
  }
  return is_whole;
}

void weft_cli_turns_close(struct weft_cli_turns *turns) {
  char path[WEFT_CLI_TURN_PATH];
  if (turns->folder[0] == '\0') {
    return;
  }
  for (uint32_t party = 0; party < WEFT_CLI_TURN_PARTIES; party++) {
    weft_cli_turns_path(turns, party, path);
    for (uint32_t r = 0; r < WEFT_CLI_TURN_RANKS; r++) {
      close_pipe(&turns->go[party][r]);
      remove_pipe(path, r);
    }
    close_pipe(&turns->done[party]);
    remove_pipe(path, WEFT_CLI_TURN_RANKS);
  }
  (void)rmdir(turns->folder);
}

/* False: the party has ended, or its time is over. */
static bool await_rank(int fd, const struct weft_cli_child *child) {
  struct pollfd wanted[] = {{.fd = fd, .events = POLLIN}, {.fd = child->fd, .events = 0}};
  for (;;) {
    const uint64_t passed_ms = (weft_cli_clock_ns() - child->begin_ns) / NS_PER_MS;
    if (passed_ms >= child->limit_ms) {
      return false;
    }
    const int count = poll(wanted, 2, (int)(child->limit_ms - passed_ms));
    if (count > 0 && (wanted[0].revents & POLLIN) != 0) {
      return read_byte(fd);
    }
    if (count > 0 || (count < 0 && errno != EINTR)) {
      return false;
    }
  }
}

void weft_cli_turns_let_go(const struct weft_cli_turns *turns, uint32_t party) {
  for (uint32_t r = 0; r < WEFT_CLI_TURN_RANKS; r++) {
    (void)write_byte(turns->go[party][r]); /* a pipe that nobody reads has room for it */
  }
}

bool weft_cli_turns_give(const struct weft_cli_turns *turns, uint32_t party,
                         const struct weft_cli_child *child, uint64_t *ns) {
  const uint64_t begin = weft_cli_clock_ns();
  bool goes_on = child->fd >= 0;
  weft_cli_turns_let_go(turns, party);
  for (uint32_t r = 0; r < WEFT_CLI_TURN_RANKS && goes_on; r++) {
    goes_on = await_rank(turns->done[party], child);
  }
  *ns = weft_cli_clock_ns() - begin;
  return goes_on;
}

/* ---- A rank ---- */

static bool open_turn(struct weft_cli_turn *turn, const char *path, uint32_t rank) {
  turn->go = open_pipe(path, rank, O_RDONLY);
  turn->done = open_pipe(path, WEFT_CLI_TURN_RANKS, O_WRONLY);
  return turn->go >= 0 && turn->done >= 0;
}

/* Whoever gives turns holds the pipe open; when they are gone it hangs up. */
static bool await_turn(const struct weft_cli_turn *turn, struct weft_transport *transport) {
  for (;;) {
    struct pollfd wanted = {.fd = turn->go, .events = POLLIN};
    const int count = poll(&wanted, 1, LOOK_MS);
    if (count > 0) {
      return (wanted.revents & POLLIN) != 0 && read_byte(turn->go);
    }
    if (count < 0 && errno != EINTR) {
      return false;
    }
    if (transport != NULL) {
      transport->ops->progress_from_compute(transport);
    }
  }
}

void weft_cli_turn_take(struct weft_cli_turn *turn, const char *path, uint32_t rank, bool is_first,
                        struct weft_transport *transport) {
  const bool has_said = is_first ? open_turn(turn, path, rank) : write_byte(turn->done);
  if (!has_said || !await_turn(turn, transport)) {
    _exit(WEFT_CLI_PEER);
  }
}

void weft_cli_turn_close(struct weft_cli_turn *turn) {
  close_pipe(&turn->go);
  close_pipe(&turn->done);
}
