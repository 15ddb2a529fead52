/* A small check that a text is well-formed XML, as far as pictures go: elements,
 * attributes, character data, entities; no comments, no processing. */
#ifndef TESTS_SUPPORT_XML_H
#define TESTS_SUPPORT_XML_H

/* Fails the test (cmocka), showing the place, when it is not. */
void xml_check(const char *text);

#endif
