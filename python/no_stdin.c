/* What jansson's archive finds in the place of stdin (CMakeLists.txt). */
#include <stdio.h>

extern FILE *weft_no_stdin;
FILE *weft_no_stdin;
