/* Which characters of outside text are shown as they are. */
#ifndef BASE_PLAIN_TEXT_H
#define BASE_PLAIN_TEXT_H

#include <weft/base.h>

/* Bytes of the character at data, which has at least one; 0 where that is no well-formed UTF-8. */
size_t weft_character_length(const char *data, size_t size);

/* The same; 0 also where it would control a terminal: break or turn the line, or hide text. Such a
 * character is escaped. */
size_t weft_plain_length(const char *data, size_t size);

/* Marks what snprintf() has cut, which wanted so many bytes, with "..."; a character is cut off
 * whole. */
void weft_mark_cut(char *buffer, size_t buffer_size, int wanted);

/* Digits of the largest of `count` numbers from 0. */
uint32_t weft_count_digits(uint64_t count);

#endif
