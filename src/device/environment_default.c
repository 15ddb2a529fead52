/* See environment_default.h. */
#include "device/environment_default.h"

#include <assert.h>
#include <stdlib.h>

void weft_environment_default(enum weft_environment_variable variable, const char *value) {
  static const char *const names[] = {
#define NAME(name) #name,
      WEFT_ENVIRONMENT_VARIABLES(NAME)
#undef NAME
  };
  assert(variable < sizeof names / sizeof names[0] && value != NULL);
  (void)setenv(names[variable], value, 0);
}
