//! The setup of a client: queries the extensions, checks the pixel format of the screen, shares memory with the server.

use super::client::{Client, Sequence, protocol_error};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fstat, ftruncate, memfd_create};
use std::io;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};
use sys::memory::{Access, Shared};
use x11rb_protocol::protocol::xproto::{
    ImageOrder, QueryExtensionReply, QueryExtensionRequest, Screen, VisualClass,
};
use x11rb_protocol::protocol::{damage, render, shm, xfixes, xkb, xtest};
use x11rb_protocol::x11_utils::TryParse;

/// The time limit for connecting to a server and for its replies during setup.
pub(super) const SETUP_TIMEOUT: Duration = Duration::from_secs(5);

/// The numbers that the server has assigned to an extension.
#[derive(Debug, Clone, Copy)]
pub(super) struct Extension {
    /// The first byte of its requests.
    pub(super) opcode: u8,
    /// The first byte of its first event.
    pub(super) event: u8,
}

/// The extensions that this client uses; `None` for those that the server lacks.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Extensions {
    /// MIT-SHM, if the server takes memory as a descriptor (version 1.2, on this host).
    pub(super) shm: Option<Extension>,
    pub(super) damage: Option<Extension>,
    pub(super) xfixes: Option<Extension>,
    pub(super) xtest: Option<Extension>,
    pub(super) render: Option<Extension>,
    pub(super) xkb: Option<Extension>,
}

impl Extensions {
    /// Queries all extensions and negotiates their versions.
    pub(super) fn query(client: &mut Client, deadline: Instant) -> io::Result<Extensions> {
        let names = [
            shm::X11_EXTENSION_NAME,
            damage::X11_EXTENSION_NAME,
            xfixes::X11_EXTENSION_NAME,
            xtest::X11_EXTENSION_NAME,
            render::X11_EXTENSION_NAME,
            xkb::X11_EXTENSION_NAME,
        ];
        let requests = names
            .map(|name| client.query(QueryExtensionRequest { name: name.as_bytes().into() }.serialize()));
        let mut found = [None; 6];
        for (into, request) in found.iter_mut().zip(requests) {
            let reply: QueryExtensionReply = wait_reply(client, request, deadline)?;
            *into =
                reply.present.then_some(Extension { opcode: reply.major_opcode, event: reply.first_event });
        }
        let [shm, damage, xfixes, xtest, render, xkb] = found;
        let mut extensions = Extensions { shm: None, damage, xfixes, xtest, render, xkb };
        let is_local =
            rustix::net::getsockname(client.socket())?.address_family() == rustix::net::AddressFamily::UNIX;
        if let Some(shm) = shm.filter(|_| is_local) {
            let request = client.query(shm::QueryVersionRequest.serialize(shm.opcode));
            let reply: shm::QueryVersionReply = wait_reply(client, request, deadline)?;
            let version = (reply.major_version, reply.minor_version);
            extensions.shm = (version >= (1, 2)).then_some(shm);
        }
        if let Some(damage) = damage {
            let request = damage::QueryVersionRequest { client_major_version: 1, client_minor_version: 1 };
            let request = client.query(request.serialize(damage.opcode));
            let _: damage::QueryVersionReply = wait_reply(client, request, deadline)?;
        }
        if let Some(xfixes) = xfixes {
            let request = xfixes::QueryVersionRequest { client_major_version: 5, client_minor_version: 0 };
            let request = client.query(request.serialize(xfixes.opcode));
            let _: xfixes::QueryVersionReply = wait_reply(client, request, deadline)?;
        }
        if let Some(xkb) = xkb {
            let version = xkb::UseExtensionRequest { wanted_major: 1, wanted_minor: 0 };
            let request = client.query(version.serialize(xkb.opcode));
            let reply: xkb::UseExtensionReply = wait_reply(client, request, deadline)?;
            extensions.xkb = reply.supported.then_some(xkb);
        }
        // Damage is read as a region of XFIXES.
        extensions.damage = extensions.damage.filter(|_| xfixes.is_some());
        Ok(extensions)
    }
}

/// Waits for the reply to a request and parses it.
pub(super) fn wait_reply<T: TryParse>(
    client: &mut Client,
    request: Sequence,
    deadline: Instant,
) -> io::Result<T> {
    let bytes = client
        .wait_for(request, deadline)?
        .map_err(|code| io::Error::other(format!("the X server refuses a request (error {code})")))?;
    parse(&bytes)
}

/// Queries the formats of pictures (RENDER).
pub(super) fn picture_formats(
    client: &mut Client,
    render: Extension,
    deadline: Instant,
) -> io::Result<render::QueryPictFormatsReply> {
    let version = render::QueryVersionRequest { client_major_version: 0, client_minor_version: 11 };
    let request = client.query(version.serialize(render.opcode));
    let _: render::QueryVersionReply = wait_reply(client, request, deadline)?;
    let request = client.query(render::QueryPictFormatsRequest.serialize(render.opcode));
    wait_reply(client, request, deadline)
}

/// Parses a reply or an event.
pub(super) fn parse<T: TryParse>(bytes: &[u8]) -> io::Result<T> {
    T::try_parse(bytes).map(|(parsed, _)| parsed).map_err(|_| protocol_error("a reply is malformed"))
}

/// Returns the screen with this number if its pixels are `XR24`: blue, green, red and an unused byte.
pub(super) fn screen(client: &Client, number: usize) -> Result<Screen, String> {
    let setup = client.setup();
    let count = setup.roots.len();
    let screen = setup
        .roots
        .get(number)
        .ok_or_else(|| format!("it has no screen {number}; the number of its screens is {count}"))?;
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
            "its pixels have a depth of {}; only 8 bits each of red, green and blue in 32 are supported: run it \
             with a depth of 24",
            screen.root_depth
        )),
    }
}

/// Memory shared with the server (MIT-SHM).
#[derive(Debug)]
pub(super) struct Segment {
    memory: Shared,
    /// Its identifier at the server.
    pub(super) number: u32,
    bytes: usize,
}

impl Segment {
    /// Makes an empty memory file to share with a server.
    pub(super) fn memory() -> io::Result<OwnedFd> {
        let memory = memfd_create("outboard-x11", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        // A mapping of a file that shrinks would fault: the seal forbids to shrink it.
        fcntl_add_seals(&memory, SealFlags::SHRINK)?;
        Ok(memory)
    }

    /// Grows the memory to `bytes` and asks the server to attach it. The request fails if the server cannot.
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

    /// Asks the server to detach the memory.
    pub(super) fn detach(self, client: &mut Client, shm: Extension) {
        client.send(shm::DetachRequest { shmseg: self.number }.serialize(shm.opcode));
    }

    /// Returns the size that the server may use.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Copies bytes out, from offset `at`.
    pub(super) fn read(&self, at: usize, into: &mut [u8]) -> io::Result<()> {
        match self.memory.copy_out(at, into) {
            true => Ok(()),
            false => Err(io::Error::other("a read exceeds the shared memory")),
        }
    }

    /// Copies bytes in, from offset `at`.
    pub(super) fn write<'a>(&self, chunks: impl Iterator<Item = &'a [u8]>, mut at: usize) -> io::Result<()> {
        for chunk in chunks {
            if !self.memory.copy_in(at, chunk) {
                return Err(io::Error::other("a picture exceeds the shared memory"));
            }
            at += chunk.len();
        }
        Ok(())
    }
}
