use super::Arrivals;
use crate::stream::tests::{open, pull_all, template};
use contract::{Ctl, CtlReply, Direction, FlowKey, FlowTemplate, Message, Partner, Role, Time};
use testkit::partner::{Harness, conforms};

struct NullHarness(Box<dyn Partner>, Role);

impl Harness for NullHarness {
    fn partner(&mut self) -> &mut dyn Partner {
        self.0.as_mut()
    }

    fn template(&self, direction: Direction) -> Option<FlowTemplate> {
        let has_flow = (direction == Direction::Out) == (self.1 == Role::Device);
        has_flow.then_some(template(direction))
    }

    fn feed(&mut self) -> Option<Vec<u8>> {
        None
    }

    fn end(&mut self) -> bool {
        true
    }

    fn body(&self, number: u64) -> Vec<u8> {
        number.to_le_bytes().to_vec()
    }

    fn taken(&mut self) -> Option<Vec<u8>> {
        None
    }
}

#[test]
fn null_conforms_on_both_sides() {
    for role in [Role::Device, Role::Application] {
        conforms(move || NullHarness(open("null", role), role));
    }
}

#[test]
fn a_null_device_ends_at_once() {
    assert_eq!(pull_all(open("null", Role::Device).as_mut()).unwrap(), []);
}

#[test]
fn a_null_application_counts_messages() {
    let mut sink = open("null", Role::Application);
    let sent = [Message::new(Time(1), vec![0; 10]), Message::new(Time(2), vec![0; 5])];
    crate::stream::tests::push_all(sink.as_mut(), &sent);
    let Ok(CtlReply::Report(report)) = sink.ctl(FlowKey::DEFAULT, Ctl::Report) else { panic!("no report") };
    assert_eq!(&report[..2], &[("messages", 2.0), ("bytes", 15.0)]);
}

#[test]
fn intervals_have_their_mean_and_deviation() {
    let mut arrivals = Arrivals::default();
    for time_ms in [0, 10, 30, 40, 60] {
        arrivals.count(1, Time::from_millis(time_ms));
    }
    let report = arrivals.report();
    assert_eq!(&report[2..], &[("interval mean ms", 15.0), ("interval deviation ms", 5.0)]);
}
