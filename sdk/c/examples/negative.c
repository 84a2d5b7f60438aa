/* The negative of a picture, or of any bytes: @shm exec(source="./negative",makes=same). On shared memory nothing is copied: it reads
 * where Outboard wrote, and Outboard reads where it writes. cc -O2 -I.. negative.c -o negative */
#include "outboard_module.h"

static int negative(ob_module *module, unsigned char *body, size_t length, uint64_t created) {
    unsigned char *made = ob_room(module, length);
    if (!made) return ob_fail(module, "no memory");
    for (size_t i = 0; i < length; i++) made[i] = (unsigned char)~body[i];
    return ob_send(module, made, length, created);
}

int main(void) { return ob_run(&(ob_handlers){.message = negative, .reads_only = 1}); }
