/* Writing and reading envelopes. */
#include "comm/mpi/driver/mpi_envelope.h"

#include <string.h>

_Static_assert(sizeof(struct weft_message_header) == 8 * WEFT_MPI_HEADER_WORDS, "whole words");
_Static_assert(sizeof(struct weft_tensor_shape) == 56, "no padding travels");

enum {
  WORDS_MASK = 0xff,  /* of a mark: words that follow */
  HAS_SHAPES = 0x100, /* shapes follow */
  IS_FIRST = 0x200,   /* bytes_max follows */
  TIME_SHIFT = 16,    /* the rest is the time, in ns: enough for a day and a half */
  WORD = sizeof(uint64_t)
};

static uint32_t count_shapes(const struct weft_message_header *header) {
  return header->tensor_count <= WEFT_TENSORS_MAX ? header->tensor_count : WEFT_TENSORS_MAX;
}

static void remember(struct weft_mpi_memory *memory, const uint64_t *words) {
  const uint64_t has_last = memory->is_set ? UINT64_MAX : 0;
  for (int k = 0; k < WEFT_MPI_HEADER_WORDS; k++) {
    memory->steps[k] = (words[k] - memory->words[k]) & has_last;
  }
  memcpy(memory->words, words, sizeof memory->words);
}

/* ---- writing ---- */

/* Returns which words were written; moves *out behind them. */
static uint64_t write_words(struct weft_mpi_memory *memory, const struct weft_message *message,
                            unsigned char **out) {
  uint64_t words[WEFT_MPI_HEADER_WORDS];
  uint64_t mask = memory->is_set ? 0 : WORDS_MASK;
  memcpy(words, &message->header, sizeof words);
  for (int k = 0; k < WEFT_MPI_HEADER_WORDS; k++) {
    mask |= (uint64_t)(words[k] != memory->words[k] + memory->steps[k]) << k;
  }
  remember(memory, words);
  for (uint64_t left = mask; left != 0; left &= left - 1) {
    memcpy(*out, &words[__builtin_ctzll(left)], WORD);
    *out += WORD;
  }
  return mask;
}

static bool write_shapes(struct weft_mpi_memory *memory, const struct weft_message *message,
                         unsigned char **out) {
  const uint32_t count = count_shapes(&message->header);
  const size_t size = count * sizeof message->shapes[0];
  if (count == memory->shape_count && memcmp(message->shapes, memory->shapes, size) == 0) {
    return false;
  }
  memory->shape_count = count;
  memcpy(memory->shapes, message->shapes, size);
  memcpy(*out, message->shapes, size);
  *out += size;
  return true;
}

size_t weft_mpi_envelope_write(struct weft_mpi_memory *memory, uint64_t bytes_max,
                               const struct weft_message *message, unsigned char *out) {
  unsigned char *at = out + WORD;
  uint64_t mark = (uint64_t)message->begin << TIME_SHIFT;
  if (!memory->is_set) {
    mark |= IS_FIRST;
    memcpy(at, &bytes_max, WORD);
    at += WORD;
  }
  mark |= write_words(memory, message, &at);
  mark |= write_shapes(memory, message, &at) ? HAS_SHAPES : 0;
  memory->is_set = true;
  memcpy(out, &mark, WORD);
  return (size_t)(at - out);
}

/* ---- reading ---- */

static struct weft_mpi_envelope too_short(size_t found, size_t expected) {
  return (struct weft_mpi_envelope){
      .fault = WEFT_MPI_ENVELOPE_SHORT, .found = found, .expected = expected};
}

static void read_words(struct weft_mpi_memory *memory, uint64_t mask, const unsigned char *at,
                       struct weft_message *message) {
  uint64_t words[WEFT_MPI_HEADER_WORDS];
  for (int k = 0; k < WEFT_MPI_HEADER_WORDS; k++) {
    words[k] = memory->words[k] + memory->steps[k];
  }
  for (uint64_t left = mask; left != 0; left &= left - 1) {
    memcpy(&words[__builtin_ctzll(left)], at, WORD);
    at += WORD;
  }
  remember(memory, words);
  memcpy(&message->header, words, sizeof message->header);
}

struct weft_mpi_envelope weft_mpi_envelope_read(struct weft_mpi_memory *memory, uint64_t bytes_max,
                                                const unsigned char *at, size_t size,
                                                struct weft_message *message) {
  uint64_t mark = 0, theirs = bytes_max;
  if (size < WORD) {
    return too_short(size, WORD);
  }
  memcpy(&mark, at, WORD);
  const bool is_first = (mark & IS_FIRST) != 0;
  const size_t words_at = is_first ? 2 * WORD : WORD;
  const size_t shapes_at = words_at + WORD * (size_t)__builtin_popcountll(mark & WORDS_MASK);
  if (size < shapes_at || is_first == memory->is_set) {
    return too_short(size, is_first == memory->is_set ? 0 : shapes_at);
  }
  memcpy(&theirs, at + WORD, is_first ? WORD : 0);
  if (theirs != bytes_max) {
    return (struct weft_mpi_envelope){
        .fault = WEFT_MPI_ENVELOPE_FOREIGN, .found = theirs, .expected = bytes_max};
  }
  read_words(memory, mark & WORDS_MASK, at + words_at, message);
  memory->is_set = true;
  const uint32_t count = count_shapes(&message->header);
  const size_t shapes_size = count * sizeof message->shapes[0];
  const size_t end = shapes_at + ((mark & HAS_SHAPES) != 0 ? shapes_size : 0);
  if (size < end || ((mark & HAS_SHAPES) == 0 && count != memory->shape_count)) {
    return too_short(size, shapes_at + shapes_size);
  }
  if ((mark & HAS_SHAPES) != 0) {
    memory->shape_count = count;
    memcpy(memory->shapes, at + shapes_at, shapes_size);
  }
  if (shapes_size > 0) {
    memcpy(message->shapes, memory->shapes, shapes_size);
  }
  message->begin = (int64_t)(mark >> TIME_SHIFT);
  return (struct weft_mpi_envelope){.fault = WEFT_MPI_ENVELOPE_GOOD, .size = end};
}

int64_t weft_mpi_envelope_time(int64_t begin, int64_t now) {
  const uint64_t late = ((uint64_t)now - (uint64_t)begin) << TIME_SHIFT;
  return now - (int64_t)late / (1 << TIME_SHIFT); /* signed: clocks of two hosts */
}
