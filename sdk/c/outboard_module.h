/* A module of Outboard in C: containers in, containers out (docs/reference/modules.md).
 *
 *     #include "outboard_module.h"
 *
 *     static int pass(ob_module *module, unsigned char *body, size_t length, uint64_t created) {
 *         return ob_send(module, body, length, created);
 *     }
 *
 *     int main(void) { return ob_run(&(ob_handlers){.message = pass}); }
 *
 * It runs in a shell line, between pipes, and in a pipeline as exec(source="./pass"), where descriptor 3 is a
 * socket of control frames: hello, peer, flush, gap, done. A device or an application (`ob_run_device`) runs as
 * exec:./device,frame=declared, and a transport (`ob_run_transport`) as --transport exec:./carrier. One header, C99, Linux; include it in one file, first.
 */
#ifndef OUTBOARD_MODULE_H
#define OUTBOARD_MODULE_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#define OB_VERSION 1
#define OB_BODY_BYTES_MAX ((size_t)64 << 20)
#define OB_FRAME_BYTES_MAX ((size_t)1 << 20)
/* The most options of a hello. */
#define OB_OPTIONS_MAX 64
/* The most entries of a message on shared memory. */
#define OB_ENTRIES_MAX 8

/* Results of handlers, and of ob_send and similar functions. */
typedef enum {
    OB_OK = 0,
    OB_PROTOCOL = -1, /* the input is no container, or no control frame */
    OB_CLOSED = -2,   /* the reader of the containers, or the runner, has gone */
    OB_SYSTEM = -3,   /* the system refused */
    OB_FAILED = -4    /* the module's own work failed: see ob_fail */
} ob_error;

typedef struct ob_module ob_module;

/* The handlers of a module. Only `message` is required; each returns OB_OK, or an error that ends the module. */
typedef struct {
    /* Handles one message. It may change the body in place, and owns it until it returns. `created`:
     * nanoseconds of the source host's boot clock. */
    int (*message)(ob_module *module, unsigned char *body, size_t length, uint64_t created);
    /* Role, format and options are known; a shell line keeps the defaults. */
    int (*start)(ob_module *module);
    /* Handles a control message from the other half of the pair. */
    int (*peer)(ob_module *module, const unsigned char *control, size_t length);
    /* Messages were lost before the next one. */
    int (*gap)(ob_module *module);
    /* The flow ends, or changes its pipeline, here: send all held messages. */
    int (*flush)(ob_module *module);
    /* Returns whether a message is held back. Meanwhile nothing is reported as done, so that after a crash it
     * is repeated. */
    int (*held)(ob_module *module);
    /* `message` does not change the body: on shared memory (`@shm exec(...)`) it is then not copied. */
    int reads_only;
    /* For the module's own use. */
    void *user;
} ob_handlers;

/* A device that a program drives, or an application that it stands in for: exec:./device,frame=declared. Only `format` is
 * required. Handlers return OB_OK, or an error that ends the program. */
typedef struct {
    const char *format;     /* bytes, evdev, motion, midi, serial, video, viewer, controls, hid, block, audio */
    const char *flow_class; /* reliable, timely or state; otherwise that of the format */
    const char *back;       /* the format of the other flow, if there is one */
    const char *summary;    /* one line for users */
    /* Called every `period_ms`, if that is not 0. */
    int (*tick)(ob_module *module);
    int period_ms;
    /* Called when `descriptor` is readable, if that is not 0. */
    int (*readable)(ob_module *module);
    int descriptor;
    /* The device is in use from now on. The options of an application name the device: class, summary, back. */
    int (*start)(ob_module *module);
    /* Handles one message of the flow to the program. */
    int (*message)(ob_module *module, unsigned char *body, size_t length, uint64_t created);
    /* The other side is silent or gone: release everything that its messages have set. */
    int (*neutral)(ob_module *module);
    /* Sends the complete state: after a cut, for a new user. Define it for the class `state`. */
    int (*snapshot)(ob_module *module);
    /* For the program's own use. */
    void *user;
} ob_device;

/* A transport: it carries the messages of one connection to a program on the other host (--transport exec:./carrier). It
 * may change its fields in `start`. Handlers return OB_OK, or an error that ends the program, and so the connection. */
typedef struct {
    size_t bytes;    /* the largest message that it carries, at least 1200; 0: 64 KiB */
    int is_reliable; /* nothing is lost */
    int is_ordered;  /* nothing overtakes */
    /* Meets the other program. Options: end (`dialled` or `accepted`), peer (an address), device, driver (a number). It
     * returns early if descriptor 0 hangs up (POLLHUP): the connection is given up. */
    int (*start)(ob_module *module);
    /* Carries one message to the other host: to a stream with `ob_carry_all`. */
    int (*message)(ob_module *module, unsigned char *body, size_t length, uint64_t created);
    /* Called when `descriptor` is readable, also within `ob_carry_all`: `ob_send` each whole message that has arrived, with the
     * time 0. */
    int (*readable)(ob_module *module);
    int descriptor;
    /* For the program's own use. */
    void *user;
} ob_transport;

typedef struct {
    unsigned char *bytes;
    size_t start, end, room;
} ob_buffer;

/* The module's end of a run on shared memory: see "Run by Outboard on shared memory" below. */
typedef struct {
    uint64_t *block; /* NULL: the module runs on pipes */
    unsigned char *host, *own;
    size_t slots, slot_bytes, ring, to_module, to_host, from_host, of_module;
    uint64_t taken, written, freed, covered, control_seen;
    uint64_t *lent; /* of each own slot: the number of entries written with the last one that names it */
    uint64_t held[OB_ENTRIES_MAX][8];
    size_t held_entries; /* of the newest message, which is not visible yet */
    size_t room_slot;    /* 1 more than the slot of ob_room */
} ob_shared;

struct ob_module {
    ob_shared shared;
    const ob_handlers *handlers;
    const ob_device *device; /* of ob_run_device and ob_run_application */
    ob_transport *transport; /* of ob_run_transport */
    int is_absent, has_ended;
    const char *role;   /* "source" or "sink", "device", "application" or "transport" */
    const char *format; /* "bytes", "video", ... */
    size_t options;
    const char *option_names[OB_OPTIONS_MAX];
    const char *option_values[OB_OPTIONS_MAX];
    int control, at_end, said_done;
    uint64_t inputs, outputs, done_inputs, done_outputs, dropped;
    char drop_reason[64]; /* of the last one */
    ob_buffer in, out, frames, room;
    char *texts;
    char problem[256];
};

enum { OB_HELLO = 1, OB_PEER, OB_FLUSH, OB_DONE, OB_ERROR, OB_GAP, OB_KEY, OB_FEEDBACK, OB_DROP };
enum { OB_NEUTRAL = 11, OB_SNAPSHOT, OB_ABSENT, OB_PRESENT };
enum { OB_CONTAINER = 12, OB_FRAME = 13, OB_READ_BYTES = 256 << 10, OB_BURST_BYTES = 256 << 10, OB_JOIN_BYTES = 16 << 10 };

static void ob_put(unsigned char *to, uint64_t value, int bytes) {
    for (int i = 0; i < bytes; i++) to[i] = (unsigned char)(value >> (8 * i));
}

static uint64_t ob_get(const unsigned char *from, int bytes) {
    uint64_t value = 0;
    for (int i = 0; i < bytes; i++) value |= (uint64_t)from[i] << (8 * i);
    return value;
}

static int ob_problem(ob_module *module, int error, const char *problem) {
    snprintf(module->problem, sizeof module->problem, "%s", problem);
    return error;
}

/* Reports an error that ends the module: `return ob_fail(module, "no such table");`. */
static inline int ob_fail(ob_module *module, const char *problem) { return ob_problem(module, OB_FAILED, problem); }

/* Returns the value of an option, or `otherwise` without one. */
static inline const char *ob_option(const ob_module *module, const char *name, const char *otherwise) {
    for (size_t i = 0; i < module->options; i++)
        if (strcmp(module->option_names[i], name) == 0) return module->option_values[i];
    return otherwise;
}

/* Makes room for `bytes` more at the end. */
static int ob_reserve(ob_module *module, ob_buffer *buffer, size_t bytes) {
    if (buffer->start == buffer->end) buffer->start = buffer->end = 0;
    if (buffer->room - buffer->end >= bytes) return OB_OK;
    if (buffer->start > 0) {
        memmove(buffer->bytes, buffer->bytes + buffer->start, buffer->end - buffer->start);
        buffer->end -= buffer->start;
        buffer->start = 0;
    }
    if (buffer->room - buffer->end >= bytes) return OB_OK;
    size_t room = buffer->end + bytes;
    unsigned char *grown = realloc(buffer->bytes, room);
    if (!grown) return ob_problem(module, OB_SYSTEM, "no memory");
    buffer->bytes = grown;
    buffer->room = room;
    return OB_OK;
}

static int ob_serve(ob_module *module, int is_carrying);

static int ob_write_all(ob_module *module, int descriptor, struct iovec *slices, int count) {
    while (count > 0) {
        ssize_t written = writev(descriptor, slices, count);
        if (written < 0) {
            if (errno == EINTR) continue;
            if (errno == EAGAIN && module->transport && descriptor == module->transport->descriptor) {
                int error = ob_serve(module, 1);
                if (error) return error;
                continue;
            }
            if (errno == EAGAIN) {
                struct pollfd room = {descriptor, POLLOUT, 0};
                poll(&room, 1, -1);
                continue;
            }
            if (errno == EPIPE || errno == ECONNRESET)
                return ob_problem(module, OB_CLOSED, "the reader of this module has gone");
            return ob_problem(module, OB_SYSTEM, strerror(errno));
        }
        while (count > 0 && (size_t)written >= slices->iov_len) {
            written -= (ssize_t)slices->iov_len;
            slices++;
            count--;
        }
        if (count > 0) {
            slices->iov_base = (char *)slices->iov_base + written;
            slices->iov_len -= (size_t)written;
        }
    }
    return OB_OK;
}

/* Writes as much of the output of a transport as Outboard takes now. The rest stays. */
static int ob_write_some(ob_module *module) {
    ob_buffer *out = &module->out;
    while (out->start < out->end) {
        ssize_t count = send(1, out->bytes + out->start, out->end - out->start, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (count >= 0) out->start += (size_t)count;
        else if (errno == EAGAIN) return OB_OK;
        else if (errno == ENOTSOCK) return ob_problem(module, OB_FAILED, "descriptor 1 is no socket: run it with --transport exec:PROGRAM");
        else if (errno != EINTR) return ob_problem(module, OB_CLOSED, strerror(errno));
    }
    return OB_OK;
}

static int ob_write(ob_module *module) {
    if (module->transport) return ob_write_some(module);
    struct iovec slice = {module->out.bytes + module->out.start, module->out.end - module->out.start};
    module->out.start = module->out.end = 0;
    return slice.iov_len ? ob_write_all(module, 1, &slice, 1) : OB_OK;
}

/* Run by Outboard on shared memory: `@shm exec(source="./module")`. The layout is in docs/reference/modules.md. The
 * module is the only one of its run: it reads the host's region and ring, and writes its own. Nothing is copied on the way in
 * if the handlers only read, nor on the way out if a message was made in `ob_room` or is a part of the handled one. An entry is
 * freed after its output is visible, so the host needs no other sign of the slots that this module uses. */
enum { OB_LINE = 8, OB_HEAD = 0, OB_TAIL = 8, OB_SLEEPS = 16, OB_CONTROL = 17, OB_WAITS = 24, OB_HELD_SLOTS = 40 };
enum { OB_BURST = 32 }; /* messages */
enum { OB_MORE = 1, OB_GAP_BEFORE = 2, OB_FLOW_END = 4, OB_MESSAGE = 8, OB_PIECES_MAX = 3 };
enum { OB_BLOCK_FD = 4, OB_HOST_WAKE_FD, OB_OWN_WAKE_FD, OB_HOST_FD, OB_OWN_FD };

typedef struct {
    size_t region, slot, offset, length;
} ob_piece;

static void *ob_map_one(ob_module *module, int descriptor, size_t *bytes, int protection) {
    struct stat found;
    void *map = fstat(descriptor, &found) == 0 && found.st_size > 0
                    ? mmap(NULL, *bytes = (size_t)found.st_size, protection, MAP_SHARED, descriptor, 0)
                    : MAP_FAILED;
    if (map != MAP_FAILED) return map;
    ob_problem(module, OB_SYSTEM, "the shared memory cannot be mapped");
    return NULL;
}

/* Maps the run that the hello announces. */
static int ob_map(ob_module *module) {
    ob_shared *shared = &module->shared;
    size_t block_bytes = 0, host_bytes = 0, own_bytes = 0;
    uint64_t *block = ob_map_one(module, OB_BLOCK_FD, &block_bytes, PROT_READ | PROT_WRITE);
    if (!block) return OB_SYSTEM;
    if (block_bytes < 64 || memcmp(block, "OBSHM\0\0\6", 8) != 0 || block[1] != 1)
        return ob_problem(module, OB_PROTOCOL, "the shared memory has another layout: use the header of this Outboard");
    shared->slots = block[2], shared->slot_bytes = block[3], shared->ring = block[4];
    size_t words = (shared->slots + 63) / 64, entries = (OB_HELD_SLOTS + 2 * words + 7) / 8 * 8;
    shared->from_host = OB_LINE, shared->of_module = OB_LINE + entries + shared->ring * OB_LINE;
    shared->to_module = shared->from_host + entries, shared->to_host = shared->of_module + entries;
    shared->host = ob_map_one(module, OB_HOST_FD, &host_bytes, PROT_READ);
    shared->own = ob_map_one(module, OB_OWN_FD, &own_bytes, PROT_READ | PROT_WRITE);
    shared->lent = calloc(shared->slots + 1, sizeof *shared->lent);
    if (!shared->host || !shared->own || !shared->lent) return OB_SYSTEM;
    if (shared->ring == 0 || (shared->ring & (shared->ring - 1)) != 0 || host_bytes < shared->slots * shared->slot_bytes ||
        own_bytes < shared->slots * shared->slot_bytes || block_bytes / 8 < shared->to_host + shared->ring * OB_LINE)
        return ob_problem(module, OB_PROTOCOL, "the shared memory has impossible sizes");
    shared->block = block;
    return OB_OK;
}

/* Wakes the host if it sleeps. */
static void ob_wake_host(ob_shared *shared) {
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
    uint32_t *sleeps = (uint32_t *)&shared->block[shared->from_host + OB_SLEEPS];
    if (__atomic_load_n(sleeps, __ATOMIC_SEQ_CST) == 0 || __atomic_exchange_n(sleeps, 0, __ATOMIC_SEQ_CST) == 0) return;
    uint64_t one = 1;
    ssize_t written = write(OB_HOST_WAKE_FD, &one, sizeof one);
    (void)written; /* it fails only if the host is awake */
}

/* Makes the newest message visible, its last entry first: a reader that sees one entry then sees those behind it. */
static void ob_show(ob_shared *shared) {
    for (size_t i = shared->held_entries; i-- > 0;) {
        uint64_t index = shared->written - shared->held_entries + i, *line = shared->held[i];
        uint64_t *entry = shared->block + shared->to_host + (index & (shared->ring - 1)) * OB_LINE;
        for (int word = 1; word < OB_LINE; word++) __atomic_store_n(entry + word, line[word], __ATOMIC_RELAXED);
        __atomic_store_n(entry, line[0] | (uint32_t)(index + 1), __ATOMIC_RELEASE);
    }
    if (shared->held_entries == 0) return;
    shared->held_entries = 0;
    __atomic_store_n(shared->block + shared->of_module + OB_HEAD, shared->written, __ATOMIC_RELEASE);
}

/* Returns the next entry from the host, or NULL. */
static uint64_t *ob_entry(const ob_shared *shared, uint64_t index) {
    uint64_t *entry = shared->block + shared->to_module + (index & (shared->ring - 1)) * OB_LINE;
    return (uint32_t)__atomic_load_n(entry, __ATOMIC_ACQUIRE) == (uint32_t)(index + 1) ? entry : NULL;
}

static int ob_receive_frames(ob_module *module, int wait);

/* Sleeps until the host wakes this module, sends a frame, or frees room; for at most `wait_ms` if that is not negative. */
static int ob_sleep(ob_module *module, int wait_ms) {
    ob_shared *shared = &module->shared;
    ob_wake_host(shared); /* for the entries that it has not been woken for */
    uint32_t *sleeps = (uint32_t *)&shared->block[shared->of_module + OB_SLEEPS];
    __atomic_store_n(sleeps, 1, __ATOMIC_SEQ_CST);
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
    if (wait_ms < 0 && ob_entry(shared, shared->taken)) wait_ms = 0;
    struct pollfd ready[2] = {{OB_OWN_WAKE_FD, POLLIN, 0}, {module->control, POLLIN, 0}};
    if (poll(ready, 2, wait_ms) < 0 && errno != EINTR) return ob_problem(module, OB_SYSTEM, strerror(errno));
    uint64_t signals;
    /* The host signals the descriptor after it has cleared the word. */
    if (__atomic_exchange_n(sleeps, 0, __ATOMIC_SEQ_CST) == 0 && read(OB_OWN_WAKE_FD, &signals, sizeof signals) < 0)
        return ob_problem(module, OB_SYSTEM, strerror(errno));
    return ready[1].revents ? ob_receive_frames(module, 0) : OB_OK;
}

/* Waits until the host has freed the first `until` entries of the ring that leads to it. */
static int ob_wait_for_room(ob_module *module, uint64_t until) {
    ob_shared *shared = &module->shared;
    uint64_t *tail = shared->block + shared->of_module + OB_TAIL, *waits = shared->block + shared->of_module + OB_WAITS;
    if (shared->freed >= until) return OB_OK;
    shared->freed = __atomic_load_n(tail, __ATOMIC_ACQUIRE);
    if (shared->freed >= until) return OB_OK;
    ob_show(shared);
    __atomic_store_n(waits, 1, __ATOMIC_SEQ_CST);
    int error = OB_OK;
    while (!error && (shared->freed = __atomic_load_n(tail, __ATOMIC_SEQ_CST)) < until) {
        error = ob_sleep(module, 1);
        if (module->control < 0) return ob_problem(module, OB_CLOSED, "the runner has gone");
    }
    __atomic_store_n(waits, 0, __ATOMIC_SEQ_CST);
    return error;
}

/* Finds an own slot that no entry names. */
static int ob_free_slot(ob_module *module, size_t *slot) {
    ob_shared *shared = &module->shared;
    size_t oldest = shared->slots;
    shared->freed = __atomic_load_n(shared->block + shared->of_module + OB_TAIL, __ATOMIC_ACQUIRE);
    for (size_t i = 0; i < shared->slots; i++) {
        if (i + 1 == shared->room_slot) continue; /* a message is being made there */
        if (oldest == shared->slots || shared->lent[i] < shared->lent[oldest]) oldest = i;
        if (shared->lent[i] > shared->freed) continue;
        *slot = i;
        return OB_OK;
    }
    *slot = oldest;
    return ob_wait_for_room(module, shared->lent[oldest]);
}

static int ob_put_entries(ob_module *module, const ob_piece *pieces, size_t count, uint64_t created, uint64_t flags) {
    ob_shared *shared = &module->shared;
    size_t entries = count == 0 ? 1 : (count + OB_PIECES_MAX - 1) / OB_PIECES_MAX;
    if (entries > OB_ENTRIES_MAX) return ob_problem(module, OB_FAILED, "a message of too many pieces");
    uint64_t after = shared->written + entries;
    int error = after > shared->ring ? ob_wait_for_room(module, after - shared->ring) : OB_OK;
    if (error) return error;
    ob_show(shared);
    memset(shared->held, 0, sizeof shared->held);
    for (size_t i = 0; i < entries; i++) {
        uint64_t *line = shared->held[i], used = count - i * OB_PIECES_MAX;
        used = used < OB_PIECES_MAX ? used : OB_PIECES_MAX;
        line[0] = (flags | (i + 1 < entries ? OB_MORE : 0)) << 32 | used << 40;
        line[1] = created;
        for (size_t k = 0; k < used; k++) {
            const ob_piece *piece = pieces + i * OB_PIECES_MAX + k;
            line[3 + k] = piece->region | (uint64_t)piece->slot << 16 | (uint64_t)piece->offset << 32;
            line[6 + k / 2] |= (uint64_t)piece->length << (k % 2 * 32);
        }
    }
    shared->held_entries = entries;
    shared->written = after;
    for (size_t k = 0; k < count; k++)
        if (pieces[k].region == 1) shared->lent[pieces[k].slot] = after;
    return OB_OK;
}

/* Finds bytes that are in a slot of a region already. */
static int ob_locate(const ob_shared *shared, const unsigned char *body, size_t length, ob_piece *piece) {
    const unsigned char *regions[2] = {shared->host, shared->own};
    for (size_t region = 0; region < 2; region++) {
        if (body < regions[region] || body >= regions[region] + shared->slots * shared->slot_bytes) continue;
        size_t at = (size_t)(body - regions[region]);
        *piece = (ob_piece){region, at / shared->slot_bytes, at % shared->slot_bytes, length};
        return length > 0 && piece->offset + length <= shared->slot_bytes;
    }
    return 0;
}

static int ob_send_shared(ob_module *module, const unsigned char *body, size_t length, uint64_t created) {
    ob_shared *shared = &module->shared;
    ob_piece pieces[OB_PIECES_MAX * OB_ENTRIES_MAX];
    size_t count = 0;
    if (ob_locate(shared, body, length, pieces)) {
        shared->room_slot = 0;
        return ob_put_entries(module, pieces, 1, created, OB_MESSAGE);
    }
    for (size_t done = 0; done < length; count++) {
        size_t part = length - done < shared->slot_bytes ? length - done : shared->slot_bytes, slot;
        if (count == OB_PIECES_MAX * OB_ENTRIES_MAX) return ob_problem(module, OB_FAILED, "a message of too many pieces");
        int error = ob_free_slot(module, &slot);
        if (error) return error;
        memcpy(shared->own + slot * shared->slot_bytes, body + done, part);
        shared->lent[slot] = UINT64_MAX; /* until the entry is written */
        pieces[count] = (ob_piece){1, slot, 0, part};
        done += part;
    }
    return ob_put_entries(module, pieces, count, created, OB_MESSAGE);
}

/* Returns memory in which to make one message, for `ob_send` with this pointer: on shared memory the message is not copied.
 * NULL: there is no memory. */
static inline unsigned char *ob_room(ob_module *module, size_t length) {
    ob_shared *shared = &module->shared;
    size_t slot;
    if (shared->block && length <= shared->slot_bytes) {
        shared->room_slot = 0;
        if (ob_free_slot(module, &slot) != OB_OK) return NULL;
        shared->room_slot = slot + 1;
        return shared->own + slot * shared->slot_bytes;
    }
    module->room.start = module->room.end = 0;
    return ob_reserve(module, &module->room, length + 1) == OB_OK ? module->room.bytes : NULL; /* also for none */
}

/* Sends one message. The body is written or copied before this returns. */
static inline int ob_send(ob_module *module, const void *body, size_t length, uint64_t created) {
    if (length > OB_BODY_BYTES_MAX) return ob_problem(module, OB_FAILED, "a message over the limit of 64 MiB");
    if (module->shared.block) {
        module->outputs++;
        return ob_send_shared(module, body, length, created);
    }
    unsigned char header[OB_CONTAINER];
    ob_put(header, length, 4);
    ob_put(header + 4, created, 8);
    module->outputs++;
    int error;
    if (length > OB_JOIN_BYTES && !module->transport) {
        if ((error = ob_write(module)) != OB_OK) return error;
        struct iovec slices[2] = {{header, sizeof header}, {(void *)body, length}};
        return ob_write_all(module, 1, slices, 2);
    }
    if ((error = ob_reserve(module, &module->out, OB_CONTAINER + length)) != OB_OK) return error;
    memcpy(module->out.bytes + module->out.end, header, sizeof header);
    if (length) memcpy(module->out.bytes + module->out.end + OB_CONTAINER, body, length);
    module->out.end += OB_CONTAINER + length;
    return module->out.end >= OB_BURST_BYTES ? ob_write(module) : OB_OK;
}

/* Writes all slices to the descriptor of a transport, which becomes one that does not block. Meanwhile `readable` is called: two
 * programs that both only write wait for each other for ever. */
static inline int ob_carry_all(ob_module *module, struct iovec *slices, int count) {
    int descriptor = module->transport->descriptor, flags = fcntl(descriptor, F_GETFL);
    if (flags < 0 || (!(flags & O_NONBLOCK) && fcntl(descriptor, F_SETFL, flags | O_NONBLOCK) < 0))
        return ob_problem(module, OB_SYSTEM, strerror(errno));
    return ob_write_all(module, descriptor, slices, count);
}

static int ob_send_frame(ob_module *module, int kind, const void *body, size_t length) {
    if (module->control < 0) return OB_OK;
    unsigned char header[OB_FRAME];
    ob_put(header, length, 4);
    header[4] = (unsigned char)kind;
    ob_put(header + 5, module->outputs, 8);
    struct iovec slices[2] = {{header, sizeof header}, {(void *)body, length}};
    int error = ob_write_all(module, module->control, slices, length ? 2 : 1);
    if (error == OB_CLOSED) module->control = -1;
    return error == OB_CLOSED ? OB_OK : error;
}

/* Sends a control message to the other half of the pair; has no effect in a shell line. */
static inline int ob_send_to_peer(ob_module *module, const void *control, size_t length) {
    if (length > OB_FRAME_BYTES_MAX) return ob_problem(module, OB_FAILED, "a control message over the limit of 1 MiB");
    int error = ob_write(module); /* earlier output precedes the control message */
    return error ? error : ob_send_frame(module, OB_PEER, control, length);
}

/* Drops a message on purpose, and counts it under this reason. */
static inline int ob_drop(ob_module *module, const char *reason) {
    module->dropped++;
    snprintf(module->drop_reason, sizeof module->drop_reason, "%s", reason);
    unsigned char body[8 + 4 + 256];
    size_t length = strlen(reason) < 256 ? strlen(reason) : 256;
    ob_put(body, 1, 8);
    ob_put(body + 8, length, 4);
    memcpy(body + 12, reason, length);
    uint64_t outputs = module->outputs;
    if (module->shared.block) module->outputs = module->inputs; /* there, drops belong to the messages that are complete */
    int error = ob_send_frame(module, OB_DROP, body, 12 + length);
    module->outputs = outputs;
    return error;
}

static int ob_report_done(ob_module *module, int always) {
    if (module->shared.block) return OB_OK; /* the entries say it */
    int is_new = !module->said_done || module->inputs != module->done_inputs || module->outputs != module->done_outputs;
    if (!always && (!is_new || (module->handlers->held && module->handlers->held(module)))) return OB_OK;
    unsigned char body[16];
    ob_put(body, module->inputs, 8);
    ob_put(body + 8, module->outputs, 8);
    module->said_done = 1;
    module->done_inputs = module->inputs;
    module->done_outputs = module->outputs;
    return ob_send_frame(module, OB_DONE, body, sizeof body);
}

/* Takes a text from the front, and copies it with a final null to `module->texts`. */
static const char *ob_text(unsigned char **from, unsigned char *end, char **into) {
    if (end - *from < 4) return NULL;
    size_t length = (size_t)ob_get(*from, 4);
    if ((size_t)(end - *from) - 4 < length) return NULL;
    char *text = *into;
    memcpy(text, *from + 4, length);
    text[length] = 0;
    *from += 4 + length;
    *into += length + 1;
    return text;
}

/* Writes a text at `at`; returns its end. */
static size_t ob_put_text(unsigned char *into, size_t at, const char *text) {
    size_t length = strlen(text);
    ob_put(into + at, length, 4);
    memcpy(into + at + 4, text, length);
    return at + 4 + length;
}

/* Sends the hello of a device or an application. */
static int ob_declare(ob_module *module) {
    const ob_device *device = module->device;
    const char *values[4][2] = {{"class", device->flow_class},
                                {"back", device->back},
                                {"summary", device->summary},
                                {"snapshot", device->snapshot ? "true" : NULL}};
    size_t count = 0, room = 64 + strlen(module->role) + strlen(device->format);
    for (int i = 0; i < 4; i++)
        if (values[i][1]) count++, room += 16 + strlen(values[i][0]) + strlen(values[i][1]);
    unsigned char *hello = malloc(room);
    if (!hello) return ob_problem(module, OB_SYSTEM, "no memory");
    ob_put(hello, OB_VERSION, 2);
    size_t at = ob_put_text(hello, ob_put_text(hello, 2, module->role), device->format);
    ob_put(hello + at, count, 2);
    at += 2;
    for (int i = 0; i < 4; i++)
        if (values[i][1]) at = ob_put_text(hello, ob_put_text(hello, at, values[i][0]), values[i][1]);
    int error = ob_send_frame(module, OB_HELLO, hello, at);
    free(hello);
    return error;
}

static int ob_hello(ob_module *module, unsigned char *body, size_t length) {
    unsigned char *from = body, *end = body + length;
    char *into = module->texts = malloc(length + 1); /* each text's own length leaves room for its null */
    if (!into) return ob_problem(module, OB_SYSTEM, "no memory");
    if (length < 2) return ob_problem(module, OB_PROTOCOL, "the hello is cut short");
    if (ob_get(from, 2) != OB_VERSION) return ob_problem(module, OB_PROTOCOL, "the hello is of another version");
    from += 2;
    const char *role = ob_text(&from, end, &into), *format = role ? ob_text(&from, end, &into) : NULL;
    if (!format || end - from < 2) return ob_problem(module, OB_PROTOCOL, "the hello is cut short");
    size_t count = (size_t)ob_get(from, 2);
    from += 2;
    for (size_t i = 0; i < count; i++) {
        const char *name = ob_text(&from, end, &into), *value = name ? ob_text(&from, end, &into) : NULL;
        if (!value) return ob_problem(module, OB_PROTOCOL, "the hello is cut short");
        if (module->options == OB_OPTIONS_MAX) continue;
        module->option_names[module->options] = name;
        module->option_values[module->options++] = value;
    }
    if (module->device || module->transport) {
        if (strcmp(role, module->role) != 0) {
            snprintf(module->problem, sizeof module->problem, "this program is no %.16s, but a %s", role, module->role);
            return OB_FAILED;
        }
        module->format = format;
        return module->device ? ob_declare(module) : OB_OK;
    }
    module->role = role;
    module->format = format;
    unsigned char answer[2 + 4 + 64 + 4 + 64 + 2 + 4 + 16 + 4 + 4];
    if (strlen(role) > 64 || strlen(format) > 64)
        return ob_problem(module, OB_PROTOCOL, "the hello's texts are too long");
    ob_put(answer, OB_VERSION, 2);
    size_t at = ob_put_text(answer, ob_put_text(answer, 2, role), format);
    ob_put(answer + at, 1, 2);
    const char *shared_memory = ob_option(module, "shared_memory", "");
    int is_shared = strcmp(shared_memory, "true") == 0; /* then the entries report what is done */
    at = ob_put_text(answer, ob_put_text(answer, at + 2, is_shared ? "shared_memory" : "done"), "true");
    return ob_send_frame(module, OB_HELLO, answer, at);
}

/* Reads the available control frames; with `wait`, waits for some. */
static int ob_receive_frames(ob_module *module, int wait) {
    while (module->control >= 0) {
        int error = ob_reserve(module, &module->frames, OB_READ_BYTES);
        if (error) return error;
        ssize_t count = recv(module->control, module->frames.bytes + module->frames.end,
                             module->frames.room - module->frames.end, wait ? 0 : MSG_DONTWAIT);
        if (count < 0 && errno == EINTR) continue;
        if (count < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return OB_OK;
        if (count <= 0) {
            module->control = -1;
            return OB_OK;
        }
        module->frames.end += (size_t)count;
        if (wait) return OB_OK;
    }
    return OB_OK;
}

/* Handles the first frame if it is complete and its place has come: 1, else 0, or an error. */
static int ob_next_frame(ob_module *module, int *kind, unsigned char **body, size_t *length) {
    unsigned char *frame = module->frames.bytes + module->frames.start;
    size_t left = module->frames.end - module->frames.start;
    if (left < OB_FRAME) return 0;
    *length = (size_t)ob_get(frame, 4);
    if (*length > OB_FRAME_BYTES_MAX) return ob_problem(module, OB_PROTOCOL, "a control frame over the limit of 1 MiB");
    if (left < OB_FRAME + *length || ob_get(frame + 5, 8) > module->inputs) return 0;
    *kind = frame[4];
    *body = frame + OB_FRAME;
    module->frames.start += OB_FRAME + *length;
    return 1;
}

static int ob_handle_frames(ob_module *module) {
    const ob_handlers *handlers = module->handlers;
    int kind, found, error = OB_OK;
    unsigned char *body;
    size_t length;
    while (!error && (found = ob_next_frame(module, &kind, &body, &length)) != 0) {
        if (found < 0) return found;
        if (kind == OB_PEER && handlers->peer) error = handlers->peer(module, body, length);
        if (kind == OB_GAP && handlers->gap) error = handlers->gap(module);
        if (kind == OB_FLUSH) {
            if (handlers->flush) error = handlers->flush(module);
            if (!error) error = ob_write(module);
            if (!error) error = ob_report_done(module, 1);
        }
        const ob_device *device = module->device;
        if (device && kind == OB_NEUTRAL && device->neutral) error = device->neutral(module);
        if (device && kind == OB_SNAPSHOT && device->snapshot && !module->is_absent) error = device->snapshot(module);
        /* Frames of a later version are ignored. */
    }
    return error;
}

static int ob_handle_all(ob_module *module) {
    for (;;) {
        int error = ob_handle_frames(module);
        if (error) return error;
        unsigned char *container = module->in.bytes + module->in.start;
        size_t left = module->in.end - module->in.start, length;
        if (left < OB_CONTAINER) break;
        length = (size_t)ob_get(container, 4);
        if (length > OB_BODY_BYTES_MAX) return ob_problem(module, OB_PROTOCOL, "a container over the limit of 64 MiB");
        if (left < OB_CONTAINER + length) break;
        module->in.start += OB_CONTAINER + length;
        module->inputs++;
        error = module->handlers->message(module, container + OB_CONTAINER, length, ob_get(container + 4, 8));
        if (error) return error;
    }
    if (module->at_end && module->in.start < module->in.end)
        return ob_problem(module, OB_PROTOCOL, "the data ends in a container");
    return OB_OK;
}

static int ob_receive(ob_module *module) {
    /* Double the buffer at most, so that an announced length costs nothing until its bytes arrive. */
    size_t held = module->in.end - module->in.start;
    int error = ob_reserve(module, &module->in, held > OB_READ_BYTES ? held : OB_READ_BYTES);
    if (error) return error;
    ssize_t count = read(0, module->in.bytes + module->in.end, module->in.room - module->in.end);
    if (count < 0) return errno == EINTR || errno == EAGAIN ? OB_OK : ob_problem(module, OB_SYSTEM, strerror(errno));
    module->in.end += (size_t)count;
    module->at_end = count == 0;
    return OB_OK;
}

static int ob_greet(ob_module *module) {
    int kind, found;
    unsigned char *body;
    size_t length;
    while ((found = ob_next_frame(module, &kind, &body, &length)) == 0) {
        int error = ob_receive_frames(module, 1);
        if (error) return error;
        if (module->control < 0) return ob_problem(module, OB_CLOSED, "the control channel ended before a hello");
    }
    if (found < 0) return found;
    if (kind != OB_HELLO) return ob_problem(module, OB_PROTOCOL, "the first control frame is no hello");
    return ob_hello(module, body, length);
}

/* Reports that all output of the messages so far has been sent, with the newest entry if that is not visible yet. */
static int ob_cover(ob_module *module) {
    ob_shared *shared = &module->shared;
    int is_held = module->handlers->held && module->handlers->held(module);
    if (!is_held && shared->covered != module->inputs) {
        int error = shared->held_entries ? OB_OK : ob_put_entries(module, NULL, 0, 0, 0);
        if (error) return error;
        shared->held[shared->held_entries - 1][2] = shared->covered = module->inputs;
    }
    ob_show(shared);
    return OB_OK;
}

/* Handles the message that begins at the next entry, and frees its entries. */
static int ob_handle_shared(ob_module *module) {
    ob_shared *shared = &module->shared;
    uint64_t flags = 0, *line, created = 0;
    size_t entries = 0, length = 0;
    unsigned char *body = shared->host;
    module->in.start = module->in.end = 0;
    do {
        if (!(line = ob_entry(shared, shared->taken + entries))) return ob_problem(module, OB_PROTOCOL, "a message is cut short");
        size_t count = line[0] >> 40 & 0xff;
        for (size_t k = 0; k < count && k < OB_PIECES_MAX; k++) {
            size_t slot = line[3 + k] >> 16 & 0xffff, offset = line[3 + k] >> 32, bytes = line[6 + k / 2] >> (k % 2 * 32) & 0xffffffff;
            if ((line[3 + k] & 0xffff) != 0 || slot >= shared->slots || offset + bytes > shared->slot_bytes)
                return ob_problem(module, OB_PROTOCOL, "a piece is out of bounds");
            unsigned char *piece = shared->host + slot * shared->slot_bytes + offset;
            if (module->handlers->reads_only && entries == 0 && count == 1 && !(line[0] >> 32 & OB_MORE)) {
                body = piece;
            } else {
                int error = ob_reserve(module, &module->in, bytes);
                if (error) return error;
                memcpy(module->in.bytes + module->in.end, piece, bytes);
                module->in.end += bytes;
                body = module->in.bytes;
            }
            length += bytes;
        }
        flags |= line[0] >> 32 & 0xff;
        created = line[1];
        entries++;
    } while (line[0] >> 32 & OB_MORE);
    int error = OB_OK;
    if (flags & OB_GAP_BEFORE && module->handlers->gap) error = module->handlers->gap(module);
    if (flags & OB_MESSAGE && !error) {
        module->inputs++;
        error = module->handlers->message(module, body, length, created);
    }
    if (!error) error = ob_cover(module);
    shared->taken += entries;
    __atomic_store_n(shared->block + shared->from_host + OB_TAIL, shared->taken, __ATOMIC_RELEASE);
    /* The messages of a burst wake the host together; before this module sleeps, it wakes the host in any case. */
    if (shared->taken % OB_BURST == 0) ob_wake_host(shared);
    module->at_end = (flags & OB_FLOW_END) != 0;
    return error;
}

static int ob_run_shared(ob_module *module) {
    ob_shared *shared = &module->shared;
    int error = OB_OK;
    while (!error && !module->at_end) {
        uint64_t control = __atomic_load_n(shared->block + shared->of_module + OB_CONTROL, __ATOMIC_SEQ_CST);
        if (control != shared->control_seen) error = ob_receive_frames(module, 0);
        shared->control_seen = control;
        if (!error && module->frames.end > module->frames.start) {
            error = ob_handle_frames(module);
            ob_show(shared);
        }
        if (module->control < 0) return ob_problem(module, OB_CLOSED, "the runner has gone");
        if (!error) error = ob_entry(shared, shared->taken) ? ob_handle_shared(module) : ob_sleep(module, -1);
    }
    if (!error && module->handlers->flush) error = module->handlers->flush(module);
    if (!error) error = ob_cover(module);
    if (!error) error = ob_put_entries(module, NULL, 0, 0, OB_FLOW_END);
    ob_show(shared);
    ob_wake_host(shared);
    return error;
}

static int ob_run_to_end(ob_module *module) {
    const ob_handlers *handlers = module->handlers;
    int error;
    if (module->control >= 0 && (error = ob_greet(module)) != OB_OK) return error;
    if (module->control >= 0 && strcmp(ob_option(module, "shared_memory", ""), "true") == 0) {
        if ((error = ob_map(module)) != OB_OK) return error;
        if (handlers->start && (error = handlers->start(module)) != OB_OK) return error;
        return ob_run_shared(module);
    }
    if (handlers->start && (error = handlers->start(module)) != OB_OK) return error;
    if ((error = ob_report_done(module, 0)) != OB_OK) return error;
    while (!module->at_end) {
        struct pollfd ready[2] = {{0, POLLIN, 0}, {module->control, POLLIN, 0}};
        if (module->control < 0) ready[0].revents = POLLIN; /* nothing else to wait for */
        else if (poll(ready, 2, -1) < 0 && errno != EINTR) return ob_problem(module, OB_SYSTEM, strerror(errno));
        /* Read data before control: a frame that precedes a container is then seen before it. */
        if (ready[0].revents && (error = ob_receive(module)) != OB_OK) return error;
        if ((error = ob_receive_frames(module, 0)) != OB_OK) return error;
        if ((error = ob_handle_all(module)) != OB_OK) return error;
        if ((error = ob_write(module)) != OB_OK) return error;
        if ((error = ob_report_done(module, 0)) != OB_OK) return error;
    }
    if (handlers->flush && (error = handlers->flush(module)) != OB_OK) return error;
    if ((error = ob_write(module)) != OB_OK) return error;
    return ob_report_done(module, 1);
}

/* The present time of a message: nanoseconds of the boot clock. */
static inline uint64_t ob_now(void) {
    struct timespec now;
    clock_gettime(CLOCK_BOOTTIME, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static int ob_set_absent(ob_module *module, int is_absent, const char *why) {
    if (module->is_absent == is_absent) return OB_OK;
    int error = ob_write(module); /* earlier messages precede the frame */
    if (error) return error;
    module->is_absent = is_absent;
    unsigned char body[4 + 256];
    size_t length = strlen(why) < 256 ? strlen(why) : 256;
    ob_put(body, length, 4);
    memcpy(body + 4, why, length);
    return ob_send_frame(module, is_absent ? OB_ABSENT : OB_PRESENT, body, is_absent ? 4 + length : 0);
}

/* The device was unplugged: the far node stays, and is neutral. Send no message until `ob_present`. */
static inline int ob_absent(ob_module *module, const char *why) { return ob_set_absent(module, 1, why); }

/* The device is back. */
static inline int ob_present(ob_module *module) { return ob_set_absent(module, 0, ""); }

/* The flow ends after the messages so far, and so does the program. */
static inline void ob_end(ob_module *module) { module->has_ended = 1; }

static int ob_ignore(ob_module *module, unsigned char *body, size_t length, uint64_t created) {
    (void)module, (void)body, (void)length, (void)created;
    return OB_OK;
}

static int ob_run_device_to_end(ob_module *module) {
    const ob_device *device = module->device;
    if (module->control < 0) return ob_problem(module, OB_FAILED, "descriptor 3 is no socket: run it with frame=declared");
    int error = ob_greet(module), is_application = strcmp(module->role, "application") == 0;
    if (error) return error;
    if (device->start && (error = device->start(module)) != OB_OK) return error;
    uint64_t period = (uint64_t)device->period_ms * 1000000u, due = ob_now();
    while (module->control >= 0 && !module->has_ended && !(module->at_end && is_application)) {
        if ((error = ob_write(module)) != OB_OK) return error;
        uint64_t now = ob_now();
        int wait = period == 0 ? -1 : now >= due ? 0 : (int)((due - now) / 1000000u) + 1;
        struct pollfd ready[3] = {{module->at_end ? -1 : 0, POLLIN, 0},
                                  {module->control, POLLIN, 0},
                                  {device->descriptor > 0 ? device->descriptor : -1, POLLIN, 0}};
        if (poll(ready, 3, wait) < 0 && errno != EINTR) return ob_problem(module, OB_SYSTEM, strerror(errno));
        if (ready[0].revents && (error = ob_receive(module)) != OB_OK) return error;
        if ((error = ob_receive_frames(module, 0)) != OB_OK) return error;
        if ((error = ob_handle_all(module)) != OB_OK) return error;
        if (ready[2].revents && device->readable && (error = device->readable(module)) != OB_OK) return error;
        if (period && (now = ob_now()) >= due) {
            /* A late tick delays the next ones; nothing is made up for. */
            due = due + period > now ? due + period : now;
            if (device->tick && (error = device->tick(module)) != OB_OK) return error;
        }
    }
    return ob_write(module);
}

/* Sends the hello of a transport: a container, because there is no descriptor 3. */
static int ob_declare_transport(ob_module *module) {
    const ob_transport *transport = module->transport;
    char bytes[32];
    snprintf(bytes, sizeof bytes, "%llu", (unsigned long long)(transport->bytes ? transport->bytes : 64 << 10));
    const char *values[3][2] = {{"bytes", bytes},
                                {"reliable", transport->is_reliable ? "true" : "false"},
                                {"ordered", transport->is_ordered ? "true" : "false"}};
    unsigned char hello[256];
    ob_put(hello, OB_VERSION, 2);
    size_t at = ob_put_text(hello, ob_put_text(hello, 2, module->role), "records");
    ob_put(hello + at, 3, 2);
    at += 2;
    for (int i = 0; i < 3; i++) at = ob_put_text(hello, ob_put_text(hello, at, values[i][0]), values[i][1]);
    int error = ob_send(module, hello, at, 0);
    return error ? error : ob_write(module);
}

/* Waits until a transport can do something, and does it; while `is_carrying`, it takes no further message of Outboard. What Outboard
 * has not taken keeps `readable` from being called, and nothing else: neither direction waits for the other one. */
static int ob_serve(ob_module *module, int is_carrying) {
    ob_transport *transport = module->transport;
    int error, is_unwritten = module->out.start < module->out.end;
    short outboard = (short)((is_carrying ? 0 : POLLIN) | (is_unwritten ? POLLOUT : 0));
    short other = (short)((is_carrying ? POLLOUT : 0) | (is_unwritten ? 0 : POLLIN));
    /* Descriptors 0 and 1 are one socket. A hangup is reported always, so it is not waited for in vain. */
    struct pollfd ready[2] = {{0, outboard, 0}, {other && transport->descriptor > 0 ? transport->descriptor : -1, other, 0}};
    if (poll(ready, 2, -1) < 0) return errno == EINTR ? OB_OK : ob_problem(module, OB_SYSTEM, strerror(errno));
    if (is_carrying && ready[0].revents & (POLLHUP | POLLERR)) return ob_problem(module, OB_CLOSED, "the connection is given up");
    if (!is_carrying && ready[0].revents & ~POLLOUT && (error = ob_receive(module)) != OB_OK) return error;
    if (!is_unwritten && ready[1].revents & ~POLLOUT && transport->readable && (error = transport->readable(module)) != OB_OK)
        return error;
    return ob_write(module);
}

static int ob_run_transport_to_end(ob_module *module) {
    ob_transport *transport = module->transport;
    int error = ob_declare_transport(module);
    size_t left, length = 0;
    while (!error && ((left = module->in.end - module->in.start) < OB_CONTAINER ||
                      left < OB_CONTAINER + (length = (size_t)ob_get(module->in.bytes + module->in.start, 4)))) {
        if (length > OB_FRAME_BYTES_MAX) return ob_problem(module, OB_PROTOCOL, "the hello is too long");
        if (module->at_end) return ob_problem(module, OB_FAILED, "no hello: run it with --transport exec:PROGRAM");
        error = ob_receive(module);
    }
    if (error) return error;
    unsigned char *hello = module->in.bytes + module->in.start + OB_CONTAINER;
    module->in.start += OB_CONTAINER + length;
    if ((error = ob_hello(module, hello, length)) != OB_OK) return error;
    if (transport->start && (error = transport->start(module)) != OB_OK) return error;
    for (;;) {
        if ((error = ob_handle_all(module)) != OB_OK || (error = ob_write(module)) != OB_OK) return error;
        if (module->at_end) return OB_OK;
        if ((error = ob_serve(module, 0)) != OB_OK) return error;
    }
}

static int ob_start(const ob_handlers *handlers, const ob_device *device, ob_transport *transport, const char *role) {
    ob_module module;
    memset(&module, 0, sizeof module);
    module.handlers = handlers;
    module.device = device;
    module.transport = transport;
    module.role = role;
    module.format = "bytes";
    struct stat found;
    /* Only a socket on descriptor 3 is the control channel: the shell may have passed on any other file. */
    module.control = !transport && fstat(3, &found) == 0 && S_ISSOCK(found.st_mode) ? 3 : -1;
    signal(SIGPIPE, SIG_IGN);
#ifdef F_SETPIPE_SZ
    fcntl(0, F_SETPIPE_SZ, 1 << 20); /* larger pipes need fewer switches between processes */
    fcntl(1, F_SETPIPE_SZ, 1 << 20);
#endif
    int has_control = module.control >= 0;
    int error = transport ? ob_run_transport_to_end(&module)
                : device  ? ob_run_device_to_end(&module)
                          : ob_run_to_end(&module);
    if (!has_control && module.dropped > 0)
        fprintf(stderr, "module: %llu dropped (%s)\n", (unsigned long long)module.dropped, module.drop_reason);
    if (error) {
        if (!module.problem[0]) ob_problem(&module, error, "a handler failed");
        ob_send_frame(&module, OB_ERROR, module.problem, strlen(module.problem));
        fprintf(stderr, "module: %s\n", module.problem);
    }
    free(module.in.bytes), free(module.out.bytes), free(module.room.bytes), free(module.shared.lent), free(module.frames.bytes), free(module.texts);
    return error ? 1 : 0;
}

/* Runs a module until its input ends. Returns the exit status of the process: 0, or 1 after an error message. */
static inline int ob_run(const ob_handlers *handlers) { return ob_start(handlers, NULL, NULL, "source"); }

/* Runs a device until Outboard ends, or `ob_end`. Returns the exit status. */
static inline int ob_run_device(const ob_device *device) {
    ob_handlers handlers = {.message = device->message ? device->message : ob_ignore, .user = device->user};
    return ob_start(&handlers, device, NULL, "device");
}

/* Runs an application until its flow ends. Returns the exit status. */
static inline int ob_run_application(const ob_device *application) {
    ob_handlers handlers = {.message = application->message ? application->message : ob_ignore, .user = application->user};
    return ob_start(&handlers, application, NULL, "application");
}

/* Runs a transport until its connection is over. Returns the exit status. */
static inline int ob_run_transport(ob_transport *transport) {
    ob_handlers handlers = {.message = transport->message ? transport->message : ob_ignore, .user = transport->user};
    return ob_start(&handlers, NULL, transport, "transport");
}

#endif
