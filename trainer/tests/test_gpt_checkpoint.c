/* Checkpoints: what is written is read back exactly, damage of any bit is seen, and a
 * save that is made to fail or is killed at any of its operations leaves the state
 * before or the one after.
 *
 * With words it is a tool for the test of Python's reader: `write DIR` writes a
 * checkpoint, `same DIR DIR` compares two. */
#define _GNU_SOURCE /* unshare */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <float.h>
#include <ftw.h>
#include <inttypes.h>
#include <math.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "support_memory.h"
#include "trainer/checkpoint/checkpoint.h"
#include "trainer/checkpoint/checkpoint_folder.h"
#include "trainer/model/aligned_memory.h"

#define PARTS 3

/* ---- A model's state ---- */

struct model {
  struct weft_gpt_training training;
  struct weft_gpt_layer_state layers[PARTS];
};

static uint64_t next_random(uint64_t *state) {
  uint64_t z = *state += UINT64_C(0x9e3779b97f4a7c15);
  z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
  z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
  return z ^ (z >> 31);
}

/* Any bits: infinities and what is not a number come back as well. */
static void fill(const struct weft_gpt_config *config, uint32_t layer, float *floats,
                 uint64_t seed) {
  struct weft_gpt_parameter parameters[WEFT_GPT_PARAMETERS_MAX];
  const uint32_t count = weft_gpt_layer_parameters(config, layer, parameters);
  for (uint32_t k = 0; k < count; k++) {
    for (uint64_t i = 0; i < parameters[k].count; i++) {
      const uint32_t bits = (uint32_t)next_random(&seed);
      memcpy(&floats[parameters[k].offset + i], &bits, sizeof bits);
    }
  }
}

static float *floats_of(uint64_t count) {
  float *floats = weft_gpt_allocate(NULL, count, sizeof *floats);
  assert_non_null(floats);
  return floats;
}

/* Different in everything for each seed, but for the shape. */
static struct weft_gpt_training progress_of(uint64_t step, uint64_t seed) {
  return (struct weft_gpt_training){
      .config = {.blocks = PARTS - 2,
                 .dim = 2,
                 .heads = 1,
                 .context = 2,
                 .vocabulary = 256,
                 .tied = seed % 2 == 1,
                 .seed = UINT64_MAX - seed},
      .step = step,
      .data_hash = UINT64_C(0xfedcba9876543210) ^ seed,
      .data_seed = (UINT64_C(1) << 53) + seed,
      .batch = 48 + seed,
      .microbatches = (uint32_t)(8 + seed),
      .rate = 3e-4 / (double)(seed + 1),
      .rate_min = 1.0 / 3.0,
      .beta1 = 0.9,
      .beta2 = 0.95,
      .epsilon = DBL_TRUE_MIN,
      .decay = 0.1 + (double)seed,
      .clip = 1,
      .warmup_steps = 0,
      .total_steps = INT64_MAX,
  };
}

static struct model model_blank(uint64_t step, uint64_t seed) {
  struct model model = {.training = progress_of(step, seed)};
  for (uint32_t k = 0; k < PARTS; k++) {
    const uint64_t floats = weft_gpt_layer_floats(&model.training.config, k);
    model.layers[k] = (struct weft_gpt_layer_state){.layer = k,
                                                    .floats = floats,
                                                    .parameters = floats_of(floats),
                                                    .first_moment = floats_of(floats),
                                                    .second_moment = floats_of(floats)};
  }
  return model;
}

static struct model model_of(uint64_t step, uint64_t seed) {
  struct model model = model_blank(step, seed);
  for (uint32_t k = 0; k < PARTS; k++) {
    fill(&model.training.config, k, model.layers[k].parameters, 100 * seed + k);
    fill(&model.training.config, k, model.layers[k].first_moment, 100 * seed + 10 + k);
    fill(&model.training.config, k, model.layers[k].second_moment, 100 * seed + 20 + k);
  }
  return model;
}

static void model_free(struct model *model) {
  for (uint32_t k = 0; k < PARTS; k++) {
    weft_gpt_free(NULL, model->layers[k].parameters);
    weft_gpt_free(NULL, model->layers[k].first_moment);
    weft_gpt_free(NULL, model->layers[k].second_moment);
  }
}

static bool same_progress(const struct weft_gpt_training *a, const struct weft_gpt_training *b) {
  return a->config.blocks == b->config.blocks && a->config.dim == b->config.dim &&
         a->config.heads == b->config.heads && a->config.context == b->config.context &&
         a->config.vocabulary == b->config.vocabulary && a->config.tied == b->config.tied &&
         a->config.seed == b->config.seed && a->step == b->step && a->data_hash == b->data_hash &&
         a->data_seed == b->data_seed && a->batch == b->batch &&
         a->microbatches == b->microbatches && a->rate == b->rate && a->rate_min == b->rate_min &&
         a->beta1 == b->beta1 && a->beta2 == b->beta2 && a->epsilon == b->epsilon &&
         a->decay == b->decay && a->clip == b->clip && a->warmup_steps == b->warmup_steps &&
         a->total_steps == b->total_steps;
}

static bool same_layer(const struct weft_gpt_layer_state *a, const struct weft_gpt_layer_state *b) {
  const size_t size = a->floats * sizeof(float);
  return a->floats == b->floats && memcmp(a->parameters, b->parameters, size) == 0 &&
         memcmp(a->first_moment, b->first_moment, size) == 0 &&
         memcmp(a->second_moment, b->second_moment, size) == 0;
}

static bool same_model(const struct model *a, const struct model *b) {
  bool same = same_progress(&a->training, &b->training);
  for (uint32_t k = 0; k < PARTS; k++) {
    same = same && same_layer(&a->layers[k], &b->layers[k]);
  }
  return same;
}

/* ---- Saving and loading ---- */

static enum weft_status save(const struct weft_gpt_files *files, const char *dir,
                             const struct model *model, uint32_t keep, struct weft_error *error) {
  struct weft_gpt_layer_file written[PARTS];
  enum weft_status status = WEFT_OK;
  for (uint32_t k = 0; k < PARTS && status == WEFT_OK; k++) {
    status =
        weft_gpt_checkpoint_write_layer(files, dir, &model->training.config, model->training.step,
                                        &model->layers[k], &written[k], error);
  }
  if (status == WEFT_OK) {
    status = weft_gpt_checkpoint_commit(files, dir, &model->training, written, keep, error);
  }
  return status;
}

static void saved(const char *dir, const struct model *model, uint32_t keep) {
  struct weft_error error;
  if (save(NULL, dir, model, keep, &error) != WEFT_OK) {
    fail_msg("%s", error.message);
  }
}

static enum weft_status load_with(const struct weft_allocator *allocator, const char *dir,
                                  struct model *model, struct weft_error *error) {
  struct weft_gpt_checkpoint *checkpoint;
  enum weft_status status = weft_gpt_checkpoint_open(allocator, dir, &checkpoint, error);
  if (status != WEFT_OK) {
    return status;
  }
  model->training = *weft_gpt_checkpoint_training(checkpoint);
  for (uint32_t k = 0; k < PARTS && status == WEFT_OK; k++) {
    status = weft_gpt_checkpoint_read_layer(checkpoint, &model->layers[k], error);
  }
  weft_gpt_checkpoint_close(checkpoint);
  return status;
}

/* Whether `dir` holds exactly this; NULL: whether it holds nothing. */
static bool holds(const char *dir, const struct model *expected) {
  struct model model = model_blank(0, 0);
  struct weft_error error;
  const enum weft_status status = load_with(NULL, dir, &model, &error);
  const bool same = expected == NULL ? status == WEFT_ERR_MISSING
                                     : status == WEFT_OK && same_model(&model, expected);
  model_free(&model);
  return same;
}

/* ---- Folders ---- */

static int remove_entry(const char *path, const struct stat *status, int type, struct FTW *place) {
  (void)status;
  (void)type;
  (void)place;
  return remove(path);
}

static void remove_tree(const char *path) {
  if (access(path, F_OK) == 0) {
    assert_int_equal(nftw(path, remove_entry, 16, FTW_DEPTH | FTW_PHYS), 0);
  }
}

/* In memory if there is such a place: hundreds of fsyncs are slow elsewhere. */
static int make_scratch(void **state) {
  const char *base = access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp";
  char *path = malloc(64);
  assert_non_null(path);
  (void)snprintf(path, 64, "%s/weft-test-XXXXXX", base);
  assert_non_null(mkdtemp(path));
  *state = path;
  return 0;
}

static int drop_scratch(void **state) {
  remove_tree(*state);
  free(*state);
  return 0;
}

/* SCRATCH/c, which is not there. */
static struct weft_gpt_path fresh(void **state) {
  struct weft_gpt_path dir;
  assert_int_equal(weft_gpt_path_join(&dir, *state, "c", NULL), WEFT_OK);
  remove_tree(dir.text);
  return dir;
}

static struct weft_gpt_path inside(const char *dir, const char *name) {
  struct weft_gpt_path path;
  assert_int_equal(weft_gpt_path_join(&path, dir, name, NULL), WEFT_OK);
  return path;
}

static int by_name(const void *a, const void *b) { return strcmp(a, b); }

/* The names in a folder, in order, each followed by a space. */
static void list(const char *dir, char *text, size_t size) {
  char names[64][64];
  size_t count = 0;
  DIR *stream = opendir(dir);
  text[0] = '\0';
  assert_non_null(stream);
  for (const struct dirent *entry; (entry = readdir(stream)) != NULL;) {
    if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0) {
      assert_true(count < 64);
      (void)snprintf(names[count++], 64, "%.63s", entry->d_name);
    }
  }
  closedir(stream);
  qsort(names, count, sizeof *names, by_name);
  for (size_t k = 0; k < count; k++) {
    const size_t used = strlen(text);
    (void)snprintf(text + used, size - used, "%s ", names[k]);
  }
}

static void contains(const char *dir, const char *expected) {
  char names[2048];
  list(dir, names, sizeof names);
  assert_string_equal(names, expected);
}

#define COMPLETE "manifest.json part-0000.safetensors part-0001.safetensors part-0002.safetensors "

static void make_file(const char *path, const char *text) {
  FILE *file = fopen(path, "w");
  assert_non_null(file);
  assert_true(fputs(text, file) >= 0);
  assert_int_equal(fclose(file), 0);
}

/* ---- Round trips ---- */

static void test_what_is_saved_is_loaded(void **state) {
  const struct weft_gpt_path dir = fresh(state);
  struct model first = model_of(7, 1), second = model_of(200, 2);
  assert_true(holds(dir.text, NULL));
  saved(dir.text, &first, 0);
  assert_true(holds(dir.text, &first));
  saved(dir.text, &second, 0);
  assert_true(holds(dir.text, &second));
  contains(dir.text, "step-00000007 step-00000200 ");
  const struct weft_gpt_path old = inside(dir.text, "step-00000007");
  contains(old.text, COMPLETE);
  assert_true(holds(old.text, &first));
  assert_true(holds(inside(dir.text, "step-00000200/").text, &second));
  model_free(&first);
  model_free(&second);
}

/* A real disk, a path with a slash at its end, and a relative one. */
static void test_any_path_to_the_folder(void **state) {
  (void)state;
  struct model model = model_of(1, 1);
  char base[] = "/tmp/weft-test-XXXXXX", before[4096];
  assert_non_null(mkdtemp(base));
  saved(inside(base, "deep/").text, &model, 1);
  assert_true(holds(inside(base, "deep").text, &model));
  assert_non_null(getcwd(before, sizeof before));
  assert_int_equal(chdir(base), 0);
  saved("near", &model, 1);
  assert_true(holds("./near", &model));
  assert_true(holds("near/step-00000001", &model));
  assert_int_equal(chdir(before), 0);
  remove_tree(base);
  model_free(&model);
}

static void test_numbers_come_back_exactly(void **state) {
  const struct weft_gpt_path dir = fresh(state);
  struct model model = model_of(3, 1);
  uint64_t seed = 5;
  for (int trial = 0; trial < 200; trial++) {
    double *const reals[] = {&model.training.rate,  &model.training.rate_min, &model.training.beta1,
                             &model.training.beta2, &model.training.epsilon,  &model.training.decay,
                             &model.training.clip};
    for (size_t k = 0; k < 7; k++) {
      do {
        const uint64_t bits = next_random(&seed);
        memcpy(reals[k], &bits, sizeof bits);
      } while (!isfinite(*reals[k]));
    }
    model.training.data_hash = next_random(&seed);
    model.training.config.seed = next_random(&seed);
    model.training.warmup_steps = next_random(&seed) >> 1;
    saved(dir.text, &model, 1);
    assert_true(holds(dir.text, &model));
  }
  model_free(&model);
}

static void test_numbers_that_json_cannot_hold(void **state) {
  const struct weft_gpt_path dir = fresh(state);
  struct model old = model_of(1, 1), model = model_of(2, 2);
  struct weft_error error;
  saved(dir.text, &old, 0);
  model.training.clip = (double)INFINITY;
  assert_int_equal(save(NULL, dir.text, &model, 0, &error), WEFT_ERR_USAGE);
  assert_string_equal(error.message, "clip is inf, which a checkpoint cannot hold");
  model.training.clip = 1;
  model.training.total_steps = UINT64_MAX;
  assert_int_equal(save(NULL, dir.text, &model, 0, &error), WEFT_ERR_USAGE);
  assert_non_null(strstr(error.message, "total_steps is 18446744073709551615"));
  assert_true(holds(dir.text, &old));
  model_free(&old);
  model_free(&model);
}

static void test_weights_alone(void **state) {
  const struct weft_gpt_path dir = fresh(state);
  struct model model = model_of(7, 1), other = model_blank(0, 0);
  struct weft_gpt_checkpoint *checkpoint;
  saved(dir.text, &model, 0);
  assert_int_equal(weft_gpt_checkpoint_open(NULL, dir.text, &checkpoint, NULL), WEFT_OK);
  struct weft_gpt_layer_state layer = other.layers[1];
  layer.first_moment = layer.second_moment = NULL;
  assert_int_equal(weft_gpt_checkpoint_read_layer(checkpoint, &layer, NULL), WEFT_OK);
  assert_memory_equal(layer.parameters, model.layers[1].parameters, layer.floats * sizeof(float));
  weft_gpt_checkpoint_close(checkpoint);
  weft_gpt_checkpoint_close(NULL);
  model_free(&model);
  model_free(&other);
}

static void test_another_model_is_refused(void **state) {
  const struct weft_gpt_path dir = fresh(state);
  struct model model = model_of(7, 1);
  struct weft_gpt_checkpoint *checkpoint;
  struct weft_error error;
  saved(dir.text, &model, 0);
  assert_int_equal(weft_gpt_checkpoint_open(NULL, dir.text, &checkpoint, &error), WEFT_OK);
  struct weft_gpt_layer_state layer = model.layers[2];
  layer.layer = 3;
  assert_int_equal(weft_gpt_checkpoint_read_layer(checkpoint, &layer, &error), WEFT_ERR_USAGE);
  assert_non_null(strstr(error.message, "has 3 parts; there is no part 3"));
  layer = model.layers[2];
  layer.floats += 16;
  assert_int_equal(weft_gpt_checkpoint_read_layer(checkpoint, &layer, &error), WEFT_ERR_USAGE);
  assert_non_null(strstr(error.message, "floats; expected"));
  weft_gpt_checkpoint_close(checkpoint);
  model_free(&model);
}

static void test_no_memory_is_said_and_none_is_lost(void **state) {
  const struct weft_gpt_path dir = fresh(state);
  struct model model = model_of(7, 1), other = model_blank(0, 0);
  struct test_memory memory;
  saved(dir.text, &model, 0);
  enum weft_status status = WEFT_ERR_MEMORY;
  uint64_t failures = 0;
  for (uint64_t n = 1; status != WEFT_OK; n++) {
    struct weft_error error;
    test_memory_init(&memory);
    memory.fail_at = n;
    status = load_with(&memory.allocator, dir.text, &other, &error);
    assert_true(status == WEFT_OK || (status == WEFT_ERR_MEMORY && error.status == status));
    assert_int_equal(memory.blocks, 0);
    failures += status != WEFT_OK;
  }
  assert_true(failures >= 5);
  assert_true(same_model(&model, &other));
  model_free(&model);
  model_free(&other);
}

struct writer {
  pthread_t thread;
  const char *dir;
  const struct model *model;
  uint32_t layer;
  struct weft_gpt_layer_file written;
  enum weft_status status;
};

static void *write_layer(void *context) {
  struct writer *writer = context;
  writer->status = weft_gpt_checkpoint_write_layer(
      NULL, writer->dir, &writer->model->training.config, writer->model->training.step,
      &writer->model->layers[writer->layer], &writer->written, NULL);
  return NULL;
}

static void test_layers_are_written_at_once(void **state) {
  for (uint64_t trial = 0; trial < 20; trial++) {
    const struct weft_gpt_path dir = fresh(state);
    struct model model = model_of(trial, trial);
    struct writer writers[PARTS];
    struct weft_gpt_layer_file written[PARTS];
    for (uint32_t k = 0; k < PARTS; k++) {
      writers[k] = (struct writer){.dir = dir.text, .model = &model, .layer = k};
      assert_int_equal(pthread_create(&writers[k].thread, NULL, write_layer, &writers[k]), 0);
    }
    for (uint32_t k = 0; k < PARTS; k++) {
      pthread_join(writers[k].thread, NULL);
      assert_int_equal(writers[k].status, WEFT_OK);
      written[k] = writers[k].written;
    }
    assert_int_equal(weft_gpt_checkpoint_commit(NULL, dir.text, &model.training, written, 0, NULL),
                     WEFT_OK);
    assert_true(holds(dir.text, &model));
    model_free(&model);
  }
}

/* ---- Which one, and what goes ---- */

static void test_keep(void **state) {
  const struct weft_gpt_path dir = fresh(state);
  struct model models[5];
  for (uint64_t k = 0; k < 5; k++) {
    models[k] = model_of(10 * (k + 1), k);
    saved(dir.text, &models[k], k < 3 ? 0 : 2);
    assert_true(holds(dir.text, &models[k]));
    contains(dir.text,
             (const char *[]){"step-00000010 ", "step-00000010 step-00000020 ",
                              "step-00000010 step-00000020 step-00000030 ",
                              "step-00000030 step-00000040 ", "step-00000040 step-00000050 "}[k]);
  }
  /* Older ones count from the one that is written; newer ones are left alone. */
  struct model again = model_of(45, 9);
  saved(dir.text, &again, 1);
  contains(dir.text, "step-00000045 step-00000050 ");
  assert_true(holds(dir.text, &models[4]));
  assert_true(holds(inside(dir.text, "step-00000045").text, &again));
  model_free(&again);
  for (uint64_t k = 0; k < 5; k++) {
    model_free(&models[k]);
  }
}

static void test_a_step_is_written_again(void **state) {
  const struct weft_gpt_path dir = fresh(state);
  const struct weft_gpt_path step = inside(dir.text, "step-00000007");
  struct model first = model_of(7, 1), second = model_of(7, 2);
  saved(dir.text, &first, 1);
  for (int trial = 0; trial < 3; trial++) {
    struct model *model = trial % 2 == 0 ? &second : &first;
    saved(dir.text, model, 1);
    assert_true(holds(dir.text, model));
    char names[2048];
    list(step.text, names, sizeof names);
    unsigned long long sums[PARTS];
    int length = 0;
    assert_int_equal(sscanf(names,
                            "manifest.json part-0000.%16llx.safetensors part-0001.%16llx"
                            ".safetensors part-0002.%16llx.safetensors %n",
                            &sums[0], &sums[1], &sums[2], &length),
                     PARTS);
    assert_int_equal(length, strlen(names));
  }
  model_free(&first);
  model_free(&second);
}

/* What a run that stopped has left, and what is not ours. */
static void test_leftovers(void **state) {
  const struct weft_gpt_path dir = fresh(state);
  struct model first = model_of(10, 1), second = model_of(20, 2);
  saved(dir.text, &first, 0);
  assert_int_equal(mkdir(inside(dir.text, "step-00000015").text, 0777), 0);
  make_file(inside(dir.text, "step-00000015/.weft-part-0001.safetensors").text, "half");
  make_file(inside(dir.text, "step-00000015/.weft-manifest.json").text, "{");
  make_file(inside(dir.text, "step-00000015/part-0000.safetensors").text, "whole");
  assert_int_equal(mkdir(inside(dir.text, "step-00000016").text, 0777), 0);
  make_file(inside(dir.text, "step-00000016/part-0000.safetensors").text, "whole");
  make_file(inside(dir.text, "step-00000016/notes").text, "of somebody");
  assert_int_equal(mkdir(inside(dir.text, "step-00000025").text, 0777), 0);
  make_file(inside(dir.text, "step-00000025/part-0000.safetensors").text, "being written");
  make_file(inside(dir.text, "step-00000012").text, "a file");
  make_file(inside(dir.text, "step-012").text, "a file");
  make_file(inside(dir.text, "step-+0000013").text, "a file");
  assert_int_equal(mkdir(inside(dir.text, "step-99999999999999999999").text, 0777), 0);
  assert_true(holds(dir.text, &first));
  saved(dir.text, &second, 0);
  assert_true(holds(dir.text, &second));
  contains(dir.text,
           "step-+0000013 step-00000010 step-00000012 step-00000016 step-00000020 step-00000025 "
           "step-012 step-99999999999999999999 ");
  contains(inside(dir.text, "step-00000016").text, "notes ");
  contains(inside(dir.text, "step-00000025").text, "part-0000.safetensors ");
  model_free(&first);
  model_free(&second);
}

static void test_nothing_there(void **state) {
  const struct weft_gpt_path dir = fresh(state);
  struct weft_gpt_checkpoint *checkpoint;
  struct weft_error error;
  assert_int_equal(weft_gpt_checkpoint_open(NULL, dir.text, &checkpoint, &error), WEFT_ERR_MISSING);
  assert_non_null(strstr(error.message, dir.text));
  assert_int_equal(mkdir(dir.text, 0777), 0);
  assert_int_equal(mkdir(inside(dir.text, "step-00000015").text, 0777), 0);
  assert_int_equal(weft_gpt_checkpoint_open(NULL, dir.text, &checkpoint, &error), WEFT_ERR_MISSING);
  assert_non_null(strstr(error.message, "no complete checkpoint in"));
  assert_non_null(strstr(error.message, "1 that are not complete"));
  char *path = malloc(6000);
  assert_non_null(path);
  memset(path, 'x', 5999);
  path[5999] = '\0';
  assert_int_not_equal(weft_gpt_checkpoint_open(NULL, path, &checkpoint, &error), WEFT_OK);
  struct model model = model_of(1, 1);
  assert_int_equal(save(NULL, path, &model, 0, &error), WEFT_ERR_USAGE);
  free(path);
  model_free(&model);
}

static void test_layers_must_be_there_to_commit(void **state) {
  const struct weft_gpt_path dir = fresh(state);
  struct model first = model_of(1, 1), second = model_of(2, 2);
  struct weft_gpt_layer_file written[PARTS];
  struct weft_error error;
  saved(dir.text, &first, 0);
  for (uint32_t k = 0; k < PARTS; k++) {
    assert_int_equal(weft_gpt_checkpoint_write_layer(NULL, dir.text, &second.training.config, 2,
                                                     &second.layers[k], &written[k], &error),
                     WEFT_OK);
  }
  const struct weft_gpt_path layer = inside(dir.text, "step-00000002/part-0001.safetensors");
  assert_int_equal(truncate(layer.text, (off_t)written[1].size - 1), 0);
  assert_int_equal(weft_gpt_checkpoint_commit(NULL, dir.text, &second.training, written, 1, &error),
                   WEFT_ERR_IO);
  assert_non_null(strstr(error.message, layer.text));
  assert_int_equal(unlink(layer.text), 0);
  assert_int_equal(weft_gpt_checkpoint_commit(NULL, dir.text, &second.training, written, 1, &error),
                   WEFT_ERR_MISSING);
  assert_non_null(strstr(error.message, layer.text));
  assert_true(holds(dir.text, &first));
  model_free(&first);
  model_free(&second);
}

/* ---- Damage ---- */

struct bytes {
  unsigned char *data;
  size_t size;
};

static struct bytes read_all(const char *path) {
  struct stat status;
  assert_int_equal(stat(path, &status), 0);
  struct bytes bytes = {.data = malloc((size_t)status.st_size + 1), .size = (size_t)status.st_size};
  FILE *file = fopen(path, "r");
  assert_true(bytes.data != NULL && file != NULL);
  assert_int_equal(fread(bytes.data, 1, bytes.size, file), bytes.size);
  assert_int_equal(fclose(file), 0);
  return bytes;
}

static void write_all(const char *path, const void *data, size_t size) {
  FILE *file = fopen(path, "w");
  assert_non_null(file);
  assert_int_equal(fwrite(data, 1, size, file), size);
  assert_int_equal(fclose(file), 0);
}

/* The load fails, names the file, and leaves the layer as it was: as in model_of(0, 77). */
static void refuses(const char *dir, struct model *model, const char *file) {
  struct weft_gpt_checkpoint *checkpoint;
  struct weft_error error = {.status = WEFT_OK};
  enum weft_status status = weft_gpt_checkpoint_open(NULL, dir, &checkpoint, &error);
  if (status == WEFT_OK) {
    status = weft_gpt_checkpoint_read_layer(checkpoint, &model->layers[1], &error);
    weft_gpt_checkpoint_close(checkpoint);
  }
  assert_int_equal(status, WEFT_ERR_FORMAT);
  assert_int_equal(error.status, status);
  if (strstr(error.message, file) == NULL || error.hint[0] == '\0') {
    fail_msg("'%s' is not in '%s'", file, error.message);
  }
}

static void is_untouched(struct model *model) {
  struct model untouched = model_of(0, 77);
  assert_true(same_model(model, &untouched));
  model_free(&untouched);
  model_free(model);
}

#if defined(__SANITIZE_ADDRESS__)
#define STRIDE 7 /* about memory; the other build asks all of them */
#define CALL_STRIDE 3
#else
#define STRIDE 1
#define CALL_STRIDE 1
#endif

static void test_every_flipped_bit_is_seen(void **state) {
  const struct weft_gpt_path dir = fresh(state);
  const char *const names[] = {"step-00000007/manifest.json",
                               "step-00000007/part-0001.safetensors"};
  struct model model = model_of(7, 1), other = model_of(0, 77);
  saved(dir.text, &model, 0);
  for (size_t k = 0; k < 2; k++) {
    const struct weft_gpt_path path = inside(dir.text, names[k]);
    struct bytes bytes = read_all(path.text);
    const int descriptor = open(path.text, O_WRONLY);
    assert_true(descriptor >= 0);
    for (size_t bit = 0; bit < 8 * bytes.size; bit += STRIDE) {
      const unsigned char byte = (unsigned char)(bytes.data[bit / 8] ^ (1u << bit % 8));
      assert_int_equal(pwrite(descriptor, &byte, 1, (off_t)(bit / 8)), 1);
      refuses(dir.text, &other, names[k]);
      assert_int_equal(pwrite(descriptor, &bytes.data[bit / 8], 1, (off_t)(bit / 8)), 1);
    }
    print_message("%s: %zu bits\n", names[k], 8 * bytes.size);
    close(descriptor);
    free(bytes.data);
  }
  assert_true(holds(dir.text, &model));
  model_free(&model);
  is_untouched(&other);
}

static void test_every_other_length_is_seen(void **state) {
  const struct weft_gpt_path dir = fresh(state);
  const char *const names[] = {"step-00000007/manifest.json",
                               "step-00000007/part-0001.safetensors"};
  struct model model = model_of(7, 1), other = model_of(0, 77);
  saved(dir.text, &model, 0);
  for (size_t k = 0; k < 2; k++) {
    const struct weft_gpt_path path = inside(dir.text, names[k]);
    struct bytes bytes = read_all(path.text);
    bytes.data[bytes.size] = '\n';
    write_all(path.text, bytes.data, bytes.size + 1);
    refuses(dir.text, &other, names[k]);
    for (size_t left = bytes.size; left > 0; left -= left < STRIDE ? left : STRIDE) {
      const size_t size = left - 1;
      assert_int_equal(truncate(path.text, (off_t)size), 0);
      refuses(dir.text, &other, names[k]);
    }
    write_all(path.text, bytes.data, bytes.size);
    free(bytes.data);
  }
  assert_true(holds(dir.text, &model));
  model_free(&model);
  is_untouched(&other);
}

/* Whole files, but not those that belong there. */
static void test_files_of_others(void **state) {
  const struct weft_gpt_path dir = fresh(state);
  struct model first = model_of(7, 1), second = model_of(8, 2), other = model_of(0, 77);
  saved(dir.text, &first, 0);
  saved(dir.text, &second, 0);
  const struct weft_gpt_path layer = inside(dir.text, "step-00000008/part-0001.safetensors");
  struct bytes good = read_all(layer.text);
  struct bytes wrong = read_all(inside(dir.text, "step-00000007/part-0001.safetensors").text);
  assert_int_equal(good.size, wrong.size);
  write_all(layer.text, wrong.data, wrong.size);
  refuses(dir.text, &other, "step-00000008/part-0001.safetensors");
  assert_int_equal(unlink(layer.text), 0);
  assert_int_equal(mkfifo(layer.text, 0666), 0);
  refuses(dir.text, &other, "is not a plain file");
  assert_int_equal(unlink(layer.text), 0);
  struct model model = model_blank(0, 0);
  struct weft_error error;
  assert_int_equal(load_with(NULL, dir.text, &model, &error), WEFT_ERR_MISSING);
  assert_non_null(strstr(error.message, layer.text));
  write_all(layer.text, good.data, good.size);
  assert_int_equal(
      rename(inside(dir.text, "step-00000008").text, inside(dir.text, "step-00000009").text), 0);
  refuses(dir.text, &other, "is of step 8; expected 9");
  assert_true(holds(inside(dir.text, "step-00000009").text, &second));
  free(good.data);
  free(wrong.data);
  model_free(&first);
  model_free(&second);
  is_untouched(&other);
  model_free(&model);
}

/* ---- Failing and dying at every operation ---- */

enum how { COUNT, FAIL_ONCE, FAIL_FROM, DIE };

struct injector {
  enum how how;
  int code;    /* errno */
  uint64_t at; /* the operation, from 1 */
  uint64_t seen;
  bool renamed;        /* the manifest's rename was let through */
  uint64_t renamed_at; /* as operation */
};

static int inject(void *context, const char *operation, const char *path) {
  struct injector *injector = context;
  const uint64_t n = ++injector->seen;
  const char *name = strrchr(path, '/');
  if (injector->how == DIE && n == injector->at) {
    _exit(7);
  }
  if ((injector->how == FAIL_ONCE && n == injector->at) ||
      (injector->how == FAIL_FROM && n >= injector->at)) {
    return injector->code;
  }
  if (strcmp(operation, "rename") == 0 && name != NULL && strcmp(name, "/manifest.json") == 0) {
    injector->renamed = true;
    injector->renamed_at = n;
  }
  return 0;
}

/* What is there before, what is saved, and what is there at the end. */
struct scenario {
  const char *name;
  uint64_t old_step, new_step; /* old_step 0: nothing before */
  uint32_t keep;
  bool leftover; /* an incomplete step 3 */
};

static const struct scenario scenarios[] = {
    {"the first", 0, 5, 0, false},
    {"the next, keeping both", 2, 5, 2, false},
    {"the next, keeping one", 2, 5, 1, false},
    {"the next, after one that stopped", 2, 5, 1, true},
    {"the same step again", 5, 5, 1, false},
};

struct trial {
  struct weft_gpt_path dir;
  struct model old, new, later;
};

static void trial_begin(struct trial *trial, const struct scenario *scenario, void **state) {
  trial->dir = fresh(state);
  if (scenario->old_step != 0) {
    saved(trial->dir.text, &trial->old, 0);
  }
  if (scenario->leftover) {
    assert_int_equal(mkdir(inside(trial->dir.text, "step-00000003").text, 0777), 0);
    make_file(inside(trial->dir.text, "step-00000003/part-0000.safetensors").text, "whole");
    make_file(inside(trial->dir.text, "step-00000003/.weft-part-0001.safetensors").text, "half");
  }
}

static bool holds_old(const struct trial *trial, const struct scenario *scenario) {
  return holds(trial->dir.text, scenario->old_step != 0 ? &trial->old : NULL);
}

/* The old state or the new; which of them, as far as that is certain. */
static void check_outcome(const struct trial *trial, const struct scenario *scenario,
                          const struct injector *injector, enum weft_status status) {
  const bool old = holds_old(trial, scenario), new = holds(trial->dir.text, &trial->new);
  if (old == new || (status == WEFT_OK && !new) || (!injector->renamed && !old)) {
    fail_msg("%s, operation %" PRIu64 ": %s", scenario->name, injector->at,
             old == new ? "neither the old state nor the new" : "the wrong state");
  }
}

static bool has_temporary(const char *dir) {
  char names[2048];
  list(dir, names, sizeof names);
  return strstr(names, ".weft-") != NULL;
}

/* A later save is not disturbed by what was left, and cleans it up. */
static void check_later(const struct trial *trial, const struct scenario *scenario) {
  saved(trial->dir.text, &trial->later, scenario->keep);
  assert_true(holds(trial->dir.text, &trial->later));
  contains(inside(trial->dir.text, "step-00000009").text, COMPLETE);
  char names[2048];
  list(trial->dir.text, names, sizeof names);
  if (scenario->keep == 1) {
    assert_string_equal(names, "step-00000009 ");
  }
  assert_null(strstr(names, "step-00000003"));
}

static int lowest_descriptor(void) {
  const int descriptor = dup(0);
  assert_true(descriptor >= 0);
  close(descriptor);
  return descriptor;
}

/* A save that nothing happens to. */
static struct injector count_operations(struct trial *trial, const struct scenario *scenario,
                                        void **state) {
  struct injector injector = {.how = COUNT};
  const struct weft_gpt_files files = {.context = &injector, .before = inject};
  trial_begin(trial, scenario, state);
  assert_int_equal(save(&files, trial->dir.text, &trial->new, scenario->keep, NULL), WEFT_OK);
  check_outcome(trial, scenario, &injector, WEFT_OK);
  assert_true(injector.renamed);
  return injector;
}

static void fail_at(struct trial *trial, const struct scenario *scenario, struct injector injector,
                    void **state) {
  const struct weft_gpt_files files = {.context = &injector, .before = inject};
  struct weft_error error = {.status = WEFT_OK};
  trial_begin(trial, scenario, state);
  const int descriptor = lowest_descriptor();
  const enum weft_status status =
      save(&files, trial->dir.text, &trial->new, scenario->keep, &error);
  assert_int_equal(lowest_descriptor(), descriptor);
  check_outcome(trial, scenario, &injector, status);
  if (injector.code == EINTR) {
    assert_int_equal(status, WEFT_OK);
  } else {
    assert_int_equal(status, WEFT_ERR_IO);
    assert_int_equal(error.status, status);
    assert_non_null(strstr(error.message, *state));
    assert_non_null(strstr(error.hint, injector.code == EIO ? "system's log" : "free some space"));
  }
  /* Where only one operation failed, the temporary file was taken away. */
  const struct weft_gpt_path step = inside(trial->dir.text, "step-00000005");
  if (injector.how == FAIL_ONCE && access(step.text, F_OK) == 0 && !injector.renamed) {
    assert_false(has_temporary(step.text));
  }
  check_later(trial, scenario);
}

static void die_at(struct trial *trial, const struct scenario *scenario, uint64_t at,
                   uint64_t renamed_at, void **state) {
  struct injector injector = {.how = DIE, .at = at};
  const struct weft_gpt_files files = {.context = &injector, .before = inject};
  int ended;
  trial_begin(trial, scenario, state);
  const pid_t child = fork();
  assert_true(child >= 0);
  if (child == 0) {
    (void)save(&files, trial->dir.text, &trial->new, scenario->keep, NULL);
    _exit(0);
  }
  assert_int_equal(waitpid(child, &ended, 0), child);
  assert_true(WIFEXITED(ended) && WEXITSTATUS(ended) == 7);
  injector.renamed = at > renamed_at;
  check_outcome(trial, scenario, &injector, injector.renamed ? WEFT_OK : WEFT_ERR_IO);
  check_later(trial, scenario);
}

/* All operations of all scenarios. */
static void each_operation(void **state, enum how how, int code) {
  uint64_t points = 0;
  for (size_t k = 0; k < sizeof scenarios / sizeof *scenarios; k++) {
    const struct scenario *scenario = &scenarios[k];
    struct trial trial = {.old = model_of(scenario->old_step, 1),
                          .new = model_of(scenario->new_step, 2),
                          .later = model_of(9, 3)};
    const struct injector counted = count_operations(&trial, scenario, state);
    for (uint64_t n = 1; n <= counted.seen; n += how == DIE ? STRIDE : CALL_STRIDE) { /* it forks */
      if (how == DIE) {
        die_at(&trial, scenario, n, counted.renamed_at, state);
      } else {
        fail_at(&trial, scenario, (struct injector){.how = how, .code = code, .at = n}, state);
      }
    }
    points += counted.seen;
    model_free(&trial.old);
    model_free(&trial.new);
    model_free(&trial.later);
  }
  print_message("%" PRIu64 " points\n", points);
  assert_true(points > 400);
}

static void test_an_error_anywhere(void **state) { each_operation(state, FAIL_ONCE, EIO); }
static void test_a_full_disk_anywhere(void **state) { each_operation(state, FAIL_ONCE, ENOSPC); }
static void test_a_quota_from_anywhere_on(void **state) {
  each_operation(state, FAIL_FROM, EDQUOT);
}
static void test_a_disk_that_dies(void **state) { each_operation(state, FAIL_FROM, EIO); }
static void test_an_interrupt_anywhere(void **state) { each_operation(state, FAIL_ONCE, EINTR); }
static void test_death_anywhere(void **state) { each_operation(state, DIE, 0); }

/* ---- Disks that are full for real ---- */

/* The new state if the save succeeded, else the old; and why. */
static void check_space(const struct trial *trial, enum weft_status status,
                        const struct weft_error *error, uint64_t limit) {
  const struct model *expected = status == WEFT_OK ? &trial->new : &trial->old;
  if (!holds(trial->dir.text, expected)) {
    fail_msg("with %" PRIu64 " bytes: %d, and neither the old state nor the new", limit,
             (int)status);
  }
  if (status != WEFT_OK) {
    assert_int_equal(status, WEFT_ERR_IO);
    assert_non_null(strstr(error->hint, "free some space"));
  }
}

/* A limit on the size of files makes write() write less than asked for, then fail. */
static void test_short_writes(void **state) {
  struct trial trial = {.old = model_of(2, 1), .new = model_of(5, 2)};
  struct rlimit before;
  uint64_t failures = 0, successes = 0;
  trial.dir = fresh(state);
  saved(trial.dir.text, &trial.old, 0);
  assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
  (void)signal(SIGXFSZ, SIG_IGN);
  for (rlim_t limit = 0; successes == 0; limit += 13) {
    const struct rlimit narrow = {.rlim_cur = limit, .rlim_max = before.rlim_max};
    struct weft_error error;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &narrow), 0);
    const enum weft_status status = save(NULL, trial.dir.text, &trial.new, 1, &error);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    check_space(&trial, status, &error, limit);
    failures += status != WEFT_OK;
    successes += status == WEFT_OK;
  }
  (void)signal(SIGXFSZ, SIG_DFL);
  print_message("%" PRIu64 " limits\n", failures);
  assert_true(failures > 300);
  contains(trial.dir.text, "step-00000005 ");
  model_free(&trial.old);
  model_free(&trial.new);
}

static bool write_text(const char *path, const char *text) {
  const int descriptor = open(path, O_WRONLY);
  const bool good =
      descriptor >= 0 && write(descriptor, text, strlen(text)) == (ssize_t)strlen(text);
  if (descriptor >= 0) {
    close(descriptor);
  }
  return good;
}

/* A world of its own, where it may mount. */
static bool enter_namespace(void) {
  char users[64], groups[64];
  (void)snprintf(users, sizeof users, "0 %u 1", (unsigned)getuid());
  (void)snprintf(groups, sizeof groups, "0 %u 1", (unsigned)getgid());
  return unshare(CLONE_NEWUSER | CLONE_NEWNS) == 0 && write_text("/proc/self/setgroups", "deny") &&
         write_text("/proc/self/uid_map", users) && write_text("/proc/self/gid_map", groups) &&
         mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0;
}

enum { NOT_ALLOWED = 77 };

/* A disk of so many pages; returns whether both checkpoints fitted. */
static bool save_on_disk(struct trial *trial, const char *place, uint64_t pages) {
  char options[64];
  struct weft_error error;
  (void)snprintf(options, sizeof options, "size=%" PRIu64, pages * 4096);
  if (mount("none", place, "tmpfs", 0, options) != 0) {
    _exit(NOT_ALLOWED);
  }
  trial->dir = inside(place, "d");
  bool fitted = false;
  if (save(NULL, trial->dir.text, &trial->old, 0, &error) == WEFT_OK) {
    const enum weft_status status = save(NULL, trial->dir.text, &trial->new, 1, &error);
    check_space(trial, status, &error, pages * 4096);
    fitted = status == WEFT_OK;
  } else {
    assert_non_null(strstr(error.hint, "free some space"));
    assert_true(holds(trial->dir.text, NULL));
  }
  assert_int_equal(umount(place), 0);
  return fitted;
}

static void fill_disks(const char *place) {
  struct trial trial = {.old = model_of(2, 1), .new = model_of(5, 2)};
  uint64_t pages = 1;
  if (!enter_namespace()) {
    _exit(NOT_ALLOWED);
  }
  while (!save_on_disk(&trial, place, pages)) {
    pages++;
  }
  print_message("%" PRIu64 " disks were too small\n", pages - 1);
  _exit(pages > 10 ? 0 : 1);
}

static void test_full_disks(void **state) {
  const struct weft_gpt_path place = fresh(state);
  int ended;
  assert_int_equal(mkdir(place.text, 0777), 0);
  const pid_t child = fork();
  assert_true(child >= 0);
  if (child == 0) {
    fill_disks(place.text);
  }
  assert_int_equal(waitpid(child, &ended, 0), child);
  assert_true(WIFEXITED(ended));
  if (WEXITSTATUS(ended) == NOT_ALLOWED) {
    print_message("left out: no small disk can be mounted here (unshare, mount)\n");
    skip();
  }
  assert_int_equal(WEXITSTATUS(ended), 0);
}

/* ---- A tool for trainer/tests/cli_train_safetensors.bats ---- */

static int write_one(const char *dir) {
  struct model model = model_of(7, 1);
  struct weft_error error;
  const enum weft_status status = save(NULL, dir, &model, 0, &error);
  model_free(&model);
  if (status != WEFT_OK) {
    (void)fprintf(stderr, "%s\n", error.message);
  }
  return status == WEFT_OK ? 0 : 1;
}

static int compare_two(const char *first, const char *second) {
  struct model a = model_blank(0, 0), b = model_blank(0, 0);
  struct weft_error error = {.message = "they differ"};
  const bool same = load_with(NULL, first, &a, &error) == WEFT_OK &&
                    load_with(NULL, second, &b, &error) == WEFT_OK && same_model(&a, &b);
  if (!same) {
    (void)fprintf(stderr, "%s\n", error.message);
  }
  model_free(&a);
  model_free(&b);
  return same ? 0 : 1;
}

int main(int argc, char **argv) {
  if (argc == 3 && strcmp(argv[1], "write") == 0) {
    return write_one(argv[2]);
  }
  if (argc == 4 && strcmp(argv[1], "same") == 0) {
    return compare_two(argv[2], argv[3]);
  }
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_what_is_saved_is_loaded),
      cmocka_unit_test(test_any_path_to_the_folder),
      cmocka_unit_test(test_numbers_come_back_exactly),
      cmocka_unit_test(test_numbers_that_json_cannot_hold),
      cmocka_unit_test(test_weights_alone),
      cmocka_unit_test(test_another_model_is_refused),
      cmocka_unit_test(test_no_memory_is_said_and_none_is_lost),
      cmocka_unit_test(test_layers_are_written_at_once),
      cmocka_unit_test(test_keep),
      cmocka_unit_test(test_a_step_is_written_again),
      cmocka_unit_test(test_leftovers),
      cmocka_unit_test(test_nothing_there),
      cmocka_unit_test(test_layers_must_be_there_to_commit),
      cmocka_unit_test(test_every_flipped_bit_is_seen),
      cmocka_unit_test(test_every_other_length_is_seen),
      cmocka_unit_test(test_files_of_others),
      cmocka_unit_test(test_an_error_anywhere),
      cmocka_unit_test(test_a_full_disk_anywhere),
      cmocka_unit_test(test_a_quota_from_anywhere_on),
      cmocka_unit_test(test_a_disk_that_dies),
      cmocka_unit_test(test_an_interrupt_anywhere),
      cmocka_unit_test(test_death_anywhere),
      cmocka_unit_test(test_short_writes),
      cmocka_unit_test(test_full_disks),
  };
  return cmocka_run_group_tests(tests, make_scratch, drop_scratch);
}
