/* Messages on stderr. They must work when memory has run out, so they are composed in a fixed
 * buffer; what does not fit is truncated. */
#ifndef CLI_MESSAGE_H
#define CLI_MESSAGE_H

#include "cli/cli.h"

/* Writes to a descriptor until all is written; 0, or the errno of the failure. */
int weft_cli_write_all(int fd, const char *data, size_t size);

/* Outside text with control bytes escaped, truncated. */
struct weft_cli_words weft_cli_quoted(const char *text);

/* One word of a shell that is no option: plain where it can be, else 'in quotes'; with control bytes
 * or bytes that are no UTF-8, $'...', which bash, zsh and POSIX.1-2024 know. */
void weft_cli_add_shell_word(struct weft_text *text, const char *word);

/* A file as such a word, for a command in a hint; "-" for NULL, which is
 * standard input, and FILE where the name is too long for a hint. */
struct weft_cli_words weft_cli_shell_word(const char *path);

/* Prints "weft: " + who + the sentence, and "  hint: " + hint unless it is NULL. */
void weft_cli_print(const struct weft_cli *cli, const char *hint, const char *format, ...)
    WEFT_PRINTF(3, 4);

/* Messages that are written already, with `who` ("rank 2: ") in front of each. */
enum { WEFT_CLI_WHO_SIZE = 48 };
void weft_cli_print_as(const struct weft_cli *cli, const char *who, const char *text, size_t size);

/* As weft_cli_print(), and returns WEFT_CLI_USAGE. */
int weft_cli_usage(const struct weft_cli *cli, const char *hint, const char *format, ...)
    WEFT_PRINTF(3, 4);

/* Out of memory: prints that and returns the exit status. */
int weft_cli_fail_memory(const struct weft_cli *cli);

/* Reports an error of the library that concerns the command's options (file
 * NULL) or a file; returns the exit status for it. */
int weft_cli_fail(const struct weft_cli *cli, const char *file, const struct weft_error *error);

/* The same for a name that is none of a schedule's: the hint also says where names come from. */
int weft_cli_fail_schedule(const struct weft_cli *cli, const struct weft_error *error);

/* What weft_cli_fail() returns where `status` is a failure, else WEFT_CLI_OK. */
int weft_cli_result(const struct weft_cli *cli, const char *file, enum weft_status status,
                    const struct weft_error *error);

/* The exit status that weft_cli_fail() returns, without printing anything. */
int weft_cli_exit_status(const char *file, const struct weft_error *error);

/* As weft_cli_fail() for text that did not parse: the place first, and the line
 * with a caret below. */
int weft_cli_fail_text(const struct weft_cli *cli, const char *file, const char *text, size_t size,
                       const struct weft_error *error);

#endif
