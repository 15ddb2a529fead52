/* Training data: which files are read, in which order, and what batches hold. */
#define _XOPEN_SOURCE 700
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <ftw.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "support_memory.h"
#include "trainer/data/dataset.h"

/* ---- A folder to read from ---- */

struct folder {
  char path[256];
};

static int make_folder(void **state) {
  struct folder *folder = calloc(1, sizeof *folder);
  const char *place = getenv("TMPDIR"); // NOLINT(concurrency-mt-unsafe): one thread
  assert_non_null(folder);
  (void)snprintf(folder->path, sizeof folder->path, "%s/weft-corpus-XXXXXX",
                 place != NULL ? place : "/tmp");
  assert_non_null(mkdtemp(folder->path));
  *state = folder;
  return 0;
}

static int remove_one(const char *path, const struct stat *status, int kind, struct FTW *walk) {
  (void)status;
  (void)kind;
  (void)walk;
  return remove(path);
}

static int remove_folder(void **state) {
  struct folder *folder = *state;
  const int result = nftw(folder->path, remove_one, 16, FTW_DEPTH | FTW_PHYS);
  free(folder);
  return result;
}

static const char *place_of(const struct folder *folder, const char *name) {
  static char path[512];
  (void)snprintf(path, sizeof path, "%s/%s", folder->path, name);
  return path;
}

static void put(const struct folder *folder, const char *name, const void *data, size_t size) {
  FILE *file = fopen(place_of(folder, name), "wb");
  assert_non_null(file);
  assert_int_equal(fwrite(data, 1, size, file), size);
  assert_int_equal(fclose(file), 0);
}

static void put_text(const struct folder *folder, const char *name, const char *text) {
  put(folder, name, text, strlen(text));
}

static void put_folder(const struct folder *folder, const char *name) {
  assert_int_equal(mkdir(place_of(folder, name), 0777), 0);
}

static struct weft_gpt_dataset read_one(const char *path) {
  struct weft_gpt_dataset dataset;
  struct weft_error error;
  if (weft_gpt_dataset_read(&dataset, NULL, &path, 1, 1, &error) != WEFT_OK) {
    fail_msg("%s", error.message);
  }
  return dataset;
}

static void assert_text(const struct weft_gpt_dataset *dataset, const char *text) {
  assert_int_equal(dataset->size, strlen(text));
  assert_memory_equal(dataset->bytes, text, dataset->size);
}

/* ---- What is read ---- */

static void test_files_of_a_folder(void **state) {
  const struct folder *folder = *state;
  put_folder(folder, "b");
  put_folder(folder, "b/deep");
  put_folder(folder, "build");
  put_folder(folder, "build-asan");
  put_folder(folder, ".git");
  put_text(folder, "z.c", "<z.c>");
  put_text(folder, "b/x.h", "<b/x.h>");
  put_text(folder, "b/deep/y.md", "<b/deep/y.md>");
  put_text(folder, "b.txt", "<b.txt>"); /* '.' comes before '/' */
  put_text(folder, "Makefile", "<Makefile>");
  put_text(folder, "CMakeLists.txt", "<CMakeLists.txt>");
  put_text(folder, "builder.py", "<builder.py>"); /* a file, not a folder */
  put_text(folder, "\xc3\xa9.sh", "<e.sh>");      /* bytes above 127 come last */
  put_text(folder, "build/no.c", "<build>");
  put_text(folder, "build-asan/no.c", "<build-asan>");
  put_text(folder, ".git/no.c", "<git>");
  put_text(folder, ".hidden.c", "<hidden>");
  put_text(folder, "picture.png", "<png>");
  put_text(folder, "noending", "<noending>");
  put_text(folder, "c", "<c>");
  put_text(folder, "old.c.orig", "<orig>");
  assert_int_equal(symlink("z.c", place_of(folder, "link.c")), 0);
  assert_int_equal(symlink(".", place_of(folder, "circle")), 0);
  struct weft_gpt_dataset dataset = read_one(folder->path);
  assert_text(&dataset,
              "<CMakeLists.txt><Makefile><b.txt><b/deep/y.md><b/x.h><builder.py><z.c><e.sh>");
  weft_gpt_dataset_finish(&dataset);
  dataset = read_one(place_of(folder, "b/")); /* a slash at the end is fine */
  assert_text(&dataset, "<b/deep/y.md><b/x.h>");
  weft_gpt_dataset_finish(&dataset);
}

static void test_endings(void **state) {
  const struct folder *folder = *state;
  const char *const endings[] = {"c",  "h",  "def",   "md",   "txt", "py",
                                 "sh", "js", "cmake", "bats", "cc"};
  for (size_t k = 0; k < sizeof endings / sizeof *endings; k++) {
    char name[32];
    (void)snprintf(name, sizeof name, "f.%s", endings[k]);
    put_text(folder, name, "x");
  }
  struct weft_gpt_dataset dataset = read_one(folder->path);
  assert_text(&dataset, "xxxxxxxxxxx");
  weft_gpt_dataset_finish(&dataset);
}

/* Files that are named are read whatever they are, in the order given. */
static void test_named_files(void **state) {
  const struct folder *folder = *state;
  char one[512];
  char two[512];
  put(folder, "data.bin", "\0\xff\0\xfe\0", 5);
  put_text(folder, ".a", "hidden");
  (void)snprintf(one, sizeof one, "%s", place_of(folder, "data.bin"));
  (void)snprintf(two, sizeof two, "%s", place_of(folder, ".a"));
  const char *const paths[] = {one, two, one};
  struct weft_gpt_dataset dataset;
  assert_int_equal(weft_gpt_dataset_read(&dataset, NULL, paths, 3, 1, NULL), WEFT_OK);
  assert_int_equal(dataset.size, 16);
  assert_memory_equal(dataset.bytes, "\0\xff\0\xfe\0hidden\0\xff\0\xfe\0", 16);
  assert_int_equal(dataset.train_size, 15);
  weft_gpt_dataset_finish(&dataset);
}

static void make_sparse(const struct folder *folder, const char *name, off_t size) {
  put_text(folder, name, "");
  assert_int_equal(truncate(place_of(folder, name), size), 0);
}

static void test_large_files(void **state) {
  const struct folder *folder = *state;
  put_text(folder, "a.c", "0123456789");
  make_sparse(folder, "b.txt", (16 << 20) + 1); /* not text, in a folder */
  struct weft_gpt_dataset dataset = read_one(folder->path);
  assert_text(&dataset, "0123456789");
  weft_gpt_dataset_finish(&dataset);
  dataset = read_one(place_of(folder, "b.txt"));
  assert_int_equal(dataset.size, (16 << 20) + 1);
  assert_int_equal(dataset.train_size, (16 << 20) + 1 - (16 << 20) / 10);
  weft_gpt_dataset_finish(&dataset);
}

static void test_hash(void **state) {
  const struct folder *folder = *state;
  put_text(folder, "a.c", "0123456789");
  put_text(folder, "b.c", "0123456798");
  struct weft_gpt_dataset one = read_one(place_of(folder, "a.c"));
  struct weft_gpt_dataset again = read_one(place_of(folder, "a.c"));
  struct weft_gpt_dataset two = read_one(place_of(folder, "b.c"));
  assert_true(one.hash == again.hash && one.hash != two.hash);
  weft_gpt_dataset_finish(&one);
  weft_gpt_dataset_finish(&again);
  weft_gpt_dataset_finish(&two);
}

/* ---- What is refused ---- */

static void refuse(const char *path, uint64_t least, enum weft_status status, const char *words) {
  struct weft_gpt_dataset dataset = {.size = 99};
  struct weft_error error = {0};
  assert_int_equal(weft_gpt_dataset_read(&dataset, NULL, &path, 1, least, &error), status);
  assert_int_equal(error.status, status);
  if (strstr(error.message, words) == NULL) {
    fail_msg("\"%s\" does not say \"%s\"", error.message, words);
  }
  assert_int_equal(dataset.size, 99); /* written on success only */
  assert_int_equal(weft_gpt_dataset_read(&dataset, NULL, &path, 1, least, NULL), status);
}

static void test_refused(void **state) {
  const struct folder *folder = *state;
  refuse(place_of(folder, "nowhere"), 1, WEFT_ERR_MISSING, "nowhere cannot be read: No such file");
  refuse(folder->path, 1, WEFT_ERR_USAGE, "0 bytes of text: the tenth that validates has 0");
  put_text(folder, "a.c", "012345678");
  refuse(place_of(folder, "a.c/x"), 1, WEFT_ERR_MISSING, "Not a directory");
  refuse(folder->path, 0, WEFT_ERR_USAGE, "9 bytes of text: the tenth that validates has 0");
  put_text(folder, "a.c", "01234567890123456789");
  refuse(folder->path, 3, WEFT_ERR_USAGE,
         "20 bytes of text: the tenth that validates has 2, expected at least 3");
  assert_int_equal(mkfifo(place_of(folder, "pipe"), 0666), 0);
  refuse(place_of(folder, "pipe"), 1, WEFT_ERR_USAGE, "neither a file nor a folder");
  make_sparse(folder, "data.bin", ((off_t)1 << 30) + 1);
  refuse(place_of(folder, "data.bin"), 1, WEFT_ERR_LIMIT, "data.bin; at most 1073741824 fit");
  refuse("/proc/self/mem", 1, WEFT_ERR_IO, "/proc/self/mem cannot be read: Input/output error");
}

/* Root reads everything, so it becomes nobody for a while. */
static void test_unreadable(void **state) {
  const struct folder *folder = *state;
  const uid_t user = geteuid();
  const uid_t nobody = 65534;
  put_text(folder, "a.c", "0123456789");
  put_folder(folder, "sub");
  assert_int_equal(chmod(place_of(folder, "a.c"), 0), 0);
  assert_int_equal(chmod(place_of(folder, "sub"), 0), 0);
  assert_int_equal(chmod(folder->path, 0755), 0);
  if (user == 0) {
    assert_int_equal(seteuid(nobody), 0);
  }
  refuse(place_of(folder, "a.c"), 1, WEFT_ERR_IO, "a.c cannot be read: Permission denied");
  refuse(folder->path, 1, WEFT_ERR_IO, "sub cannot be looked at: Permission denied");
  assert_int_equal(seteuid(user), 0);
  assert_int_equal(chmod(place_of(folder, "sub"), 0777), 0);
}

static void test_no_paths(void **state) {
  (void)state;
  struct weft_gpt_dataset dataset;
  struct weft_error error;
  assert_int_equal(weft_gpt_dataset_read(&dataset, NULL, NULL, 0, 1, &error), WEFT_ERR_USAGE);
}

/* The k-th allocation fails, for every k; nothing is left behind. */
static void test_memory_failures(void **state) {
  const struct folder *folder = *state;
  char text[3000];
  memset(text, 'x', sizeof text);
  put_folder(folder, "sub");
  for (unsigned k = 0; k < 70; k++) { /* lists grow */
    char name[32];
    (void)snprintf(name, sizeof name, "%s%02u.c", k % 2 ? "sub/" : "", k);
    put(folder, name, text, sizeof text);
  }
  for (uint64_t k = 1;; k++) {
    struct test_memory memory;
    struct weft_gpt_dataset dataset;
    struct weft_error error;
    const char *path = folder->path;
    test_memory_init(&memory);
    memory.fail_at = k;
    const enum weft_status status =
        weft_gpt_dataset_read(&dataset, &memory.allocator, &path, 1, 1, &error);
    if (status == WEFT_OK) {
      assert_int_equal(dataset.size, 70 * sizeof text);
      weft_gpt_dataset_finish(&dataset);
      assert_int_equal(memory.blocks, 0);
      assert_true(k > 5); /* paths share blocks of an arena */
      break;
    }
    assert_int_equal(status, WEFT_ERR_MEMORY);
    assert_non_null(strstr(error.message, "out of memory"));
    assert_int_equal(memory.blocks, 0);
  }
}

/* ---- Batches ---- */

enum { SIZE = 4000, ROWS = 8, TOKENS = 37 };

/* Bytes of the training part are below 128, those that validate are above. */
struct marked {
  uint8_t bytes[SIZE];
  struct weft_gpt_dataset dataset;
};

static void make_marked(struct marked *marked) {
  uint64_t number = 1;
  marked->dataset = (struct weft_gpt_dataset){
      .bytes = marked->bytes, .size = SIZE, .train_size = SIZE - SIZE / 10};
  for (uint32_t k = 0; k < SIZE; k++) {
    number = number * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    marked->bytes[k] = (uint8_t)((number >> 57) | (k >= marked->dataset.train_size ? 128U : 0U));
  }
}

static void test_batch_rows(void **state) {
  (void)state;
  struct marked marked;
  make_marked(&marked);
  for (unsigned validation = 0; validation < 2; validation++) {
    for (uint64_t step = 0; step < 200; step++) {
      uint8_t inputs[ROWS][TOKENS];
      uint8_t targets[ROWS][TOKENS];
      weft_gpt_dataset_batch(&marked.dataset, validation != 0, 5, step, ROWS, TOKENS, &inputs[0][0],
                             &targets[0][0]);
      for (unsigned row = 0; row < ROWS; row++) {
        assert_memory_equal(inputs[row] + 1, targets[row], TOKENS - 1);
        for (unsigned t = 0; t < TOKENS; t++) {
          assert_int_equal(inputs[row][t] >> 7, validation);
          assert_int_equal(targets[row][t] >> 7, validation);
        }
      }
    }
  }
}

/* Every place is a beginning sometimes, the first and the last too. */
static void test_batch_places(void **state) {
  (void)state;
  enum { PART = 40, LENGTH = 30 };
  uint8_t bytes[PART * 10];
  unsigned seen[PART] = {0};
  uint8_t input[LENGTH];
  uint8_t target[LENGTH];
  for (unsigned k = 0; k < sizeof bytes; k++) {
    bytes[k] = (uint8_t)k; /* the last layer's are 104 on */
  }
  const struct weft_gpt_dataset dataset = {
      .bytes = bytes, .size = sizeof bytes, .train_size = 9 * PART};
  for (uint64_t step = 0; step < 1000; step++) {
    weft_gpt_dataset_batch(&dataset, true, 1, step, 1, LENGTH, input, target);
    assert_true(input[0] >= 104 && input[0] < 104 + PART - LENGTH);
    assert_int_equal(target[LENGTH - 1], input[0] + LENGTH);
    seen[input[0] - 104]++;
  }
  for (unsigned k = 0; k < PART - LENGTH; k++) {
    assert_true(seen[k] > 50 && seen[k] < 150);
  }
}

/* The same rows with the tokens that come two further, but for a row at the very end. */
static void test_batch_ahead(void **state) {
  (void)state;
  enum { PART = 40, LENGTH = 30 };
  uint8_t bytes[PART * 10], input[LENGTH], target[LENGTH], same[LENGTH], one[LENGTH], two[LENGTH];
  void *const targets[] = {one, two};
  unsigned moved = 0;
  for (unsigned k = 0; k < sizeof bytes; k++) {
    bytes[k] = (uint8_t)k;
  }
  const struct weft_gpt_dataset dataset = {
      .bytes = bytes, .size = sizeof bytes, .train_size = 9 * PART};
  for (uint64_t step = 0; step < 1000; step++) {
    weft_gpt_dataset_batch(&dataset, true, 1, step, 1, LENGTH, input, target);
    weft_gpt_dataset_batch_ahead(&dataset, true, 1, step, 1, LENGTH, 2, same, targets);
    assert_int_equal(one[LENGTH - 1], same[0] + LENGTH);
    assert_int_equal(two[LENGTH - 1], same[0] + LENGTH + 1);
    moved += same[0] != input[0];
    assert_true(same[0] == input[0] || input[0] == 104 + PART - LENGTH - 1);
  }
  assert_true(moved > 50 && moved < 150);
}

/* Row k of step n is the same, however many rows are asked for. */
static void test_batch_depends(void **state) {
  (void)state;
  struct marked marked;
  uint8_t few[3][TOKENS];
  uint8_t many[ROWS][TOKENS];
  uint8_t other[ROWS][TOKENS];
  uint8_t targets[ROWS][TOKENS];
  make_marked(&marked);
  weft_gpt_dataset_batch(&marked.dataset, false, 5, 9, 3, TOKENS, &few[0][0], &targets[0][0]);
  weft_gpt_dataset_batch(&marked.dataset, false, 5, 9, ROWS, TOKENS, &many[0][0], &targets[0][0]);
  assert_memory_equal(few, many, sizeof few);
  for (unsigned row = 1; row < ROWS; row++) {
    assert_memory_not_equal(many[row - 1], many[row], TOKENS);
  }
  weft_gpt_dataset_batch(&marked.dataset, false, 5, 10, ROWS, TOKENS, &other[0][0], &targets[0][0]);
  assert_memory_not_equal(other, many, sizeof many);
  weft_gpt_dataset_batch(&marked.dataset, false, 6, 9, ROWS, TOKENS, &other[0][0], &targets[0][0]);
  assert_memory_not_equal(other, many, sizeof many);
  weft_gpt_dataset_batch(&marked.dataset, false, 6, 8, ROWS, TOKENS, &other[0][0], &targets[0][0]);
  assert_memory_not_equal(other, many, sizeof many);
}

/* ---- Entropy ---- */

/* a, b, c with 1/2, 1/4, 1/4: 1.5 bits. What validates does not count. */
static void test_unigram(void **state) {
  (void)state;
  uint8_t bytes[] = "aabcaacbzzzz";
  const struct weft_gpt_dataset dataset = {.bytes = bytes, .size = 12, .train_size = 8};
  assert_true(fabs(weft_gpt_dataset_unigram_loss(&dataset) - 1.5 * log(2)) < 1e-14);
  const struct weft_gpt_dataset same = {.bytes = bytes, .size = 12, .train_size = 2};
  assert_true(weft_gpt_dataset_unigram_loss(&same) == 0);
}

#define WITH_FOLDER(test) cmocka_unit_test_setup_teardown(test, make_folder, remove_folder)

int main(void) {
  const struct CMUnitTest tests[] = {
      WITH_FOLDER(test_files_of_a_folder),
      WITH_FOLDER(test_endings),
      WITH_FOLDER(test_named_files),
      WITH_FOLDER(test_large_files),
      WITH_FOLDER(test_hash),
      WITH_FOLDER(test_refused),
      WITH_FOLDER(test_unreadable),
      WITH_FOLDER(test_memory_failures),
      cmocka_unit_test(test_no_paths),
      cmocka_unit_test(test_batch_rows),
      cmocka_unit_test(test_batch_places),
      cmocka_unit_test(test_batch_ahead),
      cmocka_unit_test(test_batch_depends),
      cmocka_unit_test(test_unigram),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
