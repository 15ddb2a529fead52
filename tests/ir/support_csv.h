/* Programs from text and files, for tests. Everything fails the test (cmocka)
 * rather than return an error. */
#ifndef TESTS_SUPPORT_CSV_H
#define TESTS_SUPPORT_CSV_H

#include <weft/ir.h>

/* The program of a CSV text. */
struct weft_program *csv_program(const char *text);

/* The CSV text of a program, on the heap: free(). */
char *csv_text(const struct weft_program *program);

/* A file's bytes and a NUL, on the heap: free(). `path` is relative to the
 * source tree. */
char *csv_read_file(const char *path);

/* The program in the golden file tests/golden/<name>. */
struct weft_program *csv_golden(const char *name);

/* Calls visit for each golden file whose name ends in `suffix`, with the name
 * up to there, in no particular order; returns how many. */
size_t csv_each_golden(const char *suffix, void (*visit)(const char *stem));

#endif
