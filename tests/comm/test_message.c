/* Messages: every single flipped bit is found, limits are where they should be,
 * and nothing that comes leads the check beyond the message. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <weft/transport.h>

#include <weft/support.h>

#define CAPACITY UINT64_C(4096)

static struct weft_message make_message(uint32_t tensor_count) {
  struct weft_message message = {.header = {.magic = WEFT_MESSAGE_MAGIC,
                                            .protocol = WEFT_PROTOCOL,
                                            .kind = WEFT_MESSAGE_GRADIENT,
                                            .tensor_count = (uint8_t)tensor_count,
                                            .stage = 3,
                                            .microbatch = 5,
                                            .step = 1000000,
                                            .sequence = 77,
                                            .bytes = 96 * tensor_count,
                                            .program = 0xdeadbeef,
                                            .payload_checksum = 1},
                                 .capacity = CAPACITY};
  for (uint32_t k = 0; k < tensor_count; k++) {
    message.shapes[k] =
        (struct weft_tensor_shape){.dtype = WEFT_F32, .dim_count = 3, .dims = {2, 3, 4}};
  }
  weft_message_seal(&message);
  return message;
}

static void check_good(const struct weft_message *message) {
  struct weft_error error = {0};
  if (weft_message_check(message, &error) != WEFT_OK) {
    fail_msg("%s", error.message);
  }
}

static void check_bad(const struct weft_message *message, const char *word) {
  struct weft_error error = {0};
  assert_int_equal(weft_message_check(message, &error), WEFT_ERR_PROTOCOL);
  assert_int_equal(error.status, WEFT_ERR_PROTOCOL);
  assert_true(error.hint[0] != '\0');
  if (strstr(error.message, word) == NULL) {
    fail_msg("\"%s\" does not say \"%s\"", error.message, word);
  }
  assert_int_equal(weft_message_check(message, NULL), WEFT_ERR_PROTOCOL);
}

/* ---- Damage ---- */

static void test_every_flipped_bit_is_found(void **state) {
  (void)state;
  for (uint32_t count = 0; count <= WEFT_TENSORS_MAX; count++) {
    struct weft_message message = make_message(count);
    unsigned char *const parts[2] = {(unsigned char *)&message.header,
                                     (unsigned char *)message.shapes};
    const size_t sizes[2] = {sizeof message.header, count * sizeof message.shapes[0]};
    check_good(&message);
    for (int part = 0; part < 2; part++) {
      for (size_t bit = 0; bit < 8 * sizes[part]; bit++) {
        parts[part][bit / 8] ^= (unsigned char)(1u << (bit % 8));
        check_bad(&message, "message");
        parts[part][bit / 8] ^= (unsigned char)(1u << (bit % 8));
      }
    }
    check_good(&message);
  }
}

/* What is not in use may be anything. */
static void test_the_rest_does_not_count(void **state) {
  (void)state;
  struct weft_message message = make_message(2);
  memset(&message.shapes[2], 0xa5, sizeof message.shapes - 2 * sizeof message.shapes[0]);
  message.begin = 1;
  message.end = 2;
  message.state[0] = message.state[1] = UINT64_MAX;
  check_good(&message);
}

/* Any byte set to any value, and two words exchanged. */
static void test_other_damage_is_found(void **state) {
  (void)state;
  const struct weft_message good = make_message(2);
  struct weft_random random = {4};
  const size_t size = sizeof good.header + 2 * sizeof good.shapes[0];
  _Static_assert(offsetof(struct weft_message, shapes) == sizeof(struct weft_message_header),
                 "shapes follow the header");
  for (int trial = 0; trial < 100000; trial++) {
    struct weft_message message = good;
    unsigned char *bytes = (unsigned char *)&message;
    const size_t first = weft_random_below(&random, (uint32_t)size / 8) * 8;
    const size_t second = weft_random_below(&random, (uint32_t)size / 8) * 8;
    if (trial % 2 == 0) {
      bytes[weft_random_below(&random, (uint32_t)size)] = (unsigned char)weft_random_next(&random);
    } else {
      memcpy(bytes + first, (const unsigned char *)&good + second, 8);
      memcpy(bytes + second, (const unsigned char *)&good + first, 8);
    }
    if (memcmp(&message, &good, size) == 0) {
      check_good(&message);
    } else {
      check_bad(&message, "message");
    }
  }
}

/* ---- Fields ---- */

static void test_fields_are_named(void **state) {
  (void)state;
  struct weft_message message = make_message(1);
  message.header.magic++;
  check_bad(&message, "magic");
  message = make_message(1);
  message.header.protocol = WEFT_PROTOCOL + 1;
  weft_message_seal(&message);
  check_bad(&message, "protocol 2 where 1 is expected");
  message = make_message(1);
  message.header.checksum ^= 1;
  check_bad(&message, "checksum");
  /* What a receiver expects of these is not the check's business. */
  message = make_message(1);
  message.header.stage = message.header.microbatch = UINT32_MAX;
  message.header.step = message.header.sequence = UINT64_MAX;
  weft_message_seal(&message);
  check_good(&message);
}

static void test_tensor_counts(void **state) {
  (void)state;
  struct weft_message message;
  check_good(&(struct weft_message){.header = make_message(0).header});
  message = make_message(WEFT_TENSORS_MAX);
  check_good(&message);
  for (uint32_t count = WEFT_TENSORS_MAX + 1; count <= UINT8_MAX; count++) {
    message.header.tensor_count = (uint8_t)count; /* sealing it would be our bug */
    check_bad(&message, "tensors");
  }
}

static void test_bytes(void **state) {
  (void)state;
  static const struct {
    uint64_t bytes;
    bool good;
  } cases[] = {{0, true},
               {CAPACITY - 1, true},
               {CAPACITY, true},
               {CAPACITY + 1, false},
               {UINT64_C(1) << 63, false},
               {UINT64_MAX, false}};
  for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
    struct weft_message message = make_message(0);
    message.header.bytes = cases[c].bytes;
    weft_message_seal(&message);
    if (cases[c].good) {
      check_good(&message);
    } else {
      check_bad(&message, "room for 4096");
    }
  }
}

static void check_shape(struct weft_tensor_shape shape, bool good) {
  struct weft_message message = make_message(2);
  message.shapes[1] = shape;
  weft_message_seal(&message);
  if (good) {
    check_good(&message);
  } else {
    check_bad(&message, "tensor 1");
  }
}

static void test_shapes(void **state) {
  (void)state;
  struct weft_tensor_shape shape = {.dtype = WEFT_F32};
  check_shape(shape, true); /* one number */
  for (uint32_t dtype = 0; dtype <= UINT8_MAX; dtype++) {
    check_shape((struct weft_tensor_shape){.dtype = (uint8_t)dtype},
                dtype >= WEFT_F32 && dtype < WEFT_DTYPE_END);
  }
  for (uint32_t count = 0; count <= UINT8_MAX; count++) {
    shape = (struct weft_tensor_shape){
        .dtype = WEFT_I8, .dim_count = (uint8_t)count, .dims = {1, 1, 1, 1, 1, 1}};
    check_shape(shape, count <= WEFT_DIMS_MAX);
  }
  shape = (struct weft_tensor_shape){.dtype = WEFT_F32, .dim_count = 2, .dims = {CAPACITY / 8, 2}};
  check_shape(shape, true); /* all of the room */
  shape.dims[0]++;
  check_shape(shape, false);
  shape.dims[0] = 0;
  check_shape(shape, true); /* nothing in it */
}

/* Dimensions whose product overflows, to something small too. */
static void test_absurd_shapes(void **state) {
  (void)state;
  static const uint64_t dims[][WEFT_DIMS_MAX] = {
      {UINT64_MAX, 1, 1, 1, 1, 1},
      {UINT64_MAX, UINT64_MAX, 1, 1, 1, 1},
      {UINT64_C(1) << 32, UINT64_C(1) << 32, 1, 1, 1, 1}, /* 2^64: 0 */
      {UINT64_C(1) << 62, 1, 1, 1, 1, 1},                 /* 2^64 bytes: 0 */
      {(UINT64_C(1) << 62) + 1, 1, 1, 1, 1, 1},           /* 4 bytes */
      {UINT64_C(1) << 11, UINT64_C(1) << 11, UINT64_C(1) << 11, UINT64_C(1) << 11,
       UINT64_C(1) << 11, UINT64_C(1) << 9},         /* 2^64 */
      {UINT64_C(0xaaaaaaaaaaaaaaab), 3, 1, 1, 1, 1}, /* 1 */
      {UINT64_C(1) << 63, 2, 0, 1, 1, 1},            /* 0, and yet absurd */
      {UINT32_MAX, UINT32_MAX, UINT32_MAX, UINT32_MAX, UINT32_MAX, UINT32_MAX},
  };
  for (size_t k = 0; k < sizeof dims / sizeof dims[0]; k++) {
    struct weft_tensor_shape shape = {.dtype = WEFT_F32, .dim_count = WEFT_DIMS_MAX};
    memcpy(shape.dims, dims[k], sizeof shape.dims);
    check_shape(shape, false);
  }
}

/* ---- Checksums of payloads ---- */

static void test_payload_checksums(void **state) {
  (void)state;
  unsigned char data[64] = {0};
  struct weft_random random = {9};
  for (size_t size = 0; size <= sizeof data; size++) {
    const uint64_t sum = weft_checksum(data, size);
    assert_true(sum != 0);
    assert_true(sum == weft_checksum(data, size));
    assert_true(size == 0 || sum != weft_checksum(data, size - 1)); /* zeros count too */
    for (size_t bit = 0; bit < 8 * size; bit++) {
      data[bit / 8] ^= (unsigned char)(1u << (bit % 8));
      assert_true(weft_checksum(data, size) != sum);
      data[bit / 8] ^= (unsigned char)(1u << (bit % 8));
    }
  }
  for (size_t k = 0; k < sizeof data; k++) {
    data[k] = (unsigned char)weft_random_next(&random);
  }
  for (size_t offset = 0; offset < 8; offset++) { /* wherever it lies */
    unsigned char moved[72];
    memcpy(moved + offset, data, 40);
    assert_true(weft_checksum(moved + offset, 40) == weft_checksum(data, 40));
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_every_flipped_bit_is_found),
      cmocka_unit_test(test_the_rest_does_not_count),
      cmocka_unit_test(test_other_damage_is_found),
      cmocka_unit_test(test_fields_are_named),
      cmocka_unit_test(test_tensor_counts),
      cmocka_unit_test(test_bytes),
      cmocka_unit_test(test_shapes),
      cmocka_unit_test(test_absurd_shapes),
      cmocka_unit_test(test_payload_checksums),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
