/* The options. */
#include "cli/args/option_table.h"

#include <assert.h>
#include <string.h>

#include <weft/comm.h>
#include <weft/ir.h>

/* "loopback|threads|..." */
#define OR_TRANSPORT(name) "|" #name
#define TRANSPORTS (&(WEFT_TRANSPORTS(OR_TRANSPORT))[1])

/* As in gpt/model/model.h, which this module does not see. */
#define LAYERS_MAX 4096
#define DIM_MAX 65536
#define CONTEXT_MAX 1048576
#define BATCH_MAX UINT64_C(1048576)

#define ROW(ID, ...) [WEFT_CLI_OPTION_##ID] = {WEFT_CLI_OPTION_##ID, __VA_ARGS__}
#define FLAG(ID, NAME, SUMMARY) \
  ROW(ID, '\0', NAME, WEFT_CLI_KIND_FLAG, NULL, NULL, 0, 0, 0, SUMMARY)

/* Numbers that the library limits are passed on as far as its types go, because
 * its message can name the number of actions too. */
const struct weft_cli_option weft_cli_options[WEFT_CLI_OPTION_COUNT] = {
    ROW(RANKS, 'p', "ranks", WEFT_CLI_KIND_NUMBER, "P", NULL, 1, UINT32_MAX, WEFT_RANKS_MAX,
        "ranks of the pipeline"),
    ROW(STAGES_PER_RANK, 'v', "stages-per-rank", WEFT_CLI_KIND_NUMBER, "V", NULL, 1, UINT32_MAX,
        WEFT_STAGES_MAX, "stages of each rank; the default depends on the schedule"),
    ROW(MICROBATCHES, 'm', "microbatches", WEFT_CLI_KIND_NUMBER, "M", NULL, 1, UINT32_MAX,
        WEFT_MICROBATCHES_MAX, "microbatches of a step"),
    ROW(PLACEMENT, '\0', "placement", WEFT_CLI_KIND_CHOICE, "KIND", "loop|v", 0, 0, 0,
        "which rank owns which stage (ForwardOnly only)"),
    FLAG(LIST, "list", "list the available names"),
    FLAG(MERGE_BW, "merge-bw", "join an I that is directly followed by its W into a B"),
    ROW(WINDOW, '\0', "window", WEFT_CLI_KIND_NUMBER, "K", NULL, 1, UINT32_MAX, UINT32_MAX,
        "stages of a rank unsharded at once; default 3"),
    FLAG(NO_UNSHARD, "no-unshard", "place no UNSHARD and RESHARD"),
    FLAG(NO_REDUCE_GRAD, "no-reduce-grad", "place no REDUCE_GRAD"),
    FLAG(TIE_GRAD, "tie-grad", "place TIE_GRAD: the first and the last stage share weights"),
    FLAG(NO_COMM, "no-comm", "place no SEND and RECV"),
    FLAG(SLOTS, "slots", "assign buffers and report how many each rank needs"),
    ROW(COMM, '\0', "comm", WEFT_CLI_KIND_MODEL, "MODEL", "rendezvous|eager|slots:K", 0, 0, 0,
        "when a send is done: rendezvous (default), eager or slots:K"),
    ROW(CHANNEL, '\0', "channel", WEFT_CLI_KIND_CHOICE, "KIND", "edge|pair|rank", 0, 0, 0,
        "what shares one queue: edge (default), pair or rank"),
    ROW(STAGES, '\0', "stages", WEFT_CLI_KIND_NUMBER, "N", NULL, 1, WEFT_STAGES_MAX,
        WEFT_STAGES_MAX, "stages of the pipeline; default: as the table shows"),
    ROW(MAX_FINDINGS, '\0', "max-findings", WEFT_CLI_KIND_NUMBER, "N", NULL, 1, UINT32_MAX,
        UINT32_MAX, "findings to report in full; default 100"),
    FLAG(STEPS, "steps", "write the untimed dry run as CSV"),
    ROW(F, '\0', "f", WEFT_CLI_KIND_REAL, "T", NULL, 0, WEFT_CLI_COST_MAX, WEFT_CLI_COST_MAX,
        "time of a forward; default 1"),
    ROW(B, '\0', "b", WEFT_CLI_KIND_REAL, "T", NULL, 0, WEFT_CLI_COST_MAX, WEFT_CLI_COST_MAX,
        "time of a full backward; default that of I and W together"),
    ROW(I, '\0', "i", WEFT_CLI_KIND_REAL, "T", NULL, 0, WEFT_CLI_COST_MAX, WEFT_CLI_COST_MAX,
        "time of an input gradient; default 1"),
    ROW(W, '\0', "w", WEFT_CLI_KIND_REAL, "T", NULL, 0, WEFT_CLI_COST_MAX, WEFT_CLI_COST_MAX,
        "time of a weight gradient; default 1"),
    ROW(HOP, '\0', "hop", WEFT_CLI_KIND_REAL, "T", NULL, 0, WEFT_CLI_COST_MAX, WEFT_CLI_COST_MAX,
        "time of one transfer between ranks; default 0"),
    ROW(COSTS, '\0', "costs", WEFT_CLI_KIND_FILE, "FILE", NULL, 0, 0, 0,
        "read times and sizes of every stage from a JSON file"),
    ROW(SLOW, '\0', "slow", WEFT_CLI_KIND_LIST, "RANK=FACTOR", NULL, 0, 0, 0,
        "this rank computes FACTOR times as long; may be repeated"),
    ROW(JITTER, '\0', "jitter", WEFT_CLI_KIND_REAL, "SHARE", NULL, 0, 1, 1,
        "times vary by this share (standard deviation)"),
    ROW(RUNS, '\0', "runs", WEFT_CLI_KIND_NUMBER, "N", NULL, 1, 1000000, 1000000,
        "simulate N times with --jitter, and show percentiles; default 100"),
    ROW(SEED, '\0', "seed", WEFT_CLI_KIND_NUMBER, "N", NULL, 0, UINT64_MAX, UINT64_MAX,
        "of --jitter; the same seed gives the same times"),
    ROW(MEMORY, '\0', "memory", WEFT_CLI_KIND_REAL, "LIMIT", NULL, 0, WEFT_CLI_COST_MAX,
        WEFT_CLI_COST_MAX, "memory limit of a rank, in the unit of the activations"),
    FLAG(CRITICAL_PATH, "critical-path", "list the chain of actions that determines the makespan"),
    FLAG(NO_SPLIT, "no-split", "do not split backwards: B instead of I and W"),
    FLAG(KEEP_PARTITION, "keep-partition",
         "use the stages of the costs file, and ignore its parts"),
    ROW(OBJECTIVE, '\0', "objective", WEFT_CLI_KIND_CHOICE, "WHAT", "makespan|span", 0, 0, 0,
        "what to minimise: the time from the first start to the last "
        "end (makespan, default), or the largest of a rank (span)"),
    ROW(EFFORT, '\0', "effort", WEFT_CLI_KIND_REAL, "X", NULL, 0, 1000000, 1000000,
        "how much to search, in seconds of a typical core; default 0.5, or "
        "0.8 of the time limit"),
    ROW(TIME_LIMIT, '\0', "time-limit", WEFT_CLI_KIND_REAL, "S", NULL, 0, 31536000, 31536000,
        "stop the search after this many seconds with the best plan so "
        "far; default 0: no limit"),
    ROW(THREADS, '\0', "threads", WEFT_CLI_KIND_NUMBER, "N", NULL, 0, 1024, 1024,
        "threads of the search; default 0: one for each core"),
    FLAG(PARETO, "pareto", "plan for every memory limit that makes a difference"),
    ROW(GLOBAL_BATCH, '\0', "global-batch", WEFT_CLI_KIND_NUMBER, "B", NULL, 1, UINT32_MAX,
        UINT32_MAX,
        "samples of a step: choose how many of the --ranks form a pipeline and how many replicas "
        "share the batch"),
    ROW(FOR, '\0', "for", WEFT_CLI_KIND_CHOICE, "TARGET", "torchtitan|pytorch", 0, 0, 0,
        "also print what this program needs to run the table"),
    ROW(TRANSPORT, '\0', "transport", WEFT_CLI_KIND_CHOICE, "NAME", TRANSPORTS, 0, 0, 0,
        "what carries messages: threads (one per rank), loopback (one "
        "thread, virtual time) or mpi (a process per rank); default "
        "threads, and mpi where mpirun has started several processes"),
    ROW(PROGRESS, '\0', "progress", WEFT_CLI_KIND_CHOICE, "HOW", "calls|thread", 0, 0, 0,
        "progress of messages on mpi while a rank computes: in its own calls (calls, default) or "
        "by a thread"),
    ROW(STAGE, '\0', "stage", WEFT_CLI_KIND_CHOICE, "KIND", "sleep|spin|null", 0, 0, 0,
        "what stages do: sleep (default), spin, or nothing (null)"),
    ROW(STALL_LIMIT, '\0', "stall-limit", WEFT_CLI_KIND_REAL, "S", NULL, 0, 31536000, 31536000,
        "seconds that a rank waits before it reports a hang; 0: no limit; default 30, or twice the "
        "simulated time if longer"),
    ROW(DUMP, '\0', "dump", WEFT_CLI_KIND_FILE, "FILE", NULL, 0, 0, 0,
        "where to write the state of all ranks when the run hangs; default weft-hang.json"),
    FLAG(UNCHECKED, "unchecked", "do not verify the program first"),
    ROW(DATA, '\0', "data", WEFT_CLI_KIND_LIST, "FILE", NULL, 0, 0, 0,
        "a text file or a folder of text files; may be repeated; default in Weft's source folder: "
        "its own sources"),
    ROW(LAYERS, '\0', "layers", WEFT_CLI_KIND_NUMBER, "L", NULL, 1, LAYERS_MAX, LAYERS_MAX,
        "blocks of the model; default 6"),
    ROW(DIM, '\0', "dim", WEFT_CLI_KIND_NUMBER, "D", NULL, 1, DIM_MAX, DIM_MAX,
        "width of the model, a multiple of the heads; default 128"),
    ROW(HEADS, '\0', "heads", WEFT_CLI_KIND_NUMBER, "H", NULL, 1, DIM_MAX, DIM_MAX,
        "attention heads; default 4"),
    ROW(CONTEXT, '\0', "context", WEFT_CLI_KIND_NUMBER, "T", NULL, 1, CONTEXT_MAX, CONTEXT_MAX,
        "context length in bytes; default 128"),
    FLAG(TIED, "tied", "use the embedding's weights for the head"),
    ROW(BATCH, '\0', "batch", WEFT_CLI_KIND_NUMBER, "B", NULL, 1, BATCH_MAX, BATCH_MAX,
        "sequences per step, a multiple of the microbatches; default 16"),
    ROW(LR, '\0', "lr", WEFT_CLI_KIND_RATE, "X", NULL, 0, 1000, 1000,
        "learning rate after the warm-up; default 0.002"),
    ROW(LR_MIN, '\0', "lr-min", WEFT_CLI_KIND_RATE, "X", NULL, 0, 1000, 1000,
        "learning rate at the end of the cosine decay; default a tenth of --lr"),
    ROW(WARMUP, '\0', "warmup", WEFT_CLI_KIND_NUMBER, "N", NULL, 0, WEFT_CLI_STEPS_MAX,
        WEFT_CLI_STEPS_MAX, "steps of linear warm-up; default a tenth of the steps, at most 100"),
    ROW(WEIGHT_DECAY, '\0', "weight-decay", WEFT_CLI_KIND_RATE, "X", NULL, 0, 1000, 1000,
        "weight decay of AdamW, for matrices; default 0.1"),
    ROW(CLIP, '\0', "clip", WEFT_CLI_KIND_RATE, "X", NULL, 0, WEFT_CLI_COST_MAX, WEFT_CLI_COST_MAX,
        "limit for the norm of the gradient; 0: none; default 1"),
    ROW(ON_DIVERGENCE, '\0', "on-divergence", WEFT_CLI_KIND_CHOICE, "WHAT", "stop|skip|continue", 0,
        0, 0,
        "when a loss or a gradient norm is not finite: stop (default, status 1), skip the step's "
        "update, or continue"),
    ROW(SCHEDULE, '\0', "schedule", WEFT_CLI_KIND_TEXT, "NAME", NULL, 0, 0, 0,
        "a schedule that 'weft gen' lists, a file with a table or "
        "program, or auto: planned from measured times; default 1F1B"),
    ROW(SPLIT, '\0', "split", WEFT_CLI_KIND_TEXT, "HOW", NULL, 0, 0, 0,
        "blocks of each stage: even, by estimated work (default); numbers, "
        "like 2,4; or FILE, by times that --profile FILE measured"),
    ROW(THREADS_PER_RANK, '\0', "threads-per-rank", WEFT_CLI_KIND_NUMBER, "N", NULL, 1, 1024, 1024,
        "threads of a matrix product; default 1"),
    ROW(PP, '\0', "pp", WEFT_CLI_KIND_NUMBER, "P", NULL, 1, UINT32_MAX, WEFT_RANKS_MAX,
        "the same as --ranks"),
    ROW(DP, '\0', "dp", WEFT_CLI_KIND_NUMBER, "D", NULL, 1, WEFT_RANKS_MAX, WEFT_RANKS_MAX,
        "replicas of the pipeline, which divide the batch; default 1, or on mpi as many as the "
        "processes allow"),
    ROW(SHARD, '\0', "shard", WEFT_CLI_KIND_CHOICE, "WHAT", "none|grads|full", 0, 0, 0,
        "what replicas shard: none (default), grads (gradients and moments), or full (weights "
        "too)"),
    ROW(CHECKPOINT, '\0', "checkpoint", WEFT_CLI_KIND_FILE, "DIR", NULL, 0, 0, 0,
        "write checkpoints into this folder: at the end, after a signal, and every "
        "--checkpoint-every steps"),
    ROW(CHECKPOINT_EVERY, '\0', "checkpoint-every", WEFT_CLI_KIND_NUMBER, "N", NULL, 1,
        WEFT_CLI_STEPS_MAX, WEFT_CLI_STEPS_MAX,
        "steps between checkpoints; default: only at the end"),
    ROW(CHECKPOINT_KEEP, '\0', "checkpoint-keep", WEFT_CLI_KIND_NUMBER, "K", NULL, 0, UINT32_MAX,
        UINT32_MAX, "number of newest checkpoints to keep; 0: all; default 2"),
    ROW(RESUME, '\0', "resume", WEFT_CLI_KIND_FILE, "DIR", NULL, 0, 0, 0,
        "resume from the newest checkpoint in this folder"),
    ROW(EVAL_EVERY, '\0', "eval-every", WEFT_CLI_KIND_NUMBER, "N", NULL, 0, WEFT_CLI_STEPS_MAX,
        WEFT_CLI_STEPS_MAX, "steps between validations; 0: none; default a twentieth of the steps"),
    ROW(PROFILE, '\0', "profile", WEFT_CLI_KIND_FILE, "FILE", NULL, 0, 0, 0,
        "write the measured times of every stage and layer: a costs file for sim, compare, show "
        "and --split"),
    ROW(LOG, '\0', "log", WEFT_CLI_KIND_FILE, "FILE", NULL, 0, 0, 0,
        "write the lines of JSON to FILE; a resumed training appends"),
    ROW(CURVE, '\0', "curve", WEFT_CLI_KIND_FILE, "FILE", NULL, 0, 0, 0,
        "draw the loss curve (SVG)"),
    FLAG(NO_SAMPLE, "no-sample", "print no sample of the model at the end"),
    ROW(PROMPT, '\0', "prompt", WEFT_CLI_KIND_TEXT, "TEXT", NULL, 0, 0, 0,
        "beginning of the text; default a line break"),
    ROW(TOKENS, '\0', "tokens", WEFT_CLI_KIND_NUMBER, "N", NULL, 0, 1000000, 1000000,
        "bytes to write after the prompt; default 300"),
    ROW(TEMPERATURE, '\0', "temperature", WEFT_CLI_KIND_REAL, "X", NULL, 0, 100, 100,
        "sampling temperature; 0: always the most likely byte; default 0.8"),
    ROW(TOP_K, '\0', "top-k", WEFT_CLI_KIND_NUMBER, "K", NULL, 0, 256, 256,
        "sample from the K most likely bytes; 0: all; default 0"),
    FLAG(GRID, "grid", "draw the grid of steps and ranks as text"),
    ROW(WIDTH, '\0', "width", WEFT_CLI_KIND_NUMBER, "N", NULL, 20, 100000, 100000,
        "columns of text, or pixels of an SVG picture; default the terminal's width (else 80), or "
        "1200"),
    ROW(COLOUR_BY, '\0', "colour-by", WEFT_CLI_KIND_CHOICE, "WHAT", "op|stage", 0, 0, 0,
        "what colours show: op (default) or stage"),
    FLAG(DARK, "dark", "draw on a dark background"),
    ROW(RANK, '\0', "rank", WEFT_CLI_KIND_NUMBER, "R", NULL, 0, WEFT_RANKS_MAX - 1,
        WEFT_RANKS_MAX - 1, "only this rank"),
    ROW(MAX_DIFFERENCES, '\0', "max-differences", WEFT_CLI_KIND_NUMBER, "N", NULL, 1, UINT32_MAX,
        UINT32_MAX, "differences to report in full; default 1000"),
    FLAG(LARGE, "large", "also measure large programs, and how the time per action grows"),
    ROW(ACTIONS, '\0', "actions", WEFT_CLI_KIND_NUMBER, "N", NULL, 1, WEFT_ACTIONS_MAX,
        WEFT_ACTIONS_MAX, "approximate number of actions of a large program; default 50000000"),
    ROW(REPEATS, '\0', "repeats", WEFT_CLI_KIND_NUMBER, "N", NULL, 1, 99, 99,
        "repetitions of each measurement; the median is reported"),
    FLAG(QUICK, "quick", "name the installed MPIs without testing them"),
    FLAG(MAN, "man", "write the manual page (roff)"),
    ROW(COMPLETION, '\0', "completion", WEFT_CLI_KIND_CHOICE, "SHELL", "bash|zsh|fish", 0, 0, 0,
        "write the completion script of a shell"),
    ROW(OUTPUT, 'o', "output", WEFT_CLI_KIND_FILE, "FILE", NULL, 0, 0, 0,
        "write to FILE, completely or not at all; - is standard output"),
    FLAG(JSON, "json", "write one JSON document"),
    ROW(HELP, 'h', "help", WEFT_CLI_KIND_FLAG, NULL, NULL, 0, 0, 0, "show this help"),
};

const struct weft_cli_option *weft_cli_option_at(enum weft_cli_option_id id) {
  assert(id < WEFT_CLI_OPTION_COUNT);
  return &weft_cli_options[id];
}

size_t weft_cli_choice_next(const char **at, const char **item) {
  if (**at == '|') {
    (*at)++;
  }
  *item = *at;
  const size_t size = strcspn(*at, "|");
  *at += size;
  return size;
}
