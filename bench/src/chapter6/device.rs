//! Section 6.4: the path of a 3D mouse's update in three parts: from the device to the transport; half of the round trip
//! between the transports; from the transport to the application.
//!
//! The application writes each update back at once, as the dissertation's did. Both hosts' workers are threads of this
//! process, so that one clock is enough. An update reaches the application when it is in a pipe that a thread reads. The
//! bare mechanisms are reading the clock, a ping-pong over a plain socket at the same rate, and a write to such a pipe.

use super::instruments::{Gauge, Passing, Watch, lock, noise};
use super::network::Network;
use super::paper;
use super::row::{Row, Series, params};
use super::services::ping;
use super::setting::{Block, CPUS, Carrier, ChapterSetting, Turn, turns};
use crate::measure::Times;
use crate::ours::{self, Host, Link};
use crate::programs::progress;
use crate::setting::{Failure, be_like_a_worker};
use contract::{
    Attributes, Ctl, CtlReply, Direction, FlowClass, FlowKey, FlowTemplate, Format, Message, Next, Options,
    Partner, PartnerError, PartnerResult, Pull, PullSlot, Pulled, Pushed, Readiness, Role, TransportClass,
};
use modules::registry;
use std::fs::File;
use std::io::{Read, Write};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;
use wire::RecordHeader;
use wire::formats::motion::MOTION_BYTES;

/// The dissertation's updates and their rate.
const UPDATES: usize = 2000;
const RATE_HZ: f64 = 62.5;
/// Most updates of the bare mechanisms.
const BARE_UPDATES: usize = 200;
/// The device's flow back. It discards each update.
const BACK: FlowKey = FlowKey(u32::MAX);

/// The transports of this host and of the far one.
static TCP: [Gauge; 2] = [Gauge::tcp(), Gauge::tcp()];
static QUIC: [Gauge; 2] = [Gauge::quic(), Gauge::quic()];

/// The times at which the current update passed, and the times of the parts.
#[derive(Default)]
struct Passages {
    given_ns: u64,
    sent_ns: u64,
    came_ns: u64,
    parts: [Times; 3],
}

type Shared = Arc<Mutex<Passages>>;

/// A device that records when the path takes an update from it.
struct Seen {
    inner: Box<dyn Partner>,
    passages: Shared,
}

impl Partner for Seen {
    fn open(&mut self, template: &FlowTemplate, attributes: &Attributes) -> PartnerResult<FlowKey> {
        crate::setting::pin_to_cpu(CPUS[0]);
        match template.direction {
            Direction::Out => self.inner.open(template, attributes),
            Direction::In => Ok(BACK),
        }
    }

    fn close(&mut self, flow: FlowKey) -> PartnerResult {
        if flow == BACK { Ok(()) } else { self.inner.close(flow) }
    }

    fn push(&mut self, _: FlowKey, _: Message) -> Result<Pushed, (PartnerError, Message)> {
        Ok(Pushed::Taken)
    }

    fn pull(&mut self, flow: FlowKey, request: Pull<'_>) -> PartnerResult<Pulled> {
        let pulled = self.inner.pull(flow, request)?;
        if let Pulled::Message(..) = pulled {
            lock(&self.passages).given_ns = sys::clock::boot_ns();
        }
        Ok(pulled)
    }

    fn ctl(&mut self, flow: FlowKey, operation: Ctl<'_>) -> PartnerResult<CtlReply> {
        if flow == BACK { Ok(CtlReply::Done) } else { self.inner.ctl(flow, operation) }
    }

    fn readiness(&self, flow: FlowKey, direction: Direction) -> Readiness<'_> {
        match direction {
            Direction::In => Readiness::now(),
            Direction::Out => self.inner.readiness(flow, direction),
        }
    }
}

/// Writes updates to a pipe that an application reads, and sends them back.
struct Application {
    pipe: File,
    back: Option<Message>,
    passages: Shared,
}

impl Partner for Application {
    fn open(&mut self, template: &FlowTemplate, _: &Attributes) -> PartnerResult<FlowKey> {
        crate::setting::pin_to_cpu(CPUS[1]);
        Ok(match template.direction {
            Direction::Out => FlowKey(1),
            Direction::In => FlowKey(2),
        })
    }

    fn close(&mut self, _: FlowKey) -> PartnerResult {
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

    fn pull(&mut self, flow: FlowKey, request: Pull<'_>) -> PartnerResult<Pulled> {
        let next = self.back.take().map_or(Next::Nothing, Next::Message);
        PullSlot::default().answer(flow, request, || Ok(next))
    }

    fn ctl(&mut self, _: FlowKey, _: Ctl<'_>) -> PartnerResult<CtlReply> {
        Ok(CtlReply::Done)
    }

    fn readiness(&self, _: FlowKey, direction: Direction) -> Readiness<'_> {
        match direction {
            Direction::Out if self.back.is_none() => Readiness::never(),
            _ => Readiness::now(),
        }
    }
}

/// Returns the writing end of a pipe that a thread reads.
fn application() -> Result<File, Failure> {
    let (from, to) = rustix::pipe::pipe()?;
    thread::spawn(move || {
        crate::setting::pin_to_cpu(CPUS[1]);
        let (mut from, mut buffer) = (File::from(from), [0; 4096]);
        // The thread exits when the pipe closes.
        while from.read(&mut buffer).is_ok_and(|count| count > 0) {}
    });
    Ok(to.into())
}

fn ours(network: &Network, carrier: Carrier, updates: usize) -> Result<[Times; 3], Failure> {
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
    let [near_gauge, far_gauge] = if carrier == Carrier::Tcp { &TCP } else { &QUIC };
    near_gauge.set(watch);
    far_gauge.set(Arc::new(move |passing, at, _| {
        if matches!(passing, Passing::In(_)) {
            lock(&far).came_ns = at;
        }
    }));
    let link = Link {
        transports: [near_gauge, far_gauge],
        options: Options::defaults(near_gauge.options())?,
        format: Format::Motion,
        class: FlowClass::State,
        both_ways: true,
        sealed: carrier == Carrier::Sealed,
    };
    let device = Box::new(Seen { inner, passages: passages.clone() });
    let application = Box::new(Application { pipe: application()?, back: None, passages: passages.clone() });
    let [near, far] = network.ends(carrier)?;
    let hosts = [Host { device, socket: near }, Host { device: application, socket: far }];
    ours::run(&link, hosts, || ())?;
    let mut passages = lock(&passages);
    Ok(std::mem::take(&mut passages.parts))
}

/// Measures the bare mechanisms of the three parts at the same rate.
fn bare(network: &Network, updates: usize) -> Result<[Times; 3], Failure> {
    let pause = Duration::from_secs_f64(1.0 / RATE_HZ);
    let bytes = MOTION_BYTES;
    let budget = 4 * pause * updates as u32;
    let block = Block { bytes: RecordHeader::BYTES + bytes, count: updates, budget };
    let socket = network.connect()?;
    let across = network.here(|| ping(socket, &block, pause))?;
    let (mut clock, mut written) = (Times::with_capacity(updates), Times::with_capacity(updates));
    let (mut pipe, update) = (application()?, noise(bytes));
    network.here(|| {
        be_like_a_worker();
        for _ in 0..updates {
            thread::sleep(pause);
            let before = sys::clock::boot_ns();
            let begun = sys::clock::boot_ns();
            pipe.write_all(&update)?;
            written.add(sys::clock::boot_ns() - begun);
            clock.add(begun - before);
        }
        Ok(())
    })?;
    Ok([clock, across, written])
}

/// Section 6.4.
pub(crate) fn device(setting: &ChapterSetting) -> Result<Vec<Row>, Failure> {
    let mut rows = Vec::new();
    let updates = setting.repeats.unwrap_or(UPDATES).div_ceil(setting.turns());
    Network::each(setting, &[], |network| {
        let seconds = 2.0 * (setting.turns() * updates) as f64 / RATE_HZ;
        progress(&format!("device, {}: {seconds:.0} s", network.kind));
        let [mut tcp, mut sealed, mut plain] = <[[Times; 3]; 3]>::default();
        for turn in turns(setting.rounds) {
            let (all, parts) = match turn {
                Turn::Bare => (&mut plain, bare(network, updates.min(BARE_UPDATES))?),
                Turn::Ours(Carrier::Tcp) => (&mut tcp, ours(network, Carrier::Tcp, updates)?),
                Turn::Ours(Carrier::Sealed) => (&mut sealed, ours(network, Carrier::Sealed, updates)?),
            };
            all.iter_mut().zip(&parts).for_each(|(all, part)| all.append(part));
        }
        for (at, (part, paper)) in paper::DEVICE_US.iter().enumerate() {
            let params = params! { "network": network.kind.name(), "part": part, "link": "direct", "rate_hz": RATE_HZ };
            let series = Series { ours: tcp.get(at), sealed: sealed.get(at), bare: plain.get(at) };
            rows.push(Row::of_times("device", params, series, Some(*paper), setting.turns()));
        }
        Ok(())
    })?;
    Ok(rows)
}
