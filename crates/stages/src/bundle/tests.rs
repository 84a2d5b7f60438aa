use super::Bundle;
use contract::Format;
use testkit::stage::conforms;

#[test]
fn it_conforms() {
    for given in [
        &[][..],
        &[("count", "1")],
        &[("count", "1000"), ("wait", "5s"), ("bytes_max", "1KiB")],
        &[("hold", "1ms"), ("held_max", "4"), ("held_bytes", "100")],
    ] {
        conforms(&Bundle, given, &Format::Evdev);
    }
}
