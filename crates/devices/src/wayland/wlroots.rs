//! The way by the protocols of wlroots: the worker has a connection of its own with the compositor.

use super::capture::{Capture, Objects};
use super::client::{Client, Event};
use super::desktop::{Desktop, Output, SETUP_TIMEOUT};
use super::input::Input;
use super::protocol::{Interface, capture, registry};
use super::screen::Screen;
use super::way::Way;
use crate::plain::is_view_only;
use contract::{DeviceSpec, Interest, PartnerError, Readiness, Report, Time};
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::Instant;

/// A connection with a compositor, for one output.
#[derive(Debug)]
pub(super) struct Wlroots {
    name: String,
    client: Client,
    output: Output,
    capture: Capture,
    /// `None` if the screen is only viewed.
    input: Option<Input>,
}

impl Wlroots {
    /// Sets up a new connection for the output with this name.
    pub(super) fn new(spec: &DeviceSpec, output: &str, socket: OwnedFd) -> io::Result<Wlroots> {
        let deadline = Instant::now() + SETUP_TIMEOUT;
        let mut desktop = Desktop::query(socket, deadline)?;
        let gone = || io::Error::new(io::ErrorKind::NotFound, format!("there is no output {output}"));
        let output = desktop.output(output).cloned().ok_or_else(gone)?;
        let objects = Objects {
            manager: desktop.bind(Interface::CaptureManager, capture::VERSION)?,
            memory: desktop.bind(Interface::Memory, 1)?,
            output: output.object,
        };
        let input = (!is_view_only(spec)).then(|| Input::new(&mut desktop, &output)).transpose()?;
        // A compositor that denies the keyboard says so now.
        desktop.client.wait(deadline, |_| Ok(()))?;
        Ok(Wlroots {
            name: spec.target.clone(),
            client: desktop.client,
            capture: Capture::new(objects, output.transform, spec.options.flag("cursor")),
            output,
            input,
        })
    }

    fn handle(&mut self, mut event: Event, screen: &mut Screen, now: Time) -> io::Result<()> {
        match (event.interface, event.number) {
            (Interface::Frame, _) => self.capture.handle_event(&mut self.client, &mut event, screen, now),
            (Interface::Output, _) if event.object == self.output.object => {
                self.output.handle(&mut event)?;
                self.capture.set_transform(self.output.transform);
                Ok(())
            }
            (Interface::Registry, registry::GLOBAL_REMOVE) if self.output.is(event.number()?) => Err(
                io::Error::new(io::ErrorKind::NotFound, format!("there is no output {}", self.output.name)),
            ),
            _ => Ok(()),
        }
    }

    fn writes(&self) -> Option<(BorrowedFd<'_>, Interest)> {
        self.client.is_writing().then(|| (self.client.socket(), Interest::Write))
    }
}

impl Way for Wlroots {
    fn exchange(&mut self, screen: &mut Screen, now: Time) -> io::Result<()> {
        self.client.receive()?;
        while let Some(event) = self.client.next_event()? {
            self.handle(event, screen, now)?;
        }
        self.client.flush()
    }

    fn pull(&mut self, screen: &mut Screen, now: Time) -> io::Result<()> {
        if self.capture.is_busy() || screen.rhythm.next_at() > now {
            return Ok(());
        }
        screen.rhythm.advance(now);
        self.capture.request(&mut self.client)?;
        self.client.flush()
    }

    /// Frames are requested one by one.
    fn set_watched(&mut self, _: bool) {}

    fn frame_readiness(&self, screen: &Screen) -> Readiness<'_> {
        let descriptors = [Some((self.client.socket(), Interest::Read)), self.writes()];
        let due = (!self.capture.is_busy()).then(|| screen.rhythm.next_at());
        Readiness { descriptors, ..Readiness::default() }.or_at(due)
    }

    fn size(&self) -> (u32, u32) {
        self.output.upright_size()
    }

    fn change_key(&mut self, keysym: u32, pressed: bool) -> io::Result<bool> {
        match &mut self.input {
            Some(input) => input.change_key(&mut self.client, keysym, pressed),
            None => Ok(false),
        }
    }

    fn change_pointer(&mut self, position: (u32, u32), buttons: u16, size: (u32, u32)) -> io::Result<()> {
        if let Some(input) = &mut self.input {
            input.change_pointer(&mut self.client, position, buttons, size);
        }
        Ok(())
    }

    fn release_all(&mut self, size: (u32, u32)) -> io::Result<()> {
        self.input.as_mut().map_or(Ok(()), |input| input.release_all(&mut self.client, size))
    }

    fn flush(&mut self) -> io::Result<()> {
        self.client.flush()
    }

    fn is_full(&self) -> bool {
        self.client.is_full()
    }

    fn input_readiness(&self) -> Readiness<'_> {
        Readiness { descriptors: [self.writes(), None], ..Readiness::default() }
    }

    fn figures(&self) -> Vec<Report> {
        Vec::new()
    }

    fn error(&self, error: io::Error) -> PartnerError {
        use io::ErrorKind as Kind;
        let name = &self.name;
        match error.kind() {
            Kind::UnexpectedEof | Kind::ConnectionReset | Kind::BrokenPipe => {
                PartnerError::Gone(format!("the compositor at {name}"))
            }
            Kind::NotFound => {
                PartnerError::Gone(format!("the output {} of the compositor at {name}", self.output.name))
            }
            Kind::InvalidData => PartnerError::Peer(error.to_string()),
            _ => PartnerError::os(format!("communicating with the compositor at {name}"), error),
        }
    }
}
