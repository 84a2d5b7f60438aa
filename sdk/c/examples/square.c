/* A 3D mouse that draws a square (docs/reference/formats-motion.md): outboard share exec:./square,frame=declared
 * cc -O2 -I.. square.c -o square */
#include "outboard_module.h"

static int32_t axes[6];

static int send_axes(ob_module *module, unsigned char kind, uint32_t period_us) {
    unsigned char body[1 + 6 * 4 + 4];
    body[0] = kind;
    for (int i = 0; i < 6; i++) ob_put(body + 1 + 4 * i, (uint32_t)axes[i], 4);
    ob_put(body + 25, period_us, 4);
    return ob_send(module, body, kind == 0 ? sizeof body : 25, ob_now());
}

static int tick(ob_module *module) {
    static const int32_t sides[4][2] = {{350, 0}, {0, 350}, {-350, 0}, {0, -350}};
    static unsigned step;
    const int32_t *side = sides[step++ / 50 % 4];
    axes[0] = side[0];
    axes[1] = side[1];
    return send_axes(module, 0, 10000);
}

static int snapshot(ob_module *module) { return send_axes(module, 2, 0); }

int main(void) {
    return ob_run_device(&(ob_device){
        .format = "motion", .summary = "a 3D mouse that draws a square",
        .tick = tick, .period_ms = 10, .snapshot = snapshot});
}
