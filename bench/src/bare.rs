//! The same work with a plain socket and blocking calls.

use crate::devices::{InFlight, Window};
use crate::measure::Times;
use crate::setting::Failure;
use bytes::BytesMut;
use std::io::{ErrorKind, IoSlice, Read, Write};
use std::net::UdpSocket;
use std::time::Duration;
use sys::net::DatagramSplit;

/// Sends `size` bytes and waits for the echo, `count` times. Returns half of each round trip.
pub(crate) fn ping(
    mut socket: impl Read + Write,
    size: usize,
    warm_up: usize,
    count: usize,
) -> Result<Times, Failure> {
    let mut times = Times::with_capacity(count);
    let mut buffer = vec![7; size];
    for i in 0..warm_up + count {
        let begun = sys::clock::boot_ns();
        socket.write_all(&buffer)?;
        socket.read_exact(&mut buffer)?;
        if i >= warm_up {
            times.add((sys::clock::boot_ns() - begun) / 2);
        }
    }
    Ok(times)
}

/// Returns each message of `size` bytes until the peer closes the connection.
pub(crate) fn echo(mut socket: impl Read + Write, size: usize) -> Result<(), Failure> {
    let mut buffer = vec![0; size];
    while socket.read_exact(&mut buffer).is_ok() {
        socket.write_all(&buffer)?;
    }
    Ok(())
}

/// Sends `size` bytes `count` times.
pub(crate) fn flood(mut socket: impl Write, size: usize, count: usize) -> Result<(), Failure> {
    let buffer = vec![7; size];
    for _ in 0..count {
        socket.write_all(&buffer)?;
    }
    Ok(())
}

/// Receives messages of `size` bytes into the same memory until the peer closes the connection.
pub(crate) fn drain(mut socket: impl Read, size: usize, window: &Window) -> Result<(), Failure> {
    let mut buffer = vec![0; size];
    let mut filled = 0;
    loop {
        match socket.read(&mut buffer[filled..])? {
            0 => return Ok(()),
            count => {
                window.received(count);
                filled = (filled + count) % size;
            }
        }
    }
}

/// Sends a message of `size` bytes `count` times in datagrams of `datagram` bytes. One call sends as many as the kernel
/// splits (UDP_SEGMENT).
pub(crate) fn flood_datagrams(
    socket: &UdpSocket,
    datagram: usize,
    size: usize,
    count: usize,
    mut in_flight: InFlight,
) -> Result<(), Failure> {
    let batch = (65_507 / datagram).min(sys::net::SEGMENTS_MAX) * datagram;
    let message = vec![7; size];
    let mut split = DatagramSplit::default();
    for _ in 0..count {
        for part in message.chunks(batch) {
            while !in_flight.has_room(part.len()) {
                std::thread::yield_now();
            }
            while let Err(error) = split.send(socket, &[IoSlice::new(part)], Some(datagram as u16)) {
                if error.kind() != ErrorKind::WouldBlock {
                    return Err(error.into());
                }
                std::thread::yield_now();
            }
            in_flight.sent(part.len());
        }
    }
    Ok(())
}

/// Receives messages of `size` bytes in datagrams into the same memory until the sender has finished and no datagram arrives
/// for `pause`.
pub(crate) fn drain_datagrams(
    socket: &UdpSocket,
    size: usize,
    window: &Window,
    pause: Duration,
) -> Result<(), Failure> {
    sys::net::join_datagrams(socket)?;
    let mut buffer = BytesMut::with_capacity(size + (64 << 10));
    let mut poller = sys::poller::Poller::new()?;
    loop {
        if buffer.len() >= size {
            buffer.clear();
        }
        match sys::net::receive_datagrams(socket, &mut buffer) {
            Ok(received) => window.received(received.bytes),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                poller.register(std::os::fd::AsFd::as_fd(socket), true, false);
                if !poller.wait(Some(pause))? && window.is_finished() {
                    return Ok(());
                }
            }
            Err(error) => return Err(error.into()),
        }
    }
}
