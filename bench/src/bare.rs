//! The same work with a bare socket: what any program could reach.

use crate::Failure;
use crate::devices::{InFlight, Window};
use crate::measure::Times;
use bytes::BytesMut;
use std::io::{IoSlice, Read, Write};
use std::net::{TcpStream, UdpSocket};
use std::time::Duration;

/// Sends `size` bytes and waits until they are back, again and again.
pub(crate) fn ping(
    mut socket: TcpStream,
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

/// Sends back what comes, `size` bytes at a time, until the peer ends.
pub(crate) fn echo(mut socket: TcpStream, size: usize) -> Result<(), Failure> {
    let mut buffer = vec![0; size];
    while socket.read_exact(&mut buffer).is_ok() {
        socket.write_all(&buffer)?;
    }
    Ok(())
}

/// Sends `size` bytes `count` times.
pub(crate) fn flood(mut socket: TcpStream, size: usize, count: usize) -> Result<(), Failure> {
    let buffer = vec![7; size];
    for _ in 0..count {
        socket.write_all(&buffer)?;
    }
    Ok(())
}

/// Receives until the peer ends.
pub(crate) fn drain(mut socket: TcpStream, size: usize, window: &Window) -> Result<(), Failure> {
    let mut buffer = vec![0; size];
    loop {
        match socket.read(&mut buffer)? {
            0 => return Ok(()),
            count => window.received(count),
        }
    }
}

/// Sends `bytes` bytes in datagrams of `datagram` bytes, as many in a call as the kernel cuts.
pub(crate) fn flood_datagrams(
    socket: &UdpSocket,
    datagram: usize,
    mut bytes: usize,
    mut in_flight: InFlight,
) -> Result<(), Failure> {
    let batch = (65_507 / datagram).min(sys::net::SEGMENTS_MAX) * datagram;
    let buffer = vec![7; batch];
    while bytes > 0 {
        let now = batch.min(bytes);
        if !in_flight.has_room(now) {
            std::thread::yield_now();
            continue;
        }
        match sys::net::send_datagrams(socket, &[IoSlice::new(&buffer[..now])], datagram as u16) {
            Ok(_) => {
                in_flight.sent(now);
                bytes -= now;
            }
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => std::thread::yield_now(),
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// Receives datagrams until the sender is done and nothing comes any more.
pub(crate) fn drain_datagrams(socket: &UdpSocket, window: &Window, pause: Duration) -> Result<(), Failure> {
    sys::net::join_datagrams(socket)?;
    let mut buffer = BytesMut::with_capacity(64 << 10);
    let mut poller = sys::poller::Poller::new()?;
    loop {
        buffer.clear();
        match sys::net::receive_datagrams(socket, &mut buffer) {
            Ok(received) => window.received(received.bytes),
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                poller.want(std::os::fd::AsFd::as_fd(socket), true, false);
                if !poller.wait(Some(pause))? && window.is_finished() {
                    return Ok(());
                }
            }
            Err(error) => return Err(error.into()),
        }
    }
}
