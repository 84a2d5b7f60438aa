//! The device side: a screen as a partner. Pulls return pictures, damaged rectangles and the pointer shape. Pushes take
//! the viewer's input, which the server processes like input from its own keyboard and mouse (XTEST).

use super::bindings::Bindings;
use super::capture::Capture;
use super::client::{Client, Packet};
use super::clipboard::{Clipboard, ClipboardEvent};
use super::display::{Extension, Extensions, SETUP_TIMEOUT, wait_reply};
use super::errors::{device_error, partner_error};
use super::layout::LayoutQuery;
use super::locks::LocksQuery;
use crate::clipboard::Copies;
use crate::flows::{Endpoint, FlowPartner, OUT, invalid};
use crate::keys::keyboard::{KeyAction, Keyboard};
use crate::keys::layout::NONE;
use crate::plain::{has_clipboard, is_view_only};
use contract::{
    Ctl, CtlReply, DeviceError, DeviceSpec, Direction, FlowKey, FlowTemplate, Format, Interest, Message,
    Next, PartnerError, PartnerResult, PullSlot, Readiness, Report, Time,
};
use std::collections::VecDeque;
use std::io;
use std::os::fd::OwnedFd;
use std::time::Instant;
use sys::clock::boot_ns;
use wire::formats::viewer::Event;
use x11rb_protocol::protocol::xproto::{
    self, QueryKeymapReply, QueryKeymapRequest, QueryPointerReply, QueryPointerRequest,
};
use x11rb_protocol::protocol::xtest::FakeInputRequest;

/// A screen as a partner.
pub(super) struct DevicePartner {
    name: String,
    client: Client,
    extensions: Extensions,
    root: xproto::Window,
    capture: Capture,
    /// `None` if the clipboard is not shared.
    clipboard: Option<Clipboard>,
    copies: Copies,
    keyboard: Keyboard,
    /// `None` if no keys are typed.
    bindings: Option<Bindings>,
    layout: LayoutQuery,
    /// `None` if the server has no XKB.
    locks: Option<LocksQuery>,
    /// The pointer's position, as set by the viewer.
    pointer: (u32, u32),
    /// The mouse buttons that are down, as set by the viewer.
    buttons: u16,
    /// Complete messages that wait for a pull.
    ready: VecDeque<Message>,
    inputs: u64,
    refused: u64,
}

fn now() -> Time {
    Time(boot_ns())
}

/// Releases the keys and buttons that a killed worker held: the server keeps them down after its connection. Those that the
/// user of the screen holds stay down, because XTEST has a keyboard and a pointer of its own.
fn release_leftovers(
    client: &mut Client,
    xtest: Extension,
    root: xproto::Window,
    deadline: Instant,
) -> io::Result<()> {
    let keymap = client.query(QueryKeymapRequest.serialize());
    let pointer = client.query(QueryPointerRequest { window: root }.serialize());
    let keymap: QueryKeymapReply = wait_reply(client, keymap, deadline)?;
    let pointer: QueryPointerReply = wait_reply(client, pointer, deadline)?;
    let keys = (0..=u8::MAX).filter(|key| keymap.keys[usize::from(key / 8)] >> (key % 8) & 1 != 0);
    let keys = keys.map(|key| (xproto::KEY_RELEASE_EVENT, key));
    // The mask has five buttons, from bit 8 on.
    let buttons = (1..=5).filter(|button| u16::from(pointer.mask) >> (7 + button) & 1 != 0);
    let buttons = buttons.map(|button| (xproto::BUTTON_RELEASE_EVENT, button));
    for (type_, detail) in keys.chain(buttons) {
        let release = FakeInputRequest { type_, detail, time: 0, root, root_x: 0, root_y: 0, deviceid: 0 };
        client.send(release.serialize(xtest.opcode));
    }
    client.flush()
}

impl DevicePartner {
    /// Makes a partner from an accepted connection and a memory file to share with its server.
    pub(super) fn new(
        spec: &DeviceSpec,
        screen: usize,
        [socket, memory]: [OwnedFd; 2],
    ) -> Result<FlowPartner<Self>, DeviceError> {
        let (name, options) = (spec.target.clone(), &spec.options);
        let deadline = Instant::now() + SETUP_TIMEOUT;
        let to_device_error = device_error(&name);
        let mut client = Client::new(socket, deadline).map_err(&to_device_error)?;
        let screen = super::display::screen(&client, screen)
            .map_err(|problem| DeviceError::Spec { what: name.clone(), problem })?;
        let extensions = Extensions::query(&mut client, deadline).map_err(&to_device_error)?;
        let capture = Capture::new(&mut client, extensions, screen.root, memory, options, deadline)
            .map_err(&to_device_error)?;
        let clipboard = has_clipboard(spec)
            .then(|| Clipboard::new(&mut client, screen.root, extensions.xfixes, deadline))
            .transpose()
            .map_err(&to_device_error)?;
        let mut bindings = None;
        if let Some(xtest) = extensions.xtest.filter(|_| !is_view_only(spec)) {
            release_leftovers(&mut client, xtest, screen.root, deadline).map_err(&to_device_error)?;
            let present = Bindings::new(&mut client, screen.root, deadline).map_err(&to_device_error)?;
            bindings = Some(present);
        }
        let mut keyboard = Keyboard::default();
        let layout = LayoutQuery::new(extensions.xkb);
        if !is_view_only(spec) {
            layout.select_changes(&mut client);
        }
        let present = layout.wait(&mut client, deadline).map_err(&to_device_error)?;
        keyboard.set_layout(present.into_keys());
        let mut locks = None;
        if let Some(xkb) = extensions.xkb.filter(|_| !is_view_only(spec)) {
            let (query, present) = LocksQuery::wait(&mut client, xkb, deadline).map_err(&to_device_error)?;
            keyboard.set_locks(present);
            locks = Some(query);
        }
        let partner = DevicePartner {
            name,
            client,
            extensions,
            root: screen.root,
            capture,
            clipboard,
            copies: Copies::default(),
            keyboard,
            bindings,
            layout,
            locks,
            pointer: (0, 0),
            buttons: 0,
            ready: VecDeque::new(),
            inputs: 0,
            refused: 0,
        };
        let input = (!is_view_only(spec)).then_some(Format::Viewer);
        Ok(FlowPartner::new(partner, Some(Format::Video), input))
    }

    /// Processes the packets that have arrived, and sends queued requests.
    fn exchange_packets(&mut self) -> io::Result<()> {
        self.client.receive()?;
        while let Some(packet) = self.client.next_packet()? {
            if let Some(layout) = self.layout.handle(&mut self.client, &packet)? {
                self.keyboard.set_layout(layout.into_keys());
            }
            if let Some(query) = &mut self.locks
                && let Some(locks) = query.handle(&packet)?
            {
                self.keyboard.set_locks(locks);
                continue;
            }
            if let Some(clipboard) = &mut self.clipboard {
                let event = clipboard.handle(&mut self.client, &packet)?;
                if event != ClipboardEvent::Unrelated {
                    self.handle_clipboard(event);
                    continue;
                }
            }
            match packet {
                Packet::Reply(request, bytes) => {
                    let message = self.capture.handle_reply(&mut self.client, request, bytes, now())?;
                    self.ready.extend(message);
                }
                Packet::Error(request, _) => self.capture.handle_error(request)?,
                Packet::Event(event) => self.capture.handle_event(&mut self.client, &event, now())?,
            }
        }
        self.client.flush()
    }

    fn handle_clipboard(&mut self, event: ClipboardEvent) {
        match event {
            ClipboardEvent::Copied => self.copies.handle_copy(),
            ClipboardEvent::Read(Some(text)) => self.copies.provide(text),
            _ => {}
        }
    }

    fn next_message(&mut self) -> io::Result<Next> {
        self.capture.handle_pull(now());
        self.exchange_packets()?;
        if let Some(clipboard) = &mut self.clipboard {
            let event = clipboard.handle_time(now());
            self.handle_clipboard(event);
        }
        if let Some(message) = self.copies.next(self.capture.geometry(), now()) {
            return Ok(Next::Message(message));
        }
        if self.ready.is_empty() {
            self.capture.send_due(&mut self.client, now());
            self.client.flush()?;
        }
        let Some(message) = self.ready.pop_front() else { return Ok(Next::Nothing) };
        self.capture.handle_taken(&message, now());
        Ok(Next::Message(message))
    }

    /// Applies an input event of the viewer. Counts events that this server cannot apply.
    fn apply(&mut self, event: Event) {
        self.inputs += 1;
        match event {
            Event::Refresh => self.capture.request_whole(),
            Event::Text(_) | Event::Fetch => self.apply_clipboard(&event),
            _ if self.extensions.xtest.is_none() => self.refused += 1,
            Event::Key { keysym, pressed: true } => match self.keyboard.press(keysym) {
                Some(actions) => self.change_keys(actions),
                None => self.refused += 1,
            },
            Event::Key { keysym, pressed: false } => {
                let actions = self.keyboard.release(keysym);
                self.change_keys(actions);
            }
            Event::Pointer { x, y, buttons } => self.change_pointer((x, y), buttons),
            Event::Size { .. } => self.refused += 1,
        }
    }

    fn apply_clipboard(&mut self, event: &Event) {
        let Some(clipboard) = &mut self.clipboard else {
            self.refused += 1;
            return;
        };
        match event {
            Event::Text(text) => {
                if let Some(text) = self.copies.handle_text(text) {
                    clipboard.offer(&mut self.client, text);
                }
            }
            _ if self.copies.handle_fetch() => clipboard.read(&mut self.client, now()),
            _ => {}
        }
    }

    fn change_keys(&mut self, actions: Vec<KeyAction>) {
        for action in actions {
            match action {
                KeyAction::Key(key, true) => self.send_input(xproto::KEY_PRESS_EVENT, key, (0, 0)),
                KeyAction::Key(key, false) => self.send_input(xproto::KEY_RELEASE_EVENT, key, (0, 0)),
                KeyAction::Lock(locks) => {
                    if let Some(query) = &mut self.locks {
                        query.change(&mut self.client, locks);
                    }
                }
                KeyAction::Bind(key, keysym) => {
                    if let Some(bindings) = &self.bindings {
                        // First the record, as the worker may be killed before it sends the rest.
                        if keysym != NONE {
                            bindings.record(&mut self.client, self.keyboard.bound());
                        }
                        bindings.bind(&mut self.client, key, keysym);
                    }
                }
            }
        }
    }

    fn change_pointer(&mut self, pointer: (u32, u32), buttons: u16) {
        // The user of the screen may have moved the pointer, so a change of buttons needs the position, too.
        if self.pointer != pointer || self.buttons != buttons {
            self.pointer = pointer;
            self.send_input(xproto::MOTION_NOTIFY_EVENT, 0, pointer);
        }
        self.change_buttons(buttons);
    }

    fn change_buttons(&mut self, buttons: u16) {
        let changed = self.buttons ^ buttons;
        for bit in (0..u16::BITS as u8).filter(|bit| changed >> bit & 1 != 0) {
            let kind = match buttons >> bit & 1 {
                1 => xproto::BUTTON_PRESS_EVENT,
                _ => xproto::BUTTON_RELEASE_EVENT,
            };
            // Bit 0 is button 1.
            self.send_input(kind, bit + 1, (0, 0));
        }
        self.buttons = buttons;
    }

    fn send_input(&mut self, type_: u8, detail: u8, (x, y): (u32, u32)) {
        let Some(xtest) = self.extensions.xtest else { return };
        let (root_x, root_y) = (x.min(i16::MAX as u32) as i16, y.min(i16::MAX as u32) as i16);
        let (root, time, deviceid) = (self.root, 0, 0);
        let input = FakeInputRequest { type_, detail, time, root, root_x, root_y, deviceid };
        self.client.send(input.serialize(xtest.opcode));
    }

    /// Releases all keys and buttons. The pointer stays where it is: the user of the screen may have moved it.
    fn release_all(&mut self) {
        let actions = self.keyboard.release_all();
        self.change_keys(actions);
        self.change_buttons(0);
    }

    /// Releases all keys and buttons, and removes the keysyms of all bound keys.
    fn restore(&mut self) {
        self.release_all();
        let actions = self.keyboard.unbind_all();
        let is_recorded = !actions.is_empty();
        self.change_keys(actions);
        if let Some(bindings) = self.bindings.as_ref().filter(|_| is_recorded) {
            bindings.record(&mut self.client, self.keyboard.bound());
        }
    }

    fn report(&self) -> Vec<Report> {
        let figures = &self.capture.figures;
        vec![
            ("frames", figures.frames as f64),
            ("partial", figures.partial as f64),
            ("rectangles", figures.rectangles as f64),
            ("cursors", figures.cursors as f64),
            ("failed", figures.failed as f64),
            ("sizes", figures.sizes as f64),
            ("texts", self.copies.sent as f64),
            ("texts refused", self.copies.refused as f64),
            ("inputs", self.inputs as f64),
            ("inputs refused", self.refused as f64),
        ]
    }
}

impl Drop for DevicePartner {
    /// Restores the keyboard and the buttons: the broker may keep the connection open.
    fn drop(&mut self) {
        self.restore();
        // An error means that the server is gone, and its state with it.
        let _ = self.client.flush();
    }
}

impl Endpoint for DevicePartner {
    fn opened(&mut self, template: &FlowTemplate, _slot: &mut PullSlot) -> PartnerResult {
        if template.direction == Direction::Out {
            self.capture.request_whole();
        }
        Ok(())
    }

    fn closed(&mut self, direction: Direction, slot: &mut PullSlot) -> PartnerResult {
        match direction {
            Direction::Out => {
                self.ready.clear();
                *slot = PullSlot::default();
            }
            Direction::In => {
                self.restore();
                self.client.flush().map_err(|error| partner_error(&self.name, error))?;
            }
        }
        Ok(())
    }

    fn accept(&mut self, message: &mut Message) -> PartnerResult<bool> {
        let event = Event::parse(message.body.as_slice()).map_err(invalid)?;
        // The user of the screen may have changed the layout or a lock.
        let depends_on_keyboard = matches!(event, Event::Key { pressed: true, .. });
        if self.client.is_writing() || depends_on_keyboard {
            self.exchange_packets().map_err(|error| partner_error(&self.name, error))?;
        }
        if self.client.is_full() {
            return Ok(false);
        }
        self.apply(event);
        self.client.flush().map_err(|error| partner_error(&self.name, error))?;
        Ok(true)
    }

    fn next(&mut self, _now: Time) -> PartnerResult<Next> {
        self.next_message().map_err(|error| partner_error(&self.name, error))
    }

    fn ctl(&mut self, flow: FlowKey, operation: Ctl<'_>, slot: &mut PullSlot) -> PartnerResult<CtlReply> {
        match operation {
            Ctl::Flush | Ctl::Finish => {}
            Ctl::Snapshot => {
                self.ready.clear();
                *slot = PullSlot::default();
                self.capture.request_whole();
                self.copies.handle_snapshot();
            }
            Ctl::Merging(merges) => self.capture.set_merging(merges),
            Ctl::Neutral if flow == OUT => {}
            Ctl::Neutral => {
                self.release_all();
                self.client.flush().map_err(|error| partner_error(&self.name, error))?;
            }
            Ctl::Report => return Ok(CtlReply::Report(self.report())),
            _ => return Err(PartnerError::Unsupported("this control operation")),
        }
        Ok(CtlReply::Done)
    }

    fn readiness(&self, direction: Direction) -> Readiness<'_> {
        let writes = self.client.is_writing().then(|| (self.client.socket(), Interest::Write));
        match direction {
            Direction::In if !self.client.is_full() => Readiness::now(),
            Direction::In => Readiness { descriptors: [writes, None], ..Readiness::default() },
            Direction::Out if !self.ready.is_empty() || self.copies.is_ready() => Readiness::now(),
            Direction::Out => {
                let descriptors = [Some((self.client.socket(), Interest::Read)), writes];
                Readiness { descriptors, ..Readiness::default() }
                    .or_at(self.capture.due())
                    .or_at(self.clipboard.as_ref().and_then(Clipboard::due))
            }
        }
    }
}
