/* A device whose memory nobody can access but its own functions: addresses that it gives
 * out are of a mapping without any permission; the same memory is mapped a second time,
 * readable and writable, at an address that only this device knows. An access by anybody
 * else ends the process with SIGSEGV.
 *
 * Suites that can run on either take test_device(): the host, or with
 * WEFT_TEST_DEVICE=protected or =staged in the environment this device; "staged" with
 * transports that carry host memory only. */
#ifndef SUPPORT_PROTECTED_DEVICE_H
#define SUPPORT_PROTECTED_DEVICE_H

#include <weft/transport.h>

/* The device; one for the whole process. Thread-safe. */
struct weft_device *protected_device(void);
/* Blocks that are allocated now, and all that ever were. */
uint64_t protected_device_blocks(void);
uint64_t protected_device_allocations(void);

/* NULL (the host), or the protected device. */
struct weft_device *test_device(void);
/* The transport carries host memory only, if WEFT_TEST_DEVICE asks for it. */
void test_device_restrict(struct weft_transport *transport);
/* A copy of `bytes` bytes at `data` on the test device; ends with weft_device_free(). */
void *test_device_copy(const void *data, uint64_t bytes);

/* A block on the test device; on the host from malloc(), exactly as large, so that a
 * sanitizer sees the byte behind it. */
void *test_block_allocate(uint64_t bytes);
void test_block_free(void *data, uint64_t bytes);

/* For the device's own kernels, and nobody else: where it can access what is at `data`. */
void *test_device_view(const struct weft_device *of, const void *data);
void *test_tensor_view(const struct weft_tensor *tensor);

#endif
