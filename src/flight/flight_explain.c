/* Explains the dumps of a job: reads them, finds each rank's place in the program, and says who
 * is to be looked at. */
#include <assert.h>
#include <inttypes.h>
#include <string.h>

#include <weft/flight.h>
#include <weft/lower.h>
#include <weft/support.h>

#include "flight/flight_verdict.h"
#include "ir/program.h"

#define NOBODY UINT32_MAX

struct unread {
  const char *name;
  struct weft_error error;
};

struct job {
  struct weft_arena *arena;
  const struct weft_program *program;
  struct weft_flight_record *records; /* [rank_count] */
  struct weft_flight_row *rows;       /* [rank_count] */
  struct weft_flight_state *states;   /* [rank_count] */
  struct weft_flight_verdict verdict;
  struct unread *unread;
  size_t unread_count;
};

/* ---- Ranks of the job and of the program ---- */

/* The ranks of a pipeline may be any of the job's; in their order they are the program's. */
struct numbering {
  bool *in_use;      /* [WEFT_RANKS_MAX], by number in the job */
  uint32_t *program; /* [WEFT_RANKS_MAX] its rank in the program */
  bool *reached;     /* [WEFT_RANKS_MAX] in one pipeline with the first dump */
  uint32_t count, largest;
};

static void count_rank(struct numbering *numbering, uint32_t rank) {
  assert(rank < WEFT_RANKS_MAX);
  numbering->count += !numbering->in_use[rank];
  numbering->in_use[rank] = true;
  numbering->largest = rank > numbering->largest ? rank : numbering->largest;
}

/* Whether it had not been reached. */
static bool mark_reached(bool *reached, uint32_t rank) {
  const bool is_new = !reached[rank];
  reached[rank] = true;
  return is_new;
}

/* The dumps of the ranks that exchange messages with the first one, directly or not. */
static size_t list_pipeline(const struct weft_flight_record *records, size_t count,
                            struct numbering *numbering, struct weft_text *names) {
  assert(count > 0);
  bool *reached = numbering->reached;
  size_t listed = 0;
  (void)mark_reached(reached, records[0].rank);
  for (bool more = true; more;) {
    more = false;
    for (size_t k = 0; k < count; k++) {
      bool joins = reached[records[k].rank];
      for (size_t t = 0; t < records[k].count && !joins; t++) {
        joins = reached[records[k].transfers[t].peer];
      }
      more |= joins && mark_reached(reached, records[k].rank);
      for (size_t t = 0; t < records[k].count && joins; t++) {
        more |= mark_reached(reached, records[k].transfers[t].peer);
      }
    }
  }
  for (size_t k = 0; k < count; k++) {
    if (reached[records[k].rank]) {
      weft_text_addf(names, "%s%s", listed++ > 0 ? ", " : "", records[k].name);
    }
  }
  return listed;
}

/* A job has several pipelines where it is data-parallel, too. */
static enum weft_status fail_ranks(const struct job *job, const struct weft_flight_record *records,
                                   size_t count, struct numbering *numbering,
                                   struct weft_error *error) {
  WEFT_SCOPED_TEXT names = {.allocator = job->arena->allocator};
  WEFT_SCOPED_TEXT hint = {.allocator = job->arena->allocator};
  const size_t listed = list_pipeline(records, count, numbering, &names);
  if (listed < count && !names.failed) {
    weft_text_addf(&hint, "a folder for each pipeline; one of them has the dumps %s", names.data);
  }
  return weft_fail(error, WEFT_ERR_INVALID,
                   hint.size > 0 && !hint.failed
                       ? hint.data
                       : "give the dumps of one pipeline, and the program that it runs",
                   "the dumps name %" PRIu32 " ranks, up to rank %" PRIu32
                   "; the program has %" PRIu32,
                   numbering->count, numbering->largest, job->program->rank_count);
}

static enum weft_status number_ranks(const struct job *job, struct weft_flight_record *records,
                                     size_t count, struct numbering *numbering,
                                     struct weft_error *error) {
  const uint32_t rank_count = job->program->rank_count;
  for (size_t k = 0; k < count; k++) {
    count_rank(numbering, records[k].rank);
    for (size_t t = 0; t < records[k].count; t++) {
      count_rank(numbering, records[k].transfers[t].peer);
    }
  }
  const bool as_they_are = numbering->largest < rank_count;
  if (!as_they_are && numbering->count != rank_count) {
    return fail_ranks(job, records, count, numbering, error);
  }
  uint32_t next = 0;
  for (uint32_t r = 0; r <= numbering->largest; r++) {
    numbering->program[r] = as_they_are ? r : next;
    next += numbering->in_use[r];
  }
  return WEFT_OK;
}

static enum weft_status assign_records(struct job *job, struct weft_flight_record *records,
                                       size_t count, struct weft_error *error) {
  struct numbering numbering = {
      .in_use = weft_arena_allocate(job->arena, WEFT_RANKS_MAX, sizeof *numbering.in_use),
      .reached = weft_arena_allocate(job->arena, WEFT_RANKS_MAX, sizeof *numbering.reached),
      .program = weft_arena_allocate(job->arena, WEFT_RANKS_MAX, sizeof *numbering.program)};
  WEFT_TRY(weft_arena_status(job->arena, error));
  WEFT_TRY(number_ranks(job, records, count, &numbering, error));
  for (size_t k = 0; k < count; k++) {
    struct weft_flight_record *record = &records[k];
    record->rank = numbering.program[record->rank];
    for (size_t t = 0; t < record->count; t++) {
      record->transfers[t].peer = numbering.program[record->transfers[t].peer];
    }
    if (job->records[record->rank].name != NULL) {
      return weft_fail(error, WEFT_ERR_USAGE,
                       "give one dump of each rank of one pipeline; a data-parallel job has "
                       "several: a folder for each",
                       "%s and %s are both dumps of rank %" PRIu32, job->records[record->rank].name,
                       record->name, record->rank);
    }
    job->records[record->rank] = *record;
  }
  return WEFT_OK;
}

/* ---- Reading ---- */

static enum weft_status read_dumps(struct job *job, const struct weft_flight_dump *dumps,
                                   size_t count, struct weft_error *error) {
  struct weft_flight_record *records = weft_arena_allocate(job->arena, count + 1, sizeof *records);
  job->unread = weft_arena_allocate(job->arena, count + 1, sizeof *job->unread);
  WEFT_TRY(weft_arena_status(job->arena, error));
  size_t read = 0;
  for (size_t k = 0; k < count; k++) {
    struct unread *unread = &job->unread[job->unread_count];
    const enum weft_status status =
        dumps[k].unread != NULL
            ? weft_fail(&unread->error, WEFT_ERR_FORMAT, "give the files that PyTorch has written",
                        "%s: %s", dumps[k].name, dumps[k].unread)
            : weft_flight_record_read(job->arena, &dumps[k], &records[read], &unread->error);
    if (status == WEFT_OK) {
      read++;
    } else if (status == WEFT_ERR_FORMAT) {
      unread->name = dumps[k].name;
      job->unread_count++;
    } else {
      *error = unread->error;
      return status;
    }
  }
  if (read == 0 && job->unread_count > 0) {
    *error = job->unread[0].error;
    return error->status;
  }
  return assign_records(job, records, read, error);
}

/* Batches before the first payload, as a whole record shows them; all ranks set up alike. */
static uint64_t set_up_batches(const struct job *job) {
  for (uint32_t r = 0; r < job->program->rank_count; r++) {
    const struct weft_flight_record *record = &job->records[r];
    if (record->whole && record->count > 0 && record->transfers[0].batch > 0) {
      return record->transfers[0].batch - 1;
    }
  }
  return 1;
}

static enum weft_status read_job(struct job *job, const struct weft_flight_dump *dumps,
                                 size_t count, struct weft_error *error) {
  const uint32_t rank_count = job->program->rank_count;
  job->records = weft_arena_allocate(job->arena, rank_count, sizeof *job->records);
  job->rows = weft_arena_allocate(job->arena, rank_count, sizeof *job->rows);
  job->states = weft_arena_allocate(job->arena, rank_count, sizeof *job->states);
  WEFT_TRY(weft_arena_status(job->arena, error));
  WEFT_TRY(weft_flight_rows_read(job->arena, job->program, job->rows, error));
  WEFT_TRY(read_dumps(job, dumps, count, error));
  const uint64_t set_up = set_up_batches(job);
  for (uint32_t r = 0; r < rank_count; r++) {
    WEFT_TRY(weft_flight_align(job->program, &job->records[r], set_up, &job->rows[r], error));
  }
  weft_flight_refine(job->rows, job->records, rank_count);
  for (uint32_t r = 0; r < rank_count; r++) {
    job->states[r] = weft_flight_state_of(job->program, r, &job->records[r], &job->rows[r]);
  }
  return weft_flight_judge(job->arena, job->program, job->records, job->rows, job->states,
                           &job->verdict, error);
}

/* ---- Words ---- */

static const char *phase_words[] = {"missing", "waiting", "computing", "between steps"};

static uint32_t count_actions(const struct weft_flight_state *state) {
  uint32_t count = 0;
  for (const struct weft_action *at = NULL; (at = weft_flight_next_action(state, at)) != NULL;) {
    count++;
  }
  return count;
}

/* "2I1, 2W1 or 1F3", or "an unknown action". */
static void add_actions(struct weft_text *text, const struct weft_flight_state *state) {
  const struct weft_action *at = weft_flight_next_action(state, NULL);
  char word[32];
  weft_text_add(text, at == NULL ? "an unknown action" : weft_action_format(at, word, sizeof word));
  while (at != NULL && (at = weft_flight_next_action(state, at)) != NULL) {
    const bool is_last = weft_flight_next_action(state, at) == NULL;
    weft_text_addf(text, "%s%s", is_last ? " or " : ", ",
                   weft_action_format(at, word, sizeof word));
  }
}

static void add_outside(struct weft_text *text, const char *outside) {
  weft_text_add_escaped(text, outside, strlen(outside));
}

/* "nccl:_all_gather_base of group dp (FILE:LINE)". */
static void add_collective(struct weft_text *text,
                           const struct weft_flight_collective *collective) {
  const char *slash = strrchr(collective->file, '/');
  add_outside(text, collective->name);
  weft_text_add(text, " of group ");
  add_outside(text, collective->group);
  if (collective->file[0] != '\0') {
    weft_text_add(text, " (");
    add_outside(text, slash != NULL ? slash + 1 : collective->file);
    weft_text_addf(text, ":%" PRIu64 ")", collective->line);
  }
}

static void add_collectives(struct weft_text *text, const struct weft_flight_record *record) {
  for (size_t k = 0; k < record->collective_count; k++) {
    weft_text_add(text, k == 0 ? "; waits in " : " and ");
    add_collective(text, &record->collectives[k]);
  }
}

/* "rank 2: waits in 2RECV_F3 for rank 1, in step 3". */
static void add_rank(struct weft_text *text, const struct job *job, uint32_t rank) {
  assert(rank < job->program->rank_count);
  const struct weft_flight_state *state = &job->states[rank];
  weft_text_addf(text, "rank %" PRIu32 ": ", rank);
  switch (state->phase) {
    case WEFT_FLIGHT_MISSING: weft_text_add(text, "there is no dump of it"); break;
    case WEFT_FLIGHT_WAITING:
      weft_text_add(text, "waits in ");
      add_actions(text, state);
      weft_text_addf(text, " for rank %" PRIu32 ", in step %" PRIu64, state->device.peer,
                     state->step);
      break;
    case WEFT_FLIGHT_COMPUTING:
      if (state->action != NULL) {
        weft_text_add(text, "is in ");
        add_actions(text, state);
        weft_text_addf(text, ", in step %" PRIu64, state->step);
      } else {
        weft_text_addf(text, "is after its last transfer of step %" PRIu64, state->step);
      }
      break;
    case WEFT_FLIGHT_BETWEEN:
      weft_text_addf(text, "has done the transfers of %" PRIu64 " steps, and begun no other",
                     state->step);
      break;
  }
  add_collectives(text, &job->records[rank]);
}

static uint32_t count_waiting(const struct job *job) {
  uint32_t count = 0;
  for (uint32_t r = 0; r < job->program->rank_count; r++) {
    count += job->states[r].phase == WEFT_FLIGHT_WAITING;
  }
  return count;
}

static void add_verdict(struct weft_text *text, const struct job *job) {
  const struct weft_flight_verdict *verdict = &job->verdict;
  if (!verdict->hangs) {
    weft_text_add(text, "no rank waits for another: nothing hangs in these dumps");
  } else if (verdict->cycle_length > 0) {
    weft_text_add(text,
                  "a deadlock: each of these ranks waits for the next, the last one for the "
                  "first:");
    for (uint32_t k = 0; k < verdict->cycle_length; k++) {
      weft_text_addf(text, "%s rank %" PRIu32 " in ", k > 0 ? "," : "", verdict->cycle[k]);
      add_actions(text, &job->states[verdict->cycle[k]]);
    }
  } else {
    add_rank(text, job, verdict->culprit);
    weft_text_addf(text, "; %" PRIu32 " of %" PRIu32 " ranks wait", count_waiting(job),
                   job->program->rank_count);
  }
}

static const char *hint_of(const struct job *job) {
  const struct weft_flight_verdict *verdict = &job->verdict;
  if (!verdict->hangs) {
    return "if the job does hang, take the dumps of all ranks while it does";
  }
  if (verdict->cycle_length > 0) {
    return "verify the program: it has the same cycle, and the report has the buffers that avoid "
           "it";
  }
  if (job->records[verdict->culprit].collective_count > 0) {
    return "that collective needs all ranks of its group: find the one that has not started it";
  }
  return job->states[verdict->culprit].phase == WEFT_FLIGHT_MISSING
             ? "find out how that process ended, and take its dump if it is still there"
             : "look at that process: py-spy dump --pid shows where it is";
}

static void add_explanation(struct weft_text *text, const struct job *job) {
  for (uint32_t r = 0; r < job->program->rank_count; r++) {
    add_rank(text, job, r);
    weft_text_add(text, "\n");
  }
  for (size_t k = 0; k < job->unread_count; k++) {
    weft_text_add(text, "not read: ");
    weft_text_add_escaped(text, job->unread[k].error.message, strlen(job->unread[k].error.message));
    weft_text_add(text, "\n");
  }
  weft_text_add(text, "\nverdict: ");
  add_verdict(text, job);
  if (job->verdict.culprit != NOBODY) {
    const char *file = job->records[job->verdict.culprit].name;
    weft_text_addf(text, "\nculprit: rank %" PRIu32, job->verdict.culprit);
    if (file != NULL) { /* its number may be another: that of the rank in the job */
      weft_text_add(text, " (");
      add_outside(text, file);
      weft_text_add(text, ")");
    }
  }
  weft_text_addf(text, "\nhint: %s\n", hint_of(job));
}

/* ---- JSON ---- */

static void write_actions(struct weft_json *json, const struct weft_flight_state *state) {
  char word[32];
  weft_json_open(json, "actions", '[');
  for (const struct weft_action *at = NULL; (at = weft_flight_next_action(state, at)) != NULL;) {
    weft_json_string(json, NULL, weft_action_format(at, word, sizeof word));
  }
  weft_json_close(json, ']');
}

static void write_collectives(struct weft_json *json, const struct weft_flight_record *record) {
  weft_json_open(json, "collectives", '[');
  for (size_t k = 0; k < record->collective_count; k++) {
    const struct weft_flight_collective *collective = &record->collectives[k];
    const bool framed = collective->file[0] != '\0';
    weft_json_open(json, NULL, '{');
    weft_json_string(json, "name", collective->name);
    weft_json_string(json, "group", collective->group);
    weft_json_string(json, "ranks", collective->ranks);
    weft_json_string(json, "file", collective->file);
    weft_json_optional(json, "line", framed, collective->line);
    weft_json_string(json, "function", collective->function);
    weft_json_close(json, '}');
  }
  weft_json_close(json, ']');
}

static void write_rank(struct weft_json *json, const struct job *job, uint32_t rank) {
  const struct weft_flight_state *state = &job->states[rank];
  char action[32];
  weft_json_open(json, NULL, '{');
  weft_json_number(json, "rank", rank);
  weft_json_string(json, "state", phase_words[state->phase]);
  if (count_actions(state) == 1) {
    weft_json_string(json, "action", weft_action_format(state->action, action, sizeof action));
  } else {
    weft_json_null(json, "action");
  }
  weft_json_optional(json, "step", state->phase != WEFT_FLIGHT_MISSING, state->step);
  weft_json_optional(json, "peer", state->phase == WEFT_FLIGHT_WAITING, state->device.peer);
  weft_json_string(json, "file", job->records[rank].name);
  write_actions(json, state);
  write_collectives(json, &job->records[rank]);
  weft_json_close(json, '}');
}

static void write_json(struct weft_text *text, const struct job *job, const char *message) {
  const struct weft_flight_verdict *verdict = &job->verdict;
  struct weft_json json = weft_json_begin(text, "weft-explain-hang/1");
  weft_json_optional(&json, "culprit", verdict->culprit != NOBODY, verdict->culprit);
  weft_json_open(&json, "cycle", '[');
  for (uint32_t k = 0; k < verdict->cycle_length; k++) {
    weft_json_number(&json, NULL, verdict->cycle[k]);
  }
  weft_json_close(&json, ']');
  weft_json_boolean(&json, "hangs", verdict->hangs);
  weft_json_string(&json, "message", message);
  weft_json_string(&json, "hint", hint_of(job));
  weft_json_open(&json, "ranks", '[');
  for (uint32_t r = 0; r < job->program->rank_count; r++) {
    write_rank(&json, job, r);
  }
  weft_json_close(&json, ']');
  weft_json_open(&json, "unread", '[');
  for (size_t k = 0; k < job->unread_count; k++) {
    weft_json_open(&json, NULL, '{');
    weft_json_string(&json, "file", job->unread[k].name);
    weft_json_string(&json, "message", job->unread[k].error.message);
    weft_json_close(&json, '}');
  }
  weft_json_close(&json, ']');
  weft_json_end(&json);
}

/* ---- Entry ---- */

static enum weft_status explain_program(struct weft_arena *arena,
                                        const struct weft_program *program,
                                        const struct weft_flight_dump *dumps, size_t dump_count,
                                        bool json, struct weft_text *text,
                                        struct weft_error *error) {
  struct job job = {.arena = arena, .program = program};
  WEFT_TRY(read_job(&job, dumps, dump_count, error));
  if (json) {
    WEFT_SCOPED_TEXT message = {.allocator = arena->allocator};
    add_verdict(&message, &job);
    WEFT_TRY(weft_text_status(&message, error));
    write_json(text, &job, message.data);
  } else {
    add_explanation(text, &job);
  }
  return weft_text_status(text, error);
}

enum weft_status weft_flight_explain(const struct weft_allocator *allocator,
                                     const struct weft_program *program,
                                     const struct weft_flight_dump *dumps, size_t dump_count,
                                     bool json, struct weft_text *text, struct weft_error *error) {
  WEFT_NEED(program, error);
  WEFT_NEED(text, error);
  if (dump_count > 0) {
    WEFT_NEED(dumps, error);
  }
  for (size_t k = 0; k < dump_count; k++) {
    WEFT_NEED(dumps[k].name, error);
    if (dumps[k].size > 0) {
      WEFT_NEED(dumps[k].data, error);
    }
  }
  WEFT_SCOPED_ARENA arena = {.allocator = allocator};
  if (program->level == WEFT_LEVEL_COMMS) {
    return explain_program(&arena, program, dumps, dump_count, json, text, error);
  }
  struct weft_program *lowered;
  WEFT_TRY(weft_lower(allocator, program, NULL, &lowered, error));
  const enum weft_status status =
      explain_program(&arena, lowered, dumps, dump_count, json, text, error);
  weft_program_destroy(lowered);
  return status;
}
