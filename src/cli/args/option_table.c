/* The options. */
#include "cli/args/option_table.h"

#include <assert.h>
#include <string.h>

#include <weft/channel_models.h>
#include <weft/comm.h>
#include <weft/ir.h>

/* "loopback|threads|..." */
#define OR_TRANSPORT(name, words) "|" #name
#define TRANSPORTS (&(WEFT_TRANSPORTS(OR_TRANSPORT))[1])
#define TRANSPORT_TEXT(name, words) #name ": " words "; "
#define TRANSPORT_TEXTS WEFT_TRANSPORTS(TRANSPORT_TEXT)

/* The communication models: "|posted|eager...", and what each means. */
#define WEFT_SEND_MODEL(NAME, name, ...) "|" name
static const char send_models[] =
#include <weft/channel_models.def>
    ;
#define WEFT_SEND_MODEL(NAME, name, capacity, waits, done) "; " name ": " done
static const char send_model_texts[] = "when a SEND is done (default rendezvous, of run posted)"
#include <weft/channel_models.def>
    ;
#define WEFT_CHANNEL_MODEL(NAME, name, ...) "|" name
static const char channel_models[] =
#include <weft/channel_models.def>
    ;
#define WEFT_CHANNEL_MODEL(NAME, name, messages, at_rank, asynchronous, one_for, words) \
  "; " name ": " one_for
static const char channel_model_texts[] = "what one channel carries (default edge)"
#include <weft/channel_models.def>
    ;

/* As in trainer/model/model.h, which this module does not see. */
#define LAYERS_MAX 4096
#define DIM_MAX 65536
#define CONTEXT_MAX 1048576
#define BATCH_MAX UINT64_C(1048576)

#define ROW(ID, LETTER, NAME, KIND, ...) \
  {WEFT_CLI_OPTION_##ID, LETTER, NAME, WEFT_CLI_KIND_##KIND, __VA_ARGS__},

const struct weft_cli_option weft_cli_options[WEFT_CLI_OPTION_COUNT] = {
#include "cli/args/options.def"
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
