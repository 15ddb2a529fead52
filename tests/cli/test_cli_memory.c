/* Every command, in this process, with the n-th allocation failing, for every n:
 * exit status 70, no leak, no word on standard output, no file left behind. */
#include <dirent.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "bench/bench.h"
#include "cli/cli_program.h"
#include "support_memory.h"

enum { WORDS_MAX = 16, CALLS_MAX = 100000 };

struct fixture {
  char folder[64];
  int input;    /* what is standard input: a table */
  int output;   /* what is standard output */
  int messages; /* what is standard error */
};

static void write_file(const char *path, const char *text) {
  FILE *file = fopen(path, "w");
  assert_non_null(file);
  assert_int_equal(fwrite(text, 1, strlen(text), file), strlen(text));
  assert_int_equal(fclose(file), 0);
}

static int set_up(void **state) {
  static struct fixture fixture;
  (void)snprintf(fixture.folder, sizeof fixture.folder, "/tmp/weft-cli-memory-XXXXXX");
  if (mkdtemp(fixture.folder) == NULL || chdir(fixture.folder) != 0) {
    return -1;
  }
  write_file("table.csv", "0F0,0F1,,0B0,0B1\n,1F0,1B0,1F1,1B1\n");
  write_file("other.csv", "0F0,0F1,0B0,,0B1\n,1F0,1F1,1B1\n\n");
  write_file("program.csv",
             "0F0,0F1,0SEND_F0,0SEND_F1,0RECV_B0,0RECV_B1,0B0,0B1\n"
             "1RECV_F0,1RECV_F1,1F0,1F1,1B0,1B1,1SEND_B0,1SEND_B1\n");
  write_file("hang.csv",
             "0F0,0F1,0SEND_F0,0RECV_B0,0SEND_F1,0RECV_B1,0B0,0B1\n"
             "1RECV_F0,1F0,1RECV_F1,1F1,1B0,1SEND_B0,1B1,1SEND_B1\n");
  write_file("overlap.csv", "0F0,(0F1;1B0)OVERLAP_F_B,1F0,0I0,0W0\n");
  write_file("malformed.csv", "0F0,0F1\n0F0,junk\n");
  write_file("costs.json",
             "{\"schema\": \"weft-costs/1\", \"unit\": \"ms\", \"stages\": [{\"f\": 2}, {}]}");
  write_file("parts.json",
             "{\"schema\": \"weft-costs/1\", \"stages\": [{}], \"parts\": [{\"f\": 1, \"i\": 1, "
             "\"activation\": 1}, {\"f\": 2, \"i\": 1}, {\"f\": 1, \"i\": 1}, {\"f\": 1}]}");
  write_file("hang.json",
             "{\"schema\": \"weft-hang/2\", \"diagnosis\": {\"culprit\": 0, \"cycle\": [], "
             "\"message\": \"m\", "
             "\"hint\": \"h\"}, \"ranks\": [{\"rank\": 0, \"says\": \"is idle\"}]}");
  fixture.input = open("table.csv", O_RDONLY);
  fixture.output = open("stdout", O_RDWR | O_CREAT | O_TRUNC, 0600);
  fixture.messages = open("stderr", O_RDWR | O_CREAT | O_TRUNC, 0600);
  *state = &fixture;
  return fixture.input >= 0 && fixture.output >= 0 && fixture.messages >= 0 ? 0 : -1;
}

static int tear_down(void **state) {
  const struct fixture *fixture = *state;
  DIR *folder = opendir(".");
  if (folder == NULL) {
    return -1;
  }
  for (const struct dirent *entry; (entry = readdir(folder)) != NULL;) {
    if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0) {
      (void)unlink(entry->d_name);
    }
  }
  (void)closedir(folder);
  return chdir("/") == 0 && rmdir(fixture->folder) == 0 ? 0 : -1;
}

/* Temporary files of the command, and what -o names. */
static unsigned count_outputs(void) {
  unsigned count = 0;
  DIR *folder = opendir(".");
  assert_non_null(folder);
  for (const struct dirent *entry; (entry = readdir(folder)) != NULL;) {
    count += strncmp(entry->d_name, ".weft-", 6) == 0 || strncmp(entry->d_name, "out", 3) == 0;
  }
  (void)closedir(folder);
  return count;
}

static void remove_outputs(void) {
  static const char *const names[] = {"out", "out.svg", "out.html", "out.json"};
  for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
    (void)unlink(names[i]);
  }
}

static off_t size_of(int fd) {
  struct stat status;
  assert_int_equal(fstat(fd, &status), 0);
  return status.st_size;
}

/* Splits the words at blanks and runs them. */
static int run_command(const struct fixture *fixture, const struct weft_allocator *allocator,
                       const char *command) {
  char words[256], *argv[WORDS_MAX];
  int argc = 0;
  (void)snprintf(words, sizeof words, "%s", command);
  for (char *rest = words; argc < WORDS_MAX - 1 && (argv[argc] = strtok_r(NULL, " ", &rest));) {
    argc++;
  }
  argv[argc] = NULL;
  assert_int_equal(lseek(fixture->input, 0, SEEK_SET), 0);
  assert_int_equal(ftruncate(fixture->output, 0), 0);
  assert_int_equal(lseek(fixture->output, 0, SEEK_SET), 0);
  assert_int_equal(ftruncate(fixture->messages, 0), 0);
  assert_int_equal(lseek(fixture->messages, 0, SEEK_SET), 0);
  const struct weft_cli cli = {.allocator = allocator,
                               .input = fixture->input,
                               .output = fixture->output,
                               .messages = fixture->messages};
  return strncmp(command, "weft bench", 10) == 0 ? weft_bench_run(&cli, argc, argv)
                                                 : weft_cli_run(&cli, &weft_program, argc, argv);
}

/* A failing allocation may not be noticed only where the outcome is already
 * decided by something else: text that does not parse; or where it makes an answer worse and
 * not wrong: a plan's bound, and what else its search could have tried. */
static void check_failure(const struct fixture *fixture, const char *command, uint64_t n,
                          int status, int expected) {
  const bool decided = expected == WEFT_CLI_MALFORMED && status == expected;
  if (strncmp(command, "weft plan", 9) == 0 && status == expected) {
    remove_outputs();
    return;
  }
  if (status != WEFT_CLI_INTERNAL && !decided) {
    fail_msg("%s: allocation %llu fails: status %d", command, (unsigned long long)n, status);
  }
  if (size_of(fixture->output) != 0 || count_outputs() != 0) {
    fail_msg("%s: allocation %llu fails: output is left", command, (unsigned long long)n);
  }
  assert_true(size_of(fixture->messages) > 0);
}

static void check_command(const struct fixture *fixture, const char *command, int expected) {
  for (uint64_t n = 1; n < CALLS_MAX; n++) {
    struct test_memory memory;
    test_memory_init(&memory);
    memory.fail_at = n;
    const int status = run_command(fixture, &memory.allocator, command);
    if (memory.blocks != 0) {
      fail_msg("%s: allocation %llu fails: %zu blocks are lost", command, (unsigned long long)n,
               memory.blocks);
    }
    if (memory.calls < n) {
      if (status != expected) {
        fail_msg("%s: status %d instead of %d", command, status, expected);
      }
      remove_outputs();
      return;
    }
    check_failure(fixture, command, n, status, expected);
  }
  fail_msg("%s: never ends", command);
}

static void test_every_verb(void **state) {
  static const struct {
    const char *command;
    int status;
  } commands[] = {
      {"weft --version", 0},
      {"weft --help", 0},
      {"weft help", 0},
      {"weft help gen", 0},
      {"weft help --man", 0},
      {"weft help --completion bash", 0},
      {"weft help --completion zsh", 0},
      {"weft help --completion fish -o out", 0},
      {"weft gen --help", 0},
      {"weft gen --list", 0},
      {"weft gen --list --json", 0},
      {"weft gen 1F1B -p 3 -m 4", 0},
      {"weft gen DualPipeV -p 2 -m 4 --json", 0},
      {"weft gen InterleavedZeroBubble -p 2 -v 2 -m 4 -o out", 0},
      {"weft gen VShaped", 0},
      {"weft lower table.csv", 0},
      {"weft lower", 0},
      {"weft lower --json", 0},
      {"weft lower --merge-bw overlap.csv -o out", 0},
      {"weft verify table.csv", 0},
      {"weft verify program.csv --json", 0},
      {"weft verify hang.csv", 1},
      {"weft verify hang.csv --json -o out", 1},
      {"weft verify other.csv", 1},
      {"weft verify malformed.csv", 65},
      {"weft sim --steps table.csv", 0},
      {"weft sim --steps program.csv -o out", 0},
      {"weft sim --steps hang.csv --json", 1},
      {"weft sim table.csv", 0},
      {"weft sim program.csv --json -o out", 0},
      {"weft sim --costs costs.json --critical-path --jitter 0.1 --runs 2 table.csv", 0},
      {"weft sim --costs costs.json --critical-path --json --channel rank table.csv", 0},
      {"weft sim --slow 1=2 --memory 1 table.csv -o over", 1},
      {"weft sim other.csv", 1},
      {"weft sim --costs malformed.csv table.csv", 65},
      {"weft compare -p 2 -m 4 -v 2", 0},
      {"weft compare -p 2 -m 4 -v 1 --costs costs.json --slow 0=2 --channel pair --json -o out", 0},
      {"weft compare -p 2 -m 4 -v 1 --memory 1 -o over", 1},
      {"weft plan -p 2 -m 2 -v 1 --effort 0 --threads 1", 0},
      {"weft plan -p 2 -m 2 --costs parts.json --memory 2 --effort 0 --threads 1 --json", 0},
      {"weft plan -p 2 -m 2 -v 1 --memory 0.5 -o over", 1},
      {"weft plan --ranks 2 --global-batch 2 --slow 1=2 --costs parts.json --effort 0 --threads 1",
       0},
      {"weft plan -p 2 -m 2 -v 1 --pareto --effort 0 --threads 1", 0},
      {"weft show --grid table.csv", 0},
      {"weft show table.csv", 0},
      {"weft show overlap.csv", 1},
      {"weft show program.csv --hop 1 --slow 1=2", 0},
      {"weft show hang.csv --width 40", 1},
      {"weft show --dark -o out.svg", 0},
      {"weft show table.csv --colour-by stage -o out.svg", 0},
      {"weft show table.csv program.csv -o out.html", 0},
      {"weft show program.csv -o out.json", 0},
      {"weft show other.csv -o out.svg", 1},
      {"weft run table.csv --transport loopback", 0},
      {"weft run program.csv --transport loopback --json --steps 1 -o out", 0},
      {"weft run table.csv --transport loopback --costs costs.json --slow 1=2 -o out", 0},
      {"weft run table.csv --transport loopback --json -o out.html", 0},
      {"weft run table.csv --transport loopback -o out.json", 0},
      {"weft run hang.csv", 1},
      {"weft explain table.csv", 0},
      {"weft explain program.csv", 0},
      {"weft explain program.csv --json -o out", 0},
      {"weft explain overlap.csv --rank 0", 0},
      {"weft explain-hang hang.json", 0},
      {"weft explain-hang hang.json --json -o out", 0},
      {"weft explain-hang table.csv", 65},
      {"weft diff table.csv other.csv", 1},
      {"weft diff table.csv other.csv --json", 1},
      {"weft diff table.csv table.csv -o out", 0},
      {"weft bench --list", 0},
      {"weft bench plan -p 2 -m 4 --repeats 1", 0},
      {"weft bench plan -p 2 -m 4 --repeats 2 --large --actions 300 --json", 0},
      {"weft bench sim -p 2 -m 4 --repeats 1", 0},
      {"weft bench sim -p 2 -m 4 --repeats 1 --large --actions 300 --json", 0},
      {"weft doctor", 0},
      {"weft doctor --json", 0},
  };
  for (size_t i = 0; i < sizeof commands / sizeof commands[0]; i++) {
    check_command(*state, commands[i].command, commands[i].status);
  }
}

/* ---- Memory of a run ---- */

/* Tables of so many rows. */
enum table { ONE_WORKS, ONE_HAS_ALL_STAGES, ALL_WORK, TABLES };

static void write_table(enum table kind, unsigned rows) {
  FILE *file = fopen("rows.csv", "w");
  assert_non_null(file);
  for (unsigned r = 0; r < rows; r++) {
    if (kind == ALL_WORK) {
      (void)fprintf(file, "%uF0,%uB0", r, r);
    }
    for (unsigned s = 0; r == 0 && kind != ALL_WORK && s < (kind == ONE_WORKS ? 1 : rows); s++) {
      (void)fprintf(file, "%s%uF0", s > 0 ? "," : "", s);
    }
    assert_true(fputc('\n', file) == '\n');
  }
  assert_int_equal(fclose(file), 0);
}

static size_t peak_of_run(const struct fixture *fixture, enum table kind, unsigned rows) {
  struct test_memory memory;
  test_memory_init(&memory);
  write_table(kind, rows);
  assert_int_equal(
      run_command(fixture, &memory.allocator,
                  "weft run rows.csv --transport loopback --stage null --steps 1 --unchecked"),
      0);
  assert_int_equal(memory.blocks, 0);
  return memory.bytes_peak;
}

/* Twice the rows need twice the memory, and not four times as much. */
static void test_runs_are_linear_in_rows(void **state) {
  enum { ROWS = 300 };
  for (enum table kind = 0; kind < TABLES; kind++) {
    const size_t once = peak_of_run(*state, kind, ROWS);
    const size_t twice = peak_of_run(*state, kind, 2 * ROWS);
    if (twice >= 5 * once / 2) {
      fail_msg("table %d: %zu bytes for %d rows, %zu for %d", kind, once, ROWS, twice, 2 * ROWS);
    }
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_every_verb),
                                     cmocka_unit_test(test_runs_are_linear_in_rows)};
  return cmocka_run_group_tests(tests, set_up, tear_down);
}
