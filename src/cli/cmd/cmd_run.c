/* `weft run`: a table or program executed by all its ranks, and the measured time
 * beside the simulated one. */
#include <assert.h>
#include <inttypes.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <weft/launch.h>
#include <weft/lower.h>
#include <weft/support.h>

#include "cli/args/cost_options.h"
#include "cli/args/option_parser.h"
#include "cli/cmd/commands.h"
#include "cli/gpus.h"
#include "cli/io/input_file.h"
#include "cli/io/output_file.h"
#include "cli/io/text_columns.h"
#include "cli/report/run_report.h"
#include "cli/scoped.h"

enum { STEPS_DEFAULT = 3 };
#define STALL_LIMIT_S 30.0

/* Everything between the command line and the report. */
struct run {
  const struct weft_cli *cli;
  const struct weft_cli_arguments *arguments;
  const char *name;
  const struct weft_comm_info *transport;
  enum weft_cli_stage_kind stage;
  struct weft_cli_costs costs;
  struct weft_program *given;
  struct weft_program *lowered; /* of a table; or NULL */
  const struct weft_program *program;
  struct weft_simulation *simulation; /* NULL: unchecked, and it cannot finish */
  bool is_stuck;                      /* ranks are left in their stages */
  struct weft_cli_stages stages;
  double per_unit;        /* the transport's time */
  int64_t *channel_ticks; /* [channel_count] in virtual time, where edges have sizes; or NULL */
  uint32_t channel_count;
  struct weft_cli_job *job; /* of mpi; or NULL */
  struct weft_cuda *cuda;   /* of --device cuda; or NULL */
};

/* ---- What to run ---- */

static int say_findings(const struct run *run, const struct weft_report *report, bool of_lowered) {
  char hint[400];
  (void)snprintf(hint, sizeof hint,
                 of_lowered ? "'weft lower %s | weft verify' shows all; --unchecked runs it anyway"
                            : "'weft verify %s' shows all; --unchecked runs it anyway",
                 weft_cli_shell_word(run->arguments->operands[0]).text);
  return weft_cli_fail_finding(run->cli, run->name, report, hint, true);
}

/* Under rendezvous, whatever --comm is: what is safe there is safe everywhere. */
static int verify_program(const struct run *run, const struct weft_program *program) {
  WEFT_SCOPED(weft_report) report = NULL;
  if (run->arguments->given[WEFT_CLI_OPTION_UNCHECKED]) {
    return WEFT_CLI_OK;
  }
  WEFT_CLI_CALL(run->cli, run->name,
                weft_verify(run->cli->allocator, program, NULL, &report, &error));
  return report->ok ? WEFT_CLI_OK : say_findings(run, report, program == run->lowered);
}

static int lower_program(struct run *run) {
  struct weft_lower_options options = weft_lower_options_default();
  run->program = run->given;
  if (run->given->level != WEFT_LEVEL_COMPUTE) {
    return WEFT_CLI_OK;
  }
  options.by_time = run->transport->gpus_only; /* recordings of ranks have one transfer at a time */
  WEFT_CLI_CALL(run->cli, run->name,
                weft_lower(run->cli->allocator, run->given, &options, &run->lowered, &error));
  run->program = run->lowered;
  return verify_program(run, run->lowered);
}

static int read_program(struct run *run) {
  const struct weft_cli *cli = run->cli;
  WEFT_CLI_TRY(weft_cli_read_operand(cli, run->arguments, 0, &run->given));
  WEFT_CLI_TRY(verify_program(run, run->given));
  if (run->given->microbatch_count == 0) {
    weft_cli_print(cli, "'weft gen 1F1B -p 4 -m 8' shows what a table looks like",
                   "%s: there is nothing to run in it", weft_cli_quoted(run->name).text);
    return WEFT_CLI_FOUND_BAD;
  }
  return lower_program(run);
}

static int fit_job(struct run *run) {
  const uint32_t ranks = run->program->rank_count;
  const uint32_t processes = run->job != NULL ? run->job->transport->rank_count : ranks;
  char hint[320];
  if (ranks == processes) {
    return WEFT_CLI_OK;
  }
  (void)snprintf(hint, sizeof hint, "mpirun -n %" PRIu32 " weft run %s --transport mpi", ranks,
                 weft_cli_shell_word(run->arguments->operands[0]).text);
  return weft_cli_usage(run->cli, hint, "%s: the program has %s, the job %s",
                        weft_cli_quoted(run->name).text, weft_cli_count(ranks, "rank").text,
                        weft_cli_count(processes, "process").text);
}

/* Without --unchecked it can be simulated: that is proven. */
static int simulate_program(struct run *run) {
  struct weft_error error;
  WEFT_CLI_TRY(weft_cli_costs_fit(run->cli, &run->costs, run->program, run->name));
  const enum weft_status result = weft_simulate(run->cli->allocator, run->program, run->costs.costs,
                                                &run->costs.options, &run->simulation, &error);
  const bool may_fail = run->arguments->given[WEFT_CLI_OPTION_UNCHECKED];
  return result == WEFT_ERR_INVALID && may_fail
             ? WEFT_CLI_OK
             : weft_cli_result(run->cli, run->name, result, &error);
}

/* ---- Running it ---- */

/* Loopback has the simulator's ticks, so that its times are the simulated ones. */
static int make_stages(struct run *run) {
  const struct weft_program *program = run->program;
  struct weft_costs_view view;
  const struct weft_costs *costs =
      weft_costs_of_stages(run->costs.costs, program->rank_count, program->stage_count, &view);
  run->per_unit = run->transport->virtual_time && run->simulation != NULL
                      ? run->simulation->ticks_per_unit
                      : weft_costs_unit_ns(costs);
  const struct weft_cli_time_scale scale = {.per_unit = run->per_unit,
                                            .factors = run->costs.options.rank_factors};
  return weft_cli_stages_init(&run->stages, run->cli, program, costs, run->stage, &scale);
}

static int64_t to_ticks(const struct run *run, double cost) { return llrint(cost * run->per_unit); }

static int64_t occupied_ticks(const struct run *run, double bytes) {
  const struct weft_hop_costs *hop = &run->costs.costs->hop;
  return hop->bytes_per_unit > 0
             ? to_ticks(run, (bytes >= 0 ? bytes : hop->bytes) / hop->bytes_per_unit)
             : 0;
}

/* How long the messages of each edge occupy their channel, as the simulator has it. */
static int make_channels(struct run *run) {
  const struct weft_graph *graph = run->program->graph;
  const uint32_t edges = weft_graph_edge_count(graph, run->program->stage_count);
  if (edges == 0 || !run->transport->virtual_time) {
    return WEFT_CLI_OK;
  }
  run->channel_count = 2 * edges;
  run->channel_ticks =
      weft_arena_allocate(&run->costs.arena, run->channel_count, sizeof *run->channel_ticks);
  if (run->channel_ticks == NULL) {
    return weft_cli_fail_memory(run->cli);
  }
  for (uint32_t e = 0; e < edges; e++) {
    const struct weft_edge edge = weft_graph_edge(graph, e);
    run->channel_ticks[2 * e] = occupied_ticks(run, edge.bytes);
    run->channel_ticks[2 * e + 1] = occupied_ticks(run, edge.gradient_bytes);
  }
  return WEFT_CLI_OK;
}

/* Longer than all actions one after the other. In virtual time that costs nothing. */
static int64_t virtual_limit(const struct run *run, int64_t hop) {
  int64_t longest = 1;
  for (uint32_t k = 0; k < run->channel_count; k++) {
    longest = run->channel_ticks[k] > longest ? run->channel_ticks[k] : longest;
  }
  for (uint32_t s = 0; s < run->stages.count; s++) {
    for (unsigned op = 0; op < WEFT_OP_COUNT; op++) {
      const int64_t time = run->stages.timed[s].times[op];
      longest = time > longest ? time : longest;
    }
  }
  const double limit = ((double)longest + (double)hop) * ((double)run->program->action_count + 1);
  return (int64_t)fmin(limit, (double)(INT64_MAX / 8));
}

static int64_t real_limit(const struct run *run) {
  const double usual = run->simulation != NULL
                           ? fmax(STALL_LIMIT_S, 2e-9 * run->simulation->makespan *
                                                     weft_costs_unit_ns(run->costs.costs))
                           : STALL_LIMIT_S;
  return weft_cli_stall_limit(run->arguments, usual);
}

static struct weft_cli_execution execution_of(struct run *run) {
  const int64_t latency = to_ticks(run, run->costs.costs->hop.latency);
  const int64_t occupied = occupied_ticks(run, -1);
  return (struct weft_cli_execution){
      .cli = run->cli,
      .allocator = run->cli->allocator,
      .program = run->program,
      .stages = &run->stages,
      .transport = run->transport,
      .cuda = run->cuda,
      .eager = run->arguments->given[WEFT_CLI_OPTION_EAGER],
      .job = run->job,
      .comm = (enum weft_send_model)run->arguments->choices[WEFT_CLI_OPTION_COMM],
      .slots = (uint32_t)run->arguments->numbers[WEFT_CLI_OPTION_COMM],
      .stall_limit =
          run->transport->virtual_time ? virtual_limit(run, latency + occupied) : real_limit(run),
      .latency_ticks = latency,
      .occupied_ticks = occupied,
      .channel_ticks = run->channel_ticks,
      .channel_count = run->channel_count,
      .step_count = (uint32_t)weft_cli_number(run->arguments, WEFT_CLI_OPTION_STEPS, STEPS_DEFAULT),
      .keeps_events = weft_cli_run_picture_of(run->arguments) != WEFT_CLI_NO_PICTURE,
      .says_progress = true};
}

/* ---- When it fails ---- */

static int say_interrupted(const struct weft_cli_execution *execution, int number) {
  weft_cli_print(execution->cli, NULL,
                 "stopped by %s in step %" PRIu32 " of %" PRIu32 "; %" PRIu32
                 " step%s done, all "
                 "ranks have ended",
                 weft_launch_signal_name(number), execution->steps_done + 1, execution->step_count,
                 execution->steps_done, execution->steps_done == 1 ? " was" : "s were");
  return 128 + number;
}

/* The signal that ended it, 0 if none did. Another process may have got it. */
static int ended_by(const struct weft_error *error) {
  const int number = weft_launch_signal();
  if (error->status != WEFT_ERR_CANCELLED || number != 0) {
    return error->status == WEFT_ERR_CANCELLED ? number : 0;
  }
  for (unsigned k = 0; k < 2; k++) {
    const int signals[2] = {SIGINT, SIGTERM};
    if (strstr(error->message, weft_launch_signal_name(signals[k])) != NULL) {
      return signals[k];
    }
  }
  return 0;
}

static int fail_run(const struct run *run, const struct weft_cli_execution *execution,
                    const struct weft_error *error) {
  const int number = ended_by(error);
  if (run->job != NULL) {
    weft_cli_job_fail(run->job, error);
  }
  const bool reports = run->job == NULL || weft_launch_is_reporter(run->job->transport);
  if (number != 0) {
    return reports ? say_interrupted(execution, number) : 128 + number;
  }
  const char *name = error->status == WEFT_ERR_SYSTEM ? NULL : run->name;
  if (!reports) {
    weft_cli_job_report_activity(run->job);
    return weft_cli_exit_status(name, error);
  }
  struct weft_error said = *error;
  if (run->job != NULL) {
    weft_launch_add_last_activity(run->job->transport, &said);
  }
  const int status = weft_cli_fail(run->cli, name, &said);
  if (status == WEFT_CLI_PEER && execution->first != NULL) {
    weft_cli_write_hang(run->cli, run->arguments, execution->first);
  }
  return status;
}

/* ---- What comes out ---- */

static struct weft_cli_run_report report_of(const struct run *run,
                                            const struct weft_cli_execution *execution,
                                            const char *comm) {
  static const char *const kinds[] = {"sleep", "spin", "null", "virtual", "device"};
  struct weft_cli_run_report report = {.name = run->name,
                                       .costs = run->costs.costs,
                                       .per_unit = run->per_unit,
                                       .execution = execution,
                                       .simulation = run->simulation,
                                       .stage = kinds[run->stage],
                                       .comm = comm,
                                       .is_null = run->stage == WEFT_CLI_STAGE_NULL,
                                       .first_step = execution->step_count > 1 ? 1 : 0};
  weft_cli_run_report_compute(&report);
  return report;
}

/* On mpi all ranks come here, and rank 0 reports. */
static int write_report(const struct run *run, struct weft_cli_execution *execution) {
  const enum weft_cli_picture kind = weft_cli_run_picture_of(run->arguments);
  WEFT_SCOPED_TEXT text = {.allocator = run->cli->allocator};
  WEFT_SCOPED_TEXT comm = {.allocator = run->cli->allocator};
  struct weft_error error;
  weft_comm_model_print(
      &(struct weft_comm_model){
          .capacity = weft_send_model_capacity(execution->comm, execution->slots),
          .posted = !weft_send_model_info(execution->comm)->row_waits},
      &comm);
  const struct weft_cli_run_report report = report_of(run, execution, comm.failed ? "" : comm.data);
  if (run->job != NULL && kind != WEFT_CLI_NO_PICTURE &&
      weft_cli_execution_collect(execution, report.step, &error) < 0) {
    return fail_run(run, execution, &error);
  }
  if (run->job != NULL && run->job->transport->rank != 0) {
    return WEFT_CLI_OK;
  }
  if (execution->eager_reason != NULL) {
    weft_cli_print(run->cli, NULL, "each step was enqueued action by action: %s",
                   execution->eager_reason);
  }
  (run->arguments->given[WEFT_CLI_OPTION_JSON] ? weft_cli_run_add_json : weft_cli_run_add_text)(
      &text, &report);
  if (kind == WEFT_CLI_NO_PICTURE) {
    return weft_cli_write_output(run->cli, run->arguments, &text, WEFT_CLI_OK);
  }
  WEFT_CLI_TRY(text.failed ? weft_cli_fail_memory(run->cli) : WEFT_CLI_OK);
  WEFT_CLI_TRY(weft_cli_run_draw(run->cli, run->arguments->texts[WEFT_CLI_OPTION_OUTPUT], &report));
  return weft_cli_write_stdout(run->cli, &text); /* -o is for the picture */
}

static int execute_program(struct run *run) {
  struct weft_error error;
  struct weft_cli_execution execution = execution_of(run);
  weft_launch_signals_begin();
  const enum weft_status result = weft_cli_execute(&execution, &error);
  weft_launch_signals_end();
  const int status = result < 0 ? fail_run(run, &execution, &error) : write_report(run, &execution);
  run->is_stuck = weft_comm_stuck_ranks(execution.comm_world) > 0;
  weft_cli_execution_finish(&execution);
  return status;
}

/* ---- The command ---- */

/* What every rank does before the run starts. */
static int prepare_run(struct run *run) {
  WEFT_CLI_TRY(weft_cli_costs_read(run->cli, run->arguments, &run->costs));
  struct weft_costs *costs = run->costs.costs;
  if (!run->transport->virtual_time && weft_costs_unit_ns(costs) == 1e6) {
    (void)snprintf(costs->unit, sizeof costs->unit, "ms"); /* real time has a unit */
  }
  WEFT_CLI_TRY(read_program(run));
  WEFT_CLI_TRY(fit_job(run));
  WEFT_CLI_TRY(
      weft_cli_open_gpus(run->cli, run->arguments, run->job, run->program->rank_count, &run->cuda));
  WEFT_CLI_TRY(simulate_program(run));
  WEFT_CLI_TRY(make_stages(run));
  return make_channels(run);
}

static int run_ranks(struct run *run) {
  int status = prepare_run(run);
  if (run->job != NULL) {
    status = weft_cli_job_agree(run->job, status);
  }
  if (status == WEFT_CLI_OK) {
    status = execute_program(run);
  }
  if (run->is_stuck) {
    return status; /* a thread is still in a stage, and uses the rest too */
  }
  weft_cli_stages_finish(&run->stages);
  weft_comm_disconnect(run->job != NULL ? run->job->comm : NULL); /* it uses the GPU */
  weft_cuda_close(run->cuda);
  weft_simulation_destroy(run->simulation);
  weft_program_destroy(run->lowered);
  weft_program_destroy(run->given);
  weft_cli_costs_finish(&run->costs);
  return status;
}

static int run_as_rank(const struct run *given) {
  const struct weft_comm_options options = weft_comm_options_default();
  struct run run = *given;
  struct weft_cli_job job;
  int status = weft_cli_job_begin(&job, given->cli, given->transport->name, &options);
  if (status == WEFT_CLI_OK) {
    run.cli = &job.cli;
    run.job = &job;
    const char *edges = run.arguments->texts[WEFT_CLI_OPTION_GRAPH];
    status = weft_cli_is_standard_input(run.arguments->operands[0]) ||
                     (edges != NULL && weft_cli_is_standard_input(edges))
                 ? weft_cli_job_share_input(&job)
                 : WEFT_CLI_OK;
  }
  if (status == WEFT_CLI_OK) {
    status = run_ranks(&run);
  }
  return weft_cli_job_end(&job, status);
}

int weft_cli_cmd_run(const struct weft_cli *cli, const struct weft_cli_arguments *arguments) {
  assert(cli != NULL && arguments != NULL);
  const struct weft_comm_info *transport = weft_cli_chosen_transport(arguments);
  struct run run = {
      .cli = cli,
      .arguments = arguments,
      .name = weft_cli_input_name(arguments->operands[0]),
      .transport = transport,
      .stage = transport->virtual_time
                   ? WEFT_CLI_STAGE_VIRTUAL
                   : (enum weft_cli_stage_kind)arguments->choices[WEFT_CLI_OPTION_STAGE]};
  WEFT_CLI_TRY(weft_cli_check_transport(cli, arguments, transport));
  if (weft_cli_is_on_gpus(arguments) && run.stage != WEFT_CLI_STAGE_NULL) {
    if (arguments->given[WEFT_CLI_OPTION_STAGE]) {
      return weft_cli_usage(
          cli, "leave it out, or give --stage null",
          "--stage %s is for the host: with --device cuda stages keep the GPU busy",
          run.stage == WEFT_CLI_STAGE_SPIN ? "spin" : "sleep");
    }
    run.stage = WEFT_CLI_STAGE_DEVICE;
  }
  return transport->process_per_rank ? run_as_rank(&run) : run_ranks(&run);
}
