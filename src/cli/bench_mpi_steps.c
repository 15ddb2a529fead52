/* Steps of one program on two ranks: threads of this process, or this process and another.
 * Stages that spin take a time, the GPT's compute; both sides run the same code but for
 * the transport. */
#include <string.h>

#include <weft/plan.h>
#include <weft/weft.h>

#include "cli/bench_mpi.h"
#include "cli/execution.h"
#include "cli/message.h"
#ifdef WEFT_HAS_TRAINER
#include "cli/bench_train.h"
#include "gpt/memory.h"
#endif

enum { MICROBATCHES = 8, SPIN_STEPS = 13, TRAIN_STEPS = 4 }; /* the first is a warm-up */
#define NS_PER_MS 1e6

void weft_cli_mpi_add_sample(struct weft_cli_mpi_samples *samples, uint64_t ns) {
  if (samples->count < WEFT_CLI_MPI_SAMPLES_MAX) {
    samples->ns[samples->count++] = ns;
  }
}

static int make_program(const struct weft_cli *cli, const char *schedule,
                        struct weft_program **out) {
  struct weft_named_plan plan = {
      .allocator = cli->allocator, .schedule = schedule, .ranks = WEFT_CLI_MPI_RANKS};
  struct weft_error error;
  return weft_plan_named(&plan, MICROBATCHES, true, out, &error) < 0
             ? weft_cli_fail(cli, NULL, &error)
             : WEFT_CLI_OK;
}

/* ---- Stages that spin ---- */

static int make_costs(const struct weft_cli *cli, struct weft_costs **out) {
  struct weft_error error;
  if (weft_costs_create(cli->allocator, 1, out, &error) < 0) {
    return weft_cli_fail(cli, NULL, &error);
  }
  struct weft_stage_costs *stage = &(*out)->stages[0];
  stage->f = stage->i = stage->w = 1;
  stage->b = 2;
  memcpy((*out)->unit, "ms", 3);
  return WEFT_CLI_OK;
}

/* Says what went wrong; as a rank, if it is this one that speaks. */
static int fail_execution(const struct weft_cli *cli, const struct weft_cli_job *job,
                          const struct weft_error *error) {
  return job == NULL || weft_cli_job_speaks(job) ? weft_cli_fail(cli, NULL, error) : WEFT_CLI_PEER;
}

/* What it takes is noted by all ranks of a job. */
static int execute(const struct weft_cli *cli, struct weft_cli_job *job,
                   const struct weft_program *program, const struct weft_costs *costs,
                   struct weft_cli_mpi_samples *samples) {
  const struct weft_cli_time_scale scale = {.per_unit = NS_PER_MS};
  struct weft_cli_stages stages;
  struct weft_error error;
  int status = weft_cli_stages_init(&stages, cli, program, costs, WEFT_CLI_STAGE_SPIN, &scale);
  if (status != WEFT_CLI_OK) {
    return status;
  }
  struct weft_cli_execution execution = {
      .cli = cli,
      .allocator = cli->allocator,
      .program = program,
      .stages = &stages,
      .transport = job != NULL ? WEFT_CLI_TRANSPORT_MPI : WEFT_CLI_TRANSPORT_THREADS,
      .job = job,
      .step_count = SPIN_STEPS};
  if (weft_cli_execute(&execution, &error) < 0) {
    status = fail_execution(cli, job, &error);
  }
  for (uint32_t step = 1; step < SPIN_STEPS && status == WEFT_CLI_OK; step++) {
    weft_cli_mpi_add_sample(samples, (uint64_t)execution.makespans[step]);
  }
  weft_cli_execution_finish(&execution);
  weft_cli_stages_finish(&stages);
  return status;
}

static int spin(const struct weft_cli *cli, struct weft_cli_job *job, const char *schedule,
                struct weft_cli_mpi_samples *samples) {
  struct weft_program *program;
  struct weft_costs *costs;
  int status = make_program(cli, schedule, &program);
  if (status != WEFT_CLI_OK) {
    return status;
  }
  status = make_costs(cli, &costs);
  if (status == WEFT_CLI_OK) {
    status = execute(cli, job, program, costs, samples);
    weft_costs_destroy(costs);
  }
  weft_program_destroy(program);
  return status;
}

/* ---- The answer ---- */

static int check_time(const struct weft_cli *cli, const char *schedule,
                      const struct weft_program *program, const struct weft_costs *costs) {
  const struct weft_cli_bench_case at = {
      .schedule = schedule, .shape = {.ranks = WEFT_CLI_MPI_RANKS, .microbatches = MICROBATCHES}};
  struct weft_simulation *simulation;
  struct weft_cli_stages stages;
  struct weft_error error;
  if (weft_simulate(cli->allocator, program, costs, NULL, &simulation, &error) < 0) {
    return weft_cli_fail(cli, NULL, &error);
  }
  const struct weft_cli_time_scale scale = {.per_unit = simulation->ticks_per_unit};
  int status = weft_cli_stages_init(&stages, cli, program, costs, WEFT_CLI_STAGE_VIRTUAL, &scale);
  if (status == WEFT_CLI_OK) {
    struct weft_cli_execution execution = {.cli = cli,
                                           .allocator = cli->allocator,
                                           .program = program,
                                           .stages = &stages,
                                           .transport = WEFT_CLI_TRANSPORT_LOOPBACK,
                                           .step_count = 1};
    if (weft_cli_execute(&execution, &error) < 0) {
      status = weft_cli_fail(cli, NULL, &error);
    } else if ((double)execution.makespans[0] / scale.per_unit != simulation->makespan) {
      status = weft_cli_bench_fail(cli, &at, "in virtual time it does not take the simulated time");
    }
    weft_cli_execution_finish(&execution);
    weft_cli_stages_finish(&stages);
  }
  weft_simulation_destroy(simulation);
  return status;
}

int weft_cli_bench_mpi_check(const struct weft_cli *cli, const char *schedule) {
  struct weft_program *program;
  struct weft_costs *costs;
  int status = make_program(cli, schedule, &program);
  if (status != WEFT_CLI_OK) {
    return status;
  }
  status = make_costs(cli, &costs);
  if (status == WEFT_CLI_OK) {
    status = check_time(cli, schedule, program, costs);
    weft_costs_destroy(costs);
  }
  weft_program_destroy(program);
  return status;
}

/* ---- The GPT ---- */

#ifdef WEFT_HAS_TRAINER

static int train(const struct weft_cli *cli, struct weft_cli_job *job,
                 const struct weft_program *program, struct weft_cli_mpi_samples *samples,
                 uint64_t *hash) {
  struct weft_gpt_corpus corpus;
  struct weft_cli_train_block block;
  struct weft_error error;
  if (weft_cli_train_fixed_corpus(cli->allocator, &corpus, &error) < 0) {
    return weft_cli_fail(cli, NULL, &error);
  }
  struct weft_gpt_trainer_options options =
      weft_cli_train_fixed_options(&corpus, program, TRAIN_STEPS);
  if (job != NULL) {
    options.transport = WEFT_GPT_MPI;
    options.endpoint = job->transport;
  }
  const int status = weft_cli_train_block_run(cli, &options, program, &block);
  for (uint32_t k = 0; k < block.sample_count && status == WEFT_CLI_OK; k++) {
    weft_cli_mpi_add_sample(samples, block.samples_ns[k]);
  }
  *hash = block.hash;
  weft_gpt_free(cli->allocator, corpus.bytes);
  return status;
}

static int train_schedule(const struct weft_cli *cli, struct weft_cli_job *job,
                          const char *schedule, struct weft_cli_mpi_samples *samples,
                          uint64_t *hash) {
  struct weft_program *program;
  int status = make_program(cli, schedule, &program);
  if (status == WEFT_CLI_OK) {
    status = train(cli, job, program, samples, hash);
    weft_program_destroy(program);
  }
  return status;
}

#else

static int train_schedule(const struct weft_cli *cli, struct weft_cli_job *job,
                          const char *schedule, struct weft_cli_mpi_samples *samples,
                          uint64_t *hash) {
  (void)cli, (void)job, (void)schedule, (void)samples, (void)hash;
  return WEFT_CLI_UNAVAILABLE; /* nobody asks */
}

#endif

int weft_cli_bench_mpi_steps(const struct weft_cli *cli, struct weft_cli_job *job,
                             enum weft_cli_mpi_kind kind, const char *schedule,
                             struct weft_cli_mpi_samples *samples, uint64_t *hash) {
  *hash = 0;
  return kind == WEFT_CLI_MPI_GPT ? train_schedule(cli, job, schedule, samples, hash)
                                  : spin(cli, job, schedule, samples);
}
