//! The bare services of the far host and their clients on this host: the same work as the experiments' devices, over
//! plain sockets with blocking calls.
//!
//! Both ends have the timer slack and the scheduler's turns of Outboard's workers.

use super::instruments::{Painter, noise};
use super::setting::Block;
use crate::bare;
use crate::measure::Times;
use crate::setting::{Failure, be_like_a_worker};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

/// A service of the far host. A connection asks for it with one byte and a number of bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Service {
    /// Returns each message of this many bytes.
    Echo = 1,
    /// Sends one byte after this many bytes arrived.
    Acknowledge = 2,
    /// Sends frames of this many bytes as fast as the client reads them.
    Frames = 3,
    /// Reads everything.
    Drain = 4,
}

/// Asks for a service on a new connection.
pub(super) fn ask(socket: &mut TcpStream, service: Service, bytes: u64) -> Result<(), Failure> {
    let mut request = [service as u8; 9];
    request[1..].copy_from_slice(&bytes.to_le_bytes());
    Ok(socket.write_all(&request)?)
}

/// Serves one connection until its client closes it.
pub(super) fn serve(mut socket: TcpStream) -> Result<(), Failure> {
    be_like_a_worker();
    socket.set_nodelay(true)?;
    let mut request = [0; 9];
    socket.read_exact(&mut request)?;
    let [service, bytes @ ..] = request;
    let bytes = u64::from_le_bytes(bytes);
    let memory = usize::try_from(bytes)?;
    match service {
        1 => bare::echo(socket, memory),
        2 => acknowledge(socket, bytes),
        3 => {
            // Each frame is painted again, as the device's are.
            let (scene, mut frame) = (noise(memory), vec![0; memory]);
            loop {
                frame.copy_from_slice(&scene);
                socket.write_all(&frame)?;
            }
        }
        4 => {
            let mut buffer = vec![0; 1 << 20];
            while socket.read(&mut buffer)? > 0 {}
            Ok(())
        }
        other => Err(format!("there is no service {other}").into()),
    }
}

fn acknowledge(mut socket: TcpStream, bytes: u64) -> Result<(), Failure> {
    let mut buffer = vec![0; 1 << 20];
    let mut left = bytes;
    while left > 0 {
        let most = buffer.len().min(usize::try_from(left)?);
        match socket.read(&mut buffer[..most])? {
            0 => return Ok(()),
            count => left -= count as u64,
        }
    }
    Ok(socket.write_all(&[0])?)
}

/// Measures a ping-pong with the far host. Returns half of each round trip.
pub(super) fn ping(mut socket: TcpStream, block: &Block, pause: Duration) -> Result<Times, Failure> {
    be_like_a_worker();
    ask(&mut socket, Service::Echo, block.bytes as u64)?;
    let mut message = noise(block.bytes);
    let mut times = Times::with_capacity(block.count);
    let begun = sys::clock::boot_ns();
    for sent in 0.. {
        if block.is_done(sent, sys::clock::boot_ns() - begun) {
            break;
        }
        std::thread::sleep(pause);
        let made = sys::clock::boot_ns();
        socket.write_all(&message)?;
        socket.read_exact(&mut message)?;
        if sent >= Block::WARM_UP {
            times.add((sys::clock::boot_ns() - made) / 2);
        }
    }
    Ok(times)
}

/// Paints frames from the far host. Returns the times between them.
pub(super) fn paint(mut socket: TcpStream, block: &Block) -> Result<Times, Failure> {
    be_like_a_worker();
    ask(&mut socket, Service::Frames, block.bytes as u64)?;
    let mut frame = vec![0; block.bytes];
    let mut painter = Painter::new(block)?;
    loop {
        socket.read_exact(&mut frame)?;
        if painter.frame(std::iter::once(&frame))? {
            return Ok(painter.times());
        }
    }
}
