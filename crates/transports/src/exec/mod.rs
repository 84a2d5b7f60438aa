#![doc = include_str!("exec.md")]
//!
//! # Structure
//!
//! ```text
//! push ─► SendQueue ─► Splitter ─► seal ─► socket ─► program ≈≈ program ─► socket ─► open ─► Reassembly ─► pull
//! ```
//!
//! | module | purpose |
//! |---|---|
//! | `program` | starts, supervises and kills the program |
//! | `given` | ignores copies of records that are on their way |
//! | `hello` | the first containers of both sides |
//! | `message` | the messages that the program carries |
//! | `silence` | finds a connection on which nothing arrives |
//! | `partner` | a running program as a partner |

mod given;
mod hello;
mod message;
mod partner;
mod program;
mod silence;
#[cfg(test)]
pub(crate) mod tests;

use crate::send_queue;
use contract::{
    End, Meeting, ModuleEntry, OptionKind, OptionSpec, Options, Partner, PartnerError, PartnerResult,
    ProgramTransport, SealKeys, TransportClass, local,
};
use message::Kind;
use partner::ExecPartner;
use rustix::io::Errno;
use rustix::net::{RecvFlags, recv};
use std::net::SocketAddr;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::Duration;
use wire::preamble::Introduction;
use wire::{BODY_BYTES_MAX, Container, Preamble};

/// Largest message that a program may declare to carry, bytes: the largest container.
const MESSAGE_BYTES_MAX: usize = BODY_BYTES_MAX;
/// Bytes in which an introduction must be found: it follows the hello.
const LOOK_BYTES: usize = hello::HELLO_BYTES_MAX + 2 * Container::BYTES + 1 + Introduction::BYTES;

static OPTIONS: [OptionSpec; 3] = [
    local(
        "command",
        OptionKind::Text { max: 4096 },
        "",
        "the program with its arguments, as written behind `exec:`; a shell runs it",
    ),
    local(
        "patience",
        OptionKind::Duration { min: Duration::from_millis(100), max: Duration::from_secs(24 * 3600) },
        "15s",
        "the program starts again if nothing arrives from the other host for this time, although something is due",
    ),
    send_queue::OUTBOX,
];

/// The transport `exec`.
#[derive(Debug, Clone, Copy)]
pub struct Exec;

impl TransportClass for Exec {
    fn entry(&self) -> ModuleEntry {
        ModuleEntry {
            name: "exec",
            summary: "records that a program of yours carries, encrypted, over any connection that it makes",
            doc: include_str!("exec.md"),
            options: &OPTIONS,
        }
    }

    /// The flows are built before a program declares its properties.
    fn may_lose(&self) -> bool {
        true
    }

    fn is_datagram(&self) -> bool {
        true
    }

    fn program(&self) -> Option<&dyn ProgramTransport> {
        Some(self)
    }

    fn dial(&self, _peer: SocketAddr, _options: &Options) -> PartnerResult<OwnedFd> {
        Err(PartnerError::Unsupported("dialling an address: a program makes the connection"))
    }

    fn partner(
        &self,
        socket: OwnedFd,
        _end: End,
        options: &Options,
        keys: Option<&SealKeys>,
    ) -> PartnerResult<Box<dyn Partner>> {
        Ok(Box::new(ExecPartner::new(socket, options, keys)))
    }
}

impl ProgramTransport for Exec {
    fn begin(&self, meeting: &Meeting<'_>, options: &Options) -> PartnerResult<OwnedFd> {
        let command = options.text("command");
        let failed = |error| PartnerError::os(format!("starting `{command}`"), error);
        let socket = program::start(command).map_err(failed)?;
        let hello = hello::emit(meeting);
        match sys::net::send(&socket, &[std::io::IoSlice::new(&hello)]) {
            Ok(count) if count == hello.len() => Ok(socket),
            // It has exited already, as the next step finds out.
            Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(socket),
            Ok(_) => Err(failed(std::io::ErrorKind::WriteZero.into())),
            Err(error) => Err(failed(error)),
        }
    }

    fn wrap(&self, introduction: &[u8]) -> Vec<u8> {
        message::container(Kind::Introduction, introduction)
    }

    fn look(&self, socket: BorrowedFd<'_>) -> PartnerResult<Option<Vec<u8>>> {
        let mut bytes = [0; LOOK_BYTES];
        let count = match recv(socket, &mut bytes[..], RecvFlags::PEEK | RecvFlags::DONTWAIT) {
            Ok((0, _)) => {
                return Err(PartnerError::Data("the program ended before it met the other host".into()));
            }
            Ok((count, _)) => count,
            Err(Errno::AGAIN | Errno::INTR) => return Ok(None),
            Err(error) => return Err(PartnerError::os("reading from the program", error)),
        };
        look_in(&bytes[..count]).map_err(|problem| PartnerError::Data(format!("the program: {problem}")))
    }
}

/// Finds the introduction behind the hello at the start of a program's output; `None`: more bytes are needed.
pub fn look_in(bytes: &[u8]) -> Result<Option<Vec<u8>>, String> {
    let Some((hello, rest)) = message::split(bytes, hello::HELLO_BYTES_MAX)? else { return Ok(None) };
    hello::parse(hello)?;
    let Some((message, _)) = message::split(rest, 1 + Introduction::BYTES)? else { return Ok(None) };
    match message.split_first() {
        Some((kind, said))
            if *kind == Kind::Introduction as u8
                && (said.len() == Introduction::BYTES || said.len() == Preamble::BYTES) =>
        {
            Ok(Some(said.to_vec()))
        }
        _ => Err("its first message is no introduction: it belongs to an earlier connection".into()),
    }
}
