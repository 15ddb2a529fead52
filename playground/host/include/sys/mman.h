/* src/base/memory.c asks for huge pages where there are any; here are none. */
