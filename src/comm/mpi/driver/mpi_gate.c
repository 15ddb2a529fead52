/* The slow side of the gate: for threads other than the rank's own. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* syscall */
#endif
#include "comm/mpi/driver/mpi_gate.h"

#include <linux/membarrier.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

static bool barrier(int command) { return syscall(SYS_membarrier, command, 0, 0) == 0; }

bool weft_mpi_gate_create(struct weft_mpi_gate *gate, bool shared) {
  *gate = (struct weft_mpi_gate){.biased = false};
  if (pthread_mutex_init(&gate->lock, NULL) != 0) {
    return false;
  }
  gate->biased = !shared && barrier(MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED);
  return true;
}

void weft_mpi_gate_destroy(struct weft_mpi_gate *gate) { pthread_mutex_destroy(&gate->lock); }

/* After the barrier the rank either sees that the gate is wanted, or is seen within. */
static void want(struct weft_mpi_gate *gate) {
  __atomic_store_n(&gate->wanted, 1, __ATOMIC_SEQ_CST);
  (void)barrier(MEMBARRIER_CMD_PRIVATE_EXPEDITED); /* registered: cannot fail */
}

static bool rank_is_inside(const struct weft_mpi_gate *gate) {
  return __atomic_load_n(&gate->inside, __ATOMIC_ACQUIRE) != 0;
}

void weft_mpi_gate_seize(struct weft_mpi_gate *gate) {
  (void)pthread_mutex_lock(&gate->lock);
  if (gate->biased) {
    want(gate);
    while (rank_is_inside(gate)) {
      (void)sched_yield();
    }
  }
  gate->seized = true;
}

static void give_up(struct weft_mpi_gate *gate) {
  __atomic_store_n(&gate->wanted, 0, __ATOMIC_RELEASE);
  (void)pthread_mutex_unlock(&gate->lock);
}

bool weft_mpi_gate_try(struct weft_mpi_gate *gate) {
  if (pthread_mutex_trylock(&gate->lock) != 0) {
    return false;
  }
  if (gate->biased) {
    want(gate);
    if (rank_is_inside(gate)) {
      give_up(gate);
      return false;
    }
  }
  gate->seized = true;
  return true;
}

void weft_mpi_gate_release(struct weft_mpi_gate *gate) {
  gate->seized = false;
  give_up(gate);
}

/* Who has the lock is the only one that may want the gate. */
void weft_mpi_gate_queue(struct weft_mpi_gate *gate) {
  __atomic_store_n(&gate->inside, 0, __ATOMIC_RELEASE);
  (void)pthread_mutex_lock(&gate->lock);
  __atomic_store_n(&gate->inside, 1, __ATOMIC_RELAXED);
  (void)pthread_mutex_unlock(&gate->lock);
}

bool weft_mpi_gate_step_out(struct weft_mpi_gate *gate) {
  const bool seized = gate->seized;
  if (seized) {
    weft_mpi_gate_release(gate);
  } else {
    weft_mpi_gate_leave(gate);
  }
  return seized;
}

void weft_mpi_gate_step_in(struct weft_mpi_gate *gate, bool seized) {
  if (seized) {
    weft_mpi_gate_seize(gate);
  } else {
    weft_mpi_gate_enter(gate);
  }
}
