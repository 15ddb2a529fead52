/* Weft launch: supervision of a job of processes, for any MPI trainer.
 *
 * When a process of an MPI job dies, the launcher (mpirun, srun) ends all others within
 * milliseconds, and nobody can report why. With two calls, and two around the start of MPI, a
 * program gets a supervisor process around each rank, one report per failed job, and exit status 75:
 *
 *     int main(void) {
 *       struct weft_error error = {.status = WEFT_OK};
 *       struct weft_comm *comm = NULL;
 *       weft_launch_begin("trainer");           // first: forks where a launcher started us
 *       weft_launch_startup_begin(NULL, 0);     // the start of MPI has a limit;
 *       weft_comm_open(NULL, "mpi", NULL, &comm, &error);
 *       weft_launch_startup_end();              // who exits from here on has died
 *       ...                                     // train
 *       return weft_launch_end(comm, &error);   // last: reports, ends the job
 *     }
 *
 *     launcher ── supervisor ── rank 0     a rank ends when its supervisor ends;
 *              └─ supervisor ── rank 1     a supervisor ends as its rank did
 *
 * Weft's libraries do not print, do not end the process and keep no global state. This
 * module is the exception: it writes reports to standard error, it ends processes, and
 * what it knows of this process is global.
 *
 * docs/mpi.md explains it; examples/mpi_trainer.c is a complete program. */
#ifndef WEFT_LAUNCH_H
#define WEFT_LAUNCH_H

#include <weft/comm.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The exit status of every process of a job that failed (EX_TEMPFAIL of sysexits.h). */
#define WEFT_LAUNCH_FAILED 75

/* ---- Two calls ---- */

/* Call it first in main(), before any thread, MPI call or output. Where a launcher started
 * this process, it forks: the new process returns from here and is the rank; this one
 * becomes its supervisor, never returns, and exits as the rank does. When a signal kills the
 * rank, the supervisor reports it, gives the other ranks a moment to report what they know,
 * and ends the job with WEFT_LAUNCH_FAILED. Signals to the supervisor are forwarded.
 *
 * Where a library has started a thread when it was loaded, the rank starts its program again,
 * with the same words: what main() does before this call is done twice.
 *
 * Without a launcher, or already below a supervisor, it returns at once. `program` comes
 * first in every report and stays valid until the process ends. */
WEFT_API void weft_launch_begin(const char *program);

/* Call it last, on every rank; returns the exit status for main().
 *
 * All is well (error NULL or its status WEFT_OK, and no rank failed): waits for the other
 * ranks, closes the world, returns 0.
 *
 * Otherwise it tells all other ranks, and one of them reports the error that they agree on
 * (weft_launch_is_reporter); each other rank writes one line with what it was doing. Then it
 * ends the job and does not return. The exit status is WEFT_LAUNCH_FAILED, or 128 + the
 * signal for WEFT_ERR_CANCELLED after a signal (weft_launch_signal). Where all ranks are in this
 * process (threads, loopback), it reports the error, closes the world and returns that status.
 *
 * `comm` may be NULL, when it could not be opened: it reports `error` and returns. */
WEFT_API int weft_launch_end(struct weft_comm *comm, const struct weft_error *error);

/* ---- The launcher ---- */

/* What the launcher's environment variables say; known before MPI starts. */
struct weft_launch_info {
  const char *launcher; /* "openmpi", "mpich"; NULL: no launcher, one process */
  uint32_t rank, rank_count;
  uint32_t ranks_on_host; /* on this machine; all of them when the launcher does not say */
};
WEFT_API struct weft_launch_info weft_launch_info(void);

/* ---- Start-up limit ----
 *
 * MPI waits without limit for all processes of a job to start. Between these two calls the
 * supervisor ends a rank that is still waiting after two minutes, or after the seconds in
 * the variable WEFT_START_LIMIT (0: never). Put them around weft_comm_open() or MPI_Init().
 *
 * The supervisor then writes `report` (whole lines) and exits with `exit_status`. NULL: its
 * own report, and WEFT_LAUNCH_FAILED. */
WEFT_API void weft_launch_startup_begin(const char *report, int exit_status);
WEFT_API void weft_launch_startup_end(void);

/* A rank that exits after weft_launch_startup_end(), with whatever status, and not through
 * weft_launch_end(), has died: exit() somewhere below it, say. Its supervisor reports it, and the
 * job ends with WEFT_LAUNCH_FAILED. Call this before you exit without weft_launch_end(). */
WEFT_API void weft_launch_leave(void);

/* ---- Failures ---- */

/* Whether this rank reports for the job: the lowest rank that is not the culprit, and whose process
 * is not known to be stopped or dead; after a signal, the rank that received it. */
WEFT_API bool weft_launch_is_reporter(struct weft_transport *transport);

/* Adds to the error of a rank that has died what it was doing: step, action and GPU, as far as this
 * rank knows. */
WEFT_API void weft_launch_add_last_activity(struct weft_transport *transport,
                                            struct weft_error *error);

/* What this rank was doing when the job ended, in a sentence; returns `buffer`. Empty in jobs
 * of more than 32 ranks for ranks that have nothing to do with the failure. */
WEFT_API const char *weft_launch_rank_activity(struct weft_transport *transport, char *buffer,
                                               size_t size);

/* ---- Standard input ---- */

/* Launchers give standard input to rank 0 only. All ranks call it; `*copy` is then a
 * descriptor of a copy of `input` of rank 0, to be closed by the caller. WEFT_ERR_IO when
 * rank 0 cannot read it. */
WEFT_API enum weft_status weft_launch_share_input(struct weft_transport *transport, int input,
                                                  int *copy, struct weft_error *error);

/* ---- SIGINT, SIGTERM and SIGHUP ----
 *
 * The first signal asks the ranks to stop; a second one ends the process at once (but not
 * the same signal within 0.2 s: batch systems signal a rank and its supervisor, which
 * forwards it). */

/* From here until end() the three signals are recorded only. So read inputs before: a read that waits
 * goes on after a signal that is recorded. A signal that is ignored, as in the background of a shell or
 * by nohup, stays ignored. Calls do not nest. */
WEFT_API void weft_launch_signals_begin(void);
WEFT_API void weft_launch_signals_end(void);

/* The signal that arrived since begin(), or 0. Any thread. */
WEFT_API int weft_launch_signal(void);
/* "SIGINT". */
WEFT_API const char *weft_launch_signal_name(int number);
/* For options.interrupted of a pipeline; `context` is not used. */
WEFT_API bool weft_launch_is_interrupted(void *context);

/* Ranks that wait for each other do not poll for signals. Between these two calls a thread
 * does, and fails the world with WEFT_ERR_CANCELLED when a signal has arrived. NULL: the
 * thread could not be started; end() takes it. */
struct weft_launch_watch;
WEFT_API struct weft_launch_watch *weft_launch_watch_begin(struct weft_transport *transport);
WEFT_API void weft_launch_watch_end(struct weft_launch_watch *watch);

#ifdef __cplusplus
}
#endif
#endif
