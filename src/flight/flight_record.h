/* A process's dump as the list of its sends and receives. */
#ifndef FLIGHT_RECORD_H
#define FLIGHT_RECORD_H

#include <weft/flight.h>
#include <weft/support.h>

struct weft_flight_transfer {
  uint32_t peer;
  bool sends;
  bool done;
  bool payload;    /* else it set up the connection, or carried shapes */
  uint32_t group;  /* process group */
  uint64_t batch;  /* transfers with the same number were started together */
  uint64_t before; /* transfers of the row before this one since training began; once it is known */
};

struct weft_flight_record {
  const char *name; /* NULL: there is no dump of this rank */
  uint32_t rank;
  bool whole;                             /* nothing is lost of its beginning */
  uint64_t last_done;                     /* the last batch that is done; 0: not known */
  struct weft_flight_transfer *transfers; /* payloads only, in the order of their start */
  size_t count;
};

/* Reads a dump; what it keeps lives in the arena. WEFT_ERR_FORMAT, WEFT_ERR_MEMORY. */
enum weft_status weft_flight_record_read(struct weft_arena *arena,
                                         const struct weft_flight_dump *dump,
                                         struct weft_flight_record *record,
                                         struct weft_error *error);

#endif
