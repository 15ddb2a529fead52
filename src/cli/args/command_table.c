/* The commands. Their order is that of help and of the man page. */
#include <assert.h>
#include <string.h>

#include <weft/ir.h>
#include <weft/support.h>

#include "cli/args/option_table.h"

/* ---- Options that mean something else in one command ---- */

static const struct weft_cli_option plan_placement = {
    WEFT_CLI_OPTION_PLACEMENT,
    '\0',
    "placement",
    WEFT_CLI_KIND_CHOICE,
    "KIND",
    "any|loop|v",
    0,
    0,
    0,
    "placement of stages on ranks: loop, v, or the better one "
    "(any, default)"};
static const struct weft_cli_option train_placement = {
    WEFT_CLI_OPTION_PLACEMENT,
    '\0',
    "placement",
    WEFT_CLI_KIND_CHOICE,
    "KIND",
    "loop|v",
    0,
    0,
    0,
    "of --schedule auto: which rank owns which stage; default "
    "v for two stages of a rank, else loop"};
static const struct weft_cli_option plan_seed = {
    WEFT_CLI_OPTION_SEED,
    '\0',
    "seed",
    WEFT_CLI_KIND_NUMBER,
    "N",
    NULL,
    0,
    UINT64_MAX,
    UINT64_MAX,
    "the same seed, effort and threads give the same plan; default "
    "0"};
static const struct weft_cli_option train_seed = {
    WEFT_CLI_OPTION_SEED,
    '\0',
    "seed",
    WEFT_CLI_KIND_NUMBER,
    "S",
    NULL,
    0,
    UINT64_MAX,
    UINT64_MAX,
    "of the first weights, the order of the data and the sample; "
    "default 1"};
static const struct weft_cli_option sample_seed = {WEFT_CLI_OPTION_SEED,
                                                   '\0',
                                                   "seed",
                                                   WEFT_CLI_KIND_NUMBER,
                                                   "S",
                                                   NULL,
                                                   0,
                                                   UINT64_MAX,
                                                   UINT64_MAX,
                                                   "the same seed gives the same text; default 1"};
static const struct weft_cli_option run_steps = {
    WEFT_CLI_OPTION_STEPS,
    '\0',
    "steps",
    WEFT_CLI_KIND_NUMBER,
    "N",
    NULL,
    1,
    10000,
    10000,
    "steps to run; default 3, of which the first is a warm-up"};
static const struct weft_cli_option train_steps = {WEFT_CLI_OPTION_STEPS,
                                                   '\0',
                                                   "steps",
                                                   WEFT_CLI_KIND_NUMBER,
                                                   "N",
                                                   NULL,
                                                   1,
                                                   WEFT_CLI_STEPS_MAX,
                                                   WEFT_CLI_STEPS_MAX,
                                                   "steps in all; default 800"};
static const struct weft_cli_option run_comm = {
    WEFT_CLI_OPTION_COMM,
    '\0',
    "comm",
    WEFT_CLI_KIND_CHOICE,
    "MODEL",
    "posted|eager|rendezvous",
    0,
    0,
    0,
    "when a rank goes on after SEND and RECV: posted (default), at "
    "once; eager, a RECV has come; rendezvous, a SEND was taken too"};
static const struct weft_cli_option train_stall_limit = {
    WEFT_CLI_OPTION_STALL_LIMIT,
    '\0',
    "stall-limit",
    WEFT_CLI_KIND_REAL,
    "S",
    NULL,
    0,
    31536000,
    31536000,
    "seconds that a rank waits before it says who hangs; 0 "
    "is forever; default 300"};
static const struct weft_cli_option train_memory = {
    WEFT_CLI_OPTION_MEMORY,
    '\0',
    "memory",
    WEFT_CLI_KIND_REAL,
    "MIB",
    NULL,
    0,
    WEFT_CLI_COST_MAX,
    WEFT_CLI_COST_MAX,
    "of --schedule auto: the most that a rank may have for "
    "weights, gradients, moments and activations; default what "
    "is free, shared among the ranks of a machine"};
static const struct weft_cli_option plan_output = {
    WEFT_CLI_OPTION_OUTPUT,
    'o',
    "output",
    WEFT_CLI_KIND_FILE,
    "FILE",
    NULL,
    0,
    0,
    0,
    "write the table to FILE, whole or not at all; with --pareto "
    "a picture: x.svg or x.html"};
static const struct weft_cli_option timeline = {
    WEFT_CLI_OPTION_OUTPUT,
    'o',
    "output",
    WEFT_CLI_KIND_FILE,
    "FILE",
    NULL,
    0,
    0,
    0,
    "draw the last step: x.html beside its prediction, x.svg or "
    "x.json (Chrome trace) as measured"};
static const struct weft_cli_option shard_window = {
    WEFT_CLI_OPTION_WINDOW,
    '\0',
    "window",
    WEFT_CLI_KIND_NUMBER,
    "K",
    NULL,
    1,
    UINT32_MAX,
    UINT32_MAX,
    "stages of a rank whose weights are whole at once with --shard full; default 3"};
static const struct weft_cli_option trained = {WEFT_CLI_OPTION_CHECKPOINT,
                                               '\0',
                                               "checkpoint",
                                               WEFT_CLI_KIND_FILE,
                                               "DIR",
                                               NULL,
                                               0,
                                               0,
                                               0,
                                               "the newest checkpoint in this folder is the model"};
static const struct weft_cli_option json_lines = {
    WEFT_CLI_OPTION_JSON,
    '\0',
    "json",
    WEFT_CLI_KIND_FLAG,
    NULL,
    NULL,
    0,
    0,
    0,
    "write a line of JSON per step, and one at the end"};

/* ---- Commands ---- */

#define OPTION(NAME) &weft_cli_options[WEFT_CLI_OPTION_##NAME]
#define OUTPUT_JSON_HELP OPTION(OUTPUT), OPTION(JSON), OPTION(HELP)
/* What weft_cli_costs_read() (cost_options.h) reads of every command; some also take --slow. */
#define TIMES OPTION(F), OPTION(B), OPTION(I), OPTION(W), OPTION(HOP), OPTION(COSTS)

static const struct weft_cli_command commands[] = {
    {"gen",
     "NAME",
     1,
     "schedule",
     {OPTION(RANKS), OPTION(STAGES_PER_RANK), OPTION(MICROBATCHES), OPTION(PLACEMENT), OPTION(LIST),
      OUTPUT_JSON_HELP},
     "write the table of a named schedule",
     "Writes the compute-only table of the schedule NAME as CSV: a row per rank, a cell per step. "
     "Upper and lower case, hyphens and underscores in NAME do not matter. The fixed tables need "
     "neither -p nor -m.\n"
     "'weft gen --list' lists all schedules with their bubble, their peak of activations and the "
     "paper they come from.",
     "weft gen Interleaved1F1B -p 4 -v 2 -m 8"},
    {"lower",
     "[FILE]",
     1,
     "file",
     {OPTION(MERGE_BW), OPTION(WINDOW), OPTION(NO_UNSHARD), OPTION(NO_REDUCE_GRAD),
      OPTION(TIE_GRAD), OPTION(NO_COMM), OPTION(SLOTS), OUTPUT_JSON_HELP},
     "turn a table into a program with communication",
     "Reads a compute-only table and writes the program that ranks run: with SEND and RECV, "
     "UNSHARD and RESHARD, and REDUCE_GRAD. With --tie-grad also TIE_GRAD, which PyTorch does not "
     "know: for models whose first and last stage share weights, as tied embeddings do.",
     "weft gen 1F1B -p 4 -m 8 | weft lower -o program.csv"},
    {"verify",
     "[FILE]",
     1,
     "file",
     {OPTION(MICROBATCHES), OPTION(COMM), OPTION(CHANNEL), OPTION(STAGES), OPTION(MAX_FINDINGS),
      OUTPUT_JSON_HELP},
     "prove that a table or program is right and cannot hang",
     "Checks that every stage does every microbatch exactly once and in order, that sends and "
     "receives pair up, and that no rank can wait forever. Every finding names rank, step, "
     "action and rule; a deadlock is shown as the circle of actions that wait for each other.\n"
     "The proof holds for the given model of communication. The default is the strictest: what "
     "cannot hang there cannot hang anywhere.",
     "weft verify program.csv --comm slots:2 --channel pair"},
    {"sim",
     "[FILE]",
     1,
     "file",
     {OPTION(CHANNEL), OPTION(STEPS), TIMES, OPTION(SLOW), OPTION(JITTER), OPTION(RUNS),
      OPTION(SEED), OPTION(MEMORY), OPTION(CRITICAL_PATH), OUTPUT_JSON_HELP},
     "predict how long a schedule takes, where it idles, and its memory",
     "Simulates one training step: how long it takes, how much of it every rank idles and why, "
     "and the peaks of its memory. Times are those of the options, the same for all stages, "
     "or of a costs file; numbers may be written as 0.25 or 1/3. With --memory the exit status is "
     "1 when a rank needs more at any time: activations, and parameters and gradients where the "
     "costs have their sizes. --channel pair and rank show what it costs when transfers share a "
     "queue; a "
     "compute-only table gets its SEND and RECV for that.\n"
     "With --steps: the untimed dry run. Writes the same actions with a bubble wherever a rank "
     "had to wait. A compute-only table gets its SEND and RECV first.",
     "weft gen GPipe -p 4 -m 4 | weft sim --f 1 --b 2 --hop 0.1"},
    {"compare",
     "",
     0,
     "",
     {OPTION(RANKS), OPTION(STAGES_PER_RANK), OPTION(MICROBATCHES), OPTION(CHANNEL), TIMES,
      OPTION(SLOW), OPTION(MEMORY), OUTPUT_JSON_HELP},
     "rank all schedules for a pipeline by their time",
     "Simulates every schedule that takes the given shape, best first, says which one wins and "
     "why, and sets apart those over --memory. Without -v: v = 1, 2 and 4, as far as the recipe "
     "goes. Memory is what a rank needs at most at any time: activations, and parameters and "
     "gradients where the costs have their sizes, which no table shards. Exit status 1: none fits "
     "into the memory.\n"
     "With -v costs are of a stage, as for sim. Without it, schedules with different v cut the "
     "same model: then costs given by options, or by a file with one entry, are those of a rank's "
     "whole share, with v stages per rank each stage takes 1/v of its time and of its memory, and "
     "a transfer takes what it takes. A file with one entry per stage compares the schedules "
     "with that many stages.",
     "weft compare -p 4 -m 8 --memory 4"},
    {"plan",
     "",
     0,
     "",
     {OPTION(RANKS), OPTION(STAGES_PER_RANK), OPTION(MICROBATCHES), TIMES, OPTION(MEMORY),
      &plan_placement, OPTION(NO_SPLIT), OPTION(KEEP_PARTITION), OPTION(OBJECTIVE), OPTION(EFFORT),
      OPTION(TIME_LIMIT), &plan_seed, OPTION(THREADS), OPTION(PARETO), OPTION(FOR), &plan_output,
      OPTION(JSON), OPTION(HELP)},
     "search for the best schedule for given costs and memory",
     "Searches for the order of actions that takes the least time within --memory, and reports a "
     "lower bound for its placement, so that you know how far from optimal it is at most. Every "
     "plan is lowered, verified under rendezvous and simulated to exactly the reported time "
     "before it is written. Without -v and --placement these are chosen too; with a costs file "
     "that has parts, so is the partition of the parts into stages.\n"
     "The table (CSV) goes to -o FILE and the report to standard output; without -o the table "
     "goes to standard output and the report to standard error. With --json the report is a JSON "
     "document, and the table is written to -o FILE only.\n"
     "With -v costs are of a stage, as for sim. Without it, costs given by options or by a file "
     "with one entry are those of all stages of a rank, and with v stages per rank each stage "
     "takes 1/v of them. A file with one entry per stage determines v.\n"
     "Exit status 1: no schedule fits into the memory. SIGINT and SIGTERM end the search with the "
     "best plan so far (status 130, 143); a second one ends the command at once.\n"
     "With --pareto: the best plan for each memory limit, from the least that is possible to "
     "where more does not help.",
     "weft plan -p 4 -m 8 --memory 4 -o plan.csv"},
    {"show",
     "[FILE] [FILE]",
     2,
     "file",
     {OPTION(CHANNEL), TIMES, OPTION(SLOW), OPTION(JITTER), OPTION(SEED), OPTION(GRID),
      OPTION(WIDTH), OPTION(COLOUR_BY), OPTION(DARK), OPTION(OUTPUT), OPTION(HELP)},
     "draw the timeline of a table or program",
     "Simulates it, and draws a line per rank with its memory below, on the terminal. With -o the "
     "ending says what to draw: x.svg a picture to print, x.html a page to look around in, x.json "
     "a Chrome trace. A page can show two FILEs on one time axis; if they have different "
     "numbers of stages per rank, costs are of a rank's share of the model, as for compare. A "
     "compute-only table gets its SEND and RECV first.\n"
     "With --grid: rows are steps, columns are ranks, blank cells are bubbles.",
     "weft gen ZBVZeroBubble -p 4 -m 8 | weft show -o zbv.svg"},
    {"run",
     "[FILE]",
     1,
     "file",
     {TIMES, OPTION(SLOW), OPTION(TRANSPORT), OPTION(PROGRESS), OPTION(STAGE), &run_steps,
      &run_comm, OPTION(STALL_LIMIT), OPTION(DUMP), OPTION(UNCHECKED), OUTPUT_JSON_HELP},
     "execute a table or program for real, beside its prediction",
     "Verifies it, then has every rank execute its row, with stages that take the given time. A "
     "compute-only table is lowered first. Shows the measured time of a step beside the simulated "
     "one. Times are in the costs file's unit (s, ms, us or ns; anything else, and no file, is "
     "ms). On threads and mpi a transfer takes what it takes, and --hop is for the prediction "
     "alone; "
     "on loopback all times are virtual, and those of 'weft sim' where every SEND follows what it "
     "sends.\n"
     "On mpi each rank is a process: 'mpirun -n 4 weft run FILE' for a program of four ranks. All "
     "read FILE, - comes from rank 0, and rank 0 reports.\n"
     "With -o x.html the measured and the predicted timeline on one page, with x.svg or x.json "
     "(Chrome trace) the measured one; the report goes to standard output then. With --json, -o "
     "x.json is the report.\n"
     "When a rank waits longer than --stall-limit all end, with one error that says who is to "
     "blame (exit status 75), and what all ranks were doing is written to --dump, for "
     "'weft explain-hang'. SIGINT and SIGTERM end the step on all ranks; a second one ends the "
     "command at once.",
     "weft gen 1F1B -p 4 -m 8 | weft run --f 1 --b 2 --steps 2"},
    {"train",
     "[FILE...]",
     WEFT_CLI_OPERANDS_LIST,
     "file",
     {OPTION(RANKS),
      OPTION(STAGES_PER_RANK),
      OPTION(MICROBATCHES),
      OPTION(TRANSPORT),
      OPTION(PROGRESS),
      OPTION(DUMP),
      OPTION(DATA),
      OPTION(LAYERS),
      OPTION(DIM),
      OPTION(HEADS),
      OPTION(CONTEXT),
      OPTION(TIED),
      OPTION(BATCH),
      &train_steps,
      OPTION(LR),
      OPTION(LR_MIN),
      OPTION(WARMUP),
      OPTION(WEIGHT_DECAY),
      OPTION(CLIP),
      &train_seed,
      OPTION(SCHEDULE),
      OPTION(SPLIT),
      OPTION(THREADS_PER_RANK),
      OPTION(PP),
      OPTION(DP),
      OPTION(SHARD),
      &shard_window,
      OPTION(CHECKPOINT),
      OPTION(CHECKPOINT_EVERY),
      OPTION(CHECKPOINT_KEEP),
      OPTION(RESUME),
      OPTION(EVAL_EVERY),
      &train_stall_limit,
      &train_memory,
      &train_placement,
      OPTION(PROFILE),
      OPTION(LOG),
      OPTION(CURVE),
      OPTION(NO_SAMPLE),
      OPTION(PROMPT),
      &timeline,
      &json_lines,
      OPTION(HELP)},
     "train the reference GPT on a pipeline",
     "Trains a GPT on the bytes of text, its blocks cut into stages on as many ranks as -p says "
     "(default 2), each in a thread of its own. A step has -m microbatches (default 8). Weights "
     "after a step are the same bit for bit for every number of ranks, schedule, split, "
     "transport and --shard that adds up gradients in the same order; parameters_hash is of them. "
     "Loss is in nats per byte. The bubble is the idle share of all ranks, measured, beside what "
     "the simulator makes of the measured times.\n"
     "With --dp there are several such pipelines, each with its part of the batch and -m "
     "microbatches, and their gradients are added up in the order of replicas.\n"
     "On mpi each rank is a process: 'mpirun -n 4 weft train --dp 2' has two replicas of two "
     "ranks. Without -p the processes are divided among the replicas. Rank 0 reports, and has "
     "--log, --curve, --profile and -o; --data and --checkpoint must be there for all ranks.\n"
     "With --schedule auto it begins with a safe schedule, measures what actions take, and plans "
     "one within --memory; that is kept if it is faster, and it plans again when steps take longer "
     "or less long than they did.\n"
     "--resume goes on from a checkpoint as if there had been no end, on any ranks and schedule. "
     "Model, data, batch, microbatches (unless --dp is given) and seed are the checkpoint's; "
     "--steps may be raised.\n"
     "SIGINT and SIGTERM let the step end, write a checkpoint if there is --checkpoint, and end "
     "the command; a second one ends it at once. A rank that waits longer than --stall-limit ends "
     "all (exit status 75), with what all ranks were doing in --dump.",
     "weft train notes.txt --layers 2 --dim 32 --steps 50 --checkpoint model"},
    {"sample",
     "",
     0,
     "",
     {&trained, OPTION(PROMPT), OPTION(TOKENS), OPTION(TEMPERATURE), OPTION(TOP_K), &sample_seed,
      OUTPUT_JSON_HELP},
     "write text with a trained model",
     "Reads the newest checkpoint that 'weft train' has written into a folder, or one step's "
     "folder in it, and goes on with the prompt. Bytes that are not text are shown escaped on a "
     "terminal, and written as they are elsewhere.",
     "weft sample --checkpoint model --prompt 'static int '"},
    {"explain",
     "[FILE]",
     1,
     "file",
     {OPTION(RANK), OUTPUT_JSON_HELP},
     "list a program with what each instruction does and waits for",
     "Lists every instruction of every rank: its number in the row, step, action, the channel it "
     "uses, its buffer, and the matching instruction on the peer or what it waits for. Buffers: "
     "r0, r1 ... are for receiving, a0, a1 ... hold activations.",
     "weft explain program.csv --rank 1"},
    {"explain-hang",
     "[DUMP]",
     1,
     "file",
     {OUTPUT_JSON_HELP},
     "say who is stuck on what in a run that hangs",
     "Reads the dump that a stalled run has written, and says in words what every rank does and "
     "waits for, and who is to blame: the rank that all the others wait for, or the circle of "
     "ranks that wait for each other.",
     "weft explain-hang hang.json"},
    {"diff",
     "A B",
     2,
     "file",
     {OPTION(MAX_DIFFERENCES), OUTPUT_JSON_HELP},
     "show where two tables or programs differ",
     "Compares the files A and B rank by rank. Exit status 0 means equal, 1 different.",
     "weft diff a.csv b.csv"},
    {"bench",
     "[NAME]",
     1,
     "plan|plan-search|sim|run|train|mpi",
     {OPTION(RANKS), OPTION(MICROBATCHES), OPTION(LIST), OPTION(PROGRESS), OPTION(LARGE),
      OPTION(ACTIONS), OPTION(REPEATS), OUTPUT_JSON_HELP},
     "run the benchmarks",
     "Without NAME all benchmarks but train and mpi run; 'weft bench --list' lists them.\n"
     "plan: time and memory of gen, lower and verify per action, after checking their answer; and "
     "the start-up time of the command.\n"
     "sim: time and memory of the simulation and of the makespan alone, likewise; and the time of "
     "an SVG. --large adds 1,024 ranks with two stages each and 4,096 microbatches.\n"
     "run: CPU time of the executor per action, the hand-over of a message between threads, and "
     "measured beside simulated time with stages that sleep, after checking that every schedule "
     "takes exactly the simulated time in virtual time. Takes half a minute.\n"
     "train: steps of a fixed model on one rank and on two, after checking that both come to the "
     "same parameters; beside the same matrix products by sgemm, and beside the simulation. Takes "
     "a "
     "minute.\n"
     "mpi: of every MPI that is installed two processes are started, again and again: messages of "
     "8 bytes to 16 MiB beside those of bare MPI, a transfer beside a compute, and steps of two "
     "processes beside those of two threads, whose parameters must be the same. Takes minutes. "
     "'mpirun -n 2 weft bench mpi' measures messages and transfers of that job alone, with "
     "--progress.\n"
     "Default shape: -p 64 -m 256, two stages per rank; of run -p 8 -m 32, and -m 256.",
     "weft bench plan --large"},
    {"doctor",
     "",
     0,
     "",
     {OPTION(QUICK), OUTPUT_JSON_HELP},
     "show what this build and machine have, and whether it works",
     "Shows version, compiler, limits, processors and memory, and generates, lowers and verifies "
     "every schedule once. Of every MPI that is installed it starts two processes, for at most ten "
     "seconds, and shows how fast messages go between them.\n"
     "Under mpirun rank 0 reports: where all ranks are, and how fast messages go between the first "
     "two.",
     "weft doctor"},
    {"help",
     "[COMMAND]",
     1,
     "command",
     {OPTION(MAN), OPTION(COMPLETION), OPTION(OUTPUT), OPTION(HELP)},
     "show help, or write the manual page or a shell's completions",
     "Without COMMAND: the list of commands.",
     "weft help --completion bash > /etc/bash_completion.d/weft"},
};
static const struct weft_cli_exit_text exit_texts[] = {
    {WEFT_CLI_OK, "fine"},
    {WEFT_CLI_FOUND_BAD, "checked and found bad: invalid, can hang, different, over the limit"},
    {WEFT_CLI_USAGE, "wrong usage, or more than a limit"},
    {WEFT_CLI_MALFORMED, "malformed input"},
    {WEFT_CLI_NO_INPUT, "an input file is missing or cannot be opened"},
    {WEFT_CLI_UNAVAILABLE, "not part of this release, or of this build"},
    {WEFT_CLI_INTERNAL, "out of memory, or an internal error"},
    {WEFT_CLI_IO, "reading or writing failed"},
    {WEFT_CLI_PEER, "a peer died, timed out or was not understood"},
    {130, "interrupted (SIGINT)"},
    {143, "terminated (SIGTERM)"},
    {0, NULL},
};

size_t weft_cli_command_count(void) { return WEFT_ARRAY_LENGTH(commands); }

const struct weft_cli_command *weft_cli_command_at(size_t index) {
  assert(index < WEFT_ARRAY_LENGTH(commands));
  return &commands[index];
}

const struct weft_cli_command *weft_cli_command_find(const char *name) {
  for (size_t i = 0; i < WEFT_ARRAY_LENGTH(commands); i++) {
    if (strcmp(commands[i].name, name) == 0) {
      return &commands[i];
    }
  }
  return NULL;
}

const struct weft_cli_option *weft_cli_command_option(const struct weft_cli_command *command,
                                                      enum weft_cli_option_id id) {
  for (const struct weft_cli_option *const *at = command->options; *at != NULL; at++) {
    if ((*at)->id == id) {
      return *at;
    }
  }
  return NULL;
}

const struct weft_cli_exit_text *weft_cli_exit_texts(void) { return exit_texts; }
