/* `weft verify --list`: the communication models. */
#include <assert.h>

#include "cli/report/verify_report.h"

#include <weft/support.h>

static void add_text(struct weft_text *text) {
  const struct weft_send_model_info *send;
  const struct weft_channel_model_info *channel;
  weft_text_add(text, "--comm, when a SEND is done:\n");
  for (uint32_t k = 0; (send = weft_send_model_info((enum weft_send_model)k)) != NULL; k++) {
    weft_text_addf(text, "  %-15s%s\n", send->name, send->done);
  }
  weft_text_add(text, "\n--channel, what one channel carries:\n");
  for (uint32_t k = 0; (channel = weft_channel_model_info((enum weft_channel_model)k)) != NULL;
       k++) {
    weft_text_addf(text, "  %-15s%s\n", channel->name, channel->one_for);
  }
}

static void add_json(struct weft_text *text) {
  const struct weft_send_model_info *send;
  const struct weft_channel_model_info *channel;
  struct weft_json json = weft_json_begin(text, "weft-models/1");
  weft_json_open(&json, "comm", '[');
  for (uint32_t k = 0; (send = weft_send_model_info((enum weft_send_model)k)) != NULL; k++) {
    weft_json_open(&json, NULL, '{');
    weft_json_string(&json, "name", send->name);
    weft_json_string(&json, "done", send->done);
    weft_json_boolean(&json, "row_waits", send->row_waits);
    weft_json_close(&json, '}');
  }
  weft_json_close(&json, ']');
  weft_json_open(&json, "channel", '[');
  for (uint32_t k = 0; (channel = weft_channel_model_info((enum weft_channel_model)k)) != NULL;
       k++) {
    weft_json_open(&json, NULL, '{');
    weft_json_string(&json, "name", channel->name);
    weft_json_string(&json, "one_for", channel->one_for);
    weft_json_string(&json, "words", channel->words);
    weft_json_boolean(&json, "asynchronous", channel->asynchronous);
    weft_json_close(&json, '}');
  }
  weft_json_close(&json, ']');
  weft_json_end(&json);
}

void weft_cli_list_models(struct weft_text *text, bool json) {
  assert(text != NULL);
  (json ? add_json : add_text)(text);
}
