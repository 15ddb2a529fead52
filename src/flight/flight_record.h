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
  uint32_t group;  /* of the record's groups */
  uint64_t entry;  /* its place in the dump */
  uint64_t batch;  /* transfers with the same number were started together */
  uint64_t before; /* transfers of the row before this one since training began; once it is known */
};

/* A collective that a rank has started and not done; texts are of the dump, or "". */
struct weft_flight_collective {
  const char *name;     /* "nccl:_all_gather_base"; NULL: there is none */
  const char *file;     /* of the Python frame that has started it */
  const char *function; /* of the same */
  uint64_t line;
  uint64_t number; /* in its process group; 0: not known */
};

/* A process group that a rank is in; texts are of the dump, or "". */
struct weft_flight_group {
  const char *name;
  const char *description; /* else the name; NULL: it has no entry */
  int64_t id;              /* in pg_status, if it has an entry */
  const char *ranks_text;  /* "[2, 6]" */
  uint32_t *ranks;     /* the same, as numbers in the job; the group counts them in this order */
  uint32_t rank_count; /* 0: not known */
  bool has_transfers, has_collectives;
  uint64_t last;    /* the number of its last entry */
  uint64_t started; /* the number of the last collective that the rank has started */
  uint64_t done;    /* the last one that it has done of those that need all ranks of the group */
  struct weft_flight_collective pending; /* the oldest one */
};

struct weft_flight_record {
  const char *name; /* NULL: there is no dump of this rank */
  uint32_t rank;
  const uint32_t *numbers;                /* of the ranks of its pipeline in the job */
  bool whole;                             /* nothing is lost of its beginning */
  uint64_t last_done;                     /* the last batch that is done; 0: not known */
  struct weft_flight_transfer *transfers; /* payloads only, in the order of their start */
  size_t count;
  struct weft_flight_group *groups;
  uint32_t group_count;
};

/* Reads a dump; what it keeps lives in the arena. WEFT_ERR_FORMAT, WEFT_ERR_MEMORY. */
enum weft_status weft_flight_record_read(struct weft_arena *arena,
                                         const struct weft_flight_dump *dump,
                                         struct weft_flight_record *record,
                                         struct weft_error *error);

#endif
