/* Checkpoints written. The order of operations is what makes them safe:
 *
 *   each part     temporary name, write, fsync, close, rename
 *   commit        fsync of the step's folder: the parts' names are there
 *                 manifest: temporary name, write, fsync, close
 *                 rename to manifest.json: from here on the checkpoint is there
 *                 fsync of the step's folder, of DIR, and of what holds DIR
 *                 only then: removal of what is old or was left over
 *
 * Stopped anywhere, by an error, a signal or a loss of power, a load finds the state
 * before or the one after. */
#include <assert.h>
#include <inttypes.h>
#include <stdio.h>

#include <weft/support.h>

#include "gpt/checkpoint/layer_tensors.h"
#include "gpt/checkpoint/manifest.h"
#include "gpt/model/aligned_memory.h"

static enum weft_status step_folder(struct weft_gpt_path *folder, const char *dir, uint64_t step,
                                    struct weft_error *error) {
  return weft_gpt_path_join(folder, dir, weft_gpt_step_name(step).text, error);
}

/* What is in a complete checkpoint may not be touched before another manifest is there. */
static struct weft_gpt_name file_name(const char *folder, uint32_t part, uint64_t checksum) {
  return weft_gpt_file_is_there(folder, WEFT_GPT_MANIFEST)
             ? weft_gpt_part_name_again(part, checksum)
             : weft_gpt_part_name(part);
}

/* ---- A part ---- */

/* A part's file: its tensors, where their floats are, and the text in front of them. */
struct part_file {
  struct weft_gpt_tensor tensors[WEFT_GPT_TENSORS_MAX];
  struct weft_gpt_part_tensor places[WEFT_GPT_TENSORS_MAX];
  uint32_t count;
  struct weft_text header;
};

static void describe_file(struct part_file *file, const struct weft_gpt_config *config,
                          uint64_t step, uint32_t part) {
  char part_text[24], step_text[24];
  (void)snprintf(part_text, sizeof part_text, "%" PRIu32, part);
  (void)snprintf(step_text, sizeof step_text, "%" PRIu64, step);
  const char *const metadata[] = {"format", "pt", "part", part_text, "step", step_text, NULL};
  file->header = (struct weft_text){.allocator = NULL};
  file->count = weft_gpt_part_tensors(config, part, file->tensors, file->places);
  weft_gpt_safetensors_header(&file->header, file->tensors, file->count, metadata);
}

static enum weft_status write_bytes(struct weft_gpt_output *output, const struct part_file *file,
                                    const struct weft_gpt_part_state *part,
                                    struct weft_error *error) {
  WEFT_TRY(weft_gpt_output_write(output, file->header.data, file->header.size, error));
  for (uint32_t k = 0; k < file->count; k++) {
    const float *floats = weft_gpt_part_array(part, file->places[k].array);
    WEFT_TRY(weft_gpt_output_write(output, floats + file->places[k].offset, file->tensors[k].bytes,
                                   error));
  }
  return WEFT_OK;
}

static enum weft_status write_file(const struct weft_gpt_files *files, const char *folder,
                                   const struct part_file *file,
                                   const struct weft_gpt_part_state *part,
                                   struct weft_gpt_part_file *written, struct weft_error *error) {
  struct weft_gpt_output output;
  WEFT_TRY(weft_text_status(&file->header, error));
  WEFT_TRY(
      weft_gpt_output_begin(&output, files, folder, weft_gpt_part_name(part->part).text, error));
  WEFT_TRY(write_bytes(&output, file, part, error));
  const uint64_t checksum = weft_gpt_checksum_value(&output.checksum);
  const struct weft_gpt_name name = file_name(folder, part->part, checksum);
  WEFT_TRY(weft_gpt_output_end(&output, name.text, error));
  *written = (struct weft_gpt_part_file){.size = output.size, .checksum = checksum};
  return WEFT_OK;
}

enum weft_status weft_gpt_checkpoint_write_part(const struct weft_gpt_files *files, const char *dir,
                                                const struct weft_gpt_config *config, uint64_t step,
                                                const struct weft_gpt_part_state *part,
                                                struct weft_gpt_part_file *written,
                                                struct weft_error *error) {
  struct weft_gpt_path folder;
  struct part_file file;
  assert(part->part < weft_gpt_part_count(config));
  assert(part->floats == weft_gpt_part_floats(config, part->part));
  assert(part->first_moment != NULL && part->second_moment != NULL);
  WEFT_TRY(step_folder(&folder, dir, step, error));
  WEFT_TRY(weft_gpt_folder_make(files, dir, error));
  WEFT_TRY(weft_gpt_folder_make(files, folder.text, error));
  describe_file(&file, config, step, part->part);
  const enum weft_status status = write_file(files, folder.text, &file, part, written, error);
  weft_text_finish(&file.header);
  return status;
}

/* ---- The manifest ---- */

/* Everything that a commit works with. */
struct commit {
  const struct weft_gpt_files *files;
  const char *dir;
  struct weft_gpt_path folder;
  const struct weft_gpt_progress *progress;
  uint32_t part_count;
  struct weft_gpt_manifest_part *parts;
  struct weft_gpt_name *names;
  struct weft_text text;
};

static enum weft_status check_part(const struct commit *commit, uint32_t part,
                                   const struct weft_gpt_part_file *written,
                                   struct weft_error *error) {
  struct weft_gpt_path path;
  uint64_t size;
  WEFT_TRY(weft_gpt_path_join(&path, commit->folder.text, commit->names[part].text, error));
  WEFT_TRY(weft_gpt_file_size(path.text, &size, error));
  if (size != written->size) {
    return weft_fail(error, WEFT_ERR_IO, "nothing else may write to this folder",
                     "'%s' has %" PRIu64 " bytes; %" PRIu64 " were written", path.text, size,
                     written->size);
  }
  return WEFT_OK;
}

/* The parts' files, which must be there. */
static enum weft_status gather_parts(struct commit *commit,
                                     const struct weft_gpt_part_file *written,
                                     struct weft_error *error) {
  for (uint32_t k = 0; k < commit->part_count; k++) {
    commit->names[k] = file_name(commit->folder.text, k, written[k].checksum);
    commit->parts[k] = (struct weft_gpt_manifest_part){
        .file = commit->names[k], .size = written[k].size, .checksum = written[k].checksum};
    WEFT_TRY(check_part(commit, k, &written[k], error));
  }
  return WEFT_OK;
}

static enum weft_status write_manifest(struct commit *commit, struct weft_error *error) {
  struct weft_gpt_output output;
  WEFT_TRY(weft_gpt_manifest_write(&commit->text, commit->progress, commit->parts, error));
  WEFT_TRY(weft_gpt_folder_sync(commit->files, commit->folder.text, error));
  WEFT_TRY(
      weft_gpt_output_begin(&output, commit->files, commit->folder.text, WEFT_GPT_MANIFEST, error));
  WEFT_TRY(weft_gpt_output_write(&output, commit->text.data, commit->text.size, error));
  WEFT_TRY(weft_gpt_output_end(&output, WEFT_GPT_MANIFEST, error));
  WEFT_TRY(weft_gpt_folder_sync(commit->files, commit->folder.text, error));
  WEFT_TRY(weft_gpt_folder_sync(commit->files, commit->dir, error));
  return weft_gpt_folder_sync_entry(commit->files, commit->dir, error);
}

static enum weft_status commit_parts(struct commit *commit,
                                     const struct weft_gpt_part_file *written, uint32_t keep,
                                     struct weft_error *error) {
  WEFT_TRY(gather_parts(commit, written, error));
  WEFT_TRY(write_manifest(commit, error));
  return weft_gpt_steps_clean(commit->files, commit->dir, commit->progress->step, commit->names,
                              commit->part_count, keep, error);
}

enum weft_status weft_gpt_checkpoint_commit(const struct weft_gpt_files *files, const char *dir,
                                            const struct weft_gpt_progress *progress,
                                            const struct weft_gpt_part_file *parts, uint32_t keep,
                                            struct weft_error *error) {
  const uint32_t count = weft_gpt_part_count(&progress->config);
  struct commit commit = {.files = files, .dir = dir, .progress = progress, .part_count = count};
  WEFT_TRY(weft_gpt_config_check(&progress->config, error));
  WEFT_TRY(step_folder(&commit.folder, dir, progress->step, error));
  commit.parts = weft_gpt_allocate(NULL, count, sizeof *commit.parts);
  commit.names = weft_gpt_allocate(NULL, count, sizeof *commit.names);
  const enum weft_status status = commit.parts == NULL || commit.names == NULL
                                      ? weft_fail_memory(error, count * sizeof *commit.parts)
                                      : commit_parts(&commit, parts, keep, error);
  weft_text_finish(&commit.text);
  weft_gpt_free(NULL, commit.names);
  weft_gpt_free(NULL, commit.parts);
  return status;
}
