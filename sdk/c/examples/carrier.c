/* A transport over one TCP connection for each device: --transport 'exec:./carrier HOST PORT' on both hosts.
 * The device host listens at PORT, the application host connects to HOST; each device in use has the port of its number
 * behind PORT. cc -O2 -I.. carrier.c -o carrier */
#include "outboard_module.h"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>

static const char *host, *port;
static unsigned char *arrived;
static size_t filled, room;

/* Waits for the descriptor. Returns 0 if the connection is given up meanwhile. */
static int wait_for(int descriptor, int wait_ms) {
    struct pollfd ready[2] = {{0, 0, 0}, {descriptor, POLLIN, 0}};
    return poll(ready, 2, wait_ms) >= 0 && !(ready[0].revents & POLLHUP);
}

static int listen_at(const struct addrinfo *address) {
    int one = 1, listener = socket(address->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (bind(listener, address->ai_addr, address->ai_addrlen) < 0 || listen(listener, 1) < 0) return -1;
    int stream = wait_for(listener, -1) ? accept(listener, NULL, NULL) : -1;
    close(listener);
    return stream;
}

/* The other program may start later than this one. */
static int connect_to(const struct addrinfo *address) {
    do {
        int stream = socket(address->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (connect(stream, address->ai_addr, address->ai_addrlen) == 0) return stream;
        close(stream);
    } while (wait_for(-1, 50));
    return -1;
}

static int start(ob_module *module) {
    ob_transport *transport = module->transport;
    int is_dialled = strcmp(ob_option(module, "end", ""), "dialled") == 0, one = 1;
    char number[16];
    snprintf(number, sizeof number, "%d", atoi(port) + atoi(ob_option(module, "driver", "0")));
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = is_dialled ? 0 : AI_PASSIVE}, *address;
    if (getaddrinfo(is_dialled ? host : NULL, number, &hints, &address) != 0) return ob_fail(module, "no such host");
    transport->descriptor = is_dialled ? connect_to(address) : listen_at(address);
    freeaddrinfo(address);
    if (transport->descriptor < 0) return ob_fail(module, "the connection was not made");
    setsockopt(transport->descriptor, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    return OB_OK;
}

/* A message on the stream: its length in 4 bytes, then the message. */
static int carry(ob_module *module, unsigned char *body, size_t length, uint64_t created) {
    (void)created;
    unsigned char header[4];
    ob_put(header, length, 4);
    struct iovec slices[2] = {{header, 4}, {body, length}};
    return ob_carry_all(module, slices, 2);
}

static int readable(ob_module *module) {
    if (room - filled < OB_READ_BYTES) {
        arrived = realloc(arrived, room = 2 * room + OB_READ_BYTES);
        if (!arrived) return ob_fail(module, "no memory");
    }
    ssize_t count = read(module->transport->descriptor, arrived + filled, OB_READ_BYTES);
    if (count < 0 && (errno == EAGAIN || errno == EINTR)) return OB_OK;
    if (count <= 0) return ob_fail(module, "the other program has closed the connection");
    filled += (size_t)count;
    size_t from = 0, length;
    while (filled - from >= 4 && filled - from - 4 >= (length = (size_t)ob_get(arrived + from, 4))) {
        int error = ob_send(module, arrived + from + 4, length, 0);
        if (error) return error;
        from += 4 + length;
    }
    if (filled - from >= 4 && ob_get(arrived + from, 4) > module->transport->bytes)
        return ob_fail(module, "the other program has sent a message over the limit");
    memmove(arrived, arrived + from, filled -= from);
    return OB_OK;
}

int main(int count, char **words) {
    if (count != 3) return fprintf(stderr, "usage: carrier HOST PORT\n"), 2;
    host = words[1], port = words[2];
    return ob_run_transport(&(ob_transport){
        .bytes = 256 << 10, .is_reliable = 1, .is_ordered = 1, .start = start, .message = carry, .readable = readable});
}
