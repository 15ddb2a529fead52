/* When the cells and transfers of a row ran on the device: from events, which are read when somebody
 * asks for the times, or from the clocks that a recording has noted beside its work. */
#include "run/executor/executor.h"

#include <assert.h>

void weft_executor_read_clocks(struct weft_executor *executor) {
  assert(executor->device != NULL);
  struct weft_device_work *work = executor->device;
  for (uint32_t k = 0; work->ends != NULL && k < work->enqueued; k++) {
    work->ends[k] = work->base_ns + (int64_t)(work->clocks[k + 1] - *work->begin_clock);
  }
  for (uint32_t t = 0; work->moved != NULL && t < work->copy_count; t++) {
    work->transfers[t].end = work->base_ns + (int64_t)(work->move_clocks[t] - *work->begin_clock);
  }
}

static enum weft_status read_event(const struct weft_device_work *work,
                                   struct weft_device_event *event, int64_t *ns,
                                   struct weft_error *error) {
  int64_t elapsed;
  WEFT_TRY(work->device->ops->event_elapsed(work->device, work->base, event, &elapsed, error));
  *ns = work->base_ns + elapsed;
  return WEFT_OK;
}

static int64_t later(int64_t a, int64_t b) { return a > b ? a : b; }

/* From the ends of the row's cells, and of what they wait for: in a replay of all ranks those of
 * other cells, else the cells' starts. In a replay of this rank alone, of transfers: these come one
 * after the other, and each after the cell before it in the row. */
void weft_executor_write_times(const struct weft_executor *executor,
                               const struct weft_executor *const *ranks) {
  assert(executor->device != NULL && executor->row != NULL);
  const struct weft_device_work *work = executor->device;
  const struct weft_row *row = executor->row;
  if (work->ends == NULL || row->times == NULL) {
    return;
  }
  const bool alone = work->replaying && ranks == NULL;
  /* In one process a transfer is a hand-over, which takes no time; elsewhere, in an eager step, the
   * transport has measured it. */
  const bool is_known = !alone && executor->transport->ops->step_barrier == NULL;
  int64_t now = work->base_ns, moved = work->base_ns;
  uint32_t w = 0, k = 0, t = 0;
  for (uint64_t i = row->begin, next; i < row->end; i = next) {
    const struct weft_action *cell = &row->program->actions[i];
    int64_t begin = now, end = now;
    next = i + weft_cell_records(cell);
    if (alone && t < work->copy_count && work->transfers[t].record == i) {
      begin = later(now, moved);
      end = moved = later(begin, work->transfers[t++].end);
    } else if (k < work->enqueued && work->records[k] == i) {
      for (; work->replaying && w < work->wait_count && work->waits[w].cell <= k; w++) {
        const struct weft_device_wait *wait = &work->waits[w];
        begin = later(begin, alone ? work->transfers[wait->number].end
                                   : ranks[wait->rank]->device->ends[wait->for_cell]);
      }
      begin = work->replaying ? begin : later(begin, work->starts[k]);
      end = now = later(now, work->ends[k++]);
      begin = begin < end ? begin : end;
    }
    if (cell->op == WEFT_OP_IDLE ||
        (is_known && weft_op_in(cell->op, WEFT_OPS_SEND | WEFT_OPS_RECV | WEFT_OPS_SHARD))) {
      continue;
    }
    for (uint64_t part = i; part < next; part++) {
      row->times[part - row->begin] = (struct weft_row_time){begin, end};
    }
  }
}

enum weft_status weft_executor_read_times(const struct weft_executor *executor,
                                          struct weft_error *error) {
  struct weft_device_work *work = executor->device;
  if (work == NULL || !work->has_unread_times) {
    return WEFT_OK;
  }
  WEFT_TRY(work->device->ops->make_current(work->device, error));
  for (uint32_t k = 0; k < work->enqueued; k++) {
    WEFT_TRY(read_event(work, work->events[k], &work->ends[k], error));
    if (work->starts[k] >= 0) {
      WEFT_TRY(read_event(work, work->begins[k], &work->starts[k], error));
    }
  }
  weft_executor_write_times(executor, NULL);
  work->has_unread_times = false;
  return WEFT_OK;
}
