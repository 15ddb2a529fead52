/* The handshake; see handshake.h. */
#include "run/handshake.h"

#include <assert.h>
#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <weft/support.h>

#include "run/shape_text.h"

static uint64_t mix_hash(uint64_t sum, uint64_t value) {
  const uint64_t pair[2] = {sum, value};
  return weft_checksum(pair, sizeof pair);
}

static uint64_t mix_boundary(uint64_t sum, const struct weft_boundary *boundary) {
  sum = mix_hash(sum, boundary->tensor_count);
  for (uint32_t k = 0; k < boundary->tensor_count; k++) {
    const struct weft_boundary_tensor *tensor = &boundary->tensors[k];
    sum = mix_hash(sum, (uint64_t)tensor->largest.dtype << 8 | tensor->needs_grad);
    sum = mix_hash(sum, weft_checksum(tensor->largest.dims,
                                      tensor->largest.dim_count * sizeof tensor->largest.dims[0]));
  }
  return sum;
}

struct weft_handshake weft_handshake_make(const struct weft_pipeline_options *options,
                                          uint64_t program_hash) {
  assert(options->boundary_count > 0);
  const char *version = weft_version();
  uint64_t boundaries = 0, last = 0, equal = 0; /* equal ones in a row, as when one is given */
  for (uint32_t k = 0; k < options->boundary_count; k++) {
    const uint64_t hash = mix_boundary(0, &options->boundaries[k]);
    if (equal > 0 && hash != last) {
      boundaries = mix_hash(mix_hash(boundaries, last), equal);
      equal = 0;
    }
    last = hash;
    equal += options->boundary_count == 1 ? options->stage_count : 1;
  }
  boundaries = mix_hash(mix_hash(boundaries, last), equal);
  struct weft_handshake handshake = {
      .protocol = WEFT_PROTOCOL,
      .build = mix_hash(weft_checksum(version, strlen(version)), sizeof(struct weft_message)),
      .stages = options->stage_count,
      .microbatches = options->microbatch_count,
      .boundaries = boundaries,
      .program = program_hash,
      .device = options->device != NULL && options->device->ops->stream_create != NULL
                    ? (uint64_t)(uintptr_t)options->device
                    : 0,
      .configuration = mix_hash(
          mix_hash(options->configuration, (uint64_t)options->scale_grads << 8 | options->comm),
          weft_send_model_capacity(options->comm, options->slots))};
  (void)weft_boundary_text(handshake.boundary, sizeof handshake.boundary, &options->boundaries[0],
                           false);
  return handshake;
}

/* ---- Comparing ---- */

struct handshake_field {
  const char *name;
  size_t offset;
  const char *hint;
  bool is_number; /* else a hash */
};

static const struct handshake_field fields[] = {
    {"protocol", offsetof(struct weft_handshake, protocol), "start the same release on all ranks",
     false},
    {"build", offsetof(struct weft_handshake, build), "start the same release on all ranks", false},
    {"number of stages", offsetof(struct weft_handshake, stages),
     "give all ranks the same options.stage_count", true},
    {"number of microbatches", offsetof(struct weft_handshake, microbatches),
     "give all ranks the same options.microbatch_count", true},
    {"boundary", offsetof(struct weft_handshake, boundaries),
     "give all ranks the same boundaries: shapes and needs_grad", false},
    {"program", offsetof(struct weft_handshake, program),
     "give all ranks the same schedule, shape and number of microbatches", false},
    {"configuration", offsetof(struct weft_handshake, configuration),
     "give all ranks the same options", false},
};

struct handshakes {
  struct weft_transport *transport;
  const struct weft_handshake *all;
};

static const struct weft_handshake *handshake_of(const struct handshakes *of, uint32_t rank) {
  return of->all != NULL ? &of->all[rank] : of->transport->ops->exchanged(of->transport, rank);
}

static uint64_t field_of(const struct weft_handshake *handshake,
                         const struct handshake_field *field) {
  uint64_t value;
  memcpy(&value, (const unsigned char *)handshake + field->offset, sizeof value);
  return value;
}

/* The value that most ranks have, by the majority vote of Boyer and Moore. */
static uint64_t find_majority(const struct handshakes *handshakes, uint32_t rank_count,
                              const struct handshake_field *field) {
  uint64_t candidate = 0;
  uint32_t votes = 0;
  for (uint32_t r = 0; r < rank_count; r++) {
    const uint64_t value = field_of(handshake_of(handshakes, r), field);
    if (votes == 0) {
      candidate = value;
    }
    votes = candidate == value ? votes + 1 : votes - 1;
  }
  return candidate;
}

/* The value of a field, for a message: a number, the first boundary in words if the other rank has
 * another one, or a hash. */
static const char *show_field(const struct weft_handshake *handshake,
                              const struct weft_handshake *other,
                              const struct handshake_field *field,
                              char buffer[sizeof handshake->boundary]) {
  const bool is_boundary = field->offset == offsetof(struct weft_handshake, boundaries);
  if (is_boundary &&
      memcmp(handshake->boundary, other->boundary, sizeof handshake->boundary) == 0) {
    (void)snprintf(buffer, sizeof handshake->boundary, "a later one than the first, %016" PRIx64,
                   field_of(handshake, field));
  } else if (is_boundary) {
    memcpy(buffer, handshake->boundary, sizeof handshake->boundary);
    buffer[sizeof handshake->boundary - 1] = '\0'; /* another process has written it */
  } else {
    (void)snprintf(buffer, sizeof handshake->boundary,
                   field->is_number ? "%" PRIu64 : "%016" PRIx64, field_of(handshake, field));
  }
  return buffer;
}

static enum weft_status compare_field(const struct handshakes *handshakes, uint32_t rank_count,
                                      const struct handshake_field *field, uint32_t *odd_rank,
                                      struct weft_error *error) {
  const uint64_t most = find_majority(handshakes, rank_count, field);
  uint32_t odd = 0, first_odd = UINT32_MAX, usual_rank = 0;
  char found[sizeof((struct weft_handshake *)0)->boundary],
      usual[sizeof((struct weft_handshake *)0)->boundary];
  for (uint32_t r = 0; r < rank_count; r++) {
    if (field_of(handshake_of(handshakes, r), field) != most) {
      first_odd = odd == 0 ? r : first_odd;
      odd++;
    } else {
      usual_rank = r;
    }
  }
  if (odd == 0) {
    return WEFT_OK;
  }
  *odd_rank = first_odd;
  const struct weft_handshake *odd_one = handshake_of(handshakes, first_odd);
  const struct weft_handshake *first = handshake_of(handshakes, first_odd == 0 ? 1 : 0);
  if (rank_count - odd <= odd) {
    return weft_fail(error, WEFT_ERR_PEER, field->hint,
                     "the ranks do not agree on the %s: rank %" PRIu32 " has %s, rank %" PRIu32
                     " has %s",
                     field->name, first_odd == 0 ? 1 : 0, show_field(first, odd_one, field, usual),
                     first_odd, show_field(odd_one, first, field, found));
  }
  return weft_fail(error, WEFT_ERR_PEER, field->hint,
                   "rank %" PRIu32 " has another %s than the others (%s, theirs is %s); %" PRIu32
                   " of %" PRIu32 " ranks differ",
                   first_odd, field->name,
                   show_field(odd_one, handshake_of(handshakes, usual_rank), field, found),
                   show_field(handshake_of(handshakes, usual_rank), odd_one, field, usual), odd,
                   rank_count);
}

enum weft_status weft_handshakes_compare(struct weft_transport *transport,
                                         const struct weft_handshake *all, uint32_t *odd_rank,
                                         struct weft_error *error) {
  const struct handshakes handshakes = {.transport = transport, .all = all};
  const uint32_t count = transport->rank_count;
  assert(count > 0 && odd_rank != NULL);
  bool same = true;
  for (uint32_t r = 1; r < count && same; r++) {
    same = memcmp(handshake_of(&handshakes, 0), handshake_of(&handshakes, r),
                  sizeof(struct weft_handshake)) == 0;
  }
  for (size_t k = 0; k < WEFT_ARRAY_LENGTH(fields) && !same; k++) {
    WEFT_TRY(compare_field(&handshakes, count, &fields[k], odd_rank, error));
  }
  return WEFT_OK;
}
