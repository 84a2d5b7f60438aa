//! A piece of a large segment must equal packets that a host would have sent.

use super::*;

const PAYLOAD: usize = 1000;

/// A large segment of `payload` bytes (0, 1, 2, ...), FIN, PSH and CWR set.
fn large(v6: bool, payload: usize) -> Vec<u8> {
    let tcp_at = if v6 { 40 } else { 20 };
    let mut frame = vec![0u8; HEADER_BYTES + tcp_at + 32];
    frame[0] = NEEDS_CHECKSUM;
    frame[1] = if v6 { TCP_V6 } else { TCP_V4 };
    frame[4..6].copy_from_slice(&(PAYLOAD as u16).to_ne_bytes());
    frame[6..8].copy_from_slice(&(tcp_at as u16).to_ne_bytes());
    frame[8..10].copy_from_slice(&16u16.to_ne_bytes());
    frame.extend((0..payload).map(|i| i as u8));
    let ip = &mut frame[HEADER_BYTES..];
    let length = ip.len();
    if v6 {
        ip[0] = 0x60;
        write_u16(ip, 4, (length - 40) as u16);
        (ip[23], ip[39]) = (1, 2);
    } else {
        ip[..2].copy_from_slice(&[0x45, 0]);
        write_u16(ip, 2, length as u16);
        write_u16(ip, 4, 0xffff);
        ip[12..20].copy_from_slice(&[10, 77, 0, 1, 10, 77, 0, 2]);
        let checksum = !sum(&ip[..20]);
        write_u16(ip, 10, checksum);
    }
    ip[tcp_at + 4..tcp_at + 8].copy_from_slice(&0xffff_fff0u32.to_be_bytes());
    ip[tcp_at + 12] = 8 << 4;
    ip[tcp_at + 13] = 0x80 | 0x10 | 0x09;
    let partial = pseudo_header(ip, tcp_at);
    write_u16(ip, tcp_at + 16, partial);
    frame
}

fn pseudo_header(ip: &[u8], tcp_at: usize) -> u16 {
    let addresses = if ip[0] >> 4 == 4 { &ip[12..20] } else { &ip[8..40] };
    fold(u32::from(sum(addresses)) + 6 + (ip.len() - tcp_at) as u32)
}

#[test]
fn counts_packets_and_bytes() {
    let buffer = large(false, 3500);
    let frame = Frame::parse(&buffer).unwrap();
    assert_eq!((frame.packets, frame.bytes(0, 4), frame.bytes(3, 1)), (4, 3500 + 4 * 52, 552));
    for v6 in [false, true] {
        let buffer = large(v6, 10);
        assert_eq!(Frame::parse(&buffer).unwrap().piece(0, 1).destination(), 2);
    }
}

#[test]
fn pieces_are_valid_packets_that_add_up() {
    for v6 in [false, true] {
        let buffer = large(v6, 3500);
        let frame = Frame::parse(&buffer).unwrap();
        let tcp_at = if v6 { 40 } else { 20 };
        let mut data = Vec::new();
        for (first, count) in [(0, 2), (2, 1), (3, 1)] {
            let piece = frame.piece(first, count);
            let bytes = piece.bytes();
            let ip = &bytes[HEADER_BYTES..];
            assert_eq!(ip.len() as u32, frame.bytes(first, count) - (count - 1) * (tcp_at as u32 + 32));
            assert_eq!(bytes[1] != ONE_PACKET, count > 1);
            assert_eq!(read_u16(bytes, 4) != 0, count > 1);
            if v6 {
                assert_eq!(usize::from(read_u16(ip, 4)), ip.len() - 40);
            } else {
                assert_eq!(usize::from(read_u16(ip, 2)), ip.len());
                assert_eq!(read_u16(ip, 4), 0xffffu16.wrapping_add(first as u16));
                assert_eq!(sum(&ip[..20]), 0xffff);
            }
            assert_eq!(read_u16(ip, tcp_at + 16), pseudo_header(ip, tcp_at));
            let sequence = u32::from_be_bytes(ip[tcp_at + 4..tcp_at + 8].try_into().unwrap());
            assert_eq!(sequence, 0xffff_fff0u32.wrapping_add(first * PAYLOAD as u32));
            assert_eq!(ip[tcp_at + 13] & 0x80 != 0, first == 0);
            assert_eq!(ip[tcp_at + 13] & 0x09 != 0, first + count == 4);
            data.extend_from_slice(&ip[tcp_at + 32..]);
        }
        assert_eq!(data, &buffer[HEADER_BYTES + tcp_at + 32..]);
    }
}

/// Makes a large segment of UDP from one of TCP.
fn large_udp(v6: bool, payload: usize) -> Vec<u8> {
    let udp_at = if v6 { 40 } else { 20 };
    let mut frame = large(v6, payload);
    frame.drain(HEADER_BYTES + udp_at + UDP_HEADER_BYTES..HEADER_BYTES + udp_at + 32);
    frame[1] = UDP;
    frame[8..10].copy_from_slice(&6u16.to_ne_bytes());
    let ip = &mut frame[HEADER_BYTES..];
    let length = ip.len();
    write_u16(ip, if v6 { 4 } else { 2 }, (length - if v6 { 40 } else { 0 }) as u16);
    write_u16(ip, udp_at + 4, (length - udp_at) as u16);
    let partial = pseudo_header(ip, udp_at);
    write_u16(ip, udp_at + 6, partial);
    frame
}

#[test]
fn pieces_of_udp_are_valid_packets_that_add_up() {
    for v6 in [false, true] {
        let buffer = large_udp(v6, 3500);
        let frame = Frame::parse(&buffer).unwrap();
        let udp_at = if v6 { 40 } else { 20 };
        assert_eq!(frame.packets, 4);
        let mut data = Vec::new();
        for (first, count) in [(0, 2), (2, 1), (3, 1)] {
            let piece = frame.piece(first, count);
            let bytes = piece.bytes();
            let ip = &bytes[HEADER_BYTES..];
            assert_eq!(bytes[1] == UDP, count > 1);
            assert_eq!(usize::from(read_u16(ip, udp_at + 4)), ip.len() - udp_at);
            assert_eq!(read_u16(ip, udp_at + 6), pseudo_header(ip, udp_at));
            data.extend_from_slice(&ip[udp_at + UDP_HEADER_BYTES..]);
        }
        assert_eq!(data, &buffer[HEADER_BYTES + udp_at + UDP_HEADER_BYTES..]);
    }
}

#[test]
fn whole_and_small_frames_pass_unchanged() {
    let buffer = large(false, 3500);
    assert_eq!(Frame::parse(&buffer).unwrap().piece(0, 4).bytes(), buffer);
    let mut small = large(false, 5);
    small[1] = ONE_PACKET;
    let frame = Frame::parse(&small).unwrap();
    assert_eq!((frame.packets, frame.bytes(0, 1)), (1, 57));
    assert_eq!(frame.piece(0, 1).bytes(), small);
}

#[test]
fn a_damaged_packet_fails_its_checksum() {
    for v6 in [false, true] {
        let buffer = large(v6, 3500);
        let whole = Frame::parse(&buffer).unwrap().piece(3, 1);
        let tcp_at = if v6 { 40 } else { 20 };
        let check = |piece: &Piece| {
            let ip = &piece.bytes()[HEADER_BYTES..];
            fold(u32::from(pseudo_header(ip, tcp_at)) + u32::from(sum(&ip[tcp_at..]))) == 0xffff
        };
        let mut complete = whole.clone();
        complete.complete_checksum();
        assert!(check(&complete) && complete.bytes()[0] == 0);
        for random in 0..500 {
            let mut piece = whole.clone();
            piece.corrupt(8 * (tcp_at as u64 + 16) + random);
            assert!(!check(&piece), "{random}");
        }
    }
}

#[test]
fn refuses_malformed_frames() {
    let buffer = large(false, 3500);
    assert!(Frame::parse(&buffer[..HEADER_BYTES]).is_none());
    assert!(Frame::parse(&buffer[..HEADER_BYTES + 30]).is_none());
    for (at, value) in [(HEADER_BYTES, 0x15u8), (1, 99), (HEADER_BYTES + 32, 0x10)] {
        let mut bad = buffer.clone();
        bad[at] = value;
        assert!(Frame::parse(&bad).is_none(), "{at}");
    }
}
