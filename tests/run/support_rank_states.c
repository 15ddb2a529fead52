/* A transport that is nothing but boards. */
#include "support_rank_states.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

static struct boards *boards_of(struct weft_transport *transport) {
  return (struct boards *)(void *)transport; /* its first member */
}

static int64_t boards_now(struct weft_transport *transport) { return boards_of(transport)->now; }

static struct weft_rank_status *boards_board(struct weft_transport *transport, uint32_t rank) {
  assert(rank < transport->rank_count);
  return &boards_of(transport)->boards[rank];
}

static bool boards_failed(struct weft_transport *transport, struct weft_failure *failure) {
  struct boards *boards = boards_of(transport);
  if (boards->has_failed) {
    *failure = boards->failure;
  }
  return boards->has_failed;
}

void boards_init(struct boards *boards, uint32_t rank_count, const char *name) {
  *boards = (struct boards){.now = INT64_C(100000000000)};
  boards->ops = (struct weft_transport_ops){.name = name,
                                            .virtual_time = strstr(name, "loopback") != NULL,
                                            .now = boards_now,
                                            .rank_status = boards_board,
                                            .get_failure = boards_failed};
  boards->transport = (struct weft_transport){.ops = &boards->ops, .rank_count = rank_count};
  boards->boards = calloc(rank_count, sizeof *boards->boards);
  assert(boards->boards != NULL);
  for (uint32_t r = 0; r < rank_count; r++) {
    boards->boards[r].peer = UINT32_MAX;
  }
}

void boards_finish(struct boards *boards) { free(boards->boards); }

uint64_t board_action(const char *text) {
  struct weft_program *program = NULL;
  uint64_t bits = 0;
  if (text[0] == '\0') {
    return 0;
  }
  const enum weft_status status =
      weft_program_parse(NULL, text, strlen(text), "action", &program, NULL);
  assert(status == WEFT_OK);
  (void)status;
  memcpy(&bits, &program->actions[0], sizeof bits);
  weft_program_destroy(program);
  return bits;
}

void board_set(struct boards *boards, uint32_t rank, enum weft_rank_phase phase, const char *action,
               uint32_t peer, const char *wants, int64_t ago) {
  struct weft_rank_status *board = &boards->boards[rank];
  board->phase = (uint32_t)phase;
  board->action = board_action(action);
  board->peer = peer;
  board->wants = board_action(wants);
  board->since = boards->now - ago;
}

void board_note(struct boards *boards, uint32_t rank, const char *action, int64_t begin,
                int64_t end) {
  struct weft_rank_status *board = &boards->boards[rank];
  board->recent[board->recent_count++ % WEFT_STATUS_RECENT] =
      (struct weft_recent_action){.action = board_action(action), .begin = begin, .end = end};
}
