/* Options, host threads, plans for failures, findings and statistics; what every call begins and
 * ends with. */
#include <assert.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "fake_driver.h"

struct fake_state fake = {.lock = PTHREAD_MUTEX_INITIALIZER};

enum { FINDINGS_MAX = 100, DEAD_MAX = 1024 };

static const char *const call_names[] = {
#define FAKE_NAME(how, name, symbol, parameters) #name,
    FAKE_CUDA_FUNCTIONS(FAKE_NAME)
#undef FAKE_NAME
};

static uint64_t calls[FAKE_CALL_COUNT];
static struct fake_plan *plans;
static char *findings[FINDINGS_MAX];
static uint64_t finding_counts[FAKE_CUDA_EARLY + 1];
static const char *report_file;
static FILE *trace;

/* ---- Memory of the driver itself ---- */

void *fake_allocate(size_t bytes) {
  void *data = calloc(1, bytes > 0 ? bytes : 1);
  if (data == NULL) {
    abort();
  }
  return data;
}

void *fake_array_grow(void *array, uint32_t *capacity, uint32_t count, size_t item) {
  if (count <= *capacity) {
    return array;
  }
  *capacity = count > 2 * *capacity ? count : 2 * *capacity;
  array = realloc(array, *capacity * item);
  if (array == NULL) {
    abort();
  }
  return array;
}

/* Texts are few, and live as long as the process. */
const char *fake_intern(const char *text) {
  static struct text {
    struct text *next;
    char text[];
  } * texts[256];
  uint32_t hash = 0;
  if (text == NULL) {
    return NULL;
  }
  for (const char *at = text; *at != '\0'; at++) {
    hash = hash * 31 + (unsigned char)*at;
  }
  struct text **first = &texts[hash % 256];
  for (struct text *at = *first; at != NULL; at = at->next) {
    if (strcmp(at->text, text) == 0) {
      return at->text;
    }
  }
  struct text *added = fake_allocate(sizeof *added + strlen(text) + 1);
  memcpy(added->text, text, strlen(text) + 1);
  added->next = *first;
  *first = added;
  return added->text;
}

static struct fake_object *dead, **dead_end = &dead;
static uint32_t dead_count;

void *fake_object_create(enum fake_kind kind, size_t size) {
  struct fake_object *object = fake_allocate(size);
  object->kind = kind;
  return object;
}

void fake_object_destroy(void *handle) {
  struct fake_object *object = handle;
  object->kind = FAKE_DEAD;
  object->next = NULL;
  *dead_end = object;
  dead_end = &object->next;
  if (++dead_count > DEAD_MAX) {
    object = dead;
    dead = object->next;
    free(object);
    dead_count--;
  }
}

bool fake_object_is(const void *object, enum fake_kind kind) {
  return object != NULL && ((const struct fake_object *)object)->kind == kind;
}

/* splitmix64 */
uint64_t fake_random(void) {
  uint64_t z = fake.random += UINT64_C(0x9e3779b97f4a7c15);
  z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
  z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
  return z ^ (z >> 31);
}

/* ---- Host threads ---- */

static struct fake_host *hosts;      /* of the threads */
static struct fake_host *shared;     /* when all are one */
static struct fake_clock past_hosts; /* what threads that have ended had waited for */
static pthread_key_t thread_key;

static void end_thread(void *data) {
  struct fake_thread *thread = data;
  pthread_mutex_lock(&fake.lock);
  struct fake_host **link = &hosts;
  fake_captures_leave(thread);
  while (*link != thread->host) {
    link = &(*link)->next;
  }
  *link = thread->host->next;
  fake_clock_join(&past_hosts, &thread->host->clock);
  fake_clock_component_give(thread->host->component);
  free(thread->host);
  free(thread);
  pthread_mutex_unlock(&fake.lock);
}

static void create_key(void) {
  if (pthread_key_create(&thread_key, end_thread) != 0) {
    abort();
  }
}

static void join_hosts(struct fake_host *host) {
  fake_clock_join(&host->clock, &past_hosts);
  for (const struct fake_host *at = hosts; at != NULL; at = at->next) {
    if (at != host) {
      fake_clock_join(&host->clock, &at->clock);
      host->time_ns = host->time_ns > at->time_ns ? host->time_ns : at->time_ns;
    }
  }
  host->version++;
}

struct fake_thread *fake_thread(void) {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  (void)pthread_once(&once, create_key);
  struct fake_thread *thread = pthread_getspecific(thread_key);
  if (thread == NULL) {
    thread = fake_allocate(sizeof *thread);
    thread->host = fake_allocate(sizeof *thread->host);
    thread->host->component = fake_clock_component_take();
    join_hosts(thread->host);
    thread->host->next = hosts;
    hosts = thread->host;
    (void)pthread_setspecific(thread_key, thread);
  }
  return thread;
}

struct fake_host *fake_host(void) {
  struct fake_thread *thread = fake_thread();
  if (fake.options.separate_hosts) {
    return thread->host;
  }
  if (shared == NULL) {
    shared = fake_allocate(sizeof *shared);
    shared->component = fake_clock_component_take();
  }
  return shared;
}

void fake_host_wait(const struct fake_clock *clock, uint64_t time_ns) {
  struct fake_host *host = fake_host();
  fake_clock_join(&host->clock, clock);
  host->time_ns = host->time_ns > time_ns ? host->time_ns : time_ns;
  host->version++;
}

void fake_cuda_host_joins(void) {
  pthread_mutex_lock(&fake.lock);
  join_hosts(fake_host());
  pthread_mutex_unlock(&fake.lock);
}

void fake_cuda_label(const char *text) {
  pthread_mutex_lock(&fake.lock);
  fake_thread()->label = fake_intern(text);
  pthread_mutex_unlock(&fake.lock);
}

static bool (*labeller)(void *stream, char *text, size_t size);

void fake_cuda_label_by(bool (*label)(void *stream, char *text, size_t size)) {
  pthread_mutex_lock(&fake.lock);
  labeller = label;
  pthread_mutex_unlock(&fake.lock);
}

const char *fake_label_of(CUstream stream) {
  char text[60];
  const char *own = fake_thread()->label;
  return own == NULL && stream != NULL && labeller != NULL && labeller(stream, text, sizeof text)
             ? fake_intern(text)
             : own;
}

const char *fake_cuda_crashed(void) {
  pthread_mutex_lock(&fake.lock);
  const char *label = fake.crashed;
  pthread_mutex_unlock(&fake.lock);
  return label;
}

/* ---- Plans ---- */

static void plan(int action, const char *name, uint64_t nth, CUresult result, bool sticky) {
  struct fake_plan *added = fake_allocate(sizeof *added);
  *added = (struct fake_plan){.next = plans,
                              .action = (unsigned)action,
                              .name = fake_intern(name),
                              .nth = nth,
                              .result = result,
                              .sticky = sticky};
  plans = added;
}

const struct fake_plan *fake_plan_of(const char *name, uint64_t nth, bool launch) {
  for (const struct fake_plan *at = plans; at != NULL; at = at->next) {
    if (at->nth == nth && (at->action >= FAKE_PLAN_HANG) == launch && strcmp(at->name, name) == 0) {
      return at;
    }
  }
  return NULL;
}

static CUresult default_failure(const char *function) {
  return strstr(function, "Alloc") != NULL ? CUDA_ERROR_OUT_OF_MEMORY : FAKE_LAUNCH_FAILED;
}

static enum fake_call call_of(const char *function) {
  uint32_t k = 0;
  while (strcmp(call_names[k], function) != 0) {
    if (++k == FAKE_CALL_COUNT) {
      (void)fprintf(stderr, "fake CUDA: there is no function \"%s\"\n", function);
      abort();
    }
  }
  return (enum fake_call)k;
}

uint64_t fake_cuda_calls(const char *function) {
  pthread_mutex_lock(&fake.lock);
  const uint64_t count = calls[call_of(function)];
  pthread_mutex_unlock(&fake.lock);
  return count;
}

uint64_t fake_calls(enum fake_call call) { return calls[call]; }

static bool *used_records; /* [record_capacity], from the first on */
static uint32_t record_capacity;

void fake_record_used(uint64_t nth) {
  const uint32_t before = record_capacity;
  used_records = fake_array_grow(used_records, &record_capacity, (uint32_t)nth + 1, 1);
  memset(used_records + before, 0, record_capacity - before);
  used_records[nth] = true;
}

bool fake_cuda_record_is_used(uint64_t nth) {
  pthread_mutex_lock(&fake.lock);
  const bool used = nth < record_capacity && used_records[nth];
  pthread_mutex_unlock(&fake.lock);
  return used;
}

void fake_cuda_fail(const char *function, uint64_t nth, int result, bool sticky) {
  pthread_mutex_lock(&fake.lock);
  (void)call_of(function);
  plan(FAKE_PLAN_FAIL, function, nth, result != 0 ? result : default_failure(function), sticky);
  pthread_mutex_unlock(&fake.lock);
}

void fake_cuda_drop(const char *function, uint64_t nth) {
  pthread_mutex_lock(&fake.lock);
  (void)call_of(function);
  plan(FAKE_PLAN_DROP, function, nth, CUDA_SUCCESS, false);
  pthread_mutex_unlock(&fake.lock);
}

void fake_cuda_hang(const char *kernel, uint64_t nth) {
  pthread_mutex_lock(&fake.lock);
  plan(FAKE_PLAN_HANG, kernel, nth, CUDA_SUCCESS, false);
  pthread_mutex_unlock(&fake.lock);
}

void fake_cuda_release(void) {
  pthread_mutex_lock(&fake.lock);
  for (struct fake_plan *at = plans; at != NULL; at = at->next) {
    at->over = true;
  }
  pthread_mutex_unlock(&fake.lock);
}

void fake_cuda_crash(const char *kernel, uint64_t nth, int result) {
  pthread_mutex_lock(&fake.lock);
  plan(FAKE_PLAN_CRASH, kernel, nth, result != 0 ? result : FAKE_LAUNCH_FAILED, false);
  pthread_mutex_unlock(&fake.lock);
}

/* ---- Findings ---- */

void fake_find(enum fake_cuda_finding kind, const char *format, ...) {
  uint64_t total = 0;
  for (uint32_t k = 0; k <= FAKE_CUDA_EARLY; k++) {
    total += finding_counts[k];
  }
  finding_counts[kind]++;
  if (total >= FINDINGS_MAX) {
    return;
  }
  char *text = fake_allocate(2500);
  va_list arguments;
  va_start(arguments, format);
  (void)vsnprintf(text, 2500, format, arguments);
  va_end(arguments);
  findings[total] = text;
}

/* "2F3 of rank 2 (weft_linear_forward #17 on stream 3)"; without a label what is in brackets */
const char *fake_operation_text(const struct fake_operation *operation, char *text, size_t size) {
  char stream[80] = "", name[60] = "";
  const bool labelled = operation->label != NULL;
  if (operation->stream != UINT32_MAX) {
    (void)snprintf(stream, sizeof stream, " on stream %u", operation->stream);
  }
  if (operation->stream_name != NULL) {
    (void)snprintf(name, sizeof name, " \"%s\"", operation->stream_name);
  }
  (void)snprintf(text, size, "%s%s%s #%llu%s%s%s", labelled ? operation->label : "",
                 labelled ? " (" : "", operation->name, (unsigned long long)operation->serial,
                 stream, name, labelled ? ")" : "");
  return text;
}

void fake_trace(const struct fake_operation *operation, const char *more) {
  char text[200];
  if (trace != NULL) {
    (void)fprintf(trace, "%s %s\n", fake_operation_text(operation, text, sizeof text), more);
  }
}

uint64_t fake_cuda_count(enum fake_cuda_finding kind) {
  pthread_mutex_lock(&fake.lock);
  const uint64_t count = finding_counts[kind];
  pthread_mutex_unlock(&fake.lock);
  return count;
}

uint64_t fake_cuda_finding_count(void) {
  uint64_t count = 0;
  for (uint32_t k = 0; k <= FAKE_CUDA_EARLY; k++) {
    count += fake_cuda_count((enum fake_cuda_finding)k);
  }
  return count;
}

const char *fake_cuda_finding(uint64_t k) {
  pthread_mutex_lock(&fake.lock);
  const char *text = k < FINDINGS_MAX ? findings[k] : NULL;
  pthread_mutex_unlock(&fake.lock);
  return text;
}

/* ---- Options ---- */

static void clear(void) {
  for (int device = 0; device < FAKE_DEVICES_MAX; device++) {
    fake_queues_drop(device);
    fake.lost[device] = CUDA_SUCCESS;
  }
  fake_captures_drop();
  fake_kernels_forget();
  fake_memory_forget();
  memset(finding_counts, 0, sizeof finding_counts);
  memset(calls, 0, sizeof calls);
  if (record_capacity > 0) {
    memset(used_records, 0, record_capacity);
  }
  for (uint32_t k = 0; k < FINDINGS_MAX; k++) {
    free(findings[k]);
    findings[k] = NULL;
  }
  for (struct fake_plan *next; plans != NULL; plans = next) {
    next = plans->next;
    free(plans);
  }
  fake.deadlocked = false;
  fake.crashed = NULL;
  fake_order_forget();
  fake.crash_begun = false;
  fake.serial = 0;
  fake.streams_created = 0;
  for (uint32_t k = 0; k < fake.stream_count; k++) {
    fake.streams[k]->time_ns = 0;
    fake.streams[k]->index = fake.streams_created++;
  }
  for (struct fake_host *host = hosts; host != NULL; host = host->next) {
    host->time_ns = 0;
  }
  if (shared != NULL) {
    shared->time_ns = 0;
  }
}

static void set_options(const struct fake_cuda_options *of, bool no_devices) {
  struct fake_cuda_options *options = &fake.options;
  *options = *of;
  options->devices = no_devices ? 0 : of->devices > 0 ? of->devices : 1;
  options->sms = of->sms > 0 ? of->sms : 132;
  options->queues = of->queues > 0 ? of->queues : 8;
  options->query_nodes = of->query_nodes > 0 ? of->query_nodes : 16;
  options->memory_bytes = of->memory_bytes > 0 ? of->memory_bytes : UINT64_C(1) << 30;
  options->version = of->version > 0 ? of->version : 13000;
  options->capability = of->capability > 0 ? of->capability : 90;
  if (options->devices > FAKE_DEVICES_MAX || options->queues > FAKE_QUEUES_MAX ||
      options->policy > FAKE_CUDA_STARVE) {
    (void)fprintf(stderr, "fake CUDA: at most %d devices, %d queues\n", FAKE_DEVICES_MAX,
                  FAKE_QUEUES_MAX);
    abort();
  }
  fake.random = of->seed;
  fake.crash_left = of->crash_queries;
}

static void refuse(const char *text) {
  (void)fprintf(stderr, "fake CUDA: WEFT_FAKE_CUDA has \"%s\"; see fake_cuda.h\n", text);
  abort();
}

/* "NAME:NTH[:RESULT[:sticky]]" */
static void parse_plan(int action, char *value) {
  char *rest = NULL;
  const char *name = strtok_r(value, ":", &rest);
  const char *nth = strtok_r(NULL, ":", &rest);
  const char *result = strtok_r(NULL, ":", &rest);
  const bool sticky = strtok_r(NULL, ":", &rest) != NULL;
  if (name == NULL || nth == NULL) {
    refuse(value);
  }
  if (action <= FAKE_PLAN_DROP) {
    (void)call_of(name);
  }
  const int number = result != NULL ? atoi(result) : 0;
  plan(action, name, strtoull(nth, NULL, 10), number != 0 ? number : default_failure(name), sticky);
}

static char die_call[64];
static uint64_t die_nth; /* 0: not */

static void parse_option(struct fake_cuda_options *options, bool *no_devices, char *text) {
  static const char *const policies[] = {"random", "newest", "oldest", "starve"};
  static const char *const actions[] = {"fail", "drop", "hang", "crash"};
  char *equals = strchr(text, '=');
  char *value = equals != NULL ? equals + 1 : text + strlen(text);
  if (equals != NULL) {
    *equals = '\0';
  }
  const uint64_t number = strtoull(value, NULL, 10);
  for (int k = 0; k < 4; k++) {
    if (strcmp(text, actions[k]) == 0) {
      parse_plan(k, value);
      return;
    }
    if (strcmp(text, "policy") == 0 && strcmp(value, policies[k]) == 0) {
      options->policy = (enum fake_cuda_policy)k;
      return;
    }
  }
  if (strcmp(text, "die") == 0) {
    const char *colon = strchr(value, ':');
    die_nth = colon != NULL ? strtoull(colon + 1, NULL, 10) : 1;
    (void)snprintf(die_call, sizeof die_call, "%.*s", (int)strcspn(value, ":"), value);
  } else if (strcmp(text, "devices") == 0) {
    options->devices = (uint32_t)number;
    *no_devices = number == 0;
  } else if (strcmp(text, "sms") == 0) {
    options->sms = (uint32_t)number;
  } else if (strcmp(text, "queues") == 0) {
    options->queues = (uint32_t)number;
  } else if (strcmp(text, "seed") == 0) {
    options->seed = number;
  } else if (strcmp(text, "starved") == 0) {
    options->starved = (uint32_t)number;
  } else if (strcmp(text, "query_nodes") == 0) {
    options->query_nodes = (uint32_t)number;
  } else if (strcmp(text, "orders") == 0) {
    options->orders = true;
  } else if (strcmp(text, "crash_queries") == 0) {
    options->crash_queries = (uint32_t)number;
  } else if (strcmp(text, "memory_bytes") == 0) {
    options->memory_bytes = number;
  } else if (strcmp(text, "version") == 0) {
    options->version = (uint32_t)number;
  } else if (strcmp(text, "mixed") == 0) {
    options->mixed = true;
  } else if (strcmp(text, "capability") == 0) {
    options->capability = (uint32_t)number;
  } else if (strcmp(text, "mps") == 0) {
    options->mps = (uint32_t)number;
  } else if (strcmp(text, "no_peers") == 0) {
    options->no_peers = true;
  } else if (strcmp(text, "separate_hosts") == 0) {
    options->separate_hosts = true;
  } else if (strcmp(text, "strict_queries") == 0) {
    options->strict_queries = true;
  } else if (strcmp(text, "late_queries") == 0) {
    options->late_queries = true;
  } else if (strcmp(text, "stall_waits") == 0) {
    options->stall_waits = true;
  } else if (strcmp(text, "report") == 0) {
    report_file = fake_intern(value);
  } else if (strcmp(text, "trace") == 0 && trace == NULL) {
    trace = fopen(value, "w");
    if (trace == NULL) {
      refuse(value);
    }
  } else if (strcmp(text, "nvrtc") != 0 && strcmp(text, "trace") != 0) { /* that is libnvrtc's */
    refuse(text);
  }
}

static void read_environment(void) {
  struct fake_cuda_options options = {0};
  const char *text = getenv("WEFT_FAKE_CUDA");
  bool no_devices = false;
  if (text != NULL) {
    char *copy = fake_allocate(strlen(text) + 1), *rest = NULL;
    memcpy(copy, text, strlen(text) + 1);
    for (char *at = strtok_r(copy, ",", &rest); at != NULL; at = strtok_r(NULL, ",", &rest)) {
      parse_option(&options, &no_devices, at);
    }
    free(copy);
  }
  set_options(&options, no_devices);
}

__attribute__((constructor)) static void begin(void) { read_environment(); }

/* For a process that no test looks into. */
__attribute__((destructor)) static void report(void) {
  FILE *file = report_file != NULL ? fopen(report_file, "w") : NULL;
  if (file == NULL) {
    return;
  }
  (void)fprintf(file,
                "races %llu\ndeadlocks %llu\nfaults %llu\nearly %llu\npending %llu\nblocks %llu\n",
                (unsigned long long)finding_counts[FAKE_CUDA_RACE],
                (unsigned long long)finding_counts[FAKE_CUDA_DEADLOCK],
                (unsigned long long)finding_counts[FAKE_CUDA_FAULT],
                (unsigned long long)finding_counts[FAKE_CUDA_EARLY],
                (unsigned long long)fake.pending, (unsigned long long)fake.statistics.blocks);
  (void)fprintf(file, "pageable copies %llu\n",
                (unsigned long long)fake.statistics.pageable_copies);
  for (uint32_t k = 0; k < FINDINGS_MAX && findings[k] != NULL; k++) {
    (void)fprintf(file, "%s\n", findings[k]);
  }
  for (uint32_t k = 0; k < FAKE_CALL_COUNT; k++) {
    if (calls[k] > 0) {
      (void)fprintf(file, "calls %s %llu\n", call_names[k], (unsigned long long)calls[k]);
    }
  }
  for (uint64_t k = 1; k <= calls[FAKE_CALL_cuEventRecord]; k++) {
    if (k >= record_capacity || !used_records[k]) {
      (void)fprintf(file, "unused record %llu\n", (unsigned long long)k);
    }
  }
  (void)fclose(file);
}

void fake_cuda_reset(const struct fake_cuda_options *options) {
  pthread_mutex_lock(&fake.lock);
  clear();
  if (options != NULL) {
    set_options(options, false);
  } else {
    read_environment();
  }
  for (uint32_t k = 0; k < fake.stream_count; k++) { /* the queues are other ones */
    fake.streams[k]->queue =
        fake.options.policy == FAKE_CUDA_RANDOM ? (uint32_t)fake_random() : fake.streams[k]->index;
  }
  pthread_mutex_unlock(&fake.lock);
}

void fake_cuda_mark(void) {
  pthread_mutex_lock(&fake.lock);
  fake.statistics.allocations = 0;
  fake.statistics.synchronizations = 0;
  fake.statistics.pageable_copies = 0;
  fake.statistics.nodes = 0;
  pthread_mutex_unlock(&fake.lock);
}

struct fake_cuda_statistics fake_cuda_statistics(void) {
  pthread_mutex_lock(&fake.lock);
  const struct fake_cuda_statistics statistics = fake.statistics;
  pthread_mutex_unlock(&fake.lock);
  return statistics;
}

/* ---- The beginning and the end of every call ---- */

/* What works without a device, and so whatever has become of the current one. */
static bool needs_no_device(enum fake_call call) {
  switch (call) {
    case FAKE_CALL_cuInit:
    case FAKE_CALL_cuDriverGetVersion:
    case FAKE_CALL_cuGetErrorName:
    case FAKE_CALL_cuGetErrorString:
    case FAKE_CALL_cuDeviceGetCount:
    case FAKE_CALL_cuDeviceGet:
    case FAKE_CALL_cuDeviceGetName:
    case FAKE_CALL_cuDeviceGetUuid:
    case FAKE_CALL_cuDeviceGetAttribute:
    case FAKE_CALL_cuDeviceTotalMem:
    case FAKE_CALL_cuDeviceCanAccessPeer:
    case FAKE_CALL_cuCtxSetCurrent:
    case FAKE_CALL_cuStreamEndCapture: /* needs the stream's */
    case FAKE_CALL_cuDevicePrimaryCtxRetain:
    case FAKE_CALL_cuDevicePrimaryCtxRelease: return true;
    default: return false;
  }
}

/* Done even on a lost device; the error comes at the end. */
static bool is_cleanup(enum fake_call call) {
  return strstr(call_names[call], "Destroy") != NULL || strstr(call_names[call], "Free") != NULL ||
         call == FAKE_CALL_cuLibraryUnload;
}

static CUresult lost_device(void) {
  const struct CUctx_st *context = fake_thread()->context;
  return context != NULL ? fake.lost[context->device] : CUDA_SUCCESS;
}

/* Queries are as many as the host has time for, so "any" does not count them. */
static void die_if_planned(enum fake_call call, uint64_t nth) {
  static uint64_t any;
  const bool counts = call != FAKE_CALL_cuEventQuery;
  any += counts;
  if (die_nth > 0 &&
      (strcmp(die_call, "any") == 0 ? counts && any == die_nth
                                    : strcmp(die_call, call_names[call]) == 0 && nth == die_nth)) {
    (void)kill(getpid(), SIGKILL);
  }
}

bool fake_enter(enum fake_call call, CUresult *result) {
  pthread_mutex_lock(&fake.lock);
  die_if_planned(call, calls[call] + 1);
  const struct fake_plan *planned = fake_plan_of(call_names[call], ++calls[call], false);
  *result = CUDA_SUCCESS;
  fake.serial++;
  if (planned != NULL) {
    const struct fake_operation operation = fake_operation_of(call_names[call], NULL);
    fake_trace(&operation, planned->action == FAKE_PLAN_FAIL ? "fails" : "is dropped");
    *result = planned->action == FAKE_PLAN_FAIL ? planned->result : CUDA_SUCCESS;
    if (planned->sticky && fake_thread()->context != NULL) {
      const int device = fake_thread()->context->device;
      fake.lost[device] = planned->result;
      fake_queues_drop(device);
    }
  } else if (needs_no_device(call)) {
    return true;
  } else if (!fake.initialised) {
    *result = CUDA_ERROR_NOT_INITIALIZED;
  } else if ((*result = lost_device()) == CUDA_SUCCESS || is_cleanup(call)) {
    return true;
  }
  pthread_mutex_unlock(&fake.lock);
  return false;
}

CUresult fake_leave(enum fake_call call, CUresult result) {
  if (result == CUDA_SUCCESS && !needs_no_device(call)) {
    result = lost_device();
  }
  pthread_mutex_unlock(&fake.lock);
  return result;
}
