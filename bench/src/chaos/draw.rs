//! Random devices, pipelines and faults, all of them from a seed.

use crate::compose::draw::exact;
use crate::reliability::hosts::Host;
use crate::reliability::subject::Class;
use contract::Format;
use netsim::Rng;
use std::fmt;
use std::time::Duration;

/// Devices of a run, at most.
const DEVICES_MAX: u64 = 3;
/// Faults of a run, fewest and most.
const FAULTS: [u64; 2] = [5, 30];
/// Pairs of a pipeline, at most.
const PAIRS_MAX: u64 = 4;
/// A network that nothing is wrong with.
pub(super) const CALM: &str = "delay=5ms,jitter=0ms,in-order,loss=0%,rate=unlimited";

/// One thing that is done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Act {
    /// Nothing comes through, or everything again.
    Cut(bool),
    /// The link is like this from here on.
    Link(String),
    /// UDP comes through, or not.
    Udp(bool),
    /// A host goes to another address, or back to its own.
    Address { host: Host, home: bool },
    /// One of the processes that a host's own started is killed, or all.
    Kill(Host, Option<u64>),
    /// One of a host's processes stands still, or all.
    Halt(Host, Option<u64>),
    /// All of a host's processes go on.
    Resume(Host),
    /// All of a host is killed, or told to end, and started anew.
    Restart { host: Host, kill: bool },
    /// A device is taken out, or comes back.
    Plug(usize, bool),
    /// The disk that an application writes to is full, or not.
    Disk(usize, bool),
    /// A host asks for another pipeline.
    Change { device: usize, back: bool, host: Host, via: String },
}

impl Act {
    /// What kind of fault begins with it; `None` if one ends.
    pub(super) fn kind(&self) -> Option<&'static str> {
        Some(match self {
            Act::Cut(true) => "link cut",
            Act::Link(link) if link != CALM => "loss, delay, rate",
            Act::Udp(false) => "no UDP",
            Act::Address { host: Host::Application, .. } => "address, application's host",
            Act::Address { home: false, .. } => "address, device's host",
            Act::Kill(_, Some(_)) => "a process killed",
            Act::Kill(_, None) => "all workers killed",
            Act::Halt(_, Some(_)) => "a process stopped",
            Act::Halt(_, None) => "a host stopped",
            Act::Restart { kill: true, .. } => "a host killed",
            Act::Restart { kill: false, .. } => "a host begun anew",
            Act::Plug(_, false) => "unplugged",
            Act::Disk(_, true) => "disk full",
            Act::Change { .. } => "pipeline changed",
            _ => return None,
        })
    }
}

impl fmt::Display for Act {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Act::Change { device, back, host, via } => {
                let way = if *back { "back" } else { "out" };
                write!(f, "{host:?} changes device {device} {way}: {via}")
            }
            other => write!(f, "{other:?}"),
        }
    }
}

/// When it is done, from the storm's beginning.
#[derive(Debug, Clone)]
pub(super) struct Step {
    pub(super) at: Duration,
    pub(super) act: Act,
}

/// A device and its pipelines, there and back.
#[derive(Debug, Clone)]
pub(super) struct Flow {
    pub(super) class: Class,
    pub(super) via: [Option<String>; 2],
}

/// Everything of a run.
#[derive(Debug)]
pub(super) struct Case {
    /// What is asked for; QUIC, with TCP to stand in for it, if nothing is.
    pub(super) transport: Option<&'static str>,
    pub(super) limits: &'static str,
    pub(super) flows: Vec<Flow>,
    /// In their order.
    pub(super) steps: Vec<Step>,
}

fn pipeline(rng: &mut Rng, class: Class) -> Result<String, String> {
    let format = match class {
        Class::Serial => Format::Serial,
        Class::Video | Class::Camera => Format::Video,
        Class::Input => Format::Evdev,
        Class::File => Format::Bytes,
    };
    exact(rng.draw(), &format, 1 + rng.up_to(PAIRS_MAX - 1))
}

fn host(rng: &mut Rng) -> Host {
    Host::BOTH[rng.up_to(1) as usize]
}

fn ms(rng: &mut Rng, least: u64, most: u64) -> Duration {
    Duration::from_millis(least + rng.up_to(most - least))
}

impl Case {
    /// All from `seed`: faults within `duration`, devices of `classes`.
    pub(super) fn draw(seed: u64, duration: Duration, classes: &[Class]) -> Result<Case, String> {
        let mut rng = Rng::new(seed, 4);
        let transport = [Some("quic"), Some("tcp"), Some("udp"), None][rng.up_to(3) as usize];
        let limits = ["", "store_messages=64", "store_bytes=256KiB"][rng.up_to(2) as usize];
        let mut flows = Vec::new();
        for _ in 0..=rng.up_to(DEVICES_MAX - 1) {
            let class = classes[rng.up_to(classes.len() as u64 - 1) as usize];
            let back = if class == Class::Serial { Some(pipeline(&mut rng, class)?) } else { None };
            flows.push(Flow { class, via: [Some(pipeline(&mut rng, class)?), back] });
        }
        // A process that is begun anew has what was in its memory alone counted as lost: most runs lose nothing.
        let may_restart = rng.chance(1, 4);
        let mut steps = Vec::new();
        for _ in 0..FAULTS[0] + rng.up_to(FAULTS[1] - FAULTS[0]) {
            let at = ms(&mut rng, 0, duration.as_millis() as u64);
            for (after, act) in fault(&mut rng, transport, &flows, may_restart)? {
                steps.push(Step { at: at + after, act });
            }
        }
        steps.sort_by_key(|step| step.at);
        Ok(Case { transport, limits, flows, steps })
    }

    /// Whether a process is begun anew that alone had what waits to be sent.
    pub(super) fn takes_the_store(&self) -> bool {
        self.steps.iter().any(|step| matches!(step.act, Act::Restart { .. }))
    }

    /// Whether a process is killed that may have read what nobody else has.
    pub(super) fn kills(&self) -> bool {
        self.steps.iter().any(|step| matches!(step.act, Act::Kill(..)))
    }
}

/// A fault as it begins, and as it ends some time later.
fn fault(
    rng: &mut Rng,
    transport: Option<&str>,
    flows: &[Flow],
    may_restart: bool,
) -> Result<Vec<(Duration, Act)>, String> {
    let device = rng.up_to(flows.len() as u64 - 1) as usize;
    let class = flows[device].class;
    let lasting = |act, after, end| vec![(Duration::ZERO, act), (after, end)];
    let once = |act| vec![(Duration::ZERO, act)];
    Ok(loop {
        break match rng.up_to(13) {
            0 | 1 => lasting(Act::Cut(true), ms(rng, 100, 5000), Act::Cut(false)),
            2 | 3 => lasting(Act::Link(link(rng)), ms(rng, 200, 4000), Act::Link(CALM.into())),
            4 if transport.is_none() => lasting(Act::Udp(false), ms(rng, 500, 6000), Act::Udp(true)),
            5 => match host(rng) {
                Host::Device => {
                    let away = |home| Act::Address { host: Host::Device, home };
                    lasting(away(false), ms(rng, 200, 3000), away(true))
                }
                host => once(Act::Address { host, home: rng.chance(1, 2) }),
            },
            6 | 7 => once(Act::Kill(host(rng), Some(rng.draw()))),
            8 => once(Act::Kill(host(rng), None)),
            9 => {
                let (host, which) = (host(rng), rng.chance(2, 3).then(|| rng.draw()));
                lasting(Act::Halt(host, which), ms(rng, 50, 2000), Act::Resume(host))
            }
            10 if may_restart => once(Act::Restart { host: host(rng), kill: rng.chance(1, 2) }),
            11 if class == Class::Serial => {
                lasting(Act::Plug(device, false), ms(rng, 100, 3000), Act::Plug(device, true))
            }
            12 if matches!(class, Class::File | Class::Video) => {
                lasting(Act::Disk(device, true), ms(rng, 200, 3000), Act::Disk(device, false))
            }
            13 => {
                let (host, back) = (host(rng), flows[device].via[1].is_some() && rng.chance(1, 2));
                once(Act::Change { device, back, host, via: pipeline(rng, class)? })
            }
            _ => continue,
        };
    })
}

/// A bad link, with room for what flows.
fn link(rng: &mut Rng) -> String {
    let (delay, jitter, loss) = (rng.up_to(150), rng.up_to(50), rng.up_to(20));
    let order = ["in-order", "reorder"][rng.up_to(1) as usize];
    let rate = if rng.chance(1, 2) { "unlimited".into() } else { format!("{}mbit", 8 + rng.up_to(40)) };
    format!("delay={delay}ms,jitter={jitter}ms,{order},loss={loss}%,rate={rate}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_is_a_run_and_what_begins_ends() {
        let classes = [Class::Serial, Class::File, Class::Video];
        for seed in 0..200 {
            let draw = || Case::draw(seed, Duration::from_secs(20), &classes).unwrap();
            let case = draw();
            assert_eq!(format!("{case:?}"), format!("{:?}", draw()));
            let count = |is: fn(&Act) -> bool| case.steps.iter().filter(|step| is(&step.act)).count();
            assert_eq!(count(|act| *act == Act::Cut(true)), count(|act| *act == Act::Cut(false)));
            assert_eq!(count(|act| matches!(act, Act::Halt(..))), count(|act| matches!(act, Act::Resume(_))));
            assert!((FAULTS[0]..=FAULTS[1]).contains(&(count(|act| act.kind().is_some()) as u64)));
        }
    }
}
