/* What an instruction of a program is tied to: the other end of its transfer,
 * what it waits for, and its channel. For listings. */
#ifndef CLI_PROGRAM_LINKS_H
#define CLI_PROGRAM_LINKS_H

#include <weft/inspect.h>

#define WEFT_CLI_NEEDS_MAX 2

struct weft_cli_links {
  const struct weft_program *program;
  uint32_t *matches;   /* [action_count], see weft_program_match() */
  uint32_t *rank_of;   /* [stage_count] */
  uint32_t *producers; /* first record of each kind per (stage, microbatch) */
  size_t producer_count;
};

/* The stages at the two ends of a SEND's or RECV's channel; the numbers may lie
 * outside the pipeline where the program is wrong. */
struct weft_cli_channel {
  char kind; /* 'F' activations, 'B' gradients */
  int64_t from_stage;
  int64_t to_stage;
};

/* Give it back with weft_cli_links_finish(), also after a failure. */
enum weft_status weft_cli_links_init(struct weft_cli_links *links,
                                     const struct weft_program *program, struct weft_error *error);
void weft_cli_links_finish(struct weft_cli_links *links);

/* The records that record `index` waits for, other than its peer; returns how many. */
unsigned weft_cli_links_needs(const struct weft_cli_links *links, uint64_t index,
                              uint64_t needs[WEFT_CLI_NEEDS_MAX]);

/* False for what is neither SEND nor RECV. */
bool weft_cli_links_channel(const struct weft_action *action, struct weft_cli_channel *channel);

/* The rank that owns a stage; WEFT_RANK_NONE when none does. */
uint32_t weft_cli_links_owner(const struct weft_cli_links *links, int64_t stage);

/* The rank in whose row record `index` stands. */
uint32_t weft_cli_links_rank(const struct weft_program *program, uint64_t index);

#endif
