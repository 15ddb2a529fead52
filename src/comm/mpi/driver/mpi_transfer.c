/* Channels and messages. On the wire a message is a header (below) and the payload: in one MPI message where
 * the channel is for small payloads, else the header by itself and the payload in pieces that
 * MPI can count, straight from one `data` into the other. Every part that arrives is checked
 * against the header, because MPI accepts a message that is shorter than its receive. All that
 * is ever allocated for messages is in open(). Whether the two ends agree on the largest payload,
 * and so on the number of pieces, is checked when a message arrives: its header carries the
 * sender's figure. */
#include <assert.h>
#include <inttypes.h>
#include <string.h>

#include "comm/mpi/driver/mpi_world.h"

enum {
  PARTS_MAX = 1 << 16,
  TESTS_WITHOUT_PROGRESS = 32, /* after so many, test() makes progress itself */
  WAKE_BYTES = 1 << 20,        /* from this payload on, waking the progress thread pays */
  CANCEL_NS = 100 * WEFT_MPI_NS_PER_MS
};

/* What precedes the shapes, and then the payload of a small message. */
struct wire_header {
  int64_t begin;      /* when it was sent, by the sender's now() */
  uint64_t bytes_max; /* the payload size for which the sender opened the channel */
  struct weft_message_header header;
};

_Static_assert(sizeof(struct wire_header) + WEFT_TENSORS_MAX * sizeof(struct weft_tensor_shape) ==
                   WEFT_MPI_HEADER_MAX,
               "the largest header");

static MPI_Request *request_of(const struct weft_mpi_end *end, uint64_t position, uint32_t part) {
  assert(part < end->part_count);
  return &end->requests[(position & end->base.mask) * end->part_count + part];
}

static unsigned char *header_of(const struct weft_mpi_end *end, uint64_t position) {
  return end->headers + (position & end->base.mask) * end->header_size;
}

/* Bytes of a payload that travel as piece `part` (from 1). */
static int piece_size(const struct weft_mpi_world *world, uint64_t bytes, uint32_t part) {
  assert(part > 0);
  const uint64_t begin = (part - 1) * world->piece;
  const uint64_t left = bytes > begin ? bytes - begin : 0;
  return (int)(left < world->piece ? left : world->piece);
}

/* ---- opening ---- */

static enum weft_status check_end(const struct weft_mpi_world *world,
                                  const struct weft_channel_end *end, struct weft_error *error) {
  const struct weft_transport *base = &world->transport;
  if (end->channel > (world->tag_max - 1) / 2) {
    return weft_fail(error, WEFT_ERR_USAGE, "use fewer stages: a channel is two tags of MPI's",
                     "rank %" PRIu32 " opens channel %" PRIu32 "; this MPI has tags up to %" PRIu64,
                     base->rank, end->channel, world->tag_max);
  }
  if (end->bytes_max / world->piece >= PARTS_MAX) {
    return weft_fail(error, WEFT_ERR_USAGE, "use smaller microbatches",
                     "rank %" PRIu32 " opens channel %" PRIu32 " for payloads of up to %" PRIu64
                     " bytes; at most %d pieces of %" PRIu64 " bytes are possible",
                     base->rank, end->channel, end->bytes_max, PARTS_MAX, world->piece);
  }
  return WEFT_OK;
}

/* Headers are whole cache lines, so that the next one is aligned. */
static void lay_out_end(const struct weft_mpi_world *world, struct weft_mpi_end *end) {
  const uint64_t bytes_max = end->base.bytes_max;
  const bool eager = bytes_max <= WEFT_MPI_EAGER && bytes_max <= world->piece;
  const size_t size = WEFT_MPI_HEADER_MAX + (eager ? (size_t)bytes_max : 0);
  end->near = weft_mpi_same_machine(world, world->transport.rank, end->base.peer);
  end->header_size = (size + 63) / 64 * 64;
  end->part_count = eager ? 1 : 1 + (uint32_t)((bytes_max + world->piece - 1) / world->piece);
}

static enum weft_status set_up_end(struct weft_mpi_world *world,
                                   const struct weft_channel_end *from, struct weft_error *error) {
  struct weft_arena *arena = &world->ends.arena;
  struct weft_mpi_end *end = (struct weft_mpi_end *)weft_ends_find(&world->ends, from->channel);
  WEFT_TRY(check_end(world, from, error));
  end->rendezvous = from->rendezvous;
  lay_out_end(world, end);
  const size_t room = (size_t)end->base.mask + 1;
  end->requests = weft_arena_allocate(arena, room * end->part_count, sizeof(MPI_Request));
  end->headers = weft_arena_allocate(arena, room, end->header_size);
  WEFT_TRY(weft_arena_status(arena, error));
  for (size_t k = 0; k < room * end->part_count; k++) {
    end->requests[k] = MPI_REQUEST_NULL;
  }
  return WEFT_OK;
}

/* The lists have room for one request of each end. */
static enum weft_status set_up_ends(struct weft_mpi_world *world,
                                    const struct weft_channel_end *ends, uint32_t count,
                                    struct weft_error *error) {
  struct weft_arena *arena = &world->ends.arena;
  world->active = weft_arena_allocate(arena, count, sizeof(MPI_Request));
  world->active_end = weft_arena_allocate(arena, count, sizeof *world->active_end);
  world->ready = weft_arena_allocate(arena, count, sizeof *world->ready);
  world->statuses = weft_arena_allocate(arena, count, sizeof *world->statuses);
  WEFT_TRY(weft_arena_status(arena, error));
  for (uint32_t k = 0; k < count; k++) {
    WEFT_TRY(set_up_end(world, &ends[k], error));
  }
  return WEFT_OK;
}

enum weft_status weft_mpi_open(struct weft_transport *transport,
                               const struct weft_channel_end *ends, uint32_t count,
                               struct weft_error *error) {
  struct weft_mpi_world *world = weft_mpi_world_of(transport);
  weft_mpi_lock(world);
  enum weft_status status = weft_ends_open(&world->ends, world->allocator, transport, ends, count,
                                           sizeof(struct weft_mpi_end), error);
  if (status == WEFT_OK) {
    assert(world->active_count == 0);
    status = set_up_ends(world, ends, count, error);
    if (status < 0) {
      weft_ends_close(&world->ends); /* no channel is open then */
    }
  }
  weft_mpi_unlock(world);
  return status;
}

/* ---- what arrived ---- */

static void break_end(struct weft_mpi_world *world, struct weft_mpi_end *end, const char *hint,
                      const char *what, uint64_t found, uint64_t expected) {
  end->broken = true;
  world->events++;
  if (world->trouble.status != WEFT_OK) {
    return;
  }
  (void)weft_fail(&world->trouble, WEFT_ERR_PROTOCOL, hint,
                  "channel %" PRIu32 ", message %" PRIu64 " from rank %" PRIu32 " to rank %" PRIu32
                  ": %s: found %" PRIu64 ", expected %" PRIu64,
                  end->base.channel, end->base.done, end->base.peer, world->transport.rank, what,
                  found, expected);
}

/* Reads a header of `count` bytes into the message, and the payload that comes with it; false
 * when it cannot be right. */
static bool read_header(struct weft_mpi_world *world, struct weft_mpi_end *end, uint64_t count,
                        struct weft_message *message) {
  const unsigned char *at = header_of(end, end->base.done);
  struct wire_header wire;
  if (count < sizeof wire) {
    break_end(world, end, "", "bytes of a header, at least", count, sizeof wire);
    return false;
  }
  memcpy(&wire, at, sizeof wire);
  const uint64_t bytes = wire.header.bytes;
  const size_t shapes = weft_shapes_size(&wire.header);
  const uint64_t within = end->part_count == 1 ? bytes : 0;
  if (wire.bytes_max != end->base.bytes_max) {
    break_end(world, end, "all ranks must describe the same boundaries",
              "largest payload that the sender and the receiver opened it for", wire.bytes_max,
              end->base.bytes_max);
  } else if (bytes > end->base.bytes_max) {
    break_end(world, end, "", "bytes of payload, at most", bytes, end->base.bytes_max);
  } else if (count != sizeof wire + shapes + within) {
    break_end(world, end, "", "bytes of a header", count, sizeof wire + shapes + within);
  } else {
    message->header = wire.header;
    message->begin = wire.begin;
    memcpy(message->shapes, at + sizeof wire, shapes);
    if (within > 0) {
      memcpy(message->data, at + sizeof wire + shapes, (size_t)within);
    }
  }
  return !end->broken;
}

static bool check_piece(struct weft_mpi_world *world, struct weft_mpi_end *end, uint64_t count,
                        const struct weft_message *message) {
  const uint64_t expected = (uint64_t)piece_size(world, message->header.bytes, end->part);
  if (count != expected) {
    break_end(world, end, "", "bytes of payload in a piece", count, expected);
  }
  return count == expected;
}

static bool read_received(struct weft_mpi_world *world, struct weft_mpi_end *end, int result,
                          MPI_Status *status, struct weft_message *message) {
  int count = 0;
  int class = MPI_SUCCESS;
  if (result == MPI_SUCCESS) {
    (void)MPI_Get_count(status, MPI_BYTE, &count);
    return end->part == 0 ? read_header(world, end, (uint64_t)count, message)
                          : check_piece(world, end, (uint64_t)count, message);
  }
  (void)MPI_Error_class(result, &class);
  if (class == MPI_ERR_TRUNCATE) {
    break_end(world, end, "all ranks must describe the same boundaries",
              "a longer message than its receive, of bytes", end->base.bytes_max + 1,
              end->base.bytes_max);
  }
  return false;
}

/* After its last part a message is done. */
static void count_part(struct weft_mpi_world *world, struct weft_mpi_end *end,
                       struct weft_message *message) {
  if (++end->part < end->part_count) {
    return;
  }
  message->end = weft_mpi_time(world);
  if (message->begin > message->end) { /* clocks of two hosts */
    message->begin = message->end;
  }
  end->part = 0;
  world->events++;
  weft_end_give_back(&end->base, message);
}

void weft_mpi_end_part(struct weft_mpi_world *world, struct weft_mpi_end *end, int result,
                       MPI_Status *status) {
  struct weft_message *message = weft_end_oldest(&end->base);
  assert(end->base.done < end->base.posted && end->part < end->part_count && message != NULL);
  *request_of(end, end->base.done, end->part) = MPI_REQUEST_NULL;
  const bool good =
      end->base.sends ? result == MPI_SUCCESS : read_received(world, end, result, status, message);
  if (!good) {
    if (!end->broken) {
      end->broken = true;
      weft_mpi_failure_of_mpi(world, result, end->base.sends ? "a send" : "a receive");
    }
    return;
  }
  count_part(world, end, message);
}

/* ---- progress of an end ---- */

static void list_end(struct weft_mpi_world *world, struct weft_mpi_end *end) {
  assert(!end->listed && world->active_count < world->ends.count);
  end->listed = true;
  world->active[world->active_count] = *request_of(end, end->base.done, end->part);
  world->active_end[world->active_count++] = end->base.index;
}

void weft_mpi_end_advance(struct weft_mpi_world *world, struct weft_mpi_end *end) {
  while (end->base.done < end->base.posted && !end->broken && !end->base.closed) {
    MPI_Request *request = request_of(end, end->base.done, end->part);
    MPI_Status status;
    int flag = 0;
    const int result = MPI_Test(request, &flag, &status);
    if (result == MPI_SUCCESS && !flag) {
      list_end(world, end);
      return;
    }
    weft_mpi_end_part(world, end, result, &status);
  }
}

/* ---- starting ---- */

static enum weft_status check_device(const struct weft_transport *transport, bool sends,
                                     const struct weft_message *message, struct weft_error *error) {
  return weft_device_is_host(message->device)
             ? WEFT_OK
             : weft_fail(error, WEFT_ERR_UNAVAILABLE, "copy it to host memory (weft_copy)",
                         "rank %" PRIu32
                         " wants to %s a payload in the memory of a %s device, and "
                         "mpi carries host memory only",
                         transport->rank, sends ? "send" : "receive",
                         weft_device_name(message->device));
}

static int send_header(struct weft_mpi_world *world, struct weft_mpi_end *end, uint64_t position,
                       const struct weft_message *message) {
  unsigned char *at = header_of(end, position);
  const struct wire_header wire = {
      .begin = message->begin, .bytes_max = end->base.bytes_max, .header = message->header};
  const size_t shapes = weft_shapes_size(&message->header);
  const size_t within = end->part_count == 1 ? (size_t)message->header.bytes : 0;
  memcpy(at, &wire, sizeof wire);
  memcpy(at + sizeof wire, message->shapes, shapes);
  if (within > 0) {
    memcpy(at + sizeof wire + shapes, message->data, within);
  }
  /* The receive of the header is posted last, so rendezvous of the header is that of all. */
  return (end->rendezvous ? MPI_Issend : MPI_Isend)(
      at, (int)(sizeof wire + shapes + within), MPI_BYTE, (int)end->base.peer,
      weft_mpi_header_tag(end->base.channel), world->messages, request_of(end, position, 0));
}

/* Sends the pieces of a payload, or posts their receives. */
static int post_pieces(struct weft_mpi_world *world, struct weft_mpi_end *end, uint64_t number,
                       const struct weft_message *message, uint64_t bytes) {
  int result = MPI_SUCCESS;
  for (uint32_t part = 1; part < end->part_count && result == MPI_SUCCESS; part++) {
    const int size = piece_size(world, bytes, part), peer = (int)end->base.peer;
    const int tag = weft_mpi_payload_tag(end->base.channel);
    unsigned char *data = message->data;
    unsigned char *at = size > 0 ? data + (part - 1) * world->piece : NULL;
    MPI_Request *request = request_of(end, number, part);
    result = end->base.sends ? MPI_Isend(at, size, MPI_BYTE, peer, tag, world->messages, request)
                             : MPI_Irecv(at, size, MPI_BYTE, peer, tag, world->messages, request);
  }
  return result;
}

/* The payload first: the peer copies it while this rank still sends the header. They have tags of
 * their own, so the order does not matter to the receiver. */
static void start_parts(struct weft_mpi_world *world, struct weft_mpi_end *end,
                        struct weft_message *message) {
  const bool sends = end->base.sends;
  const uint64_t bytes = sends ? message->header.bytes : end->base.bytes_max;
  const uint64_t number = weft_end_accept(&end->base, message);
  if (end->base.bytes_max >= WAKE_BYTES &&
      __atomic_load_n(&world->thread_idles, __ATOMIC_RELAXED)) {
    weft_mpi_wake_thread(world);
  }
  message->begin = sends ? weft_mpi_time(world) : message->begin;
  int result = post_pieces(world, end, number, message, bytes);
  if (result == MPI_SUCCESS && sends) {
    result = send_header(world, end, number, message);
  } else if (result == MPI_SUCCESS) {
    result = MPI_Irecv(header_of(end, number), (int)end->header_size, MPI_BYTE, (int)end->base.peer,
                       weft_mpi_header_tag(end->base.channel), world->messages,
                       request_of(end, number, 0));
  }
  if (result != MPI_SUCCESS) {
    weft_mpi_failure_of_mpi(world, result, sends ? "starting a send" : "posting a receive");
  } else if (sends && !end->listed) {
    weft_mpi_end_advance(world, end); /* small ones are done now, as a rule */
  } else if (!end->listed) {
    list_end(world, end);
  }
}

enum weft_status weft_mpi_post(struct weft_transport *transport, uint32_t channel, bool sends,
                               struct weft_message *message, struct weft_error *error) {
  struct weft_mpi_world *world = weft_mpi_world_of(transport);
  struct weft_end *end = NULL;
  weft_mpi_lock(world);
  enum weft_status status = weft_ends_choose(&world->ends, channel, sends, message, &end, error);
  if (status == WEFT_OK) {
    status = check_device(&world->transport, sends, message, error);
  }
  if (status == WEFT_OK && weft_end_is_full(end)) {
    status = WEFT_IN_PROGRESS;
  }
  if (status == WEFT_OK) {
    start_parts(world, (struct weft_mpi_end *)end, message);
  }
  weft_mpi_unlock(world);
  return status;
}

/* ---- ending ---- */

enum weft_status weft_mpi_test(struct weft_transport *transport, struct weft_message *message,
                               struct weft_error *error) {
  struct weft_mpi_world *world = weft_mpi_world_of(transport);
  enum weft_status status = WEFT_OK;
  const struct weft_mpi_end *end = (const struct weft_mpi_end *)weft_ends_of(&world->ends, message);
  if (end == NULL) {
    return WEFT_OK;
  }
  weft_mpi_lock(world);
  if (message->state[0] != 0 && ++world->tests > TESTS_WITHOUT_PROGRESS) {
    weft_mpi_advance(world);
  }
  if (message->state[0] != 0) {
    status = WEFT_IN_PROGRESS;
    if (end->broken && world->trouble.status != WEFT_OK) {
      *error = world->trouble;
      status = world->trouble.status;
    }
  }
  weft_mpi_unlock(world);
  return status;
}

static void unlist_end(struct weft_mpi_world *world, struct weft_mpi_end *end) {
  for (uint32_t k = 0; k < world->active_count && end->listed; k++) {
    if (world->active_end[k] == end->base.index) {
      world->active_count--;
      world->active[k] = world->active[world->active_count];
      world->active_end[k] = world->active_end[world->active_count];
      end->listed = false;
    }
  }
}

/* Until MPI is done with the memory, or the time that all cancels share is over: then the
 * peer does not take the message any more, for it has failed too. */
static void await_cancel(struct weft_mpi_world *world, MPI_Request *request) {
  int flag = 0;
  int64_t now = weft_clock_ns();
  if (world->cancel_until == 0) {
    world->cancel_until = now + CANCEL_NS;
  }
  while (MPI_Test(request, &flag, MPI_STATUS_IGNORE) == MPI_SUCCESS && !flag &&
         now < world->cancel_until) {
    weft_mpi_sleep(20 * WEFT_MPI_NS_PER_US);
    now = weft_clock_ns();
  }
}

/* A header that is sent is in our own memory, which stays. */
static void cancel_requests(struct weft_mpi_world *world, struct weft_mpi_end *end,
                            uint64_t position) {
  for (uint32_t part = end->base.sends ? 1 : 0; part < end->part_count; part++) {
    MPI_Request *request = request_of(end, position, part);
    if (*request == MPI_REQUEST_NULL) {
      continue;
    }
    if (!end->base.sends) {
      (void)MPI_Cancel(request);
    }
    await_cancel(world, request);
  }
}

void weft_mpi_cancel(struct weft_transport *transport, struct weft_message *message) {
  struct weft_mpi_world *world = weft_mpi_world_of(transport);
  weft_mpi_lock(world);
  struct weft_mpi_end *end = (struct weft_mpi_end *)weft_ends_of(&world->ends, message);
  if (end != NULL) {
    unlist_end(world, end);
    world->cancelled = 1;
    cancel_requests(world, end, message->state[1]);
    weft_end_cancel(&end->base, message);
  }
  weft_mpi_unlock(world);
}
