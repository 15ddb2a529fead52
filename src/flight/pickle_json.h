/* JSON as the values of a pickle, for dumps that were written as JSON. */
#ifndef FLIGHT_PICKLE_JSON_H
#define FLIGHT_PICKLE_JSON_H

#include "flight/pickle.h"

/* As weft_pickle_read(); texts are in the arena. */
enum weft_status weft_pickle_from_json(struct weft_arena *arena, const char *text, size_t size,
                                       const char *name, const struct weft_pickle_value **out,
                                       struct weft_error *error);

#endif
