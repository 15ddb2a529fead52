/* The cost stage takes a given time and computes nothing. In virtual time a run with it
 * reproduces the simulation to the tick; on threads it shows what the runtime adds.
 * The null stage does nothing: what remains is the cost of the runtime. */
#define _DEFAULT_SOURCE /* prctl */
#include <assert.h>
#include <errno.h>
#include <sched.h>
#include <time.h>
#ifdef __linux__
#include <sys/prctl.h>
#endif

#include <weft/run.h>
#include <weft/support.h>

#include "device/kernel.h"

/* Sleeping ends this early, and the thread yields until the end. Waking takes about 55 us
 * where an idle core of a virtual machine has to wake too, and longer on a shared core. */
enum { EARLY_NS = 200 * 1000, SECOND_NS = 1000 * 1000 * 1000 };

/* How often it calls progress, awake and asleep. */
enum { PROGRESS_NS = 20 * 1000, NAP_NS = 50 * 1000 };

static int64_t later(int64_t now, int64_t by) {
  return by > WEFT_TIME_NEVER - now ? WEFT_TIME_NEVER : now + by;
}

/* Calls progress periodically, if it has an effect. Returns the time. */
static int64_t progress(struct weft_stage_call *call, int64_t *last) {
  const int64_t now = weft_clock_ns();
  if (call->progress_context != NULL && now - *last >= PROGRESS_NS) {
    call->progress(call->progress_context);
    *last = now;
  }
  return now;
}

/* Linux may wake a thread 50 us late to save power; this turns it off. */
static int set_slack(int slack_ns) {
#ifdef __linux__
  const int before = prctl(PR_GET_TIMERSLACK);
  (void)prctl(PR_SET_TIMERSLACK, slack_ns);
  return before;
#else
  return slack_ns;
#endif
}

/* Ranks may share a core and end at about the same time: a rank that spins, and does not yield, would
 * keep the core beyond another's end. */
static void spin_until(struct weft_stage_call *call, int64_t end, bool yields) {
  int64_t last = 0;
  while (progress(call, &last) < end) {
    if (yields) {
      (void)sched_yield();
    }
  }
}

static void nap(int64_t wake) {
  const struct timespec at = {.tv_sec = (time_t)(wake / SECOND_NS),
                              .tv_nsec = (long)(wake % SECOND_NS)};
  while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &at, NULL) == EINTR) {
  }
}

/* In one piece, or in naps with a call of progress after each. */
static void sleep_until(struct weft_stage_call *call, int64_t end) {
  const int64_t wake = end - EARLY_NS;
  int64_t now = weft_clock_ns(), last = 0;
  if (wake > now) {
    const int slack = set_slack(1);
    while (call->progress_context != NULL && wake - now > NAP_NS) {
      nap(now + NAP_NS);
      now = progress(call, &last);
    }
    nap(wake);
    (void)set_slack(slack);
  }
  spin_until(call, end, true);
}

static enum weft_status take_virtual(struct weft_cost_stage *cost, struct weft_stage_call *call,
                                     int64_t time) {
  if (!call->again) {
    cost->until = later(call->now, time);
  }
  if (call->now >= cost->until) {
    return WEFT_OK;
  }
  call->ready_at = cost->until;
  return WEFT_IN_PROGRESS;
}

static enum weft_status spin_on_device(const struct weft_stage_call *call, int64_t time,
                                       struct weft_error *error) {
  uint64_t ns = (uint64_t)time;
  void *const parameters[] = {&ns};
  return weft_kernel_launch(call->device, WEFT_KERNEL_SPIN, 1, parameters, call->stream, error);
}

static enum weft_status take_time(struct weft_stage *stage, struct weft_stage_call *call,
                                  enum weft_op op, struct weft_error *error) {
  assert(call != NULL);
  struct weft_cost_stage *cost = (struct weft_cost_stage *)stage;
  const int64_t time = cost->times[op];
  assert(time >= 0);
  if (time == 0) {
    return WEFT_OK;
  }
  switch (cost->mode) {
    case WEFT_COST_VIRTUAL: return take_virtual(cost, call, time);
    case WEFT_COST_SLEEP: sleep_until(call, later(weft_clock_ns(), time)); break;
    case WEFT_COST_SPIN: spin_until(call, later(weft_clock_ns(), time), false); break;
    case WEFT_COST_DEVICE: return spin_on_device(call, time, error);
  }
  return WEFT_OK;
}

#define TAKE_TIME(name, op)                                                            \
  static enum weft_status name(struct weft_stage *stage, struct weft_stage_call *call, \
                               struct weft_error *error) {                             \
    return take_time(stage, call, op, error);                                          \
  }
TAKE_TIME(forward, WEFT_OP_F)
TAKE_TIME(backward, WEFT_OP_B)
TAKE_TIME(backward_input, WEFT_OP_I)
TAKE_TIME(backward_weight, WEFT_OP_W)
TAKE_TIME(unshard, WEFT_OP_UNSHARD)
TAKE_TIME(reduce_grad, WEFT_OP_REDUCE_GRAD)

static enum weft_status do_nothing(struct weft_stage *stage, struct weft_stage_call *call,
                                   struct weft_error *error) {
  (void)stage;
  (void)call;
  (void)error;
  return WEFT_OK;
}

#define COST_OPS                                                                              \
  .name = "cost", .forward = forward, .backward = backward, .backward_input = backward_input, \
  .backward_weight = backward_weight, .unshard = unshard, .reduce_grad = reduce_grad,         \
  .scale_grads = do_nothing

void weft_cost_stage_init(struct weft_cost_stage *stage, enum weft_cost_mode mode) {
  static const struct weft_stage_ops host_ops = {COST_OPS};
  static const struct weft_stage_ops device_ops = {.enqueues = true, .replays = true, COST_OPS};
  *stage = (struct weft_cost_stage){
      .stage = {.ops = mode == WEFT_COST_DEVICE ? &device_ops : &host_ops}, .mode = mode};
}

const struct weft_stage_ops *weft_null_stage_ops(void) {
  static const struct weft_stage_ops ops = {
      .name = "null",
      .enqueues = true, /* nothing */
      .replays = true,
      .forward = do_nothing,
      .backward = do_nothing,
      .backward_input = do_nothing,
      .backward_weight = do_nothing,
      .loss = do_nothing,
      .scale_grads = do_nothing,
  };
  return &ops;
}
