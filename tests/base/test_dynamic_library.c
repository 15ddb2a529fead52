/* Libraries that are loaded at run time, tried with the C library, which is always there. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include <weft/support.h>

static struct {
  size_t (*strlen)(const char *text);
  void (*weft_no_such_function)(void);
} api;

static const struct weft_library_symbol symbols[] = {
    {"strlen", (void *)&api.strlen, false},
    {"weft_no_such_function", (void *)&api.weft_no_such_function, true}};
static const char *const names[] = {"libweft-no-such-library.so.7", "libc.so.6"};

static struct weft_library library_of(size_t name_count) {
  return (struct weft_library){.title = "C library",
                               .names = names,
                               .name_count = name_count,
                               .symbols = symbols,
                               .symbol_count = WEFT_ARRAY_LENGTH(symbols),
                               .hint = "install libc6"};
}

static void the_first_library_that_is_there_is_taken(void **state) {
  (void)state;
  struct weft_error error;
  struct weft_library library = library_of(2);
  api.weft_no_such_function = (void (*)(void))abort;
  assert_int_equal(weft_library_load(&library, &error), WEFT_OK);
  assert_int_equal(api.strlen("weft"), 4);
  assert_true(api.weft_no_such_function == NULL);
  library.name_count = 1; /* it is loaded once, so this does not matter any more */
  assert_int_equal(weft_library_load(&library, &error), WEFT_OK);
}

static void the_message_names_the_library_and_what_to_install(void **state) {
  (void)state;
  struct weft_error error;
  struct weft_library library = library_of(1);
  assert_int_equal(weft_library_load(&library, &error), WEFT_ERR_UNAVAILABLE);
  assert_string_equal(error.message,
                      "there is no C library here: libweft-no-such-library.so.7 is not found");
  assert_string_equal(error.hint, "install libc6");
}

static void a_missing_function_is_named(void **state) {
  (void)state;
  struct weft_error error;
  const struct weft_library_symbol missing = {"weft_no_such_function",
                                              (void *)&api.weft_no_such_function, false};
  struct weft_library library = library_of(2);
  library.symbols = &missing, library.symbol_count = 1;
  assert_int_equal(weft_library_load(&library, &error), WEFT_ERR_UNAVAILABLE);
  assert_string_equal(error.message,
                      "libweft-no-such-library.so.7 is too old: it has no weft_no_such_function");
}

static void a_library_that_cannot_be_opened_has_a_reason(void **state) {
  (void)state;
  const char *reason = NULL;
  assert_null(weft_library_open(names[0], true, &reason));
  assert_non_null(strstr(reason, "cannot open shared object file"));
}

struct offers {
  int rejected, all;
};

static bool accept_after(void *library, bool any, void *context) {
  struct offers *offers = context;
  assert_non_null(library);
  offers->all++;
  if (offers->rejected > 0) {
    offers->rejected--;
    return false;
  }
  (void)any;
  return true;
}

static bool accept_any(void *library, bool any, void *context) {
  struct offers *offers = context;
  assert_non_null(library);
  offers->all++;
  return any;
}

/* libc.so.6 is the one of the names libc.so.8 ... libc.so.5 that there is. */
static void versions_are_tried_from_the_newest(void **state) {
  (void)state;
  struct offers offers = {.all = 0};
  assert_non_null(weft_library_open_version("libc.so", "/nowhere", 5, 8, accept_after, &offers));
  assert_int_equal(offers.all, 1);
  offers = (struct offers){.all = 0};
  assert_non_null(weft_library_open_version("libc.so", "/nowhere", 5, 5, accept_any, &offers));
  assert_int_equal(offers.all, 1); /* 6 is newer: the second pass has it */
  offers = (struct offers){.rejected = 2};
  assert_null(weft_library_open_version("libc.so", "/nowhere", 5, 8, accept_after, &offers));
  assert_int_equal(offers.all, 2);
  offers = (struct offers){.all = 0};
  assert_null(
      weft_library_open_version("libweft-no-such.so", "/nowhere", 5, 8, accept_any, &offers));
  assert_int_equal(offers.all, 0);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(the_first_library_that_is_there_is_taken),
      cmocka_unit_test(the_message_names_the_library_and_what_to_install),
      cmocka_unit_test(a_missing_function_is_named),
      cmocka_unit_test(a_library_that_cannot_be_opened_has_a_reason),
      cmocka_unit_test(versions_are_tried_from_the_newest)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
