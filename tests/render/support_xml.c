/* A small check that a text is well-formed XML. */
#include "support_xml.h"

#include <ctype.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

enum { DEPTH_MAX = 32, NAME_MAX_SIZE = 32 };

struct reader {
  const char *at;
  char open[DEPTH_MAX][NAME_MAX_SIZE];
  unsigned depth;
};

static void complain(const struct reader *reader, const char *what) {
  fail_msg("%s at: %.60s", what, reader->at);
}

static void read_name(struct reader *reader, char name[NAME_MAX_SIZE]) {
  size_t size = 0;
  while (isalnum((unsigned char)reader->at[size]) || reader->at[size] == '-') {
    size++;
  }
  if (size == 0 || size >= NAME_MAX_SIZE) {
    complain(reader, "no name");
  }
  memcpy(name, reader->at, size);
  name[size] = '\0';
  reader->at += size;
}

/* One character of data or of an attribute: an entity, or what may stand bare. */
static void read_character(struct reader *reader) {
  static const char *const entities[] = {"&amp;", "&lt;", "&gt;", "&quot;", "&#39;"};
  const unsigned char byte = (unsigned char)*reader->at;
  if (byte == '&') {
    for (size_t i = 0; i < sizeof entities / sizeof entities[0]; i++) {
      if (strncmp(reader->at, entities[i], strlen(entities[i])) == 0) {
        reader->at += strlen(entities[i]);
        return;
      }
    }
    complain(reader, "unknown entity");
  }
  if ((byte < 0x20 && byte != '\n') || byte == 0x7f || byte == '<' || byte == '>') {
    complain(reader, "a byte that must be escaped");
  }
  if (strncmp(reader->at, "\xef\xbf\xbe", 3) == 0 || strncmp(reader->at, "\xef\xbf\xbf", 3) == 0) {
    complain(reader, "no character of XML");
  }
  reader->at++;
}

static void read_attribute(struct reader *reader) {
  char name[NAME_MAX_SIZE];
  read_name(reader, name);
  if (strncmp(reader->at, "=\"", 2) != 0) {
    complain(reader, "no =\"");
  }
  reader->at += 2;
  while (*reader->at != '"') {
    read_character(reader);
  }
  reader->at++;
}

static void read_tag(struct reader *reader) {
  char name[NAME_MAX_SIZE];
  reader->at++;
  if (*reader->at == '/') {
    reader->at++;
    read_name(reader, name);
    if (reader->depth == 0 || strcmp(reader->open[--reader->depth], name) != 0) {
      complain(reader, "closes what is not open, before");
    }
  } else {
    if (reader->depth == DEPTH_MAX) {
      complain(reader, "too deep");
    }
    read_name(reader, reader->open[reader->depth++]);
    while (*reader->at == ' ') {
      reader->at++;
      read_attribute(reader);
    }
    if (*reader->at == '/') {
      reader->depth--;
      reader->at++;
    }
  }
  if (*reader->at++ != '>') {
    reader->at--;
    complain(reader, "no >");
  }
}

void xml_check(const char *text) {
  struct reader reader = {.at = text};
  while (*reader.at != '\0') {
    if (*reader.at == '<') {
      read_tag(&reader);
    } else {
      read_character(&reader);
    }
    if (reader.depth == 0) {
      break;
    }
  }
  assert_int_equal(reader.depth, 0);
  assert_string_equal(reader.at, "\n"); /* one root, and a newline */
}
