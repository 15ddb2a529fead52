/* What travels in front of a payload, or apart from it.
 *
 *     mark         8 bytes: which of the following there are, and when it was sent
 *     bytes_max    8, in the first message of a channel: for what its sender opened it
 *     words        8 each, of the header's eight: those that are not as expected
 *     shapes       56 each, unless they are those of the last message
 *
 * Both ends remember the last message of a channel, and expect each word of the header to
 * go on as it did from the one before it. Messages of a channel come in order, so both
 * remember the same. Most envelopes have 16 bytes then, of which 8 are the header's
 * checksum: it is never as expected, and tells if two memories should ever differ. */
#ifndef MPI_MPI_ENVELOPE_H
#define MPI_MPI_ENVELOPE_H

#include <stddef.h>

#include <weft/transport.h>

enum {
  WEFT_MPI_HEADER_WORDS = 8,
  /* Bytes at most, without a payload. */
  WEFT_MPI_ENVELOPE_MAX = 16 + 8 * WEFT_MPI_HEADER_WORDS + 56 * WEFT_TENSORS_MAX
};

/* The last message of a channel, at one of its ends; all zero before the first. */
struct weft_mpi_memory {
  bool is_set;
  uint32_t shape_count;
  uint64_t words[WEFT_MPI_HEADER_WORDS];
  uint64_t steps[WEFT_MPI_HEADER_WORDS]; /* by which they differed from those before */
  struct weft_tensor_shape shapes[WEFT_TENSORS_MAX];
};

/* Writes an envelope; returns its size. `bytes_max`: as the channel was opened. */
size_t weft_mpi_envelope_write(struct weft_mpi_memory *memory, uint64_t bytes_max,
                               const struct weft_message *message, unsigned char *out);

/* What is wrong with an envelope. */
enum weft_mpi_envelope_fault {
  WEFT_MPI_ENVELOPE_GOOD,
  WEFT_MPI_ENVELOPE_SHORT,  /* `found` bytes, `expected` at least */
  WEFT_MPI_ENVELOPE_FOREIGN /* the channel was opened for `found` there, `expected` here */
};

struct weft_mpi_envelope {
  enum weft_mpi_envelope_fault fault;
  uint64_t found, expected;
  size_t size; /* without a fault: its bytes; a payload may follow */
};

/* Reads an envelope that lies in `size` bytes into header, shapes and begin of the message;
 * begin is for weft_mpi_envelope_time(), and header.bytes for the caller to check. */
struct weft_mpi_envelope weft_mpi_envelope_read(struct weft_mpi_memory *memory, uint64_t bytes_max,
                                                const unsigned char *at, size_t size,
                                                struct weft_message *message);
/* The time that is meant by a begin that was read not long before `now`. */
int64_t weft_mpi_envelope_time(int64_t begin, int64_t now);

#endif
