/* Weft lower: from a compute-only table to a program with communication.
 *
 * Five passes, each of them usable alone
 * (docs/adding-a-schedule.md). All drop bubbles. */
#ifndef WEFT_LOWER_H
#define WEFT_LOWER_H

#include <weft/spec.h>

#ifdef __cplusplus
extern "C" {
#endif

struct weft_lower_options {
  bool merge_bw;           /* I directly followed by its W becomes B; default false */
  bool unshard;            /* UNSHARD/RESHARD; default true */
  bool reduce_grad;        /* REDUCE_GRAD; default true */
  bool tie_grad;           /* TIE_GRAD of the first and the last stage; default false */
  bool communicate;        /* SEND/RECV; default true */
  uint32_t unshard_window; /* stages of a rank unsharded at once; default 3, at least 1 */
  /* SEND and RECV in the order of time, with F, I and W of equal lengths and B of two, instead of
   * PyTorch's; default false. For ranks that have one transfer at a time: with several stages per
   * rank, fewer of them wait behind one whose data is made later. */
  bool by_time;
};

WEFT_API struct weft_lower_options weft_lower_options_default(void);

/* Runs the passes that are switched on, in their order. NULL options: default.
 * WEFT_ERR_INVALID when the table cannot be executed (the message names what
 * ranks wait for), or when it is a program with communication already. */
WEFT_API enum weft_status weft_lower(const struct weft_allocator *allocator,
                                     const struct weft_program *table,
                                     const struct weft_lower_options *options,
                                     struct weft_program **out, struct weft_error *error);

/* A compute-only table with SEND and RECV and nothing else added: for simulations with shared
 * channels, which are about their order. Statuses as of weft_lower(). */
WEFT_API enum weft_status weft_lower_transfers(const struct weft_allocator *allocator,
                                               const struct weft_program *table,
                                               struct weft_program **out, struct weft_error *error);

/* A compute-only table as PyTorch's loader takes it, `_load_csv(..., format="compute_only")`, and so
 * torchtitan: without REDUCE_GRAD, which the loader places itself and refuses in a table, even in
 * PyTorch's own for GPipe and 1F1B. WEFT_ERR_INVALID for a program with communication. */
WEFT_API enum weft_status weft_table_for_pytorch(const struct weft_allocator *allocator,
                                                 const struct weft_program *table,
                                                 struct weft_program **out,
                                                 struct weft_error *error);

/* A pass: const program in, new program out. */
struct weft_pass {
  const char *name;
  const char *summary;
  enum weft_status (*run)(const struct weft_allocator *allocator, const struct weft_program *in,
                          const struct weft_lower_options *options, struct weft_program **out,
                          struct weft_error *error);
};

/* In the order in which weft_lower() runs them: merge_bw, unshard, reduce_grad, tie_grad,
 * send_recv. */
WEFT_API size_t weft_pass_count(void);
WEFT_API const struct weft_pass *weft_pass_at(size_t index);

#ifdef __cplusplus
}
#endif
#endif
