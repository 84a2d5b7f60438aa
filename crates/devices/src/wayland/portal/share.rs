//! A granted share while it runs: its session with the portal, its stream, and the worker that uses it.
//!
//! | thread of the broker | purpose |
//! |---|---|
//! | `portal-signals` | waits for the end of the session |
//! | `portal-pictures` | copies frames to the worker's memory |
//! | `portal-input`, one for each use | sends the worker's input |
//!
//! The worker has the memory and one end of a socket, and no right at the bus or at PipeWire: the portal gives its rights to a
//! connection, and one with a session can ask for anything that the portal offers. A worker that is killed, and a peer that
//! leaves, end no session: the user is not asked again while the device is shared.

use super::bus::{Bus, Granted, Inhibition, Input, Offers, Patience, Wish};
use super::cast::{self, Cast, CastOrder};
use super::memory::{End, Frames, Word};
use super::order::{ORDER_BYTES_MAX, Order};
use super::pointer::Monitor;
use crate::plain::os;
use ::pipewire::channel::{Sender, channel};
use contract::DeviceError;
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socketpair};
use std::collections::BTreeSet;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::sync_channel;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The most keys and buttons that a worker may hold.
const HELD_MAX: usize = 128;
/// The time for PipeWire to take a stream.
const STREAM_TIMEOUT: Duration = Duration::from_secs(10);

/// A worker that uses the share: the thread's ends of its memory and of its socket.
#[derive(Debug)]
pub(super) struct Use {
    pub(super) frames: Frames,
    control: OwnedFd,
}

impl Use {
    /// Makes the worker look at the memory. A full socket has woken it already.
    pub(super) fn wake(&self) {
        let _ = send(&self.control, &[0], SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
    }

    fn end(&self, end: End) {
        self.frames.set_end(end);
        self.wake();
    }
}

/// The state that all threads of a share see.
#[derive(Debug, Default)]
pub(super) struct ShareState {
    inner: Mutex<Inner>,
    /// The width of the first pictures, in pixels; 0 before.
    pixels: AtomicU32,
}

#[derive(Default)]
struct Inner {
    end: Option<End>,
    user: Option<Arc<Use>>,
    orders: Option<Sender<CastOrder>>,
    inhibition: Option<Inhibition>,
}

impl std::fmt::Debug for Inner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Inner").field("end", &self.end).field("user", &self.user).finish_non_exhaustive()
    }
}

impl ShareState {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends the share. A share that the desktop has ended did not fail, whichever is noticed first.
    pub(super) fn end(&self, end: End) {
        let mut inner = self.lock();
        let end = match inner.end {
            Some(End::Desktop) => End::Desktop,
            _ => end,
        };
        inner.end = Some(end);
        if let Some(user) = &inner.user {
            user.end(end);
        }
        // Without a receiver, the stream has ended before.
        let _ = inner.orders.take().map(|orders| orders.send(CastOrder::Stop));
        let inhibition = inner.inhibition.take();
        drop(inner);
        drop(inhibition);
    }

    /// Keeps the desktop from becoming idle until the end.
    fn keep(&self, inhibition: Option<Inhibition>) {
        let mut inner = self.lock();
        if inner.end.is_none() {
            inner.inhibition = inhibition;
        }
    }

    /// Returns why the share has ended, if it has.
    pub(super) fn ended(&self) -> Option<End> {
        self.lock().end
    }

    fn order(&self, order: CastOrder) {
        // Without a receiver, the stream has ended.
        let _ = self.lock().orders.as_ref().map(|orders| orders.send(order));
    }

    /// The pictures have this width from now on.
    pub(super) fn set_pixels(&self, width: u32) {
        let _ = self.pixels.compare_exchange(0, width, Ordering::AcqRel, Ordering::Acquire);
    }
}

/// A granted share.
#[derive(Debug)]
pub(super) struct Share {
    bus: Bus,
    state: Arc<ShareState>,
    /// `None` if it is only viewed.
    input: Option<Input>,
    monitor: Monitor,
}

impl Share {
    /// Connects to the portal.
    pub(super) fn connect() -> Result<(Bus, Arc<ShareState>), DeviceError> {
        let state = Arc::new(ShareState::default());
        let of_signals = state.clone();
        Ok((Bus::connect(Arc::new(move |end| of_signals.end(end)))?, state))
    }

    /// Asks for a share until `deadline`, and starts its stream. Returns it with the token for the next time.
    pub(super) fn ask(
        (mut bus, state): (Bus, Arc<ShareState>),
        offers: &Offers,
        wish: Wish,
        rate_hz: f64,
        token: Option<&str>,
        patience: &Patience,
    ) -> Result<(Share, Option<String>), DeviceError> {
        let granted = bus.ask(wish, offers, token, patience);
        let Granted { node, size, pipewire, token } = granted.inspect_err(|_| bus.close())?;
        let (orders, receiver) = channel();
        state.lock().orders = Some(orders);
        let compositor = bus.compositor();
        if compositor.ends_shares_when_locked() {
            state.keep(bus.inhibit_idle());
        }
        let input = if wish.is_view_only { None } else { bus.input(node, compositor) };
        let share = Share { bus, state: state.clone(), input, monitor: Monitor { compositor, size } };
        let (sender, started) = sync_channel(1);
        let cast = Cast { node, pipewire, rate_hz };
        let run = move || cast::run(cast, receiver, &state, move |result| drop(sender.send(result)));
        let spawned = std::thread::Builder::new().name("portal-pictures".into()).spawn(run);
        spawned.map_err(|error| os("starting the thread for the portal's pictures".into(), error, None))?;
        started.recv_timeout(STREAM_TIMEOUT).map_err(|_| {
            let error = io::Error::from(io::ErrorKind::TimedOut);
            os("starting the stream of the desktop's portal".into(), error, None)
        })??;
        Ok((share, token))
    }

    /// Returns why it has ended, if it has.
    pub(super) fn ended(&self) -> Option<End> {
        self.state.ended()
    }

    /// Returns the size of the pictures before the first one.
    pub(super) fn size(&self) -> (u32, u32) {
        self.monitor.size.unwrap_or((0, 0))
    }

    /// Returns true if a worker, or the broker for a later one, has its ends.
    pub(super) fn is_used(&self) -> bool {
        let user = self.state.lock().user.clone();
        user.is_some_and(|user| !sys::descriptor::is_hung_up(&user.control))
    }

    /// Lets a worker use it, instead of the one before. Returns the worker's socket and memory.
    pub(super) fn connect_worker(&self) -> Result<Vec<OwnedFd>, DeviceError> {
        let failed = |error| os("making the memory of a desktop".into(), error, None);
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let pair = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None);
        let (worker, control) = pair.map_err(|error| failed(error.into()))?;
        // The thread waits in its calls.
        let waits = fcntl_getfl(&control).and_then(|flags| fcntl_setfl(&control, flags - OFlags::NONBLOCK));
        waits.map_err(|error| failed(error.into()))?;
        let memory = Frames::create().map_err(failed)?;
        let user = Arc::new(Use { frames: Frames::map(&memory).map_err(failed)?, control });
        let before = self.state.lock().user.replace(user.clone());
        if let Some(before) = before {
            crate::helper_thread::release(before.control.as_fd());
        }
        if let Some(end) = self.ended() {
            user.end(end);
        }
        let typist = Typist {
            user,
            state: self.state.clone(),
            input: self.input.clone(),
            monitor: self.monitor,
            pixel: None,
            held: BTreeSet::new(),
        };
        let spawned = std::thread::Builder::new().name("portal-input".into()).spawn(move || typist.run());
        spawned.map_err(|error| os("starting the thread for the portal's input".into(), error, None))?;
        Ok(vec![worker, memory])
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.state.end(End::Failure);
        self.bus.close();
    }
}

/// A key or button that is down.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Held {
    Key(u32),
    Button(u32),
}

/// The thread that sends the input of one worker. It knows the keys and buttons that are down, so none stays down when the worker is killed.
struct Typist {
    user: Arc<Use>,
    state: Arc<ShareState>,
    /// `None` if the screen is only viewed.
    input: Option<Input>,
    monitor: Monitor,
    /// The pixel to which the worker has moved the pointer.
    pixel: Option<(u32, u32)>,
    held: BTreeSet<Held>,
}

impl Typist {
    fn run(mut self) {
        let mut packet = [0; ORDER_BYTES_MAX + 1];
        loop {
            match recv(&self.user.control, &mut packet, RecvFlags::empty()) {
                Ok((0, _)) => break,
                // A packet that is no order is one of a compromised worker.
                Ok((length, _)) => match Order::parse(&packet[..length]) {
                    Ok(order) => self.execute(order),
                    Err(_) => self.user.frames.count(Word::Refused),
                },
                Err(Errno::INTR) => {}
                Err(_) => break,
            }
        }
        self.execute(Order::ReleaseAll);
        self.state.order(CastOrder::Unwatch(self.user.clone()));
    }

    fn execute(&mut self, order: Order) {
        let Order::Watch(is_wanted) = order else { return self.send(order) };
        let user = self.user.clone();
        self.state.order(if is_wanted { CastOrder::Watch(user) } else { CastOrder::Unwatch(user) });
    }

    fn send(&mut self, order: Order) {
        let Some(input) = &self.input else { return };
        let sent = match order {
            Order::Watch(_) => Ok(()),
            Order::Key { keysym, pressed } => match change(&mut self.held, Held::Key(keysym), pressed) {
                true => input.key(keysym, pressed),
                false => Ok(()),
            },
            Order::Button { code, pressed } => match change(&mut self.held, Held::Button(code), pressed) {
                true => input.button(code, pressed),
                false => Ok(()),
            },
            Order::Motion { x, y } => {
                let is_drag = self.held.iter().any(|held| matches!(held, Held::Button(_)));
                let dragged_from = self.pixel.replace((x, y)).filter(|_| is_drag);
                let width = self.state.pixels.load(Ordering::Acquire);
                let steps = self.monitor.steps((x, y), width, dragged_from);
                steps.into_iter().try_for_each(|step| input.motion(step))
            }
            Order::Wheel(wheel) => input.wheel(wheel),
            Order::ReleaseAll => {
                let release = |held| match held {
                    Held::Key(keysym) => input.key(keysym, false),
                    Held::Button(code) => input.button(code, false),
                };
                // Each is tried, also after an error.
                std::mem::take(&mut self.held).into_iter().map(release).fold(Ok(()), Result::and)
            }
        };
        if sent.is_err() {
            self.user.frames.count(Word::Refused);
        }
    }
}

/// Notes a key or button that goes down or up. Returns false if it changes nothing, or if too much is down.
fn change(held: &mut BTreeSet<Held>, what: Held, pressed: bool) -> bool {
    match pressed {
        true => held.len() < HELD_MAX && held.insert(what),
        false => held.remove(&what),
    }
}
