//! Streams of PipeWire.
//!
//! | side | to the application | to the device |
//! |---|---|---|
//! | device | a stream that records a source | a stream that plays to a sink |
//! | application | an `Audio/Source` node, which programs record | an `Audio/Sink` node, which programs play to |
//!
//! | state of a thread | event | next state |
//! |---|---|---|
//! | connected | the server has listed its nodes, and the device is among them | streaming |
//! | connected | the device is not among them | absent; the first time an error |
//! | streaming | the device goes | absent |
//! | absent | a device of this name comes | streaming |
//! | any | the server goes, or a stream fails | not connected: tries again every second |
//! | any | the worker's end is gone | ended |
//!
//! The library calls `process` in a thread of its own with real-time priority. Its closures own all that they use, and neither
//! wait nor take locks.

use super::engine::{Other, Started, ThreadEnd};
use super::player::Player;
use super::recorder::Recorder;
use super::{FRAME_BYTES, Facts, Frame, Plan, QUANTUM_FRAMES, RATE_HZ, SPEC, Target};
use crate::plain::os;
use crate::stream_parameter::serialize;
use ::pipewire as pw;
use contract::{DeviceError, Listing, Role};
use pw::properties::{PropertiesBox, properties};
use pw::spa::param::audio::{AudioFormat, AudioInfoRaw, MAX_CHANNELS};
use pw::spa::pod::Pod;
use pw::spa::support::system::IoFlags;
use pw::spa::sys as spa;
use pw::spa::utils::{Direction, Fraction, SpaTypes};
use pw::stream::{StreamFlags, StreamListener, StreamRc, StreamState};
use pw::types::ObjectType;
use smallvec::SmallVec;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::rc::Rc;
use std::time::Duration;
use sys::clock::{boot_ns, monotonic_ns};
use wire::formats::audio::FRAMES_MAX;

/// Name of the program at the server. Its nodes are recognized by it.
const APPLICATION: &str = "Outboard";
/// The time for the server to list its nodes.
const LIST_TIMEOUT: Duration = Duration::from_secs(3);
/// The most nodes of a server that are considered.
const NODES_MAX: usize = 1024;

/// The kind of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum NodeKind {
    Source,
    Sink,
}

/// A source or a sink of the server.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Node {
    kind: NodeKind,
    name: String,
    description: String,
    client: Option<u32>,
}

impl Node {
    fn is_named(&self, name: &str) -> bool {
        self.name == name || self.description == name
    }

    fn title(&self) -> &str {
        if self.description.is_empty() { &self.name } else { &self.description }
    }
}

/// The sources and sinks of the server, by their numbers, and the numbers of Outboard's clients.
#[derive(Debug, Default)]
struct Nodes {
    nodes: BTreeMap<u32, Node>,
    own_clients: Vec<u32>,
}

impl Nodes {
    fn add(&mut self, global: &pw::registry::GlobalObject<&pw::spa::utils::dict::DictRef>) {
        let Some(found) = global.props else { return };
        let text = |key| found.get(key).unwrap_or("").to_string();
        if global.type_ == ObjectType::Client && found.get("application.name") == Some(APPLICATION) {
            self.own_clients.push(global.id);
        }
        let kind = match found.get("media.class") {
            Some("Audio/Source" | "Audio/Source/Virtual") => NodeKind::Source,
            Some("Audio/Sink") => NodeKind::Sink,
            _ => return,
        };
        if global.type_ == ObjectType::Node && self.nodes.len() < NODES_MAX {
            let (name, description) = (text("node.name"), text("node.description"));
            let client = found.get("client.id").and_then(|client| client.parse().ok());
            self.nodes.insert(global.id, Node { kind, name, description, client });
        }
    }

    fn is_own(&self, node: &Node) -> bool {
        node.client.is_some_and(|client| self.own_clients.contains(&client))
    }

    /// Returns the node with this name, else the one with this description. The source and the sink of a headset may have one
    /// description: without a kind, the sink comes first.
    fn find(&self, name: &str, kind: Option<NodeKind>) -> Option<(u32, &Node)> {
        let is_kind = |node: &Node| kind.is_none_or(|kind| node.kind == kind);
        let nodes = self.nodes.iter().filter(|(_, node)| node.is_named(name) && is_kind(node));
        nodes
            .min_by_key(|(_, node)| (node.name != name, node.kind == NodeKind::Source))
            .map(|(id, node)| (*id, node))
    }
}

/// Why a session with the server ended.
#[derive(Debug)]
enum End {
    /// The worker's end is gone.
    Released,
    Failed(DeviceError),
}

fn failed(operation: &str) -> impl Fn(pw::Error) -> DeviceError + '_ {
    move |error| {
        let advice = "is PipeWire running? `pw-cli info 0`";
        os(format!("{operation} PipeWire"), io::Error::other(error.to_string()), Some(advice))
    }
}

/// Runs the streams of a plan until the worker's end is gone.
pub(super) fn run(plan: &Plan, end: &ThreadEnd, started: &mut Started) {
    pw::init();
    let mut plan = plan.clone();
    loop {
        match session(&mut plan, end, started) {
            Ok(()) => return,
            Err(error) if started.is_pending() => return started.report(Err(error)),
            Err(_) if plan.role == Role::Device => end.set_absent(true),
            Err(_) => {}
        }
        if !end.wait_to_retry() {
            return;
        }
    }
}

/// Returns the context of a client whose thread for sound has a real-time priority, if the user may have one. A node that is late
/// delays all others of its server. Servers from 1.3 on give one to every client, and may lack this configuration.
fn context(main: &pw::main_loop::MainLoopRc) -> Result<pw::context::ContextRc, pw::Error> {
    let real_time = properties! { *pw::keys::CONFIG_NAME => "client-rt.conf" };
    pw::context::ContextRc::new(main, Some(real_time)).or_else(|_| pw::context::ContextRc::new(main, None))
}

/// One connection with the server. The plan of a named device gets the directions of the node that was found.
fn session(plan: &mut Plan, end: &ThreadEnd, started: &mut Started) -> Result<(), DeviceError> {
    let main = pw::main_loop::MainLoopRc::new(None).map_err(failed("starting the loop of"))?;
    let context = context(&main).map_err(failed("preparing"))?;
    let client = properties! { *pw::keys::APP_NAME => APPLICATION };
    let core = context.connect_rc(Some(client)).map_err(failed("connecting to"))?;
    let registry = core.get_registry_rc().map_err(failed("listing the nodes of"))?;
    let state = Rc::new(RefCell::new(Session {
        plan: plan.clone(),
        end: end.clone(),
        core: core.clone(),
        main: main.clone(),
        nodes: Nodes::default(),
        is_listed: false,
        device: None,
        streams: Vec::new(),
        outcome: None,
    }));

    let listed = core.sync(0).map_err(failed("asking"))?;
    let (on_done, on_error) = (state.clone(), state.clone());
    let _core_listener = core
        .add_listener_local()
        .done(move |_, sequence| {
            if sequence == listed {
                let mut session = on_done.borrow_mut();
                session.is_listed = true;
                session.main.quit();
            }
        })
        .error(move |id, _, result, message| {
            // Errors of other objects concern streams, which report them.
            if id == pw::core::PW_ID_CORE {
                let error = io::Error::other(format!("{message} ({result})"));
                on_error.borrow_mut().fail(os("talking to PipeWire".into(), error, None));
            }
        })
        .register();
    let (on_global, on_remove) = (state.clone(), state.clone());
    let _registry_listener = registry
        .add_listener_local()
        .global(move |global| {
            let mut session = on_global.borrow_mut();
            session.nodes.add(global);
            if session.is_listed {
                session.find_device();
            }
        })
        .global_remove(move |id| on_remove.borrow_mut().remove(id))
        .register();
    let on_control = state.clone();
    let control = Control(end.control().as_raw_fd());
    let _control = main.loop_().add_io(control, IoFlags::IN | IoFlags::HUP | IoFlags::ERR, move |_| {
        on_control.borrow_mut().handle_control();
    });

    main.run();
    state.borrow_mut().begin(started)?;
    if state.borrow().outcome.is_none() {
        main.run();
    }
    let mut session = state.borrow_mut();
    session.streams.clear();
    *plan = session.plan.clone();
    match session.outcome.take() {
        Some(End::Released) => Ok(()),
        Some(End::Failed(error)) => Err(error),
        None => Err(os("using a stream of PipeWire".into(), io::Error::other("it failed"), None)),
    }
}

/// The control socket, which the thread's end owns.
struct Control(RawFd);

impl AsRawFd for Control {
    fn as_raw_fd(&self) -> RawFd {
        self.0
    }
}

/// One stream with its callbacks.
struct Stream {
    /// First, so that no callback runs while the stream is destroyed.
    _listener: StreamListener<()>,
    stream: StreamRc,
    /// It records a device, so it runs only while the frames are wanted.
    is_on_demand: bool,
}

impl Drop for Stream {
    /// The thread of the library may be in `process`, whose closure the listener owns: `disconnect` waits for it, and lets none follow.
    fn drop(&mut self) {
        let _ = self.stream.disconnect();
    }
}

/// The state of one connection with the server.
struct Session {
    plan: Plan,
    end: ThreadEnd,
    core: pw::core::CoreRc,
    main: pw::main_loop::MainLoopRc,
    nodes: Nodes,
    is_listed: bool,
    /// The number of the device's node, if the plan names one.
    device: Option<u32>,
    streams: Vec<Stream>,
    outcome: Option<End>,
}

impl Session {
    fn fail(&mut self, error: DeviceError) {
        self.outcome.get_or_insert(End::Failed(error));
        self.main.quit();
    }

    fn handle_control(&mut self) {
        if self.end.clear() == Other::Gone {
            self.outcome = Some(End::Released);
            self.main.quit();
            return;
        }
        let is_wanted = self.end.is_wanted();
        for stream in self.streams.iter().filter(|stream| stream.is_on_demand) {
            // An error shows in the state of the stream.
            let _ = stream.stream.set_active(is_wanted);
        }
    }

    /// Makes the streams after the first listing, and reports the result.
    fn begin(&mut self, started: &mut Started) -> Result<(), DeviceError> {
        match self.outcome.take() {
            Some(End::Failed(error)) => return Err(error),
            Some(End::Released) => {
                self.outcome = Some(End::Released);
                return Ok(());
            }
            None => {}
        }
        let facts = match (self.plan.role, self.plan.target.clone()) {
            (Role::Device, Target::Name(name)) => {
                self.find_device();
                let Some(id) = self.device else {
                    if started.is_pending() {
                        return Err(DeviceError::Spec {
                            what: format!("audio:{name}"),
                            problem:
                                "no microphone and no speaker has this name; `outboard devices` lists them"
                                    .into(),
                        });
                    }
                    self.end.set_absent(true);
                    return Ok(());
                };
                let node = &self.nodes.nodes[&id];
                let (name, is_source) = (node.title().to_string(), node.kind == NodeKind::Source);
                Facts { name, to_application: is_source, to_device: !is_source }
            }
            (role, _) => {
                let has = |flow: Option<bool>| flow.unwrap_or(true);
                let (to_application, to_device) = (has(self.plan.to_application), has(self.plan.to_device));
                self.make_streams(to_application, to_device, None)?;
                let name = match role {
                    Role::Device => super::host_name(),
                    Role::Application => self.plan.name.clone(),
                };
                Facts { name, to_application, to_device }
            }
        };
        self.end.set_absent(false);
        started.report(Ok(facts));
        Ok(())
    }

    /// Makes the stream of the named device, if it is there and has none.
    fn find_device(&mut self) {
        let (Role::Device, Target::Name(name), None) = (self.plan.role, &self.plan.target, self.device)
        else {
            return;
        };
        let kind = self.plan.to_application.map(|has| if has { NodeKind::Source } else { NodeKind::Sink });
        let Some((id, node)) = self.nodes.find(name, kind) else { return };
        let (is_source, target) = (node.kind == NodeKind::Source, node.name.clone());
        self.device = Some(id);
        // A device that returns has the direction that it had.
        (self.plan.to_application, self.plan.to_device) = (Some(is_source), Some(!is_source));
        match self.make_streams(is_source, !is_source, Some(&target)) {
            Ok(()) => self.end.set_absent(false),
            Err(error) => self.fail(error),
        }
    }

    fn remove(&mut self, id: u32) {
        self.nodes.nodes.remove(&id);
        if self.device == Some(id) {
            self.device = None;
            self.streams.clear();
            self.end.set_absent(true);
            // The same name may belong to another node by now.
            self.find_device();
        }
    }

    fn make_streams(
        &mut self,
        to_application: bool,
        to_device: bool,
        target: Option<&str>,
    ) -> Result<(), DeviceError> {
        let (records, plays) = match self.plan.role {
            Role::Device => (to_application, to_device),
            Role::Application => (to_device, to_application),
        };
        for direction in
            [(records, Direction::Input), (plays, Direction::Output)].into_iter().filter(|(has, _)| *has)
        {
            let stream = self.make_stream(direction.1, target).map_err(failed("making a stream of"))?;
            self.streams.push(stream);
        }
        Ok(())
    }

    fn make_stream(&self, direction: Direction, target: Option<&str>) -> Result<Stream, pw::Error> {
        let is_input = direction == Direction::Input;
        let (mut properties, flags) = match self.plan.role {
            Role::Device => (stream_properties(is_input, target), StreamFlags::AUTOCONNECT),
            Role::Application => (node_properties(is_input, &self.plan.name), StreamFlags::empty()),
        };
        properties.insert(*pw::keys::NODE_LATENCY, format!("{QUANTUM_FRAMES}/{RATE_HZ}"));
        let is_on_demand = is_input && self.plan.role == Role::Device;
        let inactive = match is_on_demand && !self.end.is_wanted() {
            true => StreamFlags::INACTIVE,
            false => StreamFlags::empty(),
        };
        let stream = StreamRc::new(self.core.clone(), &self.plan.name, properties)?;
        let main = self.main.clone();
        let listener = stream.add_local_listener::<()>().state_changed(move |_, (), _, state| {
            // The session begins anew, which finds out whether the server is there.
            if let StreamState::Error(_) = state {
                main.quit();
            }
        });
        let listener = match is_input {
            true => {
                let position = boot_ns() / 1_000 * u64::from(RATE_HZ) / 1_000_000;
                let mut recorder = Recorder::new(self.end.memory.clone(), self.end.wake(), position);
                let mut ticks = Ticks::default();
                listener.process(move |stream, ()| record(stream, &mut recorder, &mut ticks))
            }
            false => {
                let mut player = Player::new(self.end.memory.clone());
                let mut frames = vec![Frame::default(); FRAMES_MAX];
                listener.process(move |stream, ()| play(stream, &mut player, &mut frames))
            }
        };
        let listener = listener.register()?;
        let format = format_parameter();
        let mut parameters = [Pod::from_bytes(&format).ok_or(pw::Error::CreationFailed)?];
        let flags = flags | inactive | StreamFlags::MAP_BUFFERS | StreamFlags::RT_PROCESS;
        stream.connect(direction, None, flags, &mut parameters)?;
        Ok(Stream { _listener: listener, stream, is_on_demand })
    }
}

/// Properties of a stream that uses a device, or the default one.
fn stream_properties(is_input: bool, target: Option<&str>) -> PropertiesBox {
    let mut properties = properties! {
        *pw::keys::MEDIA_TYPE => "Audio",
        *pw::keys::MEDIA_CATEGORY => if is_input { "Capture" } else { "Playback" },
        *pw::keys::MEDIA_ROLE => "Communication",
        *pw::keys::NODE_NAME => "outboard",
        *pw::keys::NODE_DESCRIPTION => APPLICATION,
    };
    if let Some(target) = target {
        properties.insert(*pw::keys::TARGET_OBJECT, target);
        // Never another microphone than the shared one.
        properties.insert(*pw::keys::NODE_DONT_RECONNECT, "true");
    }
    properties
}

/// Properties of a node for programs. Its name has only characters that programs accept in a name.
fn node_properties(is_sink: bool, name: &str) -> PropertiesBox {
    let plain = |one: char| if one.is_ascii_alphanumeric() || matches!(one, '.' | '-') { one } else { '_' };
    properties! {
        *pw::keys::MEDIA_CLASS => if is_sink { "Audio/Sink" } else { "Audio/Source" },
        *pw::keys::NODE_NAME => name.chars().map(plain).collect::<String>(),
        *pw::keys::NODE_DESCRIPTION => name,
        *pw::keys::NODE_VIRTUAL => "true",
    }
}

/// Returns the format of all streams, as a parameter for the server.
fn format_parameter() -> Vec<u8> {
    let mut info = AudioInfoRaw::new();
    info.set_format(AudioFormat::S16LE);
    info.set_rate(RATE_HZ);
    info.set_channels(super::CHANNELS as u32);
    let mut position = [0; MAX_CHANNELS];
    (position[0], position[1]) = (spa::SPA_AUDIO_CHANNEL_FL, spa::SPA_AUDIO_CHANNEL_FR);
    info.set_position(position);
    serialize(SpaTypes::ObjectParamFormat, spa::SPA_PARAM_EnumFormat, info.into())
}

/// The position of the server's clock, in frames of this stream.
#[derive(Debug, Default)]
struct Ticks(Option<u64>);

impl Ticks {
    /// Returns the frames that passed without this stream: it was late, or another node was.
    fn missed(&mut self, time: &pw::stream::Time, frames: u64) -> u64 {
        let at = frames_of(time.ticks(), time.rate());
        let passed = self.0.replace(at).map_or(frames, |before| at.saturating_sub(before));
        // Quanta of another rate are rounded.
        passed.saturating_sub(frames + 1)
    }
}

/// Returns the frames of this stream in `ticks` of this rate.
fn frames_of(ticks: u64, rate: Fraction) -> u64 {
    let frames =
        u128::from(ticks) * u128::from(RATE_HZ) * u128::from(rate.num) / u128::from(rate.denom.max(1));
    u64::try_from(frames).unwrap_or(0)
}

/// Returns the age of the newest frame, in frames. The delay of a source is the age of the first frame of its quantum
/// (`pw_time`); headsets with Bluetooth have a few hundred milliseconds.
fn age(delay_ticks: i64, rate: Fraction, quantum_frames: u64) -> u64 {
    let delay_frames = frames_of(u64::try_from(delay_ticks).unwrap_or(0), rate);
    delay_frames.saturating_sub(quantum_frames).min(RATE_HZ.into())
}

/// Passes recorded frames to the recorder.
fn record(stream: &pw::stream::Stream, recorder: &mut Recorder, ticks: &mut Ticks) {
    let now_ns = boot_ns();
    // Several wait if this thread was late.
    let mut buffers: SmallVec<[_; 8]> = std::iter::from_fn(|| stream.dequeue_buffer()).collect();
    let mut parts: SmallVec<[&[u8]; 8]> = SmallVec::new();
    for buffer in &mut buffers {
        let [data, ..] = buffer.datas_mut() else { continue };
        let (offset, size) = (data.chunk().offset() as usize, data.chunk().size() as usize);
        parts.extend(data.data().and_then(|bytes| bytes.get(offset..offset.checked_add(size)?)));
    }
    let mut left = parts.iter().map(|part| (part.len() / FRAME_BYTES) as u64).sum();
    let (captured_ns, mut missed) = match stream.time() {
        Ok(time) => {
            let late_ns = monotonic_ns().saturating_sub(u64::try_from(time.now()).unwrap_or(u64::MAX));
            let quantum = parts.last().map_or(0, |part| (part.len() / FRAME_BYTES) as u64);
            let age_ns = SPEC.duration_ns(age(time.delay(), time.rate(), quantum));
            (now_ns.saturating_sub(late_ns).saturating_sub(age_ns), ticks.missed(&time, left))
        }
        Err(_) => (now_ns, 0),
    };
    for part in parts {
        left -= (part.len() / FRAME_BYTES) as u64;
        recorder.record(part, captured_ns.saturating_sub(SPEC.duration_ns(left)), missed);
        missed = 0;
    }
}

/// Fills a buffer with frames of the player.
fn play(stream: &pw::stream::Stream, player: &mut Player, frames: &mut [Frame]) {
    let Some(mut buffer) = stream.dequeue_buffer() else { return };
    let requested = usize::try_from(buffer.requested()).unwrap_or(0);
    let [data, ..] = buffer.datas_mut() else { return };
    let Some(bytes) = data.data() else { return };
    let room = (bytes.len() / FRAME_BYTES).min(frames.len());
    let count = if requested == 0 { room } else { requested.min(room) };
    player.pull(&mut frames[..count]);
    for (bytes, frame) in bytes.chunks_exact_mut(FRAME_BYTES).zip(&frames[..count]) {
        let [left, right] = frame.map(i16::to_le_bytes);
        bytes.copy_from_slice(&[left[0], left[1], right[0], right[1]]);
    }
    let chunk = data.chunk_mut();
    *chunk.offset_mut() = 0;
    *chunk.stride_mut() = FRAME_BYTES as i32;
    *chunk.size_mut() = (count * FRAME_BYTES) as u32;
}

/// Returns the sources and sinks of the server.
fn nodes() -> Result<Nodes, pw::Error> {
    pw::init();
    let main = pw::main_loop::MainLoopRc::new(None)?;
    let context = pw::context::ContextRc::new(&main, None)?;
    let core = context.connect_rc(None)?;
    let registry = core.get_registry_rc()?;
    let nodes = Rc::new(RefCell::new(Nodes::default()));
    let on_global = nodes.clone();
    let _registry =
        registry.add_listener_local().global(move |global| on_global.borrow_mut().add(global)).register();
    let listed = core.sync(0)?;
    let (on_done, on_error, on_timeout) = (main.clone(), main.clone(), main.clone());
    let _core = core
        .add_listener_local()
        .done(move |_, sequence| {
            if sequence == listed {
                on_done.quit();
            }
        })
        .error(move |_, _, _, _| on_error.quit())
        .register();
    let timer = main.loop_().add_timer(move |_| on_timeout.quit());
    let _ = timer.update_timer(Some(LIST_TIMEOUT), None);
    main.run();
    Ok(nodes.take())
}

/// Returns the nodes of the server; none if it does not list them.
fn found_nodes() -> Nodes {
    // The library belongs to the thread that uses it.
    std::thread::spawn(|| nodes().unwrap_or_default()).join().unwrap_or_default()
}

/// Returns true if the server has no source and no sink but those of Outboard.
pub(super) fn is_silent() -> bool {
    let found = found_nodes();
    found.nodes.values().all(|node| found.is_own(node))
}

/// Lists the sources and sinks of the server.
pub(super) fn list() -> Vec<Listing> {
    let found = found_nodes();
    let listing = |node: &Node| {
        let kind = match node.kind {
            NodeKind::Source => "microphone",
            NodeKind::Sink => "speaker",
        };
        Listing {
            spec: format!("audio:{}", node.name),
            summary: format!("{} ({kind})", node.title()),
            problem: None,
            ours: found.is_own(node),
        }
    };
    found.nodes.values().map(listing).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A headset with Bluetooth has a source only while it has the profile for calls.
    #[test]
    fn a_device_that_returns_has_the_kind_that_it_had() {
        let node =
            |kind, name: &str| Node { kind, name: name.into(), description: "Headset".into(), client: None };
        let (source, sink) = (NodeKind::Source, NodeKind::Sink);
        let mut nodes = Nodes::default();
        nodes.nodes.extend([(7, node(source, "input")), (9, node(sink, "output"))]);
        let found = |nodes: &Nodes, name: &str, kind| nodes.find(name, kind).map(|(id, _)| id);
        assert_eq!(found(&nodes, "Headset", Some(sink)), Some(9));
        assert_eq!(found(&nodes, "Headset", Some(source)), Some(7));
        assert_eq!(found(&nodes, "Headset", None), Some(9), "the description of both is the speaker's");
        assert_eq!(found(&nodes, "input", None), Some(7));
        nodes.nodes.remove(&9);
        assert_eq!(found(&nodes, "Headset", Some(sink)), None);
    }

    #[test]
    fn the_delay_of_a_device_is_the_age_of_its_frames() {
        let rate = |denom| Fraction { num: 1, denom };
        // A source without a delay, one that passes each quantum at once, and one that holds back a period of 1024.
        for (delay_ticks, denom, expected) in [
            (0, 48_000, 0),
            (240, 48_000, 0),
            (240 + 1024, 48_000, 1024),
            (480, 96_000, 0),
            (480 + 96, 96_000, 48),
            (-240, 48_000, 0),
            (240, 0, 48_000),
            (i64::MAX, 48_000, 48_000),
        ] {
            assert_eq!(age(delay_ticks, rate(denom), 240), expected, "{delay_ticks} of {denom} Hz");
        }
    }
}
