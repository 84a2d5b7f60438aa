//! The portal's pictures: a stream of PipeWire, whose frames go to the worker that watches.
//!
//! | state | event | next state |
//! |---|---|---|
//! | connected | the formats agree | paused |
//! | paused | a worker watches | streaming: each frame is copied to the worker's memory |
//! | streaming | the worker watches no more, or is gone | paused |
//! | any | the stream fails, its node is removed, or the share ends | ended |
//!
//! All callbacks run in this thread. A callback may be called within a call of the library, so no cell stays borrowed during one.

use super::memory::{End, FrameWriter};
use super::share::{ShareState, Use};
use crate::plain::os;
use crate::stream_parameter::{buffers, serialize};
use crate::wayland::picture::BufferLayout;
use crate::wayland::protocol::memory;
use ::pipewire as pw;
use contract::DeviceError;
use pw::properties::properties;
use pw::spa::buffer::meta::MetaVideoDamage;
use pw::spa::param::format::{FormatProperties, MediaSubtype, MediaType};
use pw::spa::param::video::{VideoFormat, VideoInfoRaw};
use pw::spa::pod::{ChoiceValue, Pod, Property, Value};
use pw::spa::sys as spa;
use pw::spa::utils::{Choice, ChoiceEnum, ChoiceFlags, Direction, Fraction, Id, Rectangle, SpaTypes};
use pw::stream::{StreamFlags, StreamListener, StreamRc, StreamState};
use std::cell::{Cell, RefCell};
use std::io;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;
use wire::formats::video::Rectangle as Part;

/// Buffers of the stream: the usual number, the least and the most.
const BUFFERS: (i32, i32, i32) = (4, 2, 16);
/// The most damaged rectangles of a frame; a compositor joins more.
const DAMAGED_MAX: usize = 16;
const PIXEL_BYTES: u32 = 4;
/// The longest side of a picture, in pixels.
const SIDE_MAX: u32 = 16384;
/// The pixels that are taken, and their names in shared memory.
const FORMATS: [(VideoFormat, u32); 4] = [
    (VideoFormat::BGRx, memory::XRGB8888),
    (VideoFormat::BGRA, memory::ARGB8888),
    (VideoFormat::RGBx, memory::XBGR8888),
    (VideoFormat::RGBA, memory::ABGR8888),
];

/// An order to the thread.
#[derive(Debug)]
pub(super) enum CastOrder {
    /// Frames go to this worker from now on.
    Watch(Arc<Use>),
    /// They go to this worker no more.
    Unwatch(Arc<Use>),
    /// The share ends.
    Stop,
}

/// A stream to take frames from.
#[derive(Debug)]
pub(super) struct Cast {
    pub(super) node: u32,
    pub(super) pipewire: OwnedFd,
    /// The most frames a second; 0: any number.
    pub(super) rate_hz: f64,
}

fn failed(operation: &str) -> impl Fn(pw::Error) -> DeviceError + '_ {
    move |error| {
        os(
            format!("{operation} PipeWire for the desktop's portal"),
            io::Error::other(error.to_string()),
            None,
        )
    }
}

/// The frames of one stream.
struct Session {
    state: Arc<ShareState>,
    main: pw::main_loop::MainLoopRc,
    layout: Cell<Option<(u32, u32, u32)>>,
    user: RefCell<Option<(Arc<Use>, FrameWriter)>>,
    end: Cell<Option<End>>,
}

/// Takes frames until the share ends. `started` is called when the stream is there.
pub(super) fn run(
    cast: Cast,
    orders: pw::channel::Receiver<CastOrder>,
    state: &Arc<ShareState>,
    started: impl FnOnce(Result<(), DeviceError>),
) {
    pw::init();
    let mut started = Some(started);
    match connect(cast, orders, state, &mut started) {
        Ok(Some(end)) => state.end(end),
        Ok(None) => {}
        Err(error) => {
            state.end(End::Failure);
            if let Some(started) = started.take() {
                started(Err(error));
            }
        }
    }
}

/// Returns why the stream has ended; `None` if it was told to.
fn connect(
    cast: Cast,
    orders: pw::channel::Receiver<CastOrder>,
    state: &Arc<ShareState>,
    started: &mut Option<impl FnOnce(Result<(), DeviceError>)>,
) -> Result<Option<End>, DeviceError> {
    let main = pw::main_loop::MainLoopRc::new(None).map_err(failed("starting the loop of"))?;
    let context = pw::context::ContextRc::new(&main, None).map_err(failed("preparing"))?;
    let core = context.connect_fd_rc(cast.pipewire, None).map_err(failed("connecting to"))?;
    let session = Rc::new(Session {
        state: state.clone(),
        main: main.clone(),
        layout: Cell::new(None),
        user: RefCell::new(None),
        end: Cell::new(None),
    });
    let on_error = session.clone();
    let _core = core
        .add_listener_local()
        .error(move |id, _, _, _| {
            // Errors of other objects concern the stream, which reports them.
            if id == pw::core::PW_ID_CORE {
                on_error.finish(End::Failure);
            }
        })
        .register();
    // The compositor removes the node when it ends the share; the stream would wait for another one.
    let registry = core.get_registry_rc().map_err(failed("watching the nodes of"))?;
    let (on_remove, node) = (session.clone(), cast.node);
    let _registry = registry
        .add_listener_local()
        .global_remove(move |id| {
            if id == node {
                on_remove.finish(End::Desktop);
            }
        })
        .register();
    let stream = StreamRc::new(
        core,
        "Outboard",
        properties! {
            *pw::keys::MEDIA_TYPE => "Video",
            *pw::keys::MEDIA_CATEGORY => "Capture",
            *pw::keys::MEDIA_ROLE => "Screen",
        },
    )
    .map_err(failed("making a stream of"))?;
    let listener = session.listen(&stream).map_err(failed("listening to"))?;
    let format = format_parameter(cast.rate_hz);
    let mut parameters = [Pod::from_bytes(&format)
        .ok_or_else(|| failed("describing a stream of")(pw::Error::CreationFailed))?];
    let flags = StreamFlags::AUTOCONNECT | StreamFlags::MAP_BUFFERS | StreamFlags::INACTIVE;
    let connecting = stream.connect(Direction::Input, Some(cast.node), flags, &mut parameters);
    connecting.map_err(failed("connecting a stream of"))?;
    let (on_order, of_order) = (session.clone(), stream.clone());
    let _orders = orders.attach(main.loop_(), move |order| on_order.handle(order, &of_order));
    if let Some(started) = started.take() {
        started(Ok(()));
    }
    main.run();
    // No callback runs while the stream is destroyed.
    drop(listener);
    Ok(session.end.get())
}

impl Session {
    fn finish(&self, end: End) {
        self.end.set(self.end.get().or(Some(end)));
        self.main.quit();
    }

    fn handle(&self, order: CastOrder, stream: &StreamRc) {
        match order {
            CastOrder::Watch(user) => {
                *self.user.borrow_mut() = Some((user, FrameWriter::new()));
                // An error shows in the state of the stream.
                let _ = stream.set_active(true);
            }
            CastOrder::Unwatch(user) => {
                let is_watching =
                    self.user.borrow().as_ref().is_some_and(|(other, _)| Arc::ptr_eq(other, &user));
                if is_watching {
                    *self.user.borrow_mut() = None;
                    let _ = stream.set_active(false);
                }
            }
            CastOrder::Stop => self.main.quit(),
        }
    }

    fn listen(self: &Rc<Self>, stream: &StreamRc) -> Result<StreamListener<()>, pw::Error> {
        let (on_state, on_format, on_frame) = (self.clone(), self.clone(), self.clone());
        stream
            .add_local_listener::<()>()
            .state_changed(move |_, (), before, state| match (before, state) {
                (_, StreamState::Error(_)) => on_state.finish(End::Desktop),
                (StreamState::Paused | StreamState::Streaming, StreamState::Unconnected) => {
                    on_state.finish(End::Desktop);
                }
                _ => {}
            })
            .param_changed(move |stream, (), id, parameter| {
                let Some(parameter) = parameter.filter(|_| id == spa::SPA_PARAM_Format) else { return };
                let mut info = VideoInfoRaw::new();
                if info.parse(parameter).is_err() {
                    return on_format.finish(End::Failure);
                }
                let known = FORMATS.iter().find(|(format, _)| *format == info.format());
                on_format.state.set_pixels(info.size().width);
                on_format.layout.set(known.map(|(_, name)| (*name, info.size().width, info.size().height)));
                let texts = [buffers(BUFFERS, []), damage_parameter()];
                let mut parameters: Vec<&Pod> =
                    texts.iter().filter_map(|bytes| Pod::from_bytes(bytes)).collect();
                // An error shows in the state of the stream.
                let _ = stream.update_params(&mut parameters);
            })
            .process(move |stream, ()| on_frame.process(stream))
            .register()
    }

    /// Copies the frames that are there to the memory of the worker.
    fn process(&self, stream: &pw::stream::Stream) {
        while let Some(mut buffer) = stream.dequeue_buffer() {
            let damaged = buffer.find_meta::<MetaVideoDamage>().and_then(damaged_part);
            let Some((format, width, height)) = self.layout.get() else { continue };
            let [data, ..] = buffer.datas_mut() else { continue };
            let (offset, length) = (data.chunk().offset() as usize, data.chunk().size() as usize);
            let stride = u32::try_from(data.chunk().stride()).ok().filter(|stride| *stride > 0);
            // A buffer without bytes tells that only the pointer has moved.
            let is_corrupted = data.chunk().flags().contains(pw::spa::buffer::ChunkFlags::CORRUPTED);
            if length == 0 || is_corrupted {
                continue;
            }
            let stride = stride.unwrap_or(width.saturating_mul(PIXEL_BYTES));
            let layout = BufferLayout { format, width, height, stride };
            let pixels = data.data().and_then(|bytes| bytes.get(offset..));
            let (Some(pixels), Some((user, writer))) = (pixels, &mut *self.user.borrow_mut()) else {
                continue;
            };
            if writer.write(&user.frames, layout, pixels, damaged) {
                user.wake();
            }
        }
    }
}

/// Returns the rectangle around the damage of a frame; `None` if it is not told.
fn damaged_part(damage: &MetaVideoDamage) -> Option<Part> {
    let parts = damage.iter().take(DAMAGED_MAX).filter_map(|region| {
        let (position, size) = (region.position(), region.size());
        let (x, y) = (u32::try_from(position.x).ok()?, u32::try_from(position.y).ok()?);
        Some(Part { x, y, width: size.width, height: size.height })
    });
    parts.reduce(|all, part| crate::wayland::screen::around(&all, &part))
}

/// The formats that are taken. There are no modifiers, so the compositor provides memory that can be read.
fn format_parameter(rate_hz: f64) -> Vec<u8> {
    let property = |key: FormatProperties, value| Property::new(key.as_raw(), value);
    let id = |id| Value::Id(Id(id));
    let formats: Vec<Id> = FORMATS.iter().map(|(format, _)| Id(format.as_raw())).collect();
    let formats = ChoiceEnum::Enum { default: formats[0], alternatives: formats };
    let size = |width, height| Rectangle { width, height };
    let sizes =
        ChoiceEnum::Range { default: size(1920, 1080), min: size(1, 1), max: size(SIDE_MAX, SIDE_MAX) };
    let rate = |num| Fraction { num, denom: 1 };
    let rates = |default, min, max| {
        let range = ChoiceEnum::Range { default: rate(default), min: rate(min), max: rate(max) };
        Value::Choice(ChoiceValue::Fraction(Choice(ChoiceFlags::empty(), range)))
    };
    let mut properties = vec![
        property(FormatProperties::MediaType, id(MediaType::Video.as_raw())),
        property(FormatProperties::MediaSubtype, id(MediaSubtype::Raw.as_raw())),
        property(
            FormatProperties::VideoFormat,
            Value::Choice(ChoiceValue::Id(Choice(ChoiceFlags::empty(), formats))),
        ),
        property(
            FormatProperties::VideoSize,
            Value::Choice(ChoiceValue::Rectangle(Choice(ChoiceFlags::empty(), sizes))),
        ),
        // A desktop has no rate: a frame comes when something has changed.
        property(FormatProperties::VideoFramerate, rates(0, 0, 1000)),
    ];
    if rate_hz > 0.0 {
        let most = (rate_hz.ceil() as u32).max(1);
        properties.push(property(FormatProperties::VideoMaxFramerate, rates(most, 1, most)));
    }
    serialize(SpaTypes::ObjectParamFormat, spa::SPA_PARAM_EnumFormat, properties)
}

/// The damage of each frame, if the compositor tells it.
fn damage_parameter() -> Vec<u8> {
    let region = size_of::<spa::spa_meta_region>() as i32;
    let most = DAMAGED_MAX as i32 * region;
    let sizes = ChoiceEnum::Range { default: most, min: region, max: most };
    let properties = vec![
        Property::new(spa::SPA_PARAM_META_type, Value::Id(Id(spa::SPA_META_VideoDamage))),
        Property::new(
            spa::SPA_PARAM_META_size,
            Value::Choice(ChoiceValue::Int(Choice(ChoiceFlags::empty(), sizes))),
        ),
    ];
    serialize(SpaTypes::ObjectParamMeta, spa::SPA_PARAM_Meta, properties)
}
