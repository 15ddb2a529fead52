/* The tables themselves. Order is the order of help and of the man page. */
#include "cli/args/option_table.h"

#include <string.h>

#include <weft/ir.h>

#include "cli/cmd/commands.h"

/* WEFT_COST_MAX as a whole number. */
#define COST_MAX UINT64_C(1000000000000)

/* As in gpt/model.h, which is not there in every build. */
#define LAYERS_MAX 4096
#define DIM_MAX 65536
#define CONTEXT_MAX 1048576
#define BATCH_MAX UINT64_C(1048576)
#define STEPS_MAX UINT64_C(1000000000)

/* Numbers that the library limits are passed on as far as its types go, because
 * its message can name the number of actions too. */
static const struct weft_cli_option options[WEFT_CLI_OPTION_COUNT] = {
    [WEFT_CLI_OPTION_RANKS] = {'p', "ranks", WEFT_CLI_KIND_NUMBER, "P", NULL, 1, UINT32_MAX,
                               WEFT_RANKS_MAX, "ranks of the pipeline"},
    [WEFT_CLI_OPTION_STAGES_PER_RANK] = {'v', "stages-per-rank", WEFT_CLI_KIND_NUMBER, "V", NULL, 1,
                                         UINT32_MAX, WEFT_STAGES_MAX,
                                         "stages of each rank; without it what is usual, or best"},
    [WEFT_CLI_OPTION_MICROBATCHES] = {'m', "microbatches", WEFT_CLI_KIND_NUMBER, "M", NULL, 1,
                                      UINT32_MAX, WEFT_MICROBATCHES_MAX, "microbatches of a step"},
    [WEFT_CLI_OPTION_PLACEMENT] = {'\0', "placement", WEFT_CLI_KIND_CHOICE, "KIND", "loop|v", 0, 0,
                                   0, "which rank owns which stage (ForwardOnly only)"},
    [WEFT_CLI_OPTION_LIST] = {'\0', "list", WEFT_CLI_KIND_FLAG, NULL, NULL, 0, 0, 0,
                              "list the names that can be given"},
    [WEFT_CLI_OPTION_MERGE_BW] = {'\0', "merge-bw", WEFT_CLI_KIND_FLAG, NULL, NULL, 0, 0, 0,
                                  "join an I that is directly followed by its W into a B"},
    [WEFT_CLI_OPTION_WINDOW] = {'\0', "window", WEFT_CLI_KIND_NUMBER, "K", NULL, 1, UINT32_MAX,
                                UINT32_MAX, "stages of a rank unsharded at once; default 3"},
    [WEFT_CLI_OPTION_NO_UNSHARD] = {'\0', "no-unshard", WEFT_CLI_KIND_FLAG, NULL, NULL, 0, 0, 0,
                                    "place no UNSHARD and RESHARD"},
    [WEFT_CLI_OPTION_NO_REDUCE_GRAD] = {'\0', "no-reduce-grad", WEFT_CLI_KIND_FLAG, NULL, NULL, 0,
                                        0, 0, "place no REDUCE_GRAD"},
    [WEFT_CLI_OPTION_TIE_GRAD] = {'\0', "tie-grad", WEFT_CLI_KIND_FLAG, NULL, NULL, 0, 0, 0,
                                  "place TIE_GRAD: the first and the last stage share weights"},
    [WEFT_CLI_OPTION_NO_COMM] = {'\0', "no-comm", WEFT_CLI_KIND_FLAG, NULL, NULL, 0, 0, 0,
                                 "place no SEND and RECV"},
    [WEFT_CLI_OPTION_SLOTS] = {'\0', "slots", WEFT_CLI_KIND_FLAG, NULL, NULL, 0, 0, 0,
                               "assign buffers and say how many each rank needs"},
    [WEFT_CLI_OPTION_COMM] = {'\0', "comm", WEFT_CLI_KIND_MODEL, "MODEL",
                              "rendezvous|eager|slots:K", 0, 0, 0,
                              "when a send is done: rendezvous (default), eager or slots:K"},
    [WEFT_CLI_OPTION_CHANNEL] = {'\0', "channel", WEFT_CLI_KIND_CHOICE, "KIND", "edge|pair|rank", 0,
                                 0, 0, "what shares one queue: edge (default), pair or rank"},
    [WEFT_CLI_OPTION_STAGES] = {'\0', "stages", WEFT_CLI_KIND_NUMBER, "N", NULL, 1, WEFT_STAGES_MAX,
                                WEFT_STAGES_MAX,
                                "stages of the pipeline; without it as the table shows"},
    [WEFT_CLI_OPTION_MAX_FINDINGS] = {'\0', "max-findings", WEFT_CLI_KIND_NUMBER, "N", NULL, 1,
                                      UINT32_MAX, UINT32_MAX,
                                      "findings to report in full; default 100"},
    [WEFT_CLI_OPTION_STEPS] = {'\0', "steps", WEFT_CLI_KIND_FLAG, NULL, NULL, 0, 0, 0,
                               "write the untimed dry run as CSV"},
    [WEFT_CLI_OPTION_F] = {'\0', "f", WEFT_CLI_KIND_REAL, "T", NULL, 0, COST_MAX, COST_MAX,
                           "time of a forward; default 1"},
    [WEFT_CLI_OPTION_B] = {'\0', "b", WEFT_CLI_KIND_REAL, "T", NULL, 0, COST_MAX, COST_MAX,
                           "time of a full backward; default that of I and W together"},
    [WEFT_CLI_OPTION_I] = {'\0', "i", WEFT_CLI_KIND_REAL, "T", NULL, 0, COST_MAX, COST_MAX,
                           "time of an input gradient; default 1"},
    [WEFT_CLI_OPTION_W] = {'\0', "w", WEFT_CLI_KIND_REAL, "T", NULL, 0, COST_MAX, COST_MAX,
                           "time of a weight gradient; default 1"},
    [WEFT_CLI_OPTION_HOP] = {'\0', "hop", WEFT_CLI_KIND_REAL, "T", NULL, 0, COST_MAX, COST_MAX,
                             "time of one transfer between ranks; default 0"},
    [WEFT_CLI_OPTION_COSTS] = {'\0', "costs", WEFT_CLI_KIND_FILE, "FILE", NULL, 0, 0, 0,
                               "read times and sizes of every stage from a JSON file"},
    [WEFT_CLI_OPTION_SLOW] = {'\0', "slow", WEFT_CLI_KIND_LIST, "RANK=FACTOR", NULL, 0, 0, 0,
                              "this rank computes FACTOR times as long; may be repeated"},
    [WEFT_CLI_OPTION_JITTER] = {'\0', "jitter", WEFT_CLI_KIND_REAL, "SHARE", NULL, 0, 1, 1,
                                "times vary by this share (standard deviation)"},
    [WEFT_CLI_OPTION_RUNS] = {'\0', "runs", WEFT_CLI_KIND_NUMBER, "N", NULL, 1, 1000000, 1000000,
                              "simulate N times with --jitter, and show percentiles; default 100"},
    [WEFT_CLI_OPTION_SEED] = {'\0', "seed", WEFT_CLI_KIND_NUMBER, "N", NULL, 0, UINT64_MAX,
                              UINT64_MAX, "of --jitter; the same seed gives the same times"},
    [WEFT_CLI_OPTION_MEMORY] =
        {'\0', "memory", WEFT_CLI_KIND_REAL, "LIMIT", NULL, 0, COST_MAX, COST_MAX,
         "the most memory that a rank may need, in the unit of the activations"},
    [WEFT_CLI_OPTION_CRITICAL_PATH] = {'\0', "critical-path", WEFT_CLI_KIND_FLAG, NULL, NULL, 0, 0,
                                       0, "list the chain of actions that decides the makespan"},
    [WEFT_CLI_OPTION_PLAN_PLACEMENT] = {'\0', "placement", WEFT_CLI_KIND_CHOICE, "KIND",
                                        "any|loop|v", 0, 0, 0,
                                        "placement of stages on ranks: loop, v, or the better one "
                                        "(any, default)"},
    [WEFT_CLI_OPTION_NO_SPLIT] = {'\0', "no-split", WEFT_CLI_KIND_FLAG, NULL, NULL, 0, 0, 0,
                                  "do not split backwards: B instead of I and W"},
    [WEFT_CLI_OPTION_KEEP_PARTITION] = {'\0', "keep-partition", WEFT_CLI_KIND_FLAG, NULL, NULL, 0,
                                        0, 0,
                                        "use the stages of the costs file, and ignore its parts"},
    [WEFT_CLI_OPTION_OBJECTIVE] = {'\0', "objective", WEFT_CLI_KIND_CHOICE, "WHAT", "makespan|span",
                                   0, 0, 0,
                                   "what to minimise: the time from the first start to the last "
                                   "end (makespan, default), or the largest of a rank (span)"},
    [WEFT_CLI_OPTION_EFFORT] = {'\0', "effort", WEFT_CLI_KIND_REAL, "X", NULL, 0, 1000000, 1000000,
                                "how much to search, in seconds of a typical core; default 0.5, or "
                                "0.8 of the time limit"},
    [WEFT_CLI_OPTION_TIME_LIMIT] = {'\0', "time-limit", WEFT_CLI_KIND_REAL, "S", NULL, 0, 31536000,
                                    31536000,
                                    "stop the search after this many seconds with the best plan so "
                                    "far; default 0: no limit"},
    [WEFT_CLI_OPTION_PLAN_SEED] = {'\0', "seed", WEFT_CLI_KIND_NUMBER, "N", NULL, 0, UINT64_MAX,
                                   UINT64_MAX,
                                   "the same seed, effort and threads give the same plan; default "
                                   "0"},
    [WEFT_CLI_OPTION_THREADS] = {'\0', "threads", WEFT_CLI_KIND_NUMBER, "N", NULL, 0, 1024, 1024,
                                 "threads of the search; default 0: one for each core"},
    [WEFT_CLI_OPTION_PARETO] = {'\0', "pareto", WEFT_CLI_KIND_FLAG, NULL, NULL, 0, 0, 0,
                                "plan for every memory limit that makes a difference"},
    [WEFT_CLI_OPTION_FOR] = {'\0', "for", WEFT_CLI_KIND_CHOICE, "TARGET", "torchtitan|pytorch", 0,
                             0, 0, "also print what this program needs to run the table"},
    [WEFT_CLI_OPTION_PLAN_OUTPUT] = {'o', "output", WEFT_CLI_KIND_FILE, "FILE", NULL, 0, 0, 0,
                                     "write the table to FILE, whole or not at all; with --pareto "
                                     "a picture: x.svg or x.html"},
    [WEFT_CLI_OPTION_TRANSPORT] = {'\0', "transport", WEFT_CLI_KIND_CHOICE, "NAME",
                                   "loopback|threads|mpi", 0, 0, 0,
                                   "what carries messages: threads (one per rank), loopback (one "
                                   "thread, virtual time) or mpi (a process per rank); default "
                                   "threads, and mpi where mpirun has started several processes"},
    [WEFT_CLI_OPTION_PROGRESS] = {'\0', "progress", WEFT_CLI_KIND_CHOICE, "HOW", "calls|thread", 0,
                                  0, 0,
                                  "who sees to messages on mpi while a rank computes: the rank "
                                  "itself, in its calls (default), or a thread of its own"},
    [WEFT_CLI_OPTION_STAGE] = {'\0', "stage", WEFT_CLI_KIND_CHOICE, "KIND", "sleep|spin|null", 0, 0,
                               0, "what stages do: sleep (default), spin or null, nothing"},
    [WEFT_CLI_OPTION_RUN_STEPS] = {'\0', "steps", WEFT_CLI_KIND_NUMBER, "N", NULL, 1, 10000, 10000,
                                   "steps to run; default 3, of which the first is a warm-up"},
    [WEFT_CLI_OPTION_RUN_COMM] = {'\0', "comm", WEFT_CLI_KIND_CHOICE, "MODEL",
                                  "posted|eager|rendezvous", 0, 0, 0,
                                  "when a rank goes on after SEND and RECV: posted (default), at "
                                  "once; eager, a RECV has come; rendezvous, a SEND was taken too"},
    [WEFT_CLI_OPTION_STALL_LIMIT] = {'\0', "stall-limit", WEFT_CLI_KIND_REAL, "S", NULL, 0,
                                     31536000, 31536000,
                                     "seconds that a rank waits before it says who hangs; 0 is "
                                     "forever; default 30, or twice the simulated time if longer"},
    [WEFT_CLI_OPTION_DUMP] = {'\0', "dump", WEFT_CLI_KIND_FILE, "FILE", NULL, 0, 0, 0,
                              "where to write what all ranks were doing when it hangs; default "
                              "weft-hang.json"},
    [WEFT_CLI_OPTION_UNCHECKED] = {'\0', "unchecked", WEFT_CLI_KIND_FLAG, NULL, NULL, 0, 0, 0,
                                   "run it without verifying it first"},
    [WEFT_CLI_OPTION_DATA] = {'\0', "data", WEFT_CLI_KIND_LIST, "FILE", NULL, 0, 0, 0,
                              "a text file, or a folder of them, to train on; may be repeated; "
                              "default Weft's own sources, in their folder"},
    [WEFT_CLI_OPTION_LAYERS] = {'\0', "layers", WEFT_CLI_KIND_NUMBER, "L", NULL, 1, LAYERS_MAX,
                                LAYERS_MAX, "blocks of the model; default 6"},
    [WEFT_CLI_OPTION_DIM] = {'\0', "dim", WEFT_CLI_KIND_NUMBER, "D", NULL, 1, DIM_MAX, DIM_MAX,
                             "width of the model, a multiple of the heads; default 128"},
    [WEFT_CLI_OPTION_HEADS] = {'\0', "heads", WEFT_CLI_KIND_NUMBER, "H", NULL, 1, DIM_MAX, DIM_MAX,
                               "heads of attention; default 4"},
    [WEFT_CLI_OPTION_CONTEXT] = {'\0', "context", WEFT_CLI_KIND_NUMBER, "T", NULL, 1, CONTEXT_MAX,
                                 CONTEXT_MAX, "bytes of text that the model sees; default 128"},
    [WEFT_CLI_OPTION_TIED] = {'\0', "tied", WEFT_CLI_KIND_FLAG, NULL, NULL, 0, 0, 0,
                              "the head uses the embedding's weights"},
    [WEFT_CLI_OPTION_BATCH] = {'\0', "batch", WEFT_CLI_KIND_NUMBER, "B", NULL, 1, BATCH_MAX,
                               BATCH_MAX,
                               "sequences of a step, a multiple of the microbatches; default 16"},
    [WEFT_CLI_OPTION_TRAIN_STEPS] = {'\0', "steps", WEFT_CLI_KIND_NUMBER, "N", NULL, 1, STEPS_MAX,
                                     STEPS_MAX, "steps in all; default 800"},
    [WEFT_CLI_OPTION_LR] = {'\0', "lr", WEFT_CLI_KIND_RATE, "X", NULL, 0, 1000, 1000,
                            "learning rate after the warm-up; default 0.002"},
    [WEFT_CLI_OPTION_LR_MIN] = {'\0', "lr-min", WEFT_CLI_KIND_RATE, "X", NULL, 0, 1000, 1000,
                                "what it falls to at the end, along a cosine; default a tenth"},
    [WEFT_CLI_OPTION_WARMUP] = {'\0', "warmup", WEFT_CLI_KIND_NUMBER, "N", NULL, 0, STEPS_MAX,
                                STEPS_MAX,
                                "steps in which the rate rises; default a tenth of the steps, "
                                "at most 100"},
    [WEFT_CLI_OPTION_WEIGHT_DECAY] = {'\0', "weight-decay", WEFT_CLI_KIND_RATE, "X", NULL, 0, 1000,
                                      1000, "AdamW's, of matrices; default 0.1"},
    [WEFT_CLI_OPTION_CLIP] = {'\0', "clip", WEFT_CLI_KIND_RATE, "X", NULL, 0, COST_MAX, COST_MAX,
                              "the largest norm of the gradient; 0: no limit; default 1"},
    [WEFT_CLI_OPTION_TRAIN_SEED] = {'\0', "seed", WEFT_CLI_KIND_NUMBER, "S", NULL, 0, UINT64_MAX,
                                    UINT64_MAX,
                                    "of the first weights, the order of the data and the sample; "
                                    "default 1"},
    [WEFT_CLI_OPTION_SCHEDULE] = {'\0', "schedule", WEFT_CLI_KIND_TEXT, "NAME", NULL, 0, 0, 0,
                                  "a schedule that 'weft gen' lists, a file with a table or "
                                  "program, or auto: planned from measured times; default 1F1B"},
    [WEFT_CLI_OPTION_TRAIN_MEMORY] = {'\0', "memory", WEFT_CLI_KIND_REAL, "MIB", NULL, 0, COST_MAX,
                                      COST_MAX,
                                      "of --schedule auto: the most that a rank may have for "
                                      "weights, gradients, moments and activations; default what "
                                      "is free, shared among the ranks of a machine"},
    [WEFT_CLI_OPTION_TRAIN_PLACEMENT] = {'\0', "placement", WEFT_CLI_KIND_CHOICE, "KIND", "loop|v",
                                         0, 0, 0,
                                         "of --schedule auto: which rank owns which stage; default "
                                         "v for two stages of a rank, else loop"},
    [WEFT_CLI_OPTION_SPLIT] = {'\0', "split", WEFT_CLI_KIND_TEXT, "HOW", NULL, 0, 0, 0,
                               "blocks of each stage: even, by estimated work (default); numbers, "
                               "like 2,4; or FILE, by times that --profile FILE measured"},
    [WEFT_CLI_OPTION_THREADS_PER_RANK] = {'\0', "threads-per-rank", WEFT_CLI_KIND_NUMBER, "N", NULL,
                                          1, 1024, 1024,
                                          "threads that a matrix product may use; default 1"},
    [WEFT_CLI_OPTION_PP] = {'\0', "pp", WEFT_CLI_KIND_NUMBER, "P", NULL, 1, UINT32_MAX,
                            WEFT_RANKS_MAX, "the same as --ranks"},
    [WEFT_CLI_OPTION_DP] = {'\0', "dp", WEFT_CLI_KIND_NUMBER, "D", NULL, 1, WEFT_RANKS_MAX,
                            WEFT_RANKS_MAX,
                            "replicas of the pipeline, which divide the batch; default 1; on mpi "
                            "as many as there are processes for"},
    [WEFT_CLI_OPTION_SHARD] = {'\0', "shard", WEFT_CLI_KIND_CHOICE, "WHAT", "none|grads|full", 0, 0,
                               0,
                               "what replicas share out: none (default), grads (gradients and "
                               "moments), or full (weights too)"},
    [WEFT_CLI_OPTION_SHARD_WINDOW] =
        {'\0', "window", WEFT_CLI_KIND_NUMBER, "K", NULL, 1, UINT32_MAX, UINT32_MAX,
         "stages of a rank whose weights are whole at once with --shard full; default 3"},
    [WEFT_CLI_OPTION_CHECKPOINT] = {'\0', "checkpoint", WEFT_CLI_KIND_FILE, "DIR", NULL, 0, 0, 0,
                                    "write checkpoints into this folder: at the end, when a "
                                    "signal comes, and in between"},
    [WEFT_CLI_OPTION_EVERY] =
        {'\0', "every", WEFT_CLI_KIND_NUMBER, "N", NULL, 1, STEPS_MAX, STEPS_MAX,
         "steps from one checkpoint to the next; without it there is none in between"},
    [WEFT_CLI_OPTION_KEEP] = {'\0', "keep", WEFT_CLI_KIND_NUMBER, "K", NULL, 0, UINT32_MAX,
                              UINT32_MAX, "newest checkpoints to keep; 0: all; default 2"},
    [WEFT_CLI_OPTION_RESUME] = {'\0', "resume", WEFT_CLI_KIND_FILE, "DIR", NULL, 0, 0, 0,
                                "go on from the newest checkpoint in this folder"},
    [WEFT_CLI_OPTION_EVAL_EVERY] = {'\0', "eval-every", WEFT_CLI_KIND_NUMBER, "N", NULL, 0,
                                    STEPS_MAX, STEPS_MAX,
                                    "steps from one validation to the next; 0: none; default a "
                                    "twentieth of the steps"},
    [WEFT_CLI_OPTION_TRAIN_STALL_LIMIT] = {'\0', "stall-limit", WEFT_CLI_KIND_REAL, "S", NULL, 0,
                                           31536000, 31536000,
                                           "seconds that a rank waits before it says who hangs; 0 "
                                           "is forever; default 300"},
    [WEFT_CLI_OPTION_PROFILE] =
        {'\0', "profile", WEFT_CLI_KIND_FILE, "FILE", NULL, 0, 0, 0,
         "write measured times of every stage and part: a costs file for sim, compare, "
         "show and --split"},
    [WEFT_CLI_OPTION_LOG] = {'\0', "log", WEFT_CLI_KIND_FILE, "FILE", NULL, 0, 0, 0,
                             "write the lines of JSON here; a resumed training adds to FILE"},
    [WEFT_CLI_OPTION_CURVE] = {'\0', "curve", WEFT_CLI_KIND_FILE, "FILE", NULL, 0, 0, 0,
                               "draw the loss over the steps (SVG)"},
    [WEFT_CLI_OPTION_NO_SAMPLE] = {'\0', "no-sample", WEFT_CLI_KIND_FLAG, NULL, NULL, 0, 0, 0,
                                   "show no text of the model at the end"},
    [WEFT_CLI_OPTION_TRAINED] = {'\0', "checkpoint", WEFT_CLI_KIND_FILE, "DIR", NULL, 0, 0, 0,
                                 "the newest checkpoint in this folder is the model"},
    [WEFT_CLI_OPTION_PROMPT] = {'\0', "prompt", WEFT_CLI_KIND_TEXT, "TEXT", NULL, 0, 0, 0,
                                "what the text begins with; default a line break"},
    [WEFT_CLI_OPTION_TOKENS] = {'\0', "tokens", WEFT_CLI_KIND_NUMBER, "N", NULL, 0, 1000000,
                                1000000, "bytes to write after the prompt; default 300"},
    [WEFT_CLI_OPTION_TEMPERATURE] = {'\0', "temperature", WEFT_CLI_KIND_REAL, "X", NULL, 0, 100,
                                     100,
                                     "below 1 likely bytes become likelier; 0: always the "
                                     "likeliest; default 0.8"},
    [WEFT_CLI_OPTION_TOP_K] = {'\0', "top-k", WEFT_CLI_KIND_NUMBER, "K", NULL, 0, 256, 256,
                               "only the K likeliest bytes; 0: all; default 0"},
    [WEFT_CLI_OPTION_SAMPLE_SEED] = {'\0', "seed", WEFT_CLI_KIND_NUMBER, "S", NULL, 0, UINT64_MAX,
                                     UINT64_MAX, "the same seed gives the same text; default 1"},
    [WEFT_CLI_OPTION_GRID] = {'\0', "grid", WEFT_CLI_KIND_FLAG, NULL, NULL, 0, 0, 0,
                              "draw the grid of steps and ranks as text"},
    [WEFT_CLI_OPTION_WIDTH] = {'\0', "width", WEFT_CLI_KIND_NUMBER, "N", NULL, 20, 100000, 100000,
                               "columns of text, or pixels of an SVG picture; without it the "
                               "terminal's (else 80), or 1200"},
    [WEFT_CLI_OPTION_COLOUR_BY] = {'\0', "colour-by", WEFT_CLI_KIND_CHOICE, "WHAT", "op|stage", 0,
                                   0, 0, "what colours stand for: op (default) or stage"},
    [WEFT_CLI_OPTION_DARK] = {'\0', "dark", WEFT_CLI_KIND_FLAG, NULL, NULL, 0, 0, 0,
                              "draw on a dark background"},
    [WEFT_CLI_OPTION_RANK] = {'\0', "rank", WEFT_CLI_KIND_NUMBER, "R", NULL, 0, WEFT_RANKS_MAX - 1,
                              WEFT_RANKS_MAX - 1, "only this rank"},
    [WEFT_CLI_OPTION_MAX_DIFFERENCES] = {'\0', "max-differences", WEFT_CLI_KIND_NUMBER, "N", NULL,
                                         1, UINT32_MAX, UINT32_MAX,
                                         "differences to report in full; default 1000"},
    [WEFT_CLI_OPTION_LARGE] = {'\0', "large", WEFT_CLI_KIND_FLAG, NULL, NULL, 0, 0, 0,
                               "also measure large programs, and how the time per action grows"},
    [WEFT_CLI_OPTION_ACTIONS] = {'\0', "actions", WEFT_CLI_KIND_NUMBER, "N", NULL, 1,
                                 WEFT_ACTIONS_MAX, WEFT_ACTIONS_MAX,
                                 "actions of a large program, about; default 50000000"},
    [WEFT_CLI_OPTION_REPEATS] = {'\0', "repeats", WEFT_CLI_KIND_NUMBER, "N", NULL, 1, 99, 99,
                                 "times to repeat each measurement; the median counts"},
    [WEFT_CLI_OPTION_QUICK] = {'\0', "quick", WEFT_CLI_KIND_FLAG, NULL, NULL, 0, 0, 0,
                               "do not start processes to try MPI"},
    [WEFT_CLI_OPTION_MAN] = {'\0', "man", WEFT_CLI_KIND_FLAG, NULL, NULL, 0, 0, 0,
                             "write the manual page (roff)"},
    [WEFT_CLI_OPTION_COMPLETION] = {'\0', "completion", WEFT_CLI_KIND_CHOICE, "SHELL",
                                    "bash|zsh|fish", 0, 0, 0,
                                    "write the completion script of a shell"},
    [WEFT_CLI_OPTION_OUTPUT] = {'o', "output", WEFT_CLI_KIND_FILE, "FILE", NULL, 0, 0, 0,
                                "write to FILE, whole or not at all; - is standard output"},
    [WEFT_CLI_OPTION_TIMELINE] = {'o', "output", WEFT_CLI_KIND_FILE, "FILE", NULL, 0, 0, 0,
                                  "draw the last step: x.html beside its prediction, x.svg or "
                                  "x.json (Chrome trace) as measured"},
    [WEFT_CLI_OPTION_JSON] = {'\0', "json", WEFT_CLI_KIND_FLAG, NULL, NULL, 0, 0, 0,
                              "write one JSON document"},
    [WEFT_CLI_OPTION_JSON_LINES] = {'\0', "json", WEFT_CLI_KIND_FLAG, NULL, NULL, 0, 0, 0,
                                    "write a line of JSON per step, and one at the end"},
    [WEFT_CLI_OPTION_HELP] = {'h', "help", WEFT_CLI_KIND_FLAG, NULL, NULL, 0, 0, 0,
                              "show this help"},
};

/* For `options` of a verb. */
#define TAKES(NAME) [WEFT_CLI_OPTION_##NAME] = true
#define EVERY_VERB TAKES(OUTPUT), TAKES(HELP)
/* What weft_cli_costs_read() (cost_options.h) reads; the second line is for simulations. */
#define TIMES TAKES(F), TAKES(B), TAKES(I), TAKES(W), TAKES(HOP), TAKES(COSTS), TAKES(SLOW)
#define COSTS TIMES, TAKES(CHANNEL), TAKES(JITTER), TAKES(SEED)

static const struct weft_cli_verb verbs[] = {
    {"gen",
     "NAME",
     1,
     "schedule",
     {TAKES(RANKS), TAKES(STAGES_PER_RANK), TAKES(MICROBATCHES), TAKES(PLACEMENT), TAKES(LIST),
      TAKES(JSON), EVERY_VERB},
     "",
     "write the table of a named schedule",
     "Writes the compute-only table of the schedule NAME as CSV: a row per rank, a cell per step. "
     "Upper and lower case, hyphens and underscores in NAME do not matter. The fixed tables need "
     "neither -p nor -m.\n"
     "'weft gen --list' lists all schedules with their bubble, their peak of activations and the "
     "paper they come from.",
     "weft gen Interleaved1F1B -p 4 -v 2 -m 8",
     weft_cli_verb_gen},
    {"lower",
     "[FILE]",
     1,
     "file",
     {TAKES(MERGE_BW), TAKES(WINDOW), TAKES(NO_UNSHARD), TAKES(NO_REDUCE_GRAD), TAKES(TIE_GRAD),
      TAKES(NO_COMM), TAKES(SLOTS), TAKES(JSON), EVERY_VERB},
     "",
     "turn a table into a program with communication",
     "Reads a compute-only table and writes the program that ranks run: with SEND and RECV, "
     "UNSHARD and RESHARD, and REDUCE_GRAD. With --tie-grad also TIE_GRAD, which PyTorch does not "
     "know: for models whose first and last stage share weights, as tied embeddings do.",
     "weft gen 1F1B -p 4 -m 8 | weft lower -o program.csv",
     weft_cli_verb_lower},
    {"verify",
     "[FILE]",
     1,
     "file",
     {TAKES(COMM), TAKES(CHANNEL), TAKES(STAGES), TAKES(MICROBATCHES), TAKES(MAX_FINDINGS),
      TAKES(JSON), EVERY_VERB},
     "",
     "prove that a table or program is right and cannot hang",
     "Checks that every stage does every microbatch exactly once and in order, that sends and "
     "receives pair up, and that no rank can wait forever. Every finding names rank, step, "
     "action and rule; a deadlock is shown as the circle of actions that wait for each other.\n"
     "The proof holds for the given model of communication. The default is the strictest: what "
     "cannot hang there cannot hang anywhere.",
     "weft verify program.csv --comm slots:2 --channel pair",
     weft_cli_verb_verify},
    {"sim",
     "[FILE]",
     1,
     "file",
     {TAKES(STEPS), COSTS, TAKES(RUNS), TAKES(MEMORY), TAKES(CRITICAL_PATH), TAKES(JSON),
      EVERY_VERB},
     "",
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
     "weft gen GPipe -p 4 -m 4 | weft sim --f 1 --b 2 --hop 0.1",
     weft_cli_verb_sim},
    {"compare",
     "",
     0,
     "",
     {TAKES(RANKS), TAKES(STAGES_PER_RANK), TAKES(MICROBATCHES), TIMES, TAKES(CHANNEL),
      TAKES(MEMORY), TAKES(JSON), EVERY_VERB},
     "",
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
     "weft compare -p 4 -m 8 --memory 4",
     weft_cli_verb_compare},
    {"plan",
     "",
     0,
     "",
     {TAKES(RANKS),
      TAKES(STAGES_PER_RANK),
      TAKES(MICROBATCHES),
      TAKES(PLAN_PLACEMENT),
      TAKES(NO_SPLIT),
      TAKES(KEEP_PARTITION),
      TAKES(F),
      TAKES(B),
      TAKES(I),
      TAKES(W),
      TAKES(HOP),
      TAKES(COSTS),
      TAKES(MEMORY),
      TAKES(OBJECTIVE),
      TAKES(EFFORT),
      TAKES(TIME_LIMIT),
      TAKES(PLAN_SEED),
      TAKES(THREADS),
      TAKES(PARETO),
      TAKES(FOR),
      TAKES(JSON),
      TAKES(PLAN_OUTPUT),
      TAKES(HELP)},
     "",
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
     "weft plan -p 4 -m 8 --memory 4 -o plan.csv",
     weft_cli_verb_plan},
    {"show",
     "[FILE] [FILE]",
     2,
     "file",
     {TAKES(GRID), TAKES(WIDTH), TAKES(COLOUR_BY), TAKES(DARK), COSTS, EVERY_VERB},
     "",
     "draw the timeline of a table or program",
     "Simulates it, and draws a line per rank with its memory below, on the terminal. With -o the "
     "ending says what to draw: x.svg a picture to print, x.html a page to look around in, x.json "
     "a Chrome trace. A page can show two FILEs on one time axis; if they have different "
     "numbers of stages per rank, costs are of a rank's share of the model, as for compare. A "
     "compute-only table gets its SEND and RECV first.\n"
     "With --grid: rows are steps, columns are ranks, blank cells are bubbles.",
     "weft gen ZBVZeroBubble -p 4 -m 8 | weft show -o zbv.svg",
     weft_cli_verb_show},
    {"run",
     "[FILE]",
     1,
     "file",
     {TAKES(TRANSPORT), TAKES(PROGRESS), TAKES(STAGE), TAKES(RUN_STEPS), TAKES(RUN_COMM),
      TAKES(STALL_LIMIT), TAKES(DUMP), TAKES(UNCHECKED), TIMES, TAKES(JSON), EVERY_VERB},
     "",
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
     "weft gen 1F1B -p 4 -m 8 | weft run --f 1 --b 2 --steps 2",
     weft_cli_verb_run},
    {"train",
     "[FILE...]",
     WEFT_CLI_OPERANDS_LIST,
     "file",
     {TAKES(DATA),
      TAKES(LAYERS),
      TAKES(DIM),
      TAKES(HEADS),
      TAKES(CONTEXT),
      TAKES(TIED),
      TAKES(BATCH),
      TAKES(MICROBATCHES),
      TAKES(TRAIN_STEPS),
      TAKES(LR),
      TAKES(LR_MIN),
      TAKES(WARMUP),
      TAKES(WEIGHT_DECAY),
      TAKES(CLIP),
      TAKES(TRAIN_SEED),
      TAKES(RANKS),
      TAKES(STAGES_PER_RANK),
      TAKES(SCHEDULE),
      TAKES(TRAIN_MEMORY),
      TAKES(TRAIN_PLACEMENT),
      TAKES(SPLIT),
      TAKES(TRANSPORT),
      TAKES(PROGRESS),
      TAKES(THREADS_PER_RANK),
      TAKES(PP),
      TAKES(DP),
      TAKES(SHARD),
      TAKES(SHARD_WINDOW),
      TAKES(CHECKPOINT),
      TAKES(EVERY),
      TAKES(KEEP),
      TAKES(RESUME),
      TAKES(EVAL_EVERY),
      TAKES(TRAIN_STALL_LIMIT),
      TAKES(DUMP),
      TAKES(PROFILE),
      TAKES(LOG),
      TAKES(CURVE),
      TAKES(PROMPT),
      TAKES(NO_SAMPLE),
      TAKES(TIMELINE),
      TAKES(JSON_LINES),
      TAKES(HELP)},
     "",
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
     "weft train notes.txt --layers 2 --dim 32 --steps 50 --checkpoint model",
     weft_cli_verb_train},
    {"sample",
     "",
     0,
     "",
     {TAKES(TRAINED), TAKES(PROMPT), TAKES(TOKENS), TAKES(TEMPERATURE), TAKES(TOP_K),
      TAKES(SAMPLE_SEED), TAKES(JSON), EVERY_VERB},
     "",
     "write text with a trained model",
     "Reads the newest checkpoint that 'weft train' has written into a folder, or one step's "
     "folder in it, and goes on with the prompt. Bytes that are not text are shown escaped on a "
     "terminal, and written as they are elsewhere.",
     "weft sample --checkpoint model --prompt 'static int '",
     weft_cli_verb_sample},
    {"explain",
     "[FILE]",
     1,
     "file",
     {TAKES(RANK), TAKES(JSON), EVERY_VERB},
     "",
     "list a program with what each instruction does and waits for",
     "Lists every instruction of every rank: its number in the row, step, action, the channel it "
     "uses, its buffer, and the matching instruction on the peer or what it waits for. Buffers: "
     "r0, r1 ... are for receiving, a0, a1 ... hold activations.",
     "weft explain program.csv --rank 1",
     weft_cli_verb_explain},
    {"explain-hang",
     "[DUMP]",
     1,
     "file",
     {TAKES(JSON), EVERY_VERB},
     "",
     "say who is stuck on what in a run that hangs",
     "Reads the dump that a stalled run has written, and says in words what every rank does and "
     "waits for, and who is to blame: the rank that all the others wait for, or the circle of "
     "ranks that wait for each other.",
     "weft explain-hang hang.json",
     weft_cli_verb_explain_hang},
    {"diff",
     "A B",
     2,
     "file",
     {TAKES(MAX_DIFFERENCES), TAKES(JSON), EVERY_VERB},
     "",
     "show where two tables or programs differ",
     "Compares the files A and B rank by rank. Exit status 0 means equal, 1 different.",
     "weft diff a.csv b.csv",
     weft_cli_verb_diff},
    {"bench",
     "[NAME]",
     1,
     "benchmark",
     {TAKES(LIST), TAKES(LARGE), TAKES(ACTIONS), TAKES(REPEATS), TAKES(RANKS), TAKES(MICROBATCHES),
      TAKES(PROGRESS), TAKES(JSON), EVERY_VERB},
     "",
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
     "weft bench plan --large",
     weft_cli_verb_bench},
    {"doctor",
     "",
     0,
     "",
     {TAKES(QUICK), TAKES(JSON), EVERY_VERB},
     "",
     "show what this build and machine have, and whether it works",
     "Shows version, compiler, limits, processors and memory, and generates, lowers and verifies "
     "every schedule once. Of every MPI that is installed it starts two processes, for at most ten "
     "seconds, and shows how fast messages go between them.\n"
     "Under mpirun rank 0 reports: where all ranks are, and how fast messages go between the first "
     "two.",
     "weft doctor",
     weft_cli_verb_doctor},
    {"help",
     "[VERB]",
     1,
     "verb",
     {TAKES(MAN), TAKES(COMPLETION), EVERY_VERB},
     "",
     "show help, or write the manual page or a shell's completions",
     "Without VERB: the list of verbs.",
     "weft help --completion bash > /etc/bash_completion.d/weft",
     weft_cli_verb_help},
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

const struct weft_cli_option *weft_cli_option_at(enum weft_cli_option_id id) {
  return &options[id];
}

size_t weft_cli_verb_count(void) { return sizeof verbs / sizeof verbs[0]; }

const struct weft_cli_verb *weft_cli_verb_at(size_t index) { return &verbs[index]; }

bool weft_cli_verb_takes(const struct weft_cli_verb *verb, enum weft_cli_option_id id) {
  return verb->options[id];
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

const struct weft_cli_exit_text *weft_cli_exit_texts(void) { return exit_texts; }
