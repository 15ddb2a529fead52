/* The commands. Their order is that of help and of the man page. */
#include <assert.h>
#include <string.h>

#include <weft/ir.h>
#include <weft/support.h>

#include "cli/args/option_table.h"

/* ---- Options that mean something else in one command ---- */

#define ROW(NAME, ID, ...) \
  static const struct weft_cli_option NAME = {WEFT_CLI_OPTION_##ID, __VA_ARGS__}

ROW(plan_placement, PLACEMENT, '\0', "placement", WEFT_CLI_KIND_CHOICE, "KIND", "any|loop|v", 0, 0,
    0, "placement of stages on ranks: loop, v, or the best one (any, default)");
ROW(train_keep_partition, KEEP_PARTITION, '\0', "keep-partition", WEFT_CLI_KIND_FLAG, NULL, NULL, 0,
    0, 0, "let --schedule auto keep the split");
ROW(plan_seed, SEED, '\0', "seed", WEFT_CLI_KIND_NUMBER, "N", NULL, 0, UINT64_MAX, UINT64_MAX,
    "the same seed, effort and threads give the same plan; default "
    "0");
ROW(train_seed, SEED, '\0', "seed", WEFT_CLI_KIND_NUMBER, "S", NULL, 0, UINT64_MAX, UINT64_MAX,
    "seed of the initial weights, the order of the data and the sample; default 1");
ROW(sample_seed, SEED, '\0', "seed", WEFT_CLI_KIND_NUMBER, "S", NULL, 0, UINT64_MAX, UINT64_MAX,
    "the same seed gives the same text; default 1");
ROW(run_steps, STEPS, '\0', "steps", WEFT_CLI_KIND_NUMBER, "N", NULL, 1, 10000, 10000,
    "steps to run; default 3, of which the first is a warm-up");
ROW(train_steps, STEPS, '\0', "steps", WEFT_CLI_KIND_NUMBER, "N", NULL, 1, WEFT_CLI_STEPS_MAX,
    WEFT_CLI_STEPS_MAX, "steps in total; default 800");
ROW(train_stall_limit, STALL_LIMIT, '\0', "stall-limit", WEFT_CLI_KIND_REAL, "S", NULL, 0, 31536000,
    31536000, "seconds that a rank waits before it reports a hang; 0: no limit; default 300");
ROW(train_memory, MEMORY, '\0', "memory", WEFT_CLI_KIND_REAL, "MIB", NULL, 0, WEFT_CLI_COST_MAX,
    WEFT_CLI_COST_MAX,
    "memory limit of a rank for --schedule auto: weights, gradients, moments and activations; "
    "default the free memory, divided by the ranks of a machine");
ROW(plan_ranks, RANKS, 'p', "ranks", WEFT_CLI_KIND_NUMBER, "P", NULL, 1, UINT32_MAX, WEFT_RANKS_MAX,
    "ranks of the pipeline; with --global-batch of all replicas together");
ROW(plan_for, FOR, '\0', "for", WEFT_CLI_KIND_CHOICE, "TARGET", "torchtitan|pytorch|megatron", 0, 0,
    0, "also print what this program needs to run the table, or the partition of the layers");
ROW(plan_output, OUTPUT, 'o', "output", WEFT_CLI_KIND_FILE, "FILE", NULL, 0, 0, 0,
    "write the table to FILE, completely or not at all; with --pareto a picture: x.svg or x.html; "
    "with --global-batch either");
ROW(timeline, OUTPUT, 'o', "output", WEFT_CLI_KIND_FILE, "FILE", NULL, 0, 0, 0,
    "draw the last step: x.html with its prediction, x.svg or x.json (Chrome trace) as measured");
ROW(trained, CHECKPOINT, '\0', "checkpoint", WEFT_CLI_KIND_FILE, "DIR", NULL, 0, 0, 0,
    "folder of checkpoints; the newest one is the model");
ROW(show_output, OUTPUT, 'o', "output", WEFT_CLI_KIND_FILE, "FILE", NULL, 0, 0, 0,
    "draw to FILE, x.svg, x.html or x.json, completely or not at all; - is standard output");
ROW(run_output, OUTPUT, 'o', "output", WEFT_CLI_KIND_FILE, "FILE", NULL, 0, 0, 0,
    "write to FILE, completely or not at all; x.svg, x.html and x.json are drawn; - is standard "
    "output");
ROW(page_output, OUTPUT, 'o', "output", WEFT_CLI_KIND_FILE, "FILE", NULL, 0, 0, 0,
    "write a copy of the page to FILE, completely or not at all");
ROW(json_lines, JSON, '\0', "json", WEFT_CLI_KIND_FLAG, NULL, NULL, 0, 0, 0,
    "write a line of JSON per step, and one at the end");

/* ---- Commands ---- */

#define OPTION(NAME) &weft_cli_options[WEFT_CLI_OPTION_##NAME]
#define OUTPUT_JSON_HELP OPTION(OUTPUT), OPTION(JSON), OPTION(HELP)
/* What weft_cli_costs_read() (cost_options.h) reads of every command; some also take --slow. */
#define TIMES \
  OPTION(F), OPTION(B), OPTION(I), OPTION(W), OPTION(HOP), OPTION(COSTS), OPTION(COSTS_OF)

static const struct weft_cli_command commands[] = {
    {"gen",
     "NAME",
     1,
     "schedule",
     {{"Options",
       {OPTION(RANKS), OPTION(STAGES_PER_RANK), OPTION(MICROBATCHES), OPTION(GRAPH),
        OPTION(PLACEMENT), OPTION(LIST), OPTION(FOR), OUTPUT_JSON_HELP}}},
     "write the table of a named schedule",
     "Writes the compute-only table of the schedule NAME as CSV: a row per rank, a cell per step. "
     "Upper and lower case, hyphens and underscores in NAME do not matter. The fixed tables need "
     "neither -p nor -m.\n"
     "With --graph the stages form that graph, and -p may be left out. Schedules with one stage "
     "per rank run stages that are equally far from a loss at the same time; the others take "
     "stages in the order of their numbers.\n"
     "'weft gen --list' lists all schedules, or NAME alone, with their bubble, their peak of "
     "activations and the paper they come from.",
     "weft gen Interleaved1F1B -p 4 -v 2 -m 8"},
    {"lower",
     "[FILE]",
     1,
     "file",
     {{"Options",
       {OPTION(MERGE_BW), OPTION(WINDOW), OPTION(NO_UNSHARD), OPTION(NO_REDUCE_GRAD),
        OPTION(TIE_GRAD), OPTION(NO_COMM), OPTION(GRAPH), OUTPUT_JSON_HELP}}},
     "turn a table into a program with communication",
     "Reads a compute-only table and writes the program that ranks run: with SEND and RECV, "
     "UNSHARD and RESHARD, and REDUCE_GRAD. With --tie-grad also TIE_GRAD, which PyTorch does not "
     "know: for models whose first and last stage share weights, as tied embeddings do.",
     "weft gen 1F1B -p 4 -m 8 | weft lower -o program.csv"},
    {"verify",
     "[FILE]",
     1,
     "file",
     {{"Options",
       {OPTION(MICROBATCHES), OPTION(COMM), OPTION(CHANNEL), OPTION(LIST), OPTION(STAGES),
        OPTION(MAX_FINDINGS), OPTION(TRACE), OPTION(GRAPH), OUTPUT_JSON_HELP}}},
     "prove that a table or program is right and cannot hang",
     "Checks that every stage executes every microbatch exactly once and in order, that sends and "
     "receives match, and that no rank can wait forever. Every finding names rank, step, action "
     "and rule; a deadlock is shown as the cycle of actions that wait for each other.\n"
     "The proof holds for the given communication model. The default is the strictest: a program "
     "that cannot hang there cannot hang anywhere.",
     "weft verify program.csv --comm slots:2 --channel pair"},
    {"sim",
     "[FILE]",
     1,
     "file",
     {{"Costs", {TIMES, OPTION(GRAPH), OPTION(SLOW)}},
      {"Simulation", {OPTION(CHANNEL), OPTION(JITTER), OPTION(RUNS), OPTION(SEED), OPTION(STEPS)}},
      {"Output", {OPTION(MEMORY), OPTION(CRITICAL_PATH), OUTPUT_JSON_HELP}}},
     "predict how long a schedule takes, where it idles, and its memory",
     "Simulates one training step: its makespan, the idle time of every rank and its causes, and "
     "peak memory. Times come from the options, the same for all stages, or from a costs file; "
     "numbers may be written as 0.25 or 1/3. With --memory the exit status is 1 when a rank needs "
     "more at any time: activations, and parameters and gradients where the costs have their "
     "sizes. --channel pair and rank show the cost of transfers that share a queue; a "
     "compute-only table gets SEND and RECV for that.\n"
     "With --steps: the untimed dry run. Writes the same actions with a bubble wherever a rank "
     "has to wait. A compute-only table gets SEND and RECV first.",
     "weft gen GPipe -p 4 -m 4 | weft sim --f 1 --b 2 --hop 0.1"},
    {"compare",
     "[FILE...]",
     WEFT_CLI_OPERANDS_MAX,
     "file",
     {{"Options",
       {OPTION(RANKS), OPTION(STAGES_PER_RANK), OPTION(MICROBATCHES), OPTION(CHANNEL), TIMES,
        OPTION(GRAPH), OPTION(SLOW), OPTION(MEMORY), OUTPUT_JSON_HELP}}},
     "rank all schedules for a pipeline by their time",
     "Simulates every schedule that is possible for the given shape, best first, explains why the "
     "first one wins, and lists those over --memory apart. Without -v: v = 1, 2 and 4, and that "
     "of the files, as far as the schedule allows. Memory is the peak of a rank: activations, and "
     "parameters and gradients where the costs have their sizes, which no table shards. Exit "
     "status 1: none fits into the memory.\n"
     "FILEs, tables or programs, are ranked with the schedules of their shape: -p and -m are then "
     "those of the files, and all of them must have the same.\n"
     "Schedules with different v cut the same model: costs given by options, or by a file with "
     "one entry, are those of a rank's share of it, and with v stages per rank each stage takes "
     "1/v of its time and memory; the time of a transfer does not change. A file with one entry "
     "per stage compares the schedules with that many stages.\n"
     "With --graph, or FILEs whose stages form a graph, which all have the same edges, the "
     "schedules are those of 'weft gen --graph'. -p may then be left out: as many ranks as stages.",
     "weft compare -p 4 -m 8 --memory 4"},
    {"plan",
     "",
     0,
     "",
     {{"Pipeline",
       {&plan_ranks, OPTION(STAGES_PER_RANK), OPTION(MICROBATCHES), OPTION(GLOBAL_BATCH),
        OPTION(GRAPH), OPTION(STAGE_RANKS)}},
      {"Costs", {TIMES, OPTION(SLOW)}},
      {"Limits and choices",
       {OPTION(MEMORY), &plan_placement, OPTION(NO_SPLIT), OPTION(KEEP_PARTITION),
        OPTION(OBJECTIVE), OPTION(PARETO)}},
      {"Search", {OPTION(EFFORT), OPTION(TIME_LIMIT), &plan_seed, OPTION(THREADS)}},
      {"Output", {&plan_for, OPTION(PART_NAMES), &plan_output, OPTION(JSON), OPTION(HELP)}}},
     "search for the best schedule for given costs and memory",
     "Searches for the order of actions that takes the least time within --memory, and reports a "
     "lower bound for its placement, so that you know how far from optimal it is at most. Every "
     "plan is lowered, verified under rendezvous and simulated to exactly the reported time "
     "before it is written. Without -v and --placement these are chosen too; with a costs file "
     "that has parts, so is the partition of the parts into stages.\n"
     "The table (CSV) goes to -o FILE and the report to standard output; without -o the table "
     "goes to standard output and the report to standard error. With --json the report is a JSON "
     "document, and the table is written to -o FILE only.\n"
     "Costs given by options or by a file with one entry are those of a rank's share of the "
     "model: with v stages per rank each stage takes 1/v of them. A file with one entry per stage "
     "determines v. -o plan.csv also writes plan.costs.json, the costs of each stage, for sim and "
     "show.\n"
     "Exit status 1: no schedule fits into the memory. SIGINT and SIGTERM end the search with the "
     "best plan so far (status 130, 143); a second one ends the command at once.\n"
     "With --pareto: the best plan for each memory limit, from the least that is possible to "
     "where more does not help.\n"
     "With --global-batch: how to use all ranks. Chooses the ranks of a pipeline and its "
     "replicas, v, the placement, the microbatches and the partition, and lists the best "
     "candidates. Costs need parts, unless --graph has the stages.\n"
     "With --graph: an order for stages that form that graph. Up to nine placements are tried, or "
     "the one of --placement or --stage-ranks.",
     "weft plan -p 4 -m 8 --memory 4 -o plan.csv"},
    {"show",
     "[FILE] [FILE]",
     2,
     "file",
     {{"Costs", {TIMES, OPTION(GRAPH), OPTION(SLOW)}},
      {"Simulation", {OPTION(CHANNEL), OPTION(JITTER), OPTION(SEED)}},
      {"Picture",
       {OPTION(GRID), OPTION(WIDTH), OPTION(ALL_RANKS), OPTION(TITLE), OPTION(NO_TITLE),
        OPTION(COLOUR_BY), OPTION(DARK)}},
      {"Output", {&show_output, OPTION(HELP)}}},
     "draw the timeline of a table or program",
     "Simulates it and draws a line per rank with its memory below, on the terminal. With -o the "
     "file name determines the format: x.svg a picture, x.html an interactive page, x.json a "
     "Chrome trace. A page can show two FILEs on one time axis. A compute-only table gets SEND "
     "and RECV first.\n"
     "With --grid: rows are steps, columns are ranks, blank cells are bubbles.",
     "weft gen ZBVZeroBubble -p 4 -m 8 | weft show -o zbv.svg"},
    {"run",
     "[FILE]",
     1,
     "file",
     {{"Costs", {TIMES, OPTION(GRAPH), OPTION(SLOW)}},
      {"Devices",
       {OPTION(TRANSPORT), OPTION(DEVICE), OPTION(GPUS), OPTION(PARTITIONS), OPTION(EAGER)}},
      {"Steps",
       {OPTION(STAGE), &run_steps, OPTION(COMM), OPTION(UNCHECKED), OPTION(STALL_LIMIT),
        OPTION(DUMP)}},
      {"Output", {&run_output, OPTION(JSON), OPTION(HELP)}}},
     "execute a table or program and compare it with its prediction",
     "Verifies it, then every rank executes its row, with stages that take the given time. A "
     "compute-only table is lowered first. Reports the measured and the simulated time of a step. "
     "Times are in the unit of the costs file (s, ms, us or ns; otherwise ms). On threads and mpi "
     "transfers take their real time, and --hop is for the prediction only; on loopback all times "
     "are virtual, and equal to those of 'weft sim' where every SEND follows what it sends.\n"
     "On mpi each rank is a process: 'mpirun -n 4 weft run FILE' for a program of four ranks. All "
     "ranks read FILE, rank 0 reads - for all, and rank 0 reports.\n"
     "-o x.html draws the measured and the predicted timeline on one page, x.svg or x.json "
     "(Chrome trace) the measured one; the report then goes to standard output. With --json, -o "
     "x.json is the report.\n"
     "When a rank waits longer than --stall-limit, all ranks end with one error that names the "
     "culprit (exit status 75), and the state of all ranks is written to --dump, for 'weft "
     "explain-hang'. SIGINT and SIGTERM end the step on all ranks; a second one ends the command "
     "at once.",
     "weft gen 1F1B -p 4 -m 8 | weft run --f 1 --b 2 --steps 2"},
    {"train",
     "[FILE...]",
     WEFT_CLI_OPERANDS_LIST,
     "file",
     {{"Data", {OPTION(DATA), OPTION(SYNTHETIC)}},
      {"Model",
       {OPTION(MODEL), OPTION(LAYERS), OPTION(DIM), OPTION(HEADS), OPTION(CONTEXT),
        OPTION(VOCABULARY), OPTION(TIED), OPTION(SKIPS), OPTION(PREDICT_TOKENS)}},
      {"Optimizer",
       {&train_steps, OPTION(BATCH), OPTION(LR), OPTION(LR_MIN), OPTION(WARMUP),
        OPTION(WEIGHT_DECAY), OPTION(CLIP), OPTION(ON_DIVERGENCE), OPTION(EVAL_EVERY),
        &train_seed}},
      {"Pipeline",
       {OPTION(RANKS), OPTION(STAGES_PER_RANK), OPTION(MICROBATCHES), OPTION(SCHEDULE),
        &train_memory, OPTION(SPLIT), &train_keep_partition, OPTION(DP), OPTION(SHARD)}},
      {"Devices",
       {OPTION(TRANSPORT), OPTION(DEVICE), OPTION(GPUS), OPTION(EAGER), OPTION(SUM_ORDER)}},
      {"Hangs", {&train_stall_limit, OPTION(DUMP)}},
      {"Checkpoints",
       {OPTION(CHECKPOINT), OPTION(CHECKPOINT_EVERY), OPTION(CHECKPOINT_KEEP), OPTION(RESUME)}},
      {"Output", {OPTION(PROFILE), OPTION(LOG), &timeline, &json_lines, OPTION(HELP)}}},
     "train the reference GPT on a pipeline",
     "Trains a GPT on the bytes of text, or on files of tokens. Its blocks are divided into "
     "stages on -p ranks (default 2), each in its own thread. A step has -m microbatches (default "
     "8). Weights after a step are the same bit for bit for every number of ranks, schedule, "
     "split, transport and --shard that adds gradients in the same order; parameters_hash is "
     "their hash. Loss is in nats per token. The bubble is the measured idle share of all ranks, "
     "reported with the one that is simulated from measured times.\n"
     "With --dp there are several such pipelines, each with its part of the batch and -m "
     "microbatches; gradients are added in the order of replicas.\n"
     "With --skips and --predict-tokens 2 the stages form a graph: a stage sends to every stage "
     "that reads an output of its blocks. The second head's loss is added with weight 0.3; the "
     "losses that are reported are those of the next token.\n"
     "On mpi each rank is a process: 'mpirun -n 4 weft train --dp 2' has two replicas of two "
     "ranks. Without -p the processes are divided among the replicas. Rank 0 reports, and writes "
     "--log, --profile and -o; all ranks need --data and --checkpoint.\n"
     "--schedule auto starts with a safe schedule, measures the actions, and plans a schedule "
     "within --memory; it keeps it if it is faster, and plans again when the time of steps "
     "changes. Trainings of 20 steps or more, except on mpi, first measure four steps of a trial "
     "and plan the split too, --split or not, unless --keep-partition forbids it.\n"
     "--resume continues from a checkpoint as if the training had not stopped, on any ranks and "
     "schedule. Model, data, batch, microbatches (unless --dp is given) and seed are those of the "
     "checkpoint; --steps may be raised.\n"
     "After SIGINT or SIGTERM the command finishes the step, writes a checkpoint if there is "
     "--checkpoint, and ends; a second signal ends it at once. When a rank waits longer than "
     "--stall-limit, all end (exit status 75), and the state of all ranks is written to --dump.",
     "weft train notes.txt --layers 2 --dim 32 --steps 50 --checkpoint model"},
    {"sample",
     "",
     0,
     "",
     {{"Options",
       {&trained, OPTION(PROMPT), OPTION(TOKENS), OPTION(TEMPERATURE), OPTION(TOP_K), &sample_seed,
        OUTPUT_JSON_HELP}}},
     "write text with a trained model",
     "Reads the newest checkpoint that 'weft train' has written into a folder, or that of one "
     "step, and continues the prompt. Bytes that are not text are escaped on a terminal, and "
     "written unchanged elsewhere. A model with a --vocabulary of tokens takes and gives their "
     "numbers: --prompt '464 3290'.",
     "weft sample --checkpoint model --prompt 'static int '"},
    {"explain",
     "[FILE]",
     1,
     "file",
     {{"Options", {OPTION(RANK), OPTION(GRAPH), OUTPUT_JSON_HELP}}},
     "list a program with what each instruction does and waits for",
     "Lists every instruction of every rank: its number in the row, step, action, the channel it "
     "uses, its buffer, and the matching instruction on the peer or what it waits for. Buffers: "
     "r0, r1 ... are for receiving, a0, a1 ... hold activations.",
     "weft explain program.csv --rank 1"},
    {"explain-hang",
     "[DUMP|FOLDER]",
     1,
     "file",
     {{"Options", {OPTION(PROGRAM), OUTPUT_JSON_HELP}}},
     "explain which rank is stuck in a run that hangs",
     "Reads the dump that a stalled run has written, and explains what every rank does and waits "
     "for, and which is the culprit: the rank that all others wait for, or the cycle of ranks "
     "that wait for each other. Without DUMP it reads standard input if that is a file or a pipe, "
     "else weft-hang.json in this folder.\n"
     "For a PyTorch job, give the FOLDER with the dumps of its flight recorder, one file per rank "
     "with a number at the end of its name (nccl_trace_rank_0, rank1.pkl), and --program with the "
     "schedule that each of its pipelines runs. PyTorch writes them when "
     "TORCH_NCCL_TRACE_BUFFER_SIZE is set and a "
     "transfer times out, into the files that TORCH_NCCL_DEBUG_INFO_TEMP_FILE names.",
     "weft explain-hang hang.json"},
    {"diff",
     "A B",
     2,
     "file",
     {{"Options", {OPTION(MAX_DIFFERENCES), OPTION(GRAPH), OUTPUT_JSON_HELP}}},
     "show where two tables or programs differ",
     "Compares the files A and B rank by rank, and the edges between their stages. Exit status 0 "
     "means equal, 1 different.",
     "weft diff a.csv b.csv"},
    {"bench",
     "[NAME]",
     1,
     "plan|plan-search|sim|run|train|mpi|gpu|gpu-blocks",
     {{"Options",
       {OPTION(RANKS), OPTION(MICROBATCHES), OPTION(LIST), OPTION(PROGRESS), OPTION(LARGE),
        OPTION(ACTIONS), OPTION(REPEATS), OPTION(DEVICE), OPTION(MODEL), OPTION(LAYERS),
        OPTION(DIM), OPTION(HEADS), OPTION(CONTEXT), OPTION(VOCABULARY), OPTION(BATCH),
        OUTPUT_JSON_HELP}}},
     "run the benchmarks",
     "Every benchmark checks its answer before it measures. Without NAME: plan, sim and run; "
     "'weft bench --list' lists all.\n"
     "plan: time and memory of gen, lower and verify per action, and the start-up time of weft.\n"
     "plan-search: the time that the planner needs to match published schedules, and the time of "
     "one move of its search.\n"
     "sim: time and memory of the simulation and of the makespan alone, and the time of an SVG. "
     "--large adds 1,024 ranks with two stages each and 4,096 microbatches.\n"
     "run: CPU time of the executor per action, the hand-over of a message between threads, and "
     "measured against simulated time with stages that sleep. In virtual time every schedule must "
     "take exactly the simulated time. Takes half a minute.\n"
     "train: steps of a fixed model, or of one of other --layers and --dim, on one rank and on "
     "two, "
     "which must compute the same parameters, compared with the same matrix products by sgemm and "
     "with the simulation. Takes a minute.\n"
     "train --device cuda: tokens per second on the first GPU of --model (default gpt2-124m) or "
     "of --layers, --dim, --heads, --context and --vocabulary, with --batch sequences per step "
     "(default 32): in one microbatch, in many, on four ranks that share the GPU, and on four "
     "partitions with 1F1B and ZBVZeroBubble. A small model must have the host's losses but for "
     "0.2 %. Takes minutes.\n"
     "mpi: with every installed MPI, messages of 8 bytes to 16 MiB between two processes, by Weft "
     "and by bare MPI. 'mpirun -n 2 weft bench mpi' measures those of that job.\n"
     "gpu: on the first GPU, host time per action and per step against bare calls of the driver, "
     "and steps of timed stages and of matrix products against their simulation. Losses and "
     "gradients of linear stages must have the host's bits. Takes a minute.\n"
     "gpu-blocks: steps of eight MLP blocks of width --dim (default 2,048) on -p ranks that share "
     "the first GPU, on every schedule that PyTorch has, for bench/pytorch.py gpu.\n"
     "Default shape: -p 64 -m 256, two stages per rank; for run -p 8 -m 32, and -m 256.",
     "weft bench plan --large"},
    {"doctor",
     "",
     0,
     "",
     {{"Options", {OPTION(QUICK), OUTPUT_JSON_HELP}}},
     "check this build and machine, and show what they have",
     "Shows version, compiler, limits, processors and memory, and generates, lowers and verifies "
     "every schedule once. It starts two processes with every installed MPI, for at most ten "
     "seconds, and shows the speed of messages between them.\n"
     "Under mpirun rank 0 reports the hosts of all ranks and the speed of messages between the "
     "first two.",
     "weft doctor"},
    {"playground",
     "",
     0,
     "",
     {{"Options", {OPTION(PATH), &page_output, OPTION(JSON), OPTION(HELP)}}},
     "open Weft in the browser: lessons, exploring, checking",
     "Opens a page in which the whole planning half of Weft runs as WebAssembly: lessons about "
     "pipeline schedules, all schedules and their timelines while one types, and a check of "
     "pasted CSV files that steps through a deadlock. It is one file, needs no network and no "
     "server, and sends nothing anywhere.\n"
     "Where no browser can be started it prints the path of the page, with exit status 69.",
     "weft playground --path"},
    {"help",
     "[COMMAND]",
     1,
     "command",
     {{"Options", {OPTION(MAN), OPTION(COMPLETION), OPTION(OUTPUT), OPTION(HELP)}}},
     "show help, or write the manual page or a shell's completions",
     "Without COMMAND: the list of commands.",
     "weft help --completion bash > /etc/bash_completion.d/weft"},
};

static const struct weft_cli_exit_text exit_texts[] = {
    {WEFT_CLI_OK, "success"},
    {WEFT_CLI_FOUND_BAD, "found bad: invalid, can hang, different, over the limit, diverged"},
    {WEFT_CLI_USAGE, "wrong usage, or more than a limit"},
    {WEFT_CLI_MALFORMED, "malformed input"},
    {WEFT_CLI_NO_INPUT, "an input file is missing or cannot be opened"},
    {WEFT_CLI_UNAVAILABLE, "not available in this build or on this machine"},
    {WEFT_CLI_INTERNAL, "out of memory or threads, or an internal error"},
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
  assert(name != NULL);
  for (size_t i = 0; i < WEFT_ARRAY_LENGTH(commands); i++) {
    if (strcmp(commands[i].name, name) == 0) {
      return &commands[i];
    }
  }
  return NULL;
}

const struct weft_cli_option *weft_cli_command_option_at(const struct weft_cli_command *command,
                                                         unsigned index, const char **heading) {
  assert(command != NULL);
  for (const struct weft_cli_group *group = command->groups; group->heading != NULL; group++) {
    unsigned count = 0;
    while (group->options[count] != NULL) {
      count++;
    }
    if (index < count) {
      if (heading != NULL) {
        *heading = index == 0 ? group->heading : NULL;
      }
      return group->options[index];
    }
    index -= count;
  }
  return NULL;
}

const struct weft_cli_option *weft_cli_command_option(const struct weft_cli_command *command,
                                                      enum weft_cli_option_id id) {
  const struct weft_cli_option *option;
  for (unsigned k = 0; (option = weft_cli_command_option_at(command, k, NULL)) != NULL; k++) {
    if (option->id == id) {
      return option;
    }
  }
  return NULL;
}

const struct weft_cli_exit_text *weft_cli_exit_texts(void) { return exit_texts; }
