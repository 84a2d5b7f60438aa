// A microphone or a recorder that drives its graph of PipeWire: the next quantum begins by a timer, but never before every node has
// done the one before. So a busy machine makes sound later, and never drops any of it.
//
//   graph microphone NAME   a source with this name. Its sound is a sine of 200 Hz, without an end
//   graph recorder NAME     records the node with this name to standard output: two channels of 16 bits
#include <math.h>
#include <pipewire/pipewire.h>
#include <spa/param/audio/format-utils.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define RATE 48000
#define QUANTUM 1024
#define FRAME_BYTES 4
#define PERIOD 240
#define PEAK 16000.0

struct graph {
    struct pw_main_loop *loop;
    struct pw_stream *stream;
    struct spa_io_position *position;
    bool records;
    // Quanta that have begun, and those that every node has done.
    atomic_uint begun;
    atomic_uint done;
    unsigned frame;
};

static uint64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * SPA_NSEC_PER_SEC + (uint64_t)now.tv_nsec;
}

static void on_timer(void *data, uint64_t expirations) {
    struct graph *graph = data;
    (void)expirations;
    if (!pw_stream_is_driving(graph->stream) || graph->position == NULL || atomic_load(&graph->begun) != atomic_load(&graph->done))
        return;
    struct spa_io_clock *clock = &graph->position->clock;
    clock->nsec = now_ns();
    clock->rate = SPA_FRACTION(1, RATE);
    clock->position += QUANTUM;
    clock->duration = QUANTUM;
    clock->delay = 0;
    clock->rate_diff = 1.0;
    clock->next_nsec = clock->nsec + (uint64_t)QUANTUM * SPA_NSEC_PER_SEC / RATE;
    atomic_fetch_add(&graph->begun, 1);
    pw_stream_trigger_process(graph->stream);
}

static void make_sine(struct graph *graph, int16_t *samples, unsigned frames) {
    for (unsigned frame = 0; frame < frames; frame++, graph->frame++) {
        double phase = 2.0 * M_PI * (graph->frame % PERIOD) / PERIOD;
        samples[2 * frame] = samples[2 * frame + 1] = (int16_t)lrint(sin(phase) * PEAK);
    }
}

static void write_all(const uint8_t *bytes, size_t length) {
    while (length > 0) {
        ssize_t written = write(STDOUT_FILENO, bytes, length);
        if (written <= 0)
            exit(0);
        bytes += written;
        length -= (size_t)written;
    }
}

static void on_process(void *data) {
    struct graph *graph = data;
    struct pw_buffer *buffer = pw_stream_dequeue_buffer(graph->stream);
    if (buffer == NULL)
        return;
    struct spa_data *sound = &buffer->buffer->datas[0];
    if (sound->data != NULL && graph->records) {
        write_all((uint8_t *)sound->data + sound->chunk->offset, sound->chunk->size);
    } else if (sound->data != NULL) {
        unsigned frames = SPA_MIN(sound->maxsize / FRAME_BYTES, (unsigned)QUANTUM);
        make_sine(graph, sound->data, frames);
        sound->chunk->offset = 0;
        sound->chunk->stride = FRAME_BYTES;
        sound->chunk->size = frames * FRAME_BYTES;
    }
    pw_stream_queue_buffer(graph->stream, buffer);
}

static void on_trigger_done(void *data) {
    struct graph *graph = data;
    atomic_store(&graph->done, atomic_load(&graph->begun));
}

static void on_io_changed(void *data, uint32_t id, void *area, uint32_t size) {
    struct graph *graph = data;
    (void)size;
    if (id == SPA_IO_Position)
        graph->position = area;
}

static void on_state_changed(void *data, enum pw_stream_state old, enum pw_stream_state state, const char *error) {
    struct graph *graph = data;
    (void)old;
    // A graph that was paused does not end its quantum.
    if (state == PW_STREAM_STATE_STREAMING)
        atomic_store(&graph->done, atomic_load(&graph->begun));
    if (state == PW_STREAM_STATE_ERROR) {
        fprintf(stderr, "graph: %s\n", error);
        exit(1);
    }
}

static const struct pw_stream_events EVENTS = {
    PW_VERSION_STREAM_EVENTS,
    .state_changed = on_state_changed,
    .io_changed = on_io_changed,
    .process = on_process,
    .trigger_done = on_trigger_done,
};

int main(int argc, char **argv) {
    if (argc != 3) {
        fprintf(stderr, "usage: graph microphone|recorder NAME\n");
        return 2;
    }
    pw_init(NULL, NULL);
    struct graph graph = {.records = strcmp(argv[1], "recorder") == 0};
    graph.loop = pw_main_loop_new(NULL);
    struct pw_properties *properties = pw_properties_new(PW_KEY_MEDIA_TYPE, "Audio", PW_KEY_PRIORITY_DRIVER, "30000",
        PW_KEY_NODE_DRIVER, "true", NULL);
    pw_properties_setf(properties, PW_KEY_NODE_FORCE_QUANTUM, "%u", QUANTUM);
    if (graph.records) {
        pw_properties_set(properties, PW_KEY_NODE_NAME, "recorder");
        pw_properties_set(properties, PW_KEY_MEDIA_CATEGORY, "Capture");
        pw_properties_set(properties, PW_KEY_TARGET_OBJECT, argv[2]);
    } else {
        pw_properties_set(properties, PW_KEY_NODE_NAME, argv[2]);
        pw_properties_set(properties, PW_KEY_MEDIA_CLASS, "Audio/Source");
    }
    graph.stream = pw_stream_new_simple(pw_main_loop_get_loop(graph.loop), argv[1], properties, &EVENTS, &graph);

    uint8_t bytes[1024];
    struct spa_pod_builder builder = SPA_POD_BUILDER_INIT(bytes, sizeof bytes);
    struct spa_audio_info_raw format = {.format = SPA_AUDIO_FORMAT_S16_LE, .rate = RATE, .channels = 2,
        .position = {SPA_AUDIO_CHANNEL_FL, SPA_AUDIO_CHANNEL_FR}};
    const struct spa_pod *parameters[] = {spa_format_audio_raw_build(&builder, SPA_PARAM_EnumFormat, &format)};
    enum pw_stream_flags flags = PW_STREAM_FLAG_DRIVER | PW_STREAM_FLAG_MAP_BUFFERS | PW_STREAM_FLAG_RT_PROCESS;
    if (graph.records)
        flags |= PW_STREAM_FLAG_AUTOCONNECT;
    enum pw_direction direction = graph.records ? PW_DIRECTION_INPUT : PW_DIRECTION_OUTPUT;
    if (pw_stream_connect(graph.stream, direction, PW_ID_ANY, flags, parameters, 1) < 0) {
        fprintf(stderr, "graph: the stream of %s cannot be connected\n", argv[2]);
        return 1;
    }

    struct spa_source *timer = pw_loop_add_timer(pw_main_loop_get_loop(graph.loop), on_timer, &graph);
    struct timespec quantum = {0, (long)((int64_t)QUANTUM * SPA_NSEC_PER_SEC / RATE)};
    pw_loop_update_timer(pw_main_loop_get_loop(graph.loop), timer, &quantum, &quantum, false);
    pw_main_loop_run(graph.loop);
    return 0;
}
