//! The application side: a window as a partner. Pushes take pictures and pointer shapes. Pulls return the user's input
//! while the window has the keyboard or the pointer. Texts on the clipboard cross in both directions.

use super::client::{Client, PACKET_BYTES, Packet};
use super::clipboard::Clipboard;
use super::display::{Extensions, SETUP_TIMEOUT, parse};
use super::errors::{device_error, partner_error};
use super::exchange::Exchange;
use super::layout::{LayoutQuery, ServerLayout};
use super::window::{PacketOutcome, ShowOutcome, Window};
use crate::bgrx::{self, Update};
use crate::flows::{Endpoint, FlowPartner, OUT};
use crate::plain::has_clipboard;
use crate::positions;
use contract::{
    Ctl, CtlReply, DeviceError, DeviceSpec, Direction, FlowKey, FlowTemplate, Format, Interest, Message,
    Next, PartnerError, PartnerResult, PullSlot, Readiness, Time,
};
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::os::fd::OwnedFd;
use std::time::Instant;
use sys::clock::boot_ns;
use wire::formats::video::SIDE_MAX;
use wire::formats::viewer::{BUTTONS, Event};
use x11rb_protocol::protocol::xproto::{self, ConfigureNotifyEvent, KeyPressEvent};

/// The most events that wait for the path. If there are more, the current state replaces them.
const EVENTS_MAX: usize = 1024;

/// A window as a partner.
pub(super) struct WindowPartner {
    name: String,
    client: Client,
    window: Window,
    layout: ServerLayout,
    query: LayoutQuery,
    /// `None` if the clipboard is not shared.
    exchange: Option<Exchange>,
    /// The keys that are down, with their keysyms at the time of the press.
    keys: BTreeMap<u8, u32>,
    pointer: (u32, u32),
    buttons: u16,
    events: VecDeque<Event>,
    /// Input that waits for the new layout, while a layout query is pending.
    deferred: VecDeque<[u8; PACKET_BYTES]>,
    is_closed: bool,
    is_out_open: bool,
    pictures: u64,
    unusable: u64,
}

impl WindowPartner {
    /// Makes a partner from an accepted connection and a memory file to share with its server.
    pub(super) fn new(
        spec: &DeviceSpec,
        title: String,
        screen: usize,
        [socket, memory]: [OwnedFd; 2],
    ) -> Result<FlowPartner<Self>, DeviceError> {
        let name = spec.target.clone();
        let deadline = Instant::now() + SETUP_TIMEOUT;
        let to_device_error = device_error(&name);
        let mut client = Client::new(socket, deadline).map_err(&to_device_error)?;
        let screen = super::display::screen(&client, screen)
            .map_err(|problem| DeviceError::Spec { what: name.clone(), problem })?;
        let extensions = Extensions::query(&mut client, deadline).map_err(&to_device_error)?;
        let query = LayoutQuery::new(extensions.xkb);
        query.select_changes(&mut client);
        let layout = query.wait(&mut client, deadline).map_err(&to_device_error)?;
        let clipboard = has_clipboard(spec)
            .then(|| Clipboard::new(&mut client, screen.root, extensions.xfixes, deadline))
            .transpose()
            .map_err(&to_device_error)?;
        let window = Window::new(&mut client, extensions, screen, title, memory, deadline)
            .map_err(&to_device_error)?;
        let partner = WindowPartner {
            name,
            client,
            window,
            layout,
            query,
            exchange: clipboard.map(Exchange::new),
            keys: BTreeMap::new(),
            pointer: (0, 0),
            buttons: 0,
            events: VecDeque::new(),
            deferred: VecDeque::new(),
            is_closed: false,
            is_out_open: false,
            pictures: 0,
            unusable: 0,
        };
        Ok(FlowPartner::new(partner, Some(Format::Viewer), Some(Format::Video)))
    }

    fn gone(&self) -> PartnerError {
        PartnerError::Gone(format!("the window on {}", self.name))
    }

    /// Processes the packets that have arrived, and sends queued requests.
    fn exchange_packets(&mut self) -> io::Result<()> {
        self.client.receive()?;
        while let Some(packet) = self.client.next_packet()? {
            if let Some(layout) = self.query.handle(&mut self.client, &packet)? {
                self.layout = layout;
            }
            if let Some(exchange) = &mut self.exchange {
                let (is_processed, text) = exchange.handle(&mut self.client, &packet)?;
                text.into_iter().for_each(|text| self.emit_latest(text));
                if is_processed {
                    continue;
                }
            }
            match (self.window.handle(&mut self.client, &packet)?, packet) {
                (PacketOutcome::Closed, _) => self.is_closed = true,
                (PacketOutcome::PictureLost, _) => self.emit(Event::Refresh),
                (PacketOutcome::Unrelated, Packet::Event(event)) => self.deferred.push_back(event),
                _ => {}
            }
            while !self.query.is_pending() || self.deferred.len() > EVENTS_MAX {
                let Some(event) = self.deferred.pop_front() else { break };
                self.handle_event(&event)?;
            }
        }
        let now = Time(boot_ns());
        if self.is_out_open
            && let Some((width, height)) = self.window.size.take_due(now)
        {
            self.emit_latest(Event::Size { width, height });
        }
        if let Some(exchange) = self.exchange.as_mut().filter(|_| self.is_out_open) {
            let fetch = exchange.advance(&mut self.client, now);
            fetch.into_iter().for_each(|fetch| self.emit(fetch));
        }
        self.client.flush()
    }

    fn handle_event(&mut self, event: &[u8]) -> io::Result<()> {
        match event[0] & 0x7f {
            kind @ (xproto::KEY_PRESS_EVENT | xproto::KEY_RELEASE_EVENT) => {
                let event: KeyPressEvent = parse(event)?;
                self.handle_key(event.detail, event.state.into(), kind == xproto::KEY_PRESS_EVENT);
            }
            // Motion and button events have the same layout as key events.
            kind @ (xproto::BUTTON_PRESS_EVENT
            | xproto::BUTTON_RELEASE_EVENT
            | xproto::MOTION_NOTIFY_EVENT) => {
                let event: KeyPressEvent = parse(event)?;
                let bit = match kind {
                    xproto::MOTION_NOTIFY_EVENT => 0,
                    // Bit 0 is button 1.
                    _ if (1..=BUTTONS).contains(&event.detail.into()) => 1 << (event.detail - 1),
                    _ => return Ok(()),
                };
                match kind {
                    xproto::BUTTON_RELEASE_EVENT => self.buttons &= !bit,
                    _ => self.buttons |= bit,
                }
                self.handle_pointer(event.event_x, event.event_y);
            }
            xproto::FOCUS_OUT_EVENT => {
                for keysym in std::mem::take(&mut self.keys).into_values() {
                    self.emit(Event::Key { keysym, pressed: false });
                }
            }
            xproto::CONFIGURE_NOTIFY_EVENT => {
                let event: ConfigureNotifyEvent = parse(event)?;
                let size =
                    (u32::from(event.width).clamp(1, SIDE_MAX), u32::from(event.height).clamp(1, SIDE_MAX));
                if event.window == self.window.number {
                    self.window.handle_size(&mut self.client, size, Time(boot_ns()));
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn handle_key(&mut self, key: u8, state: u16, pressed: bool) {
        // A release has the keysym of the press, even if the modifiers have changed since.
        let keysym = match pressed {
            true => self.keys.get(&key).copied().or_else(|| match self.layout.keysym(key, state) {
                0 => None,
                keysym => Some(keysym),
            }),
            false => self.keys.remove(&key),
        };
        let Some(keysym) = keysym else { return };
        if pressed {
            self.keys.insert(key, keysym);
        }
        self.emit(Event::Key { keysym, pressed });
    }

    fn handle_pointer(&mut self, x: i16, y: i16) {
        self.pointer = self.window.pixel_at(x, y);
        positions::skip_intermediate(&mut self.events, self.buttons);
        self.emit(self.pointer_event());
    }

    fn pointer_event(&self) -> Event {
        let ((x, y), buttons) = (self.pointer, self.buttons);
        Event::Pointer { x, y, buttons }
    }

    /// Emits an event. It replaces older ones of its kind that wait.
    fn emit_latest(&mut self, event: Event) {
        let kind = std::mem::discriminant(&event);
        self.events.retain(|waiting| std::mem::discriminant(waiting) != kind);
        self.emit(event);
    }

    fn emit(&mut self, event: Event) {
        if !self.is_out_open {
            return;
        }
        if self.events.len() >= EVENTS_MAX {
            self.emit_state();
        }
        self.events.push_back(event);
    }

    /// Replaces the waiting events by the current state: keys, pointer, buttons, size and text.
    fn emit_state(&mut self) {
        let released = self.events.iter().filter_map(|event| match event {
            Event::Key { keysym, pressed: false } => Some(*keysym),
            _ => None,
        });
        let held: Vec<u32> = self.keys.values().copied().collect();
        let needs_refresh = self.events.contains(&Event::Refresh);
        let released: Vec<u32> = released.filter(|keysym| !held.contains(keysym)).collect();
        self.events.clear();
        self.events.extend(released.into_iter().map(|keysym| Event::Key { keysym, pressed: false }));
        self.events.truncate(EVENTS_MAX / 2);
        self.events.extend(held.into_iter().map(|keysym| Event::Key { keysym, pressed: true }));
        self.events.push_back(self.pointer_event());
        self.events.extend(needs_refresh.then_some(Event::Refresh));
        self.events.extend(self.window.size.requested().map(|(width, height)| Event::Size { width, height }));
        self.events.extend(self.exchange.iter().flat_map(Exchange::state));
    }

    fn next_message(&mut self) -> io::Result<Next> {
        self.exchange_packets()?;
        Ok(match self.events.pop_front() {
            Some(event) => Next::Message(Message::new(Time(boot_ns()), event.to_bytes())),
            None if self.is_closed => Next::End,
            None => Next::Nothing,
        })
    }

    fn show(&mut self, message: &Message) -> io::Result<Result<(), String>> {
        let (update, pixels) = match bgrx::read(&message.body) {
            Ok((Update::Clipboard(text), _)) => {
                if let Some(exchange) = &mut self.exchange {
                    exchange.handle_device(&mut self.client, text);
                }
                return self.exchange_packets().map(Ok);
            }
            Ok(read) => read,
            Err(problem) => return Ok(Err(problem)),
        };
        let outcome = self.window.show(&mut self.client, update, &pixels)?;
        self.client.flush()?;
        match outcome {
            ShowOutcome::Displayed => self.pictures += 1,
            ShowOutcome::Ignored => self.unusable += 1,
            ShowOutcome::NeedsWhole => {
                self.unusable += 1;
                self.emit(Event::Refresh);
            }
        }
        Ok(Ok(()))
    }
}

impl Endpoint for WindowPartner {
    fn opened(&mut self, template: &FlowTemplate, _slot: &mut PullSlot) -> PartnerResult {
        self.is_out_open |= template.direction == Direction::Out;
        Ok(())
    }

    fn closed(&mut self, direction: Direction, slot: &mut PullSlot) -> PartnerResult {
        if direction == Direction::Out {
            self.is_out_open = false;
            self.events.clear();
            *slot = PullSlot::default();
        }
        Ok(())
    }

    fn accept(&mut self, message: &mut Message) -> PartnerResult<bool> {
        self.exchange_packets().map_err(|error| partner_error(&self.name, error))?;
        if self.is_closed {
            return Err(self.gone());
        }
        if self.window.is_busy() || self.client.is_full() {
            return Ok(false);
        }
        let shown = self.show(message).map_err(|error| partner_error(&self.name, error))?;
        shown.map(|()| true).map_err(PartnerError::Message)
    }

    fn next(&mut self, _now: Time) -> PartnerResult<Next> {
        self.next_message().map_err(|error| partner_error(&self.name, error))
    }

    fn ctl(&mut self, flow: FlowKey, operation: Ctl<'_>, slot: &mut PullSlot) -> PartnerResult<CtlReply> {
        match operation {
            Ctl::Flush | Ctl::Finish => {}
            Ctl::Snapshot => {
                *slot = PullSlot::default();
                self.emit_state();
            }
            Ctl::Neutral if flow == OUT => {}
            Ctl::Neutral => {
                self.window.set_stale(&mut self.client, true);
                self.exchange.iter_mut().for_each(Exchange::handle_neutral);
                self.client.flush().map_err(|error| partner_error(&self.name, error))?;
            }
            Ctl::Report => {
                let exchange = self.exchange.as_ref();
                let texts = exchange.map_or((0, 0), |exchange| (exchange.texts, exchange.refused));
                let figures = vec![
                    ("pictures", self.pictures as f64),
                    ("unusable", self.unusable as f64),
                    ("texts", texts.0 as f64),
                    ("texts refused", texts.1 as f64),
                ];
                return Ok(CtlReply::Report(figures));
            }
            _ => return Err(PartnerError::Unsupported("this control operation")),
        }
        Ok(CtlReply::Done)
    }

    fn readiness(&self, direction: Direction) -> Readiness<'_> {
        let reads = Some((self.client.socket(), Interest::Read));
        let writes = self.client.is_writing().then(|| (self.client.socket(), Interest::Write));
        let has_one = match direction {
            Direction::In => !self.window.is_busy() && !self.client.is_full(),
            Direction::Out => !self.events.is_empty() || self.is_closed,
        };
        let readiness = Readiness {
            now: has_one,
            descriptors: [reads, writes],
            at: self.exchange.as_ref().and_then(Exchange::due),
        };
        // Only a pull requests a size.
        readiness.or_at(self.window.size.due().filter(|_| direction == Direction::Out && self.is_out_open))
    }
}
