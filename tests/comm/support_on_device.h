/* A wrapper around an endpoint of a transport that carries memory of devices: its caller has host
 * memory, and the wrapped one gets copies that a device can access. So the conformance suite also
 * tests how payloads on a device travel. */
#ifndef TESTS_SUPPORT_ON_DEVICE_H
#define TESTS_SUPPORT_ON_DEVICE_H

#include <weft/comm.h>

/* `inner` and `device` must outlive it. Freed by its ops->destroy(). NULL: out of memory. */
struct weft_transport *on_device_create(struct weft_transport *inner, struct weft_device *device);

#endif
