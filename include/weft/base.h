/* Weft base: status codes, errors, memory.
 *
 * Everything in Weft reports trouble in one of three ways, never mixed:
 *   - a bug of ours is an assert;
 *   - a failure of the world (no memory, malformed file, a limit) is an
 *     enum weft_status plus a struct weft_error that a person can act on;
 *   - a wrong schedule is a finding in a report (weft/verify.h).
 *
 * What a function returns through a pointer (`out`, the last arguments before `error`) it writes
 * only on success: after a failure *out is as it was before the call, so start with NULL where you
 * destroy it in any case.
 *
 * The library never prints, never exits, and keeps no global state, except that libweft-run, which
 * loads libraries of others, keeps those loaded, and sets variables of the environment that they
 * read when they start, each only where it is not set: CUDA_DEVICE_MAX_CONNECTIONS when a GPU is
 * first used; NCCL_HOSTID, NCCL_IGNORE_CPU_AFFINITY and NCCL_RUNTIME_CONNECT when a world over NCCL
 * is opened; OMPI_MCA_ess_singleton_isolated and OMPI_MCA_mpi_yield_when_idle when Weft starts MPI.
 * setenv() is not safe beside getenv() in other threads: open GPUs and worlds before you start
 * threads, or set the variables yourself. docs/mpi.md says what they are for; weft/launch.h
 * has more of its own. */
#ifndef WEFT_BASE_H
#define WEFT_BASE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define WEFT_API __attribute__((visibility("default")))
#define WEFT_PRINTF(message, first) __attribute__((format(printf, message, first)))
#else
#define WEFT_API
#define WEFT_PRINTF(message, first)
#endif

#define WEFT_VERSION_MAJOR 0
#define WEFT_VERSION_MINOR 1
#define WEFT_VERSION_PATCH 0
#define WEFT_VERSION "0.1.0"

/* The version of the library that is linked, which may differ from the
 * header's when it is shared. */
WEFT_API const char *weft_version(void);

/* 0 is success, negative is failure, positive is "not yet, try again". */
enum weft_status {
  WEFT_OK = 0,
  WEFT_IN_PROGRESS = 1, /* nothing is wrong, it is not finished: call again */
  WEFT_ERR_USAGE = -1,  /* the caller asked for something that cannot be: bad shape, unknown name */
  WEFT_ERR_FORMAT = -2, /* malformed input text */
  WEFT_ERR_LIMIT = -3,  /* more than a stated limit; the message gives both numbers */
  WEFT_ERR_MEMORY = -4, /* the allocator returned NULL */
  WEFT_ERR_INVALID = -5,      /* well-formed, but not a schedule that can be executed */
  WEFT_ERR_MISSING = -6,      /* a file is not there */
  WEFT_ERR_IO = -7,           /* reading or writing failed */
  WEFT_ERR_PEER = -8,         /* another rank died, or is not the one that was expected */
  WEFT_ERR_STALLED = -9,      /* no progress within the stall limit */
  WEFT_ERR_PROTOCOL = -10,    /* a message is not what it should be: damaged, or out of turn */
  WEFT_ERR_STAGE = -11,       /* a stage's or custom function failed */
  WEFT_ERR_CANCELLED = -12,   /* somebody asked to stop */
  WEFT_ERR_UNAVAILABLE = -13, /* a library or device that is needed is not there */
  WEFT_ERR_INTERNAL = -14,    /* a bug in Weft: two of its parts disagree */
  WEFT_ERR_SYSTEM = -15,      /* the system refuses what is needed: a thread */
  WEFT_ERR_DEVICE = -16       /* a device reports an error: a kernel failed, a launch was refused */
};

/* Stable short name of a status ("ok", "format", ...). */
WEFT_API const char *weft_status_name(enum weft_status status);

/* What went wrong. Written by the function that first knows; callers forward
 * it. Text that came from a file has its control bytes escaped. `message` says
 * what was found, what was expected and where; `hint` says what to do, or is
 * empty. line and column count from 1 and are 0 where there is no place. */
struct weft_error {
  enum weft_status status;
  uint64_t line;
  uint64_t column;
  char message[512];
  char hint[256];
};

/* Where all memory comes from. `reallocate` follows realloc: pointer NULL
 * allocates, new_size 0 frees and returns NULL; old_size is what was asked for
 * before. A failing call returns NULL and leaves the old block alone. It may
 * be called from any thread that calls Weft. */
struct weft_allocator {
  void *(*reallocate)(void *context, void *pointer, size_t old_size, size_t new_size);
  void *context;
};

/* The default: realloc() and free(). A NULL allocator means this one. */
WEFT_API const struct weft_allocator *weft_allocator_default(void);

/* A growing piece of text. Zero-initialise, set `allocator` if not the
 * default, and give it back with weft_text_finish(). `data` is always
 * NUL-terminated once something has been added. Appending after a failure
 * does nothing, so a chain of appends needs one check at its end. */
struct weft_text {
  const struct weft_allocator *allocator;
  char *data;
  size_t size;     /* bytes of text, without the NUL */
  size_t capacity; /* bytes allocated */
  bool failed;     /* an append ran out of memory */
};

WEFT_API void weft_text_finish(struct weft_text *text);
WEFT_API void weft_text_append(struct weft_text *text, const char *data, size_t size);
WEFT_API void weft_text_add(struct weft_text *text, const char *string);
WEFT_API void weft_text_add_number(struct weft_text *text, uint64_t number);
WEFT_API void weft_text_addf(struct weft_text *text, const char *format, ...) WEFT_PRINTF(2, 3);

/* Text from outside, made safe for a terminal: control characters, those that break a line or turn
 * its direction (U+2028, U+202E ...), and bytes that are no UTF-8 become \xNN. */
WEFT_API void weft_text_add_escaped(struct weft_text *text, const char *data, size_t size);

/* WEFT_OK, or WEFT_ERR_MEMORY (and fills error, if given) when an append failed. */
WEFT_API enum weft_status weft_text_status(const struct weft_text *text, struct weft_error *error);

#ifdef __cplusplus
}
#endif
#endif
