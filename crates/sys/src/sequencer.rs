//! The ALSA sequencer (`sound/asequencer.h`): clients, ports and subscriptions. Events are read from and written to the descriptor
//! of a client; they need no ioctl.

use crate::ioctl::{READ, WRITE, ioctl_struct};
use std::io;
use std::os::fd::BorrowedFd;

const GROUP: u8 = b'S';
/// Bytes of a name, with its final zero.
const NAME_BYTES: usize = 64;
/// Longer names are truncated to this many bytes.
pub const NAME_BYTES_MAX: usize = NAME_BYTES - 1;
/// The kernel's own client, and its port that announces clients, ports and subscriptions.
pub const ANNOUNCE: Address = Address { client: 0, port: 1 };
/// `SNDRV_SEQ_PORT_FLG_GIVEN_PORT`: the caller chooses the number of a new port.
const GIVEN_PORT: u32 = 1;

/// Capabilities of a port (`SNDRV_SEQ_PORT_CAP_*`).
pub mod capability {
    /// Events can be read from it.
    pub const READ: u32 = 1;
    /// Events can be written to it.
    pub const WRITE: u32 = 1 << 1;
    /// Both at once.
    pub const DUPLEX: u32 = 1 << 4;
    /// Other clients may subscribe to its events.
    pub const SUBSCRIBE_READ: u32 = 1 << 5;
    /// Other clients may subscribe it to their events.
    pub const SUBSCRIBE_WRITE: u32 = 1 << 6;
    /// No third client may connect it.
    pub const NO_EXPORT: u32 = 1 << 7;
}

/// Types of a port (`SNDRV_SEQ_PORT_TYPE_*`).
pub mod port_type {
    /// It understands MIDI messages.
    pub const MIDI_GENERIC: u32 = 1 << 1;
    /// A driver made it for hardware.
    pub const HARDWARE: u32 = 1 << 16;
    /// A program made it.
    pub const SOFTWARE: u32 = 1 << 17;
    /// It leads to another device.
    pub const PORT: u32 = 1 << 19;
}

/// The address of a port.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Address {
    /// Number of its client.
    pub client: u8,
    /// Its number at this client.
    pub port: u8,
}

/// A client, as another one sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Client {
    /// Its number.
    pub number: u8,
    /// Its name.
    pub name: String,
    /// The sound card of a client that a driver made.
    pub card: Option<u32>,
}

/// A port, as another client sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Port {
    /// Its address.
    pub address: Address,
    /// Its name.
    pub name: String,
    /// Bits of [`capability`].
    pub capabilities: u32,
    /// Bits of [`port_type`].
    pub types: u32,
}

/// `struct snd_seq_client_info`.
#[repr(C)]
struct ClientInfo {
    client: i32,
    kind: i32,
    name: [u8; NAME_BYTES],
    filters: [u8; 44],
    ports: i32,
    events_lost: i32,
    card: i32,
    process: i32,
    midi_version: u32,
    reserved: [u8; 52],
}

/// `struct snd_seq_port_info`.
#[repr(C)]
struct PortInfo {
    address: Address,
    name: [u8; NAME_BYTES],
    capabilities: u32,
    types: u32,
    channels: i32,
    voices: [i32; 2],
    uses: [i32; 2],
    kernel: usize,
    flags: u32,
    time_queue: u8,
    reserved: [u8; 59],
}

/// `struct snd_seq_port_subscribe`.
#[repr(C)]
struct Subscription {
    sender: Address,
    receiver: Address,
    voices: u32,
    flags: u32,
    queue: u8,
    reserved: [u8; 67],
}

/// `struct snd_seq_client_pool`.
#[repr(C)]
struct Pool {
    client: i32,
    output: i32,
    input: i32,
    output_room: i32,
    free: [i32; 2],
    reserved: [u8; 64],
}

const _: () = assert!(size_of::<ClientInfo>() == 188);
#[cfg(target_pointer_width = "64")]
const _: () = assert!(size_of::<PortInfo>() == 168);
const _: () = assert!(size_of::<Subscription>() == 80);
const _: () = assert!(size_of::<Pool>() == 88);

impl ClientInfo {
    fn new(client: i32) -> ClientInfo {
        ClientInfo {
            client,
            kind: 0,
            name: [0; NAME_BYTES],
            filters: [0; 44],
            ports: 0,
            events_lost: 0,
            card: -1,
            process: -1,
            midi_version: 0,
            reserved: [0; 52],
        }
    }
}

impl PortInfo {
    fn new(address: Address) -> PortInfo {
        PortInfo {
            address,
            name: [0; NAME_BYTES],
            capabilities: 0,
            types: 0,
            channels: 0,
            voices: [0; 2],
            uses: [0; 2],
            kernel: 0,
            flags: 0,
            time_queue: 0,
            reserved: [0; 59],
        }
    }
}

fn name_bytes(name: &str) -> [u8; NAME_BYTES] {
    let mut bytes = [0; NAME_BYTES];
    let length = name.floor_char_boundary(NAME_BYTES_MAX);
    bytes[..length].copy_from_slice(&name.as_bytes()[..length]);
    bytes
}

fn text(bytes: &[u8]) -> String {
    let name = bytes.split(|byte| *byte == 0).next().unwrap_or_default();
    String::from_utf8_lossy(name).into_owned()
}

/// Returns the client's own number (`SNDRV_SEQ_IOCTL_CLIENT_ID`).
pub fn client_number(client: BorrowedFd<'_>) -> io::Result<u8> {
    let mut number = 0_i32;
    // SAFETY: the request writes an int.
    unsafe { ioctl_struct(client, GROUP, READ, 0x01, &mut number) }?;
    u8::try_from(number).map_err(io::Error::other)
}

/// Sets the client's own name (`SNDRV_SEQ_IOCTL_SET_CLIENT_INFO`).
pub fn set_name(client: BorrowedFd<'_>, name: &str) -> io::Result<()> {
    let mut info = ClientInfo::new(client_number(client)?.into());
    // SAFETY: the request reads and writes a `struct snd_seq_client_info`, which is the layout of `ClientInfo`.
    unsafe { ioctl_struct(client, GROUP, READ | WRITE, 0x10, &mut info) }?;
    info.name = name_bytes(name);
    // SAFETY: the request reads the same structure.
    unsafe { ioctl_struct(client, GROUP, WRITE, 0x11, &mut info) }.map(drop)
}

/// Sets the number of events that wait for the client, at most (`SNDRV_SEQ_IOCTL_SET_CLIENT_POOL`).
pub fn set_input_pool(client: BorrowedFd<'_>, events: i32) -> io::Result<()> {
    let number = client_number(client)?.into();
    let mut pool =
        Pool { client: number, output: 0, input: 0, output_room: 0, free: [0; 2], reserved: [0; 64] };
    // SAFETY: the request reads and writes a `struct snd_seq_client_pool`, which is the layout of `Pool`.
    unsafe { ioctl_struct(client, GROUP, READ | WRITE, 0x4b, &mut pool) }?;
    pool.input = events;
    // SAFETY: the request reads the same structure.
    unsafe { ioctl_struct(client, GROUP, WRITE, 0x4c, &mut pool) }.map(drop)
}

/// Makes a port of the client, with the number 0 (`SNDRV_SEQ_IOCTL_CREATE_PORT`).
pub fn create_port(client: BorrowedFd<'_>, name: &str, capabilities: u32, types: u32) -> io::Result<Address> {
    let mut info = PortInfo::new(Address { client: client_number(client)?, port: 0 });
    info.name = name_bytes(name);
    (info.capabilities, info.types, info.channels, info.flags) = (capabilities, types, 16, GIVEN_PORT);
    // SAFETY: the request reads and writes a `struct snd_seq_port_info`, which is the layout of `PortInfo`; its pointer for
    // clients inside the kernel is null.
    unsafe { ioctl_struct(client, GROUP, READ | WRITE, 0x20, &mut info) }?;
    Ok(info.address)
}

/// Connects two ports: events of the sender reach the receiver (`SNDRV_SEQ_IOCTL_SUBSCRIBE_PORT`).
pub fn subscribe(client: BorrowedFd<'_>, sender: Address, receiver: Address) -> io::Result<()> {
    let mut subscription =
        Subscription { sender, receiver, voices: 0, flags: 0, queue: 0, reserved: [0; 67] };
    // SAFETY: the request reads a `struct snd_seq_port_subscribe`, which is the layout of `Subscription`.
    unsafe { ioctl_struct(client, GROUP, WRITE, 0x30, &mut subscription) }.map(drop)
}

/// Returns all clients (`SNDRV_SEQ_IOCTL_QUERY_NEXT_CLIENT`).
pub fn clients(client: BorrowedFd<'_>) -> Vec<Client> {
    let (mut clients, mut info) = (Vec::new(), ClientInfo::new(-1));
    loop {
        info.name = [0; NAME_BYTES];
        // SAFETY: the request reads and writes a `struct snd_seq_client_info`, which is the layout of `ClientInfo`.
        let found = unsafe { ioctl_struct(client, GROUP, READ | WRITE, 0x51, &mut info) };
        // The kernel has 192 clients at most; their numbers rise.
        let (Ok(_), Ok(number)) = (found, u8::try_from(info.client)) else { return clients };
        clients.push(Client { number, name: text(&info.name), card: u32::try_from(info.card).ok() });
    }
}

/// Returns the ports of a client (`SNDRV_SEQ_IOCTL_QUERY_NEXT_PORT`).
pub fn ports(client: BorrowedFd<'_>, of: u8) -> Vec<Port> {
    // The kernel looks for the first number above this one, modulo 256.
    let (mut ports, mut info) = (Vec::new(), PortInfo::new(Address { client: of, port: 255 }));
    loop {
        info.name = [0; NAME_BYTES];
        // SAFETY: the request reads and writes a `struct snd_seq_port_info`, which is the layout of `PortInfo`; the kernel's pointer
        // in it is null.
        let found = unsafe { ioctl_struct(client, GROUP, READ | WRITE, 0x52, &mut info) };
        let address = info.address;
        // A port 255 would begin the search again.
        if found.is_err() || address.client != of || ports.len() > 255 {
            return ports;
        }
        let (capabilities, types) = (info.capabilities, info.types);
        ports.push(Port { address, name: text(&info.name), capabilities, types });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_names_are_cut_between_characters() {
        let long = "é".repeat(40);
        assert_eq!(text(&name_bytes(&long)), "é".repeat(31));
        assert_eq!(text(&name_bytes("Launchkey")), "Launchkey");
    }

    #[test]
    fn a_descriptor_without_a_sequencer_answers_no_request() {
        use std::os::fd::AsFd;
        let null = std::fs::File::open("/dev/null").unwrap();
        assert!(client_number(null.as_fd()).is_err() && create_port(null.as_fd(), "a", 0, 0).is_err());
        assert!(set_name(null.as_fd(), "a").is_err() && set_input_pool(null.as_fd(), 1).is_err());
        assert!(subscribe(null.as_fd(), ANNOUNCE, ANNOUNCE).is_err());
        assert!(clients(null.as_fd()).is_empty() && ports(null.as_fd(), 0).is_empty());
    }
}
