/* `weft help --man`: the manual page, in roff. */
#include <assert.h>

#include "cli/args/help.h"

/* Roff reads a dash as a hyphen, a backslash as a command, and a dot or a quote at the start of a
 * line as a request. */
static void add_roff(struct weft_text *text, const char *words) {
  bool line_start = true;
  for (; *words != '\0'; words++) {
    weft_text_add(text, line_start && (*words == '.' || *words == '\'') ? "\\&" : "");
    line_start = *words == '\n';
    switch (*words) {
      case '-': weft_text_add(text, "\\-"); break;
      case '\\': weft_text_add(text, "\\e"); break;
      case '\n': weft_text_add(text, "\n.PP\n"); break;
      default: weft_text_append(text, words, 1);
    }
  }
}

static void add_option(struct weft_text *text, const struct weft_cli_option *option) {
  weft_text_add(text, ".TP\n");
  if (option->letter != '\0') {
    weft_text_addf(text, "\\fB\\-%c\\fR, ", option->letter);
  }
  weft_text_add(text, "\\fB\\-\\-");
  add_roff(text, option->name);
  weft_text_add(text, "\\fR");
  if (option->value != NULL) {
    weft_text_addf(text, " \\fI%s\\fR", option->value);
  }
  weft_text_add(text, "\n");
  add_roff(text, option->summary);
  if (option->choices != NULL) {
    weft_text_add(text, "; one of ");
    add_roff(text, option->choices);
  }
  weft_text_add(text, "\n");
}

static void add_command(struct weft_text *text, const struct weft_cli_command *command) {
  weft_text_addf(text, ".SS \"weft %s", command->name);
  weft_text_addf(text, command->operands[0] != '\0' ? " [options] %s\"\n" : " [options]\"\n",
                 command->operands);
  add_roff(text, command->description);
  weft_text_add(text, "\n");
  const struct weft_cli_option *option;
  const char *heading;
  for (unsigned k = 0; (option = weft_cli_command_option_at(command, k, &heading)) != NULL; k++) {
    if (heading != NULL && command->groups[1].heading != NULL) {
      weft_text_addf(text, ".PP\n\\fI%s\\fR\n", heading);
    }
    add_option(text, option);
  }
  weft_text_add(text, ".PP\nExample:\n.PP\n.nf\n.RS\n");
  add_roff(text, command->example);
  weft_text_add(text, "\n.RE\n.fi\n");
}

static void add_exit_status(struct weft_text *text) {
  weft_text_add(text, ".SH EXIT STATUS\n");
  for (const struct weft_cli_exit_text *exit = weft_cli_exit_texts(); exit->text != NULL; exit++) {
    weft_text_addf(text, ".TP\n\\fB%d\\fR\n", exit->status);
    add_roff(text, exit->text);
    weft_text_add(text, "\n");
  }
}

void weft_cli_man_add(struct weft_text *text) {
  assert(text != NULL);
  weft_text_addf(text, ".TH WEFT 1 \"\" \"weft %s\" \"User Commands\"\n", weft_version());
  weft_text_add(
      text,
      ".SH NAME\n"
      "weft \\- pipeline\\-parallel schedules: write them, prove them safe, look at them\n"
      ".SH SYNOPSIS\n"
      ".B weft\n.I COMMAND\n[options] [\\fIFILE\\fR]\n.br\n"
      ".B weft \\-\\-version\n"
      ".SH DESCRIPTION\n"
      "A pipeline schedule is a table in CSV: a row per rank, a cell per step; 0F1 is the "
      "forward of microbatch 1 through stage 0. The language is that of PyTorch's "
      "torch.distributed.pipelining.\n.PP\n"
      "A file named \\- or none at all is standard input. Data goes to standard output, "
      "messages to standard error.\n"
      ".SH COMMANDS\n");
  for (size_t i = 0; i < weft_cli_command_count(); i++) {
    add_command(text, weft_cli_command_at(i));
  }
  add_exit_status(text);
  weft_text_add(text,
                ".SH ENVIRONMENT\n"
                ".TP\n\\fBNO_COLOR\\fR, \\fBTERM\\fR=dumb\nno colour, even on a terminal\n"
                ".SH EXAMPLES\n.nf\n.RS\n"
                "weft gen 1F1B \\-p 4 \\-m 8 | weft lower | weft verify\n"
                ".RE\n.fi\n");
}
