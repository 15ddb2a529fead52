/* The sentences under a timeline. */
#ifndef RENDER_TEXT_SUMMARY_H
#define RENDER_TEXT_SUMMARY_H

#include <weft/render.h>

/* Makespan, bubble and peak; then which rank idles most and why. Each a sentence,
 * ended by a newline, not wrapped. */
void weft_text_summary_add(struct weft_text *text, const struct weft_picture *picture);

#endif
