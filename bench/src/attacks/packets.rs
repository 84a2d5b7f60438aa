//! Somebody on the way who hears every packet of a sharer's port, and says them again: as they were, and altered.

use rustix::net::{
    AddressFamily, Protocol, RecvFlags, SendFlags, SocketFlags, SocketType, recv, sendto, socket_with,
};
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::num::NonZeroU32;
use std::os::fd::OwnedFd;

/// `ETH_P_IP` (`linux/if_ether.h`), as it stands in a frame.
const IP: u32 = 0x0800_u16.to_be() as u32;
/// `IPPROTO_RAW`: who sends makes the header.
const RAW: u32 = 255;
const TCP: u8 = 6;
const UDP: u8 = 17;
/// How a packet is marked that was said again (the header's identification), so that it is not heard as one more.
const MARK: [u8; 2] = [0xa7, 0x7a];
/// Where the header of IPv4 has it.
const MARK_AT: std::ops::Range<usize> = 4..6;
const HEADER_BYTES: usize = 20;
/// Packets that are kept to be said again later.
const KEPT: usize = 256;
const PACKET_BYTES_MAX: usize = 65_536;
/// Packets that are taken before the next is said.
const AT_ONCE: usize = 64;

/// See the module.
pub(super) struct Replayer {
    ear: OwnedFd,
    mouth: OwnedFd,
    port: u16,
    /// The port to and from which they are said.
    to: u16,
    /// The last packets, the next to be replaced.
    heard: Vec<Vec<u8>>,
    at: usize,
    said: usize,
    bytes: Vec<u8>,
}

impl Replayer {
    /// Of the packets from and to this port, said as if they were those of `to`.
    pub(super) fn new(port: u16, to: u16) -> io::Result<Replayer> {
        let make = |family, kind, protocol| {
            let protocol = NonZeroU32::new(protocol).map(Protocol::from_raw);
            socket_with(family, kind, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK, protocol)
        };
        // Without what is in front of IP.
        let ear = make(AddressFamily::PACKET, SocketType::DGRAM, IP)?;
        let mouth = make(AddressFamily::INET, SocketType::RAW, RAW)?;
        Ok(Replayer {
            ear,
            mouth,
            port,
            to,
            heard: Vec::new(),
            at: 0,
            said: 0,
            bytes: vec![0; PACKET_BYTES_MAX],
        })
    }

    /// Hears what there is, and keeps the last of it.
    pub(super) fn listen(&mut self) {
        for _ in 0..AT_ONCE {
            let Ok((count, _)) = recv(&self.ear, &mut self.bytes[..], RecvFlags::empty()) else { return };
            let Some(packet) = self.bytes.get(..count) else { continue };
            if is_of(packet, self.port) {
                match self.heard.get_mut(self.at) {
                    Some(kept) => packet.clone_into(kept),
                    None => self.heard.push(packet.to_vec()),
                }
                self.at = (self.at + 1) % KEPT;
            }
        }
    }

    /// Says an early and a late packet again, each as it was and altered.
    pub(super) fn replay(&mut self) {
        self.listen();
        self.said += 1;
        let last = (self.at + KEPT - 1) % KEPT;
        for index in [last, self.said % KEPT] {
            let Some(packet) = self.heard.get(index) else { continue };
            let mut packet = packet.clone();
            packet[MARK_AT].copy_from_slice(&MARK);
            for at in [HEADER_BYTES, HEADER_BYTES + 2] {
                if packet[at..at + 2] == self.port.to_be_bytes() {
                    packet[at..at + 2].copy_from_slice(&self.to.to_be_bytes());
                }
            }
            // Where nothing could be damaged on the way, it had none.
            set_checksum(&mut packet);
            self.say(&packet);
            alter(&mut packet, self.said);
            self.say(&packet);
        }
        std::thread::sleep(std::time::Duration::from_micros(500));
    }

    fn say(&self, packet: &[u8]) {
        let to = Ipv4Addr::new(packet[16], packet[17], packet[18], packet[19]);
        // What the kernel does not take nobody hears.
        let _ = sendto(&self.mouth, packet, SendFlags::empty(), &SocketAddr::from((to, 0)));
    }
}

/// Whether a packet is one of this port's, and was not said again.
fn is_of(packet: &[u8], port: u16) -> bool {
    let Some((header, rest)) = packet.split_at_checked(HEADER_BYTES) else { return false };
    let is_plain = header[0] == 0x45 && matches!(header[9], TCP | UDP) && header[MARK_AT] != MARK;
    is_plain && rest.len() > 8 && [&rest[0..2], &rest[2..4]].contains(&&port.to_be_bytes()[..])
}

/// Changes a bit of what a packet carries, and makes its checksum right again.
fn alter(packet: &mut [u8], seed: usize) {
    let head = match packet[9] {
        UDP => 8,
        _ => usize::from(packet[HEADER_BYTES + 12] >> 4) * 4,
    };
    let carried = packet.len().saturating_sub(HEADER_BYTES + head);
    if carried > 0 {
        packet[HEADER_BYTES + head + seed.wrapping_mul(31) % carried] ^= 1 << (seed % 8);
    }
    set_checksum(packet);
}

/// RFC 768; RFC 9293, section 3.1.
fn set_checksum(packet: &mut [u8]) {
    let at = HEADER_BYTES + if packet[9] == UDP { 6 } else { 16 };
    if packet.len() >= at + 2 {
        packet[at..at + 2].fill(0);
        let sum = !sum(packet);
        packet[at..at + 2].copy_from_slice(&sum.to_be_bytes());
    }
}

/// Of the addresses, what is behind them, its length and its protocol, in ones' complement.
fn sum(packet: &[u8]) -> u16 {
    let mut sum = u32::from(packet[9]) + (packet.len() - HEADER_BYTES) as u32;
    for pair in packet[12..].chunks(2) {
        sum += u32::from(u16::from_be_bytes([pair[0], pair.get(1).copied().unwrap_or(0)]));
    }
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_altered_packet_differs_in_what_it_carries_and_its_checksum_is_right() {
        for (protocol, head) in [(UDP, 8), (TCP, 20)] {
            let mut packet = vec![0; HEADER_BYTES + head + 33];
            (packet[0], packet[9], packet[HEADER_BYTES + 12]) = (0x45, protocol, 0x50);
            packet[12..20].copy_from_slice(&[10, 77, 0, 1, 10, 77, 0, 2]);
            packet[HEADER_BYTES..HEADER_BYTES + 2].copy_from_slice(&7845u16.to_be_bytes());
            assert!(is_of(&packet, 7845) && !is_of(&packet, 7846));
            for seed in 0..100 {
                let mut altered = packet.clone();
                alter(&mut altered, seed);
                assert_eq!(sum(&altered), 0xffff, "{protocol}, seed {seed}");
                assert_ne!(altered[HEADER_BYTES + head..], packet[HEADER_BYTES + head..]);
            }
            packet[MARK_AT].copy_from_slice(&MARK);
            assert!(!is_of(&packet, 7845), "it is not heard again");
        }
    }
}
