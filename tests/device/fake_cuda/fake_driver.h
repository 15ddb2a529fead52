/* The inside of the fake driver: what its files share. One lock for all of it. */
#ifndef FAKE_DRIVER_H
#define FAKE_DRIVER_H

#include <pthread.h>

#include "fake_cuda.h"
#include "fake_functions.h"

/* Not in the table: Weft's kernels have at most 48 KiB of shared memory, and do not ask for more. */
FAKE_CUDA_API CUresult cuFuncSetAttribute(CUfunction function, int attribute, int value);

enum fake_call {
#define FAKE_CALL(how, name, symbol, parameters) FAKE_CALL_##name,
  FAKE_CUDA_FUNCTIONS(FAKE_CALL)
#undef FAKE_CALL
      FAKE_CALL_COUNT
};

/* What the product has no need to name. */
enum {
  FAKE_PEER_ACCESS_NOT_ENABLED = 705,
  FAKE_LAUNCH_FAILED = 719,
  FAKE_NOT_PERMITTED = 800,
  FAKE_CAPTURE_INVALIDATED = 901,
  FAKE_CAPTURE_MERGE = 902,
  FAKE_CAPTURE_UNMATCHED = 903,
  FAKE_CAPTURE_UNJOINED = 904,
  FAKE_CAPTURE_ISOLATION = 905,
  FAKE_CAPTURED_EVENT = 907,
  FAKE_CAPTURE_WRONG_THREAD = 908
};

enum { FAKE_DEVICES_MAX = 8, FAKE_QUEUES_MAX = 32, FAKE_CLOCKS_MAX = 1024 };

#define FAKE_TRY(expression)              \
  do {                                    \
    const CUresult tried_ = (expression); \
    if (tried_ != CUDA_SUCCESS) {         \
      return tried_;                      \
    }                                     \
  } while (0)

/* ---- Clocks: fake_races.c ---- */

/* Vector clock: of each stream, host thread and lane of a graph, how far it is known. */
struct fake_clock {
  uint32_t count; /* behind it are zeros */
  uint32_t ticks[FAKE_CLOCKS_MAX];
};

/* An operation in a message. */
struct fake_operation {
  const char *name, *label,
      *stream_name; /* that live as long as the process; the latter two or NULL */
  uint32_t stream;
  uint64_t serial; /* of the call */
};

uint32_t fake_clock_component_take(void);
void fake_clock_component_give(uint32_t component);
/* The component's next tick, also in the clock. */
uint32_t fake_clock_tick(struct fake_clock *clock, uint32_t component);
void fake_clock_join(struct fake_clock *to, const struct fake_clock *from);
void fake_clock_copy(struct fake_clock *to, const struct fake_clock *from);
/* Work of a component at its clock, for fake_cuda_order(); and nothing since the reset. */
void fake_order_add(const struct fake_operation *operation, const struct fake_clock *clock,
                    uint32_t component);
void fake_order_forget(void);

struct fake_block;
struct fake_plan;
/* An operation at `clock`, of which it is the component's last tick, accesses memory. */
void fake_access(struct fake_block *block, uint64_t begin, uint64_t end, bool reads, bool writes,
                 const struct fake_operation *operation, const struct fake_clock *clock,
                 uint32_t component);

/* ---- Memory: fake_memory.c ---- */

struct fake_range; /* bytes with the same history */

struct fake_block {
  uintptr_t begin;
  uint64_t bytes;
  int device; /* -1: pinned host memory */
  uint64_t number;
  struct fake_range *ranges;
  uint32_t range_count, range_capacity;
};

/* The block in which these bytes lie; NULL: none. */
struct fake_block *fake_block_at(uintptr_t address, uint64_t bytes);
/* Whether the address is one of device memory, allocated or not. */
bool fake_address_is_devices(uintptr_t address);
/* Where the driver can access it. */
void *fake_address_view(uintptr_t address);
void fake_ranges_free(struct fake_block *block);
/* Nothing accessed any block so far. */
void fake_memory_forget(void);

/* ---- Work: fake_kernels.c (launches) and fake_copies.c ---- */

enum fake_work_kind { FAKE_WORK_COPY, FAKE_WORK_FILL, FAKE_WORK_WRITE, FAKE_WORK_KERNEL };

struct fake_work {
  enum fake_work_kind kind;
  int device; /* that does it */
  const char *name;
  union {
    struct {
      uintptr_t to, from;
      uint64_t width, rows, to_stride, from_stride;
      bool to_pageable, from_pageable; /* memory that CUDA did not allocate */
      unsigned char *staged;           /* NULL, or what `from` had when it was called */
    } copy;
    struct {
      uintptr_t data;
      uint64_t bytes;
      unsigned char value;
    } fill;
    struct {
      uintptr_t data;
      uint32_t value;
    } write;
    struct {
      struct CUkern_st *kernel;
      uint64_t values[FAKE_CUDA_PARAMETERS_MAX];
      uint64_t threads;
    } launch;
  } of;
};

/* Looks at all it accesses: races, and CUDA_ERROR_ILLEGAL_ADDRESS. */
CUresult fake_work_check(const struct fake_work *work, const struct fake_operation *operation,
                         const struct fake_clock *clock, uint32_t component);
/* Calls visitor->visit() for each access; its error ends it. */
struct fake_visitor;
CUresult fake_work_visit(const struct fake_work *work, struct fake_visitor *visitor);
/* What is planned for this launch, which is the kernel's next; NULL: nothing. */
const struct fake_plan *fake_work_plan(const struct fake_work *work);
/* Whether it could run now; a kernel that spins or hangs could not. */
bool fake_work_may_run(const struct fake_work *work, const struct fake_plan *plan);
/* Does it, if its memory is still there. */
CUresult fake_work_run(const struct fake_work *work, const struct fake_plan *plan);
/* The graph that has it is gone. */
void fake_work_forget(const struct fake_work *work);
uint64_t fake_work_time_ns(const struct fake_work *work);
CUresult fake_work_submit(CUstream stream, struct fake_work *work);

/* The parts of the above that kernels have. */
struct fake_visitor {
  /* One access of the work; false ends it. */
  CUresult (*visit)(struct fake_visitor *visitor, uintptr_t data, uint64_t bytes, bool reads,
                    bool writes);
  const struct fake_work *work;
  const struct fake_operation *operation;
  const struct fake_clock *clock;
  uint32_t component;
};
CUresult fake_kernel_visit(const struct fake_work *work, struct fake_visitor *visitor);
bool fake_kernel_is_ready(const struct fake_work *work);
/* It waits for another process. */
bool fake_work_is_outside(const struct fake_work *work);
void fake_kernel_run(const struct fake_work *work);
uint64_t fake_kernel_time_ns(const struct fake_work *work);

/* ---- Handles ---- */

enum fake_kind {
  FAKE_DEAD = 0,
  FAKE_CONTEXT = 0x46c0,
  FAKE_STREAM,
  FAKE_EVENT,
  FAKE_LIBRARY,
  FAKE_KERNEL,
  FAKE_GRAPH,
  FAKE_EXECUTABLE,
  FAKE_GREEN_CONTEXT,
  FAKE_DESCRIPTION
};

/* First in each. A dead one stays readable for a while, so that its use is an error. */
struct fake_object {
  enum fake_kind kind;
  struct fake_object *next; /* among the dead */
};

void *fake_object_create(enum fake_kind kind, size_t size);
void fake_object_destroy(void *handle);
/* Whether a handle that a caller gave is one of that kind. */
bool fake_object_is(const void *object, enum fake_kind kind);

struct CUctx_st {
  struct fake_object object;
  int device;
};

struct CUlib_st {
  struct fake_object object;
};

struct CUkern_st {
  struct fake_object object;
  const struct fake_cuda_kernel *kernel;
  uint64_t launches;     /* since the reset */
  uint32_t shared_asked; /* by cuFuncSetAttribute, since then */
  struct CUkern_st *next;
};

void fake_kernels_forget(void); /* all launches so far */

struct CUgreenCtx_st {
  struct fake_object object;
  int device;
  unsigned int sm_count;
};

struct CUdevResourceDesc_st {
  struct fake_object object;
  unsigned int sm_count;
};

/* One record of an event, or the end of a launch of a graph. */
struct fake_mark {
  uint32_t references;
  bool done;
  bool lost; /* it did not happen: its device was lost before */
  int device;
  uint64_t serial;   /* of the call that made it */
  uint64_t record;   /* 0, or the how-manieth cuEventRecord that was */
  bool seen;         /* by a query or the host's waiting, */
  bool timed;        /* and its time has been read */
  uint64_t noted_in; /* the recording, and the node in it; fake_replay.c */
  uint32_t noted;
  uint64_t time_ns;
  struct fake_clock clock;
  struct fake_mark *next; /* among the unused */
};

struct fake_capture;

struct CUstream_st {
  struct fake_object object;
  uint32_t index; /* how many were created before */
  int device;
  uint32_t queue;
  bool destroyed;   /* and has nodes yet */
  const char *name; /* or NULL */
  bool fresh;       /* it has worked or waited since it wrote a word */
  uint64_t pending; /* nodes */
  uint64_t time_ns;
  struct fake_clock clock;
  uint32_t component;
  uint32_t work_tick;    /* of its last work or graph */
  uint64_t host_version; /* the last host clock that was joined */
  const void *host;
  struct fake_capture *capture; /* NULL: none */
  uint32_t lane;                /* there */
  uint32_t *after;              /* nodes of the capture that the next one comes after */
  uint32_t after_count, after_capacity;
};

struct CUevent_st {
  struct fake_object object;
  unsigned int flags;
  int device;
  struct fake_mark *mark;       /* of the last record; NULL: none, or captured */
  struct fake_capture *capture; /* last recorded there */
  uint64_t serial, record;      /* of that call, likewise */
  uint32_t *after;
  uint32_t after_count;
};

/* ---- Queues: fake_streams.c and fake_scheduler.c ---- */

enum fake_node_kind { FAKE_NODE_WORK, FAKE_NODE_RECORD, FAKE_NODE_WAIT, FAKE_NODE_GRAPH };

struct fake_launch;

struct fake_node {
  struct fake_node *next; /* in the queue */
  enum fake_node_kind kind;
  CUstream stream;
  struct fake_operation operation;
  CUresult result; /* what the work ends with */
  const struct fake_plan *plan;
  uint64_t issued_ns;
  struct fake_work work;
  struct fake_mark *mark;     /* RECORD and WAIT; GRAPH: happens at its end */
  struct fake_launch *launch; /* GRAPH */
};

struct fake_queue {
  struct fake_node *first, *last;
  uint64_t begin_ns; /* of the last one that left */
};

/* The stream of a handle, NULL being the default one of the current device. */
CUresult fake_stream_of(CUstream handle, CUstream *out);
/* A call of this thread on a stream comes after what the thread has waited for. */
void fake_stream_follow_host(CUstream stream);
void fake_stream_release(CUstream stream);
/* Of what this thread calls on a stream, which may be NULL; NULL: none. */
const char *fake_label_of(CUstream stream);
struct fake_operation fake_operation_of(const char *name, CUstream stream);
struct fake_node *fake_node_create(enum fake_node_kind kind, CUstream stream,
                                   struct fake_operation operation);
void fake_node_push(struct fake_node *node);
struct fake_mark *fake_mark_create(int device);
struct fake_mark *fake_mark_reference(struct fake_mark *mark); /* NULL is fine */
void fake_mark_release(struct fake_mark *mark);                /* NULL is fine */

/* Runs one node; false: none may run. */
bool fake_step(void);
/* Runs until it has happened; a deadlock is an error. */
CUresult fake_run_until_done(const bool *done);
CUresult fake_run_until_empty(CUstream stream);
/* Runs a few nodes for a query; an error of a device, or a deadlock. */
CUresult fake_run_some(void);
/* Forgets all nodes of a device; events that they record happen. */
void fake_queues_drop(int device);

/* ---- Graphs: fake_graphs.c (execution) and fake_capture.c ---- */

struct fake_graph_node {
  struct fake_work work;
  CUevent records; /* NULL, or the event that it records, and no work */
  const char *label, *stream_name;
  uint32_t stream, lane;
  uint32_t *after; /* nodes before it */
  uint32_t after_count;
};

struct CUgraph_st {
  struct fake_object object;
  uint32_t references; /* the handle, the capture, executables */
  struct fake_graph_node *nodes;
  uint32_t node_count, node_capacity;
  uint32_t lane_count;
};

void fake_graph_release(CUgraph graph);
const struct CUgraph_st *fake_launch_graph(const struct fake_launch *launch);
/* The nodes of a launch that may run: how many, and one of them by its index in the graph. */
uint32_t fake_launch_ready_count(struct fake_node *node);
uint32_t fake_launch_ready_at(const struct fake_node *node, uint32_t k);
/* Runs the k-th ready one; `begin_ns` is when the launch could begin. *ended: it was the last of
 * the graph. */
CUresult fake_launch_run(struct fake_node *of, uint32_t k, uint64_t begin_ns, bool *ended);
/* When all of it has run; and the device of what failed. */
uint64_t fake_launch_end_ns(const struct fake_launch *launch);
int fake_launch_device(const struct fake_launch *launch);
/* Of the node that ran last; NULL: none. */
const char *fake_launch_label(const struct fake_launch *launch);
/* All its marks happen. */
void fake_launch_destroy(struct fake_launch *launch);
/* Whether the launch of the same graph before it has ended. */
bool fake_launch_may_begin(const struct fake_launch *launch);
/* Whether a node of it hangs because a test wants it; and whether one waits for another process. */
bool fake_launch_hangs(const struct fake_launch *launch);
bool fake_launch_is_outside(const struct fake_launch *launch);

/* Work on a stream that is being captured. */
CUresult fake_capture_add(CUstream stream, const struct fake_work *work, CUevent records);
CUresult fake_capture_record(CUevent event, CUstream stream);
CUresult fake_capture_wait(CUstream stream, CUevent event);
/* Not allowed while this thread captures: an error, and the capture is lost. */
CUresult fake_capture_forbid(void);
void fake_capture_release(struct fake_capture *capture);
/* It goes on, and nothing has made it invalid. */
bool fake_capture_is_active(const struct fake_capture *capture);
void fake_captures_drop(void);
struct fake_thread;
/* The thread ends. */
void fake_captures_leave(const struct fake_thread *thread);

/* ---- Recordings: fake_replay.c ---- */

void fake_note_node(const struct fake_node *node);

/* ---- Host threads, options and findings: fake_control.c ---- */

struct fake_host {
  uint32_t component;
  uint64_t version; /* counts changes of the clock */
  uint64_t time_ns;
  struct fake_clock clock;
  struct fake_host *next;
};

struct fake_thread {
  struct fake_host *host;
  struct CUctx_st *context; /* current; NULL: none */
  const char *label;
  uint64_t captures; /* that it began and has not ended */
};

struct fake_plan {
  struct fake_plan *next;
  enum { FAKE_PLAN_FAIL, FAKE_PLAN_DROP, FAKE_PLAN_HANG, FAKE_PLAN_CRASH } action;
  const char *name; /* of a function or kernel */
  uint64_t nth;
  CUresult result;
  bool sticky;
  bool over; /* HANG: it was released */
};

struct fake_state {
  pthread_mutex_t lock;
  bool initialised;
  struct fake_cuda_options options; /* no zeros */
  uint64_t random;
  uint64_t serial; /* of calls */
  uint64_t now_ns; /* the device's clock for what runs */
  struct fake_queue queues[FAKE_DEVICES_MAX][FAKE_QUEUES_MAX];
  uint64_t pending;
  CUresult lost[FAKE_DEVICES_MAX]; /* why a device is lost */
  bool peers[FAKE_DEVICES_MAX][FAKE_DEVICES_MAX];
  CUstream *streams; /* the live ones */
  uint32_t stream_count, stream_capacity, streams_created;
  struct fake_cuda_statistics statistics;
  bool deadlocked;     /* it has been reported */
  const char *crashed; /* fake_cuda_crashed() */
  uint32_t crash_left; /* queries until it does, */
  bool crash_begun;    /* which count since it runs */
};

extern struct fake_state fake;

struct fake_thread *fake_thread(void);
/* This thread's, or the one that all share. */
struct fake_host *fake_host(void);
/* The host has waited for what has that clock and time. */
void fake_host_wait(const struct fake_clock *clock, uint64_t time_ns);
uint64_t fake_random(void);
const char *fake_intern(const char *text);
/* The plan for the nth call or launch of that name; NULL: none. */
const struct fake_plan *fake_plan_of(const char *name, uint64_t nth, bool launch);
void fake_find(enum fake_cuda_finding kind, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
/* A line of the trace, if there is one: what was called. */
void fake_trace(const struct fake_operation *operation, const char *more);
/* How many calls of a function there were; and somebody has waited for that cuEventRecord. */
uint64_t fake_calls(enum fake_call call);
void fake_record_used(uint64_t nth);
/* "weft_scale #12 on stream 3 \"rank 0\" [2F3]" */
const char *fake_operation_text(const struct fake_operation *operation, char *text, size_t size);
void *fake_allocate(size_t bytes);
void *fake_array_grow(void *array, uint32_t *capacity, uint32_t count, size_t item);

/* False: the call ends with *result. True: it holds the lock, and ends with fake_leave(). */
bool fake_enter(enum fake_call call, CUresult *result);
CUresult fake_leave(enum fake_call call, CUresult result);

/* The body of a function of the table. */
#define FAKE_BODY(name, expression)                    \
  do {                                                 \
    CUresult early_;                                   \
    if (!fake_enter(FAKE_CALL_##name, &early_)) {      \
      return early_;                                   \
    }                                                  \
    return fake_leave(FAKE_CALL_##name, (expression)); \
  } while (0)

#endif
