/* The command's entry: everything else is weft_cli_run(), which tests call too. */
#define _DEFAULT_SOURCE /* syscall */
#include <signal.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "cli/cli.h"

#if defined(WEFT_HAS_TRAINER) && defined(__linux__)

/* OpenBLAS starts threads of its own while it is loaded, before main(). A signal that
 * this command holds back while it writes a file, or that a guard waits for (guard.h),
 * would be taken by one of them, and end the process or be lost. So they are born with
 * these signals blocked: functions in .preinit_array run before those of any shared
 * library. By a bare system call, and without a sanitizer's checks, since nothing else
 * is ready that early. */
static const int held_back[] = {SIGINT,  SIGTERM, SIGHUP,  SIGQUIT, SIGUSR1,
                                SIGUSR2, SIGTSTP, SIGCONT, SIGCHLD};
static uint64_t mask_before;

__attribute__((no_sanitize("address", "thread", "undefined"))) static void hold_signals(void) {
  uint64_t mask = 0;
  for (unsigned k = 0; k < sizeof held_back / sizeof held_back[0]; k++) {
    mask |= UINT64_C(1) << (held_back[k] - 1);
  }
  (void)syscall(SYS_rt_sigprocmask, SIG_BLOCK, &mask, &mask_before, sizeof mask);
}

__attribute__((section(".preinit_array"), used)) static void (*const early)(void) = hold_signals;

static void release_signals(void) {
  (void)syscall(SYS_rt_sigprocmask, SIG_SETMASK, &mask_before, NULL, sizeof mask_before);
}

#else

static void release_signals(void) {}

#endif

int main(int argc, char **argv) {
  struct weft_cli cli;
  release_signals();
  weft_cli_process_init(&cli, argv);
  return weft_cli_run(&cli, argc, argv);
}
