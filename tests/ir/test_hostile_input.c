/* Hostile input is cheap: whatever 1 KiB of CSV says, no step that it can reach
 * (reader, verifier, lowering, dry run, grid, difference) ever holds more than
 * 8 MiB, and everything is given back. Memory goes through the allocator hook,
 * so that is counted, not estimated. */
#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <weft/support.h>
#include <weft/weft.h>

#include "support_memory.h"
#include "support_oracle.h"
#include "support_random_program.h"

#define INPUT_MAX 1024u
#define BYTES_MAX (8u * 1024 * 1024)
#if defined(__SANITIZE_ADDRESS__)
#define RANDOM_INPUTS 2000u /* about memory; what is right the other build asks all of them */
#else
#define RANDOM_INPUTS 20000u
#endif

/* --- One input through everything ---------------------------------------------- */

static size_t worst;
static uint64_t read_count;

static void assert_cheap(const struct test_memory *memory, const char *step, const char *input) {
  if (memory->bytes_peak > BYTES_MAX) {
    fail_msg("%s held %zu bytes for: %.200s", step, memory->bytes_peak, input);
  }
  worst = memory->bytes_peak > worst ? memory->bytes_peak : worst;
}

static void try_verify(struct test_memory *memory, const struct weft_program *program) {
  static const struct weft_comm_model models[] = {
      {0, WEFT_CHANNEL_EDGE, false},
      {1, WEFT_CHANNEL_RANK, false},
      {WEFT_CAPACITY_UNLIMITED, WEFT_CHANNEL_PAIR, false},
      {0, WEFT_CHANNEL_NCCL_WORLD, false},
      {2, WEFT_CHANNEL_NCCL_DIRECTED, false}};
  for (size_t k = 0; k < sizeof models / sizeof models[0]; k++) {
    struct weft_verify_options options = weft_verify_options_default();
    struct weft_report *report = NULL;
    struct weft_error error = {0};
    options.model = models[k];
    if (weft_verify(&memory->allocator, program, &options, &report, &error) != WEFT_OK) {
      assert_null(report);
      assert_true(error.message[0] != '\0');
    }
    weft_report_destroy(report);
  }
}

static void try_dry_run(struct test_memory *memory, const struct weft_program *program) {
  struct weft_program *steps = NULL;
  struct weft_error error = {0};
  (void)weft_dry_run(&memory->allocator, program, &steps, &error);
  weft_program_destroy(steps);
}

static void try_grid(struct test_memory *memory, const struct weft_program *program) {
  struct weft_text text = {.allocator = &memory->allocator};
  struct weft_error error = {0};
  (void)weft_grid_print(program, NULL, &text, &error);
  weft_text_finish(&text);
}

static void try_lower(struct test_memory *memory, const struct weft_program *program) {
  struct weft_lower_options options = weft_lower_options_default();
  for (int merge = 0; merge < 2; merge++) {
    struct weft_program *out = NULL;
    struct weft_error error = {0};
    options.merge_bw = merge == 1;
    options.unshard_window = merge == 1 ? UINT32_MAX : 3;
    if (weft_lower(&memory->allocator, program, &options, &out, &error) == WEFT_OK) {
      try_verify(memory, out);
      try_dry_run(memory, out);
      weft_program_destroy(out);
    }
  }
}

static void try_passes(struct test_memory *memory, const struct weft_program *program) {
  for (size_t pass = 0; pass < weft_pass_count(); pass++) {
    struct weft_program *out = NULL;
    struct weft_error error = {0};
    (void)weft_pass_at(pass)->run(&memory->allocator, program, NULL, &out, &error);
    weft_program_destroy(out);
  }
}

static void try_diff(struct test_memory *memory, const struct weft_program *program) {
  struct weft_program *other = NULL;
  struct weft_diff *diff = NULL;
  struct weft_error error = {0};
  assert_int_equal(weft_program_parse(&memory->allocator, "0F0,0B0\n", 8, NULL, &other, &error),
                   WEFT_OK);
  (void)weft_diff_create(&memory->allocator, program, other, 100, &diff, &error);
  weft_diff_destroy(diff);
  weft_program_destroy(other);
}

static void (*const steps[])(struct test_memory *, const struct weft_program *) = {
    try_verify, try_dry_run, try_grid, try_lower, try_passes, try_diff};
static const char *const step_names[] = {"verify", "dry run", "grid", "lower", "passes", "diff"};

/* The peak is taken for each step alone, on top of what the program holds. */
static void try_input(const char *text, size_t size) {
  struct test_memory memory;
  struct weft_program *program = NULL;
  struct weft_error error = {0};
  test_memory_init(&memory);
  const enum weft_status status =
      weft_program_parse(&memory.allocator, text, size, "hostile", &program, &error);
  assert_cheap(&memory, "parse", text);
  if (status != WEFT_OK) {
    assert_null(program);
    assert_int_equal(memory.blocks, 0);
    return;
  }
  read_count++;
  for (size_t k = 0; k < sizeof steps / sizeof steps[0]; k++) {
    const size_t before = memory.bytes;
    memory.bytes_peak = before;
    steps[k](&memory, program);
    assert_cheap(&memory, step_names[k], text);
    assert_int_equal(memory.bytes, before);
  }
  weft_program_destroy(program);
  assert_int_equal(memory.blocks, 0);
  assert_int_equal(memory.bytes, 0);
}

/* --- Inputs made to hurt ----------------------------------------------------------- */

static const char *const pieces[] = {
    ",",                   /* as many bubbles as fit */
    "\n",                  /* as many ranks as fit */
    ",\n",                 /* ... each with bubbles */
    "\"\"\n",              /* ... each with one */
    "0F0\n",               /* a stage on every rank */
    "0F0,",                /* the same action again and again */
    "65535F16777215,",     /* the largest numbers */
    "65535F16777215\n",    /* ... on every rank */
    "65535F0,0F16777215,", /* each large once */
    "0F0,65535F16777215,", /* from one end to the other */
    "65535UNSHARD,",       /* a large stage that nobody computes */
    "65535UNSHARD,0F0,",
    "0F0,65535SEND_F16777215,", /* a transfer far away */
    "65534SEND_F16777215\n65535RECV_F16777215\n",
    "(65535F16777215;0B16777215)OVERLAP_F_B,",
    "(0F0)OVERLAP_F_B,",
    "(0F0;0F0;0F0;0F0;0F0;0F0;0F0;0F0;0F0;0F0;0F0)OVERLAP_F_B\n",
    "F16777215_s65535,",
    "65535REDUCE_GRAD\n",
    "65535TIE_GRAD\n",
    "0F0,0B0,0TIE_GRAD,65535TIE_GRAD\n",
    "(0SEND_F0;1RECV_F0)OVERLAP_F_B\n",
    "x",
    "(",
    "9",
    "\"",
    "\x1b",
    "\r",
    " ",
};

static void repeated_pieces(void **state) {
  (void)state;
  for (size_t k = 0; k < sizeof pieces / sizeof pieces[0]; k++) {
    char text[INPUT_MAX + 1] = "";
    size_t size = 0;
    for (; size + strlen(pieces[k]) <= INPUT_MAX; size += strlen(pieces[k])) {
      memcpy(text + size, pieces[k], strlen(pieces[k]));
    }
    try_input(text, size);
    if (size > 0 && text[size - 1] == ',') {
      text[size - 1] = '\n';
      try_input(text, size);
    }
  }
}

/* Every stage once (or every microbatch), with gaps so large that a table of all
 * of them would take gigabytes. */
static void sparse_numbers(void **state) {
  (void)state;
  for (uint32_t stride = 1; stride <= 4096; stride *= 4) {
    char text[INPUT_MAX + 1] = "";
    size_t size = 0;
    for (uint32_t k = 0; size + 24 < INPUT_MAX; k++) {
      size += (size_t)snprintf(text + size, sizeof text - size, "%uF%u%c", k * stride % 65536,
                               k * stride * 251 % 16777216, k % 3 == 0 ? '\n' : ',');
    }
    try_input(text, size);
  }
}

/* --- Inputs by chance -------------------------------------------------------------------- */

/* Words of the language with numbers of all sizes, and now and then a byte of
 * anything. */
static size_t random_text(struct weft_random *random, char *text) {
  static const char *const ops[] = {"F",       "B",       "I",           "W",
                                    "SEND_F",  "RECV_F",  "SEND_B",      "RECV_B",
                                    "UNSHARD", "RESHARD", "REDUCE_GRAD", "TIE_GRAD"};
  static const uint32_t bounds[] = {2, 4, 16, 256, 65536};
  const size_t limit = 32 + weft_random_below(random, INPUT_MAX - 64);
  const uint32_t stage_bound = bounds[weft_random_below(random, 5)];
  const uint32_t microbatch_bound = random_chance(random, 30) ? 16777216 : stage_bound;
  size_t size = 0;
  while (size < limit) {
    const uint32_t op = weft_random_below(random, random_chance(random, 60) ? 4 : 12);
    size += (size_t)snprintf(text + size, INPUT_MAX - size, "%u%s",
                             weft_random_below(random, stage_bound), ops[op]);
    if (op < 8) {
      size += (size_t)snprintf(text + size, INPUT_MAX - size, "%u",
                               weft_random_below(random, microbatch_bound));
    }
    text[size++] = random_chance(random, 20) ? '\n' : ',';
  }
  if (random_chance(random, 10)) {
    text[weft_random_below(random, (uint32_t)size)] = (char)weft_random_below(random, 256);
  }
  return size;
}

static void random_inputs(void **state) {
  (void)state;
  struct weft_random random = {.state = 99};
  const uint64_t before = read_count;
  for (uint32_t k = 0; k < RANDOM_INPUTS; k++) {
    char text[INPUT_MAX + 1] = "";
    try_input(text, random_text(&random, text));
  }
  assert_true((read_count - before) * 2 > RANDOM_INPUTS); /* most of them got past the reader */
  printf("at most %zu bytes held\n", worst);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(repeated_pieces),
      cmocka_unit_test(sparse_numbers),
      cmocka_unit_test(random_inputs),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
