/* The other ends of transfers; weft_links_peer() is how others ask for them. */
#ifndef INSPECT_MATCH_H
#define INSPECT_MATCH_H

#include <weft/inspect.h>

/* For each record, the record of the matching instruction on the peer: SEND <-> RECV,
 * TIE_GRAD of the first <-> of the last stage; for all else, none. matches[i] is an index
 * into program->actions or WEFT_MATCH_NONE; the caller provides program->action_count
 * entries. */
enum weft_status weft_program_match(const struct weft_program *program, uint32_t *matches,
                                    struct weft_error *error);

#endif
