//! What a client finds out about a display before it begins: extensions, the screen, how pixels lie.

use super::client::{Client, Sequence, broken};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fstat, ftruncate, memfd_create};
use std::io;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};
use sys::memory::{Access, Shared};
use x11rb_protocol::protocol::xproto::{
    ImageOrder, QueryExtensionReply, QueryExtensionRequest, Screen, VisualClass,
};
use x11rb_protocol::protocol::{damage, render, shm, xfixes, xtest};
use x11rb_protocol::x11_utils::TryParse;

/// The longest that a server which has accepted us may take for its first answers.
pub(super) const PATIENCE: Duration = Duration::from_secs(5);

/// How the requests and events of an extension are numbered here.
#[derive(Debug, Clone, Copy)]
pub(super) struct Extension {
    /// First byte of its requests.
    pub(super) opcode: u8,
    /// First byte of its first event.
    pub(super) event: u8,
}

/// The extensions in use, those that the server has.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Extensions {
    /// MIT-SHM, if descriptors of memory may be handed to the server (1.2).
    pub(super) shm: Option<Extension>,
    pub(super) damage: Option<Extension>,
    pub(super) xfixes: Option<Extension>,
    pub(super) xtest: Option<Extension>,
    pub(super) render: Option<Extension>,
}

impl Extensions {
    /// Asks for all, and says which version of each is spoken.
    pub(super) fn find(client: &mut Client, deadline: Instant) -> io::Result<Extensions> {
        let names = [
            shm::X11_EXTENSION_NAME,
            damage::X11_EXTENSION_NAME,
            xfixes::X11_EXTENSION_NAME,
            xtest::X11_EXTENSION_NAME,
            render::X11_EXTENSION_NAME,
        ];
        let asked =
            names.map(|name| client.ask(QueryExtensionRequest { name: name.as_bytes().into() }.serialize()));
        let mut found = [None; 5];
        for (into, request) in found.iter_mut().zip(asked) {
            let reply: QueryExtensionReply = answer(client, request, deadline)?;
            *into =
                reply.present.then_some(Extension { opcode: reply.major_opcode, event: reply.first_event });
        }
        let [shm, damage, xfixes, xtest, render] = found;
        let mut extensions = Extensions { shm: None, damage, xfixes, xtest, render };
        let is_local =
            rustix::net::getsockname(client.socket())?.address_family() == rustix::net::AddressFamily::UNIX;
        if let Some(shm) = shm.filter(|_| is_local) {
            let request = client.ask(shm::QueryVersionRequest.serialize(shm.opcode));
            let reply: shm::QueryVersionReply = answer(client, request, deadline)?;
            let version = (reply.major_version, reply.minor_version);
            extensions.shm = (version >= (1, 2)).then_some(shm);
        }
        if let Some(damage) = damage {
            let request = damage::QueryVersionRequest { client_major_version: 1, client_minor_version: 1 };
            let request = client.ask(request.serialize(damage.opcode));
            let _: damage::QueryVersionReply = answer(client, request, deadline)?;
        }
        if let Some(xfixes) = xfixes {
            let request = xfixes::QueryVersionRequest { client_major_version: 5, client_minor_version: 0 };
            let request = client.ask(request.serialize(xfixes.opcode));
            let _: xfixes::QueryVersionReply = answer(client, request, deadline)?;
        }
        // Regions are how damage is told.
        extensions.damage = extensions.damage.filter(|_| xfixes.is_some());
        Ok(extensions)
    }
}

/// Waits for an answer and reads it.
pub(super) fn answer<T: TryParse>(
    client: &mut Client,
    request: Sequence,
    deadline: Instant,
) -> io::Result<T> {
    let bytes = client
        .wait_for(request, deadline)?
        .map_err(|code| io::Error::other(format!("the X server refuses a request (error {code})")))?;
    parse(&bytes)
}

/// Reads an answer or an event.
pub(super) fn parse<T: TryParse>(bytes: &[u8]) -> io::Result<T> {
    T::try_parse(bytes).map(|(parsed, _)| parsed).map_err(|_| broken("an answer makes no sense"))
}

/// The screen of this number, if its pixels are blue, green, red and a fourth byte: those of `XR24`.
pub(super) fn screen(client: &Client, number: usize) -> Result<Screen, String> {
    let setup = client.setup();
    let count = setup.roots.len();
    let screen =
        setup.roots.get(number).ok_or_else(|| format!("there is no screen {number} on it, but {count}"))?;
    let visual = screen
        .allowed_depths
        .iter()
        .flat_map(|depth| &depth.visuals)
        .find(|visual| visual.visual_id == screen.root_visual);
    let colours = visual
        .filter(|visual| matches!(visual.class, VisualClass::TRUE_COLOR | VisualClass::DIRECT_COLOR))
        .map(|visual| (visual.red_mask, visual.green_mask, visual.blue_mask));
    let pixel_bits = setup
        .pixmap_formats
        .iter()
        .find(|format| format.depth == screen.root_depth)
        .map_or(0, |format| format.bits_per_pixel);
    let fits = colours == Some((0xff_0000, 0xff00, 0xff))
        && pixel_bits == 32
        && setup.image_byte_order == ImageOrder::LSB_FIRST;
    match fits {
        true => Ok(screen.clone()),
        false => Err(format!(
            "its pixels have {} bits; only 8 each of red, green and blue in 32 are understood: run it with a \
             depth of 24",
            screen.root_depth
        )),
    }
}

/// Memory shared with the server.
#[derive(Debug)]
pub(super) struct Segment {
    memory: Shared,
    /// Its number with the server.
    pub(super) number: u32,
    bytes: usize,
}

impl Segment {
    /// Memory for a server to be told of, empty.
    pub(super) fn memory() -> io::Result<OwnedFd> {
        let memory = memfd_create("outboard-x11", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        // It is mapped: nobody may take it away.
        fcntl_add_seals(&memory, SealFlags::SHRINK)?;
        Ok(memory)
    }

    /// Makes memory this large and has the server attach it; the request fails if it cannot.
    pub(super) fn attach(
        client: &mut Client,
        shm: Extension,
        memory: &OwnedFd,
        bytes: usize,
    ) -> io::Result<(Segment, Sequence)> {
        if fstat(memory)?.st_size < bytes as i64 {
            ftruncate(memory, bytes as u64)?;
        }
        let number = client.resource();
        let request = shm::AttachFdRequest { shmseg: number, shm_fd: memory.try_clone()?, read_only: false };
        let request = client.send(request.serialize(shm.opcode));
        Ok((Segment { memory: Shared::map(memory, Access::Write)?, number, bytes }, request))
    }

    /// Has the server let go of it.
    pub(super) fn detach(self, client: &mut Client, shm: Extension) {
        client.send(shm::DetachRequest { shmseg: self.number }.serialize(shm.opcode));
    }

    /// How large it is.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Copies bytes out, from `at` on.
    pub(super) fn read(&self, at: usize, into: &mut [u8]) -> io::Result<()> {
        match self.memory.copy_out(at, into) {
            true => Ok(()),
            false => Err(io::Error::other("more is wanted than memory is shared")),
        }
    }

    /// Copies bytes into it, from `at` on; they fit.
    pub(super) fn write<'a>(&self, chunks: impl Iterator<Item = &'a [u8]>, mut at: usize) -> io::Result<()> {
        for chunk in chunks {
            if !self.memory.copy_in(at, chunk) {
                return Err(io::Error::other("more is shown than memory is shared"));
            }
            at += chunk.len();
        }
        Ok(())
    }
}
