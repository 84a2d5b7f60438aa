use super::codec::{Begin, CodecError};
use super::command::{emit_command, parse_command};
use super::line::Line;
use super::report::{REPORT_BYTES_MAX, emit_report, next_report, parse_report};
use super::{Command, DriverPlan, Report};
use bytes::BytesMut;
use contract::{FlowClass, FlowDirection, Format, Half, Offset, Port, Role, SealKeys, Secret, Site, Time};
use flow::stats::{DriverStats, FlowStats, STATS_JSON_BYTES_MAX};
use flow::trace::FlowTrace;
use flow::types::{FlowPlan, LinkFacts, Notice};
use hub::endpoint::FarEnd;
use hub::{OpenPort, PartnerOrigin};
use modules::TransportPlan;
use modules::registry;
use pipeline::{Origin, Pipeline, Point, Stamp};
use proptest::prelude::*;
use session::{Limits, Rates, StoreFull};
use std::fmt;
use std::num::NonZeroU32;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::time::Duration;
use wire::{Control, FlowControl, Writer};

/// A failing case shows its bytes instead.
impl fmt::Debug for Command {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Command")
    }
}

fn descriptor() -> OwnedFd {
    UnixStream::pair().unwrap().0.into()
}

fn pipeline(text: &str) -> Pipeline {
    Pipeline::parse(text, registry::pairs(), Origin::Local).unwrap()
}

fn pipelines() -> impl Strategy<Value = Pipeline> {
    let texts =
        ["", "bundle(count=10) | compress(zstd, level=3)", "delta", "@direct: buffer(play, delay=40ms)"];
    (prop::sample::select(texts.to_vec()), any::<bool>()).prop_map(|(text, is_joined)| {
        let mut pipeline = pipeline(text);
        if is_joined {
            pipeline.leave_first_to_junction();
        }
        pipeline
    })
}

fn directions() -> impl Strategy<Value = FlowDirection> {
    prop::sample::select(vec![FlowDirection::DeviceToApplication, FlowDirection::ApplicationToDevice])
}

fn plans() -> impl Strategy<Value = Vec<FlowPlan>> {
    let classes = [FlowClass::Reliable, FlowClass::Timely, FlowClass::State];
    let plan = (
        any::<u32>(),
        directions(),
        prop::sample::select(classes.to_vec()),
        pipelines(),
        prop::collection::vec(pipelines(), 0..3),
        any::<Option<[u8; 32]>>(),
    );
    let plan = plan.prop_map(|(flow, direction, class, pipeline, requested, key)| {
        let site = Site { key: key.map(Secret), ..Site::default() };
        FlowPlan { flow, direction, class, format: Format::Evdev, pipeline, requested, site }
    });
    prop::collection::vec(plan, 0..=2)
}

/// Devices of every class that opens on any machine, and ways to junctions.
fn origins() -> impl Strategy<Value = PartnerOrigin> {
    let specs = ["pattern:size=1000,rate=62.5", "null", "stdin:frame=line"];
    let opened = prop::sample::select(specs.to_vec()).prop_map(|text| {
        let spec = registry::device_spec(text, Role::Device).unwrap();
        PartnerOrigin::Opened(Box::new(registry::open(&spec, Role::Device, None).unwrap()))
    });
    let way = any::<u32>().prop_map(|capacity| {
        PartnerOrigin::Hub(FarEnd { memory: descriptor(), wakeup: descriptor(), capacity })
    });
    prop_oneof![opened, way]
}

/// Targets of a side port.
fn ports() -> impl Strategy<Value = PartnerOrigin> {
    prop::sample::select(vec!["file:/dev/null,frame=container", "null"]).prop_map(|text| {
        let spec = registry::device_spec(text, Role::Application).unwrap();
        PartnerOrigin::Opened(Box::new(registry::open(&spec, Role::Application, None).unwrap()))
    })
}

fn messages() -> impl Strategy<Value = FlowControl> {
    prop_oneof![
        (any::<u32>(), any::<u64>()).prop_map(|(epoch, next)| FlowControl::Acknowledge { epoch, next }),
        (any::<u32>(), any::<(u32, u64)>(), any::<bool>())
            .prop_map(|(epoch, prev, continues)| FlowControl::Epoch { epoch, prev, continues }),
        (any::<u16>(), any::<Vec<u8>>()).prop_map(|(pair, body)| FlowControl::Pair { epoch: 1, pair, body }),
    ]
}

fn commands() -> impl Strategy<Value = Command> {
    let driver = any::<u32>;
    prop_oneof![
        (driver(), origins(), plans()).prop_map(|(driver, origin, flows)| {
            let transport = TransportPlan::defaults("tcp").unwrap();
            let plan = DriverPlan { role: Role::Device, flows, transport };
            Command::Add { driver, origin, plan }
        }),
        driver().prop_map(|driver| Command::Memory { driver, memory: descriptor() }),
        (driver(), prop::collection::vec((any::<u16>(), ports()), 0..3)).prop_map(|(driver, ports)| {
            let port = |(port, origin)| OpenPort { pair: "record", port: Port(port), origin };
            Command::Ports { driver, ports: ports.into_iter().map(port).collect() }
        }),
        (driver(), plans()).prop_map(|(driver, flows)| Command::Rebuild { driver, flows }),
        (driver(), any::<bool>(), any::<Option<([u8; 32], [u8; 32])>>()).prop_map(|(driver, other, keys)| {
            let keys = keys.map(|(a, b)| SealKeys { sending: Secret(a), receiving: Secret(b) });
            let transport = other.then(|| TransportPlan::defaults("quic").unwrap());
            Command::Link { driver, transport, socket: descriptor(), keys }
        }),
        driver().prop_map(|driver| Command::Move { driver, socket: descriptor() }),
        (driver(), any::<bool>(), ".*").prop_map(|(driver, is_ok, problem)| {
            let result = if is_ok { Ok(descriptor()) } else { Err(problem) };
            Command::Connected { driver, result }
        }),
        (driver(), any::<Option<([u8; 32], [u8; 32])>>()).prop_map(|(driver, keys)| {
            let keys = keys.map(|(a, b)| SealKeys { sending: Secret(a), receiving: Secret(b) });
            Command::AddWay { driver, socket: descriptor(), keys }
        }),
        prop_oneof![
            driver().prop_map(|driver| Command::Unlink { driver }),
            Just(0).prop_map(|_| Command::LinksLost),
            Just(0).prop_map(|_| Command::Silence),
            Just(0).prop_map(|_| Command::SilenceEnded),
            Just(0).prop_map(|_| Command::Stats),
            Just(0).prop_map(|_| Command::Stop),
        ],
        (any::<i64>(), any::<u32>()).prop_map(|(offset, us)| {
            let round_trip = Duration::from_micros(us.into());
            Command::Facts(LinkFacts { offset: Offset(offset), round_trip })
        }),
        (any::<u32>(), messages()).prop_map(|(flow, message)| Command::Flow { flow, message }),
        (driver(), directions(), pipelines()).prop_map(|(driver, direction, pipeline)| Command::Change {
            driver,
            direction,
            pipeline
        }),
        (driver(), any::<u32>(), any::<u32>(), pipelines())
            .prop_map(|(driver, flow, epoch, pipeline)| Command::Prepare { driver, flow, epoch, pipeline }),
        driver().prop_map(|driver| Command::Absence { driver }),
        driver().prop_map(|driver| Command::AbsenceEnded { driver }),
        driver().prop_map(|driver| Command::Resync { driver }),
        (driver(), origins()).prop_map(|(driver, origin)| Command::Partner { driver, origin }),
        (driver(), any::<u64>(), ".*").prop_map(|(driver, visitor, words)| Command::Say {
            driver,
            visitor,
            words
        }),
        driver().prop_map(|driver| Command::Remove { driver }),
        (driver(), any::<u32>())
            .prop_map(|(driver, one_in)| Command::Trace { driver, one_in: NonZeroU32::new(one_in) }),
    ]
}

fn reports() -> impl Strategy<Value = Report> {
    let notices = |driver: u32| {
        let flow = driver * 2;
        prop_oneof![
            messages().prop_map(move |message| Notice::Flow { flow, message }),
            ".*".prop_map(Notice::PartnerGone),
            Just(0).prop_map(|_| Notice::PartnerReturned),
            ".*".prop_map(Notice::PartnerAbsent),
            Just(0).prop_map(|_| Notice::PartnerPresent),
            ".*".prop_map(Notice::LinkFailed),
            Just(0).prop_map(|_| Notice::LinkHeldBack),
            (1u32..=128).prop_map(Notice::WaysWanted),
            (1u32..=128).prop_map(Notice::ConnectionsWanted),
            (directions(), prop::result::maybe_ok(".*", ".*"))
                .prop_map(|(direction, result)| Notice::Changed { direction, result }),
            directions().prop_map(Notice::FlowEnded),
            (directions(), any::<u64>())
                .prop_map(|(direction, messages)| Notice::Missed { direction, messages }),
            ".*".prop_map(Notice::Incident),
            (".*", any::<u64>()).prop_map(|(reason, messages)| Notice::Lost { reason, messages }),
            prop::sample::select(vec![StoreFull::Block, StoreFull::DropOldest, StoreFull::Close])
                .prop_map(Notice::StoreFull),
            ".*".prop_map(Notice::Failed),
        ]
    };
    prop_oneof![
        (0u32..1000).prop_flat_map(move |driver| {
            notices(driver).prop_map(move |notice| Report::Notice { driver, notice })
        }),
        (any::<u64>(), prop::result::maybe_ok(".*", ".*"))
            .prop_map(|(visitor, result)| Report::Said { visitor, result }),
        any::<u32>().prop_map(|driver| Report::Stats { driver, stats: Default::default() }),
        any::<u32>().prop_map(|driver| Report::Trace { driver, flows: Vec::new() }),
        any::<u64>().prop_map(|at| Report::Received(Time(at))),
        any::<bool>().prop_map(Report::Holds),
        ".*".prop_map(Report::Warning),
        "[a-z_]{1,20}".prop_map(Report::Refused),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn a_command_crosses_whole_with_its_descriptors(command in commands()) {
        let (bytes, given) = emit_command(command).ok().unwrap();
        let count = given.len();
        let again = parse_command(&bytes, given).unwrap();
        let (bytes_again, given_again) = emit_command(again).ok().unwrap();
        prop_assert_eq!((&bytes_again, given_again.len()), (&bytes, count));
        prop_assert!(count == 0 || parse_command(&bytes, Vec::new()).is_err(), "without its descriptors");
        prop_assert!((0..bytes.len()).all(|end| parse_command(&bytes[..end], (0..9).map(|_| descriptor()).collect()).is_err()));
    }

    #[test]
    fn a_report_crosses_whole(report in reports()) {
        let bytes = emit_report(&report);
        prop_assert_eq!(emit_report(&parse_report(&bytes).unwrap()), bytes);
    }

    #[test]
    fn no_bytes_of_a_worker_harm_its_broker(mut bytes in prop_oneof![
        any::<Vec<u8>>(),
        reports().prop_map(|report| emit_report(&report)),
    ], at in any::<prop::sample::Index>(), value in any::<u8>()) {
        if !bytes.is_empty() {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        let _ = parse_report(&bytes);
        let _ = parse_command(&bytes, Vec::new());
        let _ = Begin::parse(&bytes);
    }

    #[test]
    fn frames_cross_a_line_however_they_are_cut(frames in prop::collection::vec((prop::collection::vec(any::<u8>(), 0..200_000), 0usize..4), 1..8)) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let (mut ours, mut theirs) = (Line::new(ours.into(), false).unwrap(), Line::new(theirs.into(), true).unwrap());
        for (bytes, count) in &frames {
            prop_assert!(ours.put(bytes, (0..*count).map(|_| descriptor()).collect()));
        }
        for (bytes, count) in &frames {
            let (came, given) = loop {
                ours.flush().unwrap();
                theirs.receive();
                if let Some(frame) = theirs.next().unwrap() {
                    break frame;
                }
            };
            prop_assert_eq!((&came[..], given.len()), (&bytes[..], *count));
        }
        drop(ours);
        theirs.receive();
        prop_assert!(theirs.next().unwrap().is_none() && theirs.has_ended());
    }
}

#[test]
fn a_worker_sends_for_its_own_flows_only() {
    let report = |driver, flow, message| {
        emit_report(&Report::Notice { driver, notice: Notice::Flow { flow, message } })
    };
    let acknowledge = || FlowControl::Acknowledge { epoch: 1, next: 1 };
    assert!(parse_report(&report(3, 7, acknowledge())).is_ok());
    assert!(parse_report(&report(2, 7, acknowledge())).is_err(), "a flow of another driver");
    let propose = FlowControl::Propose { pipeline: String::new() };
    assert!(parse_report(&report(3, 7, propose)).is_err(), "only a broker proposes");

    // The frame of an acknowledgement, at the end of the report behind its length, gives way to another one.
    let whole = report(3, 7, acknowledge());
    let frame = Control::Flow { flow: 7, message: acknowledge() }.emit();
    let head = whole.strip_suffix(&frame[..]).unwrap();
    let with = |frame: Vec<u8>| {
        let length = (frame.len() as u32).to_le_bytes();
        [&head[..head.len() - length.len()], &length, &frame].concat()
    };
    assert_eq!(with(frame.clone()), whole);
    for message in
        [Control::Close { driver: 3, reason: String::new() }, Control::Goodbye { reason: String::new() }]
    {
        assert!(parse_report(&with(message.emit())).is_err(), "only a broker sends {message:?}");
    }
}

#[test]
fn statistics_and_stamps_are_bounded() {
    let made = |flow, drops: u32, bytes: usize| {
        let drops = (0..drops).map(|reason| (reason.to_string(), 1)).collect();
        let flow = FlowStats { flow, drops, pipeline: "x".repeat(bytes), ..FlowStats::default() };
        DriverStats { outgoing: Some(flow), ..DriverStats::default() }
    };
    // An honest worker omits lists above their limits, so these bytes are those of another one.
    let with_json = |json: Vec<u8>| {
        let mut w = Writer::new();
        w.u8(2).u32(3).blob(&json);
        parse_report(&w.finish())
    };
    let stats = |flow, drops, bytes| with_json(serde_json::to_vec(&made(flow, drops, bytes)).unwrap());
    assert!(stats(7, 1024, 64 << 10).is_ok());
    assert!(stats(5, 1, 1).is_err(), "a flow of another driver");
    assert!(stats(7, 1025, 1).is_err(), "too many reasons");
    assert!(stats(7, 1, (64 << 10) + 1).is_err(), "a long text");
    // Spaces are valid JSON, so only their number is wrong.
    let padded = |bytes: usize| {
        let mut json = serde_json::to_vec(&made(7, 1, 1)).unwrap();
        json.resize(bytes, b' ');
        with_json(json)
    };
    assert!(padded(STATS_JSON_BYTES_MAX).is_ok());
    assert!(
        matches!(padded(STATS_JSON_BYTES_MAX + 1), Err(CodecError::Wire(_))),
        "refused before it is parsed"
    );
    let report = Report::Stats { driver: 3, stats: Box::new(made(7, 1025, 1)) };
    match parse_report(&emit_report(&report)).unwrap() {
        Report::Stats { stats, .. } => assert!(stats.outgoing.unwrap().drops.is_empty(), "an honest worker"),
        other => panic!("{other:?}"),
    }

    let traces = |count, flow, stamps| {
        let plan = FlowPlan {
            flow,
            direction: FlowDirection::DeviceToApplication,
            class: FlowClass::Reliable,
            format: Format::Bytes,
            pipeline: pipeline("compress"),
            requested: Vec::new(),
            site: Site::default(),
        };
        let mut trace = flow::trace::begin(NonZeroU32::MIN);
        let mut flow = FlowTrace::new(&plan, Half::Source, &mut trace);
        let stamp = Stamp {
            at_ns: u64::MAX,
            mark: u32::MAX,
            point: Point::Waited(u16::MAX),
            bytes: u32::MAX,
            number: Some((u32::MAX, u64::MAX)),
        };
        flow.stamps.stamps = vec![stamp; stamps];
        let report = emit_report(&Report::Trace { driver: 3, flows: vec![flow; count] });
        assert!(count > 2 || stamps > 8192 || report.len() <= REPORT_BYTES_MAX);
        parse_report(&report)
    };
    assert!(traces(2, 7, 8192).is_ok());
    assert!(traces(1, 5, 1).is_err(), "a flow of another driver");
    assert!(traces(1, 7, 8193).is_err(), "too many stamps");
    assert!(traces(3, 7, 1).is_err(), "too many flows");
}

#[test]
fn a_long_report_is_refused_before_it_arrives() {
    let announce = |bytes: usize| {
        let mut received = BytesMut::new();
        received.extend_from_slice(&(bytes as u32).to_le_bytes());
        received.extend_from_slice(&[0, 0]);
        next_report(&mut received)
    };
    assert!(matches!(announce(REPORT_BYTES_MAX), Ok(None)), "it has not arrived");
    assert!(announce(REPORT_BYTES_MAX + 1).is_err());
}

#[test]
fn limits_cross() {
    let limits = Limits {
        store_bytes: 3,
        silence: Duration::from_nanos(7),
        store_full: StoreFull::Close,
        message_bytes: 5,
        rates: Rates { cpu_percent_per_peer: 9, ..Rates::default() },
        ..Limits::default()
    };
    for requires_lock in [false, true] {
        let begin =
            Begin::parse(&Begin { limits: limits.clone(), requires_lock, program: "/a b".into() }.emit())
                .unwrap();
        assert_eq!((begin.limits, begin.requires_lock), (limits.clone(), requires_lock));
    }
}
