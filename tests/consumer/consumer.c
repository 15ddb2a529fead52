/* A user of the library, as in the tutorial at the top of weft/weft.h: from a
 * name to a proven program. Built through pkg-config and through CMake. */
#include <stdio.h>
#include <string.h>
#include <weft/weft.h>

int main(void) {
  struct weft_shape shape = {.ranks = 4, .microbatches = 8};
  struct weft_error error;
  struct weft_program *table = NULL;
  struct weft_program *program = NULL;
  struct weft_report *report = NULL;

  if (strcmp(weft_version(), WEFT_VERSION) != 0) {
    fprintf(stderr, "library %s, headers %s\n", weft_version(), WEFT_VERSION);
    return 1;
  }
  if (weft_generate(NULL, "1F1B", &shape, &table, &error) != WEFT_OK ||
      weft_lower(NULL, table, NULL, &program, &error) != WEFT_OK ||
      weft_verify(NULL, program, NULL, &report, &error) != WEFT_OK) {
    fprintf(stderr, "%s\n%s\n", error.message, error.hint);
    return 1;
  }
  puts(report->ok ? "cannot hang" : report->findings[0].message);
  weft_report_destroy(report);
  weft_program_destroy(program);
  weft_program_destroy(table);
  return 0;
}
