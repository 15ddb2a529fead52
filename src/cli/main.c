/* The program weft: everything else is weft_cli_run(), which tests call too. */
#include "cli/cli_program.h"

int main(int argc, char **argv) {
  struct weft_cli cli;
  weft_cli_process_init(&cli, argv);
  return weft_cli_run(&cli, &weft_program, argc, argv);
}
