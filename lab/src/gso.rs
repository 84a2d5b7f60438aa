//! Large segments of a TUN device, TCP's and UDP's: one read returns up to 64 KiB that represent many packets on the wire.
//! Carrying them as one frame makes gigabits cheap. This module counts the packets in a segment and cuts pieces
//! from it, so loss, queue and rate still apply to wire packets.
//!
//! The header in front of each packet is `struct virtio_net_hdr` (virtio 1.2, 5.1.6): flags, kind of segment,
//! length of all headers, payload of one packet, start of the checksummed data, offset of the checksum.

use netsim::Packet;
use sys::tun::HEADER_BYTES;

const NEEDS_CHECKSUM: u8 = 1;
const ONE_PACKET: u8 = 0;
const TCP_V4: u8 = 1;
const TCP_V6: u8 = 4;
const UDP: u8 = 5;
const UDP_HEADER_BYTES: usize = 8;

/// A parsed frame from the device.
pub(crate) struct Frame<'a> {
    buffer: &'a [u8],
    /// Length of all headers; 0 when the frame is not a large segment.
    headers_bytes: usize,
    /// Payload of each wire packet except the last.
    payload_bytes: usize,
    /// Offset of the TCP or UDP header from the IP header.
    transport_at: usize,
    /// Number of wire packets.
    pub(crate) packets: u32,
}

fn read_u16(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

fn write_u16(bytes: &mut [u8], at: usize, value: u16) {
    bytes[at..at + 2].copy_from_slice(&value.to_be_bytes());
}

/// The virtio header uses the machine's byte order.
fn read_native_u16(bytes: &[u8], at: usize) -> usize {
    u16::from_ne_bytes([bytes[at], bytes[at + 1]]).into()
}

/// The folded (not complemented) ones'-complement sum (RFC 1071).
fn sum(bytes: &[u8]) -> u16 {
    fold(bytes.chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0))).sum())
}

fn fold(mut sum: u32) -> u16 {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

impl<'a> Frame<'a> {
    /// Returns `None` if the frame is not an IP packet that can be carried.
    pub(crate) fn parse(buffer: &'a [u8]) -> Option<Frame<'a>> {
        let ip = buffer.get(HEADER_BYTES..)?;
        if !matches!((ip.first()? >> 4, ip.len()), (4, 20..) | (6, 40..)) {
            return None;
        }
        let whole = Frame { buffer, headers_bytes: 0, payload_bytes: ip.len(), transport_at: 0, packets: 1 };
        if buffer[1] == ONE_PACKET {
            return Some(whole);
        }
        let payload_bytes = read_native_u16(buffer, 4);
        let transport_at = read_native_u16(buffer, 6);
        let header_bytes = match buffer[1] {
            TCP_V4 | TCP_V6 => usize::from(ip.get(transport_at + 12)? >> 4) * 4,
            UDP => UDP_HEADER_BYTES,
            _ => return None,
        };
        let headers_bytes = transport_at + header_bytes;
        let least = if buffer[1] == UDP { UDP_HEADER_BYTES } else { 20 };
        if payload_bytes == 0 || header_bytes < least || headers_bytes >= ip.len() {
            return None;
        }
        let packets = (ip.len() - headers_bytes).div_ceil(payload_bytes) as u32;
        Some(Frame { headers_bytes, payload_bytes, transport_at, packets, ..whole })
    }

    /// Size on the wire of `count` packets beginning with `first`, from the IP header up.
    pub(crate) fn bytes(&self, first: u32, count: u32) -> u32 {
        let (begin, end) = self.payload(first, count);
        (end - begin + count as usize * self.headers_bytes) as u32
    }

    /// Range of the payload of `count` packets beginning with `first`.
    fn payload(&self, first: u32, count: u32) -> (usize, usize) {
        let total = self.buffer.len() - HEADER_BYTES - self.headers_bytes;
        let at = |packet: u32| (packet as usize * self.payload_bytes).min(total);
        (at(first), at(first + count))
    }

    /// Cuts `count` packets beginning with `first` out as a frame.
    pub(crate) fn piece(&self, first: u32, count: u32) -> Piece {
        if count == self.packets {
            return Piece(self.buffer.into());
        }
        let (begin, end) = self.payload(first, count);
        let start = HEADER_BYTES + self.headers_bytes;
        let mut out = Vec::with_capacity(start + end - begin);
        out.extend_from_slice(&self.buffer[..start]);
        out.extend_from_slice(&self.buffer[start + begin..start + end]);
        if count == 1 {
            out[1] = ONE_PACKET;
            out[4..6].fill(0);
        }
        out[2..4].copy_from_slice(&(self.headers_bytes as u16).to_ne_bytes());

        let old_bytes = self.buffer.len() - HEADER_BYTES - self.transport_at;
        let ip = &mut out[HEADER_BYTES..];
        let ip_bytes = ip.len();
        let new_bytes = ip_bytes - self.transport_at;
        if ip[0] >> 4 == 4 {
            let header_bytes = usize::from(ip[0] & 15) * 4;
            write_u16(ip, 2, ip_bytes as u16);
            let identification = read_u16(ip, 4).wrapping_add(first as u16);
            write_u16(ip, 4, identification);
            write_u16(ip, 10, 0);
            let checksum = !sum(&ip[..header_bytes.min(ip_bytes)]);
            write_u16(ip, 10, checksum);
        } else {
            write_u16(ip, 4, (ip_bytes - 40) as u16);
        }
        let header = &mut ip[self.transport_at..];
        let checksum_at = match self.buffer[1] {
            UDP => {
                write_u16(header, 4, new_bytes as u16);
                6
            }
            _ => {
                self.cut_tcp(header, first, count, begin);
                16
            }
        };
        // The checksum field holds the sum of the pseudo header (checksum offload completes it); only the length in
        // it has changed.
        let partial =
            u32::from(read_u16(header, checksum_at)) + u32::from(!(old_bytes as u16)) + new_bytes as u32;
        write_u16(header, checksum_at, fold(partial));
        Piece(out.into())
    }

    /// Sets the sequence number and the flags of a TCP header whose payload begins at `begin`.
    fn cut_tcp(&self, tcp: &mut [u8], first: u32, count: u32, begin: usize) {
        let sequence = u32::from_be_bytes([tcp[4], tcp[5], tcp[6], tcp[7]]).wrapping_add(begin as u32);
        tcp[4..8].copy_from_slice(&sequence.to_be_bytes());
        if first + count < self.packets {
            tcp[13] &= !0x09; // FIN and PSH belong to the last packet
        }
        if first > 0 {
            tcp[13] &= !0x80; // CWR belongs to the first
        }
    }
}

/// One or more packets in flight, with the virtio header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Piece(Box<[u8]>);

impl Piece {
    /// Bytes to write to the receiving device.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// Last byte of the destination address: the host's number, from 1.
    pub(crate) fn destination(&self) -> u8 {
        let ip = &self.0[HEADER_BYTES..];
        if ip[0] >> 4 == 4 { ip[19] } else { ip[39] }
    }

    /// Completes an offloaded checksum, so that the receiver verifies it.
    fn complete_checksum(&mut self) {
        let from = HEADER_BYTES + read_native_u16(&self.0, 6);
        let at = from + read_native_u16(&self.0, 8);
        if self.0[0] & NEEDS_CHECKSUM != 0 && at + 2 <= self.0.len() {
            let checksum = !sum(&self.0[from..]);
            // In UDP, zero means no checksum (RFC 768).
            write_u16(&mut self.0, at, if checksum == 0 { 0xffff } else { checksum });
        }
        self.0[0] = 0;
    }
}

impl Packet for Piece {
    /// Damages the packet but keeps its checksum, like a wire. Only for a piece of one packet.
    fn corrupt(&mut self, random: u64) {
        self.complete_checksum();
        let bits = (self.0.len() - HEADER_BYTES) as u64 * 8;
        let bit = random % bits;
        self.0[HEADER_BYTES + (bit / 8) as usize] ^= 1 << (bit % 8);
    }
}

#[cfg(test)]
#[path = "gso_tests.rs"]
mod tests;
