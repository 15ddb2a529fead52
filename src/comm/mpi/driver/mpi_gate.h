/* The way into MPI: one thread at a time.
 *
 * Nearly all calls come from the rank's own thread, several for each message, and a lock
 * that nobody else wants costs as much as a look at the network. So where there is no
 * progress thread the rank's own calls only say that they are within, and see that nobody
 * wants to be; the price is paid by the others (the stall watch, a signal's), which make
 * every processor of this process pass a barrier (membarrier) and wait until the rank is out.
 * Where the system has no such barrier, or with a progress thread, it is a plain lock. */
#ifndef MPI_MPI_GATE_H
#define MPI_MPI_GATE_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

struct weft_mpi_gate {
  pthread_mutex_t lock;
  bool biased;     /* the rank's own calls do without the lock */
  bool seized;     /* who is within came by seize() */
  uint32_t inside; /* atomic: the rank is within; biased only */
  uint32_t wanted; /* atomic: somebody else is, or wants to be; biased only */
};

/* False when the system cannot. `shared`: another thread comes as often as the rank. */
bool weft_mpi_gate_create(struct weft_mpi_gate *gate, bool shared);
void weft_mpi_gate_destroy(struct weft_mpi_gate *gate);

/* For any thread, and out again. */
void weft_mpi_gate_seize(struct weft_mpi_gate *gate);
bool weft_mpi_gate_try(struct weft_mpi_gate *gate); /* without waiting */
void weft_mpi_gate_release(struct weft_mpi_gate *gate);

/* Somebody else is within: waits. */
void weft_mpi_gate_queue(struct weft_mpi_gate *gate);

/* For the rank's own thread, and out again. */
static inline void weft_mpi_gate_enter(struct weft_mpi_gate *gate) {
  if (!gate->biased) {
    (void)pthread_mutex_lock(&gate->lock);
    return;
  }
  __atomic_store_n(&gate->inside, 1, __ATOMIC_RELAXED);
  __atomic_signal_fence(__ATOMIC_SEQ_CST); /* the processor's part is done by membarrier */
  if (__atomic_load_n(&gate->wanted, __ATOMIC_ACQUIRE) != 0) {
    weft_mpi_gate_queue(gate);
  }
}

static inline void weft_mpi_gate_leave(struct weft_mpi_gate *gate) {
  if (!gate->biased) {
    (void)pthread_mutex_unlock(&gate->lock);
    return;
  }
  __atomic_store_n(&gate->inside, 0, __ATOMIC_RELEASE);
}

/* Out for a moment, whichever way one came, and in again the same way. */
bool weft_mpi_gate_step_out(struct weft_mpi_gate *gate);
void weft_mpi_gate_step_in(struct weft_mpi_gate *gate, bool seized);

#endif
