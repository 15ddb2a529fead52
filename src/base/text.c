/* The growing text: what printers, listings and the command write into. */

#include <assert.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <weft/support.h>

#include "base/plain_text.h"

enum { TEXT_BYTES_MIN = 256 };

/* Makes room for `more` bytes and a NUL. */
static bool reserve(struct weft_text *text, size_t more) {
  if (text->failed) {
    return false;
  }
  if (text->capacity - text->size > more) {
    return true;
  }
  uint64_t needed;
  size_t capacity = text->capacity * 2 < TEXT_BYTES_MIN ? TEXT_BYTES_MIN : text->capacity * 2;
  char *data = NULL;
  if (weft_add(text->size, (uint64_t)more + 1, &needed) && needed <= PTRDIFF_MAX / 2) {
    capacity = capacity < needed ? (size_t)needed : capacity;
    data = weft_array_resize(text->allocator, text->data, text->capacity, capacity, 1);
  }
  if (data == NULL) {
    text->failed = true;
    return false;
  }
  text->data = data;
  text->capacity = capacity;
  return true;
}

void weft_text_finish(struct weft_text *text) {
  weft_array_free(text->allocator, text->data, 1, text->capacity);
  *text = (struct weft_text){.allocator = text->allocator};
}

enum weft_status weft_text_status(const struct weft_text *text, struct weft_error *error) {
  WEFT_NEED(text, error);
  return text->failed ? weft_fail_memory(error, text->capacity * 2) : WEFT_OK;
}

void weft_text_append(struct weft_text *text, const char *data, size_t size) {
  assert(data != NULL || size == 0);
  if (!reserve(text, size)) {
    return;
  }
  if (size > 0) {
    memcpy(text->data + text->size, data, size);
  }
  text->size += size;
  text->data[text->size] = '\0';
}

void weft_text_add(struct weft_text *text, const char *string) {
  assert(string != NULL);
  weft_text_append(text, string, strlen(string));
}

void weft_text_add_number(struct weft_text *text, uint64_t number) {
  char digits[20];
  size_t first = sizeof digits;
  do {
    digits[--first] = (char)('0' + number % 10);
    number /= 10;
  } while (number > 0);
  weft_text_append(text, digits + first, sizeof digits - first);
}

void weft_text_addf(struct weft_text *text, const char *format, ...) {
  assert(format != NULL);
  va_list arguments;
  va_start(arguments, format);
  const int size = vsnprintf(NULL, 0, format, arguments);
  va_end(arguments);
  if (size < 0 || !reserve(text, (size_t)size)) {
    text->failed = true;
    return;
  }
  va_start(arguments, format);
  (void)vsnprintf(text->data + text->size, (size_t)size + 1, format, arguments);
  va_end(arguments);
  text->size += (size_t)size;
}

size_t weft_count_characters(const char *data, size_t size) {
  assert(data != NULL || size == 0);
  size_t count = 0;
  for (size_t i = 0; i < size; i++) {
    count += ((unsigned char)data[i] & 0xc0) != 0x80;
  }
  return count;
}

/* Overlong forms and surrogates are not well-formed. */
size_t weft_character_length(const char *data, size_t size) {
  assert(data != NULL && size > 0);
  const unsigned char *bytes = (const unsigned char *)data;
  const unsigned char lead = bytes[0];
  const size_t length = lead < 0x80                  ? 1
                        : lead < 0xc2 || lead > 0xf4 ? 0
                        : lead < 0xe0                ? 2
                        : lead < 0xf0                ? 3
                                                     : 4;
  if (length > size) {
    return 0;
  }
  for (size_t i = 1; i < length; i++) {
    if ((bytes[i] & 0xc0) != 0x80) {
      return 0;
    }
  }
  const bool overlong = (lead == 0xe0 && bytes[1] < 0xa0) || (lead == 0xf0 && bytes[1] < 0x90);
  const bool outside = (lead == 0xed && bytes[1] > 0x9f) || (lead == 0xf4 && bytes[1] > 0x8f);
  return overlong || outside ? 0 : length;
}

/* Control codes (C1, U+0080-U+009F, too: terminals obey them), and what breaks a line or turns its
 * direction: U+061C, U+200E, U+200F, U+2028-U+202E, U+2066-U+2069. */
static bool is_control(const unsigned char *bytes, size_t length) {
  if (length == 1) {
    return bytes[0] < 0x20 || bytes[0] == 0x7f;
  }
  if (length == 2) {
    return (bytes[0] == 0xc2 && bytes[1] < 0xa0) || (bytes[0] == 0xd8 && bytes[1] == 0x9c);
  }
  return length == 3 && bytes[0] == 0xe2 &&
         ((bytes[1] == 0x80 &&
           (bytes[2] == 0x8e || bytes[2] == 0x8f || (bytes[2] >= 0xa8 && bytes[2] <= 0xae))) ||
          (bytes[1] == 0x81 && bytes[2] >= 0xa6 && bytes[2] <= 0xa9));
}

size_t weft_plain_length(const char *data, size_t size) {
  const size_t length = weft_character_length(data, size);
  return is_control((const unsigned char *)data, length) ? 0 : length;
}

void weft_text_add_escaped(struct weft_text *text, const char *data, size_t size) {
  for (size_t i = 0; i < size;) {
    const size_t length = weft_plain_length(data + i, size - i);
    if (length > 0) {
      weft_text_append(text, data + i, length);
      i += length;
    } else {
      weft_text_addf(text, "\\x%02x", (unsigned char)data[i]);
      i++;
    }
  }
}

char *weft_amount(char *buffer, size_t size, double amount) {
  assert(buffer != NULL && size >= WEFT_AMOUNT_SIZE);
  const double magnitude = fabs(amount);
  if (magnitude > 0 && (magnitude < 0.01 || magnitude >= 1e9)) {
    (void)snprintf(buffer, size, "%.4g", amount);
    return buffer;
  }
  (void)snprintf(buffer, size, "%.3f", amount);
  size_t length = strlen(buffer);
  while (length > 0 && buffer[length - 1] == '0') {
    length--;
  }
  length -= length > 0 && buffer[length - 1] == '.' ? 1 : 0;
  buffer[length] = '\0';
  return buffer;
}

uint32_t weft_count_digits(uint64_t count) {
  uint32_t digits = 1;
  for (uint64_t rest = count > 0 ? count - 1 : 0; rest >= 10; rest /= 10) {
    digits++;
  }
  return digits;
}
