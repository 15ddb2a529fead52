/* Libraries that are loaded at run time: drivers, and what a machine may have or not. One that is
 * loaded stays loaded, so that pointers into it stay valid. */
#include <assert.h>
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include <weft/support.h>

void *weft_library_open(const char *name, bool global, const char **reason) {
  assert(name != NULL);
  void *library = dlopen(name, RTLD_NOW | (global ? RTLD_GLOBAL | RTLD_NODELETE : RTLD_LOCAL));
  if (library == NULL && reason != NULL) {
    const char *text = dlerror();
    *reason = text != NULL ? text : "unknown";
  }
  return library;
}

/* A pointer to a function out of dlsym() goes through memory: ISO C has no such cast. */
const char *weft_library_find(void *library, const struct weft_library_symbol *symbols,
                              size_t count) {
  assert(library != NULL && (symbols != NULL || count == 0));
  for (size_t k = 0; k < count; k++) {
    void *found = dlsym(library, symbols[k].name);
    if (found == NULL && !symbols[k].optional) {
      return symbols[k].name;
    }
    memcpy(symbols[k].function, (const void *)&found, sizeof found);
  }
  return NULL;
}

static enum weft_status load_library(const struct weft_library *library, struct weft_error *error) {
  void *handle = NULL;
  assert(library->name_count > 0);
  for (size_t k = 0; handle == NULL && k < library->name_count; k++) {
    handle = weft_library_open(library->names[k], false, NULL);
  }
  if (handle == NULL) {
    return weft_fail(error, WEFT_ERR_UNAVAILABLE, library->hint,
                     "there is no %s here: %s is not found", library->title, library->names[0]);
  }
  const char *missing = weft_library_find(handle, library->symbols, library->symbol_count);
  if (missing != NULL) {
    return weft_fail(error, WEFT_ERR_UNAVAILABLE, library->hint, "%s is too old: it has no %s",
                     library->names[0], missing);
  }
  return library->start != NULL ? library->start(error) : WEFT_OK;
}

enum weft_status weft_library_load(struct weft_library *library, struct weft_error *error) {
  static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
  (void)pthread_mutex_lock(&lock);
  if (!library->is_tried) {
    (void)load_library(library, &library->outcome);
    library->is_tried = true;
  }
  (void)pthread_mutex_unlock(&lock);
  if (library->outcome.status < 0 && error != NULL) {
    *error = library->outcome;
  }
  return library->outcome.status;
}

static void *open_accepted(const char *name, bool any,
                           bool (*accepts)(void *library, bool any, void *context), void *context) {
  void *library = weft_library_open(name, false, NULL);
  if (library != NULL && !accepts(library, any, context)) {
    (void)dlclose(library);
    library = NULL;
  }
  return library;
}

void *weft_library_open_version(const char *file, const char *folder, int oldest, int newest,
                                bool (*accepts)(void *library, bool any, void *context),
                                void *context) {
  char name[256];
  for (int any = 0; any <= 1; any++) {
    void *library = NULL;
    for (int major = newest + any; library == NULL && major >= oldest; major--) {
      (void)snprintf(name, sizeof name, "%s.%d", file, major);
      library = open_accepted(name, any != 0, accepts, context);
    }
    library = library != NULL ? library : open_accepted(file, any != 0, accepts, context);
    if (library == NULL) {
      (void)snprintf(name, sizeof name, "%s/%s", folder, file);
      library = open_accepted(name, any != 0, accepts, context);
    }
    if (library != NULL) {
      return library;
    }
  }
  return NULL;
}
