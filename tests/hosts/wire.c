/* A network between hosts that are network namespaces, for tests: every host has a TUN
 * device, and this program is the cables and the switch between them. A packet waits as long
 * as it would on a slow, long and lossy cable, then goes to the host whose address ends in
 * its number, from 1. Cables are cut and mended while it runs. `tc netem` does the same where
 * the kernel has it; this needs no more than TUN.
 *
 *     wire [--delay MS] [--jitter MS] [--loss PERCENT] [--rate MBIT] [--seed N] DEVICE PID...
 *
 * Makes DEVICE in the network namespace of each process (the caller gives it an address and
 * sets it up), says "ready", and reads lines; each is answered by one line:
 *
 *     cut HOST    the host's cable is cut
 *     mend HOST   and is whole again
 *     count       "passed N lost N cut N": packets
 *
 * Ends when its standard input does. All times are of one direction; a cable keeps the order
 * of its packets. */
#define _GNU_SOURCE /* setns, ppoll */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/if.h>
#include <linux/if_tun.h>
#include <poll.h>
#include <sched.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

enum {
  HOSTS_MAX = 16,
  PACKET_SIZE = 2048,  /* Ethernet's 1500, and some */
  QUEUE_PACKETS = 2048 /* on a cable; what comes then is lost, as in a switch */
};

struct packet {
  int64_t due_ns; /* when it is at the other end */
  uint32_t size;
  unsigned char bytes[PACKET_SIZE];
};

/* From one host into the switch. */
struct cable {
  int fd;
  int64_t free_ns; /* when the sender may put the next bit on it */
  bool is_cut;
  uint32_t first, count; /* a ring */
  struct packet *packets;
};

struct wire {
  struct cable cables[HOSTS_MAX];
  uint32_t host_count;
  double delay_ns, jitter_ns, loss, ns_per_byte;
  uint64_t random;
  uint64_t passed, lost, cut;
  char line[256]; /* being read */
  size_t line_size;
};

__attribute__((noreturn, format(printf, 1, 2))) static void die(const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  (void)fputs("wire: ", stderr);
  (void)vfprintf(stderr, format, arguments);
  (void)fputs("\n", stderr);
  va_end(arguments);
  exit(1);
}

static int64_t now_ns(void) {
  struct timespec now;
  (void)clock_gettime(CLOCK_MONOTONIC, &now);
  return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

/* splitmix64, as a number in [0, 1). */
static double draw(struct wire *wire) {
  uint64_t z = wire->random += UINT64_C(0x9e3779b97f4a7c15);
  z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
  z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
  return (double)((z ^ (z >> 31)) >> 11) * 0x1p-53;
}

/* ---- Hosts ---- */

static int open_device(const char *pid, const char *name) {
  char path[64];
  struct ifreq request;
  (void)snprintf(path, sizeof path, "/proc/%s/ns/net", pid);
  const int space = open(path, O_RDONLY | O_CLOEXEC);
  if (space < 0 || setns(space, CLONE_NEWNET) != 0) {
    die("%s: %s", path, strerror(errno));
  }
  (void)close(space);
  const int fd = open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC);
  memset(&request, 0, sizeof request);
  (void)snprintf(request.ifr_name, sizeof request.ifr_name, "%s", name);
  request.ifr_flags = IFF_TUN | IFF_NO_PI;
  if (fd < 0 || ioctl(fd, TUNSETIFF, &request) != 0) {
    die("/dev/net/tun: %s", strerror(errno));
  }
  return fd;
}

static void add_host(struct wire *wire, const char *pid, const char *device) {
  if (wire->host_count == HOSTS_MAX) {
    die("more than %d hosts", HOSTS_MAX);
  }
  struct cable *cable = &wire->cables[wire->host_count++];
  *cable = (struct cable){.fd = open_device(pid, device),
                          .packets = calloc(QUEUE_PACKETS, sizeof *cable->packets)};
  if (cable->packets == NULL) {
    die("out of memory");
  }
}

/* ---- Packets ---- */

static void put_on(struct wire *wire, struct cable *cable, struct packet *packet, int64_t now) {
  const int64_t begins = cable->free_ns > now ? cable->free_ns : now;
  cable->free_ns = begins + (int64_t)(wire->ns_per_byte * packet->size);
  packet->due_ns = cable->free_ns + (int64_t)(wire->delay_ns + wire->jitter_ns * draw(wire));
  if (cable->count > 0) {
    const struct packet *before =
        &cable->packets[(cable->first + cable->count - 1) % QUEUE_PACKETS];
    packet->due_ns = packet->due_ns > before->due_ns ? packet->due_ns : before->due_ns;
  }
  cable->count++;
}

/* Reads what a host sends. A full cable loses it after it was read, so that the host does not
 * block. */
static void take_from(struct wire *wire, struct cable *cable) {
  const int64_t now = now_ns();
  for (;;) {
    static unsigned char spare[PACKET_SIZE];
    const bool full = cable->count == QUEUE_PACKETS;
    struct packet *packet = &cable->packets[(cable->first + cable->count) % QUEUE_PACKETS];
    const ssize_t size = read(cable->fd, full ? spare : packet->bytes, PACKET_SIZE);
    if (size <= 0) {
      return;
    }
    if (cable->is_cut) {
      wire->cut++;
    } else if (full || draw(wire) < wire->loss) {
      wire->lost++;
    } else {
      packet->size = (uint32_t)size;
      put_on(wire, cable, packet, now);
    }
  }
}

/* IPv4 whose address ends in the number of a host; all else is nobody's. */
static struct cable *receiver_of(struct wire *wire, const struct packet *packet) {
  const uint32_t host =
      packet->size >= 20 && packet->bytes[0] >> 4 == 4 ? packet->bytes[19] : UINT32_C(0);
  return host >= 1 && host <= wire->host_count ? &wire->cables[host - 1] : NULL;
}

static void hand_over(struct wire *wire, const struct packet *packet) {
  struct cable *receiver = receiver_of(wire, packet);
  if (receiver == NULL) {
    return;
  }
  if (receiver->is_cut) {
    wire->cut++;
  } else if (write(receiver->fd, packet->bytes, packet->size) == (ssize_t)packet->size) {
    wire->passed++;
  } else {
    wire->lost++;
  }
}

/* Delivers what is due; until when there is nothing more to do, or -1. */
static int64_t deliver(struct wire *wire) {
  int64_t next = -1;
  for (uint32_t k = 0; k < wire->host_count; k++) {
    struct cable *cable = &wire->cables[k];
    while (cable->count > 0 && cable->packets[cable->first].due_ns <= now_ns()) {
      hand_over(wire, &cable->packets[cable->first]);
      cable->first = (cable->first + 1) % QUEUE_PACKETS;
      cable->count--;
    }
    if (cable->count > 0 && (next < 0 || cable->packets[cable->first].due_ns < next)) {
      next = cable->packets[cable->first].due_ns;
    }
  }
  return next;
}

/* ---- Orders ---- */

static void obey(struct wire *wire, const char *line) {
  char word[16];
  uint32_t host = 0;
  const int count = sscanf(line, "%15s %" SCNu32, word, &host);
  const bool is_cut = count >= 2 && strcmp(word, "cut") == 0;
  const bool is_mended = count >= 2 && strcmp(word, "mend") == 0;
  if (count == 1 && strcmp(word, "count") == 0) {
    (void)printf("passed %" PRIu64 " lost %" PRIu64 " cut %" PRIu64 "\n", wire->passed, wire->lost,
                 wire->cut);
  } else if ((is_cut || is_mended) && host >= 1 && host <= wire->host_count) {
    wire->cables[host - 1].is_cut = is_cut;
    (void)printf("%s\n", line);
  } else {
    (void)printf("not understood: %s\n", line);
  }
  (void)fflush(stdout);
}

/* Reads what there is of standard input; false at its end. */
static bool listen_to_orders(struct wire *wire) {
  const ssize_t size =
      read(STDIN_FILENO, wire->line + wire->line_size, sizeof wire->line - 1 - wire->line_size);
  if (size <= 0) {
    return false;
  }
  wire->line_size += (size_t)size;
  wire->line[wire->line_size] = '\0';
  for (char *end; (end = strchr(wire->line, '\n')) != NULL;) {
    *end = '\0';
    obey(wire, wire->line);
    wire->line_size -= (size_t)(end + 1 - wire->line);
    memmove(wire->line, end + 1, wire->line_size + 1);
  }
  return true;
}

static void run_wire(struct wire *wire) {
  struct pollfd polled[HOSTS_MAX + 1];
  for (bool goes_on = true; goes_on;) {
    const int64_t next = deliver(wire);
    const int64_t rest = next < 0 ? -1 : next - now_ns();
    const struct timespec timeout = {.tv_sec = rest > 0 ? rest / 1000000000 : 0,
                                     .tv_nsec = rest > 0 ? rest % 1000000000 : 0};
    for (uint32_t k = 0; k < wire->host_count; k++) {
      polled[k] = (struct pollfd){.fd = wire->cables[k].fd, .events = POLLIN};
    }
    polled[wire->host_count] = (struct pollfd){.fd = STDIN_FILENO, .events = POLLIN};
    if (ppoll(polled, wire->host_count + 1, next < 0 ? NULL : &timeout, NULL) < 0) {
      continue;
    }
    for (uint32_t k = 0; k < wire->host_count; k++) {
      if (polled[k].revents != 0) {
        take_from(wire, &wire->cables[k]);
      }
    }
    if (polled[wire->host_count].revents != 0) {
      goes_on = listen_to_orders(wire);
    }
  }
}

/* ---- Beginning ---- */

static double number(const char *option, const char *text) {
  char *end = NULL;
  const double value = text != NULL ? strtod(text, &end) : -1;
  if (end == NULL || value < 0 || *end != '\0') {
    die("%s needs a number", option);
  }
  return value;
}

static void set(struct wire *wire, const char *option, const char *text) {
  const double value = number(option, text);
  if (strcmp(option, "--delay") == 0) {
    wire->delay_ns = 1e6 * value;
  } else if (strcmp(option, "--jitter") == 0) {
    wire->jitter_ns = 1e6 * value;
  } else if (strcmp(option, "--loss") == 0) {
    wire->loss = value / 100;
  } else if (strcmp(option, "--rate") == 0) {
    wire->ns_per_byte = value > 0 ? 8e3 / value : 0;
  } else if (strcmp(option, "--seed") == 0) {
    wire->random = (uint64_t)value;
  } else {
    die("no option %s", option);
  }
}

int main(int argc, char **argv) {
  static struct wire wire;
  int k = 1;
  for (; k < argc && strncmp(argv[k], "--", 2) == 0; k += 2) {
    set(&wire, argv[k], argv[k + 1]);
  }
  if (argc - k < 3) {
    die("usage: wire [--delay MS] [--jitter MS] [--loss PERCENT] [--rate MBIT] [--seed N] "
        "DEVICE PID PID...");
  }
  for (int host = k + 1; host < argc; host++) {
    add_host(&wire, argv[host], argv[k]);
  }
  (void)puts("ready");
  (void)fflush(stdout);
  run_wire(&wire);
  for (uint32_t host = 0; host < wire.host_count; host++) {
    (void)close(wire.cables[host].fd);
    free(wire.cables[host].packets);
  }
  return 0;
}
