//! An attacker on the path that captures the packets of a device host's port and replays them, unchanged and altered.

use rustix::net::{
    AddressFamily, Protocol, RecvFlags, SendFlags, SocketFlags, SocketType, recv, sendto, socket_with,
};
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::num::NonZeroU32;
use std::os::fd::OwnedFd;

/// `ETH_P_IP` (`linux/if_ether.h`) in network byte order.
const IP: u32 = 0x0800_u16.to_be() as u32;
/// `IPPROTO_RAW`: the sender writes the IP header.
const RAW: u32 = 255;
const TCP: u8 = 6;
const UDP: u8 = 17;
/// The identification field of replayed packets, so that they are not captured again.
const MARK: [u8; 2] = [0xa7, 0x7a];
/// Position of the identification field in the IPv4 header.
const MARK_AT: std::ops::Range<usize> = 4..6;
const HEADER_BYTES: usize = 20;
/// Captured packets that are kept.
const KEPT: usize = 256;
const PACKET_BYTES_MAX: usize = 65_536;
/// Most packets that are captured before a replay.
const AT_ONCE: usize = 64;

/// Captures and replays packets.
pub(super) struct Replayer {
    capture: OwnedFd,
    sender: OwnedFd,
    port: u16,
    /// The port of the replayed packets.
    to: u16,
    /// The last packets, as a ring.
    captured: Vec<Vec<u8>>,
    at: usize,
    replayed: usize,
    bytes: Vec<u8>,
}

impl Replayer {
    /// Captures packets from and to `port` and replays them with the port `to`.
    pub(super) fn new(port: u16, to: u16) -> io::Result<Replayer> {
        let make = |family, kind, protocol| {
            let protocol = NonZeroU32::new(protocol).map(Protocol::from_raw);
            socket_with(family, kind, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK, protocol)
        };
        // Packets without the link's header.
        let capture = make(AddressFamily::PACKET, SocketType::DGRAM, IP)?;
        let sender = make(AddressFamily::INET, SocketType::RAW, RAW)?;
        Ok(Replayer {
            capture,
            sender,
            port,
            to,
            captured: Vec::new(),
            at: 0,
            replayed: 0,
            bytes: vec![0; PACKET_BYTES_MAX],
        })
    }

    /// Captures available packets and keeps the last ones.
    pub(super) fn capture(&mut self) {
        for _ in 0..AT_ONCE {
            let Ok((count, _)) = recv(&self.capture, &mut self.bytes[..], RecvFlags::empty()) else { return };
            let Some(packet) = self.bytes.get(..count) else { continue };
            if is_of(packet, self.port) {
                match self.captured.get_mut(self.at) {
                    Some(kept) => packet.clone_into(kept),
                    None => self.captured.push(packet.to_vec()),
                }
                self.at = (self.at + 1) % KEPT;
            }
        }
    }

    /// Replays an early and a late packet, unchanged and altered.
    pub(super) fn replay(&mut self) {
        self.capture();
        self.replayed += 1;
        let last = (self.at + KEPT - 1) % KEPT;
        for index in [last, self.replayed % KEPT] {
            let Some(packet) = self.captured.get(index) else { continue };
            let mut packet = packet.clone();
            packet[MARK_AT].copy_from_slice(&MARK);
            for at in [HEADER_BYTES, HEADER_BYTES + 2] {
                if packet[at..at + 2] == self.port.to_be_bytes() {
                    packet[at..at + 2].copy_from_slice(&self.to.to_be_bytes());
                }
            }
            // Packets over loopback have no checksum yet.
            set_checksum(&mut packet);
            self.send(&packet);
            alter(&mut packet, self.replayed);
            self.send(&packet);
        }
        std::thread::sleep(std::time::Duration::from_micros(500));
    }

    fn send(&self, packet: &[u8]) {
        let to = Ipv4Addr::new(packet[16], packet[17], packet[18], packet[19]);
        // The kernel may refuse an altered packet.
        let _ = sendto(&self.sender, packet, SendFlags::empty(), &SocketAddr::from((to, 0)));
    }
}

/// Returns true if a packet is of this port and was not replayed.
fn is_of(packet: &[u8], port: u16) -> bool {
    let Some((header, rest)) = packet.split_at_checked(HEADER_BYTES) else { return false };
    let is_plain = header[0] == 0x45 && matches!(header[9], TCP | UDP) && header[MARK_AT] != MARK;
    is_plain && rest.len() > 8 && [&rest[0..2], &rest[2..4]].contains(&&port.to_be_bytes()[..])
}

/// Flips a bit of a packet's payload and corrects the checksum.
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

/// Sets the checksum of UDP (RFC 768) or TCP (RFC 9293, section 3.1).
fn set_checksum(packet: &mut [u8]) {
    let at = HEADER_BYTES + if packet[9] == UDP { 6 } else { 16 };
    if packet.len() >= at + 2 {
        packet[at..at + 2].fill(0);
        let sum = !sum(packet);
        packet[at..at + 2].copy_from_slice(&sum.to_be_bytes());
    }
}

/// Returns the ones' complement sum of addresses, payload, length and protocol.
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
    fn an_altered_packet_has_another_payload_and_a_valid_checksum() {
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
            assert!(!is_of(&packet, 7845), "a replayed packet is not captured again");
        }
    }
}
