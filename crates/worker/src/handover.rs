//! A driver as one program leaves it to the next: the commands with which a worker resumes it, as bytes and descriptors.

use super::codec::{CodecError, Parsed};
use super::command::{Command, DriverPlan, emit_command, parse_command};
use contract::Opened;
use hub::{OpenPort, PartnerOrigin};
use std::io;
use std::os::fd::OwnedFd;
use wire::{Reader, Writer};

/// Commands of one driver: its memory, its side ports, its device and flows.
const COMMANDS: usize = 3;
/// The longest command in bytes.
const COMMAND_BYTES_MAX: usize = 16 << 20;

/// State for the next program: bytes, and the descriptors that they count.
#[derive(Debug, Default)]
pub struct Handover {
    /// The bytes.
    pub bytes: Vec<u8>,
    /// The descriptors, in the order of the bytes.
    pub descriptors: Vec<OwnedFd>,
}

/// A driver that the previous program has handed over.
pub struct TakenDriver {
    /// Its number.
    pub driver: u32,
    /// Its recovery memory.
    pub memory: OwnedFd,
    /// Targets of its side ports.
    pub ports: Vec<OpenPort>,
    /// Its device or node.
    pub opened: Opened,
    /// Its flows and their transport.
    pub plan: DriverPlan,
}

impl Handover {
    /// Encodes the commands of one driver.
    pub(super) fn of(commands: Vec<Command>) -> io::Result<Handover> {
        let (mut w, mut descriptors) = (Writer::new(), Vec::new());
        for command in commands {
            let foreign = |_| io::Error::other("its device is an object of this process");
            let (bytes, given) = emit_command(command).map_err(foreign)?;
            w.u16(given.len() as u16).blob(&bytes);
            descriptors.extend(given);
        }
        Ok(Handover { bytes: w.finish(), descriptors })
    }
}

impl TakenDriver {
    /// Decodes a driver.
    pub fn parse(handover: Handover) -> Result<TakenDriver, String> {
        TakenDriver::try_parse(handover).map_err(|error| error.to_string())
    }

    fn try_parse(Handover { bytes, descriptors }: Handover) -> Parsed<TakenDriver> {
        let (mut r, mut descriptors) = (Reader::new(&bytes), descriptors.into_iter());
        let mut commands = Vec::new();
        for _ in 0..COMMANDS {
            let count = r.u16("descriptors")?;
            let given: Vec<_> = descriptors.by_ref().take(count.into()).collect();
            commands.push(parse_command(r.blob("command", COMMAND_BYTES_MAX)?, given)?);
        }
        r.end("driver")?;
        match <[Command; COMMANDS]>::try_from(commands) {
            Ok(
                [
                    Command::Memory { memory, .. },
                    Command::Ports { ports, .. },
                    Command::Add { driver, origin: PartnerOrigin::Opened(opened), plan },
                ],
            ) => Ok(TakenDriver { driver, memory, ports, opened: *opened, plan }),
            _ => Err(CodecError::Meaning("it is no driver".into())),
        }
    }
}
