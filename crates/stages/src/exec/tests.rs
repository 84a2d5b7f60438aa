use super::Exec;
use crate::PAIRS;
use contract::{Format, Half, Options, Pair};
use pipeline::{Origin, Pipeline};

#[test]
fn it_conforms() {
    for makes in ["bytes", "same"] {
        testkit::stage::conforms(&Exec, &[("makes", makes)], &Format::Evdev);
    }
}

#[test]
fn a_half_is_a_program_or_none() {
    let options = Options::check(Exec.options(), [("source", "./blur.py -r 3"), ("sink", " ")]).unwrap();
    assert_eq!(Exec.program(&options, Half::Source), Some("./blur.py -r 3"));
    assert_eq!(Exec.program(&options, Half::Sink), None);
}

#[test]
fn programs_are_not_sent_to_the_peer_nor_taken_from_it() {
    let text = "exec(source=\"./blur.py\", sink=\"./noop.py\", makes=same)";
    let own = Pipeline::parse(text, PAIRS, Origin::Local).unwrap();
    assert_eq!(own.canonical(), "exec/1(makes=same,stateful=false)");
    let refused = Pipeline::parse(text, PAIRS, Origin::Peer).unwrap_err();
    assert!(refused.problem.contains("only a host itself may set `source`"), "{refused}");
    // The half of a host that names no program passes messages on.
    let theirs = Pipeline::parse(own.canonical(), PAIRS, Origin::Peer).unwrap();
    let used = &theirs.pairs()[0];
    assert!([Half::Source, Half::Sink].iter().all(|half| Exec.program(&used.options, *half).is_none()));
}

#[test]
fn a_stateful_half_needs_its_program_named() {
    let options = Options::check(Exec.options(), [("stateful", "true")]).unwrap();
    let refused = Exec.check_half(Half::Sink, &options).unwrap_err();
    assert!(refused.contains("sink=PROGRAM"), "{refused}");
    let options = Options::check(Exec.options(), [("stateful", "true"), ("sink", "cat")]).unwrap();
    assert_eq!(Exec.check_half(Half::Sink, &options), Ok(()));
}
