//! Random devices, pipelines and faults from a seed.

use crate::compose::draw::exact;
use crate::reliability::hosts::Host;
use crate::reliability::subject::Class;
use contract::Format;
use netsim::Rng;
use std::fmt;
use std::time::Duration;

/// Most devices of a run.
const DEVICES_MAX: u64 = 3;
/// Fewest and most faults of a run.
const FAULTS: [u64; 2] = [5, 30];
/// Most pairs of a pipeline.
const PAIRS_MAX: u64 = 4;
/// A network without faults.
pub(super) const CALM: &str = "delay=5ms,jitter=0ms,in-order,loss=0%,rate=unlimited";

/// One action: the start or the end of a fault.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Act {
    /// Cuts or restores the link.
    Cut(bool),
    /// Sets the link.
    Link(String),
    /// Passes or drops UDP.
    Udp(bool),
    /// Moves a host to another address or back to its first.
    Address { host: Host, home: bool },
    /// Kills one worker of a host, or all.
    Kill(Host, Option<u64>),
    /// Stops one process of a host, or all.
    Halt(Host, Option<u64>),
    /// Continues all processes of a host.
    Resume(Host),
    /// Kills or terminates all processes of a host and starts its program again.
    Restart { host: Host, kill: bool },
    /// Plugs or unplugs a device.
    Plug(usize, bool),
    /// Fills or empties an application's disk.
    Disk(usize, bool),
    /// Requests another pipeline at a host.
    Change { device: usize, back: bool, host: Host, via: String },
}

impl Act {
    /// Returns the kind of fault that starts, or `None` if one ends.
    pub(super) fn kind(&self) -> Option<&'static str> {
        Some(match self {
            Act::Cut(true) => "link cut",
            Act::Link(link) if link != CALM => "loss, delay, rate",
            Act::Udp(false) => "no UDP",
            Act::Address { host: Host::Application, .. } => "address, application host",
            Act::Address { home: false, .. } => "address, device host",
            Act::Kill(_, Some(_)) => "a process killed",
            Act::Kill(_, None) => "all workers killed",
            Act::Halt(_, Some(_)) => "a process stopped",
            Act::Halt(_, None) => "a host stopped",
            Act::Restart { kill: true, .. } => "a host killed",
            Act::Restart { kill: false, .. } => "a host restarted",
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
                let direction = if *back { "back" } else { "out" };
                write!(f, "{host:?} changes device {device} {direction}: {via}")
            }
            other => write!(f, "{other:?}"),
        }
    }
}

/// An action and its time since the start of the faults.
#[derive(Debug, Clone)]
pub(super) struct Step {
    pub(super) at: Duration,
    pub(super) act: Act,
}

/// A device and its pipelines, to the application and back.
#[derive(Debug, Clone)]
pub(super) struct Flow {
    pub(super) class: Class,
    pub(super) via: [Option<String>; 2],
}

/// All random choices of a run.
#[derive(Debug)]
pub(super) struct Case {
    /// The transport, or `None` for QUIC with TCP as fallback.
    pub(super) transport: Option<&'static str>,
    pub(super) limits: &'static str,
    pub(super) flows: Vec<Flow>,
    /// In order of time.
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
    /// Draws a run from `seed`, with faults within `duration` and devices of `classes`.
    pub(super) fn draw(seed: u64, duration: Duration, classes: &[Class]) -> Result<Case, String> {
        let mut rng = Rng::new(seed, 4);
        let transport =
            [Some("quic"), Some("tcp"), Some("udp"), Some("striped"), None][rng.up_to(4) as usize];
        let limits = ["", "store_bytes=16KiB", "store_bytes=256KiB"][rng.up_to(2) as usize];
        let mut flows = Vec::new();
        for _ in 0..=rng.up_to(DEVICES_MAX - 1) {
            let class = classes[rng.up_to(classes.len() as u64 - 1) as usize];
            let back = if class == Class::Serial { Some(pipeline(&mut rng, class)?) } else { None };
            flows.push(Flow { class, via: [Some(pipeline(&mut rng, class)?), back] });
        }
        // A restart loses the messages in memory. Only one run in four has restarts, so that most runs must lose nothing.
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

    /// Returns true if a restart loses a replay store.
    pub(super) fn loses_the_store(&self) -> bool {
        self.steps.iter().any(|step| matches!(step.act, Act::Restart { .. }))
    }

    /// Returns true if workers are killed.
    pub(super) fn kills(&self) -> bool {
        self.steps.iter().any(|step| matches!(step.act, Act::Kill(..)))
    }

    /// Returns true if a worker at a source of this device's flows is killed, which may lose messages that it has read.
    pub(super) fn kills_source(&self, flow: &Flow) -> bool {
        let is_source = |host| host == Host::Device || flow.via[1].is_some();
        self.steps.iter().any(|step| matches!(step.act, Act::Kill(host, _) if is_source(host)))
    }
}

/// Draws a fault: its start and, some time later, its end.
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

/// Draws a bad link with enough rate for the flows.
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
    fn a_seed_repeats_its_run_and_every_fault_ends() {
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
