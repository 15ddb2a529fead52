/* The file of choices; see product_choices.h. */
#include "trainer/cuda/product_choices.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include <weft/support.h>

const char *weft_gpt_product_name(enum weft_gpt_product_kind kind) {
  static const char *const names[WEFT_GPT_PRODUCT_KINDS] = {
      "forward", "forward_gelu", "forward_bare", "input", "input_gelu", "weight"};
  return names[kind];
}

enum { LINE = 256 };

static void write_heading(char *to, uint64_t version, const struct weft_cuda_gpu_info *gpu) {
  (void)snprintf(to, LINE, "weft products: cublasLt %" PRIu64 ", %.120s, %" PRIu32 " SMs", version,
                 gpu->name, gpu->sm_count);
}

static bool read_line(const char *line, struct weft_gpt_product_choice *out) {
  char name[32], more;
  if (sscanf(line, "%31s %" SCNu64 " %" SCNu64 " %" SCNu64 " %" SCNu32 " %c", name, &out->rows,
             &out->in, &out->out, &out->algorithm, &more) != 5 ||
      out->algorithm >= WEFT_GPT_PRODUCT_ALGORITHMS) {
    return false;
  }
  for (uint32_t kind = 0; kind < WEFT_GPT_PRODUCT_KINDS; kind++) {
    if (strcmp(name, weft_gpt_product_name(kind)) == 0) {
      out->kind = kind;
      return true;
    }
  }
  return false;
}

static enum weft_status read_lines(struct weft_gpt_product_choices *choices, FILE *file,
                                   const char *path, const char *heading,
                                   struct weft_error *error) {
  char line[LINE] = "";
  choices->count = 0;
  for (uint32_t number = 1; fgets(line, sizeof line, file) != NULL; number++) {
    line[strcspn(line, "\n")] = '\0';
    if (number == 1 && strcmp(line, heading) != 0) {
      return weft_fail(error, WEFT_ERR_USAGE, "measure again with product_algorithms",
                       "%s begins with '%.80s', not with '%s'", path, line, heading);
    }
    if (number == 1 || line[0] == '\0') {
      continue;
    }
    if (choices->count == WEFT_GPT_PRODUCT_CHOICES_MAX ||
        !read_line(line, &choices->items[choices->count])) {
      return weft_fail(error, WEFT_ERR_FORMAT,
                       "a line has a product, its rows, inputs and outputs, and a number below 16",
                       "%s:%" PRIu32 ": '%.80s'", path, number, line);
    }
    choices->count++;
  }
  return WEFT_OK;
}

enum weft_status weft_gpt_product_choices_read(struct weft_gpt_product_choices *choices,
                                               const char *path, uint64_t version,
                                               const struct weft_cuda_gpu_info *gpu,
                                               struct weft_error *error) {
  assert(choices != NULL && path != NULL && gpu != NULL);
  FILE *file = fopen(path, "r");
  if (file == NULL) {
    return weft_fail(error, WEFT_ERR_MISSING, "WEFT_PRODUCTS names a file of product_algorithms",
                     "%s: %s", path, strerror(errno));
  }
  char heading[LINE];
  write_heading(heading, version, gpu);
  const enum weft_status status = read_lines(choices, file, path, heading, error);
  (void)fclose(file);
  return status;
}

void weft_gpt_product_choices_write(const struct weft_gpt_product_choices *choices, FILE *file,
                                    uint64_t version, const struct weft_cuda_gpu_info *gpu) {
  char heading[LINE];
  write_heading(heading, version, gpu);
  (void)fprintf(file, "%s\n", heading);
  for (uint32_t k = 0; k < choices->count; k++) {
    const struct weft_gpt_product_choice *at = &choices->items[k];
    (void)fprintf(file, "%s %" PRIu64 " %" PRIu64 " %" PRIu64 " %" PRIu32 "\n",
                  weft_gpt_product_name(at->kind), at->rows, at->in, at->out, at->algorithm);
  }
}

uint32_t weft_gpt_product_choice(const struct weft_gpt_product_choices *choices,
                                 enum weft_gpt_product_kind kind, uint64_t rows, uint64_t in,
                                 uint64_t out) {
  for (uint32_t k = 0; k < choices->count; k++) {
    const struct weft_gpt_product_choice *at = &choices->items[k];
    if (at->kind == kind && at->rows == rows && at->in == in && at->out == out) {
      return at->algorithm;
    }
  }
  return 0;
}
