/* Weft: pipeline-parallel schedules: plan them, prove them safe, look at them.
 *
 * The simplest use, from a name to a proven program:
 *
 *     #include <weft/weft.h>
 *
 *     struct weft_shape shape = {.ranks = 4, .microbatches = 8};
 *     struct weft_error error;
 *     struct weft_program *table, *program;
 *     struct weft_report *report;
 *
 *     if (weft_generate(NULL, "1F1B", &shape, &table, &error) != WEFT_OK ||
 *         weft_lower(NULL, table, NULL, &program, &error) != WEFT_OK ||
 *         weft_verify(NULL, program, NULL, &report, &error) != WEFT_OK) {
 *       fprintf(stderr, "%s\n%s\n", error.message, error.hint);
 *     }
 *     puts(report->ok ? "cannot hang" : report->findings[0].message);
 *
 *     weft_report_destroy(report);
 *     weft_program_destroy(program);
 *     weft_program_destroy(table);
 *
 * Reading order: base.h (errors, memory), support.h (helpers for your own
 * code), ir.h (the language), spec.h (shape and placement), gen.h (named schedules), lower.h (communication, buffers),
 * verify.h (the proof), inspect.h (dry run, grid, listing, difference), costs.h
 * and sim.h (prediction), render.h (pictures), source.h (programs when needed),
 * compare.h (all schedules of a shape, ranked), search.h (the best schedule for given costs),
 * choice.h (how to use a number of ranks for a global batch), target.h (what other frameworks need
 * to run it).
 * Running is a library of its own, libweft-run: run.h, device.h, cuda.h, comm.h,
 * launch.h. */
#ifndef WEFT_WEFT_H
#define WEFT_WEFT_H

#include <weft/base.h>
#include <weft/channel_models.h>
#include <weft/choice.h>
#include <weft/compare.h>
#include <weft/costs.h>
#include <weft/flight.h>
#include <weft/gen.h>
#include <weft/inspect.h>
#include <weft/ir.h>
#include <weft/lower.h>
#include <weft/render.h>
#include <weft/search.h>
#include <weft/sim.h>
#include <weft/source.h>
#include <weft/spec.h>
#include <weft/support.h>
#include <weft/target.h>
#include <weft/verify.h>

#endif
