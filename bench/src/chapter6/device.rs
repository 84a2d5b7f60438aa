//! Section 6.4: a 3D mouse's update on its way, in three parts: from the device until it goes to the network; there
//! and back over the network, halved; from the network until the application has it.
//!
//! The application writes back at once what it read, as the dissertation's did. Both hosts' workers are threads of this
//! process, so that one clock sees both ends; between them is a socket of each network. An application has an update
//! when a pipe that a thread waits at has it. The limits: reading the clock, a bare socket at the same pace, a bare write.

use super::instruments::{Gauge, Passing, Watch, lock, noise, ping};
use super::network::{CPUS, Network};
use super::{Block, ChapterSetting, Row, paper, params, progress};
use crate::Failure;
use crate::measure::Times;
use crate::ours::{self, Host, Link};
use contract::{
    Attributes, Ctl, CtlReply, Direction, FlowClass, FlowKey, FlowTemplate, Format, Message, Next, Options,
    Partner, PartnerError, Pull, PullSlot, Pulled, Pushed, Readiness, Role, TransportClass,
};
use runtime::registry;
use std::fs::File;
use std::io::{Read, Write};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;
use wire::RecordHeader;
use wire::formats::motion::MOTION_BYTES;

/// The dissertation's updates, and their pace.
const UPDATES: usize = 2000;
const RATE_HZ: f64 = 62.5;
/// Enough for the limit of what has no spread to speak of.
const LIMIT_UPDATES: usize = 200;
/// The device's flow back, on which what it is sent ends.
const BACK: FlowKey = FlowKey(u32::MAX);

static NEAR: Gauge = Gauge::new();
static FAR: Gauge = Gauge::new();

/// When an update passed where last, and the times of the parts.
#[derive(Default)]
struct Passages {
    given_ns: u64,
    sent_ns: u64,
    came_ns: u64,
    parts: [Times; 3],
}

type Shared = Arc<Mutex<Passages>>;

/// A device whose updates are seen when they are taken from it, and that takes what comes back.
struct Seen {
    inner: Box<dyn Partner>,
    passages: Shared,
}

impl Partner for Seen {
    fn open(&mut self, template: &FlowTemplate, attributes: &Attributes) -> Result<FlowKey, PartnerError> {
        sys::thread::pin_to_cpu(CPUS[0]);
        match template.direction {
            Direction::Out => self.inner.open(template, attributes),
            Direction::In => Ok(BACK),
        }
    }

    fn close(&mut self, flow: FlowKey) -> Result<(), PartnerError> {
        if flow == BACK { Ok(()) } else { self.inner.close(flow) }
    }

    fn push(&mut self, _: FlowKey, _: Message) -> Result<Pushed, (PartnerError, Message)> {
        Ok(Pushed::Taken)
    }

    fn pull(&mut self, flow: FlowKey, want: Pull<'_>) -> Result<Pulled, PartnerError> {
        let pulled = self.inner.pull(flow, want)?;
        if let Pulled::Message(..) = pulled {
            lock(&self.passages).given_ns = sys::clock::boot_ns();
        }
        Ok(pulled)
    }

    fn ctl(&mut self, flow: FlowKey, operation: Ctl<'_>) -> Result<CtlReply, PartnerError> {
        if flow == BACK { Ok(CtlReply::Done) } else { self.inner.ctl(flow, operation) }
    }

    fn readiness(&self, flow: FlowKey, direction: Direction) -> Readiness<'_> {
        match direction {
            Direction::In => Readiness::now(),
            Direction::Out => self.inner.readiness(flow, direction),
        }
    }
}

/// Gives updates to an application that waits at a pipe, and gives them back.
struct Application {
    pipe: File,
    back: Option<Message>,
    passages: Shared,
}

impl Partner for Application {
    fn open(&mut self, template: &FlowTemplate, _: &Attributes) -> Result<FlowKey, PartnerError> {
        sys::thread::pin_to_cpu(CPUS[1]);
        Ok(match template.direction {
            Direction::Out => FlowKey(1),
            Direction::In => FlowKey(2),
        })
    }

    fn close(&mut self, _: FlowKey) -> Result<(), PartnerError> {
        Ok(())
    }

    fn push(&mut self, _: FlowKey, message: Message) -> Result<Pushed, (PartnerError, Message)> {
        let written = message.body.chunks().try_for_each(|chunk| self.pipe.write_all(chunk));
        if let Err(error) = written {
            return Err((PartnerError::os("writing to the application", error), message));
        }
        let mut passages = lock(&self.passages);
        let came_ns = passages.came_ns;
        passages.parts[2].add(sys::clock::boot_ns().saturating_sub(came_ns));
        self.back = Some(message);
        Ok(Pushed::Taken)
    }

    fn pull(&mut self, flow: FlowKey, want: Pull<'_>) -> Result<Pulled, PartnerError> {
        let next = self.back.take().map_or(Next::Nothing, Next::Message);
        PullSlot::default().answer(flow, want, || Ok(next))
    }

    fn ctl(&mut self, _: FlowKey, _: Ctl<'_>) -> Result<CtlReply, PartnerError> {
        Ok(CtlReply::Done)
    }

    fn readiness(&self, _: FlowKey, direction: Direction) -> Readiness<'_> {
        match direction {
            Direction::Out if self.back.is_none() => Readiness::never(),
            _ => Readiness::now(),
        }
    }
}

/// The writing end of a pipe at which an application waits.
fn application() -> Result<File, Failure> {
    let (from, to) = rustix::pipe::pipe()?;
    thread::spawn(move || {
        sys::thread::pin_to_cpu(CPUS[1]);
        let (mut from, mut buffer) = (File::from(from), [0; 4096]);
        // It ends with its pipe.
        while from.read(&mut buffer).is_ok_and(|count| count > 0) {}
    });
    Ok(to.into())
}

fn ours(network: &Network, updates: usize) -> Result<[Times; 3], Failure> {
    let spec = format!("pattern:format=motion,rate={RATE_HZ},count={updates}");
    let spec = registry::device_spec(&spec, Role::Device)?;
    let class = registry::device_class(&spec.class).ok_or("there is no such device")?;
    let inner = class.partner(class.open(&spec, Role::Device, None)?)?;
    let passages = Shared::default();
    let (near, far) = (passages.clone(), passages.clone());
    let watch: Watch = Arc::new(move |passing, at, _| {
        let mut passages = lock(&near);
        match passing {
            Passing::Begin => {}
            Passing::Out => {
                let given_ns = passages.given_ns;
                passages.parts[0].add(at.saturating_sub(given_ns));
                passages.sent_ns = at;
            }
            Passing::In(_) => {
                let sent_ns = passages.sent_ns;
                passages.parts[1].add(at.saturating_sub(sent_ns) / 2);
            }
        }
    });
    NEAR.set(watch);
    FAR.set(Arc::new(move |passing, at, _| {
        if matches!(passing, Passing::In(_)) {
            lock(&far).came_ns = at;
        }
    }));
    let link = Link {
        transports: [&NEAR, &FAR],
        options: Options::defaults(NEAR.options())?,
        format: Format::Motion,
        class: FlowClass::State,
        both_ways: true,
        sealed: false,
    };
    let device = Box::new(Seen { inner, passages: passages.clone() });
    let application = Box::new(Application { pipe: application()?, back: None, passages: passages.clone() });
    let [near, far] = network.pair()?;
    let hosts = [Host { device, socket: near.into() }, Host { device: application, socket: far.into() }];
    ours::run(&link, hosts, || ())?;
    let mut passages = lock(&passages);
    Ok(std::mem::take(&mut passages.parts))
}

/// The bare mechanisms of the three parts, at the same pace.
fn limits(network: &Network, updates: usize) -> Result<[Times; 3], Failure> {
    let pause = Duration::from_secs_f64(1.0 / RATE_HZ);
    let bytes = MOTION_BYTES;
    let budget = 4 * pause * updates as u32;
    let block = Block { bytes: RecordHeader::BYTES + bytes, count: updates, budget };
    let socket = network.connect()?;
    let across = network.here(|| ping(socket, &block, pause))?;
    let (mut clock, mut written) = (Times::with_capacity(updates), Times::with_capacity(updates));
    let (mut pipe, update) = (application()?, noise(bytes));
    for _ in 0..updates {
        thread::sleep(pause);
        let before = sys::clock::boot_ns();
        let begun = sys::clock::boot_ns();
        pipe.write_all(&update)?;
        written.add(sys::clock::boot_ns() - begun);
        clock.add(begun - before);
    }
    Ok([clock, across, written])
}

/// Section 6.4.
pub(crate) fn device(setting: &ChapterSetting) -> Result<Vec<Row>, Failure> {
    let mut rows = Vec::new();
    let updates = setting.repeats.unwrap_or(UPDATES);
    Network::each(setting, &[], |network| {
        progress(&format!("device, {}: {:.0} s", network.kind, updates as f64 / RATE_HZ));
        let limits = limits(network, updates.min(LIMIT_UPDATES))?;
        let parts = ours(network, updates)?;
        for ((part, paper), (ours, limit)) in paper::DEVICE_US.iter().zip(parts.iter().zip(&limits)) {
            let params = params! { "network": network.kind.name(), "part": part, "link": "direct", "rate_hz": RATE_HZ };
            rows.push(Row::of_times("device", params, ours, Some(limit), Some(*paper)));
        }
        Ok(())
    })?;
    Ok(rows)
}
