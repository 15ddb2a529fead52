/* A CUDA driver without a GPU: a libcuda.so.1 that executes, for tests.
 *
 * An asynchronous call (copy, fill, launch, record, wait, write, graph) is a node in the queue of
 * its stream. It runs when the host synchronizes, queries, or calls fake_cuda_run(); a seeded
 * scheduler then takes any node that may run. Streams share a number of hardware queues; a node
 * that waits blocks what is behind it in its queue. With one queue, so does a node of a graph: its
 * nodes are taken one after the other, in any order that the edges allow. Device memory is memory that only the driver
 * can access; kernels are host functions.
 *
 * Two operations on the same bytes, one of which writes, need an order made of streams, events
 * and what the host has waited for; without it they are a race, whatever order they ran in.
 *
 *     fake_cuda_reset(&(struct fake_cuda_options){.queues = 4, .seed = seed});
 *     ... the product's calls, or CUDA's ...
 *     assert_int_equal(fake_cuda_finding_count(), 0);
 *
 * A program that links this library has it as libcuda.so.1, whatever the machine has. The
 * command takes it from LD_LIBRARY_PATH and its options from the environment:
 *
 *     WEFT_FAKE_CUDA="devices=2,sms=132,queues=8,seed=1,policy=random,fail=cuLaunchKernel:17"
 *
 * with the names below, and fail=FUNCTION:NTH[:RESULT[:sticky]], drop=FUNCTION:NTH,
 * hang=KERNEL:NTH, crash=KERNEL:NTH[:RESULT], each as often as needed, die=FUNCTION:NTH, which
 * kills the process ("any": the nth call of all but cuEventQuery), report=FILE: what was
 * found, written at exit, and trace=FILE: a line per asynchronous call. All functions are thread-safe. */
#ifndef FAKE_CUDA_H
#define FAKE_CUDA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define FAKE_CUDA_API __attribute__((visibility("default")))

enum fake_cuda_policy {
  FAKE_CUDA_RANDOM, /* policy=random: any node that may run */
  FAKE_CUDA_NEWEST, /* policy=newest: the one issued last */
  FAKE_CUDA_OLDEST, /* policy=oldest: the one issued first */
  FAKE_CUDA_STARVE  /* policy=starve: one stream only when nothing else may run; else random */
};

/* 0 is the default everywhere. */
struct fake_cuda_options {
  uint32_t devices; /* 1; up to 8 */
  uint32_t sms;     /* of each device: 132 */
  bool mixed;       /* each device has 8 SMs less than the one before it */
  uint32_t queues;  /* hardware queues of each device: 8; up to 32 */
  uint64_t seed;    /* 0 */
  enum fake_cuda_policy policy;
  uint32_t starved;       /* FAKE_CUDA_STARVE: the how-manieth stream that is created, from 0 */
  uint32_t query_nodes;   /* a query runs up to so many nodes before it answers: 16 */
  uint32_t crash_queries; /* a kernel that crashes does so after so many more queries: 0 */
  uint64_t memory_bytes;  /* of each device: 1 GiB */
  uint32_t version;       /* of CUDA: 13000 */
  uint32_t capability;    /* of the devices: 90 */
  uint32_t mps;  /* connections that all processes of the job share, as under MPS: 0: no MPS */
  bool no_peers; /* devices cannot access each other's memory */
  bool separate_hosts; /* what one host thread has waited for, another has not; else all are one */
  bool strict_queries; /* a query of an event that was seen, and not recorded since, is early; so is
                          a time that is read again */
  bool late_queries;   /* every second query of an event begins a moment after the call */
  bool orders;         /* keeps fake_cuda_order(); what queries tell the host makes no order then */
  bool stall_waits;    /* a query that finds a deadlock says "not ready", as CUDA would */
};

/* Forgets queued nodes, findings, counts and plans for failures; objects and memory stay. NULL:
 * the options of the environment. The process begins with those. */
FAKE_CUDA_API void fake_cuda_reset(const struct fake_cuda_options *options);

/* Runs all nodes; false: a deadlock. */
FAKE_CUDA_API bool fake_cuda_run(void);
/* Runs at most so many; how many ran. */
FAKE_CUDA_API uint64_t fake_cuda_run_nodes(uint64_t count);
/* Nodes that have not run. */
FAKE_CUDA_API uint64_t fake_cuda_pending(void);

/* ---- The same calls in many orders ---- */

/* What was enqueued between begin and end; at most one launch of a graph. */
struct fake_cuda_recording;
FAKE_CUDA_API void fake_cuda_recording_begin(void);
FAKE_CUDA_API struct fake_cuda_recording *fake_cuda_recording_end(void);
FAKE_CUDA_API void fake_cuda_recording_free(
    struct fake_cuda_recording *recording); /* NULL is fine */
FAKE_CUDA_API uint32_t fake_cuda_recording_nodes(const struct fake_cuda_recording *recording);
/* Takes all nodes in the order of a seed, policy and number of queues, to which streams are
 * assigned anew, without computing: whether each reads what it read in the order of the calls, and
 * memory ends the same. Races are not looked for: they were when the calls were made, and depend
 * on no order. NULL: all is well; else what is wrong, valid until the next. */
FAKE_CUDA_API const char *fake_cuda_replay(struct fake_cuda_recording *recording,
                                           const struct fake_cuda_options *options);

/* ---- What was found since the reset ---- */

enum fake_cuda_finding {
  FAKE_CUDA_RACE,     /* two operations without an order */
  FAKE_CUDA_DEADLOCK, /* nodes are left and none may run */
  FAKE_CUDA_FAULT,    /* an access outside of memory, or of memory that is freed */
  FAKE_CUDA_EARLY     /* a stream writes a word for the host, and did nothing since the last one;
                         with strict_queries, the host asks for an event that it has seen, or
                         that nobody recorded: what a missing record looks like */
};

/* Of all kinds; and of one. */
FAKE_CUDA_API uint64_t fake_cuda_finding_count(void);
FAKE_CUDA_API uint64_t fake_cuda_count(enum fake_cuda_finding kind);
/* The k-th in order of discovery, one line per operation; NULL after the last (100 are kept).
 * Valid until the reset. */
FAKE_CUDA_API const char *fake_cuda_finding(uint64_t k);

/* ---- Names in findings ---- */

/* Of what this thread calls from now on; NULL: none. Copied. */
FAKE_CUDA_API void fake_cuda_label(const char *text);
FAKE_CUDA_API void fake_cuda_name_stream(void *stream, const char *name);
/* What such a thread calls on a stream: written to `text`; false: nothing. It is called with the
 * driver's lock held, and calls nothing of it. NULL: nobody is asked. */
FAKE_CUDA_API void fake_cuda_label_by(bool (*label)(void *stream, char *text, size_t size));

/* ---- The host's own accesses ---- */

/* The host reads or writes pinned memory now: a race if the device's work on it has no order
 * with what this thread has waited for. */
FAKE_CUDA_API void fake_cuda_host_reads(const void *data, size_t bytes);
FAKE_CUDA_API void fake_cuda_host_writes(const void *data, size_t bytes);
/* separate_hosts: this thread comes after all that other threads have waited for, because it
 * joined them or took a message from them. A thread's first call does it, too. */
FAKE_CUDA_API void fake_cuda_host_joins(void);
/* Whether the host has waited for all work of all streams. */
FAKE_CUDA_API bool fake_cuda_host_knows_all(void);

/* With `orders`: a hash of all labelled work since the reset, each with what it comes after. It is
 * the same for the same calls, in whatever order streams were created and nodes ran. The host comes
 * after nothing until it says so: then after all work. */
FAKE_CUDA_API uint64_t fake_cuda_order(void);
FAKE_CUDA_API void fake_cuda_host_sees_all(void);
/* Where the host can access device memory. */
FAKE_CUDA_API void *fake_cuda_view(const void *data);

/* ---- Failures and mutants; functions by their names in cuda_api.h, calls counted from 1 ---- */

FAKE_CUDA_API uint64_t fake_cuda_calls(const char *function);
/* The nth call does nothing and returns `result`; 0: out of memory for allocations, else "launch
 * failed". Sticky: so do all later calls that use the device. */
FAKE_CUDA_API void fake_cuda_fail(const char *function, uint64_t nth, int result, bool sticky);
/* The nth call does nothing and succeeds. */
FAKE_CUDA_API void fake_cuda_drop(const char *function, uint64_t nth);
/* Whether a wait, a query or the host's waiting was for the nth cuEventRecord: else it could as
 * well be dropped. */
FAKE_CUDA_API bool fake_cuda_record_is_used(uint64_t nth);
/* The nth launch of a kernel (in a graph: the nth such node that runs) never ends, until
 * fake_cuda_release(). Queries then say "not ready", synchronizing fails. */
FAKE_CUDA_API void fake_cuda_hang(const char *kernel, uint64_t nth);
FAKE_CUDA_API void fake_cuda_release(void);
/* The nth launch of a kernel fails while it runs; the device is lost. 0: "launch failed". */
FAKE_CUDA_API void fake_cuda_crash(const char *kernel, uint64_t nth, int result);
/* The label of the one that did; NULL: none did, or it has none. */
FAKE_CUDA_API const char *fake_cuda_crashed(void);

/* ---- Kernels ---- */

/* This thread's; -1: none. */
FAKE_CUDA_API int fake_cuda_current_device(void);
/* Whether what is launched on the stream becomes part of a graph. */
FAKE_CUDA_API bool fake_cuda_is_capturing(void *stream);

/* The built-in kernels, the linear stage's and the trainer's are known. A test adds its own, to be found in any library. */
enum { FAKE_CUDA_PARAMETERS_MAX = 12 };

struct fake_cuda_access {
  uint64_t data; /* address */
  uint64_t bytes;
  bool writes, reads;
};

/* values[k] is the k-th parameter's eight bytes as launched. */
struct fake_cuda_kernel {
  const char *name; /* borrowed */
  uint32_t parameter_count;
  uint32_t addresses;    /* bit k: parameter k is an address */
  uint32_t shared_bytes; /* that it declares, for each block; at most 48 KiB, as for CUDA */
  /* parameters[k] points to the k-th value; addresses are such that the host can access them. */
  void (*run)(void *const *parameters, uint64_t threads);
  /* What it accesses, at most FAKE_CUDA_PARAMETERS_MAX; how many. */
  uint32_t (*accesses)(const uint64_t *values, struct fake_cuda_access *out);
  /* NULL: it can run. False: it spins on memory, and stays at the head of its queue; pointers
   * are such that the host can access them. */
  bool (*ready)(void *const *parameters);
  /* NULL: one microsecond. */
  uint64_t (*time_ns)(const uint64_t *values);
  bool tells_host; /* it writes a word that tells the host how far the stream is */
  bool outside;    /* ready() depends on another process: to wait for it is no deadlock */
  /* NULL, or: a graph that has such a launch is gone, and so are all executables of it. */
  void (*forget)(const uint64_t *values);
};

/* What a launch may have is CUDA's for capability 9.0: blocks, threads, shared memory. */

/* Borrowed until the end of the process. */
FAKE_CUDA_API void fake_cuda_register(const struct fake_cuda_kernel *kernel);

/* ---- Statistics ---- */

struct fake_cuda_statistics {
  uint64_t blocks, pinned_blocks;                           /* memory, now */
  uint64_t bytes, bytes_max;                                /* of the devices, now and ever */
  uint64_t streams, events, graphs, executables, libraries; /* now */
  uint64_t contexts, partitions;                            /* now; as often as retained */
  uint64_t allocations;      /* calls of cuMemAlloc and cuMemHostAlloc since fake_cuda_mark() */
  uint64_t synchronizations; /* calls that waited, since then */
  uint64_t pageable_copies;  /* copies from or to memory that CUDA did not allocate, since then */
  uint64_t nodes;            /* that ran, since then; in graphs, too */
};

FAKE_CUDA_API void fake_cuda_mark(void);
FAKE_CUDA_API struct fake_cuda_statistics fake_cuda_statistics(void);

#endif
