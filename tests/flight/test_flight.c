/* Dumps of PyTorch's flight recorder: a model of a job whose ranks enqueue batches of transfers
 * ahead of their devices, which run one batch after the other, both ends of a transfer at once, as
 * NCCL does. One rank's process stops, at every place of every schedule; the verdict must name it,
 * whatever the dumps have lost. Also deadlocks, pickles by hand, and what is refused. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <weft/support.h>
#include <weft/weft.h>

#include "flight/flight_align.h"
#include "flight/pickle.h"
#include "support_csv.h"
#include "support_memory.h"

enum { STEPS = 3, RANKS = 8, WHOLE = 0 };

/* From one place at which a process stops to the next. Under AddressSanitizer fewer have to do. */
#if defined(__SANITIZE_ADDRESS__)
enum { STRIDE = 29 };
#else
enum { STRIDE = 9 };
#endif

/* ---- The model of a job ---- */

struct job {
  struct weft_program *program;
  struct weft_arena arena;
  struct weft_flight_row rows[RANKS];
  uint32_t *order[RANKS];  /* [row's count] places in the order in which they are started */
  uint32_t *batch[RANKS];  /* [row's count] the batch, of a step, that each of these is in */
  int synchronous;         /* a process waits for 0: nothing; 1: each batch that receives, before it
                            * starts another; 2: the receives that a computation needs, before it
                            * sends what that makes, as one that reads a number of its device */
  uint32_t stopped;        /* the rank that stops; UINT32_MAX: none */
  uint64_t limit;          /* transfers that it starts, and the rest of their batch */
  uint64_t started[RANKS]; /* transfers */
  uint64_t done[RANKS];    /* of them */
  uint64_t passed[RANKS];  /* bits: of the batch after these */
};

/* The k-th transfer that a rank starts. */
struct started {
  const struct weft_flight_channel *channel;
  uint64_t number; /* on it */
  uint64_t batch;
};

static struct started started_at(const struct job *job, uint32_t rank, uint64_t k) {
  const struct weft_flight_row *row = &job->rows[rank];
  const uint64_t step = k / row->count, at = k % row->count, place = job->order[rank][at];
  const struct weft_flight_channel *channel = &row->channels[row->channel[place]];
  return (struct started){
      .channel = channel,
      .number = weft_flight_number(row, step * row->count + place),
      .batch = step * (job->batch[rank][row->count - 1] + 1u) + job->batch[rank][at]};
}

static uint64_t batch_end(const struct job *job, uint32_t rank, uint64_t k) {
  const uint64_t batch = started_at(job, rank, k).batch;
  while (started_at(job, rank, k).batch == batch) {
    k++;
  }
  return k;
}

/* Where the computation of the k-th transfer is, since training began. */
static uint64_t compute_at(const struct job *job, uint32_t rank, uint64_t k) {
  const struct weft_flight_row *row = &job->rows[rank];
  const uint64_t compute = row->compute[job->order[rank][k % row->count]];
  return compute == UINT64_MAX ? compute : k / row->count * 2 * row->length + compute;
}

/* Whether a process waits for its device. */
static bool waits(const struct job *job, uint32_t rank) {
  const uint64_t started = job->started[rank], done = job->done[rank];
  const bool sends = job->synchronous == 2 && started_at(job, rank, started).channel->sends;
  bool found =
      job->synchronous == 1 && done < started && !started_at(job, rank, started - 1).channel->sends;
  for (uint64_t k = done; sends && k < started && !found; k++) {
    found = !started_at(job, rank, k).channel->sends &&
            compute_at(job, rank, k) <= compute_at(job, rank, started);
  }
  return found;
}

static bool enqueue(struct job *job, uint32_t rank) {
  const uint64_t all = (uint64_t)STEPS * job->rows[rank].count;
  const uint64_t limit = rank == job->stopped && job->limit < all ? job->limit : all;
  const uint64_t before = job->started[rank];
  uint64_t *started = &job->started[rank];
  while (*started < limit && !waits(job, rank)) {
    *started = batch_end(job, rank, *started);
  }
  return *started != before;
}

/* The place of the other end in the batch that the peer's device is at; UINT64_MAX: it is not. */
static uint64_t other_end(const struct job *job, uint32_t rank, const struct started *mine) {
  const uint32_t peer = mine->channel->peer;
  const uint64_t first = job->done[peer];
  if (first == job->started[peer]) {
    return UINT64_MAX;
  }
  for (uint64_t k = first; k < batch_end(job, peer, first); k++) {
    const struct started other = started_at(job, peer, k);
    if (other.channel->peer == rank && other.channel->sends != mine->channel->sends &&
        other.number == mine->number) {
      return k - first;
    }
  }
  return UINT64_MAX;
}

/* The two ends of a transfer run together when both are in the oldest batches of their ranks; a
 * batch is done when all its transfers are. */
static bool transfer(struct job *job, uint32_t rank) {
  const uint64_t first = job->done[rank];
  if (first == job->started[rank]) {
    return false;
  }
  const uint64_t end = batch_end(job, rank, first), before = job->passed[rank];
  for (uint64_t k = first; k < end; k++) {
    const struct started mine = started_at(job, rank, k);
    const uint64_t other = other_end(job, rank, &mine);
    if (other != UINT64_MAX) {
      job->passed[rank] |= UINT64_C(1) << (k - first);
      job->passed[mine.channel->peer] |= UINT64_C(1) << other;
    }
  }
  const bool moved = job->passed[rank] != before;
  if (job->passed[rank] == (UINT64_C(1) << (end - first)) - 1) {
    job->done[rank] = end;
    job->passed[rank] = 0;
    return true;
  }
  return moved;
}

static void simulate(struct job *job) {
  memset(job->started, 0, sizeof job->started);
  memset(job->done, 0, sizeof job->done);
  memset(job->passed, 0, sizeof job->passed);
  for (bool moved = true; moved;) {
    moved = false;
    for (uint32_t r = 0; r < job->program->rank_count; r++) {
      moved = enqueue(job, r) || moved;
      moved = transfer(job, r) || moved;
    }
  }
}

static bool hangs(const struct job *job) {
  bool pending = false;
  for (uint32_t r = 0; r < job->program->rank_count; r++) {
    pending = pending || job->done[r] < job->started[r];
  }
  return pending;
}

/* Each transfer by itself, in the order of the rows. */
static void start_one_by_one(struct job *job) {
  for (uint32_t r = 0; r < job->program->rank_count; r++) {
    for (uint32_t k = 0; k < job->rows[r].count; k++) {
      job->order[r][k] = job->batch[r][k] = k;
    }
  }
}

/* The transfers of a rank that an action receives or sends, as one batch by ascending peers. */
static void add_batch(struct job *job, uint32_t rank, struct weft_action compute, enum weft_op op,
                      uint32_t *count) {
  const struct weft_flight_row *row = &job->rows[rank];
  const uint32_t batch = *count > 0 ? job->batch[rank][*count - 1] + 1 : 0;
  for (uint32_t peer = 0; peer < job->program->rank_count; peer++) {
    for (uint32_t place = 0; place < row->count; place++) {
      const struct weft_action action = job->program->actions[row->records[place]];
      if (action.op == op && action.stage == compute.stage &&
          action.microbatch == compute.microbatch &&
          row->channels[row->channel[place]].peer == peer) {
        job->order[rank][*count] = place;
        job->batch[rank][(*count)++] = batch;
      }
    }
  }
}

/* As PyTorch's GPipe does: all that an action needs, then all that it makes. */
static void start_by_action(struct job *job) {
  for (uint32_t r = 0; r < job->program->rank_count; r++) {
    uint32_t count = 0;
    for (uint64_t i = job->program->row_begin[r]; i < job->program->row_begin[r + 1]; i++) {
      const struct weft_action action = job->program->actions[i];
      if (action.op == WEFT_OP_F || action.op == WEFT_OP_B) {
        const bool forward = action.op == WEFT_OP_F;
        add_batch(job, r, action, forward ? WEFT_OP_RECV_F : WEFT_OP_RECV_B, &count);
        add_batch(job, r, action, forward ? WEFT_OP_SEND_F : WEFT_OP_SEND_B, &count);
      }
    }
    assert_int_equal(count, job->rows[r].count);
  }
}

static void job_read(struct job *job) {
  struct weft_error error;
  assert_true(job->program->rank_count <= RANKS);
  assert_int_equal(weft_flight_rows_read(&job->arena, job->program, job->rows, &error), WEFT_OK);
  for (uint32_t r = 0; r < job->program->rank_count; r++) {
    job->order[r] = weft_arena_allocate(&job->arena, job->rows[r].count + 1u, sizeof(uint32_t));
    job->batch[r] = weft_arena_allocate(&job->arena, job->rows[r].count + 1u, sizeof(uint32_t));
  }
  assert_int_equal(weft_arena_status(&job->arena, &error), WEFT_OK);
  start_one_by_one(job);
}

static void job_open(struct job *job, struct weft_program *table) {
  struct weft_error error;
  *job = (struct job){.stopped = UINT32_MAX};
  assert_int_equal(weft_lower(NULL, table, NULL, &job->program, &error), WEFT_OK);
  weft_program_destroy(table);
  job_read(job);
}

static void job_close(struct job *job) {
  weft_arena_finish(&job->arena);
  weft_program_destroy(job->program);
}

/* ---- Dumps ---- */

static void add_entry(struct weft_text *text, uint64_t record, const char *name, uint64_t batch,
                      bool done, bool payload) {
  weft_text_addf(text,
                 "%s{\"record_id\":%llu,\"pg_id\":0,\"process_group\":[\"0\",\"default_pg\"],"
                 "\"profiling_name\":\"nccl:%s\",\"p2p_seq_id\":%llu,\"collective_seq_id\":0,"
                 "\"state\":\"%s\",\"retired\":false,\"input_sizes\":[[%s]],"
                 "\"input_dtypes\":[\"Float\"]}",
                 text->data[text->size - 1] == '[' ? "" : ",", (unsigned long long)record, name,
                 (unsigned long long)batch, done ? "completed" : "scheduled",
                 payload ? "2,64" : "");
}

/* A rank's dump: a set-up of one batch, then its batches, each with an entry at its end. `ring`: how
 * many of the last entries it has; WHOLE: all. */
static void add_dump(struct weft_text *text, const struct job *job, uint32_t rank, uint64_t ring) {
  const uint64_t count = job->started[rank];
  const uint64_t batches = count > 0 ? started_at(job, rank, count - 1).batch + 1 : 0;
  const uint64_t completed =
      job->done[rank] > 0 ? started_at(job, rank, job->done[rank] - 1).batch + 1 : 0;
  const uint64_t entries = 2 + count + batches;
  const uint64_t first = ring == WHOLE || ring > entries ? 0 : entries - ring;
  uint64_t entry = 0;
  char name[64];
  weft_text_addf(text,
                 "{\"version\":\"2.10\",\"pg_status\":{\"0\":{\"last_completed_collective\":%llu}},"
                 "\"pg_config\":{\"0\":{\"ranks\":\"[0, 1, 2, 3, 4, 5, 6, 7]\"}},\"entries\":[",
                 (unsigned long long)completed + 1);
  for (; entry < 2; entry++) {
    if (entry >= first) {
      (void)snprintf(name, sizeof name, entry == 1 ? "coalesced" : "send %u->%u", rank,
                     job->rows[rank].channels[0].peer);
      add_entry(text, entry, name, 1, entry == 1, false);
    }
  }
  for (uint64_t k = 0; k < count; k++) {
    const struct started at = started_at(job, rank, k);
    (void)snprintf(name, sizeof name, at.channel->sends ? "send %u->%u" : "recv %u<-%u", rank,
                   at.channel->peer);
    if (entry >= first) {
      add_entry(text, entry, name, at.batch + 2, false, true);
    }
    entry++;
    if (batch_end(job, rank, k) == k + 1) {
      if (entry >= first) {
        add_entry(text, entry, "coalesced", at.batch + 2, k < job->done[rank], true);
      }
      entry++;
    }
  }
  weft_text_add(text, "]}");
}

/* The explanation as JSON, in `text`. */
static enum weft_status explain(const struct job *job, uint64_t ring, uint32_t missing,
                                struct weft_text *text, struct weft_error *error) {
  struct weft_text dumps[RANKS] = {{0}};
  struct weft_flight_dump list[RANKS];
  char names[RANKS][32];
  size_t count = 0;
  for (uint32_t r = 0; r < job->program->rank_count; r++) {
    if (r == missing) {
      continue;
    }
    add_dump(&dumps[r], job, r, ring);
    (void)snprintf(names[r], sizeof names[r], "rank%u.json", r);
    list[count++] =
        (struct weft_flight_dump){.name = names[r], .data = dumps[r].data, .size = dumps[r].size};
  }
  const enum weft_status status =
      weft_flight_explain(NULL, job->program, list, count, true, text, error);
  for (uint32_t r = 0; r < RANKS; r++) {
    weft_text_finish(&dumps[r]);
  }
  return status;
}

/* UINT32_MAX: null. */
static uint32_t culprit_of(const struct weft_text *text) {
  const char *at = strstr(text->data, "\"culprit\":");
  assert_non_null(at);
  at += strlen("\"culprit\":");
  return strncmp(at, "null", 4) == 0 ? UINT32_MAX : (uint32_t)strtoul(at, NULL, 10);
}

static uint64_t untold; /* verdicts without the culprit that there is */

static void expect(const struct job *job, uint64_t ring, uint32_t missing, uint32_t culprit) {
  struct weft_text text = {0};
  struct weft_error error;
  if (explain(job, ring, missing, &text, &error) != WEFT_OK) {
    fail_msg("%s", error.message);
  }
  /* Of a graph, dumps without their beginning may be counted from a wrong step. */
  const bool may_not_tell = job->program->graph != NULL && ring != WHOLE;
  const uint32_t found = culprit_of(&text);
  untold += found != culprit;
  if (found != culprit && !(may_not_tell && found == UINT32_MAX)) {
    fail_msg("rank %u stopped after %llu transfers, ring %llu, missing %d: expected %d in %s",
             job->stopped, (unsigned long long)job->limit, (unsigned long long)ring, (int)missing,
             (int)culprit, text.data);
  }
  weft_text_finish(&text);
}

/* ---- A process stops ---- */

static uint64_t check_stop(struct job *job) {
  const uint32_t rank_count = job->program->rank_count;
  if (rank_count < 2) { /* alone it waits for nobody */
    return 0;
  }
  simulate(job);
  const uint32_t culprit = hangs(job) ? job->stopped : UINT32_MAX;
  const uint32_t other =
      (job->stopped + 1 + (uint32_t)(job->limit % (rank_count - 1))) % rank_count;
  uint64_t checked = 0;
  expect(job, job->limit % 3 * 30, UINT32_MAX, culprit); /* WHOLE, 30, 60 */
  checked++;
  if (culprit != UINT32_MAX && rank_count > 2) {
    struct weft_text text = {0};
    struct weft_error error;
    assert_int_equal(explain(job, WHOLE, other, &text, &error), WEFT_OK);
    const uint32_t found = culprit_of(&text);
    /* Without the dump that shows the wait, at most the missing rank can be named. */
    if (found != culprit && found != other && found != UINT32_MAX) {
      fail_msg("rank %u stopped, rank %u is missing, and rank %u is named", culprit, other, found);
    }
    checked += found == culprit;
    weft_text_finish(&text);
  }
  return checked;
}

/* Every rank, at several places of the second step. */
static uint64_t check_stops(struct job *job) {
  uint64_t checked = 0;
  for (int synchronous = 0; synchronous < 3; synchronous++) {
    job->synchronous = synchronous;
    for (job->stopped = 0; job->stopped < job->program->rank_count; job->stopped++) {
      const uint64_t row = job->rows[job->stopped].count;
      for (job->limit = row; job->limit < 2 * row + 3; job->limit += STRIDE) {
        checked += check_stop(job);
      }
    }
  }
  return checked;
}

static void test_stopped_process(void **state) {
  (void)state;
  const struct {
    const char *schedule;
    struct weft_shape shape;
  } cases[] = {{"1F1B", {.ranks = 2, .microbatches = 4}},
               {"1F1B", {.ranks = 4, .microbatches = 6}},
               {"GPipe", {.ranks = 3, .microbatches = 4}},
               {"Interleaved1F1B", {.ranks = 4, .stages_per_rank = 2, .microbatches = 8}},
               {"Interleaved1F1B", {.ranks = 2, .stages_per_rank = 3, .microbatches = 4}},
               {"InterleavedZeroBubble", {.ranks = 4, .stages_per_rank = 2, .microbatches = 8}},
               {"ZBVZeroBubble", {.ranks = 4, .microbatches = 8}},
               {"DualPipeV", {.ranks = 4, .microbatches = 10}}};
  uint64_t checked = 0;
  for (size_t c = 0; c < WEFT_ARRAY_LENGTH(cases); c++) {
    struct weft_program *table;
    struct weft_error error;
    struct job job;
    assert_int_equal(weft_generate(NULL, cases[c].schedule, &cases[c].shape, &table, &error),
                     WEFT_OK);
    job_open(&job, table);
    checked += check_stops(&job);
    job_close(&job);
  }
  print_message("%llu verdicts\n", (unsigned long long)checked);
}

/* A table of a named schedule for these edges; {0, 0} ends them. */
static struct weft_program *graph_table(const char *schedule, uint32_t ranks, uint32_t stages,
                                        const uint32_t (*edges)[2]) {
  struct weft_shape shape = {.ranks = ranks, .microbatches = 4};
  struct weft_edge list[16];
  uint32_t count = 0;
  struct weft_graph *graph;
  struct weft_program *table;
  struct weft_error error;
  for (; edges[count][1] > 0; count++) {
    list[count] = weft_edge_make(edges[count][0], edges[count][1]);
  }
  assert_int_equal(weft_graph_create(NULL, stages, list, count, NULL, &graph, &error), WEFT_OK);
  shape.graph = graph;
  if (weft_generate(NULL, schedule, &shape, &table, &error) != WEFT_OK) {
    fail_msg("%s", error.message);
  }
  weft_graph_destroy(graph);
  return table;
}

/* One by one in the order of Weft's rows, and in batches with several peers as PyTorch's. */
static void test_stopped_graph(void **state) {
  (void)state;
  static const uint32_t skip[][2] = {{0, 1}, {1, 2}, {0, 2}, {0, 0}};
  static const uint32_t unet[][2] = {{0, 1}, {1, 2}, {2, 3}, {3, 4},
                                     {4, 5}, {0, 5}, {1, 4}, {0, 0}};
  static const uint32_t encoders[][2] = {{0, 2}, {1, 3}, {2, 4}, {3, 4}, {4, 5}, {0, 5}, {0, 0}};
  static const uint32_t heads[][2] = {{0, 1}, {0, 2}, {0, 3}, {1, 3}, {0, 0}};
  const struct {
    const uint32_t (*edges)[2];
    uint32_t stages;
  } cases[] = {{skip, 3}, {unet, 6}, {encoders, 6}, {heads, 4}};
  uint64_t checked = 0;
  for (size_t c = 0; c < WEFT_ARRAY_LENGTH(cases); c++) {
    const uint32_t stages = cases[c].stages;
    struct job job;
    job_open(&job, graph_table("1F1B", stages, stages, cases[c].edges));
    checked += check_stops(&job);
    job_close(&job);
    job_open(&job, graph_table("GPipe", stages, stages, cases[c].edges));
    start_by_action(&job);
    checked += check_stops(&job);
    job_close(&job);
    if (stages % 2 == 0) {
      job_open(&job, graph_table("Interleaved1F1B", stages / 2, stages, cases[c].edges));
      checked += check_stops(&job);
      job_close(&job);
    }
  }
  assert_true(untold * 50 < checked);
  print_message("%llu verdicts\n", (unsigned long long)checked);
}

/* ---- Deadlocks ---- */

/* Each rank sends first, and so waits for the other to receive. */
static void test_deadlock(void **state) {
  (void)state;
  struct weft_text text = {0};
  struct weft_error error;
  struct job job = {
      .stopped = UINT32_MAX,
      .program = csv_program("0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1\n"
                             "1RECV_F0,1F0,1B0,1SEND_B0,1RECV_F1,1F1,1B1,1SEND_B1\n")};
  job_read(&job);
  for (int synchronous = 0; synchronous < 2; synchronous++) {
    job.synchronous = synchronous;
    simulate(&job);
    text.size = 0;
    assert_int_equal(explain(&job, WHOLE, UINT32_MAX, &text, &error), WEFT_OK);
    assert_non_null(strstr(text.data, "\"culprit\":null,\"cycle\":[0,1],\"hangs\":true"));
    assert_non_null(strstr(text.data, "rank 0 in 0SEND_F1, rank 1 in 1SEND_B0"));
  }
  weft_text_finish(&text);
  job_close(&job);
}

/* ---- Pickles ---- */

/* Every opcode of data, as Python 3 writes it with protocol 4. */
static void test_pickle(void **state) {
  (void)state;
  static const char bytes[] =
      "\x80\x04\x95\x10\0\0\0\0\0\0\0}\x94(\x8c\x01"
      "a\x94K\x07\x8c\x01"
      "b]\x94(J\xff\xff\xff\xff"
      "M\x01\x02\x8a\x02\x00\x80G\x3f\xf8\0\0\0\0\0\0N\x88\x89h\x01"
      "eX\x01\0\0\0"
      "c)\x8c\x01"
      "d"
      "K\x01K\x02\x86u.";
  WEFT_SCOPED_ARENA arena = {.allocator = NULL};
  const struct weft_pickle_value *value, *list;
  struct weft_error error;
  if (weft_pickle_read(&arena, bytes, sizeof bytes - 1, "x", &value, &error) != WEFT_OK) {
    fail_msg("%s", error.message);
  }
  assert_int_equal(weft_pickle_integer(weft_pickle_find(value, "a"), -1), 7);
  list = weft_pickle_find(value, "b");
  assert_int_equal(list->count, 8);
  assert_int_equal(list->items[0]->integer, -1);
  assert_int_equal(list->items[1]->integer, 0x201);
  assert_int_equal(list->items[2]->integer, -32768);
  assert_int_equal(list->items[3]->kind, WEFT_PICKLE_REAL);
  assert_int_equal(list->items[4]->kind, WEFT_PICKLE_NONE);
  assert_int_equal(list->items[5]->integer, 1);
  assert_int_equal(list->items[6]->kind, WEFT_PICKLE_BOOLEAN);
  assert_true(weft_pickle_is(list->items[7], "a"));
  assert_int_equal(weft_pickle_find(value, "c")->count, 0);
  assert_int_equal(weft_pickle_find(value, "d")->items[1]->integer, 2);
  assert_null(weft_pickle_find(value, "e"));
}

static void refuse(const char *bytes, size_t size, const char *words) {
  WEFT_SCOPED_ARENA arena = {.allocator = NULL};
  const struct weft_pickle_value *value;
  struct weft_error error;
  assert_int_equal(weft_pickle_read(&arena, bytes, size, "x", &value, &error), WEFT_ERR_FORMAT);
  if (strstr(error.message, words) == NULL) {
    fail_msg("expected \"%s\" in \"%s\"", words, error.message);
  }
}

static void test_pickle_refused(void **state) {
  (void)state;
#define REFUSE(bytes, words) refuse(bytes, sizeof bytes - 1, words)
  REFUSE("", "empty");
  REFUSE("hello", "no pickle");
  REFUSE("\x80\x09.", "protocol");
  REFUSE("\x80\x02", "ends before");
  REFUSE("\x80\x02X\xff\0\0\0a.", "ends in the middle");
  REFUSE(
      "\x80\x02"
      "cos\nsystem\n(X\x02\0\0\0lstR.",
      "opcode 0x63");
  REFUSE("\x80\x02(.", "one value");
  REFUSE("\x80\x02NN.", "one value");
  REFUSE("\x80\x02h\x05.", "never remembered");
  REFUSE("\x80\x02Na.", "not there");
  REFUSE("\x80\x02NNa.", "no list");
  REFUSE("\x80\x02}(Nu.", "not there");
  REFUSE("\x80\x02Nr\xff\xff\xff\x7f.", "memo");
  REFUSE(
      "\x80\x02\x8a\x09"
      "123456789.",
      "more than 8");
#undef REFUSE
}

/* ---- What is refused, and memory ---- */

static struct weft_program *two_ranks(void) {
  return csv_program("0F0,0SEND_F0,0RECV_B0,0B0\n1RECV_F0,1F0,1B0,1SEND_B0\n");
}

static enum weft_status explain_one(const struct weft_allocator *allocator, const char *name,
                                    const char *json, struct weft_text *text,
                                    struct weft_error *error) {
  struct weft_program *program = two_ranks();
  const struct weft_flight_dump dump = {.name = name, .data = json, .size = strlen(json)};
  const enum weft_status status =
      weft_flight_explain(allocator, program, &dump, 1, false, text, error);
  weft_program_destroy(program);
  return status;
}

static void expect_refused(const char *name, const char *json, enum weft_status status,
                           const char *words) {
  struct weft_text text = {0};
  struct weft_error error;
  assert_int_equal(explain_one(NULL, name, json, &text, &error), status);
  if (strstr(error.message, words) == NULL) {
    fail_msg("expected \"%s\" in \"%s\"", words, error.message);
  }
  weft_text_finish(&text);
}

#define ENTRY(name) "{\"record_id\":0,\"profiling_name\":\"nccl:" name "\",\"p2p_seq_id\":2}"

static void test_refused(void **state) {
  (void)state;
  expect_refused("rank0", "{}", WEFT_ERR_FORMAT, "no list \"entries\"");
  expect_refused("rank0", "{\"entries\":", WEFT_ERR_FORMAT, "rank0");
  expect_refused("x", "{\"entries\":[]}", WEFT_ERR_FORMAT, "its rank is not known");
  expect_refused("rank0", "{\"entries\":[" ENTRY("send 0->1") "," ENTRY("send 1->0") "]}",
                 WEFT_ERR_FORMAT, "of rank 0 and of rank 1");
  expect_refused("rank0", "{\"entries\":[" ENTRY("send 0->5") "," ENTRY("send 0->6") "]}",
                 WEFT_ERR_INVALID, "name 3 ranks, up to rank 6; the program has 2");
  expect_refused("rank0", "{\"entries\":[" ENTRY("send 0->0") "]}", WEFT_ERR_INVALID,
                 "sends to rank 0, which the program does not have");
  expect_refused("rank7", "{\"entries\":[]}", WEFT_ERR_INVALID, "the program has 2");
}

static void test_memory(void **state) {
  (void)state;
  struct test_memory memory;
  struct weft_error error;
  enum weft_status status = WEFT_ERR_MEMORY;
  for (uint64_t fail_at = 1; status == WEFT_ERR_MEMORY; fail_at++) {
    test_memory_init(&memory);
    memory.fail_at = fail_at;
    struct weft_text text = {.allocator = &memory.allocator};
    status = explain_one(&memory.allocator, "rank0", "{\"entries\":[" ENTRY("send 0->1") "]}",
                         &text, &error);
    weft_text_finish(&text);
    assert_int_equal(memory.blocks, 0);
    memory.fail_at = 0;
  }
  assert_int_equal(status, WEFT_OK);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_stopped_process), cmocka_unit_test(test_stopped_graph),
      cmocka_unit_test(test_deadlock),        cmocka_unit_test(test_pickle),
      cmocka_unit_test(test_pickle_refused),  cmocka_unit_test(test_refused),
      cmocka_unit_test(test_memory),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
