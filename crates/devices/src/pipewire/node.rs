//! The node at the PipeWire server: a stream that programs take pictures from.
//!
//! | state | event | next state |
//! |---|---|---|
//! | not connected | the server answers | connected |
//! | connected | the geometry of the pictures is known | paused: the node is there |
//! | paused | a program takes pictures | streaming: the camera is wanted, and the newest picture is shown at once |
//! | streaming | a new picture | streaming: it is shown |
//! | streaming | `REPEAT` without a new picture while the last one is stale, otherwise `SILENCE` | streaming: it is shown again, marked as a gap |
//! | streaming | no program takes pictures | paused; after `LINGER` the camera is not wanted |
//! | any | the server goes, or the stream fails | not connected: tries again every second |
//! | any | the worker's end is gone | ended |
//!
//! All callbacks run in this thread. A callback may be called within a call of the library, so no cell stays borrowed during one.

use super::Plan;
use super::engine::ThreadEnd;
use super::memory::{SLOT_BYTES, Word};
use crate::helper_thread::{Other, Started};
use crate::plain::os;
use crate::stream_parameter::{buffers, serialize};
use ::pipewire as pw;
use contract::DeviceError;
use pw::properties::{PropertiesBox, properties};
use pw::spa::buffer::meta::Metadata;
use pw::spa::param::format::{FormatProperties, MediaSubtype, MediaType};
use pw::spa::param::video::VideoFormat;
use pw::spa::pod::{ChoiceValue, Pod, Property, Value};
use pw::spa::support::system::IoFlags;
use pw::spa::sys as spa;
use pw::spa::utils::{Choice, ChoiceEnum, ChoiceFlags, Direction, Fraction, Id, Rectangle, SpaTypes};
use pw::stream::{StreamFlags, StreamListener, StreamRc, StreamState};
use std::cell::{Cell, RefCell};
use std::io;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::rc::Rc;
use std::sync::atomic::{AtomicI64, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;
use sys::clock::{boot_ns, monotonic_ns};
use sys::timer::BootTimer;
use wire::formats::video::{Geometry, PixelFormat};

/// Name of the program at the server.
const APPLICATION: &str = "Outboard";
/// The time between two repetitions of a stale picture, so that no program waits for a picture in vain.
const REPEAT: Duration = Duration::from_millis(100);
/// The same while nothing says that the picture is stale: its worker was killed, or a reliable flow waits for its link.
const SILENCE: Duration = Duration::from_secs(1);
/// The time between two attempts to show a picture while programs have no room for it.
const BUSY_INTERVAL: Duration = Duration::from_millis(20);
/// The time for which the camera counts as wanted after the last program. Programs probe a camera before they use it.
const LINGER: Duration = Duration::from_secs(3);
/// Buffers of the stream: the usual number, the least and the most.
const BUFFERS: (i32, i32, i32) = (4, 2, 16);

/// The names of our pixel formats at PipeWire; `None` if it has none.
fn video_format(pixels: PixelFormat) -> Option<VideoFormat> {
    Some(match pixels {
        PixelFormat::Gray8 => VideoFormat::GRAY8,
        PixelFormat::Rgb24 => VideoFormat::RGB,
        PixelFormat::Bgrx32 => VideoFormat::BGRx,
        PixelFormat::Yuyv => VideoFormat::YUY2,
        PixelFormat::I420 => VideoFormat::I420,
        PixelFormat::I422 => VideoFormat::Y42B,
        PixelFormat::I444 => VideoFormat::Y444,
        PixelFormat::Mjpeg => return None,
    })
}

/// The header of a buffer (`struct spa_meta_header`). The server and other processes may read it at any moment.
#[repr(C)]
struct BufferHeader {
    flags: AtomicU32,
    offset: AtomicU32,
    pts: AtomicI64,
    dts_offset: AtomicI64,
    sequence: AtomicU64,
}

impl Metadata for BufferHeader {
    const META_TYPE: u32 = spa::SPA_META_Header;
}

const _: () = assert!(size_of::<BufferHeader>() == size_of::<spa::spa_meta_header>());

fn failed(operation: &str) -> impl Fn(pw::Error) -> DeviceError + '_ {
    move |error| {
        let advice = "is PipeWire running? `pw-cli info 0`";
        os(format!("{operation} PipeWire"), io::Error::other(error.to_string()), Some(advice))
    }
}

/// Has a node until the worker's end is gone.
pub(super) fn run(plan: &Plan, end: &ThreadEnd, started: &mut Started<()>) {
    pw::init();
    loop {
        match connect(plan, end, started) {
            Ok(()) => return,
            Err(error) if started.is_pending() => return started.report(Err(error)),
            // No program takes pictures from a server that is gone.
            Err(_) => end.set_wanted(false),
        }
        if !end.wait_to_retry() {
            return;
        }
    }
}

/// A descriptor that its owner keeps open.
struct Borrowed(RawFd);

impl AsRawFd for Borrowed {
    fn as_raw_fd(&self) -> RawFd {
        self.0
    }
}

/// One connection with the server. Returns `Ok` if the worker's end is gone.
fn connect(plan: &Plan, end: &ThreadEnd, started: &mut Started<()>) -> Result<(), DeviceError> {
    let main = pw::main_loop::MainLoopRc::new(None).map_err(failed("starting the loop of"))?;
    let context = pw::context::ContextRc::new(&main, None).map_err(failed("preparing"))?;
    let client = properties! { *pw::keys::APP_NAME => APPLICATION };
    let core = context.connect_rc(Some(client)).map_err(failed("connecting to"))?;
    let session = Rc::new(Session {
        plan: plan.clone(),
        end: end.clone(),
        core: core.clone(),
        main: main.clone(),
        stream: RefCell::new(None),
        is_streaming: Cell::new(false),
        is_due: Cell::new(false),
        sequence: Cell::new(0),
        timer: RefCell::new(BootTimer::new().map_err(|error| os("making a timer".into(), error, None))?),
        outcome: RefCell::new(None),
    });
    session.make_stream()?;

    let synchronized = core.sync(0).map_err(failed("asking"))?;
    let (on_done, on_error) = (session.clone(), session.clone());
    let _core = core
        .add_listener_local()
        .done(move |_, sequence| {
            if sequence == synchronized {
                on_done.main.quit();
            }
        })
        .error(move |id, _, result, message| {
            // Errors of other objects concern the stream, which reports them.
            if id == pw::core::PW_ID_CORE {
                on_error.fail(io::Error::other(format!("{message} ({result})")));
            }
        })
        .register();
    let on_control = session.clone();
    let events = IoFlags::IN | IoFlags::HUP | IoFlags::ERR;
    let control = Borrowed(end.control().as_raw_fd());
    let _control = main.loop_().add_io(control, events, move |_| on_control.handle_control());
    let on_timer = session.clone();
    let timer = Borrowed(session.timer.borrow().as_fd().as_raw_fd());
    let _timer = main.loop_().add_io(timer, IoFlags::IN, move |_| on_timer.handle_timer());

    // Until the server has answered, and from then on until the end.
    main.run();
    if session.outcome.borrow().is_none() {
        started.report(Ok(()));
        main.run();
    }
    let stream = session.stream.take();
    drop(stream);
    match session.outcome.take() {
        Some(outcome) => outcome,
        None => Err(os("using PipeWire".into(), io::Error::other("its loop ended"), None)),
    }
}

/// The stream with its callbacks.
struct Stream {
    /// First, so that no callback runs while the stream is destroyed.
    _listener: StreamListener<()>,
    stream: StreamRc,
}

/// The state of one connection with the server.
struct Session {
    plan: Plan,
    end: ThreadEnd,
    core: pw::core::CoreRc,
    main: pw::main_loop::MainLoopRc,
    stream: RefCell<Option<Stream>>,
    is_streaming: Cell<bool>,
    /// A picture is to be shown at the next call of `process`.
    is_due: Cell<bool>,
    sequence: Cell<u64>,
    timer: RefCell<BootTimer>,
    outcome: RefCell<Option<Result<(), DeviceError>>>,
}

impl Session {
    fn fail(&self, error: io::Error) {
        let error = os("talking to PipeWire".into(), error, None);
        self.outcome.borrow_mut().get_or_insert(Err(error));
        self.main.quit();
    }

    /// Sets the timer; `None` ends it.
    fn set_timer(&self, wait: Option<Duration>) {
        let at_ns = wait.map_or(0, |wait| boot_ns() + wait.as_nanos() as u64);
        if let Err(error) = self.timer.borrow_mut().set(at_ns) {
            self.fail(error);
        }
    }

    fn handle_control(self: &Rc<Self>) {
        if self.end.clear() == Other::Gone {
            *self.outcome.borrow_mut() = Some(Ok(()));
            return self.main.quit();
        }
        match self.make_stream() {
            Ok(()) => self.show(false),
            Err(error) => self.fail(io::Error::other(error.to_string())),
        }
    }

    fn handle_timer(&self) {
        self.set_timer(None);
        match self.is_streaming.get() {
            true => self.show(true),
            false => self.end.set_wanted(false),
        }
    }

    fn handle_state(&self, state: StreamState) {
        let was_streaming = self.is_streaming.replace(state == StreamState::Streaming);
        match (was_streaming, state) {
            // The next session finds out whether the server is there.
            (_, StreamState::Error(problem)) => self.fail(io::Error::other(problem)),
            (false, StreamState::Streaming) => {
                self.end.set_wanted(true);
                // The program gets the picture that is there. The stream begins only after this call.
                self.is_due.set(true);
                self.set_timer(Some(Duration::from_millis(1)));
            }
            (true, StreamState::Paused | StreamState::Unconnected) => self.set_timer(Some(LINGER)),
            _ => {}
        }
    }

    /// Shows a picture that is fresh or due. `is_time`: the last picture is due again.
    fn show(&self, is_time: bool) {
        if !self.is_streaming.get() {
            return;
        }
        let is_stale = self.end.memory.is(Word::IsStale);
        if self.end.memory.is_fresh() || is_time {
            self.is_due.set(true);
        }
        if self.is_due.get() {
            let stream = self.stream.borrow().as_ref().map(|stream| stream.stream.clone());
            // An error shows in the state of the stream.
            let _ = stream.map(|stream| stream.trigger_process());
        }
        self.set_timer(Some(match (self.is_due.get(), is_stale) {
            (true, _) => BUSY_INTERVAL,
            (false, true) => REPEAT,
            (false, false) => SILENCE,
        }));
    }

    /// Fills a buffer with the newest picture.
    fn process(&self, geometry: &Geometry, stream: &pw::stream::Stream) {
        if !self.is_due.get() {
            return;
        }
        let memory = &self.end.memory;
        let Some(mut buffer) = stream.dequeue_buffer() else { return memory.add(Word::Busy, 1) };
        self.is_due.set(false);
        let is_new = memory.take();
        let is_stale = memory.is(Word::IsStale);
        let picture = memory.front_bytes().filter(|length| is_complete(geometry, *length));
        let mut flags = if is_stale || !is_new { spa::SPA_META_HEADER_FLAG_GAP } else { 0 };
        let [data, ..] = buffer.datas_mut() else { return };
        let room = data.data().zip(picture).and_then(|(room, length)| room.get_mut(..length));
        let length = room.map_or(0, |room| {
            memory.copy_front(room);
            room.len()
        });
        let chunk = data.chunk_mut();
        *chunk.offset_mut() = 0;
        *chunk.stride_mut() = geometry.stride().cast_signed();
        *chunk.size_mut() = length as u32;
        if length == 0 {
            flags |= spa::SPA_META_HEADER_FLAG_CORRUPTED;
        }
        let sequence = self.sequence.replace(self.sequence.get() + 1);
        if let Some(header) = buffer.find_meta::<BufferHeader>() {
            header.flags.store(flags, Ordering::Relaxed);
            header.offset.store(0, Ordering::Relaxed);
            header.pts.store(monotonic_ns().cast_signed(), Ordering::Relaxed);
            header.dts_offset.store(0, Ordering::Relaxed);
            header.sequence.store(sequence, Ordering::Relaxed);
        }
        memory.add(if is_new { Word::Shown } else { Word::Repeated }, 1);
    }

    /// Makes the stream once the geometry of the pictures is known.
    fn make_stream(self: &Rc<Self>) -> Result<(), DeviceError> {
        let has_stream = self.stream.borrow().is_some();
        let Some(geometry) = self.end.memory.geometry().filter(|_| !has_stream) else { return Ok(()) };
        let stream = self.connect_stream(geometry).map_err(failed("making a video source of"))?;
        *self.stream.borrow_mut() = Some(stream);
        Ok(())
    }

    fn connect_stream(self: &Rc<Self>, geometry: Geometry) -> Result<Stream, pw::Error> {
        let name = &self.plan.name;
        let stream = StreamRc::new(self.core.clone(), name, node_properties(name))?;
        let (on_state, on_process) = (self.clone(), self.clone());
        let listener = stream
            .add_local_listener::<()>()
            .state_changed(move |_, (), _, state| on_state.handle_state(state))
            .param_changed(move |stream, (), id, parameter| {
                if id == spa::SPA_PARAM_Format && parameter.is_some() {
                    let texts = [buffer_parameter(&geometry), header_parameter()];
                    let mut parameters: Vec<&Pod> =
                        texts.iter().filter_map(|bytes| Pod::from_bytes(bytes)).collect();
                    // An error shows in the state of the stream.
                    let _ = stream.update_params(&mut parameters);
                }
            })
            .process(move |stream, ()| on_process.process(&geometry, stream))
            .register()?;
        let format = format_parameter(&geometry);
        let mut parameters = [Pod::from_bytes(&format).ok_or(pw::Error::CreationFailed)?];
        // It decides itself when there is a picture.
        let flags = StreamFlags::MAP_BUFFERS | StreamFlags::DRIVER;
        stream.connect(Direction::Output, None, flags, &mut parameters)?;
        Ok(Stream { _listener: listener, stream })
    }
}

/// Returns true if a picture can have this length.
fn is_complete(geometry: &Geometry, length: usize) -> bool {
    geometry.pixels() == PixelFormat::Mjpeg || length == geometry.bytes()
}

/// Properties of the node for programs. Its name has only characters that programs accept in a name.
fn node_properties(name: &str) -> PropertiesBox {
    let plain = |one: char| if one.is_ascii_alphanumeric() || matches!(one, '.' | '-') { one } else { '_' };
    properties! {
        *pw::keys::MEDIA_CLASS => "Video/Source",
        *pw::keys::MEDIA_ROLE => "Camera",
        *pw::keys::NODE_NAME => name.chars().map(plain).collect::<String>(),
        *pw::keys::NODE_DESCRIPTION => name,
        *pw::keys::NODE_VIRTUAL => "true",
    }
}

/// The format of the pictures. A rate that is not known leaves the choice to the program.
fn format_parameter(geometry: &Geometry) -> Vec<u8> {
    let property = |key: FormatProperties, value| Property::new(key.as_raw(), value);
    let format = video_format(geometry.pixels());
    let kind = if format.is_some() { MediaSubtype::Raw } else { MediaSubtype::Mjpg };
    let size = Rectangle { width: geometry.width(), height: geometry.height() };
    let (num, denom) = geometry.rate();
    let rate = match num {
        0 => {
            let [default, min, max] = [0, 0, 1000].map(|num| Fraction { num, denom: 1 });
            let range = ChoiceEnum::Range { default, min, max };
            Value::Choice(ChoiceValue::Fraction(Choice(ChoiceFlags::empty(), range)))
        }
        _ => Value::Fraction(Fraction { num, denom }),
    };
    let mut properties = vec![
        property(FormatProperties::MediaType, Value::Id(Id(MediaType::Video.as_raw()))),
        property(FormatProperties::MediaSubtype, Value::Id(Id(kind.as_raw()))),
        property(FormatProperties::VideoSize, Value::Rectangle(size)),
        property(FormatProperties::VideoFramerate, rate),
    ];
    if let Some(format) = format {
        properties.insert(2, property(FormatProperties::VideoFormat, Value::Id(Id(format.as_raw()))));
    }
    serialize(SpaTypes::ObjectParamFormat, spa::SPA_PARAM_EnumFormat, properties)
}

/// The buffers of the stream: shared memory that the server provides.
fn buffer_parameter(geometry: &Geometry) -> Vec<u8> {
    let bytes = match geometry.pixels() {
        // A camera's JPEG is never larger than the picture in 16 bits a pixel.
        PixelFormat::Mjpeg => {
            (geometry.width() as usize * geometry.height() as usize * 2).clamp(1 << 16, SLOT_BYTES)
        }
        _ => geometry.bytes(),
    };
    let size = Property::new(spa::SPA_PARAM_BUFFERS_size, Value::Int(bytes as i32));
    let stride = Property::new(spa::SPA_PARAM_BUFFERS_stride, Value::Int(geometry.stride().cast_signed()));
    buffers(BUFFERS, [size, stride])
}

/// The header of each buffer.
fn header_parameter() -> Vec<u8> {
    let properties = vec![
        Property::new(spa::SPA_PARAM_META_type, Value::Id(Id(spa::SPA_META_Header))),
        Property::new(spa::SPA_PARAM_META_size, Value::Int(size_of::<BufferHeader>() as i32)),
    ];
    serialize(SpaTypes::ObjectParamMeta, spa::SPA_PARAM_Meta, properties)
}
