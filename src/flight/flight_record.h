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
  uint64_t entry;  /* its place in the dump */
  uint64_t batch;  /* transfers with the same number were started together */
  uint64_t before; /* transfers of the row before this one since training began; once it is known */
};

/* A collective that a rank has started and not done; texts are of the dump, or "". */
struct weft_flight_collective {
  const char *name;     /* "nccl:_all_gather_base" */
  const char *group;    /* its process group: the description, else the name */
  const char *ranks;    /* of the group: "[2, 6]" */
  const char *file;     /* of the Python frame that has started it */
  const char *function; /* of the same */
  uint64_t line;
  int64_t group_id;
};

struct weft_flight_record {
  const char *name; /* NULL: there is no dump of this rank */
  uint32_t rank;
  bool whole;                             /* nothing is lost of its beginning */
  uint64_t last_done;                     /* the last batch that is done; 0: not known */
  struct weft_flight_transfer *transfers; /* payloads only, in the order of their start */
  size_t count;
  struct weft_flight_collective *collectives; /* the oldest one of each group */
  size_t collective_count;
};

/* Reads a dump; what it keeps lives in the arena. WEFT_ERR_FORMAT, WEFT_ERR_MEMORY. */
enum weft_status weft_flight_record_read(struct weft_arena *arena,
                                         const struct weft_flight_dump *dump,
                                         struct weft_flight_record *record,
                                         struct weft_error *error);

#endif
