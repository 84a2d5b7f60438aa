//! A non-blocking Wayland client: a queue of requests to the compositor, and a stream of events from it.
//!
//! A locked worker may not call `sendmsg(2)` on this socket, which the usual libraries do; its spawner passes the
//! descriptors ([`sys::descriptor::pass`]). The messages themselves are simple (Wayland protocol, "Wire Format"): the object,
//! the number and the length, then arguments of 32 bits in the order of bytes of the host.
//!
//! The compositor is not trusted. A message that is too short, or an event of an object that does not exist, ends the connection.

use super::protocol::{DISPLAY, Interface, display, registry};
use crate::received::{ReceiveBuffer, wait};
use rustix::event::PollFlags;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Instant;

/// Bytes of a message before its arguments.
const HEADER_BYTES: usize = 8;
/// The most bytes of a string that an event may have.
const TEXT_BYTES_MAX: usize = 4096;
/// The most objects. A client has few at a time, and their numbers are used again.
const OBJECTS_MAX: usize = 4096;
/// The first number that belongs to the compositor, which makes no object for this client.
const SERVER_OBJECTS: u32 = 0xff00_0000;
/// Bytes of queued requests above which [`Client::is_full`] reports backpressure.
const QUEUE_BYTES_MAX: usize = 1 << 18;
/// The most bytes that leave together with descriptors: so many fit into the socket of a spawner, too.
const PASSED_BYTES_MAX: usize = 4096;

/// The number of an object on the connection.
pub(super) type Object = u32;

/// A request to an object.
#[derive(Debug)]
pub(super) struct Request(Vec<u8>);

impl Request {
    /// Makes a request without arguments.
    pub(super) fn new(object: Object, number: u16) -> Request {
        let header = [object.to_ne_bytes(), u32::from(number).to_ne_bytes()];
        Request(header.concat())
    }

    /// Appends a number or an object.
    pub(super) fn with(mut self, value: u32) -> Request {
        self.0.extend(value.to_ne_bytes());
        self
    }

    /// Appends a signed number.
    pub(super) fn with_signed(self, value: i32) -> Request {
        self.with(value as u32)
    }

    /// Appends a text: its length with a zero at the end, and padding.
    pub(super) fn with_text(self, text: &str) -> Request {
        let length = text.len() + 1;
        let mut request = self.with(length as u32);
        request.0.extend(text.as_bytes());
        request.0.resize(request.0.len() + 1 + (4 - length % 4) % 4, 0);
        request
    }

    /// Writes the length into the header.
    fn finish(mut self) -> Vec<u8> {
        let length = (self.0.len() as u32) << 16;
        let number = u32::from_ne_bytes([self.0[4], self.0[5], self.0[6], self.0[7]]);
        self.0[4..HEADER_BYTES].copy_from_slice(&(number | length).to_ne_bytes());
        self.0
    }
}

/// An event of an object.
#[derive(Debug)]
pub(super) struct Event {
    pub(super) object: Object,
    pub(super) interface: Interface,
    pub(super) number: u16,
    arguments: Vec<u8>,
    consumed: usize,
}

impl Event {
    /// Takes the next argument, a number.
    pub(super) fn number(&mut self) -> io::Result<u32> {
        let rest = self.arguments.get(self.consumed..).unwrap_or_default();
        let value = rest.first_chunk().ok_or_else(|| protocol_error("an event is too short"))?;
        self.consumed += 4;
        Ok(u32::from_ne_bytes(*value))
    }

    /// Takes the next argument, a text.
    pub(super) fn text(&mut self) -> io::Result<String> {
        let length = self.number()? as usize;
        if length > TEXT_BYTES_MAX {
            return Err(protocol_error("a text is too long"));
        }
        let rest = self.arguments.get(self.consumed..).unwrap_or_default();
        let text = rest.get(..length).ok_or_else(|| protocol_error("a text is longer than its event"))?;
        self.consumed += length.next_multiple_of(4);
        Ok(String::from_utf8_lossy(text.strip_suffix(&[0]).unwrap_or(text)).into_owned())
    }
}

/// A thing that the compositor offers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Global {
    pub(super) name: u32,
    pub(super) interface: String,
    pub(super) version: u32,
}

/// A connection to a compositor.
#[derive(Debug)]
pub(super) struct Client {
    socket: OwnedFd,
    queue: Vec<u8>,
    /// The descriptors of the requests in the queue.
    descriptors: Vec<OwnedFd>,
    received: ReceiveBuffer,
    /// The interface of each object, from number 1. An object that was destroyed stays until the compositor has confirmed it.
    objects: Vec<Interface>,
    /// Numbers that may be used again.
    free: Vec<Object>,
    registry: Object,
}

impl Client {
    /// Makes a client of a connected socket, and asks for the globals.
    pub(super) fn new(socket: OwnedFd) -> io::Result<Client> {
        let mut client = Client {
            socket,
            queue: Vec::new(),
            descriptors: Vec::new(),
            received: ReceiveBuffer::default(),
            objects: vec![Interface::Display],
            free: Vec::new(),
            registry: 0,
        };
        client.registry = client.object(Interface::Registry)?;
        client.send(Request::new(DISPLAY, display::GET_REGISTRY).with(client.registry));
        Ok(client)
    }

    /// Returns the socket, to poll it.
    pub(super) fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Returns whether requests are queued.
    pub(super) fn is_writing(&self) -> bool {
        !self.queue.is_empty()
    }

    /// Returns whether too many requests are queued: the caller must not add more.
    pub(super) fn is_full(&self) -> bool {
        self.queue.len() > QUEUE_BYTES_MAX
    }

    /// Allocates the number of a new object; the next request makes it.
    pub(super) fn object(&mut self, interface: Interface) -> io::Result<Object> {
        if let Some(object) = self.free.pop() {
            self.objects[object as usize - 1] = interface;
            return Ok(object);
        }
        if self.objects.len() >= OBJECTS_MAX {
            return Err(protocol_error("it confirms no destroyed object"));
        }
        self.objects.push(interface);
        Ok(self.objects.len() as Object)
    }

    /// Binds a global in the given version.
    pub(super) fn bind(&mut self, global: &Global, interface: Interface, version: u32) -> io::Result<Object> {
        let object = self.object(interface)?;
        let request = Request::new(self.registry, registry::BIND).with(global.name);
        self.send(request.with_text(&global.interface).with(version).with(object));
        Ok(object)
    }

    /// Sends the request `number` that destroys an object. Its later events are ignored.
    pub(super) fn destroy(&mut self, object: Object, number: u16) {
        self.send(Request::new(object, number));
        self.objects[object as usize - 1] = Interface::Destroyed;
    }

    /// Queues a request.
    pub(super) fn send(&mut self, request: Request) {
        self.queue.extend(request.finish());
    }

    /// Queues a request with a descriptor.
    pub(super) fn send_with(&mut self, request: Request, descriptor: OwnedFd) {
        self.send(request);
        self.descriptors.push(descriptor);
    }

    /// Asks for an event that comes after the results of all earlier requests.
    pub(super) fn sync(&mut self) -> io::Result<Object> {
        let callback = self.object(Interface::Callback)?;
        self.send(Request::new(DISPLAY, display::SYNC).with(callback));
        Ok(callback)
    }

    /// Sends queued requests, as many as the socket takes without blocking.
    pub(super) fn flush(&mut self) -> io::Result<()> {
        let mut done = 0;
        let result = loop {
            let rest = &self.queue[done..];
            if rest.is_empty() {
                break Ok(());
            }
            // Descriptors may arrive before their request, but not after it.
            let bytes =
                if self.descriptors.is_empty() { rest.len() } else { rest.len().min(PASSED_BYTES_MAX) };
            match sys::descriptor::pass(&self.socket, &rest[..bytes], &self.descriptors) {
                Ok(written) => {
                    self.descriptors.clear();
                    done += written;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break Ok(()),
                Err(error) => break Err(error),
            }
        };
        self.queue.drain(..done);
        result
    }

    /// Receives the bytes that wait in the socket.
    pub(super) fn receive(&mut self) -> io::Result<()> {
        self.received.fill(self.socket.as_fd())
    }

    /// Returns the next event, if a whole one was received. The display's own events are processed here.
    pub(super) fn next_event(&mut self) -> io::Result<Option<Event>> {
        loop {
            let Some(bytes) = self.received.take(message_bytes)? else { return Ok(None) };
            let (object, word) = (word(&bytes, 0), word(&bytes, 4));
            let interface = self.interface(object)?;
            let arguments = bytes[HEADER_BYTES..].to_vec();
            let mut event = Event { object, interface, number: word as u16, arguments, consumed: 0 };
            match (interface, event.number) {
                (Interface::Free, _) => return Err(protocol_error("an event belongs to a destroyed object")),
                (Interface::Destroyed, _) => {}
                (Interface::Display, display::ERROR) => {
                    let (object, code, text) = (event.number()?, event.number()?, event.text()?);
                    let interface = self.interface(object).map_or("an object", Interface::name);
                    return Err(io::Error::other(format!(
                        "the compositor refuses a request to {interface} (error {code}): {}",
                        text.escape_debug()
                    )));
                }
                (Interface::Display, display::DELETE_ID) => self.confirm(event.number()?)?,
                (Interface::Display, _) => {}
                _ => return Ok(Some(event)),
            }
        }
    }

    fn interface(&self, object: Object) -> io::Result<Interface> {
        let found = (object as usize).checked_sub(1).and_then(|at| self.objects.get(at));
        found.copied().ok_or_else(|| protocol_error("an event belongs to no object"))
    }

    /// The compositor has destroyed an object.
    fn confirm(&mut self, object: Object) -> io::Result<()> {
        if object >= SERVER_OBJECTS {
            return Ok(());
        }
        match self.interface(object)? {
            // A callback destroys itself.
            Interface::Destroyed | Interface::Callback => {
                self.objects[object as usize - 1] = Interface::Free;
                self.free.push(object);
                Ok(())
            }
            _ => Err(protocol_error("it destroys an object that is in use")),
        }
    }

    /// Waits until `deadline` for the results of all earlier requests. `handle` gets the events.
    pub(super) fn wait(
        &mut self,
        deadline: Instant,
        mut handle: impl FnMut(Event) -> io::Result<()>,
    ) -> io::Result<()> {
        let sync = self.sync()?;
        loop {
            while let Some(event) = self.next_event()? {
                match event.object == sync && event.interface == Interface::Callback {
                    true => return Ok(()),
                    false => handle(event)?,
                }
            }
            self.flush()?;
            let writes = if self.is_writing() { PollFlags::OUT } else { PollFlags::empty() };
            wait(self.socket.as_fd(), PollFlags::IN | writes, deadline)?;
            self.receive()?;
        }
    }
}

fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_ne_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

/// Returns the length of the message that begins with `start`, if `start` is long enough to tell.
fn message_bytes(start: &[u8]) -> io::Result<Option<usize>> {
    let Some(start) = start.first_chunk::<HEADER_BYTES>() else { return Ok(None) };
    match (word(start, 4) >> 16) as usize {
        length if length >= HEADER_BYTES => Ok(Some(length)),
        _ => Err(protocol_error("an event is shorter than its header")),
    }
}

/// Returns the error for a message that violates the protocol.
pub(super) fn protocol_error(problem: &str) -> io::Error {
    let text = format!("the compositor violates the Wayland protocol: {problem}");
    io::Error::new(io::ErrorKind::InvalidData, text)
}
