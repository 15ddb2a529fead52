/* Text as training data: reads it all, and cuts batches out of it. */
#define _POSIX_C_SOURCE 200809L
#include "trainer/data/dataset.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <weft/support.h>

#include "trainer/data/text_files.h"

/* All of it is in memory. */
static const uint64_t size_max = UINT64_C(1) << 30;

/* ---- Reading ---- */

/* Room for at least one byte more. */
static enum weft_status grow(struct weft_gpt_dataset *dataset, struct weft_error *error) {
  const uint64_t capacity = dataset->capacity == 0 ? 65536 : 2 * dataset->capacity;
  uint8_t *bytes = weft_array_resize(dataset->allocator, dataset->bytes, (size_t)dataset->capacity,
                                     (size_t)capacity, 1);
  if (bytes == NULL) {
    return weft_fail_memory(error, capacity);
  }
  dataset->bytes = bytes;
  dataset->capacity = capacity;
  return WEFT_OK;
}

static enum weft_status fail_on(const char *path, struct weft_error *error) {
  const bool missing = errno == ENOENT || errno == ENOTDIR;
  return weft_fail(error, missing ? WEFT_ERR_MISSING : WEFT_ERR_IO,
                   missing ? "give a file of text, or a folder with such files" : "",
                   "%s cannot be read: %s", path, strerror(errno));
}

static enum weft_status check_size(uint64_t size, const char *path, struct weft_error *error) {
  if (size <= size_max) {
    return WEFT_OK;
  }
  return weft_fail(error, WEFT_ERR_LIMIT, "give fewer files",
                   "%" PRIu64 " bytes of text with %s; at most %" PRIu64 " fit", size, path,
                   size_max);
}

static enum weft_status read_open(struct weft_gpt_dataset *dataset, const char *path, int file,
                                  struct weft_error *error) {
  for (;;) {
    if (dataset->size == dataset->capacity) {
      WEFT_TRY(grow(dataset, error));
    }
    const ssize_t count =
        read(file, dataset->bytes + dataset->size, (size_t)(dataset->capacity - dataset->size));
    if (count == 0) {
      return WEFT_OK;
    }
    if (count < 0 && errno != EINTR) {
      return fail_on(path, error);
    }
    dataset->size += count > 0 ? (uint64_t)count : 0;
    WEFT_TRY(check_size(dataset->size, path, error));
  }
}

/* The size is checked before, so that a file that is too large costs no time, and while it is
 * read, because it may grow. */
static enum weft_status read_file(struct weft_gpt_dataset *dataset, const char *path,
                                  struct weft_error *error) {
  struct stat status;
  const int file = open(path, O_RDONLY | O_CLOEXEC);
  if (file < 0) {
    return fail_on(path, error);
  }
  enum weft_status result = fstat(file, &status) != 0
                                ? fail_on(path, error)
                                : check_size(dataset->size + (uint64_t)status.st_size, path, error);
  if (result == WEFT_OK) {
    result = read_open(dataset, path, file, error);
  }
  (void)close(file);
  return result;
}

static enum weft_status read_folder(struct weft_gpt_dataset *dataset, const char *folder,
                                    struct weft_error *error) {
  WEFT_SCOPED_BY(weft_gpt_paths_finish)
  struct weft_gpt_paths paths = {.arena = {.allocator = dataset->allocator}};
  WEFT_TRY(weft_gpt_paths_find(&paths, folder, error));
  for (uint64_t k = 0; k < paths.count; k++) {
    WEFT_TRY(read_file(dataset, paths.items[k], error));
  }
  return WEFT_OK;
}

/* A pipe or a device may never end. */
static enum weft_status read_any(struct weft_gpt_dataset *dataset, const char *path,
                                 struct weft_error *error) {
  struct stat status;
  if (stat(path, &status) != 0) {
    return fail_on(path, error);
  }
  if (S_ISDIR(status.st_mode)) {
    return read_folder(dataset, path, error);
  }
  if (!S_ISREG(status.st_mode)) {
    return weft_fail(error, WEFT_ERR_USAGE, "", "%s is neither a file nor a folder", path);
  }
  return read_file(dataset, path, error);
}

/* ---- Once it is read ---- */

static uint64_t token_bytes(const struct weft_gpt_dataset *dataset) {
  return dataset->token_bytes > 0 ? dataset->token_bytes : 1;
}

static uint32_t token_at(const struct weft_gpt_dataset *dataset, uint64_t k) {
  uint16_t wide;
  if (token_bytes(dataset) == 1) {
    return dataset->bytes[k];
  }
  memcpy(&wide, dataset->bytes + 2 * k, sizeof wide);
  return wide;
}

/* FNV-1a. */
static uint64_t hash_of(const uint8_t *bytes, uint64_t size) {
  uint64_t hash = UINT64_C(0xcbf29ce484222325);
  for (uint64_t k = 0; k < size; k++) {
    hash = (hash ^ bytes[k]) * UINT64_C(0x100000001b3);
  }
  return hash;
}

static enum weft_status divide(struct weft_gpt_dataset *dataset, uint64_t least,
                               struct weft_error *error) {
  const uint64_t validation_size = dataset->size / 10;
  dataset->train_size = dataset->size - validation_size;
  /* The smaller of the two; that of a dataset below 10 bytes is empty. */
  if (validation_size < least || validation_size == 0) {
    return weft_fail(error, WEFT_ERR_USAGE, "give more text, or a shorter context",
                     "%" PRIu64 " %s: the tenth that validates has %" PRIu64
                     ", expected at least %" PRIu64,
                     dataset->size, token_bytes(dataset) == 1 ? "bytes of text" : "tokens",
                     validation_size, least > 0 ? least : 1);
  }
  dataset->hash = hash_of(dataset->bytes, dataset->size * token_bytes(dataset));
  return WEFT_OK;
}

void weft_gpt_dataset_finish(struct weft_gpt_dataset *dataset) {
  weft_array_free(dataset->allocator, dataset->bytes, (size_t)dataset->capacity, 1);
  *dataset = (struct weft_gpt_dataset){0};
}

enum weft_status weft_gpt_dataset_read(struct weft_gpt_dataset *dataset,
                                       const struct weft_allocator *allocator,
                                       const char *const *paths, uint32_t path_count,
                                       uint64_t least, struct weft_error *error) {
  assert(dataset != NULL && (paths != NULL || path_count == 0));
  struct weft_gpt_dataset read = {.allocator = allocator};
  enum weft_status status = WEFT_OK;
  for (uint32_t k = 0; status == WEFT_OK && k < path_count; k++) {
    status = read_any(&read, paths[k], error);
  }
  if (status == WEFT_OK) {
    status = divide(&read, least, error);
  }
  if (status != WEFT_OK) {
    weft_gpt_dataset_finish(&read);
    return status;
  }
  *dataset = read;
  return WEFT_OK;
}

/* ---- Tokens ---- */

/* A file of llm.c begins with 256 numbers of 32 bits: this one, a version, the number of tokens. */
static const uint32_t llmc_magic = 20240520;
enum { LLMC_HEADER_BYTES = 1024 };

/* The file's bytes are those from `begin` on. */
static enum weft_status add_tokens(struct weft_gpt_dataset *dataset, const char *path,
                                   uint64_t begin, uint32_t vocabulary, struct weft_error *error) {
  uint8_t *bytes = dataset->bytes + begin;
  uint64_t size = dataset->size - begin;
  uint32_t header[3] = {0};
  if (size >= LLMC_HEADER_BYTES) {
    memcpy(header, bytes, sizeof header);
  }
  if (size >= LLMC_HEADER_BYTES && header[0] == llmc_magic) {
    size -= LLMC_HEADER_BYTES;
    memmove(bytes, bytes + LLMC_HEADER_BYTES, size);
    if (size != UINT64_C(2) * header[2]) {
      return weft_fail(error, WEFT_ERR_FORMAT, "copy the file again: it is cut off, or not llm.c's",
                       "%s has %" PRIu64 " bytes of tokens; its header says %" PRIu32
                       " tokens of 2 bytes",
                       path, size, header[2]);
    }
  }
  if (size % 2 != 0) {
    return weft_fail(error, WEFT_ERR_FORMAT, "a file of tokens has two bytes for each",
                     "%s has %" PRIu64 " bytes of tokens, an odd number", path, size);
  }
  for (uint64_t k = 0; k < size / 2; k++) {
    uint16_t token;
    memcpy(&token, bytes + 2 * k, sizeof token);
    if (token >= vocabulary) {
      return weft_fail(
          error, WEFT_ERR_FORMAT, "is it a file of tokens of 16 bits? See --vocabulary",
          "%s: token %" PRIu64 " is %u; the vocabulary has %" PRIu32, path, k, token, vocabulary);
    }
  }
  dataset->size = begin + size;
  return WEFT_OK;
}

enum weft_status weft_gpt_dataset_read_tokens(struct weft_gpt_dataset *dataset,
                                              const struct weft_allocator *allocator,
                                              const char *const *paths, uint32_t path_count,
                                              uint32_t vocabulary, uint64_t least,
                                              struct weft_error *error) {
  assert(dataset != NULL && (paths != NULL || path_count == 0));
  struct weft_gpt_dataset read = {.allocator = allocator};
  enum weft_status status = WEFT_OK;
  for (uint32_t k = 0; status == WEFT_OK && k < path_count; k++) {
    const uint64_t begin = read.size;
    status = read_any(&read, paths[k], error);
    if (status == WEFT_OK) {
      status = add_tokens(&read, paths[k], begin, vocabulary, error);
    }
  }
  if (status == WEFT_OK) {
    read.token_bytes = 2;
    read.size /= 2;
    status = divide(&read, least, error);
  }
  if (status != WEFT_OK) {
    weft_gpt_dataset_finish(&read);
    return status;
  }
  *dataset = read;
  return WEFT_OK;
}

enum weft_status weft_gpt_dataset_draw(struct weft_gpt_dataset *dataset,
                                       const struct weft_allocator *allocator, uint64_t seed,
                                       uint32_t vocabulary, uint64_t size,
                                       struct weft_error *error) {
  assert(vocabulary > 0 && size >= 10);
  struct weft_gpt_dataset drawn = {
      .allocator = allocator, .token_bytes = vocabulary > 256 ? 2 : 1, .size = size};
  drawn.capacity = size * drawn.token_bytes;
  drawn.bytes = weft_array_allocate(allocator, (size_t)drawn.capacity, 1);
  if (drawn.bytes == NULL) {
    return weft_fail_memory(error, (size_t)drawn.capacity);
  }
  for (uint64_t k = 0; k < size; k++) {
    const uint16_t token = (uint16_t)(weft_splitmix(seed + k * WEFT_SPLITMIX_STEP) % vocabulary);
    memcpy(drawn.bytes + k * drawn.token_bytes, &token, drawn.token_bytes);
  }
  const enum weft_status status = divide(&drawn, 1, error);
  if (status < 0) {
    weft_gpt_dataset_finish(&drawn);
    return status;
  }
  *dataset = drawn;
  return WEFT_OK;
}

/* ---- Batches ---- */

void weft_gpt_dataset_batch_ahead(const struct weft_gpt_dataset *dataset, bool validation,
                                  uint64_t seed, uint64_t step, uint64_t rows, uint64_t tokens,
                                  uint32_t ahead, void *inputs, void *const *targets) {
  const uint64_t each = token_bytes(dataset), bytes = tokens * each;
  const uint8_t *part = dataset->bytes + (validation ? dataset->train_size : 0) * each;
  const uint64_t size = validation ? dataset->size - dataset->train_size : dataset->train_size;
  assert(ahead > 0 && size >= tokens + ahead); /* the last target is so many tokens further */
  const uint64_t stream = weft_splitmix(weft_splitmix(seed) + step);
  for (uint64_t row = 0; row < rows; row++) {
    const uint64_t drawn = weft_splitmix(stream + row) % (size - tokens);
    const uint64_t last = size - tokens - ahead;
    const uint8_t *begin = part + (drawn < last ? drawn : last) * each;
    memcpy((char *)inputs + row * bytes, begin, bytes);
    for (uint32_t k = 0; k < ahead; k++) {
      memcpy((char *)targets[k] + row * bytes, begin + (k + 1) * each, bytes);
    }
  }
}

void weft_gpt_dataset_batch(const struct weft_gpt_dataset *dataset, bool validation, uint64_t seed,
                            uint64_t step, uint64_t rows, uint64_t tokens, void *inputs,
                            void *targets) {
  weft_gpt_dataset_batch_ahead(dataset, validation, seed, step, rows, tokens, 1, inputs, &targets);
}

double weft_gpt_dataset_unigram_loss(const struct weft_gpt_dataset *dataset) {
  enum { TOKENS = 65536 };
  assert(dataset->train_size > 0);
  WEFT_SCOPED_ARENA arena = {.allocator = dataset->allocator};
  uint64_t *counts = weft_arena_allocate(&arena, TOKENS, sizeof *counts);
  double entropy = 0;
  if (counts == NULL) {
    return NAN;
  }
  for (uint64_t k = 0; k < dataset->train_size; k++) {
    counts[token_at(dataset, k)]++;
  }
  for (unsigned token = 0; token < TOKENS; token++) {
    const double share = (double)counts[token] / (double)dataset->train_size;
    entropy -= counts[token] > 0 ? share * log(share) : 0;
  }
  return entropy;
}
