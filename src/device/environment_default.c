/* See environment_default.h. */
#include "device/environment_default.h"

#include <stdlib.h>

void weft_environment_default(enum weft_environment_variable variable, const char *value) {
  static const char *const names[] = {
#define NAME(name) #name,
      WEFT_ENVIRONMENT_VARIABLES(NAME)
#undef NAME
  };
  (void)setenv(names[variable], value, 0);
}
