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
  struct weft_flight_job flight;
  struct weft_flight_verdict verdict;
  struct unread *unread; /* dumps that are not used */
  size_t unread_count;
};

/* ---- Reading ---- */

static enum weft_status read_dumps(struct job *job, const struct weft_flight_dump *dumps,
                                   size_t count, struct weft_error *error) {
  struct weft_flight_record *records = weft_arena_allocate(job->arena, count + 1, sizeof *records);
  job->unread = weft_arena_allocate(job->arena, count + 1, sizeof *job->unread);
  WEFT_TRY(weft_arena_status(job->arena, error));
  size_t read = 0;
  for (size_t k = 0; k < count; k++) {
    struct unread *unread = &job->unread[job->unread_count];
    struct weft_flight_dump dump = dumps[k];
    if (dump.load != NULL) {
      dump.load(dump.context, &dump);
    }
    const enum weft_status status =
        dump.unread != NULL
            ? weft_fail(&unread->error, WEFT_ERR_FORMAT, "give the files that PyTorch has written",
                        "%s: %s", dump.name, dump.unread)
            : weft_flight_record_read(job->arena, &dump, &records[read], &unread->error);
    if (status == WEFT_OK) {
      read++;
    } else if (status == WEFT_ERR_FORMAT) {
      unread->name = dump.name;
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
  return weft_flight_ranks_find(job->arena, job->flight.program->rank_count, records, read,
                                &job->flight.ranks, error);
}

/* Batches before the first payload, as a whole record shows them; all ranks set up alike. */
static uint64_t set_up_batches(const struct weft_flight_record *records, uint32_t rank_count) {
  for (uint32_t r = 0; r < rank_count; r++) {
    if (records[r].whole && records[r].count > 0 && records[r].transfers[0].batch > 0) {
      return records[r].transfers[0].batch - 1;
    }
  }
  return 1;
}

static enum weft_status align_pipeline(struct job *job, uint32_t base, struct weft_error *error) {
  const struct weft_program *program = job->flight.program;
  const struct weft_flight_record *records = &job->flight.ranks.records[base];
  struct weft_flight_row *rows = &job->flight.rows[base];
  const uint64_t set_up = set_up_batches(records, program->rank_count);
  WEFT_TRY(weft_flight_rows_read(job->arena, program, rows, error));
  for (uint32_t r = 0; r < program->rank_count; r++) {
    WEFT_TRY(weft_flight_align(program, &records[r], set_up, &rows[r], error));
  }
  weft_flight_refine(rows, records, program->rank_count);
  return WEFT_OK;
}

/* ---- Dumps that contradict each other ---- */

/* Whether the transfers are surely counted from the first step on. */
static bool is_counted(const struct job *job, uint32_t r) {
  const struct weft_flight_record *record = &job->flight.ranks.records[r];
  return record->name != NULL && !job->flight.rows[r].estimated &&
         (record->whole || job->flight.program->graph == NULL);
}

/* A rank that has not started what this one has done: the send of a receive, or its part of a
 * collective. NOBODY: there is none. */
static uint32_t find_contradiction(const struct job *job, uint32_t r) {
  const struct weft_flight_ranks *ranks = &job->flight.ranks;
  const uint32_t rank = r % job->flight.program->rank_count;
  const struct weft_flight_row *row = &job->flight.rows[r];
  for (uint32_t c = 0; c < row->channel_count && is_counted(job, r); c++) {
    const uint32_t peer = r - rank + row->channels[c].peer;
    const struct weft_flight_channel *send =
        weft_flight_channel_find(&job->flight.rows[peer], rank, true);
    if (!row->channels[c].sends && send != NULL && row->channels[c].done > send->started &&
        is_counted(job, peer)) {
      return peer;
    }
  }
  for (uint32_t g = 0; g < ranks->records[r].group_count; g++) {
    const struct weft_flight_group *group = &ranks->records[r].groups[g];
    for (uint32_t k = 0; k < group->rank_count && group->done > 0; k++) {
      const uint32_t other = ranks->positions[group->ranks[k]];
      if (other != NOBODY && weft_flight_is_behind(&ranks->records[other], group, group->done)) {
        return other;
      }
    }
  }
  return NOBODY;
}

static enum weft_status drop_record(struct job *job, uint32_t r, const char *other,
                                    struct weft_error *error) {
  struct weft_flight_record *record = &job->flight.ranks.records[r];
  struct unread *unread = &job->unread[job->unread_count++];
  unread->name = record->name;
  (void)weft_fail(&unread->error, WEFT_ERR_INVALID, "take the dumps of one run and one time",
                  "%s: contradicts %s: one has done what the other has not started", record->name,
                  other);
  *record = (struct weft_flight_record){.numbers = record->numbers};
  return weft_flight_align(job->flight.program, record, 0, &job->flight.rows[r], error);
}

/* Uses neither of two such dumps: either may be of another run, or of another time. */
static enum weft_status drop_contradictions(struct job *job, struct weft_error *error) {
  for (uint32_t r = 0; r < job->flight.ranks.count; r++) {
    const uint32_t other = find_contradiction(job, r);
    if (other != NOBODY) {
      const char *names[] = {job->flight.ranks.records[r].name,
                             job->flight.ranks.records[other].name};
      WEFT_TRY(drop_record(job, r, names[1], error));
      WEFT_TRY(drop_record(job, other, names[0], error));
    }
  }
  return WEFT_OK;
}

static enum weft_status read_job(struct job *job, const struct weft_flight_dump *dumps,
                                 size_t dump_count, struct weft_error *error) {
  struct weft_flight_job *flight = &job->flight;
  const uint32_t rank_count = flight->program->rank_count;
  WEFT_TRY(read_dumps(job, dumps, dump_count, error));
  const uint32_t count = flight->ranks.count;
  flight->rows = weft_arena_allocate(job->arena, count, sizeof *flight->rows);
  flight->states = weft_arena_allocate(job->arena, count, sizeof *flight->states);
  WEFT_TRY(weft_arena_status(job->arena, error));
  for (uint32_t p = 0; p < flight->ranks.pipelines; p++) {
    WEFT_TRY(align_pipeline(job, p * rank_count, error));
  }
  WEFT_TRY(drop_contradictions(job, error));
  for (uint32_t r = 0; r < count; r++) {
    flight->states[r] = weft_flight_state_of(flight->program, r % rank_count,
                                             &flight->ranks.records[r], &flight->rows[r]);
  }
  weft_flight_find_holds(flight);
  return weft_flight_judge(job->arena, flight, &job->verdict, error);
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
static void add_collective(struct weft_text *text, const struct weft_flight_group *group) {
  const struct weft_flight_collective *collective = &group->pending;
  const char *slash = strrchr(collective->file, '/');
  add_outside(text, collective->name);
  weft_text_add(text, " of group ");
  add_outside(text, group->description);
  if (collective->file[0] != '\0') {
    weft_text_add(text, " (");
    add_outside(text, slash != NULL ? slash + 1 : collective->file);
    weft_text_addf(text, ":%" PRIu64 ")", collective->line);
  }
}

static void add_collectives(struct weft_text *text, const struct job *job, uint32_t rank) {
  const struct weft_flight_record *record = &job->flight.ranks.records[rank];
  const struct weft_flight_hold *hold = &job->flight.states[rank].hold;
  const char *lead = "; waits in ";
  for (uint32_t g = 0; g < record->group_count; g++) {
    if (record->groups[g].pending.name != NULL) {
      weft_text_add(text, lead);
      add_collective(text, &record->groups[g]);
      lead = " and ";
    }
    if (hold->group == &record->groups[g] && hold->kind != WEFT_FLIGHT_HOLD_UNKNOWN) {
      weft_text_addf(text, " for rank %" PRIu32 "%s", hold->number,
                     hold->kind == WEFT_FLIGHT_HOLD_NO_DUMP ? " (no dump)" : "");
    }
  }
}

static bool is_in_pipeline(const struct job *job, uint32_t rank) {
  return rank < job->flight.ranks.pipelines * job->flight.program->rank_count;
}

static uint32_t number_of_peer(const struct job *job, uint32_t rank) {
  const uint32_t base = rank - rank % job->flight.program->rank_count;
  return job->flight.ranks.numbers[base + job->flight.states[rank].device.peer];
}

static void add_name(struct weft_text *text, const struct job *job, uint32_t rank, bool with_file) {
  const char *file = job->flight.ranks.records[rank].name;
  weft_text_addf(text, "rank %" PRIu32, job->flight.ranks.numbers[rank]);
  if (with_file && file != NULL) {
    weft_text_add(text, " (");
    add_outside(text, file);
    weft_text_add(text, ")");
  }
}

/* "rank 2: waits in 2RECV_F3 for rank 1, in step 3". */
static void add_rank(struct weft_text *text, const struct job *job, uint32_t rank) {
  assert(rank < job->flight.ranks.count);
  const struct weft_flight_state *state = &job->flight.states[rank];
  add_name(text, job, rank, job->flight.ranks.count > job->flight.program->rank_count);
  weft_text_add(text, ": ");
  switch (state->phase) {
    case WEFT_FLIGHT_MISSING: weft_text_add(text, "there is no dump of it"); break;
    case WEFT_FLIGHT_WAITING:
      weft_text_add(text, "waits in ");
      add_actions(text, state);
      weft_text_addf(text, " for rank %" PRIu32 ", in step %" PRIu64, number_of_peer(job, rank),
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
      if (is_in_pipeline(job, rank)) {
        weft_text_addf(text, "has done the transfers of %" PRIu64 " steps, and begun no other",
                       state->step);
      } else {
        weft_text_add(text, "is in no pipeline");
      }
      break;
  }
  add_collectives(text, job, rank);
}

static uint32_t count_waiting(const struct job *job) {
  uint32_t count = 0;
  for (uint32_t r = 0; r < job->flight.ranks.count; r++) {
    count +=
        job->flight.states[r].phase == WEFT_FLIGHT_WAITING ||
        (job->flight.states[r].hold.kind != WEFT_FLIGHT_HOLD_NONE && r != job->verdict.culprit);
  }
  return count;
}

static void add_suspects(struct weft_text *text, const struct job *job) {
  enum { SUSPECTS_SHOWN_MAX = 8 };
  const struct weft_flight_verdict *verdict = &job->verdict;
  weft_text_addf(text, "cannot tell: %s ",
                 !verdict->hangs ? "no rank waits for another, but dumps are missing:"
                 : verdict->suspect_count > 1
                     ? "the waits end at several ranks, or come back to them:"
                     : "the waits end where the dumps say no more:");
  for (uint32_t k = 0; k < verdict->suspect_count && k < SUSPECTS_SHOWN_MAX; k++) {
    weft_text_add(text, k > 0 ? "; " : "");
    add_rank(text, job, verdict->suspects[k]);
  }
  if (verdict->suspect_count > SUSPECTS_SHOWN_MAX) {
    weft_text_addf(text, "; and %" PRIu32 " more", verdict->suspect_count - SUSPECTS_SHOWN_MAX);
  }
}

static void add_verdict(struct weft_text *text, const struct job *job) {
  const struct weft_flight_verdict *verdict = &job->verdict;
  if (!verdict->hangs && verdict->suspect_count == 0) {
    weft_text_add(text, "no rank waits for another: nothing hangs in these dumps");
  } else if (verdict->cycle_length > 0) {
    weft_text_add(text,
                  "a deadlock: each of these ranks waits for the next, the last one for the "
                  "first:");
    for (uint32_t k = 0; k < verdict->cycle_length; k++) {
      weft_text_addf(text, "%s rank %" PRIu32 " in ", k > 0 ? "," : "",
                     job->flight.ranks.numbers[verdict->cycle[k]]);
      add_actions(text, &job->flight.states[verdict->cycle[k]]);
    }
  } else if (verdict->culprit != NOBODY) {
    add_rank(text, job, verdict->culprit);
    weft_text_addf(text, "; %" PRIu32 " of %" PRIu32 " ranks wait", count_waiting(job),
                   job->flight.ranks.count);
  } else {
    add_suspects(text, job);
  }
}

static const char *hint_of(const struct job *job) {
  const struct weft_flight_verdict *verdict = &job->verdict;
  if (!verdict->hangs && verdict->suspect_count == 0) {
    return "if the job does hang, take the dumps of all ranks while it does";
  }
  if (verdict->cycle_length > 0) {
    return "verify the program: it has the same cycle, and the report has the buffers that avoid "
           "it";
  }
  return verdict->culprit != NOBODY ? "look at that process: py-spy dump --pid shows where it is"
                                    : "take the dumps that are not there, or look at those "
                                      "processes with py-spy dump --pid";
}

static void add_explanation(struct weft_text *text, const struct job *job) {
  const struct weft_flight_verdict *verdict = &job->verdict;
  const uint32_t rank_count = job->flight.program->rank_count;
  for (uint32_t r = 0; r < job->flight.ranks.count; r++) {
    if (job->flight.ranks.count > rank_count && r % rank_count == 0 && is_in_pipeline(job, r)) {
      weft_text_addf(text, "pipeline %" PRIu32 ":\n", r / rank_count);
    }
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
  if (verdict->culprit != NOBODY) {
    weft_text_add(text, "\nculprit: ");
    add_name(text, job, verdict->culprit, true);
  }
  for (uint32_t k = 0; k < verdict->suspect_count; k++) {
    weft_text_add(text, k > 0 ? ", " : "\nsuspects: ");
    add_name(text, job, verdict->suspects[k], true);
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
  for (uint32_t g = 0; g < record->group_count; g++) {
    const struct weft_flight_collective *collective = &record->groups[g].pending;
    if (collective->name == NULL) {
      continue;
    }
    weft_json_open(json, NULL, '{');
    weft_json_string(json, "name", collective->name);
    weft_json_string(json, "group", record->groups[g].description);
    weft_json_string(json, "ranks", record->groups[g].ranks_text);
    weft_json_string(json, "file", collective->file);
    weft_json_optional(json, "line", collective->file[0] != '\0', collective->line);
    weft_json_string(json, "function", collective->function);
    weft_json_close(json, '}');
  }
  weft_json_close(json, ']');
}

static void write_rank(struct weft_json *json, const struct job *job, uint32_t rank) {
  const struct weft_flight_state *state = &job->flight.states[rank];
  const struct weft_flight_record *record = &job->flight.ranks.records[rank];
  const uint32_t rank_count = job->flight.program->rank_count;
  const bool waits = state->phase == WEFT_FLIGHT_WAITING;
  char action[32];
  weft_json_open(json, NULL, '{');
  weft_json_number(json, "rank", job->flight.ranks.numbers[rank]);
  weft_json_optional(json, "pipeline", is_in_pipeline(job, rank), rank / rank_count);
  weft_json_optional(json, "row", is_in_pipeline(job, rank), rank % rank_count);
  weft_json_string(json, "state", phase_words[state->phase]);
  if (count_actions(state) == 1) {
    weft_json_string(json, "action", weft_action_format(state->action, action, sizeof action));
  } else {
    weft_json_null(json, "action");
  }
  weft_json_optional(json, "step", state->phase != WEFT_FLIGHT_MISSING, state->step);
  weft_json_optional(json, "peer", waits, waits ? number_of_peer(job, rank) : 0);
  weft_json_string(json, "file", record->name);
  write_actions(json, state);
  write_collectives(json, record);
  weft_json_close(json, '}');
}

static void write_numbers(struct weft_json *json, const char *key, const struct job *job,
                          const uint32_t *ranks, uint32_t count) {
  weft_json_open(json, key, '[');
  for (uint32_t k = 0; k < count; k++) {
    weft_json_number(json, NULL, job->flight.ranks.numbers[ranks[k]]);
  }
  weft_json_close(json, ']');
}

static void write_json(struct weft_text *text, const struct job *job, const char *message) {
  const struct weft_flight_verdict *verdict = &job->verdict;
  const bool is_known = verdict->culprit != NOBODY;
  struct weft_json json = weft_json_begin(text, "weft-explain-hang/1");
  weft_json_optional(&json, "culprit", is_known,
                     is_known ? job->flight.ranks.numbers[verdict->culprit] : 0);
  write_numbers(&json, "cycle", job, verdict->cycle, verdict->cycle_length);
  weft_json_boolean(&json, "hangs", verdict->hangs);
  write_numbers(&json, "suspects", job, verdict->suspects, verdict->suspect_count);
  weft_json_string(&json, "message", message);
  weft_json_string(&json, "hint", hint_of(job));
  weft_json_open(&json, "ranks", '[');
  for (uint32_t r = 0; r < job->flight.ranks.count; r++) {
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
  struct job job = {.arena = arena, .flight.program = program};
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
    if (dumps[k].size > 0 && dumps[k].load == NULL) {
      WEFT_NEED(dumps[k].data, error);
    }
  }
  WEFT_SCOPED_ARENA arena = {.allocator = allocator};
  struct weft_program *lowered = NULL;
  if (program->level != WEFT_LEVEL_COMMS) {
    WEFT_TRY(weft_lower(allocator, program, NULL, &lowered, error));
  }
  const enum weft_status status = explain_program(&arena, lowered != NULL ? lowered : program,
                                                  dumps, dump_count, json, text, error);
  weft_program_destroy(lowered);
  return status;
}
