/* Envelopes between two ranks of a host, through memory that both see, instead of a message
 * of MPI, which takes twice as long. Payloads that do not travel within go by MPI all the
 * same.
 *
 * A sender keeps a letterbox for each of its channels behind its page: a ring of letters.
 * It publishes an index of them when it has opened its channels; a receiver looks it up when
 * it first asks for a letter. A letter is numbered from 1; who finds the number that it
 * awaits, has the letter. How many were taken comes back in a word of the receiver's. */
#ifndef MPI_MPI_LETTERBOX_H
#define MPI_MPI_LETTERBOX_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <weft/transport.h>

enum { WEFT_MPI_LINE = 64 }; /* bytes that a processor passes to another at once */

struct weft_mpi_world;
struct weft_mpi_end;

struct weft_mpi_letter {
  uint64_t number; /* atomic; 0: never written */
  uint64_t size;
  unsigned char envelope[];
};

/* One end's view of a letterbox. */
struct weft_mpi_letterbox {
  unsigned char *letters; /* [mask + 1][letter_size]; NULL: not found yet */
  uint64_t *taken;        /* atomic: by the receiver */
  size_t letter_size;
  uint64_t mask;
  uint64_t written;    /* the sender's */
  uint64_t taken_seen; /* by the sender, of late */
};

/* When channels are opened: makes the letterboxes of those on which this rank sends, and
 * holds on to the memory of those who send to it. WEFT_ERR_MEMORY, WEFT_ERR_UNAVAILABLE. */
enum weft_status weft_mpi_letterboxes_open(struct weft_mpi_world *world, struct weft_error *error);
void weft_mpi_letterboxes_close(struct weft_mpi_world *world);

/* The receiver's letterbox; false while the sender has not made it. */
bool weft_mpi_letterbox_find(struct weft_mpi_world *world, struct weft_mpi_end *end);

static inline struct weft_mpi_letter *weft_mpi_letter_at(const struct weft_mpi_letterbox *box,
                                                         uint64_t position) {
  void *at = box->letters + (position & box->mask) * box->letter_size;
  return at;
}

/* How many the receiver has taken. */
static inline uint64_t weft_mpi_letters_taken(const struct weft_mpi_letterbox *box) {
  return __atomic_load_n(box->taken, __ATOMIC_ACQUIRE);
}

/* There is room for one more. */
static inline bool weft_mpi_letterbox_has_room(struct weft_mpi_letterbox *box) {
  if (box->written - box->taken_seen > box->mask) {
    box->taken_seen = weft_mpi_letters_taken(box);
  }
  return box->written - box->taken_seen <= box->mask;
}

/* The envelope of the next letter is written: off it goes. */
static inline void weft_mpi_letter_post(struct weft_mpi_letterbox *box, uint64_t size) {
  struct weft_mpi_letter *letter = weft_mpi_letter_at(box, box->written++);
  letter->size = size;
  __atomic_store_n(&letter->number, box->written, __ATOMIC_RELEASE);
}

/* The letter at that position; NULL: not yet. */
static inline const struct weft_mpi_letter *weft_mpi_letter_look(
    const struct weft_mpi_letterbox *box, uint64_t position) {
  const struct weft_mpi_letter *letter = weft_mpi_letter_at(box, position);
  return __atomic_load_n(&letter->number, __ATOMIC_ACQUIRE) == position + 1 ? letter : NULL;
}

static inline void weft_mpi_letter_taken(const struct weft_mpi_letterbox *box, uint64_t position) {
  __atomic_store_n(box->taken, position + 1, __ATOMIC_RELEASE);
}

#endif
