/* Messages. On the wire a message is a header (below) and the payload: in one MPI message where
 * the channel is for small payloads, else the header by itself and the payload in pieces that
 * MPI can count, straight from one `data` into the other. Every part that arrives is checked
 * against the header, because MPI accepts a message that is shorter than its receive. Nothing
 * here allocates. */
#include <assert.h>
#include <inttypes.h>
#include <string.h>

#include "comm/mpi/driver/mpi_world.h"

enum {
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
  return &end->requests[(position & end->mask) * end->part_count + part];
}

static unsigned char *header_of(const struct weft_mpi_end *end, uint64_t position) {
  return end->headers + (position & end->mask) * end->header_size;
}

/* Bytes of a payload that travel as piece `part` (from 1). */
static int piece_size(const struct weft_mpi_world *world, uint64_t bytes, uint32_t part) {
  assert(part > 0);
  const uint64_t begin = (part - 1) * world->piece;
  const uint64_t left = bytes > begin ? bytes - begin : 0;
  return (int)(left < world->piece ? left : world->piece);
}

static unsigned char *piece_place(const struct weft_mpi_world *world,
                                  const struct weft_message *message, uint32_t part) {
  return (unsigned char *)message->data + (part - 1) * world->piece;
}

static size_t shapes_size(const struct weft_message_header *header) {
  const size_t count =
      header->tensor_count <= WEFT_TENSORS_MAX ? header->tensor_count : WEFT_TENSORS_MAX;
  return count * sizeof(struct weft_tensor_shape);
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
                  end->channel, end->done, end->peer, world->transport.rank, what, found, expected);
}

/* Reads a header of `count` bytes into the message, and the payload that comes with it; false
 * when it cannot be right. */
static bool take_header(struct weft_mpi_world *world, struct weft_mpi_end *end, uint64_t count,
                        struct weft_message *message) {
  const unsigned char *at = header_of(end, end->done);
  struct wire_header wire;
  if (count < sizeof wire) {
    break_end(world, end, "", "bytes of a header, at least", count, sizeof wire);
    return false;
  }
  memcpy(&wire, at, sizeof wire);
  const uint64_t bytes = wire.header.bytes;
  const size_t shapes = shapes_size(&wire.header);
  const uint64_t within = end->part_count == 1 ? bytes : 0;
  if (wire.bytes_max != end->state.bytes_max) {
    break_end(world, end, "all ranks must describe the same boundaries",
              "largest payload that the sender and the receiver opened it for", wire.bytes_max,
              end->state.bytes_max);
  } else if (bytes > end->state.bytes_max) {
    break_end(world, end, "", "bytes of payload, at most", bytes, end->state.bytes_max);
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

static bool take_piece(struct weft_mpi_world *world, struct weft_mpi_end *end, uint64_t count,
                       const struct weft_message *message) {
  const uint64_t expected = (uint64_t)piece_size(world, message->header.bytes, end->part);
  if (count != expected) {
    break_end(world, end, "", "bytes of payload in a piece", count, expected);
  }
  return count == expected;
}

static bool take_received(struct weft_mpi_world *world, struct weft_mpi_end *end, int result,
                          MPI_Status *status, struct weft_message *message) {
  int count = 0;
  int class = MPI_SUCCESS;
  if (result == MPI_SUCCESS) {
    (void)MPI_Get_count(status, MPI_BYTE, &count);
    return end->part == 0 ? take_header(world, end, (uint64_t)count, message)
                          : take_piece(world, end, (uint64_t)count, message);
  }
  (void)MPI_Error_class(result, &class);
  if (class == MPI_ERR_TRUNCATE) {
    break_end(world, end, "all ranks must describe the same boundaries",
              "a longer message than its receive, of bytes", end->state.bytes_max + 1,
              end->state.bytes_max);
  }
  return false;
}

/* A part of the oldest message is done; after the last one, the message is. */
static void end_part(struct weft_mpi_world *world, struct weft_mpi_end *end,
                     struct weft_message *message) {
  if (++end->part < end->part_count) {
    return;
  }
  message->end = weft_mpi_time(world);
  if (message->begin > message->end) { /* clocks of two hosts */
    message->begin = message->end;
  }
  end->messages[end->done & end->mask] = NULL;
  end->part = 0;
  end->done++;
  world->events++;
  __atomic_store_n(&message->state[0], 0, __ATOMIC_RELEASE); /* test() may see it now */
}

void weft_mpi_end_take(struct weft_mpi_world *world, struct weft_mpi_end *end, int result,
                       MPI_Status *status) {
  struct weft_message *message = end->messages[end->done & end->mask];
  assert(end->done < end->posted && end->part < end->part_count && message != NULL);
  *request_of(end, end->done, end->part) = MPI_REQUEST_NULL;
  const bool good =
      end->state.sends ? result == MPI_SUCCESS : take_received(world, end, result, status, message);
  if (!good) {
    if (!end->broken) {
      end->broken = true;
      weft_mpi_failure_of_mpi(world, result, end->state.sends ? "a send" : "a receive");
    }
    return;
  }
  end_part(world, end, message);
}

bool weft_mpi_end_flows(const struct weft_mpi_end *end) { return end->near && end->part > 0; }

/* ---- progress of an end ---- */

static void list(struct weft_mpi_world *world, struct weft_mpi_end *end) {
  end->listed = true;
  weft_mpi_list(world, *request_of(end, end->done, end->part), (uint32_t)(end - world->ends));
}

void weft_mpi_end_advance(struct weft_mpi_world *world, struct weft_mpi_end *end) {
  while (end->done < end->posted && !end->broken && !end->state.closed) {
    MPI_Request *request = request_of(end, end->done, end->part);
    MPI_Status status;
    int flag = 0;
    const int result = MPI_Test(request, &flag, &status);
    if (result == MPI_SUCCESS && !flag) {
      list(world, end);
      return;
    }
    weft_mpi_end_take(world, end, result, &status);
  }
}

/* ---- starting ---- */

/* The end to use, or NULL and why not: full, or wrong. */
static struct weft_mpi_end *choose_end(const struct weft_mpi_world *world, uint32_t channel,
                                       bool sends, const struct weft_message *message,
                                       enum weft_status *status, struct weft_error *error) {
  const uint32_t index = weft_channel_ends_find(&world->by_channel, channel);
  struct weft_mpi_end *end = index != UINT32_MAX ? &world->ends[index] : NULL;
  *status = weft_channel_check_message(&world->transport, channel, end != NULL ? &end->state : NULL,
                                       sends, message, error);
  if (*status < 0) {
    return NULL;
  }
  if (!weft_device_is_host(message->device)) {
    *status = weft_fail(error, WEFT_ERR_UNAVAILABLE, "copy it to host memory (weft_copy)",
                        "rank %" PRIu32
                        " wants to %s a payload in the memory of a %s device, and "
                        "mpi carries host memory only",
                        world->transport.rank, sends ? "send" : "receive",
                        weft_device_name(message->device));
    return NULL;
  }
  assert(end != NULL);
  *status = end->posted - end->done < end->depth ? WEFT_OK : WEFT_IN_PROGRESS;
  return *status == WEFT_OK ? end : NULL;
}

/* The message is the transport's; returns its position on the channel. */
static uint64_t accept(struct weft_mpi_world *world, struct weft_mpi_end *end,
                       struct weft_message *message) {
  assert(end->posted - end->done < end->depth);
  const uint64_t position = end->posted++;
  message->state[0] = (uint64_t)(end - world->ends) + 1;
  message->state[1] = position;
  end->messages[position & end->mask] = message;
  if (end->state.bytes_max >= WAKE_BYTES &&
      __atomic_load_n(&world->thread_idles, __ATOMIC_RELAXED)) {
    weft_mpi_wake_thread(world);
  }
  return position;
}

static int send_header(struct weft_mpi_world *world, struct weft_mpi_end *end, uint64_t position,
                       const struct weft_message *message) {
  unsigned char *at = header_of(end, position);
  const struct wire_header wire = {
      .begin = message->begin, .bytes_max = end->state.bytes_max, .header = message->header};
  const size_t shapes = shapes_size(&message->header);
  const size_t within = end->part_count == 1 ? (size_t)message->header.bytes : 0;
  memcpy(at, &wire, sizeof wire);
  memcpy(at + sizeof wire, message->shapes, shapes);
  if (within > 0) {
    memcpy(at + sizeof wire + shapes, message->data, within);
  }
  /* The receive of the header is posted last, so rendezvous of the header is that of all. */
  return (end->rendezvous ? MPI_Issend : MPI_Isend)(
      at, (int)(sizeof wire + shapes + within), MPI_BYTE, (int)end->peer, weft_mpi_header_tag(end),
      world->messages, request_of(end, position, 0));
}

static int send_pieces(struct weft_mpi_world *world, struct weft_mpi_end *end, uint64_t position,
                       const struct weft_message *message) {
  int result = MPI_SUCCESS;
  for (uint32_t part = 1; part < end->part_count && result == MPI_SUCCESS; part++) {
    const int size = piece_size(world, message->header.bytes, part);
    result = MPI_Isend(size > 0 ? piece_place(world, message, part) : NULL, size, MPI_BYTE,
                       (int)end->peer, weft_mpi_payload_tag(end), world->messages,
                       request_of(end, position, part));
  }
  return result;
}

static void start_send(struct weft_mpi_world *world, struct weft_mpi_end *end,
                       struct weft_message *message) {
  message->begin = weft_mpi_time(world);
  const uint64_t position = accept(world, end, message);
  /* The payload first: the peer copies it while this rank still sends the header. They have
   * tags of their own, so the order does not matter to the receiver. */
  int result = send_pieces(world, end, position, message);
  if (result == MPI_SUCCESS) {
    result = send_header(world, end, position, message);
  }
  if (result != MPI_SUCCESS) {
    weft_mpi_failure_of_mpi(world, result, "starting a send");
  } else if (!end->listed) {
    weft_mpi_end_advance(world, end); /* small ones are done now, as a rule */
  }
}

static void start_receive(struct weft_mpi_world *world, struct weft_mpi_end *end,
                          struct weft_message *message) {
  const int peer = (int)end->peer;
  const uint64_t position = accept(world, end, message);
  int result = MPI_SUCCESS;
  for (uint32_t part = 1; part < end->part_count && result == MPI_SUCCESS; part++) {
    result = MPI_Irecv(piece_place(world, message, part),
                       piece_size(world, end->state.bytes_max, part), MPI_BYTE, peer,
                       weft_mpi_payload_tag(end), world->messages, request_of(end, position, part));
  }
  if (result == MPI_SUCCESS) {
    result = MPI_Irecv(header_of(end, position), (int)end->header_size, MPI_BYTE, peer,
                       weft_mpi_header_tag(end), world->messages, request_of(end, position, 0));
  }
  if (result != MPI_SUCCESS) {
    weft_mpi_failure_of_mpi(world, result, "posting a receive");
  } else if (!end->listed) {
    list(world, end);
  }
}

static enum weft_status start(struct weft_mpi_world *world, uint32_t channel, bool sends,
                              struct weft_message *message, struct weft_error *error) {
  enum weft_status status;
  weft_mpi_lock(world);
  struct weft_mpi_end *end = choose_end(world, channel, sends, message, &status, error);
  if (end != NULL) {
    (sends ? start_send : start_receive)(world, end, message);
  }
  weft_mpi_unlock(world);
  return status;
}

enum weft_status weft_mpi_send(struct weft_transport *transport, uint32_t channel,
                               struct weft_message *message, struct weft_error *error) {
  return start(weft_mpi_world_of(transport), channel, true, message, error);
}

enum weft_status weft_mpi_receive(struct weft_transport *transport, uint32_t channel,
                                  struct weft_message *message, struct weft_error *error) {
  return start(weft_mpi_world_of(transport), channel, false, message, error);
}

/* ---- ending ---- */

enum weft_status weft_mpi_test(struct weft_transport *transport, struct weft_message *message,
                               struct weft_error *error) {
  struct weft_mpi_world *world = weft_mpi_world_of(transport);
  enum weft_status status = WEFT_OK;
  if (__atomic_load_n(&message->state[0], __ATOMIC_ACQUIRE) == 0) {
    return WEFT_OK;
  }
  assert(message->state[0] <= world->end_count);
  weft_mpi_lock(world);
  if (message->state[0] != 0 && ++world->tests > TESTS_WITHOUT_PROGRESS) {
    weft_mpi_advance(world);
  }
  if (message->state[0] != 0) {
    status = WEFT_IN_PROGRESS;
    if (world->ends[message->state[0] - 1].broken && world->trouble.status != WEFT_OK) {
      *error = world->trouble;
      status = world->trouble.status;
    }
  }
  weft_mpi_unlock(world);
  return status;
}

static void unlist(struct weft_mpi_world *world, struct weft_mpi_end *end) {
  const uint32_t owner = (uint32_t)(end - world->ends);
  for (uint32_t k = 0; k < world->active_count && end->listed; k++) {
    if (world->active_owner[k] == owner) {
      world->active_count--;
      world->active[k] = world->active[world->active_count];
      world->active_owner[k] = world->active_owner[world->active_count];
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
  for (uint32_t part = end->state.sends ? 1 : 0; part < end->part_count; part++) {
    MPI_Request *request = request_of(end, position, part);
    if (*request == MPI_REQUEST_NULL) {
      continue;
    }
    if (!end->state.sends) {
      (void)MPI_Cancel(request);
    }
    await_cancel(world, request);
  }
}

void weft_mpi_cancel(struct weft_transport *transport, struct weft_message *message) {
  struct weft_mpi_world *world = weft_mpi_world_of(transport);
  assert(message->state[0] <= world->end_count);
  weft_mpi_lock(world);
  if (message->state[0] != 0) {
    struct weft_mpi_end *end = &world->ends[message->state[0] - 1];
    unlist(world, end);
    end->state.closed = true;
    world->cancelled = 1;
    cancel_requests(world, end, message->state[1]);
    end->messages[message->state[1] & end->mask] = NULL;
    message->state[0] = 0;
  }
  weft_mpi_unlock(world);
}
