/* Weft support: small helpers for code written on top of Weft. The libraries, the
 * command, the reference trainer and the examples all use them.
 *
 *     static enum weft_status open_all(struct weft_error *error) {
 *       WEFT_TRY(open_one(error));             // forwards a failure
 *       float *x = weft_array_allocate(NULL, count, sizeof *x);
 *       if (x == NULL) {
 *         return weft_fail_memory(error, count * sizeof *x);
 *       }
 *       return weft_fail(error, WEFT_ERR_USAGE, "what to do", "found %u", 3u);
 *     }
 */
#ifndef WEFT_SUPPORT_H
#define WEFT_SUPPORT_H

#include <weft/base.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Failures: the first function that detects one describes it, the others forward
 * the status ---- */

/* Returns the status of a failing call to the caller. */
#define WEFT_TRY(call)                               \
  do {                                               \
    const enum weft_status weft_try_status = (call); \
    if (weft_try_status < 0) {                       \
      return weft_try_status;                        \
    }                                                \
  } while (0)

/* Returns WEFT_ERR_USAGE to the caller when a pointer that its function needs is NULL: for
 * functions of a public header. */
#define WEFT_NEED(pointer, error)                       \
  do {                                                  \
    if ((pointer) == NULL) {                            \
      return weft_fail_null(error, __func__, #pointer); \
    }                                                   \
  } while (0)
WEFT_API enum weft_status weft_fail_null(struct weft_error *error, const char *function,
                                         const char *argument);

/* Fills *error (unless NULL) and returns `status`. The message is formatted, the hint is
 * literal; either is truncated with "..." when too long. What
 * weft_text_add_escaped() escapes becomes "?" in the message. To say more about a failure, pass error->message and error->hint. */
WEFT_API enum weft_status weft_fail(struct weft_error *error, enum weft_status status,
                                    const char *hint, const char *format, ...) WEFT_PRINTF(4, 5);

/* WEFT_ERR_MEMORY, with the number of bytes that could not be allocated. */
WEFT_API enum weft_status weft_fail_memory(struct weft_error *error, size_t bytes);

/* Copies `size` bytes of outside text into `buffer`, escaped as by weft_text_add_escaped(),
 * truncated with "..."; returns `buffer`. For building messages. */
WEFT_API char *weft_escape(char *buffer, size_t buffer_size, const char *data, size_t size);

/* Characters of well-formed UTF-8: the columns that it takes on a screen. */
WEFT_API size_t weft_count_characters(const char *data, size_t size);

/* A time or size for people: at most three digits behind the point, no zeros at the end; tiny and
 * huge ones with an exponent. WEFT_AMOUNT_SIZE bytes are enough. Returns `buffer`. */
#define WEFT_AMOUNT_SIZE 40
WEFT_API char *weft_amount(char *buffer, size_t size, double amount);

/* How many letters to insert, leave out, change, or swap with the next one, to make one name of the
 * other; case does not matter. SIZE_MAX for names of more than 48 bytes: no typing mistake. */
WEFT_API size_t weft_name_distance(const char *a, size_t a_size, const char *b, size_t b_size);

/* ---- Arrays, with checked sizes. A NULL allocator is the default ---- */

#define WEFT_ARRAY_LENGTH(array) (sizeof(array) / sizeof(array)[0])

/* count x size bytes, not cleared; NULL when out of memory or on overflow. A count of 0
 * gives a pointer that may be freed. */
WEFT_API void *weft_array_allocate(const struct weft_allocator *allocator, size_t count,
                                   size_t size);
/* The same, cleared. */
WEFT_API void *weft_array_allocate_zero(const struct weft_allocator *allocator, size_t count,
                                        size_t size);
/* Resizes; the old block stays valid when it returns NULL. */
WEFT_API void *weft_array_resize(const struct weft_allocator *allocator, void *array,
                                 size_t old_count, size_t new_count, size_t size);
/* NULL is fine; count and size as given at allocation. */
WEFT_API void weft_array_free(const struct weft_allocator *allocator, void *array, size_t count,
                              size_t size);

/* *result = a x b or a + b; false (and *result untouched) on overflow. */
WEFT_API bool weft_multiply(uint64_t a, uint64_t b, uint64_t *result);
WEFT_API bool weft_add(uint64_t a, uint64_t b, uint64_t *result);

/* ---- Arenas: many arrays, one release. Zero-initialise and set `allocator` ----
 *
 *     WEFT_SCOPED_ARENA arena = {.allocator = allocator};
 *     uint32_t *first = weft_arena_allocate(&arena, count, sizeof *first);
 *     double *times = weft_arena_allocate(&arena, count, sizeof *times);
 *     WEFT_TRY(weft_arena_status(&arena, error));  // one check for both
 */
struct weft_arena {
  const struct weft_allocator *allocator;
  struct weft_arena_chunk *chunks; /* newest first */
  size_t failed_bytes;             /* that could not be allocated; 0: all could */
};

/* Aligned for any type, cleared; NULL when out of memory or on overflow. */
WEFT_API void *weft_arena_allocate(struct weft_arena *arena, size_t count, size_t size);
/* A NUL-terminated copy; NULL when out of memory. */
WEFT_API char *weft_arena_copy_text(struct weft_arena *arena, const char *data, size_t size);
/* WEFT_OK, or WEFT_ERR_MEMORY when an allocation failed. */
WEFT_API enum weft_status weft_arena_status(const struct weft_arena *arena,
                                            struct weft_error *error);
/* All of it; the arena may be used again. */
WEFT_API void weft_arena_finish(struct weft_arena *arena);

/* ---- Scopes: what a variable owns is given back when its block is left, whichever way. For
 * GCC and Clang ---- */

#define WEFT_SCOPED_BY(release) __attribute__((cleanup(release)))
#define WEFT_SCOPED_ARENA WEFT_SCOPED_BY(weft_arena_finish) struct weft_arena
#define WEFT_SCOPED_TEXT WEFT_SCOPED_BY(weft_text_finish) struct weft_text

/* A pointer to an object of this type, to be initialised: WEFT_SCOPED(weft_program) table = NULL;
 * after WEFT_SCOPED_TYPE(weft_program), once in the file. */
#define WEFT_SCOPED(type) WEFT_SCOPED_BY(type##_leave) struct type *
#define WEFT_SCOPED_TYPE(type) \
  static inline void type##_leave(struct type **object) { type##_destroy(*object); }

/* ---- Time ---- */

/* Nanoseconds of CLOCK_MONOTONIC. */
WEFT_API int64_t weft_clock_ns(void);

/* ---- Random numbers: splitmix64, the same on every machine for a seed ---- */

struct weft_random {
  uint64_t state; /* any value is a seed */
};

WEFT_API uint64_t weft_random_next(struct weft_random *random);
/* Uniform in 0 ... bound-1; bound > 0. */
WEFT_API uint32_t weft_random_below(struct weft_random *random, uint32_t bound);
/* Uniform in [0, 1). */
WEFT_API double weft_random_share(struct weft_random *random);

/* Counter-based: the n-th number of a stream, from 0, is
 * weft_splitmix(stream + n * WEFT_SPLITMIX_STEP). It also derives a stream from a seed:
 * weft_splitmix(weft_splitmix(seed) + something). */
#define WEFT_SPLITMIX_STEP UINT64_C(0x9e3779b97f4a7c15)
WEFT_API uint64_t weft_splitmix(uint64_t state);

/* ---- Libraries that are loaded at run time ----
 *
 *     static struct { int (*zlibVersion)(void); } api;
 *     static const struct weft_library_symbol symbols[] = {{"zlibVersion", &api.zlibVersion, false}};
 *     static const char *const names[] = {"libz.so.1"};
 *     static struct weft_library library = {"zlib", names, 1, symbols, 1, "install zlib1g"};
 *     WEFT_TRY(weft_library_load(&library, error));
 */
struct weft_library_symbol {
  const char *name;
  void *function; /* where its address goes: of a pointer to a function or an object */
  bool optional;  /* NULL where the library has none */
};

struct weft_library {
  const char *title;        /* "NCCL" */
  const char *const *names; /* the first that can be opened is taken; messages name names[0] */
  size_t name_count;
  const struct weft_library_symbol *symbols;
  size_t symbol_count;
  const char *hint; /* what to install */
  /* What comes after loading, such as a check of its version. NULL: nothing. */
  enum weft_status (*start)(struct weft_error *error);
  bool is_tried; /* by weft_library_load(), with this outcome */
  struct weft_error outcome;
};

/* Once per process: later calls, of any thread, have the same outcome. It stays loaded.
 * WEFT_ERR_UNAVAILABLE: none of the names, or a symbol is missing; else what start() says, which
 * loads no other library. */
WEFT_API enum weft_status weft_library_load(struct weft_library *library, struct weft_error *error);

/* By its name or path. `global`: its symbols are there for other libraries, and it can never be
 * unloaded. NULL: it cannot be opened, and *reason says why, until the thread's next call of these. */
WEFT_API void *weft_library_open(const char *name, bool global, const char **reason);
/* Fills in all symbols up to one that is missing and not optional, whose name it returns; NULL: all
 * are there. */
WEFT_API const char *weft_library_find(void *library, const struct weft_library_symbol *symbols,
                                       size_t count);
/* FILE.MAJOR from `newest` down to `oldest`, FILE, FOLDER/FILE: the first that accepts() takes. If
 * there is none, the same once more with `any` and from newest + 1 on. NULL: none. */
WEFT_API void *weft_library_open_version(const char *file, const char *folder, int oldest,
                                         int newest,
                                         bool (*accepts)(void *library, bool any, void *context),
                                         void *context);

/* ---- Writing JSON: the writer adds commas and escapes; the caller opens and closes ----
 *
 *     struct weft_json json = weft_json_begin(&text, "example/1");
 *     weft_json_number(&json, "ranks", 4);
 *     weft_json_end(&json);
 */
struct weft_json {
  struct weft_text *text;
  bool comma; /* the current level already has a value */
};

/* A document: an object with a member "schema", unless that is NULL, up to its end and a newline. */
WEFT_API struct weft_json weft_json_begin(struct weft_text *text, const char *schema);
WEFT_API void weft_json_end(struct weft_json *json);

/* In all of these `key` is NULL inside an array. */
WEFT_API void weft_json_open(struct weft_json *json, const char *key, char bracket);
WEFT_API void weft_json_close(struct weft_json *json, char bracket);
/* Ends the document: a newline. */
WEFT_API void weft_json_finish(struct weft_json *json);

/* Any bytes: what controls a terminal becomes \u001b, \u202e; a byte that is no UTF-8 becomes the
 * text \xff. null for NULL. */
WEFT_API void weft_json_string(struct weft_json *json, const char *key, const char *value);
WEFT_API void weft_json_number(struct weft_json *json, const char *key, uint64_t value);
/* null where it is not known. */
WEFT_API void weft_json_optional(struct weft_json *json, const char *key, bool known,
                                 uint64_t value);
WEFT_API void weft_json_integer(struct weft_json *json, const char *key, int64_t value);
/* Six significant digits; null when not finite. */
WEFT_API void weft_json_real(struct weft_json *json, const char *key, double value);
/* As many digits as it takes to read the same number back; null when not finite. */
WEFT_API void weft_json_exact(struct weft_json *json, const char *key, double value);
WEFT_API void weft_json_boolean(struct weft_json *json, const char *key, bool value);
WEFT_API void weft_json_null(struct weft_json *json, const char *key);

#ifdef __cplusplus
}
#endif
#endif
