/* wasi-libc's, and what it lacks; host.c has the function, which fails. */
#ifndef PLAYGROUND_UNISTD_H
#define PLAYGROUND_UNISTD_H

#include_next <unistd.h>

int pipe(int ends[2]);

#endif
