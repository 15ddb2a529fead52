/* The communication models as data, and their names as text. */
#include <weft/channel_models.h>

#include <assert.h>
#include <inttypes.h>
#include <string.h>

#include <weft/support.h>

static const struct weft_send_model_info send_models[WEFT_SEND_MODEL_COUNT] = {
#define WEFT_SEND_MODEL(NAME, name_, capacity_, waits, done_) \
  [WEFT_COMM_##NAME] = {.name = name_, .capacity = capacity_, .row_waits = waits, .done = done_},
#include <weft/channel_models.def>
};

static const struct weft_channel_model_info channel_models[WEFT_CHANNEL_COUNT] = {
#define WEFT_CHANNEL_MODEL(NAME, name_, messages_, at_rank_, asynchronous_, one_for_, words_) \
  [WEFT_CHANNEL_##NAME] = {.name = name_,                                                     \
                           .messages = WEFT_SCOPE_##messages_,                                \
                           .at_rank = WEFT_SCOPE_##at_rank_,                                  \
                           .asynchronous = asynchronous_,                                     \
                           .one_for = one_for_,                                               \
                           .words = words_},
#include <weft/channel_models.def>
};

const struct weft_send_model_info *weft_send_model_info(enum weft_send_model model) {
  return (uint32_t)model < WEFT_SEND_MODEL_COUNT ? &send_models[model] : NULL;
}

const struct weft_channel_model_info *weft_channel_model_info(enum weft_channel_model model) {
  return (uint32_t)model < WEFT_CHANNEL_COUNT ? &channel_models[model] : NULL;
}

/* Behind which a number belongs to the name; NULL: none does. */
static const char *colon_of(const struct weft_send_model_info *info) {
  return strchr(info->name, ':');
}

uint32_t weft_send_model_capacity(enum weft_send_model model, uint32_t slots) {
  assert((uint32_t)model < WEFT_SEND_MODEL_COUNT);
  return colon_of(&send_models[model]) != NULL ? slots : send_models[model].capacity;
}

/* The number that belongs to a name: 0 to just under unlimited. */
static bool read_capacity(const char *text, uint32_t *capacity) {
  uint64_t value = 0;
  if (*text == '\0') {
    return false;
  }
  for (; *text >= '0' && *text <= '9' && value < WEFT_CAPACITY_UNLIMITED; text++) {
    value = 10 * value + (uint64_t)(*text - '0');
  }
  *capacity = (uint32_t)value;
  return *text == '\0' && value < WEFT_CAPACITY_UNLIMITED;
}

static bool is_model(const struct weft_send_model_info *info, const char *text,
                     uint32_t *capacity) {
  const char *colon = colon_of(info);
  const size_t size = colon != NULL ? (size_t)(colon + 1 - info->name) : strlen(info->name) + 1;
  *capacity = info->capacity;
  return strncmp(text, info->name, size) == 0 &&
         (colon == NULL || read_capacity(text + size, capacity));
}

enum weft_status weft_send_model_parse(const char *text, enum weft_send_model *model,
                                       uint32_t *capacity, struct weft_error *error) {
  WEFT_NEED(text, error);
  WEFT_NEED(model, error);
  WEFT_NEED(capacity, error);
  for (uint32_t k = 0; k < WEFT_SEND_MODEL_COUNT; k++) {
    uint32_t found;
    if (is_model(&send_models[k], text, &found)) {
      *model = (enum weft_send_model)k;
      *capacity = found;
      return WEFT_OK;
    }
  }
#define WEFT_SEND_MODEL(NAME, name, ...) " or " name
  static const char names[] =
#include <weft/channel_models.def>
      ;
  return weft_fail(error, WEFT_ERR_USAGE, "K is a number of messages, below 4294967295",
                   "'%.40s' is no communication model; expected %s", text, &names[strlen(" or ")]);
}

void weft_comm_model_print(const struct weft_comm_model *model, struct weft_text *text) {
  assert(model != NULL && text != NULL);
  const struct weft_send_model_info *numbered = NULL;
  for (uint32_t k = 0; k < WEFT_SEND_MODEL_COUNT; k++) {
    const struct weft_send_model_info *info = &send_models[k];
    if (colon_of(info) != NULL) {
      numbered = info;
    } else if (info->capacity == model->capacity && info->row_waits == !model->posted) {
      weft_text_add(text, info->name);
      return;
    }
  }
  assert(numbered != NULL);
  weft_text_append(text, numbered->name, (size_t)(colon_of(numbered) + 1 - numbered->name));
  weft_text_addf(text, "%" PRIu32, model->capacity);
}
