use super::Content;
use crate::stream::now;
use crate::stream::tests::{open, pull_all, push_all, template};
use contract::{
    Attributes, Ctl, CtlReply, Direction, FlowKey, FlowTemplate, Message, Partner, Pull, Pulled, Role, Time,
};
use testkit::partner::{Harness, conforms};

struct Synthetic {
    partner: Box<dyn Partner>,
    direction: Direction,
    fed: u64,
}

fn content(number: u64) -> Vec<u8> {
    let mut bytes = vec![0; 100];
    Content { size: 100, seed: 1 }.fill(number, &mut bytes);
    bytes
}

impl Harness for Synthetic {
    fn partner(&mut self) -> &mut dyn Partner {
        self.partner.as_mut()
    }

    fn template(&self, direction: Direction) -> Option<FlowTemplate> {
        (direction == self.direction).then_some(template(direction))
    }

    fn feed(&mut self) -> Option<Vec<u8>> {
        self.fed += 1;
        Some(content(self.fed - 1))
    }

    fn end(&mut self) -> bool {
        true
    }

    fn body(&self, number: u64) -> Vec<u8> {
        content(number)
    }

    fn taken(&mut self) -> Option<Vec<u8>> {
        None
    }
}

#[test]
fn a_source_conforms_at_any_rate() {
    for rate in ["0", "200"] {
        conforms(move || Synthetic {
            partner: open(&format!("pattern:size=100,rate={rate},count=6"), Role::Device),
            direction: Direction::Out,
            fed: 0,
        });
    }
}

#[test]
fn a_checker_conforms() {
    conforms(|| Synthetic {
        partner: open("pattern:size=100", Role::Application),
        direction: Direction::In,
        fed: 0,
    });
}

fn figures(checker: &mut dyn Partner) -> [f64; 4] {
    let Ok(CtlReply::Report(report)) = checker.ctl(FlowKey::DEFAULT, Ctl::Report) else {
        panic!("no report")
    };
    ["messages", "missing", "repeated", "wrong"]
        .map(|name| report.iter().find(|(known, _)| *known == name).unwrap().1)
}

#[test]
fn what_a_source_makes_a_checker_finds_right() {
    for size in [0, 3, 8, 1001] {
        let made =
            pull_all(open(&format!("pattern:size={size},rate=0,count=50"), Role::Device).as_mut()).unwrap();
        assert_eq!(made.len(), 50);
        let mut checker = open(&format!("pattern:size={size}"), Role::Application);
        push_all(checker.as_mut(), &made);
        assert_eq!(figures(checker.as_mut()), [50.0, 0.0, 0.0, 0.0], "{size}");
    }
}

#[test]
fn a_checker_finds_what_is_missing_repeated_and_wrong() {
    let made = |number| Message::new(Time(1), content(number));
    let mut spoilt = content(4);
    spoilt[50] ^= 1;
    let spoilt = Message::new(Time(1), spoilt);
    let mut checker = open("pattern:size=100", Role::Application);
    push_all(checker.as_mut(), &[made(0), made(3), made(3), spoilt, made(5), Message::default()]);
    assert_eq!(figures(checker.as_mut()), [6.0, 2.0, 1.0, 2.0]);
    let mut other_seed = open("pattern:size=100,seed=2", Role::Application);
    push_all(other_seed.as_mut(), &[made(0)]);
    assert_eq!(figures(other_seed.as_mut()), [1.0, 0.0, 0.0, 1.0]);
}

#[test]
fn messages_are_created_at_their_scheduled_times_however_late_they_are_taken() {
    let mut source = open("pattern:size=8,rate=300,count=10", Role::Device);
    let key = source.open(&template(Direction::Out), &Attributes::default()).unwrap();
    std::thread::sleep(std::time::Duration::from_millis(50));
    let mut times = Vec::new();
    while times.len() < 10 {
        match source.pull(key, Pull::Yours).unwrap() {
            Pulled::Message(_, message) => {
                assert!(message.created <= now(), "from the future");
                times.push(message.created.0);
            }
            Pulled::Nothing => {
                let at = source.readiness(key, Direction::Out).at.expect("it knows when");
                std::thread::sleep(at.since(now()));
            }
            other => panic!("{other:?}"),
        }
    }
    for (number, time) in times.iter().enumerate() {
        assert_eq!(time - times[0], (number as f64 * 1e9 / 300.0) as u64);
    }
}
