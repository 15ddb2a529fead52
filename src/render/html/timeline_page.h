/* The page around the data: src/render/html/page, made one piece and put into an
 * array by cmake/WeftPage.cmake. The data goes between head and tail. */
#ifndef RENDER_TIMELINE_PAGE_H
#define RENDER_TIMELINE_PAGE_H

#include <stddef.h>

extern const unsigned char weft_timeline_page_head[];
extern const size_t weft_timeline_page_head_size;
extern const unsigned char weft_timeline_page_tail[];
extern const size_t weft_timeline_page_tail_size;

#endif
