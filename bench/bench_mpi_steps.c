/* Steps of one program on two ranks: threads of this process, or this process and another.
 * Stages that spin take a time, the GPT's compute; both sides run the same code but for
 * the transport. */
#include <string.h>

#include <weft/source.h>
#include <weft/weft.h>

#include "bench/bench_mpi.h"
#include "cli/cmd/execution.h"
#include "cli/io/error_message.h"

enum { MICROBATCHES = 8, SPIN_STEPS = 13 }; /* the first is a warm-up */
#define NS_PER_MS 1e6

void weft_cli_mpi_add_sample(struct weft_cli_mpi_samples *samples, uint64_t ns) {
  if (samples->count < WEFT_CLI_MPI_SAMPLES_MAX) {
    samples->ns[samples->count++] = ns;
  }
}

static int make_program(const struct weft_cli *cli, const char *schedule,
                        struct weft_program **out) {
  struct weft_named_source plan = {
      .allocator = cli->allocator, .schedule = schedule, .ranks = WEFT_CLI_MPI_RANKS};
  struct weft_error error;
  return weft_source_named(&plan, MICROBATCHES, true, out, &error) < 0
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
  return job == NULL || weft_launch_is_reporter(job->transport) ? weft_cli_fail(cli, NULL, error)
                                                                : WEFT_CLI_PEER;
}

/* A rank, on its thread; in a process that is one, it is bound already. */
void weft_cli_mpi_bind_rank(void *context, uint32_t rank) {
  struct weft_cli_mpi_block *block = context;
  if (!weft_cli_cores_bind(&block->cores, rank)) {
    __atomic_store_n(&block->is_bound, false, __ATOMIC_RELAXED);
  }
}

/* What it takes is noted by all ranks of a job. */
static int execute(const struct weft_cli *cli, struct weft_cli_job *job,
                   const struct weft_program *program, const struct weft_costs *costs,
                   struct weft_cli_mpi_block *block) {
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
      .transport = weft_comm_find(job != NULL ? "mpi" : "threads"),
      .job = job,
      .step_count = SPIN_STEPS,
      .on_rank = weft_cli_mpi_bind_rank,
      .on_rank_context = block};
  if (weft_cli_execute(&execution, &error) < 0) {
    status = fail_execution(cli, job, &error);
  }
  for (uint32_t step = 1; step < SPIN_STEPS && status == WEFT_CLI_OK; step++) {
    weft_cli_mpi_add_sample(&block->samples, (uint64_t)execution.makespans[step]);
  }
  weft_cli_execution_finish(&execution);
  weft_cli_stages_finish(&stages);
  return status;
}

static int simulate(const struct weft_cli *cli, const struct weft_program *program,
                    const struct weft_costs *costs, uint64_t *ns) {
  struct weft_simulation *simulation;
  struct weft_error error;
  if (weft_simulate(cli->allocator, program, costs, NULL, &simulation, &error) < 0) {
    return weft_cli_fail(cli, NULL, &error);
  }
  *ns = (uint64_t)(simulation->makespan * NS_PER_MS);
  weft_simulation_destroy(simulation);
  return WEFT_CLI_OK;
}

/* Of one program, with what it costs. */
static int simulate_and_execute(const struct weft_cli *cli, struct weft_cli_job *job,
                                const struct weft_program *program,
                                struct weft_cli_mpi_block *block) {
  struct weft_costs *costs;
  int status = make_costs(cli, &costs);
  if (status != WEFT_CLI_OK) {
    return status;
  }
  status = simulate(cli, program, costs, &block->simulated_ns);
  if (status == WEFT_CLI_OK) {
    status = execute(cli, job, program, costs, block);
  }
  weft_costs_destroy(costs);
  return status;
}

static int spin(const struct weft_cli *cli, struct weft_cli_job *job,
                struct weft_cli_mpi_block *block) {
  struct weft_program *program;
  int status = make_program(cli, block->schedule, &program);
  if (status == WEFT_CLI_OK) {
    status = simulate_and_execute(cli, job, program, block);
    weft_program_destroy(program);
  }
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
                                           .transport = weft_comm_find("loopback"),
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

static int train_schedule(const struct weft_cli *cli, struct weft_cli_job *job,
                          weft_cli_mpi_trainer *train, struct weft_cli_mpi_block *block) {
  struct weft_program *program;
  if (train == NULL) {
    return WEFT_CLI_UNAVAILABLE; /* nobody asks */
  }
  int status = make_program(cli, block->schedule, &program);
  if (status == WEFT_CLI_OK) {
    status = train(cli, job, program, block);
    weft_program_destroy(program);
  }
  return status;
}

/* Whether all ranks of a job are where they should be. */
static int agree_on_binding(struct weft_cli_job *job, struct weft_cli_mpi_block *block) {
  struct weft_error error;
  char all[WEFT_CLI_MPI_RANKS];
  const char mine = (char)weft_cli_cores_bind(&block->cores, job->transport->rank);
  if (weft_allgather(job->transport, &mine, all, sizeof mine, 0, &error) < 0) {
    return fail_execution(&job->cli, job, &error);
  }
  for (uint32_t r = 0; r < WEFT_CLI_MPI_RANKS; r++) {
    block->is_bound = block->is_bound && all[r] != 0;
  }
  return WEFT_CLI_OK;
}

int weft_cli_bench_mpi_steps(const struct weft_cli *cli, struct weft_cli_job *job,
                             weft_cli_mpi_trainer *train, struct weft_cli_mpi_block *block) {
  struct weft_cli_affinity before;
  weft_cli_affinity_keep(&before);
  block->transport = job != NULL ? job->transport : NULL;
  block->is_bound = block->cores.count > 0;
  int status = job != NULL ? agree_on_binding(job, block) : WEFT_CLI_OK;
  if (status == WEFT_CLI_OK) {
    status = block->kind == WEFT_CLI_MPI_GPT ? train_schedule(cli, job, train, block)
                                             : spin(cli, job, block);
  }
  weft_cli_affinity_restore(&before);
  return status;
}
