/* Aligns a record with its row.
 *
 * The transfers of one channel keep their order, whatever batches they are started in; those of
 * different channels may be recorded in another order than the row has. So a transfer's action is
 * found by counting on its channel. A record that has lost its beginning can start anywhere in a
 * step: each offset is tried, also where some channels were already one transfer further, since
 * batches are in an order of their own. The start counts that contradicts the program least, and
 * then the one from which the record's order differs least from that of the row. */
#include "flight/flight_align.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <weft/inspect.h>

#include "ir/action.h"

/* ---- Rows ---- */

struct weft_flight_channel *weft_flight_channel_find(const struct weft_flight_row *row,
                                                     uint32_t peer, bool sends) {
  assert(row != NULL);
  for (uint32_t c = 0; c < row->channel_count; c++) {
    if (row->channels[c].peer == peer && row->channels[c].sends == sends) {
      return &row->channels[c];
    }
  }
  return NULL;
}

#define NO_COMPUTE UINT64_MAX

/* Which computation each record of a row belongs to: a forward, or a backward that passes a
 * gradient on, and what it receives. Twice its offset in the row; odd for the parts of an overlap,
 * which share one. */
static void find_computes(const struct weft_program *program, const struct weft_links *links,
                          uint64_t begin, uint64_t end, uint64_t *compute_of) {
  uint64_t needs[WEFT_NEEDS_MAX];
  memset(compute_of, 0xff, (end - begin) * sizeof *compute_of); /* NO_COMPUTE */
  for (uint64_t cell = begin; cell < end;) {
    const uint32_t records = weft_cell_records(&program->actions[cell]);
    for (uint64_t record = cell; record < cell + records; record++) {
      const uint8_t op = program->actions[record].op;
      if (!weft_op_in(op, WEFT_OPS_COMPUTE) || op == WEFT_OP_W) {
        continue;
      }
      compute_of[record - begin] = 2 * (cell - begin) + (records > 1);
      for (unsigned n = weft_links_needs(links, record, needs); n > 0; n--) {
        if (weft_op_in(program->actions[needs[n - 1]].op, WEFT_OPS_RECV)) {
          compute_of[needs[n - 1] - begin] = compute_of[record - begin];
        }
      }
    }
    cell += records;
  }
}

static void add_transfer(struct weft_flight_row *row, uint64_t record, uint32_t peer, bool sends) {
  struct weft_flight_channel *channel = weft_flight_channel_find(row, peer, sends);
  if (channel == NULL) {
    channel = &row->channels[row->channel_count++];
    *channel = (struct weft_flight_channel){.peer = peer, .sends = sends};
  }
  row->records[row->count] = record;
  row->channel[row->count++] = (uint32_t)(channel - row->channels);
  channel->count++;
}

static void list_offsets(struct weft_flight_row *row, uint32_t *offsets) {
  for (uint32_t c = 0; c < row->channel_count; c++) {
    row->channels[c].offsets = offsets;
    offsets += row->channels[c].count;
    row->channels[c].count = 0;
  }
  for (uint32_t t = 0; t < row->count; t++) {
    struct weft_flight_channel *channel = &row->channels[row->channel[t]];
    row->number[t] = channel->count;
    channel->offsets[channel->count++] = t;
  }
}

static enum weft_status read_row(struct weft_arena *arena, const struct weft_program *program,
                                 const struct weft_links *links, uint32_t rank,
                                 struct weft_flight_row *row, struct weft_error *error) {
  const uint64_t begin = program->row_begin[rank], end = program->row_begin[rank + 1];
  uint64_t count = 0, needs[WEFT_NEEDS_MAX];
  for (uint64_t i = begin; i < end; i++) {
    count += weft_op_in(program->actions[i].op, WEFT_OPS_SEND | WEFT_OPS_RECV);
  }
  const size_t room = (size_t)count + 1;
  *row =
      (struct weft_flight_row){.records = weft_arena_allocate(arena, room, sizeof *row->records),
                               .channel = weft_arena_allocate(arena, room, sizeof *row->channel),
                               .number = weft_arena_allocate(arena, room, sizeof *row->number),
                               .compute = weft_arena_allocate(arena, room, sizeof *row->compute),
                               .channels = weft_arena_allocate(arena, room, sizeof *row->channels)};
  uint32_t *offsets = weft_arena_allocate(arena, room, sizeof *offsets);
  uint64_t *compute_of = weft_arena_allocate(arena, (size_t)(end - begin) + 1, sizeof *compute_of);
  WEFT_TRY(weft_arena_status(arena, error));
  row->length = end - begin;
  find_computes(program, links, begin, end, compute_of);
  for (uint64_t i = begin; i < end; i++) {
    const struct weft_action action = program->actions[i];
    const bool sends = weft_op_in(action.op, WEFT_OPS_SEND);
    const uint32_t peer = weft_links_peer(links, i);
    if (!sends && !weft_op_in(action.op, WEFT_OPS_RECV)) {
      continue;
    }
    if (peer == WEFT_MATCH_NONE) {
      char word[32];
      return weft_fail(error, WEFT_ERR_INVALID, "verify the program to see what is wrong with it",
                       "rank %" PRIu32 ": no rank has the other end of %s", rank,
                       weft_action_format(&action, word, sizeof word));
    }
    if (sends && weft_links_needs(links, i, needs) > 0) {
      compute_of[i - begin] = compute_of[needs[0] - begin];
    }
    row->compute[row->count] = compute_of[i - begin];
    add_transfer(row, i, weft_program_rank_at(program, peer), sends);
  }
  list_offsets(row, offsets);
  return WEFT_OK;
}

enum weft_status weft_flight_rows_read(struct weft_arena *arena, const struct weft_program *program,
                                       struct weft_flight_row *rows, struct weft_error *error) {
  assert(program != NULL && rows != NULL);
  struct weft_links *links;
  WEFT_TRY(weft_links_create(arena->allocator, program, &links, error));
  enum weft_status status = WEFT_OK;
  for (uint32_t r = 0; r < program->rank_count && status == WEFT_OK; r++) {
    status = read_row(arena, program, links, r, &rows[r], error);
  }
  weft_links_destroy(links);
  return status;
}

/* ---- Alignment ---- */

/* Channels as they are before the transfer at `offset` of a step. */
static void begin_at(struct weft_flight_row *row, uint64_t offset) {
  const uint64_t steps = row->count > 0 ? offset / row->count : 0;
  for (uint32_t c = 0; c < row->channel_count; c++) {
    row->channels[c].started = steps * row->channels[c].count;
  }
  for (uint64_t t = steps * row->count; t < offset; t++) {
    row->channels[row->channel[t - steps * row->count]].started++;
  }
}

/* Where a record begins: before this offset, with the channels in `ahead` (bits) one transfer
 * further. */
struct start {
  uint64_t offset;
  uint32_t ahead;
};

static void begin_ahead(struct weft_flight_row *row, uint32_t ahead) {
  for (uint32_t c = 0; ahead >> c != 0; c++) {
    row->channels[c].started += ahead >> c & 1;
  }
}

uint64_t weft_flight_offset(const struct weft_flight_row *row,
                            const struct weft_flight_channel *channel, uint64_t number) {
  assert(channel->count > 0);
  return number / channel->count * row->count + channel->offsets[number % channel->count];
}

uint64_t weft_flight_number(const struct weft_flight_row *row, uint64_t offset) {
  assert(row->count > 0);
  const uint64_t t = offset % row->count;
  return offset / row->count * row->channels[row->channel[t]].count + row->number[t];
}

/* Assigns all transfers, from this offset on, where the channels are. Returns by how many offsets
 * the record's order and the row's differ in sum; stops above `most`. */
static uint64_t assign_on(const struct weft_flight_record *record, struct weft_flight_row *row,
                          uint64_t first, uint64_t most) {
  uint64_t difference = 0;
  for (size_t k = 0; k < record->count && difference <= most; k++) {
    struct weft_flight_transfer *transfer = &record->transfers[k];
    struct weft_flight_channel *channel =
        weft_flight_channel_find(row, transfer->peer, transfer->sends);
    transfer->before = weft_flight_offset(row, channel, channel->started);
    channel->started++;
    difference += (uint64_t)llabs((long long)transfer->before - (long long)(first + k));
  }
  return difference;
}

static uint64_t assign(const struct weft_flight_record *record, struct weft_flight_row *row,
                       struct start start) {
  begin_at(row, start.offset);
  begin_ahead(row, start.ahead);
  return assign_on(record, row, start.offset, UINT64_MAX);
}

static enum weft_status check_channels(const struct weft_flight_record *record,
                                       const struct weft_flight_row *row,
                                       struct weft_error *error) {
  for (size_t k = 0; k < record->count; k++) {
    const struct weft_flight_transfer *transfer = &record->transfers[k];
    if (weft_flight_channel_find(row, transfer->peer, transfer->sends) == NULL) {
      return weft_fail(
          error, WEFT_ERR_INVALID, "give the program that this job runs, with its number of ranks",
          "%s: rank %" PRIu32 " %s rank %" PRIu32 ", which the program does not have", record->name,
          record->numbers[record->rank], transfer->sends ? "sends to" : "receives from",
          record->numbers[transfer->peer]);
    }
  }
  return WEFT_OK;
}

/* ---- Contradictions ---- */

/* A send of the record, and a receive that the program has before it: the send carries what the
 * rank has computed from the receive, or after that, but the receive was started later, or never.
 * A receive may be started early, and transfers may be started in other batches and another order
 * than the program has them; this cannot be. */
struct contradiction {
  const struct weft_flight_transfer *send;
  const struct weft_flight_transfer *receive; /* NULL: it is not in the record */
  uint64_t offset;                            /* of the receive, since training began */
  uint64_t count;                             /* of such receives */
};

/* The offset of a transfer's computation, since training began. */
static uint64_t compute_offset(const struct weft_flight_row *row, uint64_t offset) {
  assert(row->count > 0);
  const uint64_t compute = row->compute[offset % row->count];
  return compute == NO_COMPUTE ? NO_COMPUTE : offset / row->count * row->length * 2 + compute;
}

static void contradict(struct contradiction *found, const struct weft_flight_row *row,
                       const struct weft_flight_transfer *send,
                       const struct weft_flight_transfer *receive, uint64_t offset) {
  const uint64_t used = compute_offset(row, offset);
  const uint64_t made = send != NULL ? compute_offset(row, send->before) : 0;
  const bool in_overlap = used == made && used % 2 == 1; /* the parts have no order */
  if (send == NULL || used == NO_COMPUTE || used > made || in_overlap || offset > send->before) {
    return; /* the program asks for no order of the two */
  }
  if (found->count++ == 0) {
    found->send = send;
    found->receive = receive;
    found->offset = offset;
  }
}

/* Looks at a record whose transfers are assigned. */
static struct contradiction find_contradiction(const struct weft_flight_record *record,
                                               const struct weft_flight_row *row) {
  struct contradiction found = {0};
  const struct weft_flight_transfer *furthest = NULL; /* the send of the latest computation */
  for (size_t k = 0; k < record->count; k++) {
    const struct weft_flight_transfer *transfer = &record->transfers[k];
    if (!transfer->sends) {
      contradict(&found, row, furthest, transfer, transfer->before);
    } else if (compute_offset(row, transfer->before) != NO_COMPUTE &&
               (furthest == NULL ||
                compute_offset(row, transfer->before) > compute_offset(row, furthest->before))) {
      furthest = transfer;
    }
  }
  for (uint32_t c = 0; c < row->channel_count; c++) {
    const struct weft_flight_channel *channel = &row->channels[c];
    if (!channel->sends) {
      contradict(&found, row, furthest, NULL, weft_flight_offset(row, channel, channel->started));
    }
  }
  return found;
}

static enum weft_status fail_contradiction(const struct weft_program *program,
                                           const struct weft_flight_record *record,
                                           const struct weft_flight_row *row,
                                           const struct contradiction *found,
                                           struct weft_error *error) {
  assert(found->send != NULL);
  char send[32], receive[32], entry[64] = "has not started yet";
  (void)weft_action_format(&program->actions[row->records[found->send->before % row->count]], send,
                           sizeof send);
  (void)weft_action_format(&program->actions[row->records[found->offset % row->count]], receive,
                           sizeof receive);
  if (found->receive != NULL) {
    (void)snprintf(entry, sizeof entry, "starts only in entry %" PRIu64, found->receive->entry);
  }
  const uint32_t peer = row->channels[row->channel[found->offset % row->count]].peer;
  return weft_fail(
      error, WEFT_ERR_INVALID,
      "give the program that this job runs: its schedule, with its numbers of microbatches and "
      "stages",
      "%s: the program contradicts entry %" PRIu64 ", where rank %" PRIu32 " sends to rank %" PRIu32
      ": that is %s of step %" PRIu64 " by the program, which has %s of step %" PRIu64
      " before it, a receive from rank %" PRIu32 " that the rank %s",
      record->name, found->send->entry, record->numbers[record->rank],
      record->numbers[found->send->peer], send, found->send->before / row->count + 1, receive,
      found->offset / row->count + 1, record->numbers[peer], entry);
}

/* In a graph, a record that has lost its beginning may begin where channels are further ahead of
 * each other than is tried, so only many contradictions count. */
static bool is_contradicted(const struct weft_program *program,
                            const struct weft_flight_record *record,
                            const struct contradiction *found) {
  const bool is_sure = record->whole || program->graph == NULL;
  return found->count > (is_sure ? 0 : record->count / 8 + 2);
}

/* Batches per step, as the record shows them; 0: it does not. */
static uint64_t batches_per_step(const struct weft_flight_record *record,
                                 const struct weft_flight_row *row) {
  const struct weft_flight_transfer *first = record->transfers;
  for (size_t k = 1; k < record->count; k++) {
    const struct weft_flight_transfer *later = &record->transfers[k];
    if (later->before == first->before + row->count) {
      return later->batch > first->batch ? later->batch - first->batch : 0;
    }
  }
  return 0;
}

#define CHANNELS_AHEAD_MAX 4 /* of more, none is ahead */

/* Where the record fits best in a step. From most offsets it soon differs by too much to go on. Of
 * equal ones it is that which batches of one transfer would give. */
static struct start find_offset(const struct weft_flight_record *record, uint64_t lost,
                                struct weft_flight_row *row) {
  const uint32_t sets =
      row->channel_count <= CHANNELS_AHEAD_MAX ? UINT32_C(1) << row->channel_count : 1;
  uint64_t least = UINT64_MAX, most = record->count + record->count / 2 + 16;
  struct start best = {.offset = lost % row->count};
  for (uint32_t k = 0; k < row->count; k++) {
    const uint64_t offset = (lost + k) % row->count;
    uint64_t started[CHANNELS_AHEAD_MAX];
    begin_at(row, offset);
    for (uint32_t c = 0; sets >> c > 1; c++) {
      started[c] = row->channels[c].started;
    }
    for (uint32_t ahead = 0; ahead < sets; ahead++) {
      for (uint32_t c = 0; sets >> c > 1; c++) {
        row->channels[c].started = started[c];
      }
      begin_ahead(row, ahead);
      const uint64_t difference = assign_on(record, row, offset, most);
      if (difference > most) {
        continue;
      }
      const uint64_t count = find_contradiction(record, row).count;
      if (count < least || (count == least && difference < most)) {
        least = count;
        most = count == 0 ? difference : most;
        best = (struct start){offset, ahead};
      }
    }
  }
  return best;
}

/* The same, with the step by the number of the record's first batch. */
static struct start find_first(const struct weft_flight_record *record, uint64_t set_up,
                               struct weft_flight_row *row) {
  assert(record->count > 0 && row->count > 0);
  const uint64_t first_batch = record->transfers[0].batch;
  const uint64_t lost = first_batch > set_up + 1 ? first_batch - set_up - 1 : 0;
  struct start first = find_offset(record, lost, row);
  (void)assign(record, row, first);
  const uint64_t shown = batches_per_step(record, row);
  const uint64_t batches = shown > 0 ? shown : row->count;
  const uint64_t within = first.offset * batches / row->count;
  const uint64_t steps = lost > within ? (lost - within + batches / 2) / batches : 0;
  first.offset += steps * row->count;
  return first;
}

/* How many transfers are pending among those that the record has lost: the number of the last batch
 * that is done tells. */
static uint64_t count_lost(const struct weft_flight_record *record,
                           const struct weft_flight_row *row) {
  assert(record->count > 0);
  const uint64_t first_batch = record->transfers[0].batch;
  if (record->whole || record->transfers[0].done || record->last_done == 0 ||
      first_batch <= record->last_done + 1) {
    return 0;
  }
  const uint64_t shown = batches_per_step(record, row);
  const uint64_t lost =
      (first_batch - 1 - record->last_done) * row->count / (shown > 0 ? shown : row->count);
  return lost < record->transfers[0].before ? lost : record->transfers[0].before;
}

/* All that is pending comes after this offset. */
static void begin_pending(struct weft_flight_row *row, uint64_t head) {
  row->head = head;
  for (uint32_t c = 0; c < row->channel_count; c++) {
    struct weft_flight_channel *channel = &row->channels[c];
    channel->done = channel->started;
    while (channel->done > 0 && weft_flight_offset(row, channel, channel->done - 1) >= head) {
      channel->done--;
    }
  }
}

static bool has_batches_of_one(const struct weft_flight_record *record) {
  bool one = true;
  for (size_t k = 1; k < record->count && one; k++) {
    one = record->transfers[k].batch != record->transfers[k - 1].batch;
  }
  return one;
}

static void find_head(const struct weft_flight_record *record, struct weft_flight_row *row) {
  const uint64_t lost = count_lost(record, row);
  if (lost > 0) {
    begin_pending(row, record->transfers[0].before - lost);
    row->estimated = !has_batches_of_one(record);
    return;
  }
  begin_pending(row, UINT64_MAX);
  for (size_t k = record->count; k > 0; k--) {
    const struct weft_flight_transfer *transfer = &record->transfers[k - 1];
    if (!transfer->done) {
      row->head = transfer->before;
      weft_flight_channel_find(row, transfer->peer, transfer->sends)->done--;
    }
  }
}

enum weft_status weft_flight_align(const struct weft_program *program,
                                   const struct weft_flight_record *record, uint64_t set_up,
                                   struct weft_flight_row *row, struct weft_error *error) {
  assert(record != NULL && row != NULL);
  begin_at(row, 0);
  row->head = UINT64_MAX;
  if (record->count == 0) {
    return WEFT_OK;
  }
  WEFT_TRY(check_channels(record, row, error));
  const struct start first = record->whole ? (struct start){0} : find_first(record, set_up, row);
  const uint64_t difference = assign(record, row, first);
  const struct contradiction found = find_contradiction(record, row);
  if (is_contradicted(program, record, &found)) {
    return fail_contradiction(program, record, row, &found, error);
  }
  if (difference / record->count > row->count / 4 + 2) {
    return weft_fail(error, WEFT_ERR_INVALID,
                     "give the program that this job runs, with its number of microbatches",
                     "%s: the transfers of rank %" PRIu32
                     " come in another order than the program has them",
                     record->name, record->numbers[record->rank]);
  }
  find_head(record, row);
  return WEFT_OK;
}

/* ---- Heads that are estimated ---- */

static void refine(struct weft_flight_row *rows, const struct weft_flight_record *records,
                   uint32_t rank) {
  struct weft_flight_row *row = &rows[rank];
  uint64_t head = UINT64_MAX;
  for (uint32_t c = 0; row->estimated && c < row->channel_count; c++) {
    const struct weft_flight_channel *channel = &row->channels[c];
    const struct weft_flight_row *peer = &rows[channel->peer];
    const struct weft_flight_channel *other = weft_flight_channel_find(peer, rank, !channel->sends);
    if (records[channel->peer].name != NULL && !peer->estimated && other != NULL) {
      const uint64_t offset = weft_flight_offset(row, channel, other->done);
      head = offset < head ? offset : head;
    }
  }
  if (head != UINT64_MAX) {
    begin_pending(row, head);
    row->estimated = false;
  }
}

/* There and back, because one that is known now may tell of the next. */
void weft_flight_refine(struct weft_flight_row *rows, const struct weft_flight_record *records,
                        uint32_t rank_count) {
  assert(rows != NULL && records != NULL);
  for (uint32_t r = 0; r < rank_count; r++) {
    refine(rows, records, r);
  }
  for (uint32_t r = rank_count; r > 0; r--) {
    refine(rows, records, r - 1);
  }
}
