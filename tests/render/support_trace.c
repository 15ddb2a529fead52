/* The rules of Chrome traces. */
#include "support_trace.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct check {
  struct trace *trace;
  char *complaint;
  size_t complaint_size;
};

__attribute__((format(printf, 2, 3))) static bool complain(struct check *check, const char *format,
                                                           ...) {
  va_list arguments;
  va_start(arguments, format);
  (void)vsnprintf(check->complaint, check->complaint_size, format, arguments);
  va_end(arguments);
  return false;
}

/* ---- Fields ---- */

static bool read_whole(struct check *check, const json_t *object, const char *key, uint64_t *out) {
  const json_t *value = json_object_get(object, key);
  if (!json_is_integer(value) || json_integer_value(value) < 0) {
    return complain(check, "%s is missing, or not a whole number", key);
  }
  *out = (uint64_t)json_integer_value(value);
  return true;
}

static bool read_string(struct check *check, const json_t *object, const char *key,
                        const char **out) {
  *out = json_string_value(json_object_get(object, key));
  return *out != NULL && **out != '\0' ? true : complain(check, "%s is missing, or empty", key);
}

static bool read_time(struct check *check, const json_t *object, const char *key, int64_t *out) {
  const json_t *value = json_object_get(object, key);
  if (!json_is_number(value) || json_number_value(value) < 0 ||
      !isfinite(json_number_value(value))) {
    return complain(check, "%s is missing, or not a time", key);
  }
  *out = llround(json_number_value(value) * 1000);
  return true;
}

static bool read_complete(struct check *check, const json_t *object, struct trace_event *event) {
  int64_t duration = 0;
  if (!read_string(check, object, "cat", &event->cat) ||
      !read_time(check, object, "ts", &event->begin) ||
      !read_time(check, object, "dur", &duration)) {
    return false;
  }
  event->end = event->begin + duration;
  return json_is_object(event->args) ? true : complain(check, "an X without args");
}

static bool read_flow(struct check *check, const json_t *object, struct trace_event *event) {
  const char *binding = json_string_value(json_object_get(object, "bp"));
  if (!read_string(check, object, "cat", &event->cat) ||
      !read_whole(check, object, "id", &event->id) ||
      !read_time(check, object, "ts", &event->begin)) {
    return false;
  }
  event->end = event->begin;
  /* Without it the flow would end in the next slice. */
  return event->phase == 's' || (binding != NULL && strcmp(binding, "e") == 0)
             ? true
             : complain(check, "an f that is not bound to the slice around it");
}

static bool read_counter(struct check *check, const json_t *object, struct trace_event *event) {
  const char *key;
  json_t *value;
  if (!read_time(check, object, "ts", &event->begin)) {
    return false;
  }
  event->end = event->begin;
  if (json_object_size(event->args) == 0) {
    return complain(check, "a C without values");
  }
  json_object_foreach((json_t *)event->args, key, value) {
    if (!json_is_number(value)) {
      return complain(check, "a C with %s that is no number", key);
    }
  }
  return true;
}

static bool read_metadata(struct check *check, struct trace_event *event) {
  const char *name = strstr(event->name, "_name");
  if (strcmp(event->name, "process_name") != 0 && strcmp(event->name, "thread_name") != 0 &&
      strcmp(event->name, "process_sort_index") != 0 &&
      strcmp(event->name, "thread_sort_index") != 0) {
    return complain(check, "metadata %s", event->name);
  }
  if (name != NULL) {
    return read_string(check, event->args, "name", &event->cat);
  }
  return read_whole(check, event->args, "sort_index", &event->id);
}

static bool read_event(struct check *check, const json_t *object, struct trace_event *event) {
  const char *phase;
  uint64_t pid = 0, tid = 0;
  if (!json_is_object(object) || !read_string(check, object, "ph", &phase) ||
      !read_string(check, object, "name", &event->name) ||
      !read_whole(check, object, "pid", &pid) || !read_whole(check, object, "tid", &tid)) {
    return false;
  }
  event->phase = *phase;
  event->pid = (uint32_t)pid;
  event->tid = (uint32_t)tid;
  event->args = json_object_get(object, "args");
  if (phase[1] != '\0') {
    return complain(check, "phase %s", phase);
  }
  if (tid == 0) {
    return complain(check, "%s has tid 0", event->name);
  }
  switch (*phase) {
    case 'X': return read_complete(check, object, event);
    case 's':
    case 'f': return read_flow(check, object, event);
    case 'C': return read_counter(check, object, event);
    case 'M': return read_metadata(check, event);
    default: return complain(check, "phase %s", phase);
  }
}

static int compare_numbers(uint64_t a, uint64_t b) { return (a > b) - (a < b); }

static int compare_events(const void *a, const void *b) {
  const struct trace_event *x = a, *y = b;
  int order = compare_numbers(x->pid, y->pid);
  order = order != 0 ? order : compare_numbers(x->tid, y->tid);
  order = order != 0 ? order : (x->begin > y->begin) - (x->begin < y->begin);
  return order != 0 ? order : compare_numbers(x->index, y->index);
}

static bool read_events(struct check *check) {
  struct trace *trace = check->trace;
  const json_t *events = json_object_get(trace->root, "traceEvents");
  const char *unit;
  if (!json_is_object(trace->root) || !json_is_array(events)) {
    return complain(check, "no object with a list traceEvents");
  }
  if (!read_string(check, trace->root, "displayTimeUnit", &unit) ||
      (strcmp(unit, "ms") != 0 && strcmp(unit, "ns") != 0)) {
    return complain(check, "displayTimeUnit is neither ms nor ns");
  }
  trace->count = json_array_size(events);
  trace->events = calloc(trace->count + 1, sizeof *trace->events);
  if (trace->events == NULL) {
    abort();
  }
  for (size_t i = 0; i < trace->count; i++) {
    trace->events[i].index = i;
    if (!read_event(check, json_array_get(events, i), &trace->events[i])) {
      return false;
    }
  }
  qsort(trace->events, trace->count, sizeof *trace->events, compare_events);
  return true;
}

/* ---- Tracks ---- */

/* The events of one track; what holds among them. */
struct track {
  const struct trace_event *last_slice;
  const struct trace_event *last_counter;
  unsigned names;
};

static bool check_track_event(struct check *check, const struct trace_event *event,
                              struct track *track) {
  if (event->phase == 'X') {
    if (track->last_slice != NULL && track->last_slice->end > event->begin) {
      return complain(check, "%s and %s overlap on track %u of rank %u", track->last_slice->name,
                      event->name, event->tid, event->pid);
    }
    track->last_slice = event;
  } else if (event->phase == 'C') {
    if (track->last_counter != NULL && (track->last_counter->begin >= event->begin ||
                                        track->last_counter->index >= event->index)) {
      return complain(check, "counter of rank %u stands still", event->pid);
    }
    track->last_counter = event;
  } else if (event->phase == 'M') {
    track->names += strcmp(event->name, "thread_name") == 0;
  }
  return true;
}

static bool check_tracks(struct check *check) {
  const struct trace *trace = check->trace;
  for (size_t i = 0; i < trace->count;) {
    const struct trace_event *first = &trace->events[i];
    struct track track = {0};
    for (; i < trace->count && trace->events[i].pid == first->pid &&
           trace->events[i].tid == first->tid;
         i++) {
      if (!check_track_event(check, &trace->events[i], &track)) {
        return false;
      }
    }
    if (track.names != 1) {
      return complain(check, "track %u of rank %u has %u names", first->tid, first->pid,
                      track.names);
    }
  }
  return true;
}

static bool check_processes(struct check *check) {
  const struct trace *trace = check->trace;
  for (size_t i = 0; i < trace->count;) {
    const struct trace_event *first = &trace->events[i];
    unsigned names = 0;
    for (; i < trace->count && trace->events[i].pid == first->pid; i++) {
      names += trace->events[i].phase == 'M' && strcmp(trace->events[i].name, "process_name") == 0;
    }
    if (names != 1) {
      return complain(check, "process %u has %u names", first->pid, names);
    }
  }
  return true;
}

/* ---- Flows ---- */

const struct trace_event *trace_around(const struct trace *trace, uint32_t pid, uint32_t tid,
                                       int64_t at) {
  const struct trace_event key = {.pid = pid, .tid = tid, .begin = at, .index = SIZE_MAX};
  size_t low = 0, high = trace->count; /* events before low are not after the key */
  while (low < high) {
    const size_t middle = low + (high - low) / 2;
    if (compare_events(&trace->events[middle], &key) <= 0) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  while (low > 0 && trace->events[low - 1].pid == pid && trace->events[low - 1].tid == tid) {
    const struct trace_event *event = &trace->events[--low];
    if (event->phase == 'X') {
      return event->end >= at ? event : NULL;
    }
  }
  return NULL;
}

/* Flows by id: the beginning before the end. */
static int compare_flows(const void *a, const void *b) {
  const struct trace_event *x = a, *y = b;
  const int order = compare_numbers(x->id, y->id);
  return order != 0 ? order : (y->phase == 's') - (x->phase == 's');
}

/* In the order in which a viewer takes them: by time, then as in the file. */
static bool is_before(const struct trace_event *a, const struct trace_event *b) {
  return a->begin < b->begin || (a->begin == b->begin && a->index < b->index);
}

static bool check_flow(struct check *check, const struct trace_event *begin,
                       const struct trace_event *end) {
  if (begin->id != end->id || begin->phase != 's' || end->phase != 'f') {
    return complain(check, "flow %llu has no other end, or too many",
                    (unsigned long long)begin->id);
  }
  if (strcmp(begin->name, end->name) != 0 || strcmp(begin->cat, end->cat) != 0 ||
      begin->begin > end->begin) {
    return complain(check, "flow %llu: ends do not fit", (unsigned long long)begin->id);
  }
  const struct trace_event *from = trace_around(check->trace, begin->pid, begin->tid, begin->begin);
  const struct trace_event *to = trace_around(check->trace, end->pid, end->tid, end->begin);
  if (from == NULL || to == NULL) {
    return complain(check, "flow %llu lies in no slice", (unsigned long long)begin->id);
  }
  return is_before(from, begin) && is_before(begin, end) && is_before(to, end)
             ? true
             : complain(check, "flow %llu: out of order", (unsigned long long)begin->id);
}

static bool check_flows(struct check *check) {
  const struct trace *trace = check->trace;
  struct trace_event *flows = calloc(trace->count + 1, sizeof *flows);
  size_t count = 0;
  bool fine = true;
  if (flows == NULL) {
    abort();
  }
  for (size_t i = 0; i < trace->count; i++) {
    if (trace->events[i].phase == 's' || trace->events[i].phase == 'f') {
      flows[count++] = trace->events[i];
    }
  }
  qsort(flows, count, sizeof *flows, compare_flows);
  if (count % 2 != 0) {
    fine = complain(check, "an odd number of flow ends");
  }
  for (size_t i = 0; i + 1 < count && fine; i += 2) {
    fine = check_flow(check, &flows[i], &flows[i + 1]);
    if (fine && i + 2 < count && flows[i + 2].id == flows[i].id) {
      fine = complain(check, "flow %llu twice", (unsigned long long)flows[i].id);
    }
  }
  free(flows);
  return fine;
}

const struct trace_event *trace_other_end(const struct trace *trace,
                                          const struct trace_event *flow) {
  for (size_t i = 0; i < trace->count; i++) {
    const struct trace_event *event = &trace->events[i];
    if ((event->phase == 's' || event->phase == 'f') && event->id == flow->id && event != flow) {
      return event;
    }
  }
  return NULL;
}

/* ---- All of it ---- */

struct trace *trace_check(const char *text, size_t size, char *complaint, size_t complaint_size) {
  json_error_t error;
  struct trace *trace = calloc(1, sizeof *trace);
  struct check check = {trace, complaint, complaint_size};
  if (trace == NULL) {
    abort();
  }
  complaint[0] = '\0';
  trace->root = json_loadb(text, size, JSON_REJECT_DUPLICATES, &error);
  if (trace->root == NULL) {
    (void)complain(&check, "line %d column %d: %s", error.line, error.column, error.text);
  } else if (read_events(&check) && check_processes(&check) && check_tracks(&check) &&
             check_flows(&check)) {
    return trace;
  }
  trace_free(trace);
  return NULL;
}

void trace_free(struct trace *trace) {
  if (trace != NULL) {
    json_decref(trace->root);
    free(trace->events);
    free(trace);
  }
}
