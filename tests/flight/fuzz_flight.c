/* Fuzzes the reader of PyTorch's flight recorder. Two dumps, split at the first byte 0xff, of a job
 * of two ranks. Beyond not crashing, what must hold: a failing call explains itself in printable
 * text, and what was read is explained to the end, with a verdict, in lines that a terminal can
 * show. */
#include <string.h>

#include <weft/flight.h>

#include "support_fuzz.h"

static void explain(const struct weft_program *program, const struct weft_flight_dump *dumps,
                    bool json) {
  struct weft_text text = {.allocator = NULL};
  struct weft_error error = {.status = WEFT_OK};
  const enum weft_status status = weft_flight_explain(NULL, program, dumps, 2, json, &text, &error);
  if (status == WEFT_OK) {
    fuzz_require(fuzz_is_printable(text.data, true), "a control byte in the output");
    fuzz_require(strstr(text.data, json ? "\"culprit\":" : "\nverdict: ") != NULL, "no verdict");
  } else {
    fuzz_require(status == error.status && error.message[0] != '\0', "an error without a message");
    fuzz_require(fuzz_is_printable(error.message, false), "a control byte in the output");
  }
  weft_text_finish(&text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  static const char csv[] =
      "0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1\n"
      "1RECV_F0,1F0,1B0,1SEND_B0,1RECV_F1,1F1,1B1,1SEND_B1\n";
  struct weft_program *program;
  struct weft_error error;
  fuzz_require(weft_program_parse(NULL, csv, sizeof csv - 1, NULL, &program, &error) == WEFT_OK,
               "the program");
  const uint8_t *split = size > 0 ? memchr(data, 0xff, size) : NULL;
  const size_t first = split != NULL ? (size_t)(split - data) : size;
  const struct weft_flight_dump dumps[2] = {{.name = "rank0", .data = data, .size = first},
                                            {.name = "rank1",
                                             .data = split != NULL ? split + 1 : data,
                                             .size = split != NULL ? size - first - 1 : 0}};
  explain(program, dumps, false);
  explain(program, dumps, true);
  weft_program_destroy(program);
  return 0;
}
