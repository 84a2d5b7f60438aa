//! Tests of reports that a worker may not make.

use super::*;
use contract::{FlowClass, Format, Half, Role, Site};
use flow::trace::FlowTrace;
use flow::types::FlowPlan;
use modules::TransportPlan;
use pipeline::Origin;
use std::num::NonZeroU32;

const DRIVER: u32 = 3;
const DIRECTION: FlowDirection = FlowDirection::DeviceToApplication;

/// Creates the workers of one driver in a process that has ended.
fn workers(text: &str) -> Workers {
    let plan = FlowPlan {
        flow: 7,
        direction: DIRECTION,
        class: FlowClass::Reliable,
        format: Format::Bytes,
        pipeline: Pipeline::parse(text, registry::pairs(), Origin::Local).unwrap(),
        requested: Vec::new(),
        site: Site::default(),
    };
    let limits = Limits::default();
    let mut workers = Workers::new("test".into(), limits.clone());
    workers.offers.begin(DRIVER, std::slice::from_ref(&plan));
    let spec = registry::device_spec("pattern", Role::Device).unwrap();
    let device = registry::open(&spec, Role::Device, None).unwrap();
    let transport = TransportPlan::defaults("tcp").unwrap();
    let supervised = SupervisedDriver {
        device: Some(PartnerOrigin::Opened(Box::new(device))),
        ports: Vec::new(),
        memory: recovery::memory(&limits).unwrap(),
        plan: DriverPlan { role: Role::Device, flows: vec![plan], transport },
        traces_due: 0,
        is_device_gone: false,
        waiting: None,
    };
    workers.drivers.insert(DRIVER, Place::Process(Box::new(supervised)));
    workers
}

fn report(workers: &mut Workers, text: &str) -> Notice {
    let notice = Notice::Changed { direction: DIRECTION, result: Ok(text.into()) };
    let mut report = Report::Notice { driver: DRIVER, notice };
    workers.track_report(&mut report);
    match report {
        Report::Notice { notice, .. } => notice,
        _ => unreachable!("a notice stays one"),
    }
}

/// A worker that was taken over reports a pipeline with a program of its choice.
#[test]
fn a_report_adds_no_program() {
    let mut workers = workers("compress");
    for text in ["exec(source=\"sh -c id\")", "@pipe compress", "compress | @shm null"] {
        assert!(matches!(report(&mut workers, text), Notice::Incident(_)), "{text}");
        assert!(workers.programs(DRIVER).is_empty(), "{text}");
        assert_eq!(workers.pipeline(DRIVER, DIRECTION).map(Pipeline::text), Some("compress"));
    }
    let requested = Pipeline::parse("@pipe compress", registry::pairs(), Origin::Local).unwrap();
    workers.request_change(DRIVER, DIRECTION, &requested);
    assert!(!workers.programs(DRIVER).is_empty(), "the broker has requested it");
    assert!(matches!(report(&mut workers, "@pipe compress"), Notice::Changed { .. }));
    assert_eq!(workers.pipeline(DRIVER, DIRECTION).map(Pipeline::text), Some("@pipe compress"));
}

/// A worker that was taken over fills the memory of its broker with drivers and stamps of its choice.
#[test]
fn a_report_adds_no_driver_and_no_unrequested_stamps() {
    let mut workers = workers("");
    let is_kept = |workers: &mut Workers, driver| {
        workers.track_report(&mut Report::Stats { driver, stats: Box::default() })
    };
    assert!((0..100).filter(|driver| is_kept(&mut workers, *driver)).eq([DRIVER]));

    let stamps_of = |workers: &mut Workers, driver| {
        let Some(Place::Process(supervised)) = workers.drivers.get(&DRIVER) else { unreachable!() };
        let plan = supervised.plan.flows[0].clone();
        let mut trace = flow::trace::begin(NonZeroU32::MIN);
        let flows = vec![FlowTrace::new(&plan, Half::Source, &mut trace)];
        let mut report = Report::Trace { driver, flows };
        workers.track_report(&mut report);
        matches!(report, Report::Trace { flows, .. } if !flows.is_empty())
    };
    assert!(!stamps_of(&mut workers, DRIVER), "nobody asked");
    workers.send(Command::Trace { driver: DRIVER, one_in: None });
    assert!(!stamps_of(&mut workers, DRIVER + 1), "another driver");
    assert!(stamps_of(&mut workers, DRIVER), "the answer");
    assert!(!stamps_of(&mut workers, DRIVER), "a second answer");
}
