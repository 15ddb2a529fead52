/* The corpus of known hangs: each program of tests/corpus/hangs has one verdict
 * per communication model, written in verdicts.txt next to it. The verifier must
 * give exactly those, its cycles must replay, and one run of the program must
 * agree. PyTorch's dry run knows neither full channels nor their order: it must
 * accept exactly what unlimited buffers make complete. */
#include <dirent.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <weft/weft.h>

#include "support_csv.h"
#include "support_oracle.h"

#define CORPUS "tests/corpus/hangs"
#define ENTRIES_MAX 64u

struct entry {
  char name[64];
  char verdicts[ORACLE_MODELS][32];
  char thread[64];
  char story[256];
};

static struct entry entries[ENTRIES_MAX];
static size_t entry_count;

static void read_entry(const char *line) {
  struct entry *entry = &entries[entry_count++];
  assert_in_range(entry_count, 1, ENTRIES_MAX);
  char(*v)[32] = entry->verdicts;
  const int fields = sscanf(line,
                            "%63s | %31s %31s %31s | %31s %31s %31s | %31s %31s %31s | %31s %31s "
                            "%31s | %63s | %255[^\n]",
                            entry->name, v[0], v[1], v[2], v[3], v[4], v[5], v[6], v[7], v[8], v[9],
                            v[10], v[11], entry->thread, entry->story);
  if (fields != 15) {
    fail_msg("verdicts.txt: cannot read: %s", line);
  }
}

static int read_verdicts(void **state) {
  (void)state;
  char *text = csv_read_file(CORPUS "/verdicts.txt");
  for (char *line = text; *line != '\0';) {
    char *end = strchr(line, '\n');
    assert_non_null(end);
    *end = '\0';
    if (line[0] != '#' && line[0] != '\0') {
      read_entry(line);
    }
    line = end + 1;
  }
  free(text);
  return 0;
}

static struct weft_program *read_program(const struct entry *entry) {
  char path[160];
  (void)snprintf(path, sizeof path, CORPUS "/%.63s.csv", entry->name);
  char *text = csv_read_file(path);
  struct weft_program *program = csv_program(text);
  free(text);
  return program;
}

static bool verdict_is(const struct entry *entry, uint32_t model, const char *verdict) {
  return strcmp(entry->verdicts[model], verdict) == 0;
}

/* The one run of the program against the verdict and, if any, the cycle. */
static void check_run(const struct entry *entry, const struct weft_program *program, uint32_t model,
                      const struct weft_report *report) {
  struct oracle oracle;
  struct oracle_run run;
  assert_true(oracle_init(&oracle, program));
  oracle_run(&oracle, oracle_model(model), &run);
  assert_int_equal(run.complete, verdict_is(entry, model, "ok"));
  if (!run.complete) {
    const char *complaint = oracle_replay(program, &oracle, &run, &report->findings[0]);
    if (complaint != NULL) {
      fail_msg("%s, %s: %s", entry->name, oracle_model_name(model), complaint);
    }
  }
  oracle_run_finish(&run);
  oracle_finish(&oracle);
}

static void check_verdict(const struct entry *entry, const struct weft_program *program,
                          uint32_t model) {
  struct weft_verify_options options = weft_verify_options_default();
  struct weft_report *report = NULL;
  struct weft_error error = {0};
  options.model = oracle_model(model);
  assert_int_equal(weft_verify(NULL, program, &options, &report, &error), WEFT_OK);
  const char *found = report->ok ? "ok" : weft_rule_id(report->findings[0].rule);
  if (!verdict_is(entry, model, found)) {
    fail_msg("%s, %s: %s instead of %s%s%s", entry->name, oracle_model_name(model), found,
             entry->verdicts[model], report->ok ? "" : ": ",
             report->ok ? "" : report->findings[0].message);
  }
  if (verdict_is(entry, model, "ok") || verdict_is(entry, model, "deadlock")) {
    assert_int_equal(report->finding_count, report->ok ? 0 : 1);
    check_run(entry, program, model, report);
  }
  weft_report_destroy(report);
}

static void one_verdict_per_model(void **state) {
  (void)state;
  for (size_t k = 0; k < entry_count; k++) {
    struct weft_program *program = read_program(&entries[k]);
    for (uint32_t model = 0; model < ORACLE_MODELS; model++) {
      check_verdict(&entries[k], program, model);
    }
    weft_program_destroy(program);
  }
}

/* Model 9 is eager/edge. Where the structure is at fault the dry run may say
 * what it likes. */
static void the_dry_run_sees_only_data(void **state) {
  (void)state;
  size_t accepted_hangs = 0;
  for (size_t k = 0; k < entry_count; k++) {
    const struct entry *entry = &entries[k];
    const bool completes = verdict_is(entry, 9, "ok");
    if (!completes && !verdict_is(entry, 9, "deadlock")) {
      continue;
    }
    struct weft_program *program = read_program(entry), *steps = NULL;
    struct weft_error error = {0};
    if (program->level == WEFT_LEVEL_COMMS) {
      assert_int_equal(weft_dry_run(NULL, program, &steps, &error),
                       completes ? WEFT_OK : WEFT_ERR_INVALID);
      accepted_hangs += completes && !verdict_is(entry, 0, "ok");
    }
    weft_program_destroy(steps);
    weft_program_destroy(program);
  }
  assert_true(accepted_hangs >= 5);
}

static const struct entry *find_entry(const char *name, size_t size) {
  for (size_t k = 0; k < entry_count; k++) {
    if (strlen(entries[k].name) == size && memcmp(entries[k].name, name, size) == 0) {
      return &entries[k];
    }
  }
  return NULL;
}

static void the_corpus_is_whole(void **state) {
  (void)state;
  size_t hangs = 0, near_misses = 0, files = 0;
  for (size_t k = 0; k < entry_count; k++) {
    const bool near = strncmp(entries[k].name, "near_", 5) == 0;
    assert_int_equal(near, verdict_is(&entries[k], 0, "ok"));
    hangs += !near;
    near_misses += near;
  }
  assert_true(hangs >= 16);
  assert_true(near_misses >= 4);
  DIR *folder = opendir(WEFT_SOURCE_DIR "/" CORPUS);
  assert_non_null(folder);
  for (const struct dirent *file; (file = readdir(folder)) != NULL;) {
    const char *ending = strrchr(file->d_name, '.');
    if (ending != NULL && strcmp(ending, ".csv") == 0) {
      assert_non_null(find_entry(file->d_name, (size_t)(ending - file->d_name)));
      files++;
    }
  }
  (void)closedir(folder);
  assert_int_equal(files, entry_count);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(the_corpus_is_whole),
      cmocka_unit_test(one_verdict_per_model),
      cmocka_unit_test(the_dry_run_sees_only_data),
  };
  return cmocka_run_group_tests(tests, read_verdicts, NULL);
}
