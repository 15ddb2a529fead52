/* Names of files and other outside text in a line of a shell that a person copies. What the shell reads
 * back has the same bytes, whatever they are. */
#ifndef CLI_CODE_QUOTES_H
#define CLI_CODE_QUOTES_H

#include <weft/base.h>

/* One word of a shell: plain where it can be, else 'in quotes'; with control bytes or bytes that are
 * no UTF-8, $'...', which bash, zsh and POSIX.1-2024 know. */
void weft_cli_add_shell_word(struct weft_text *text, const char *word);

#endif
