/* A checker of Chrome traces: the rules of the format, written down once more,
 * from its document and from what Perfetto does with it, without a look at how
 * Weft writes them. */
#ifndef TESTS_SUPPORT_TRACE_H
#define TESTS_SUPPORT_TRACE_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct trace_event {
  char phase;
  uint32_t pid;
  uint32_t tid;
  int64_t begin; /* nanoseconds; of X, s, f, C */
  int64_t end;   /* of X; else as begin */
  uint64_t id;   /* of s, f */
  size_t index;  /* in the file */
  const char *name;
  const char *cat;
  const json_t *args;
};

/* A trace that was read. Events are sorted by pid, tid, begin, place in the file. */
struct trace {
  json_t *root;
  struct trace_event *events;
  size_t count;
};

/* Parses and checks all rules; NULL and a sentence in `complaint` when one is
 * broken:
 *   - valid JSON (UTF-8, no duplicate keys) of the object form
 *   - each phase has its fields, of their types; no tid is 0, which Perfetto takes
 *     for the thread whose tid is the pid
 *   - every process has one name, and every track with events has one
 *   - complete events of a track do not overlap
 *   - every flow id has one beginning and one end, not before it, each inside a
 *     complete event of its track; at equal times also in the order of the file,
 *     which Perfetto keeps
 *   - counters go forward in time */
struct trace *trace_check(const char *text, size_t size, char *complaint, size_t complaint_size);
void trace_free(struct trace *trace);

/* The complete event of the track around that time, the later one at a border;
 * NULL when there is none. */
const struct trace_event *trace_around(const struct trace *trace, uint32_t pid, uint32_t tid,
                                       int64_t at);

/* The other end of a flow. */
const struct trace_event *trace_other_end(const struct trace *trace,
                                          const struct trace_event *flow);

#endif
