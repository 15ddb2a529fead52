/* Making and finding letterboxes. A rank's memory for others is one file without a name: its
 * page, the index, and the letterboxes, each of whole cache lines:
 *
 *     page | index | taken, letters | taken, letters | ...
 */
#define _GNU_SOURCE /* ftruncate */
#include "comm/mpi/driver/mpi_letterbox.h"

#include <inttypes.h>
#include <sys/mman.h>
#include <unistd.h>

#include <weft/support.h>

#include "comm/mpi/driver/mpi_world.h"

/* With a few letters, the sender seldom asks how many were taken. */
enum { LETTERS_MASK_MIN = 7 };

struct entry {
  uint32_t channel;
  uint32_t mask;
  uint64_t offset; /* of `taken`, in the file; letters follow a line later */
  uint64_t letter_size;
};

struct index {
  uint64_t count;
  struct entry entries[];
};

static size_t whole_lines(size_t size) {
  return (size + WEFT_MPI_LINE - 1) / WEFT_MPI_LINE * WEFT_MPI_LINE;
}

static size_t index_offset(void) { return whole_lines(sizeof(struct weft_mpi_page)); }

static bool is_senders(const struct weft_mpi_end *end) { return end->by_letter && end->sends; }

static size_t letter_size_of(const struct weft_mpi_end *end) {
  return whole_lines(sizeof(struct weft_mpi_letter) + end->envelope_size);
}

static size_t box_size(const struct entry *entry) {
  return WEFT_MPI_LINE + ((size_t)entry->mask + 1) * entry->letter_size;
}

static void show(struct weft_mpi_letterbox *box, unsigned char *memory, const struct entry *entry) {
  void *taken = memory + entry->offset;
  box->taken = taken;
  box->letters = memory + entry->offset + WEFT_MPI_LINE;
  box->letter_size = entry->letter_size;
  box->mask = entry->mask;
}

/* ---- the sender's ---- */

static struct entry describe(const struct weft_mpi_end *end, size_t offset) {
  return (struct entry){.channel = end->channel,
                        .mask = end->mask | LETTERS_MASK_MIN,
                        .offset = offset,
                        .letter_size = letter_size_of(end)};
}

/* Bytes of the file with all letterboxes; *count: how many. */
static size_t measure(const struct weft_mpi_world *world, uint64_t *count) {
  size_t boxes = 0;
  *count = 0;
  for (uint32_t k = 0; k < world->end_count; k++) {
    if (is_senders(&world->ends[k])) {
      const struct entry entry = describe(&world->ends[k], 0);
      boxes += box_size(&entry);
      ++*count;
    }
  }
  return index_offset() + whole_lines(sizeof(struct index) + *count * sizeof(struct entry)) + boxes;
}

static void fill(struct weft_mpi_world *world, uint64_t count) {
  struct index *index = (void *)(world->letters + index_offset());
  size_t offset = index_offset() + whole_lines(sizeof *index + count * sizeof(struct entry));
  for (uint32_t k = 0; k < world->end_count; k++) {
    struct weft_mpi_end *end = &world->ends[k];
    if (is_senders(end)) {
      struct entry *entry = &index->entries[index->count++];
      *entry = describe(end, offset);
      show(&end->box, world->letters, entry);
      offset += box_size(entry);
    }
  }
}

static enum weft_status make_boxes(struct weft_mpi_world *world, struct weft_error *error) {
  struct weft_mpi_page *page = world->peers[world->transport.rank].page;
  uint64_t count;
  const size_t size = measure(world, &count);
  if (count == 0) {
    return WEFT_OK;
  }
  void *memory = MAP_FAILED;
  if (ftruncate(world->page_file, (off_t)size) == 0) {
    memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, world->page_file, 0);
  }
  if (memory == MAP_FAILED) {
    return weft_fail_memory(error, size);
  }
  world->letters = memory;
  world->letters_size = size;
  fill(world, count);
  __atomic_store_n(&page->letters_size, size, __ATOMIC_RELEASE);
  return WEFT_OK;
}

/* ---- the receiver's ---- */

static enum weft_status hold(struct weft_mpi_world *world, uint32_t rank,
                             struct weft_error *error) {
  struct weft_mpi_peer *peer = &world->peers[rank];
  if (peer->file < 0) {
    peer->file = weft_mpi_page_open(&peer->card);
  }
  if (peer->file < 0) {
    return weft_fail(error, WEFT_ERR_UNAVAILABLE,
                     "allow more open files, or set WEFT_MPI_LETTERBOX=0 on all ranks",
                     "rank %" PRIu32 " cannot open the memory of rank %" PRIu32
                     " (%s, process %" PRId32 ") any more",
                     world->transport.rank, rank, peer->card.host, peer->card.pid);
  }
  return WEFT_OK;
}

/* Nothing will ever be read from that rank. */
static void say_unreadable(struct weft_mpi_world *world, uint64_t size) {
  struct weft_failure failure = {.rank = world->transport.rank};
  (void)weft_fail_memory(&failure.error, (size_t)size);
  weft_mpi_failure_say(world, &failure);
}

static bool map_letters(struct weft_mpi_world *world, struct weft_mpi_peer *peer) {
  const uint64_t size = __atomic_load_n(&peer->page->letters_size, __ATOMIC_ACQUIRE);
  if (size == 0 || world->has_failed) {
    return false;
  }
  void *memory = mmap(NULL, (size_t)size, PROT_READ | PROT_WRITE, MAP_SHARED, peer->file, 0);
  if (memory == MAP_FAILED) {
    say_unreadable(world, size);
    return false;
  }
  peer->letters = memory;
  peer->letters_size = (size_t)size;
  return true;
}

bool weft_mpi_letterbox_find(struct weft_mpi_world *world, struct weft_mpi_end *end) {
  struct weft_mpi_peer *peer = &world->peers[end->peer];
  if (peer->letters == NULL && !map_letters(world, peer)) {
    return false;
  }
  const struct index *index = (const void *)(peer->letters + index_offset());
  for (uint64_t k = 0; k < index->count; k++) {
    if (index->entries[k].channel == end->channel) {
      show(&end->box, peer->letters, &index->entries[k]);
      return true;
    }
  }
  return false; /* it does not send there */
}

/* ---- both ---- */

enum weft_status weft_mpi_letterboxes_open(struct weft_mpi_world *world, struct weft_error *error) {
  for (uint32_t k = 0; k < world->end_count; k++) {
    const struct weft_mpi_end *end = &world->ends[k];
    if (end->by_letter && !end->sends) {
      WEFT_TRY(hold(world, end->peer, error));
    }
  }
  return make_boxes(world, error);
}

void weft_mpi_letterboxes_close(struct weft_mpi_world *world) {
  if (world->letters != NULL) {
    (void)munmap(world->letters, world->letters_size);
    world->letters = NULL;
  }
  for (uint32_t r = 0; world->peers != NULL && r < world->transport.rank_count; r++) {
    struct weft_mpi_peer *peer = &world->peers[r];
    if (peer->letters != NULL) {
      (void)munmap(peer->letters, peer->letters_size);
      peer->letters = NULL;
    }
    if (peer->file >= 0) {
      (void)close(peer->file);
      peer->file = -1;
    }
  }
}
