/* Uses every frame that a module can send, for the tests in crates/cli/tests/sdk.rs.
 * Keeps back messages that begin with "keep" until a flush; drops "drop"; fails at "fail". */
#include "outboard_module.h"

enum { KEPT_MAX = 16, KEPT_BYTES_MAX = 64 };

static struct {
    unsigned char body[KEPT_BYTES_MAX];
    size_t length;
    uint64_t created;
} kept[KEPT_MAX];
static int count;

static int is(const unsigned char *body, size_t length, const char *text) {
    return length == strlen(text) && memcmp(body, text, length) == 0;
}

static int start(ob_module *module) {
    const char *greeting = ob_option(module, "greeting", NULL);
    char text[256];
    if (!greeting) return OB_OK;
    return ob_send_to_peer(module, text, (size_t)snprintf(text, sizeof text, "%s %s %s", module->role, module->format, greeting));
}

static int message(ob_module *module, unsigned char *body, size_t length, uint64_t created) {
    if (is(body, length, "drop")) return ob_drop(module, "asked to");
    if (is(body, length, "fail")) return ob_fail(module, "asked to fail");
    if (length >= 4 && memcmp(body, "keep", 4) == 0) {
        if (count == KEPT_MAX || length > KEPT_BYTES_MAX) return ob_fail(module, "too much to keep");
        memcpy(kept[count].body, body, length);
        kept[count].length = length;
        kept[count++].created = created;
        return OB_OK;
    }
    int error = ob_send(module, body, length, created);
    return error || !is(body, length, "twice") ? error : ob_send(module, body, length, created + 1);
}

static int peer(ob_module *module, const unsigned char *control, size_t length) {
    char answer[256];
    int bytes = snprintf(answer, sizeof answer, "got %.*s", (int)length, (const char *)control);
    int error = ob_send_to_peer(module, answer, (size_t)bytes);
    if (error) return error;
    bytes = snprintf(answer, sizeof answer, "peer %.*s", (int)length, (const char *)control);
    return ob_send(module, answer, (size_t)bytes, 7);
}

static int gap(ob_module *module) { return ob_send(module, "gap", 3, 8); }

static int flush(ob_module *module) {
    int error = OB_OK;
    for (int i = 0; i < count && !error; i++) error = ob_send(module, kept[i].body, kept[i].length, kept[i].created);
    count = 0;
    return error;
}

static int held(ob_module *module) {
    (void)module;
    return count > 0;
}

int main(void) {
    return ob_run(&(ob_handlers){
        .message = message, .start = start, .peer = peer, .gap = gap, .flush = flush, .held = held});
}
