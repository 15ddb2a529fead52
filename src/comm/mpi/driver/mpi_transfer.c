/* Messages on their way. What came is held against what its envelope says, part by
 * part: MPI takes a message that is shorter than its receive for a good one. Nothing
 * allocates. */
#include <inttypes.h>
#include <string.h>

#include <weft/support.h>

#include "comm/mpi/driver/mpi_world.h"

enum {
  TESTS_ALONE = 32,     /* then test() looks at the network itself */
  WAKE_BYTES = 1 << 20, /* from there on a payload is worth a call of the system */
  CANCEL_NS = 100 * WEFT_MPI_NS_PER_MS
};

static MPI_Request *request_of(const struct weft_mpi_end *end, uint64_t position, uint32_t part) {
  return &end->requests[(position & end->mask) * end->part_count + part];
}

static unsigned char *envelope_of(const struct weft_mpi_end *end, uint64_t position) {
  return end->envelopes + (position & end->mask) * end->envelope_size;
}

/* Bytes of a payload that travel as piece `part` (from 1). */
static int piece_size(const struct weft_mpi_world *world, uint64_t bytes, uint32_t part) {
  const uint64_t begin = (part - 1) * world->piece;
  const uint64_t left = bytes > begin ? bytes - begin : 0;
  return (int)(left < world->piece ? left : world->piece);
}

static unsigned char *piece_place(const struct weft_mpi_world *world,
                                  const struct weft_message *message, uint32_t part) {
  return (unsigned char *)message->data + (part - 1) * world->piece;
}

/* ---- what came ---- */

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

/* Into the message; false when it cannot be right. */
static bool open_envelope(struct weft_mpi_world *world, struct weft_mpi_end *end,
                          const unsigned char *at, uint64_t count, struct weft_message *message) {
  const struct weft_mpi_envelope found =
      weft_mpi_envelope_read(&end->memory, end->bytes_max, at, (size_t)count, message);
  const uint64_t bytes = message->header.bytes;
  const uint64_t within = end->part_count == 1 ? bytes : 0;
  if (found.fault == WEFT_MPI_ENVELOPE_FOREIGN) {
    break_end(world, end, "all ranks must describe the same boundaries",
              "largest payload that the sender and the receiver opened it for", found.found,
              found.expected);
  } else if (found.fault == WEFT_MPI_ENVELOPE_SHORT) {
    break_end(world, end, "", "bytes of an envelope, at least", found.found, found.expected);
  } else if (bytes > end->bytes_max) {
    break_end(world, end, "", "bytes of payload, at most", bytes, end->bytes_max);
  } else if (count != found.size + within) {
    break_end(world, end, "", "bytes of an envelope", count, found.size + within);
  } else if (within > 0) {
    memcpy(message->data, at + found.size, (size_t)within);
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

static bool take_received(struct weft_mpi_world *world, struct weft_mpi_end *end, int result,
                          MPI_Status *status, struct weft_message *message) {
  int count = 0;
  int class = MPI_SUCCESS;
  if (result == MPI_SUCCESS) {
    (void)MPI_Get_count(status, MPI_BYTE, &count);
    return end->part == 0
               ? open_envelope(world, end, envelope_of(end, end->done), (uint64_t)count, message)
               : check_piece(world, end, (uint64_t)count, message);
  }
  (void)MPI_Error_class(result, &class);
  if (class == MPI_ERR_TRUNCATE) {
    break_end(world, end, "all ranks must describe the same boundaries",
              "a longer message than its receive, of bytes", end->bytes_max + 1, end->bytes_max);
  }
  return false;
}

/* A part of the message is done; after the last one, it is. */
static void end_part(struct weft_mpi_world *world, struct weft_mpi_end *end,
                     struct weft_message *message) {
  if (++end->part < end->part_count) {
    return;
  }
  message->end = world->instant != 0 ? world->instant : weft_mpi_stamp(world);
  if (!end->sends) {
    message->begin = weft_mpi_envelope_time(message->begin, message->end);
  }
  if (message->begin > message->end) { /* clocks of two hosts */
    message->begin = message->end;
  }
  message->state[0] = 0;
  end->messages[end->done & end->mask] = NULL;
  end->part = 0;
  end->done++;
  world->events++;
}

void weft_mpi_end_take(struct weft_mpi_world *world, struct weft_mpi_end *end, int result,
                       MPI_Status *status) {
  struct weft_message *message = end->messages[end->done & end->mask];
  *request_of(end, end->done, end->part) = MPI_REQUEST_NULL;
  const bool good =
      end->sends ? result == MPI_SUCCESS : take_received(world, end, result, status, message);
  if (!good) {
    if (!end->broken) {
      end->broken = true;
      weft_mpi_failure_of_mpi(world, result, end->sends ? "a send" : "a receive");
    }
    return;
  }
  end_part(world, end, message);
}

/* ---- letters ---- */

/* Returns how long it is, with the payload where that goes with it. */
static uint64_t write_envelope(struct weft_mpi_end *end, const struct weft_message *message,
                               unsigned char *at) {
  const size_t size = weft_mpi_envelope_write(&end->memory, end->bytes_max, message, at);
  const uint64_t within = end->part_count == 1 ? message->header.bytes : 0;
  if (within > 0) {
    memcpy(at + size, message->data, (size_t)within);
  }
  return size + within;
}

/* As many as there is room for. */
static void post_letters(struct weft_mpi_end *end) {
  struct weft_mpi_letterbox *box = &end->box;
  while (box->written < end->posted && weft_mpi_letterbox_has_room(box)) {
    const struct weft_message *message = end->messages[box->written & end->mask];
    unsigned char *at = weft_mpi_letter_at(box, box->written)->envelope;
    weft_mpi_letter_post(box, write_envelope(end, message, at));
  }
}

bool weft_mpi_end_has_letter(struct weft_mpi_world *world, struct weft_mpi_end *end) {
  if (end->sends) {
    return end->box.written > end->done || weft_mpi_letterbox_has_room(&end->box);
  }
  return (end->box.letters != NULL || weft_mpi_letterbox_find(world, end)) &&
         weft_mpi_letter_look(&end->box, end->done) != NULL;
}

bool weft_mpi_end_flows(const struct weft_mpi_end *end) {
  return end->by_letter && end->part > 0 &&
         (!end->sends || weft_mpi_letters_taken(&end->box) > end->done);
}

/* The letter of the oldest message; there is one, or room for it. */
static void pass_letter(struct weft_mpi_world *world, struct weft_mpi_end *end) {
  struct weft_message *message = end->messages[end->done & end->mask];
  if (end->sends) {
    post_letters(end);
    end_part(world, end, message);
    return;
  }
  const struct weft_mpi_letter *letter = weft_mpi_letter_look(&end->box, end->done);
  const uint64_t position = end->done;
  if (open_envelope(world, end, letter->envelope, letter->size, message)) {
    end_part(world, end, message);
  }
  weft_mpi_letter_taken(&end->box, position);
}

/* ---- going on ---- */

/* What the end waits for now is looked at from now on. */
static void list(struct weft_mpi_world *world, struct weft_mpi_end *end) {
  const uint32_t owner = (uint32_t)(end - world->ends);
  end->listed = true;
  if (end->part == 0 && end->by_letter) {
    weft_mpi_list_letter(world, owner);
  } else {
    weft_mpi_list(world, *request_of(end, end->done, end->part), owner);
  }
}

void weft_mpi_end_advance(struct weft_mpi_world *world, struct weft_mpi_end *end) {
  while (end->done < end->posted && !end->broken && !end->closed) {
    if (end->part == 0 && end->by_letter) {
      if (!weft_mpi_end_has_letter(world, end)) {
        list(world, end);
        return;
      }
      pass_letter(world, end);
      continue;
    }
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

struct weft_mpi_end *weft_mpi_end_find(const struct weft_mpi_world *world, uint32_t channel) {
  if (world->slots == NULL) {
    return NULL;
  }
  for (uint32_t k = weft_mpi_channel_hash(channel, world->slot_mask);;
       k = (k + 1) & world->slot_mask) {
    const struct weft_mpi_end_slot *slot = &world->slots[k];
    if (slot->end == 0) {
      return NULL;
    }
    if (slot->channel == channel) {
      return &world->ends[slot->end - 1];
    }
  }
}

static enum weft_status refuse(const struct weft_mpi_world *world, const struct weft_mpi_end *end,
                               uint32_t channel, const char *verb, struct weft_error *error) {
  const uint32_t rank = world->transport.rank;
  if (end == NULL) {
    return weft_fail(error, WEFT_ERR_USAGE, "name every channel in open()",
                     "rank %" PRIu32 " wants to %s on channel %" PRIu32 ", which it has not opened",
                     rank, verb, channel);
  }
  if (end->closed) {
    return weft_fail(error, WEFT_ERR_USAGE, "after a cancel, make a new world",
                     "rank %" PRIu32 " wants to %s on channel %" PRIu32
                     ", on which it has cancelled a message",
                     rank, verb, channel);
  }
  return weft_fail(error, WEFT_ERR_USAGE, "a channel goes one way: open another one",
                   "rank %" PRIu32 " wants to %s on channel %" PRIu32 ", where it %s", rank, verb,
                   channel, end->sends ? "sends" : "receives");
}

/* The end to use, or NULL and why not: full, or wrong. */
static struct weft_mpi_end *choose_end(const struct weft_mpi_world *world, uint32_t channel,
                                       bool sends, const struct weft_message *message,
                                       enum weft_status *status, struct weft_error *error) {
  struct weft_mpi_end *end = weft_mpi_end_find(world, channel);
  const char *verb = sends ? "send" : "receive";
  if (end == NULL || end->closed || end->sends != sends) {
    *status = refuse(world, end, channel, verb, error);
    return NULL;
  }
  if (!weft_device_is_host(message->device)) {
    *status = weft_fail(error, WEFT_ERR_UNAVAILABLE, "copy it to host memory (weft_copy)",
                        "rank %" PRIu32
                        " wants to %s a payload in the memory of a %s device, and "
                        "mpi carries host memory only",
                        world->transport.rank, verb, weft_device_name(message->device));
    return NULL;
  }
  const uint64_t bytes = sends ? message->header.bytes : 0;
  if (bytes > end->bytes_max || message->capacity < end->bytes_max) {
    *status =
        weft_fail(error, WEFT_ERR_USAGE, "open the channel for the largest payload",
                  "rank %" PRIu32 " wants to %s %" PRIu64 " bytes of payload from or into %" PRIu64
                  " bytes on channel %" PRIu32 ", which is for up to %" PRIu64,
                  world->transport.rank, verb, bytes, message->capacity, channel, end->bytes_max);
    return NULL;
  }
  *status = end->posted - end->done < end->depth ? WEFT_OK : WEFT_IN_PROGRESS;
  return *status == WEFT_OK ? end : NULL;
}

/* The message is the transport's; returns its position on the channel. */
static uint64_t accept(struct weft_mpi_world *world, struct weft_mpi_end *end,
                       struct weft_message *message) {
  const uint64_t position = end->posted++;
  message->state[0] = (uint64_t)(end - world->ends) + 1;
  message->state[1] = position;
  end->messages[position & end->mask] = message;
  if (end->bytes_max >= WAKE_BYTES && __atomic_load_n(&world->thread_idles, __ATOMIC_RELAXED)) {
    weft_mpi_wake_thread(world);
  }
  return position;
}

static int send_envelope(struct weft_mpi_world *world, struct weft_mpi_end *end, uint64_t position,
                         const struct weft_message *message) {
  unsigned char *at = envelope_of(end, position);
  return MPI_Isend(at, (int)write_envelope(end, message, at), MPI_BYTE, (int)end->peer,
                   weft_mpi_envelope_tag(end), world->messages, request_of(end, position, 0));
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

/* A letter is quick, and goes first. An envelope goes by MPI while the payload is already on
 * its way: a message takes a moment to be sent, whatever its size. */
static void start_send(struct weft_mpi_world *world, struct weft_mpi_end *end,
                       struct weft_message *message) {
  message->begin = weft_mpi_stamp(world);
  const uint64_t position = accept(world, end, message);
  if (end->by_letter) {
    post_letters(end);
  }
  int result = send_pieces(world, end, position, message);
  if (result == MPI_SUCCESS && !end->by_letter) {
    result = send_envelope(world, end, position, message);
  }
  if (result != MPI_SUCCESS) {
    weft_mpi_failure_of_mpi(world, result, "starting a send");
  } else if (!end->listed) {
    world->instant = message->begin; /* small ones are done now, as a rule */
    weft_mpi_end_advance(world, end);
    world->instant = 0;
  }
}

static void start_receive(struct weft_mpi_world *world, struct weft_mpi_end *end,
                          struct weft_message *message) {
  const int peer = (int)end->peer;
  const uint64_t position = accept(world, end, message);
  int result = end->by_letter ? MPI_SUCCESS
                              : MPI_Irecv(envelope_of(end, position), (int)end->envelope_size,
                                          MPI_BYTE, peer, weft_mpi_envelope_tag(end),
                                          world->messages, request_of(end, position, 0));
  for (uint32_t part = 1; part < end->part_count && result == MPI_SUCCESS; part++) {
    result = MPI_Irecv(piece_place(world, message, part), piece_size(world, end->bytes_max, part),
                       MPI_BYTE, peer, weft_mpi_payload_tag(end), world->messages,
                       request_of(end, position, part));
  }
  if (result != MPI_SUCCESS) {
    weft_mpi_failure_of_mpi(world, result, "posting a receive");
  } else if (!end->listed) {
    list(world, end);
  }
}

enum weft_status weft_mpi_send(struct weft_transport *transport, uint32_t channel,
                               struct weft_message *message, struct weft_error *error) {
  struct weft_mpi_world *world = weft_mpi_world_of(transport);
  enum weft_status status;
  weft_mpi_gate_enter(&world->gate);
  struct weft_mpi_end *end = choose_end(world, channel, true, message, &status, error);
  if (end != NULL) {
    start_send(world, end, message);
  }
  weft_mpi_gate_leave(&world->gate);
  return status;
}

enum weft_status weft_mpi_receive(struct weft_transport *transport, uint32_t channel,
                                  struct weft_message *message, struct weft_error *error) {
  struct weft_mpi_world *world = weft_mpi_world_of(transport);
  enum weft_status status;
  weft_mpi_gate_enter(&world->gate);
  struct weft_mpi_end *end = choose_end(world, channel, false, message, &status, error);
  if (end != NULL) {
    start_receive(world, end, message);
  }
  weft_mpi_gate_leave(&world->gate);
  return status;
}

/* ---- ending ---- */

enum weft_status weft_mpi_test(struct weft_transport *transport, struct weft_message *message,
                               struct weft_error *error) {
  struct weft_mpi_world *world = weft_mpi_world_of(transport);
  enum weft_status status = WEFT_OK;
  weft_mpi_gate_enter(&world->gate);
  if (message->state[0] != 0 && ++world->tests > TESTS_ALONE) {
    weft_mpi_advance(world);
  }
  if (message->state[0] != 0) {
    status = WEFT_IN_PROGRESS;
    if (world->ends[message->state[0] - 1].broken && world->trouble.status != WEFT_OK) {
      *error = world->trouble;
      status = world->trouble.status;
    }
  }
  weft_mpi_gate_leave(&world->gate);
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
  for (uint32_t k = 0; k < world->awaiting_count && end->listed; k++) {
    if (world->awaiting[k] == owner) {
      world->awaiting[k] = world->awaiting[--world->awaiting_count];
      end->listed = false;
    }
  }
}

/* Until MPI has let go of the memory, or the time that all cancels share is over: then
 * the other side does not take it any more, for it has failed too. */
static void let_go(struct weft_mpi_world *world, MPI_Request *request) {
  int flag = 0;
  int64_t now = weft_mpi_monotonic();
  if (world->cancel_until == 0) {
    world->cancel_until = now + CANCEL_NS;
  }
  while (MPI_Test(request, &flag, MPI_STATUS_IGNORE) == MPI_SUCCESS && !flag &&
         now < world->cancel_until) {
    weft_mpi_sleep(20 * WEFT_MPI_NS_PER_US);
    now = weft_mpi_monotonic();
  }
}

/* An envelope that is sent lies in our own memory, which stays. */
static void take_back(struct weft_mpi_world *world, struct weft_mpi_end *end, uint64_t position) {
  for (uint32_t part = end->sends ? 1 : 0; part < end->part_count; part++) {
    MPI_Request *request = request_of(end, position, part);
    if (*request == MPI_REQUEST_NULL) {
      continue;
    }
    if (!end->sends) {
      (void)MPI_Cancel(request);
    }
    let_go(world, request);
  }
}

void weft_mpi_cancel(struct weft_transport *transport, struct weft_message *message) {
  struct weft_mpi_world *world = weft_mpi_world_of(transport);
  weft_mpi_gate_enter(&world->gate);
  if (message->state[0] != 0) {
    struct weft_mpi_end *end = &world->ends[message->state[0] - 1];
    unlist(world, end);
    end->closed = true;
    world->cancelled = 1;
    take_back(world, end, message->state[1]);
    end->messages[message->state[1] & end->mask] = NULL;
    message->state[0] = 0;
  }
  weft_mpi_gate_leave(&world->gate);
}
