/* Fault injection that only delays is a transport like any other: the conformance suite,
 * on threads and on loopback, each rank's end wrapped.
 * Also under ThreadSanitizer. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

#include "support_conformance.h"
#include "support_fault_injection.h"

/* What is around each rank, and what is inside. */
struct setting {
  struct weft_fault_options injector;
  struct weft_comm_options loopback;
};

static void wrap(const struct setting *setting, uint32_t rank_count,
                 struct weft_transport **endpoints) {
  for (uint32_t r = 0; r < rank_count; r++) {
    struct weft_error error;
    if (weft_fault_injector_create(NULL, endpoints[r], &setting->injector, &endpoints[r], &error) !=
        WEFT_OK) {
      fail_msg("%s", error.message);
    }
  }
}

static void unwrap(uint32_t rank_count, struct weft_transport **endpoints) {
  for (uint32_t r = 0; r < rank_count; r++) {
    endpoints[r]->ops->destroy(endpoints[r]);
  }
}

static void *create_threads(void *context, uint32_t rank_count, struct weft_transport **endpoints) {
  struct weft_comm *world = NULL;
  struct weft_error error;
  if (weft_comm_open(NULL, "threads", &(struct weft_comm_options){.rank_count = rank_count}, &world,
                     &error) != WEFT_OK) {
    fail_msg("%s", error.message);
  }
  for (uint32_t r = 0; r < rank_count; r++) {
    endpoints[r] = weft_comm_endpoint(world, r);
  }
  wrap(context, rank_count, endpoints);
  return world;
}

static void destroy_threads(void *context, void *world, uint32_t rank_count,
                            struct weft_transport **endpoints) {
  (void)context;
  unwrap(rank_count, endpoints);
  weft_comm_close(world);
}

static void drive_threads(void *world, struct conformance_rank *ranks, uint32_t rank_count) {
  conformance_drive_run(world, ranks, rank_count);
}

static void *create_loopback(void *context, uint32_t rank_count,
                             struct weft_transport **endpoints) {
  struct setting *setting = context;
  struct weft_comm *world = NULL;
  struct weft_error error;
  setting->loopback.rank_count = rank_count;
  setting->loopback.seed++;
  setting->injector.seed++;
  if (weft_comm_open(NULL, "loopback", &setting->loopback, &world, &error) != WEFT_OK) {
    fail_msg("%s", error.message);
  }
  for (uint32_t r = 0; r < rank_count; r++) {
    endpoints[r] = weft_comm_endpoint(world, r);
  }
  wrap(setting, rank_count, endpoints);
  return world;
}

static void destroy_loopback(void *context, void *world, uint32_t rank_count,
                             struct weft_transport **endpoints) {
  (void)context;
  unwrap(rank_count, endpoints);
  weft_comm_close(world);
}

static void drive_loopback(void *world, struct conformance_rank *ranks, uint32_t rank_count) {
  conformance_drive_steps(world, ranks, rank_count);
}

static int run_threads(struct weft_fault_options injector, const char *name) {
  struct setting setting = {.injector = injector};
  const struct conformance_transport transport = {.name = name,
                                                  .context = &setting,
                                                  .create = create_threads,
                                                  .destroy = destroy_threads,
                                                  .drive = drive_threads,
                                                  .real_time = true};
  return conformance_run(&transport);
}

static int run_loopback(struct weft_fault_options injector, int64_t latency, const char *name) {
  struct setting setting = {.injector = injector, .loopback = {.latency_ticks = latency}};
  const struct conformance_transport transport = {.name = name,
                                                  .context = &setting,
                                                  .create = create_loopback,
                                                  .destroy = destroy_loopback,
                                                  .drive = drive_loopback};
  return conformance_run(&transport);
}

int main(void) {
  const struct weft_fault_options none = {0};
  const struct weft_fault_options delays = {.delay_max = 50};
  const struct weft_fault_options slow = {.delay_max = 20, .slow_by = 7};
  const struct weft_fault_options real_delays = {.seed = 1, .delay_max = 20000};
  const struct weft_fault_options real_slow = {.seed = 2, .delay_max = 5000, .slow_by = 3000};
  return run_loopback(none, 0, "fault injection without faults around loopback") +
         run_loopback(delays, 0, "delays around loopback") +
         run_loopback(slow, 13, "a slow rank around loopback") +
         run_threads(none, "fault injection without faults around threads") +
         run_threads(real_delays, "delays around threads") +
         run_threads(real_slow, "a slow rank around threads");
}
