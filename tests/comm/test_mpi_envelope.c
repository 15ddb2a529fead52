/* Envelopes of the mpi transport: what is written is read, message after message, in few
 * bytes; and what cannot be right is seen. Needs no MPI. */
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

#include <weft/support.h>
/* The driver, of which it is a part, is loaded, not linked. */
#include "comm/mpi/driver/mpi_envelope.c" // NOLINT(bugprone-suspicious-include)

enum { BYTES_MAX = 5000, ROUNDS = 2000 };

struct channel {
  struct weft_mpi_memory sender, receiver;
  unsigned char wire[WEFT_MPI_ENVELOPE_MAX];
  size_t size;
};

static void assert_same(const struct weft_message *a, const struct weft_message *b) {
  assert_memory_equal(&a->header, &b->header, sizeof a->header);
  assert_memory_equal(a->shapes, b->shapes, count_shapes(&a->header) * sizeof a->shapes[0]);
}

/* Returns how many bytes travelled. */
static size_t pass(struct channel *channel, const struct weft_message *message) {
  struct weft_message got;
  memset(&got, 0xee, sizeof got);
  channel->size = weft_mpi_envelope_write(&channel->sender, BYTES_MAX, message, channel->wire);
  assert_true(channel->size <= WEFT_MPI_ENVELOPE_MAX);
  const struct weft_mpi_envelope found = weft_mpi_envelope_read(
      &channel->receiver, BYTES_MAX, channel->wire, sizeof channel->wire, &got);
  assert_int_equal(found.fault, WEFT_MPI_ENVELOPE_GOOD);
  assert_int_equal(found.size, channel->size);
  assert_same(message, &got);
  assert_int_equal(weft_mpi_envelope_time(got.begin, message->begin + 12345), message->begin);
  assert_int_equal(weft_mpi_envelope_time(got.begin, message->begin - 777), message->begin);
  return channel->size;
}

static struct weft_message make_message(void) {
  return (struct weft_message){.header = {.magic = WEFT_MESSAGE_MAGIC,
                                          .protocol = WEFT_PROTOCOL,
                                          .tensor_count = 1,
                                          .stage = 3,
                                          .bytes = 96,
                                          .program = 0xabcdef},
                               .shapes = {{.dtype = WEFT_F32, .dim_count = 2, .dims = {4, 6}}},
                               .begin = INT64_C(1) << 50};
}

/* As an executor sends: the microbatch goes on by one, and everything else is as it was. */
static void most_are_small(void **state) {
  struct channel channel = {.size = 0};
  struct weft_message message = make_message();
  (void)state;
  for (uint32_t k = 0; k < 64; k++) {
    message.header.sequence = k;
    message.header.microbatch = k % 16;
    message.header.step = k / 16;
    weft_message_seal(&message);
    message.begin += 1000;
    const size_t size = pass(&channel, &message);
    if (k == 0) {
      assert_int_equal(size, 16 + 64 + 56);
    } else if (k % 16 > 2) {
      assert_int_equal(size, 16);
    } else {
      assert_true(size <= 40);
    }
  }
}

/* Anything may come after anything. */
static void any_message_travels(void **state) {
  struct weft_random random = {.state = 7};
  struct channel channel = {.size = 0};
  struct weft_message message = make_message();
  (void)state;
  for (int k = 0; k < ROUNDS; k++) {
    uint64_t words[WEFT_MPI_HEADER_WORDS];
    memcpy(words, &message.header, sizeof words);
    words[weft_random_below(&random, WEFT_MPI_HEADER_WORDS)] = weft_random_next(&random);
    memcpy(&message.header, words, sizeof words);
    message.header.tensor_count = (uint8_t)weft_random_below(&random, 12);
    if (weft_random_below(&random, 4) == 0) {
      message.shapes[weft_random_below(&random, WEFT_TENSORS_MAX)].dims[1] =
          weft_random_below(&random, 9);
    }
    message.begin = (int64_t)(weft_random_next(&random) >> 2);
    (void)pass(&channel, &message);
  }
}

/* Every cut is seen, and nothing is read beyond it (the address sanitizer looks). */
static void a_cut_is_seen(void **state) {
  struct weft_message message = make_message(), got;
  unsigned char out[WEFT_MPI_ENVELOPE_MAX], cut[WEFT_MPI_ENVELOPE_MAX];
  (void)state;
  for (int later = 0; later < 2; later++) {
    struct weft_mpi_memory sender = {.is_set = false}, before = {.is_set = false};
    size_t size = weft_mpi_envelope_write(&sender, BYTES_MAX, &message, out);
    if (later) {
      (void)weft_mpi_envelope_read(&before, BYTES_MAX, out, size, &got);
      message.shapes[0].dims[0]++;
      message.header.sequence += 5;
      size = weft_mpi_envelope_write(&sender, BYTES_MAX, &message, out);
    }
    for (size_t k = 0; k < size; k++) {
      struct weft_mpi_memory memory = before;
      memcpy(cut + sizeof cut - k, out, k);
      const struct weft_mpi_envelope found =
          weft_mpi_envelope_read(&memory, BYTES_MAX, cut + sizeof cut - k, k, &got);
      assert_int_equal(found.fault, WEFT_MPI_ENVELOPE_SHORT);
      assert_int_equal(found.found, k);
      assert_true(found.expected > k);
    }
  }
}

static void ends_are_held_against_each_other(void **state) {
  struct weft_mpi_memory sender = {.is_set = false}, receiver = {.is_set = false};
  struct weft_message message = make_message(), got;
  unsigned char out[WEFT_MPI_ENVELOPE_MAX];
  (void)state;
  const size_t size = weft_mpi_envelope_write(&sender, 100, &message, out);
  const struct weft_mpi_envelope found = weft_mpi_envelope_read(&receiver, 200, out, size, &got);
  assert_int_equal(found.fault, WEFT_MPI_ENVELOPE_FOREIGN);
  assert_int_equal(found.found, 100);
  assert_int_equal(found.expected, 200);
  /* A first message where another one is due, and the other way round. */
  assert_int_equal(weft_mpi_envelope_read(&receiver, 100, out, size, &got).fault,
                   WEFT_MPI_ENVELOPE_GOOD);
  assert_int_equal(weft_mpi_envelope_read(&receiver, 100, out, size, &got).fault,
                   WEFT_MPI_ENVELOPE_SHORT);
  (void)weft_mpi_envelope_write(&sender, 100, &message, out);
  receiver.is_set = false;
  assert_int_equal(weft_mpi_envelope_read(&receiver, 100, out, sizeof out, &got).fault,
                   WEFT_MPI_ENVELOPE_SHORT);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(most_are_small),
      cmocka_unit_test(any_message_travels),
      cmocka_unit_test(a_cut_is_seen),
      cmocka_unit_test(ends_are_held_against_each_other),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
