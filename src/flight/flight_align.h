/* Which action of the program each recorded transfer is. */
#ifndef FLIGHT_ALIGN_H
#define FLIGHT_ALIGN_H

#include "flight/flight_record.h"

/* What a rank sends to, or receives from, one other rank in a step. */
struct weft_flight_channel {
  uint32_t peer;
  bool sends;
  uint32_t count;    /* in a step */
  uint32_t *offsets; /* [count] among the transfers of the row */
  uint64_t started;  /* since training began: all that the record shows, and what it has lost */
  uint64_t done;     /* of those */
};

/* A row's sends and receives. */
struct weft_flight_row {
  uint32_t count;    /* of a step */
  uint64_t length;   /* records of the row */
  uint64_t *records; /* [count] into program->actions */
  uint32_t *channel; /* [count] */
  uint32_t *number;  /* [count] on that channel */
  uint64_t *compute; /* [count] which computation makes or uses what it carries, in their order */
  struct weft_flight_channel *channels;
  uint32_t channel_count;
  uint64_t head;  /* offset since training began of the first transfer that is not done */
  bool estimated; /* it is among those that the record has lost, and so are the sizes of batches */
};

/* Reads the rows of a program with communication into rows[rank_count]. */
enum weft_status weft_flight_rows_read(struct weft_arena *arena, const struct weft_program *program,
                                       struct weft_flight_row *rows, struct weft_error *error);

/* NULL: there is none. */
struct weft_flight_channel *weft_flight_channel_find(const struct weft_flight_row *row,
                                                     uint32_t peer, bool sends);

/* The offset, since training began, of the channel's transfer with this number. */
uint64_t weft_flight_offset(const struct weft_flight_row *row,
                            const struct weft_flight_channel *channel, uint64_t number);

/* The opposite: the number, on its channel, of the transfer at an offset. */
uint64_t weft_flight_number(const struct weft_flight_row *row, uint64_t offset);

/* Sets `before` of all transfers, and of the row `head` and its channels' `started` and `done`. `set_up` is the number of
 * batches before the first payload, for a record that has lost its beginning. WEFT_ERR_INVALID
 * when the record is not one of this row, and says what contradicts. */
enum weft_status weft_flight_align(const struct weft_program *program,
                                   const struct weft_flight_record *record, uint64_t set_up,
                                   struct weft_flight_row *row, struct weft_error *error);

/* Where the head of a row is estimated, and those of peers are not, takes it from what the peers
 * have done with the rank. */
void weft_flight_refine(struct weft_flight_row *rows, const struct weft_flight_record *records,
                        uint32_t rank_count);

#endif
