/* Weft event: when an instruction ran. The simulator writes events, and so does
 * the runtime, so predicted and measured timelines are drawn by the same code. */
#ifndef WEFT_EVENT_H
#define WEFT_EVENT_H

#include <weft/ir.h>

#ifdef __cplusplus
extern "C" {
#endif

/* One instruction's time, in ticks: simulated ones, or nanoseconds. A SEND and a
 * RECV have the times of their transfer; bubbles have no event; the parts of an
 * overlap have the times of the overlap. */
struct weft_event {
  uint32_t rank;
  uint32_t record; /* into program->actions */
  int64_t begin;
  int64_t end;
};

#ifdef __cplusplus
}
#endif
#endif
