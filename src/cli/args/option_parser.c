/* The option parser: --name=value, --name value, -x value, -xvalue, --, and
 * options after operands. getopt_long() is not used: it keeps global state,
 * prints by itself, and cannot suggest a name. */
#include "cli/args/option_parser.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <weft/channel_models.h>
#include <weft/launch.h>
#include <weft/support.h>

#include "cli/io/error_message.h"

struct parser {
  const struct weft_cli *cli;
  struct weft_cli_arguments *arguments;
  char **words;
  int count;
  int at;        /* the word being read */
  char help[80]; /* where the options of the command are listed */
};

uint64_t weft_cli_number(const struct weft_cli_arguments *arguments, enum weft_cli_option_id id,
                         uint64_t otherwise) {
  return arguments->given[id] ? arguments->numbers[id] : otherwise;
}

double weft_cli_real(const struct weft_cli_arguments *arguments, enum weft_cli_option_id id,
                     double otherwise) {
  return arguments->given[id] ? arguments->reals[id] : otherwise;
}

const char *weft_cli_first_given(const struct weft_cli_arguments *arguments,
                                 const enum weft_cli_option_id *ids, size_t count) {
  assert(arguments != NULL && ids != NULL);
  for (size_t k = 0; k < count; k++) {
    if (arguments->given[ids[k]]) {
      return weft_cli_option_at(ids[k])->name;
    }
  }
  return NULL;
}

int64_t weft_cli_stall_limit(const struct weft_cli_arguments *arguments, double otherwise) {
  const double ns = 1e9 * weft_cli_real(arguments, WEFT_CLI_OPTION_STALL_LIMIT, otherwise);
  return ns > 0 && ns < 1 ? 1 : (int64_t)ns;
}

/* ---- Suggestions ---- */

void weft_cli_suggestion_init(struct weft_cli_suggestion *suggestion, const char *wanted,
                              size_t wanted_size) {
  assert(suggestion != NULL);
  *suggestion = (struct weft_cli_suggestion){.wanted = wanted, .wanted_size = wanted_size};
  suggestion->distance = wanted_size / 3 + 2; /* one more than is near enough */
}

void weft_cli_suggestion_offer(struct weft_cli_suggestion *suggestion, const char *name,
                               size_t name_size) {
  assert(suggestion != NULL);
  const size_t distance =
      weft_name_distance(suggestion->wanted, suggestion->wanted_size, name, name_size);
  /* A suggestion that shares no letter is worse than none. */
  const size_t longer = suggestion->wanted_size > name_size ? suggestion->wanted_size : name_size;
  if (distance < suggestion->distance && distance < longer) {
    suggestion->best = name;
    suggestion->distance = distance;
  }
}

/* ---- Values ---- */

static bool find_choice(const char *choices, const char *text, unsigned *index) {
  const char *item;
  size_t size;
  for (*index = 0; (size = weft_cli_choice_next(&choices, &item)) > 0; (*index)++) {
    if (strlen(text) == size && memcmp(text, item, size) == 0) {
      return true;
    }
  }
  return false;
}

static int bad_choice(const struct parser *parser, const struct weft_cli_option *option,
                      const char *text) {
  struct weft_cli_suggestion suggestion;
  const char *choices = option->choices, *item;
  size_t size;
  weft_cli_suggestion_init(&suggestion, text, strlen(text));
  while ((size = weft_cli_choice_next(&choices, &item)) > 0) {
    const bool numbered = size > 2 && item[size - 2] == ':'; /* slots:K: "slots" is compared */
    weft_cli_suggestion_offer(&suggestion, item, numbered ? size - 2 : size);
  }
  char hint[128];
  (void)snprintf(hint, sizeof hint, "did you mean '%.*s'?",
                 suggestion.best != NULL ? (int)strcspn(suggestion.best, "|") : 0,
                 suggestion.best != NULL ? suggestion.best : "");
  return weft_cli_usage(parser->cli, suggestion.best != NULL ? hint : parser->help,
                        "--%s '%s' is not known: expected one of %s", option->name,
                        weft_cli_quoted(text).text, option->choices);
}

/* A communication model. Where the name is right, the number behind its colon is not. */
static int read_model(const struct parser *parser, const struct weft_cli_option *option,
                      const char *text) {
  struct weft_cli_arguments *arguments = parser->arguments;
  enum weft_send_model model;
  uint32_t capacity;
  if (weft_send_model_parse(text, &model, &capacity, NULL) == WEFT_OK) {
    arguments->choices[option->id] = model;
    arguments->numbers[option->id] = capacity;
    return WEFT_CLI_OK;
  }
  const char *choices = option->choices, *item;
  size_t size;
  while ((size = weft_cli_choice_next(&choices, &item)) > 0) {
    const size_t prefix = size - strlen("K");
    if (item[prefix - 1] == ':' && strncmp(text, item, prefix) == 0) {
      const uint64_t most = WEFT_CAPACITY_UNLIMITED - 1;
      char name[64];
      (void)snprintf(name, sizeof name, "--%s %.*s", option->name, (int)prefix, item);
      return weft_cli_read_bounded(parser->cli, name, text + prefix, 0, most, most,
                                   &arguments->numbers[option->id]);
    }
  }
  return bad_choice(parser, option, text);
}

static int add_to_list(const struct parser *parser, const char *name, const char *text) {
  struct weft_cli_arguments *arguments = parser->arguments;
  if (arguments->list_count == WEFT_CLI_LIST_MAX) {
    return weft_cli_usage(parser->cli, "leave some out", "%s is given more than %d times", name,
                          WEFT_CLI_LIST_MAX);
  }
  arguments->list[arguments->list_count++] = text;
  return WEFT_CLI_OK;
}

static int read_value(const struct parser *parser, const struct weft_cli_option *option,
                      const char *text) {
  struct weft_cli_arguments *arguments = parser->arguments;
  const enum weft_cli_option_id id = option->id;
  char name[48];
  arguments->given[id] = true;
  arguments->texts[id] = text;
  if (option->letter != '\0') {
    (void)snprintf(name, sizeof name, "-%c", option->letter);
  } else {
    (void)snprintf(name, sizeof name, "--%s", option->name);
  }
  switch (option->kind) {
    case WEFT_CLI_KIND_NUMBER:
      return weft_cli_read_bounded(parser->cli, name, text, option->minimum, option->maximum,
                                   option->limit, &arguments->numbers[id]);
    case WEFT_CLI_KIND_REAL:
    case WEFT_CLI_KIND_RATE: {
      const int status = weft_cli_read_real(
          parser->cli, name, text, option->kind == WEFT_CLI_KIND_RATE, (double)option->minimum,
          (double)option->maximum, &arguments->reals[id]);
      return status == WEFT_CLI_OK && id == WEFT_CLI_OPTION_MEMORY && !(arguments->reals[id] > 0)
                 ? weft_cli_usage(parser->cli, "leave the option out for no limit",
                                  "--memory is 0, and no schedule runs without memory")
                 : status;
    }
    case WEFT_CLI_KIND_LIST: return add_to_list(parser, name, text);
    case WEFT_CLI_KIND_CHOICE:
      return find_choice(option->choices, text, &arguments->choices[id])
                 ? WEFT_CLI_OK
                 : bad_choice(parser, option, text);
    case WEFT_CLI_KIND_MODEL: return read_model(parser, option, text);
    case WEFT_CLI_KIND_FLAG:
    case WEFT_CLI_KIND_FILE:
    case WEFT_CLI_KIND_TEXT: break;
  }
  if (text[0] == '\0') {
    return weft_cli_usage(parser->cli, parser->help, "%s has an empty value: expected %s", name,
                          option->value);
  }
  return WEFT_CLI_OK;
}

/* The value of an option that needs one: `attached`, or the next word. */
static int read_next_value(struct parser *parser, const struct weft_cli_option *option,
                           const char *spelled, const char *attached) {
  if (attached == NULL) {
    if (parser->at + 1 >= parser->count) {
      return weft_cli_usage(parser->cli, parser->help, "%s has no value: expected %s after it",
                            spelled, option->value);
    }
    attached = parser->words[++parser->at];
  }
  return read_value(parser, option, attached);
}

/* ---- Names ---- */

/* By its name, or by its letter if that is not '\0'. */
static const struct weft_cli_option *find_option(const struct weft_cli_command *command,
                                                 char letter, const char *name, size_t size) {
  const struct weft_cli_option *option;
  for (unsigned k = 0; (option = weft_cli_command_option_at(command, k, NULL)) != NULL; k++) {
    if (letter != '\0' ? option->letter == letter
                       : strlen(option->name) == size && memcmp(option->name, name, size) == 0) {
      return option;
    }
  }
  return NULL;
}

/* "'weft gen' and 'weft plan' have --for"; empty where no other command has it. */
static void add_owners(struct weft_text *text, const char *name, size_t size) {
  uint32_t count = 0;
  for (size_t k = 0; k < weft_cli_command_count() && count < 2; k++) {
    const struct weft_cli_command *command = weft_cli_command_at(k);
    if (find_option(command, '\0', name, size) != NULL) {
      weft_text_addf(text, "%s'weft %s'", count++ > 0 ? " and " : "", command->name);
    }
  }
  if (count > 0) {
    weft_text_addf(text, " ha%s --%.*s", count > 1 ? "ve" : "s", (int)size, name);
  }
}

/* What is said about an option that a command had before; NULL: it had none of that name. */
static const char *former_option(const struct weft_cli_command *command, const char *name,
                                 size_t size) {
  static const struct {
    const char *command, *name, *hint;
  } former[] = {
      {"run", "no-graph", "it is called '--eager' now"},
      {"run", "progress", "it is gone: ranks see to messages in their own calls"},
      {"train", "no-graph", "it is called '--eager' now"},
      {"train", "pp", "it is called '--ranks' now"},
      {"train", "placement", "it is gone: with -v 2 the first schedule is a V, else a loop"},
      {"train", "window", "it is gone: --shard full unshards three stages of a rank at once"},
      {"train", "threads-per-rank", "it is gone: train on more ranks instead"},
      {"train", "partitions", "it is gone: 'weft run' has it; ranks share a GPU without it"},
      {"train", "progress", "it is gone: the stages of the trainer see to messages themselves"},
      {"train", "prompt", "'weft sample --prompt' continues a prompt"},
      {"train", "no-sample", "with --json there is no sample"},
      {"train", "curve", "it is gone: --log FILE has the losses of all steps"},
  };
  for (size_t k = 0; k < sizeof former / sizeof former[0]; k++) {
    if (strcmp(former[k].command, command->name) == 0 && strlen(former[k].name) == size &&
        memcmp(former[k].name, name, size) == 0) {
      return former[k].hint;
    }
  }
  return NULL;
}

static int fail_unknown(const struct parser *parser, const char *word, const char *name,
                        size_t size) {
  const struct weft_cli_command *command = parser->arguments->command;
  const struct weft_cli_option *option;
  struct weft_cli_suggestion suggestion;
  WEFT_SCOPED_TEXT owners = {.allocator = parser->cli->allocator};
  char guess[128];
  const char *hint = former_option(command, name, size);
  weft_cli_suggestion_init(&suggestion, name, size);
  for (unsigned k = 0; size > 1 && (option = weft_cli_command_option_at(command, k, NULL)) != NULL;
       k++) {
    weft_cli_suggestion_offer(&suggestion, option->name, strlen(option->name));
  }
  if (hint == NULL && (suggestion.best == NULL || suggestion.distance > 1)) {
    add_owners(&owners, name, size);
    hint = owners.size > 0 && !owners.failed ? owners.data : NULL;
  }
  if (hint == NULL && suggestion.best != NULL) {
    (void)snprintf(guess, sizeof guess, "did you mean '--%s'?", suggestion.best);
    hint = guess;
  }
  return weft_cli_usage(parser->cli, hint != NULL ? hint : parser->help,
                        "unknown option '%s' of 'weft %s'", weft_cli_quoted(word).text,
                        command->name);
}

static int read_long(struct parser *parser, const char *word) {
  const char *name = word + 2;
  const char *equals = strchr(name, '=');
  const size_t size = equals != NULL ? (size_t)(equals - name) : strlen(name);
  const struct weft_cli_option *option = find_option(parser->arguments->command, '\0', name, size);
  if (option == NULL) {
    return fail_unknown(parser, word, name, size);
  }
  char spelled[48];
  (void)snprintf(spelled, sizeof spelled, "--%s", option->name);
  if (option->kind != WEFT_CLI_KIND_FLAG) {
    return read_next_value(parser, option, spelled, equals != NULL ? equals + 1 : NULL);
  }
  if (equals != NULL) {
    return weft_cli_usage(parser->cli, parser->help, "%s takes no value, found '%s'", spelled,
                          weft_cli_quoted(equals + 1).text);
  }
  parser->arguments->given[option->id] = true;
  return WEFT_CLI_OK;
}

static int read_letters(struct parser *parser, const char *word) {
  for (const char *at = word + 1; *at != '\0'; at++) {
    const struct weft_cli_option *option = find_option(parser->arguments->command, *at, NULL, 0);
    if (option == NULL) {
      /* "-json" is a --json with a dash missing, "-x" is a letter. */
      return fail_unknown(parser, word, word + 1, strlen(word + 1));
    }
    if (option->kind != WEFT_CLI_KIND_FLAG) {
      const char spelled[3] = {'-', *at, '\0'};
      return read_next_value(parser, option, spelled, at[1] != '\0' ? at + 1 : NULL);
    }
    parser->arguments->given[option->id] = true;
  }
  return WEFT_CLI_OK;
}

static int read_operand(const struct parser *parser, const char *word) {
  struct weft_cli_arguments *arguments = parser->arguments;
  const struct weft_cli_command *command = arguments->command;
  if (command->operands_max == WEFT_CLI_OPERANDS_LIST) {
    return add_to_list(parser, command->operands, word);
  }
  if (arguments->operand_count == command->operands_max) {
    const bool is_file = command->operands_max == 0 && access(word, F_OK) == 0;
    return weft_cli_usage(
        parser->cli,
        is_file ? "'weft sim', 'weft show' and 'weft verify' take a table or program"
                : parser->help,
        "one argument too many for 'weft %s': '%s'; expected %s", command->name,
        weft_cli_quoted(word).text, command->operands_max > 0 ? command->operands : "options only");
  }
  arguments->operands[arguments->operand_count++] = word;
  return WEFT_CLI_OK;
}

int weft_cli_parse(const struct weft_cli *cli, const struct weft_cli_command *command, int count,
                   char **words, struct weft_cli_arguments *arguments) {
  assert(cli != NULL && arguments != NULL);
  *arguments = (struct weft_cli_arguments){.command = command};
  struct parser parser = {.cli = cli, .arguments = arguments, .words = words, .count = count};
  (void)snprintf(parser.help, sizeof parser.help, "'weft help %s' lists its options",
                 command->name);
  bool operands_only = false;
  int status = WEFT_CLI_OK;
  for (; parser.at < count && status == WEFT_CLI_OK; parser.at++) {
    const char *word = words[parser.at];
    if (operands_only || word[0] != '-' || word[1] == '\0') {
      status = read_operand(&parser, word);
    } else if (word[1] != '-') {
      status = read_letters(&parser, word);
    } else if (word[2] != '\0') {
      status = read_long(&parser, word);
    } else {
      operands_only = true;
    }
  }
  return status;
}

/* ---- --transport ---- */

/* In the order of the option's choices. */
bool weft_cli_is_on_gpus(const struct weft_cli_arguments *arguments) {
  return arguments->choices[WEFT_CLI_OPTION_DEVICE] == 1;
}

const struct weft_comm_info *weft_cli_chosen_transport(const struct weft_cli_arguments *arguments) {
  const bool launched = weft_launch_info().rank_count > 1, on_gpus = weft_cli_is_on_gpus(arguments);
  const struct weft_comm_info *info = NULL;
  const struct weft_comm_info *at;
  struct weft_error error;
  int version;
  if (arguments->given[WEFT_CLI_OPTION_TRANSPORT]) {
    return weft_comm_find(arguments->texts[WEFT_CLI_OPTION_TRANSPORT]);
  }
  for (uint32_t k = 0; (at = weft_comm_transport(k)) != NULL; k++) { /* the best comes last */
    if (!at->virtual_time && at->process_per_rank == launched &&
        (on_gpus ? at->gpus : !at->gpus_only) &&
        weft_comm_library_version(at, &version, &error) == WEFT_OK) {
      info = at;
    }
  }
  assert(info != NULL);
  return info;
}

int weft_cli_check_transport(const struct weft_cli *cli, const struct weft_cli_arguments *arguments,
                             const struct weft_comm_info *transport) {
  assert(cli != NULL && arguments != NULL && transport != NULL);
  const bool on_gpus = weft_cli_is_on_gpus(arguments);
  if (on_gpus ? !transport->gpus : transport->gpus_only) {
    return weft_cli_usage(cli, "'--device cuda' without --transport has both",
                          "stages on %s and --transport %s do not go together",
                          on_gpus ? "GPUs" : "the host", transport->name);
  }
  static const enum weft_cli_option_id of_gpus[] = {
      WEFT_CLI_OPTION_GPUS, WEFT_CLI_OPTION_PARTITIONS, WEFT_CLI_OPTION_EAGER};
  const char *of_gpu = weft_cli_first_given(arguments, of_gpus, WEFT_ARRAY_LENGTH(of_gpus));
  if (of_gpu != NULL && !on_gpus) {
    return weft_cli_usage(cli, "leave it out, or give --device cuda",
                          "--%s has no effect: it is for stages on GPUs", of_gpu);
  }
  if (arguments->given[WEFT_CLI_OPTION_SUM_ORDER] && !transport->own_sums) {
    return weft_cli_usage(cli, "leave it out, or give --transport nccl",
                          "--sum-order has no effect: it is for the transport nccl");
  }
  return WEFT_CLI_OK;
}
