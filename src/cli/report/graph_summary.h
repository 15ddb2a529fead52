/* What a graph of stages amounts to: where its losses are, what is frozen, whether it has several
 * parts. An edge that was forgotten shows here: the stage before it computes a loss. */
#ifndef CLI_GRAPH_SUMMARY_H
#define CLI_GRAPH_SUMMARY_H

#include <weft/graph.h>
#include <weft/support.h>

/* A line after `label`: "loss in stage 2 'up'; frozen: stage 0 'image'". Nothing for a chain. */
void weft_cli_graph_text(struct weft_text *text, const char *label, const struct weft_graph *graph);

/* The member "graph_summary": losses, frozen and parts. Nothing for a chain. */
void weft_cli_graph_json(struct weft_json *json, const struct weft_graph *graph);

#endif
