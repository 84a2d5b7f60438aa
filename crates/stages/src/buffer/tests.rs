use super::Buffer;
use contract::Format;
use testkit::stage::conforms;

#[test]
fn it_conforms() {
    for given in [
        &[][..],
        &[("min", "1"), ("max", "1"), ("source_max", "1")],
        &[("full", "wait"), ("source_max", "20")],
        &[("mode", "play")],
        &[("mode", "play"), ("delay", "0s"), ("held_max", "3")],
        &[("mode", "play"), ("adapt", "true"), ("delay", "200ms")],
    ] {
        conforms(&Buffer, given, &Format::Evdev);
    }
}
