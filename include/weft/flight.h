/* Weft flight: which rank a hanging PyTorch job waits for, from the dumps of its flight recorder
 * and the program that its ranks run.
 *
 * PyTorch records the sends and receives of each process (TORCH_NCCL_TRACE_BUFFER_SIZE) and
 * writes them to a file when a collective times out. The k-th send of a rank to another one is
 * the k-th SEND of its row to that rank, step after step, so the program tells which action every
 * rank is in, and the rank that nobody keeps waiting is the culprit. Pipelines are the ranks that
 * exchange messages, or share a process group that carries them. */
#ifndef WEFT_FLIGHT_H
#define WEFT_FLIGHT_H

#include <weft/ir.h>

#ifdef __cplusplus
extern "C" {
#endif

/* One process's dump: a pickle, or the same as JSON. */
struct weft_flight_dump {
  const char *name; /* of the file, for messages; a number at its end is the rank */
  const void *data;
  size_t size;
  const char *unread; /* why there is no data: the file could not be read; else NULL */
  /* Sets data and size, or unread, when this dump is needed, which is once; they must stay until
   * the next dump is. NULL: they are set already. */
  void (*load)(void *context, struct weft_flight_dump *dump);
  void *context;
};

/* Appends the explanation: a line for each rank, then the culprit, the cycle, or why there is none;
 * or as JSON:
 *
 *   {"schema": "weft-explain-hang/1", "culprit": rank or null, "cycle": [ranks],
 *    "hangs": bool, "suspects": [ranks], "message", "hint",
 *    "ranks": [{"rank", "pipeline", "row", "state", "action", "step", "peer", "file",
 *               "actions": ["2I1", ...],
 *               "collectives": [{"name", "group", "ranks", "file", "line", "function"}, ...]},
 *              ...],
 *    "unread": [{"file", "message"}, ...]}
 *
 * Ranks are those of the job, as its process groups number them; `row` is that of the program.
 * Without a culprit and a cycle, `suspects` are the ranks at which the waits end. `state` is
 * "waiting", "computing", "between steps" or "missing". A rank is in one of `actions`: dumps do not
 * tell computations apart that have no transfer between them. `action` is null unless there is just
 * one. `collectives` are those of any process group that the rank has started and not done, with
 * the Python frame, if the dump has it. A dump that cannot be read, or that contradicts another
 * one, counts as missing. WEFT_ERR_FORMAT when none can be read; WEFT_ERR_INVALID when a dump
 * contradicts the program, or a pipeline has another number of ranks; WEFT_ERR_USAGE when two are
 * of the same rank. A table without communication is lowered first, as PyTorch does. */
WEFT_API enum weft_status weft_flight_explain(const struct weft_allocator *allocator,
                                              const struct weft_program *program,
                                              const struct weft_flight_dump *dumps,
                                              size_t dump_count, bool json, struct weft_text *text,
                                              struct weft_error *error);

#ifdef __cplusplus
}
#endif
#endif
