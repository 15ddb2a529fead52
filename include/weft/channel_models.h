/* Weft channel models: when a rank goes on after SEND and RECV, and what shares a channel. A model
 * is both, and means the same in `weft verify` (can the program hang under it?), `weft sim` (how
 * long do transfers wait for each other?) and `weft run` (run it as on such a network).
 *
 * weft/channel_models.def lists them. */
#ifndef WEFT_CHANNEL_MODELS_H
#define WEFT_CHANNEL_MODELS_H

#include <weft/base.h>

#ifdef __cplusplus
extern "C" {
#endif

#define WEFT_CAPACITY_UNLIMITED UINT32_MAX

/* When a SEND and a RECV are done. Messages pass through channels, each a FIFO. A RECV is done when
 * its message is the oldest one on its channel. A SEND is done when fewer messages than the capacity
 * wait on its channel in front of its own; with a capacity of 0, when its message has been received.
 * In most models a rank's row waits for either. The strictest is rendezvous: what completes there
 * completes everywhere. */
enum weft_send_model {
#define WEFT_SEND_MODEL(NAME, ...) WEFT_COMM_##NAME,
#include <weft/channel_models.def>
  WEFT_SEND_MODEL_COUNT
};

/* What one channel carries, and what is one queue at a rank.
 *
 * The NCCL models are asynchronous: a SEND or RECV does not hold up its rank, but is put into a
 * queue of its communicator at that rank. It starts when the compute before it in its row is done
 * and everything before it in the queue, sends and receives alike; compute waits for the compute
 * before it, and for the RECVs of its inputs. Messages between two ranks are one channel, and the
 * capacity is that of such a channel. */
enum weft_channel_model {
#define WEFT_CHANNEL_MODEL(NAME, ...) WEFT_CHANNEL_##NAME,
#include <weft/channel_models.def>
  WEFT_CHANNEL_COUNT
};

/* What is shared by transfers that share a channel, or at a rank a queue. */
enum weft_channel_scope {
  WEFT_SCOPE_EDGE, /* the directed stage boundary: activations s -> s+1, or gradients s -> s-1; of a
                      graph: the direction of an edge */
  WEFT_SCOPE_DIRECTED_PAIR, /* the sending and the receiving rank */
  WEFT_SCOPE_PAIR,          /* the two ranks, whoever sends */
  WEFT_SCOPE_SENDER,        /* the sending rank */
  WEFT_SCOPE_RANK           /* the rank: all its sends and receives */
};

struct weft_send_model_info {
  const char *name;  /* "rendezvous"; "slots:K" where a number belongs to it */
  uint32_t capacity; /* of a channel; of slots:K it is the number */
  bool row_waits;    /* else a SEND or RECV never holds up its row: compute waits for its inputs */
  const char *done;  /* when a SEND is: "at once", "when its message has been received" */
};

struct weft_channel_model_info {
  const char *name;                 /* "edge" */
  enum weft_channel_scope messages; /* one FIFO of messages, from SENDs to RECVs */
  enum weft_channel_scope at_rank;  /* one queue of the transfers of a rank */
  bool asynchronous;
  const char *one_for; /* what it carries */
  const char *words;   /* "one channel per stage boundary" */
};

/* Static storage; NULL for a number that no model has, so that a caller can count up. */
WEFT_API const struct weft_send_model_info *weft_send_model_info(enum weft_send_model model);
WEFT_API const struct weft_channel_model_info *weft_channel_model_info(
    enum weft_channel_model model);

/* The capacity of a channel, which is `slots` where a number belongs to the name. */
WEFT_API uint32_t weft_send_model_capacity(enum weft_send_model model, uint32_t slots);

struct weft_comm_model {
  uint32_t capacity; /* messages that a channel buffers; default 0: rendezvous */
  enum weft_channel_model channel;
  bool posted; /* no SEND or RECV holds up its row, whatever the channel; then the capacity must be
                  unlimited */
};

/* Reads "rendezvous", "slots:3", ...: the model, and its capacity. WEFT_ERR_USAGE. */
WEFT_API enum weft_status weft_send_model_parse(const char *text, enum weft_send_model *model,
                                                uint32_t *capacity, struct weft_error *error);
/* Appends the name of its send model: "rendezvous", "slots:3". */
WEFT_API void weft_comm_model_print(const struct weft_comm_model *model, struct weft_text *text);

#ifdef __cplusplus
}
#endif
#endif
