/* Upper-cases text: exec(source="./upper"). cc -O2 -I.. upper.c -o upper */
#include "outboard_module.h"

#include <ctype.h>

static int upper(ob_module *module, unsigned char *body, size_t length, uint64_t created) {
    if (memchr(body, 0, length)) return ob_drop(module, "no text: it holds a zero byte");
    for (size_t i = 0; i < length; i++) body[i] = (unsigned char)toupper(body[i]);
    return ob_send(module, body, length, created);
}

int main(void) { return ob_run(&(ob_handlers){.message = upper}); }
