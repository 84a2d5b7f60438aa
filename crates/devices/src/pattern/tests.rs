use super::motion::Cap;
use super::video::Scene;
use super::{Content, Numbered, Pattern};
use crate::stream::now;
use crate::stream::tests::{open, pull_all, push_all, template};
use contract::{
    Attributes, Body, Ctl, CtlReply, DeviceClass, Direction, FlowKey, FlowTemplate, Format, Message, Options,
    Partner, Pull, Pulled, Role, Time,
};
use testkit::partner::{Harness, conforms};
use wire::formats::motion::{Motion, Update};

struct Synthetic {
    partner: Box<dyn Partner>,
    direction: Direction,
    format: Format,
    fed: u64,
}

fn content(number: u64) -> Vec<u8> {
    let mut bytes = vec![0; 100];
    Content { size: 100, seed: 1 }.fill(number, &mut bytes);
    bytes
}

fn body(format: &Format, number: u64) -> Vec<u8> {
    match format {
        Format::Motion => Cap::new(1, 200.0).update(number).to_bytes(),
        Format::Video => picture(&scene(&[("width", "32"), ("height", "8"), ("rate", "200")]), number),
        _ => content(number),
    }
}

fn scene(given: &[(&str, &str)]) -> Scene {
    Scene::new(&Options::check(Pattern.options(), given.iter().copied()).unwrap()).unwrap()
}

fn picture(scene: &Scene, number: u64) -> Vec<u8> {
    let mut pixels = vec![0; scene.size()];
    scene.fill(number, &mut pixels);
    [&scene.header().emit()[..], &pixels].concat()
}

impl Harness for Synthetic {
    fn partner(&mut self) -> &mut dyn Partner {
        self.partner.as_mut()
    }

    fn template(&self, direction: Direction) -> Option<FlowTemplate> {
        let format = self.format.clone();
        (direction == self.direction).then_some(FlowTemplate { format, ..template(direction) })
    }

    fn feed(&mut self) -> Option<Vec<u8>> {
        self.fed += 1;
        Some(body(&self.format, self.fed - 1))
    }

    fn end(&mut self) -> bool {
        true
    }

    fn body(&self, number: u64) -> Vec<u8> {
        body(&self.format, number)
    }

    fn taken(&mut self) -> Option<Vec<u8>> {
        None
    }
}

#[test]
fn a_source_conforms_at_any_rate() {
    let cases =
        [(Format::Bytes, "0"), (Format::Bytes, "200"), (Format::Motion, "200"), (Format::Video, "200")];
    for (format, rate) in cases {
        let spec = format!("pattern:format={format},size=100,width=32,height=8,rate={rate},count=6");
        conforms(move || Synthetic {
            partner: open(&spec, Role::Device),
            direction: Direction::Out,
            format: format.clone(),
            fed: 0,
        });
    }
}

#[test]
fn a_checker_conforms() {
    for format in [Format::Bytes, Format::Motion, Format::Video] {
        let spec = format!("pattern:format={format},size=100,width=32,height=8,rate=200");
        conforms(move || Synthetic {
            partner: open(&spec, Role::Application),
            direction: Direction::In,
            format: format.clone(),
            fed: 0,
        });
    }
}

fn figures(checker: &mut dyn Partner) -> [f64; 4] {
    reported(checker, ["messages", "missing", "repeated", "wrong"])
}

fn reported<const N: usize>(checker: &mut dyn Partner, names: [&str; N]) -> [f64; N] {
    let Ok(CtlReply::Report(report)) = checker.ctl(FlowKey::DEFAULT, Ctl::Report) else {
        panic!("no report")
    };
    names.map(|name| report.iter().find(|(known, _)| *known == name).unwrap().1)
}

#[test]
fn a_checker_accepts_the_messages_of_a_source() {
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
fn a_checker_counts_missing_repeated_and_wrong_messages() {
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
fn creation_times_are_the_scheduled_times_even_if_pulls_are_late() {
    let mut source = open("pattern:size=8,rate=300,count=10", Role::Device);
    let key = source.open(&template(Direction::Out), &Attributes::default()).unwrap();
    std::thread::sleep(std::time::Duration::from_millis(50));
    let mut times = Vec::new();
    while times.len() < 10 {
        match source.pull(key, Pull::Yours).unwrap() {
            Pulled::Message(_, message) => {
                assert!(message.created <= now(), "created in the future");
                times.push(message.created.0);
            }
            Pulled::Nothing => {
                let at = source.readiness(key, Direction::Out).at.expect("a time");
                std::thread::sleep(at.since(now()));
            }
            other => panic!("{other:?}"),
        }
    }
    for (number, time) in times.iter().enumerate() {
        assert_eq!(time - times[0], (number as f64 * 1e9 / 300.0) as u64);
    }
}

#[test]
fn a_cap_moves_smoothly_and_releases_its_buttons() {
    let cap = Cap::new(1, 62.5);
    let (mut presses, mut last, mut time_us) = (0, None, 0);
    for number in 0..1024 {
        match cap.update(number) {
            Update::Motion(Motion { axes, period_us }) => {
                time_us += period_us;
                let before = last.replace(axes).unwrap_or(axes);
                assert!(axes.iter().zip(before).all(|(axis, before)| axis.abs_diff(before) < 60), "{number}");
            }
            Update::Button { pressed, .. } => presses += i32::from(pressed),
            Update::Snapshot { .. } => panic!("a snapshot without a request"),
        }
        let Update::Snapshot { pressed, .. } = cap.snapshot(number) else { panic!("no snapshot") };
        assert_eq!(pressed.len(), usize::from((9..=16).contains(&(number % 128))), "{number}");
    }
    assert_eq!((presses, time_us), (8, 1023 * 16_000));
}

#[test]
fn an_application_follows_a_cap() {
    let template = |direction| FlowTemplate { format: Format::Motion, ..template(direction) };
    let mut source = open("pattern:format=motion,rate=0,count=40", Role::Device);
    let mut follower = open("pattern:format=motion", Role::Application);
    let out = source.open(&template(Direction::Out), &Attributes::default()).unwrap();
    let into = follower.open(&template(Direction::In), &Attributes::default()).unwrap();
    let mut carry = |source: &mut dyn Partner| match source.pull(out, Pull::Yours).unwrap() {
        Pulled::Message(_, mut message) => {
            let update = Update::parse(message.body.as_slice()).unwrap();
            follower.push(into, message).unwrap();
            Some((update, reported(follower.as_mut(), ["wrong", "presses", "buttons down"])))
        }
        _ => None,
    };
    let after_press = (0..10).map(|_| carry(source.as_mut()).unwrap().1).last();
    assert_eq!(after_press, Some([0.0, 1.0, 1.0]));
    source.ctl(out, Ctl::Snapshot).unwrap();
    let (snapshot, figures) = carry(source.as_mut()).unwrap();
    assert!(matches!(snapshot, Update::Snapshot { pressed, .. } if pressed == [0]));
    assert_eq!(figures, [0.0, 1.0, 1.0]);
    let at_the_end = std::iter::from_fn(|| carry(source.as_mut())).last().unwrap().1;
    assert_eq!(at_the_end, [0.0, 1.0, 0.0]);
    follower.push(into, Message::new(Time(0), vec![1, 0, 0, 0])).unwrap();
    follower.push(into, Message::new(Time(0), vec![9])).unwrap();
    assert_eq!(reported(follower.as_mut(), ["wrong"]), [2.0]);
}

#[test]
fn a_square_bounces_in_pictures_of_any_size() {
    for pixels in super::video::PIXELS {
        for (width, height) in [("1", "1"), ("7", "3"), ("64", "48"), ("16", "2000")] {
            let scene = scene(&[("pixels", pixels), ("width", width), ("height", height)]);
            let pictures: Vec<_> = (0..600).map(|number| picture(&scene, number)).collect();
            let large = width == "64";
            for (number, pair) in pictures.windows(2).enumerate() {
                let moved = pair[0].iter().zip(&pair[1]).skip(40).filter(|(a, b)| a != b).count();
                assert!(
                    !large || (1..pair[0].len() / 2).contains(&moved),
                    "{pixels} {number}: {moved} bytes"
                );
            }
            // The square returns after the common period of both directions: 2 * 52 / 4 and 2 * 36 / 2 steps.
            let common = if large { pictures[3][60..] == pictures[3 + 26 * 18][60..] } else { true };
            assert!(common, "{pixels}");
        }
    }
    let spec = crate::spec::parse("pattern:format=video,width=16384,height=16384", Role::Device).unwrap().1;
    let error = Pattern.open(&spec, Role::Device, None).unwrap_err().to_string();
    assert!(error.contains("over the limit"), "{error}");
}

#[test]
fn a_video_checker_counts_missing_repeated_and_wrong_pictures() {
    let template = |direction| FlowTemplate { format: Format::Video, ..template(direction) };
    let options = "format=video,width=40,height=30,pixels=i420";
    let mut source = open(&format!("pattern:{options},rate=0,count=9"), Role::Device);
    let mut checker = open(&format!("pattern:{options}"), Role::Application);
    let out = source.open(&template(Direction::Out), &Attributes::default()).unwrap();
    let into = checker.open(&template(Direction::In), &Attributes::default()).unwrap();
    let mut made = Vec::new();
    while let Pulled::Message(_, message) = source.pull(out, Pull::Yours).unwrap() {
        made.push(message.body);
    }
    assert_eq!(made.len(), 9);
    let mut spoilt = made[5].clone().into_bytes().to_vec();
    spoilt[100] ^= 1;
    let other = picture(&scene(&[("width", "40"), ("height", "30"), ("pixels", "rgb")]), 6);
    for body in
        [&made[0], &made[0], &made[3], &made[4], &spoilt.into(), &other.into(), &Body::new(), &made[8]]
    {
        checker.push(into, Message::new(Time(1), body.clone())).unwrap();
    }
    assert_eq!(figures(checker.as_mut()), [8.0, 2.0, 1.0, 3.0]);
}
