/* Pictures for tests: a table, its simulation, and files to compare with. What
 * goes wrong fails the test (cmocka). */
#ifndef TESTS_SUPPORT_PICTURE_H
#define TESTS_SUPPORT_PICTURE_H

#include <weft/render.h>

#include "support_memory.h"

struct drawing {
  struct weft_program *program;
  struct weft_costs *costs; /* F = I = W = 1; change them before drawing_simulate() */
  struct weft_simulation *simulation;
  struct weft_picture picture;
};

/* From CSV, or a named schedule with SEND and RECV; not simulated yet. */
void drawing_init(struct drawing *drawing, const char *csv);
void drawing_init_schedule(struct drawing *drawing, const char *name, uint32_t ranks,
                           uint32_t stages_per_rank, uint32_t microbatches);
void drawing_simulate(struct drawing *drawing, const char *name);
void drawing_finish(struct drawing *drawing);

typedef enum weft_status drawing_renderer(const struct weft_picture *picture,
                                          const struct weft_render_options *options,
                                          struct weft_text *text, struct weft_error *error);

/* What the renderer draws, on the heap: free(). */
char *drawing_render(const struct drawing *drawing, drawing_renderer *render,
                     const struct weft_render_options *options);

/* The text is that of tests/expected/<file>; with WEFT_UPDATE=1 in the environment
 * it becomes it. */
void drawing_expect(const char *file, const char *text);

/* Every allocation of the renderer fails in turn: WEFT_ERR_MEMORY, what was in the
 * text before is still all of it, and nothing is lost. */
void drawing_check_memory(const struct drawing *drawing, drawing_renderer *render,
                          const struct weft_render_options *options);

#endif
