//! Tests of parsing, checking and running pipelines, with small test pairs.

use crate::*;
use contract::*;
use proptest::prelude::*;
use std::time::Duration;

const fn option(name: &'static str, kind: OptionKind, default: &'static str, scope: Scope) -> OptionSpec {
    OptionSpec { name, kind, default, scope, doc: "" }
}

/// A test pair: declarations, and halves from `make`.
struct TestPair {
    name: &'static str,
    version: u16,
    options: &'static [OptionSpec],
    promises: Promises,
    shape: Shape,
    side_ports: &'static [&'static str],
    takes: Option<Format>,
    makes: Option<Format>,
    make: fn(&Options, Half) -> Box<dyn Stage>,
}

impl Pair for TestPair {
    fn entry(&self) -> ModuleEntry {
        ModuleEntry { name: self.name, summary: "", doc: "", options: self.options }
    }

    fn version(&self) -> u16 {
        self.version
    }
    fn promises(&self, _: &Options) -> Promises {
        self.promises
    }
    fn shape(&self, _: &Options) -> Shape {
        self.shape
    }
    fn side_ports(&self) -> &'static [&'static str] {
        self.side_ports
    }
    fn accept(&self, format: &Format, _: &Options) -> Result<Format, String> {
        match &self.takes {
            Some(only) if only != format => Err(format!("it takes only {only}")),
            _ => Ok(self.makes.clone().unwrap_or_else(|| format.clone())),
        }
    }
    fn check(&self, options: &Options) -> Result<(), String> {
        match options.integer("low") > options.integer("high") {
            true => Err("`low` is above `high`".into()),
            false => Ok(()),
        }
    }
    fn source(&self, options: &Options, _: &Format, _: &Site) -> StageResult<Box<dyn Stage>> {
        Ok((self.make)(options, Half::Source))
    }
    fn sink(&self, options: &Options, _: &Format, _: &Site) -> StageResult<Box<dyn Stage>> {
        Ok((self.make)(options, Half::Sink))
    }
}

const NO_PROMISES: Promises = Promises {
    may_drop: false,
    may_delay: false,
    may_change: false,
    may_reorder: false,
    needs_control: false,
    needs_order: false,
    merges: false,
};

const PLAIN: TestPair = TestPair {
    name: "null",
    version: 1,
    options: &[],
    promises: NO_PROMISES,
    shape: Shape::Line,
    side_ports: &[],
    takes: None,
    makes: None,
    make: |_, _| Box::new(PassThrough),
};

static NULL: TestPair = PLAIN;
/// The source half adds its `letter` in front; the sink half removes it.
static LETTER: TestPair = TestPair {
    name: "letter",
    version: 3,
    options: &[
        option("letter", OptionKind::Choice(&["a", "b", "c"]), "a", Scope::Agreed),
        option("low", OptionKind::Integer { min: -9, max: 9 }, "-1", Scope::Agreed),
        option("high", OptionKind::Integer { min: -9, max: 9 }, "1", Scope::Agreed),
    ],
    makes: Some(Format::Bytes),
    promises: Promises { may_delay: true, ..NO_PROMISES },
    make: |options, half| Box::new(Letter { letter: options.text("letter").as_bytes()[0], half }),
    ..PLAIN
};
/// Holds `count` messages, then releases all. The end of the flow releases the rest.
static HOLD: TestPair = TestPair {
    name: "hold",
    options: &[
        option("count", OptionKind::Integer { min: 1, max: 100 }, "3", Scope::Agreed),
        option(
            "wait",
            OptionKind::Duration { min: Duration::ZERO, max: Duration::from_secs(9) },
            "5ms",
            Scope::Agreed,
        ),
    ],
    promises: Promises { may_drop: true, ..NO_PROMISES },
    make: |options, half| match half {
        Half::Source => Box::new(Hold {
            count: options.count("count"),
            wait: options.duration("wait"),
            held: Vec::new(),
            due: None,
        }),
        Half::Sink => Box::new(PassThrough),
    },
    ..PLAIN
};
/// Accepts one message for each control message.
static GATE: TestPair = TestPair {
    name: "gate",
    promises: Promises { needs_control: true, ..NO_PROMISES },
    make: |_, half| match half {
        Half::Source => Box::new(Gate { open: 0 }),
        Half::Sink => Box::new(PassThrough),
    },
    ..PLAIN
};
static EVERYTHING: TestPair = TestPair {
    name: "everything",
    options: &[
        option("text", OptionKind::Text { max: 200 }, "", Scope::Agreed),
        option("number", OptionKind::Number { min: -1e9, max: 1e9 }, "0.5", Scope::Agreed),
        option("share", OptionKind::Share, "1%", Scope::Agreed),
        option("size", OptionKind::Size { min: 0, max: 1 << 40 }, "64KiB", Scope::Agreed),
        option(
            "time",
            OptionKind::Duration { min: Duration::ZERO, max: Duration::from_secs(1000) },
            "2ms",
            Scope::Agreed,
        ),
        option("flag", OptionKind::Flag, "no", Scope::Agreed),
    ],
    ..PLAIN
};
static RUN: TestPair = TestPair {
    name: "run",
    options: &[
        option("niceness", OptionKind::Integer { min: 0, max: 9 }, "1", Scope::Agreed),
        option("command", OptionKind::Text { max: 99 }, "true", Scope::Local),
    ],
    ..PLAIN
};
static PICTURES: TestPair = TestPair { name: "pictures", takes: Some(Format::Video), ..PLAIN };
static ASIDE: TestPair = TestPair { name: "aside", side_ports: &["boxes"], ..PLAIN };
static MEET: TestPair = TestPair { name: "meet", shape: Shape::Joint, ..PLAIN };
static DIVIDE: TestPair = TestPair { name: "divide", shape: Shape::Fan(2), ..PLAIN };

static TABLE: &[&dyn Pair] =
    &[&NULL, &LETTER, &HOLD, &GATE, &EVERYTHING, &RUN, &PICTURES, &ASIDE, &MEET, &DIVIDE];

struct Letter {
    letter: u8,
    half: Half,
}

impl Stage for Letter {
    fn handle(&mut self, port: Port, mut message: Message, _: Time, out: &mut Outbox) -> StageResult {
        match self.half {
            Half::Source => message.body.push_front(&[self.letter]),
            Half::Sink => match message.body.take_front() {
                Some([letter]) if letter == self.letter => out.send(Port(1), message.clone()),
                other => return Err(StageError::Input(format!("{other:?}"))),
            },
        }
        out.send(port, message);
        Ok(())
    }
    fn handle_gap(&mut self, _: Port, _: Time, out: &mut Outbox) -> StageResult {
        out.control(vec![self.letter]);
        Ok(())
    }
    fn report(&self) -> Vec<Report> {
        vec![("letter", self.letter.into())]
    }
}

struct Hold {
    count: usize,
    wait: Duration,
    held: Vec<Message>,
    due: Option<Time>,
}

impl Hold {
    fn give(&mut self, out: &mut Outbox) {
        self.due = None;
        self.held.drain(..).for_each(|message| out.send(Port::MAIN, message));
    }
}

impl Stage for Hold {
    fn handle(&mut self, _: Port, message: Message, now: Time, out: &mut Outbox) -> StageResult {
        if message.body.is_empty() {
            out.drop_counted("empty", 1);
            return Ok(());
        }
        self.due.get_or_insert(now.after(self.wait));
        self.held.push(message);
        if self.held.len() == self.count {
            self.give(out);
        }
        Ok(())
    }
    fn handle_end(&mut self, _: Port, _: Time, out: &mut Outbox) -> StageResult {
        self.give(out);
        Ok(())
    }
    fn poll_timeout(&self) -> Option<Time> {
        self.due
    }
    fn held(&self) -> usize {
        self.held.len()
    }
    fn handle_timeout(&mut self, _: Time, out: &mut Outbox) -> StageResult {
        self.give(out);
        Ok(())
    }
}

struct Gate {
    open: u32,
}

impl Stage for Gate {
    fn handle(&mut self, port: Port, message: Message, _: Time, out: &mut Outbox) -> StageResult {
        self.open = self.open.saturating_sub(1);
        out.send(port, message);
        Ok(())
    }
    fn handle_control(&mut self, _: &[u8], _: Time, _: &mut Outbox) -> StageResult {
        self.open += 1;
        Ok(())
    }
    fn has_room(&self) -> bool {
        self.open > 0
    }
}

fn local(text: &str) -> Pipeline {
    Pipeline::parse(text, TABLE, Origin::Local).unwrap()
}

fn refused(text: &str, origin: Origin) -> (String, String) {
    let error = Pipeline::parse(text, TABLE, origin).unwrap_err();
    (error.problem.clone(), error.text[error.place].into())
}

fn direct(used: &PairUse, half: Half, format: &Format) -> StageResult<Box<dyn Link>> {
    let stage = used.pair.half(half, &used.options, format, &Site::default())?;
    Ok(Box::new(links::Direct::new(stage)))
}

fn source(text: &str) -> Chain {
    Chain::source(&local(text), &Format::Evdev, &mut direct).unwrap()
}

fn sink(text: &str) -> Chain {
    Chain::sink(&local(text), &Format::Evdev, &mut direct).unwrap()
}

/// Returns true if the caller of the chain has nothing to drain.
fn is_empty(out: &ChainOut) -> bool {
    out.messages.is_empty()
        && out.controls.is_empty()
        && out.drops.is_empty()
        && out.sides.is_empty()
        && out.errors.is_empty()
}

fn message(text: &str) -> Message {
    Message::new(Time(1), text.as_bytes().to_vec())
}

fn texts(out: &mut ChainOut) -> Vec<String> {
    out.messages.drain(..).map(|m| String::from_utf8(m.body.into_bytes().to_vec()).unwrap()).collect()
}

#[test]
fn canonical_text_has_all_defaults_and_no_local_options() {
    for (text, canonical) in [
        ("", ""),
        ("  ", ""),
        ("null", "null/1"),
        (" null|null ( ) ".replace(" ( ", "(").as_str(), "null/1|null/1"),
        ("@direct letter", "letter/3(high=1,letter=a,low=-1)"),
        ("letter(b,low=-3)", "letter/3(high=1,letter=b,low=-3)"),
        ("letter/3( high = 2 , letter = \"c\" )", "letter/3(high=2,letter=c,low=-1)"),
        ("run(command=\"rm -rf /\")", "run/1(niceness=1)"),
        (
            "everything(chunk(64KiB, \"(\"), share=0.5%)",
            "everything/1(flag=false,number=0.5,share=0.005,size=64KiB,\
             text=\"chunk(64KiB, \\\"(\\\")\",time=2ms)",
        ),
    ] {
        let pipeline = local(text);
        assert_eq!(pipeline.canonical(), canonical, "{text}");
        assert_eq!(local(canonical), pipeline);
    }
}

#[test]
fn errors_name_the_problem_and_the_place() {
    for (text, place, problem) in [
        ("null | lettr", "lettr", "did you mean `letter`"),
        ("teleport", "teleport", "there is: null, letter"),
        ("letter(lettre=b)", "lettre", "did you mean `letter`"),
        ("letter(d)", "d", "one of a, b, c"),
        ("letter(b, 3)", "3", "only the first option"),
        ("letter(low=-10)", "-10", "from -9 to 9"),
        ("letter(low=1,low=2)", "low", "given twice"),
        ("letter(a,letter=b)", "letter", "given twice"),
        ("null | letter(low=5)", "letter", "`low` is above `high`"),
        ("letter/2", "2", "version 3, not 2"),
        ("letter/99999", "99999", "no pair has such a version"),
        ("null(3)", "3", "has no options"),
        ("@pip null", "pip", "no link by this name; did you mean `pipe`"),
        ("@rope: null", "rope", "no link by this name"),
        ("| null", "|", "a pair's name"),
        ("null |", "", "a pair's name"),
        ("null null", "n", "`|` before the next pair"),
        ("null (", "(", "directly, once"),
        ("null | ./a.py -r 3 | null", ".", "write `exec(\"./a.py -r 3\")`"),
        ("letter:b | null", ":", "write `letter(b)`"),
        ("letter:./a.py -r", ":", "write `letter(\"./a.py -r\")`"),
        ("letter(a", "(", "never closed"),
        ("letter(a b)", "b", "`,` or `)`"),
        ("letter(\"a", "\"", "never closed"),
        ("letter(\"\\n\")", "n", "after `\\`"),
        ("everything(f(g(x)", "(", "never closed"),
        ("everything(a(b(c(d(e()))))", "(", "at most 4 deep"),
        ("letter)", ")", "`|` before the next pair"),
        ("null\u{1b}[2J", "\u{1b}", "control character"),
        ("letter(l@w=3)", "l@w", "not a name of an option"),
    ] {
        let (said, at) = refused(text, Origin::Local);
        assert!(said.contains(problem), "{text}: {said}");
        assert_eq!(at, place, "{text}: {said}");
    }
}

#[test]
fn a_pair_that_needs_more_than_one_port_is_not_isolated() {
    for origin in [Origin::Local, Origin::Peer] {
        for (text, says) in
            [("aside(isolate=true)", "its side port `boxes`"), ("meet(isolate=true)", "one input")]
        {
            let error = Pipeline::parse(text, TABLE, origin).unwrap_err();
            assert!(error.problem.contains("cannot be isolated") && error.problem.contains(says), "{error}");
        }
    }
    for text in ["aside | meet", "aside(isolate=false)"] {
        assert!(Pipeline::parse(text, TABLE, Origin::Local).is_ok(), "{text}");
    }
    // In a pipeline of one flow, all its outputs lead into the next pair.
    let divided = local("divide(isolate=true) | null");
    let error = divided.outermost_fan().err().unwrap();
    assert!(error.problem.contains("`divide` cannot be isolated"), "{error}");
    assert!(local("divide | null(isolate=true)").outermost_fan().unwrap().is_some());
}

#[test]
fn sizes_are_bounded() {
    let pairs = |count: usize| vec!["null"; count].join("|");
    assert_eq!(local(&pairs(PAIRS_MAX)).pairs().len(), PAIRS_MAX);
    assert!(refused(&pairs(PAIRS_MAX + 1), Origin::Local).0.contains("at most 32 pairs"));
    let options = vec!["low=1"; OPTIONS_MAX + 1].join(",");
    assert!(refused(&format!("letter({options})"), Origin::Local).0.contains("at most 32 options"));
    assert!(refused(&"é".repeat(2049), Origin::Local).0.contains("at most 4096"));
    let long = format!("everything(\"{}\")", "x ".repeat(100));
    let (said, _) = refused(&vec![long; 18].join("|"), Origin::Local);
    assert!(said.contains("be proposed"), "{said}");
}

#[test]
fn a_peer_chooses_no_link_and_names_nothing_local() {
    assert!(Pipeline::parse("letter(b) | hold", TABLE, Origin::Peer).is_ok());
    assert!(Pipeline::parse("null | run", TABLE, Origin::Peer).is_ok());
    let (said, at) = refused("null | run(command=true)", Origin::Peer);
    assert!(
        said.contains("only a host itself may set `command`") && at.starts_with("command"),
        "{said} at {at}"
    );
    assert_eq!(refused("@direct null", Origin::Peer).1, "direct");
    assert_eq!(refused("@shm: null", Origin::Peer).1, "shm");
}

#[test]
fn messages_bypass_idle_stages_and_other_inputs_do_not() {
    let mut chain = source("null | letter(b) | null | hold(count=2) | null");
    let mut out = ChainOut::default();
    chain.handle(message("x"), Time(0), &mut out);
    assert!(is_empty(&out));
    chain.handle(message("y"), Time(0), &mut out);
    assert_eq!(texts(&mut out), ["bx", "by"]);
    chain.handle_control(0, b"?", Time(0), &mut out);
    assert_eq!(out.errors.len(), 1, "it still answers for itself");
    assert_eq!(chain.report().len(), 5);
}

#[test]
fn links_are_chosen_for_one_pair_or_for_all_and_do_not_travel() {
    let kinds = |text: &str| {
        let kind = |used: &PairUse| used.link_of(Half::Source);
        local(text).pairs().iter().map(kind).collect::<Vec<_>>()
    };
    use LinkKind::{Direct, Pipe, Shm};
    assert_eq!(kinds("null | @shm null | @pipe null | @direct null"), [Direct, Shm, Pipe, Direct]);
    assert_eq!(kinds(" @shm : null | @direct null | letter"), [Shm, Direct, Shm]);
    assert_eq!(kinds("@pipe:"), []);
    assert_eq!(kinds("null(isolate=true) | @pipe null(isolate=true)"), [Shm, Pipe]);
    assert_eq!(
        kinds("@direct: null(isolate=true)"),
        [Shm],
        "a link for all pairs applies only where it fits"
    );
    assert_eq!(refused("@direct null(isolate=true)", Origin::Local).1, "direct");
    let slots = |text: &str| local(text).pairs()[0].running.slots;
    assert_eq!((slots("@shm null(slots=3)"), slots("@shm null")), (Some(3), None));
    assert_eq!(local("@shm null(latency=2ms)").pairs()[0].running.latency, Some(Duration::from_millis(2)));
    assert!(refused("@shm null(slots=0)", Origin::Local).0.contains("slots"));
    assert!(refused("null(slots=3)", Origin::Peer).0.contains("only a host itself"));
    assert_eq!(
        local("@shm: null(slots=3) | @pipe letter"),
        local("null | letter"),
        "the other host sees no link"
    );
}

#[test]
fn a_requirement_accepts_only_an_equal_pipeline() {
    let own = local("letter(b) | run(command=\"own\")");
    let required = Requirement::new(own.clone());
    let accepted = required.accept("letter(low=-1, letter=b)|run/1", TABLE).unwrap();
    assert_eq!(accepted.pairs()[1].options.text("command"), "own");
    for (proposal, place) in [
        ("letter(c) | run", "letter"),
        ("letter(b) | run(niceness=2)", "run"),
        ("letter(b)", ""),
        ("letter(b) | run | null", "null"),
        ("letter(b) | run(command=\"evil\")", "command"),
    ] {
        let error = required.accept(proposal, TABLE).unwrap_err();
        assert_eq!(&error.text[error.place.clone()], place, "{error}");
    }
    assert!(Requirement::new(Pipeline::default()).accept("null", TABLE).is_err());
    assert!(Requirement::new(Pipeline::default()).accept("run", TABLE).is_err());
    assert!(Requirement::new(Pipeline::default()).accept(" ", TABLE).is_ok());
}

#[test]
fn a_format_mismatch_names_both_pairs() {
    assert_eq!(local("null|letter").check(&Format::Video), Ok(Format::Bytes));
    assert_eq!(local("").check(&Format::Video), Ok(Format::Video));
    assert_eq!(local("pictures").check(&Format::Video), Ok(Format::Video));
    let error = local("letter | pictures").check(&Format::Video).unwrap_err();
    let problem = "`letter` makes bytes, which `pictures` cannot take: it takes only video";
    assert_eq!((error.problem.as_str(), &error.text[error.place.clone()]), (problem, "pictures"));
    let error = local("pictures").check(&Format::Audio).unwrap_err();
    assert_eq!(error.problem, "the flow is audio, which `pictures` cannot take: it takes only video");
    assert!(Chain::source(&local("pictures"), &Format::Audio, &mut direct).is_err());
}

#[test]
fn promises_add_up() {
    assert_eq!(local("null | null").promises(), NO_PROMISES);
    let all = local("letter | hold | gate").promises();
    assert_eq!(all, Promises { may_delay: true, may_drop: true, needs_control: true, ..NO_PROMISES });
}

#[test]
fn halves_nest_and_undo_each_other() {
    let text = "letter(a) | letter(b) | letter(c)";
    let (mut source, mut sink) = (source(text), sink(text));
    let mut out = ChainOut::default();
    source.handle(message("-"), Time(0), &mut out);
    let crossing = out.messages.pop_front().unwrap();
    assert_eq!(crossing.body.clone().into_bytes(), "cba-");
    sink.handle(crossing, Time(0), &mut out);
    assert_eq!(texts(&mut out), ["-"]);
    let sides: Vec<_> = out.sides.drain(..).map(|side| (side.pair, side.port.0)).collect();
    assert_eq!(sides, [(2, 1), (1, 1), (0, 1)]);
    assert!(is_empty(&out));
}

#[test]
fn a_refused_message_is_counted_by_name() {
    let mut chain = sink("letter(a) | letter(b)");
    let mut out = ChainOut::default();
    chain.handle(message("bX"), Time(0), &mut out);
    assert_eq!(out.drops, [NamedDrop { pair: 0, name: "letter", reason: REFUSED, count: 1, is_loss: true }]);
    assert_eq!((out.errors[0].pair, out.errors[0].name), (0, "letter"));
    assert!(out.messages.is_empty());
}

#[test]
fn drops_gaps_and_controls_carry_their_pair() {
    let mut chain = sink("hold | letter(c) | letter(b)");
    let mut out = ChainOut::default();
    chain.handle_gap(Time(0), &mut out);
    assert_eq!(out.controls, [(2, b"b".to_vec()), (1, b"c".to_vec())]);
    chain.handle_control(9, b"?", Time(0), &mut out);
    chain.handle_control(1, b"?", Time(0), &mut out);
    assert_eq!(out.errors.iter().map(|e| (e.pair, e.name)).collect::<Vec<_>>(), [(9, ""), (1, "letter")]);
    let mut out = ChainOut::default();
    source("null | hold").handle(message(""), Time(0), &mut out);
    assert_eq!(out.drops, [NamedDrop { pair: 1, name: "hold", reason: "empty", count: 1, is_loss: false }]);
}

#[test]
fn times_are_the_stages_own() {
    let mut chain = source("hold(count=9,wait=7ms) | hold(count=9,wait=2ms)");
    let mut out = ChainOut::default();
    assert_eq!(chain.poll_timeout(), None);
    chain.handle(message("m"), Time::from_millis(1), &mut out);
    assert_eq!(chain.poll_timeout(), Some(Time::from_millis(8)));
    chain.handle_timeout(Time::from_millis(7), &mut out);
    assert!(is_empty(&out));
    chain.handle_timeout(Time::from_millis(8), &mut out);
    assert_eq!(chain.poll_timeout(), Some(Time::from_millis(10)));
    chain.handle_timeout(Time::from_millis(10), &mut out);
    assert_eq!(texts(&mut out), ["m"]);
    assert_eq!(chain.poll_timeout(), None);
}

#[test]
fn the_end_flushes_stage_by_stage() {
    let mut chain = source("hold(count=3) | hold(count=4) | letter(b) | gate");
    let mut out = ChainOut::default();
    ["1", "2", "3", "4"].into_iter().for_each(|text| chain.handle(message(text), Time(0), &mut out));
    assert!(is_empty(&out));
    assert_eq!(chain.held(), 4, "one in the first stage, three in the second");
    chain.handle_end(Time(0), &mut out);
    assert_eq!(chain.held(), 0);
    assert_eq!(texts(&mut out), ["b1", "b2", "b3", "b4"]);
    assert!(chain.has_room() && is_empty(&out));
}

#[test]
fn a_full_stage_stops_the_chain_and_loses_nothing() {
    let mut chain = source("hold(count=3) | gate | letter(c)");
    let mut out = ChainOut::default();
    ["1", "2", "3"].into_iter().for_each(|text| chain.handle(message(text), Time(0), &mut out));
    assert!(!chain.has_room() && is_empty(&out));
    assert_eq!(chain.held(), 3, "in front of the gate");
    chain.handle_gap(Time(0), &mut out);
    for expected in ["c1", "c2"] {
        chain.handle_control(1, b"", Time(0), &mut out);
        assert_eq!(texts(&mut out), [expected]);
        assert!(!chain.has_room() && out.controls.is_empty());
    }
    chain.handle_control(1, b"", Time(0), &mut out);
    assert_eq!(texts(&mut out), ["c3"]);
    chain.handle_control(1, b"", Time(0), &mut out);
    assert_eq!(out.controls, [(2, b"c".to_vec())], "the gap kept its place behind the messages");
    assert!(chain.has_room());
}

#[test]
fn reports_are_in_source_order() {
    let reports = sink("letter(a) | letter(c)").report();
    let letters: Vec<_> = reports.iter().map(|r| (r.pair, r.name, r.figures[0].1 as u8)).collect();
    assert_eq!(letters, [(0, "letter", b'a'), (1, "letter", b'c')]);
}

/// A link that retains its output until it is collected, like one to another process.
struct Later(std::collections::VecDeque<Message>);

impl Link for Later {
    fn hand(&mut self, input: Input<'_>, _: Time, _: &mut Outbox) -> StageResult {
        if let Input::Message(_, message) = input {
            self.0.push_back(message);
        }
        Ok(())
    }
    fn collect(&mut self, _: Time, out: &mut Outbox) -> StageResult {
        self.0.drain(..).for_each(|message| out.send(Port::MAIN, message));
        Ok(())
    }
    fn readiness(&self) -> Readiness<'_> {
        if self.0.is_empty() { Readiness::never() } else { Readiness::now() }
    }
    fn poll_timeout(&self) -> Option<Time> {
        None
    }
    fn has_room(&self) -> bool {
        true
    }
    fn report(&self) -> Vec<Report> {
        Vec::new()
    }
}

#[test]
fn output_of_slow_links_is_collected() {
    let mut make = |used: &PairUse, half, format: &Format| -> StageResult<Box<dyn Link>> {
        match used.pair.name() {
            "null" => Ok(Box::new(Later(Default::default()))),
            _ => direct(used, half, format),
        }
    };
    let mut chain = Chain::source(&local("null | letter"), &Format::Evdev, &mut make).unwrap();
    let mut out = ChainOut::default();
    chain.handle(message("-"), Time(0), &mut out);
    assert!(is_empty(&out) && chain.readiness().any(|readiness| readiness.now));
    chain.collect(Time(0), &mut out);
    assert_eq!(texts(&mut out), ["a-"]);
    assert!(!chain.readiness().any(|readiness| readiness.now));
}

fn any_use() -> impl Strategy<Value = String> {
    let quoted = "[ -~é]{0,20}".prop_map(|text| {
        let mut quoted = String::new();
        crate::syntax::quote(&text, &mut quoted);
        quoted
    });
    prop_oneof![
        Just("null".to_string()),
        Just("@direct gate".to_string()),
        ("[abc]", -9i64..=0, 0i64..=9).prop_map(|(a, b, c)| format!("letter({a}, low={b}, high={c})")),
        (quoted, any::<f64>(), 0u64..1 << 40, 0u64..1_000_000_000_000, any::<bool>()).prop_map(
            |(text, number, size, time, flag)| {
                let number = (number % 1e9 + 0.0).clamp(-1e9, 1e9);
                let number = if number.is_nan() { 0.0 } else { number };
                let share = (number / 1e9).abs();
                format!(
                    "everything({text}, number={number}, share={share}, size={size}, time={time}ns, \
                     flag={flag})"
                )
            }
        ),
        (0i64..9, "[a-z /]{0,9}").prop_map(|(n, c)| format!("run(niceness={n}, command=\"{c}\")")),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, ..ProptestConfig::default() })]

    #[test]
    fn canonical_text_parses_as_the_same_pipeline(uses in prop::collection::vec(any_use(), 0..9)) {
        let text = uses.join(" | ");
        prop_assume!(text.len() <= wire::control::PIPELINE_BYTES_MAX);
        let Ok(pipeline) = Pipeline::parse(&text, TABLE, Origin::Local) else {
            // Only the limit of the canonical text can refuse these.
            prop_assert!(refused(&text, Origin::Local).0.contains("be proposed"), "{text}");
            return Ok(());
        };
        let again = local(pipeline.canonical());
        prop_assert_eq!(again.canonical(), pipeline.canonical());
        for (a, b) in again.pairs().iter().zip(pipeline.pairs()) {
            prop_assert_eq!(a.pair.name(), b.pair.name());
            for (name, value) in a.options.iter().filter(|(name, _)| *name != "command") {
                prop_assert_eq!(Some(value), b.options.value(name));
            }
        }
    }

    #[test]
    fn any_text_is_parsed_or_refused_with_a_place(text in "([-a-z0-9|,()=@/\"\\\\ é\n]|letter|everything){0,60}") {
        for origin in [Origin::Local, Origin::Peer] {
            if let Err(error) = Pipeline::parse(&text, TABLE, origin) {
                prop_assert!(error.text.get(error.place.clone()).is_some());
                prop_assert!(!error.to_string().is_empty());
            }
        }
    }

    #[test]
    fn any_characters_are_parsed_or_refused(text in any::<String>()) {
        if let Err(error) = Pipeline::parse(&text, TABLE, Origin::Peer) {
            prop_assert!(!error.to_string().chars().any(|c| c.is_control() && c != '\n'));
        }
    }
}
