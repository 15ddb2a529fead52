/* The program weft-bench, which `weft bench` starts. */
#include "bench/bench.h"

int main(int argc, char **argv) {
  struct weft_cli cli;
  weft_cli_process_init(&cli, argv);
  return weft_bench_run(&cli, argc, argv);
}
