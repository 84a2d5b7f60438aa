//! Sections 6.2 and 6.8.2: from creating a message until right before the write to the network, on one machine.
//!
//! Outboard's own worker runs the path: a device, the source halves of the pairs, TCP. A thread reads the bytes at the
//! other end. The bare mechanism of pipes is the same message through as many bare programs; that of shared memory is 16
//! bytes through them, as a descriptor of the message; that of calls is reading the clock.

use super::instruments::{Gauge, Pacer, Passing, Probe, Watch, lock};
use super::paper;
use super::relay::Chain;
use super::row::{Row, Series, params};
use super::setting::{Block, CPUS, ChapterSetting, LinkKind, WATCHDOG, parse};
use crate::measure::Times;
use crate::programs::progress;
use crate::setting::Failure;
use contract::{FlowClass, FlowDirection, Format, Options, Partner, Role, Site};
use flow::{FlowPlan, LinkFacts};
use hub::PartnerOrigin;
use modules::TransportPlan;
use session::Limits;
use std::io::Read;
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Duration;
use worker::{Command, DriverPlan, Worker};

/// Bytes of a descriptor of a message in shared memory.
const DESCRIPTOR_BYTES: usize = 16;
/// The dissertation's measurements of a point.
const REPEATS: usize = 450;
const DRIVER: u32 = 0;

static GAUGE: Gauge = Gauge::tcp();

/// Processors that the host uses: one, as the dissertation's in section 6.8, or both.
const CORES: [usize; 2] = [1, 2];

/// Runs `act` on one processor or on both.
fn with_cores<T: Send>(cores: usize, act: impl FnOnce() -> Result<T, Failure> + Send) -> Result<T, Failure> {
    thread::scope(|scope| {
        let handle = scope.spawn(|| {
            if cores == 1 {
                crate::setting::pin_to_cpu(CPUS[0]);
            }
            act()
        });
        handle.join().map_err(|_| "a thread panicked")?
    })
}

/// A path of this host.
pub(crate) struct Sending<'a> {
    pub(crate) device: Box<dyn Partner>,
    pub(crate) format: Format,
    pub(crate) pipeline: &'a str,
    pub(crate) options: Options,
    /// Receives the transport's events.
    pub(crate) watch: Watch,
}

/// Runs a path from its device into `socket` until the first result.
pub(crate) fn send<T>(sending: Sending<'_>, socket: TcpStream, results: &Receiver<T>) -> Result<T, Failure> {
    let Sending { device, format, pipeline, options, watch } = sending;
    GAUGE.set(watch);
    let plan = FlowPlan {
        flow: 1,
        direction: FlowDirection::DeviceToApplication,
        // The other end acknowledges nothing, so the flow must not keep unacknowledged records.
        class: FlowClass::Timely,
        format,
        pipeline: parse(pipeline)?,
        requested: Vec::new(),
        site: Site::default(),
    };
    let worker = Worker::start("near", Limits::default())?;
    let transport = TransportPlan { class: &GAUGE, options };
    let origin = PartnerOrigin::Ready(device);
    let plan = DriverPlan { role: Role::Device, flows: vec![plan], transport };
    let commands = [
        Command::Facts(LinkFacts::default()),
        Command::Add { driver: DRIVER, origin, plan },
        Command::Link { driver: DRIVER, transport: None, socket: socket.into(), keys: None },
    ];
    if !commands.into_iter().all(|command| worker.send(command)) {
        return Err("the worker hangs".into());
    }
    results.recv_timeout(WATCHDOG).map_err(|_| match worker.poll() {
        Some(report) => format!("the path failed: {report:?}").into(),
        None => "the path gave no results".into(),
    })
}

/// Returns a connection to a thread that reads everything.
fn drained() -> Result<TcpStream, Failure> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let near = TcpStream::connect(listener.local_addr()?)?;
    let (mut far, _) = listener.accept()?;
    near.set_nodelay(true)?;
    thread::spawn(move || {
        crate::setting::pin_to_cpu(CPUS[1]);
        let mut buffer = vec![0; 1 << 20];
        // The thread exits when the connection closes.
        while far.read(&mut buffer).is_ok_and(|count| count > 0) {}
    });
    Ok(near)
}

/// Outboard's times, block by block.
fn ours(blocks: &[Block], pause: Duration, pipeline: &str) -> Result<Vec<Times>, Failure> {
    let (results, times) = channel();
    let pacer = Pacer::new(blocks, pause);
    let watched = pacer.clone();
    lock(&pacer).hold();
    let watch: Watch = Arc::new(move |passing, at, _| match passing {
        Passing::Begin => lock(&watched).release(),
        Passing::Out => lock(&watched).answer(at, 1),
        Passing::In(_) => {}
    });
    let device = Box::new(Probe { pacer, results });
    let options = Gauge::unqueued()?;
    send(Sending { device, format: Format::Bytes, pipeline, options, watch }, drained()?, &times)
}

/// The bare mechanism's times, block by block.
pub(crate) fn bare(
    blocks: &[Block],
    pause: Duration,
    link: LinkKind,
    programs: usize,
) -> Result<Vec<Times>, Failure> {
    if link == LinkKind::Direct || programs == 0 {
        return Ok(blocks.iter().map(clock_alone).collect());
    }
    let mut chain = Chain::start(programs)?;
    let small = |block: &Block| Block { bytes: DESCRIPTOR_BYTES, ..*block };
    let block = |block: &Block| if link == LinkKind::Shm { small(block) } else { *block };
    blocks.iter().map(|each| chain.measure(&block(each), pause)).collect()
}

/// The times of reading the clock twice.
fn clock_alone(block: &Block) -> Times {
    let mut times = Times::with_capacity(block.count);
    for _ in 0..block.count {
        let made = sys::clock::boot_ns();
        times.add(sys::clock::boot_ns() - made);
    }
    times
}

/// Appends one round's times, size by size.
pub(crate) fn join(all: &mut Vec<Times>, round: Vec<Times>) {
    all.resize_with(round.len().max(all.len()), Times::default);
    all.iter_mut().zip(&round).for_each(|(all, times)| all.append(times));
}

/// Measures a series of sizes. Returns Outboard's times and the bare mechanism's.
fn series(
    setting: &ChapterSetting,
    sizes: &[usize],
    cores: usize,
    link: LinkKind,
    pairs: usize,
) -> Result<[Vec<Times>; 2], Failure> {
    let blocks: Vec<Block> = sizes.iter().map(|bytes| setting.block(*bytes, REPEATS)).collect();
    let pipeline = link.pipeline(pairs);
    let (mut all, mut plain) = (Vec::new(), Vec::new());
    for round in 0..setting.turns() {
        // Every other round runs in reverse order.
        for turn in [round, round + 1] {
            match turn.is_multiple_of(2) {
                true => join(&mut plain, with_cores(cores, || bare(&blocks, setting.pause, link, pairs))?),
                false => join(&mut all, with_cores(cores, || ours(&blocks, setting.pause, &pipeline))?),
            }
        }
    }
    Ok([all, plain])
}

/// Section 6.2: no pairs. Pipes or shared memory join the dissertation's modules even so; Outboard's is a call.
pub(crate) fn single_machine(setting: &ChapterSetting) -> Result<Vec<Row>, Failure> {
    let grid = &paper::SINGLE_MACHINE;
    let sizes = ChapterSetting::or(&setting.sizes, grid.columns.iter().map(|bytes| *bytes as usize));
    let mut rows = Vec::new();
    for cores in CORES {
        progress(&format!("single-machine, {cores} cores"));
        let [ours, bare] = series(setting, &sizes, cores, LinkKind::Direct, 0)?;
        for (link, _) in grid.rows {
            for (at, bytes) in sizes.iter().enumerate() {
                let params = params! {
                    "bytes": bytes, "link": "direct", "paper_link": link, "cores": cores,
                    "pause_ms": setting.pause.as_secs_f64() * 1e3,
                };
                let series = Series { ours: ours.get(at), sealed: None, bare: bare.get(at) };
                let paper = grid.at(link, *bytes as u64);
                rows.push(Row::of_times("single-machine", params, series, paper, setting.turns()));
            }
        }
    }
    Ok(rows)
}

/// Section 6.8.2: 0 to 8 pairs.
pub(crate) fn stages(setting: &ChapterSetting) -> Result<Vec<Row>, Failure> {
    let sizes =
        ChapterSetting::or(&setting.sizes, paper::MACHINE_PIPE.columns.iter().map(|bytes| *bytes as usize));
    let pairs = ChapterSetting::or(&setting.pairs, 0..=8);
    let mut rows = Vec::new();
    for cores in CORES {
        for link in setting.links() {
            progress(&format!("stages of a single machine, {}, {cores} cores", link.name()));
            for pairs in &pairs {
                let [ours, bare] = series(setting, &sizes, cores, link, *pairs)?;
                for (at, bytes) in sizes.iter().enumerate() {
                    let params = params! {
                        "part": "machine", "bytes": bytes, "link": link.name(), "pairs": pairs, "cores": cores,
                        "pause_ms": setting.pause.as_secs_f64() * 1e3,
                    };
                    let paper = link.paper([&paper::MACHINE_PIPE, &paper::MACHINE_SHARED], *pairs, *bytes);
                    let series = Series { ours: ours.get(at), sealed: None, bare: bare.get(at) };
                    rows.push(Row::of_times("stages", params, series, paper, setting.turns()));
                }
            }
        }
    }
    Ok(rows)
}
