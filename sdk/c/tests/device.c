/* Uses everything that a device can do, for the tests in crates/cli/tests/sdk.rs. */
#include "outboard_module.h"

static int is(const unsigned char *body, size_t length, const char *word) {
    return length == strlen(word) && memcmp(body, word, length) == 0;
}

static int say(ob_module *module, const char *word, uint64_t created) {
    return ob_send(module, word, strlen(word), created);
}

static int start(ob_module *module) { return say(module, "started", 1); }

/* Returns its messages, but does what the words "absent", "present", "end" and "fail" say. */
static int message(ob_module *module, unsigned char *body, size_t length, uint64_t created) {
    if (is(body, length, "absent")) return ob_absent(module, "asked to");
    if (is(body, length, "present")) return ob_present(module);
    if (is(body, length, "fail")) return ob_fail(module, "asked to fail");
    if (is(body, length, "end")) {
        ob_end(module);
        return say(module, "last", 2);
    }
    return ob_send(module, body, length, created);
}

static int neutral(ob_module *module) { return say(module, "neutral", 3); }

static int snapshot(ob_module *module) { return say(module, "snapshot", 4); }

int main(void) {
    return ob_run_device(&(ob_device){
        .format = "motion", .back = "bytes", .summary = "conformance", .flow_class = "timely",
        .start = start, .message = message, .neutral = neutral, .snapshot = snapshot});
}
