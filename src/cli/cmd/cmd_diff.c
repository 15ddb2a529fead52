/* `weft diff`: where two tables or programs differ, per rank. */
#include <assert.h>
#include <inttypes.h>
#include <string.h>

#include "cli/cmd/commands.h"
#include "cli/io/input_file.h"
#include "cli/io/output_file.h"
#include "cli/io/text_columns.h"
#include "cli/report/program_json.h"
#include "cli/scoped.h"

#define DIFFERENCES_MAX 1000

static void add_cell(struct weft_text *text, const struct weft_action *action) {
  if (action->op == WEFT_OP_IDLE) {
    weft_text_add(text, "(bubble)");
  } else {
    weft_action_print(action, text);
  }
}

static void add_difference(struct weft_text *text, const struct weft_difference *difference) {
  weft_text_addf(text, "rank %" PRIu32, difference->rank);
  if (difference->a == NULL && difference->b == NULL) {
    weft_text_add(text, ": an empty row that only one of them has\n");
    return;
  }
  const uint64_t step = difference->a != NULL ? difference->step_a : difference->step_b;
  weft_text_addf(text, " step %" PRIu64, step);
  if (difference->a != NULL && difference->b != NULL) {
    if (difference->step_b != step) {
      weft_text_addf(text, " -> %" PRIu64, difference->step_b);
    }
    weft_text_add(text, ": ");
    add_cell(text, difference->a);
    weft_text_add(text, " -> ");
    add_cell(text, difference->b);
  } else {
    weft_text_add(text, difference->a != NULL ? ": - " : ": + ");
    add_cell(text, difference->a != NULL ? difference->a : difference->b);
  }
  weft_text_add(text, "\n");
}

/* ---- Edges ---- */

static uint32_t edge_count(const struct weft_program *program) {
  return weft_graph_edge_count(program->graph, program->stage_count);
}

/* What a program has between two stages. */
static const char *link_of(const struct weft_program *program, struct weft_edge edge) {
  const uint32_t e = weft_graph_find(program->graph, edge.from, edge.to);
  return e >= edge_count(program)                      ? "none"
         : weft_graph_edge(program->graph, e).gradient ? "with gradient"
                                                       : "without gradient";
}

struct edge_difference {
  struct weft_edge edge;
  const char *a, *b;
};

/* The next one, from *at = 0 on: first the edges of a that b lacks or has in another way, then
 * those that only b has; false: there is none. */
static bool next_edge(const struct weft_program *a, const struct weft_program *b, uint64_t *at,
                      struct edge_difference *found) {
  const uint64_t count_a = edge_count(a), count = count_a + edge_count(b);
  while (*at < count) {
    const uint64_t k = (*at)++;
    const struct weft_edge edge = k < count_a ? weft_graph_edge(a->graph, (uint32_t)k)
                                              : weft_graph_edge(b->graph, (uint32_t)(k - count_a));
    *found = (struct edge_difference){edge, link_of(a, edge), link_of(b, edge)};
    const bool is_same = strcmp(found->a, k < count_a ? found->b : "none") == 0;
    if (is_same == (k >= count_a)) {
      return true;
    }
  }
  return false;
}

/* Lists `most` of them; returns how many there are. */
static uint64_t add_edges(struct weft_text *text, const struct weft_program *a,
                          const struct weft_program *b, uint64_t most) {
  struct edge_difference found;
  uint64_t count = 0;
  for (uint64_t at = 0; next_edge(a, b, &at, &found); count++) {
    if (count < most) {
      weft_text_addf(text, "edge %u>%u: %s -> %s\n", found.edge.from, found.edge.to, found.a,
                     found.b);
    }
  }
  return count;
}

static void add_json_edges(struct weft_json *json, const struct weft_program *a,
                           const struct weft_program *b, uint64_t most) {
  struct edge_difference found;
  uint64_t count = 0;
  weft_json_open(json, "edges", '[');
  for (uint64_t at = 0; next_edge(a, b, &at, &found); count++) {
    if (count >= most) {
      continue;
    }
    weft_json_open(json, NULL, '{');
    weft_json_number(json, "from", found.edge.from);
    weft_json_number(json, "to", found.edge.to);
    weft_json_string(json, "a", found.a);
    weft_json_string(json, "b", found.b);
    weft_json_close(json, '}');
  }
  weft_json_close(json, ']');
  weft_json_number(json, "edges_left_out", count > most ? count - most : 0);
}

/* ---- The report ---- */

static bool is_equal(const struct weft_diff *diff) {
  return diff->difference_count + diff->left_out == 0 && !diff->graphs_differ;
}

static void add_listing(struct weft_text *text, const struct weft_cli_arguments *arguments,
                        const struct weft_program *a, const struct weft_program *b,
                        const struct weft_diff *diff, uint64_t most) {
  if (!is_equal(diff)) {
    weft_text_addf(text, "%s -> %s; by rank and step: x -> y changed, + added, - removed\n",
                   weft_cli_quoted(weft_cli_input_name(arguments->operands[0])).text,
                   weft_cli_quoted(weft_cli_input_name(arguments->operands[1])).text);
  }
  const uint64_t edges = diff->graphs_differ ? add_edges(text, a, b, most) : 0;
  const uint64_t count = edges + diff->difference_count + diff->left_out;
  const uint64_t left_out = diff->left_out + (edges > most ? edges - most : 0);
  for (size_t i = 0; i < diff->difference_count; i++) {
    add_difference(text, &diff->differences[i]);
  }
  if (a->rank_count != b->rank_count) {
    weft_text_addf(text, "%s -> %s\n", weft_cli_count(a->rank_count, "rank").text,
                   weft_cli_count(b->rank_count, "rank").text);
  }
  if (left_out > 0) {
    weft_text_addf(text, "and %" PRIu64 " more; --max-differences shows them\n", left_out);
  }
  if (count > 0) {
    weft_text_addf(text, "%s\n", weft_cli_count(count, "difference").text);
  }
}

static const char *kind_of(const struct weft_difference *difference) {
  if (difference->a != NULL && difference->b != NULL) {
    return "changed";
  }
  if (difference->a == NULL && difference->b == NULL) {
    return "empty_row";
  }
  return difference->a != NULL ? "removed" : "added";
}

static void add_json(struct weft_text *text, const struct weft_program *a,
                     const struct weft_program *b, const struct weft_diff *diff, uint64_t most) {
  struct weft_json json = weft_json_begin(text, "weft-diff/1");
  weft_json_boolean(&json, "equal", is_equal(diff));
  weft_json_number(&json, "ranks_a", a->rank_count);
  weft_json_number(&json, "ranks_b", b->rank_count);
  if (diff->graphs_differ) {
    add_json_edges(&json, a, b, most);
  }
  weft_json_open(&json, "differences", '[');
  for (size_t i = 0; i < diff->difference_count; i++) {
    const struct weft_difference *difference = &diff->differences[i];
    weft_json_open(&json, NULL, '{');
    weft_json_number(&json, "rank", difference->rank);
    weft_json_string(&json, "kind", kind_of(difference));
    weft_json_optional(&json, "step_a", difference->a != NULL, difference->step_a);
    weft_json_optional(&json, "step_b", difference->b != NULL, difference->step_b);
    weft_json_action(&json, "a", difference->a);
    weft_json_action(&json, "b", difference->b);
    weft_json_close(&json, '}');
  }
  weft_json_close(&json, ']');
  weft_json_number(&json, "differences_left_out", diff->left_out);
  weft_json_end(&json);
}

int weft_cli_cmd_diff(const struct weft_cli *cli, const struct weft_cli_arguments *arguments) {
  assert(cli != NULL && arguments != NULL);
  if (arguments->operand_count < 2) {
    return weft_cli_usage(cli, "for example: weft diff a.csv b.csv",
                          "%s: expected two files to compare",
                          arguments->operand_count == 0 ? "no file given" : "only one file given");
  }
  if (strcmp(arguments->operands[0], "-") == 0 && strcmp(arguments->operands[1], "-") == 0) {
    return weft_cli_usage(cli, "give at least one of them a name",
                          "standard input can be read only once");
  }
  WEFT_SCOPED(weft_program) a = NULL;
  WEFT_SCOPED(weft_program) b = NULL;
  WEFT_SCOPED(weft_diff) diff = NULL;
  WEFT_SCOPED_TEXT text = {.allocator = cli->allocator};
  WEFT_CLI_TRY(weft_cli_read_operand(cli, arguments, 0, &a));
  WEFT_CLI_TRY(weft_cli_read_operand(cli, arguments, 1, &b));
  const uint64_t most =
      weft_cli_number(arguments, WEFT_CLI_OPTION_MAX_DIFFERENCES, DIFFERENCES_MAX);
  WEFT_CLI_CALL(cli, weft_cli_input_name(arguments->operands[1]),
                weft_diff_create(cli->allocator, a, b, (size_t)most, &diff, &error));
  if (arguments->given[WEFT_CLI_OPTION_JSON]) {
    add_json(&text, a, b, diff, most);
  } else {
    add_listing(&text, arguments, a, b, diff, most);
  }
  return weft_cli_write_output(cli, arguments, &text,
                               is_equal(diff) ? WEFT_CLI_OK : WEFT_CLI_FOUND_BAD);
}
