//! Terminal ioctls beyond `termios(3)` (`ioctl_tty(2)`, `pty(7)`).

use std::io;
use std::os::fd::{AsFd, AsRawFd};

/// The first byte of a read in packet mode: data follows.
pub const PACKET_DATA: u8 = 0;

/// A bit of the first byte: the settings of the slave changed while `EXTPROC` was on (`TIOCPKT_IOCTL`,
/// asm-generic/ioctls.h; libc lacks it).
pub const PACKET_SETTINGS: u8 = 64;

/// Turns packet mode of a pseudo-terminal's master on or off. In packet mode every read starts with a status
/// byte (`TIOCPKT`).
pub fn set_packet_mode(master: impl AsFd, on: bool) -> io::Result<()> {
    let on = libc::c_int::from(on);
    // SAFETY: the argument is a pointer to an int that lives through the call; the kernel only reads it.
    check(unsafe { libc::ioctl(master.as_fd().as_raw_fd(), libc::TIOCPKT, &on) })
}

/// The number of bytes that wait in the terminal's driver (`TIOCOUTQ`), without those in the hardware's own
/// queue.
pub fn output_queued(terminal: impl AsFd) -> io::Result<usize> {
    let mut queued: libc::c_int = 0;
    // SAFETY: the argument is a pointer to an int that lives through the call; the kernel writes it.
    check(unsafe { libc::ioctl(terminal.as_fd().as_raw_fd(), libc::TIOCOUTQ, &mut queued) })?;
    Ok(usize::try_from(queued).unwrap_or(0))
}

/// Returns true if the serial port has sent its last bit (`TIOCSERGETLSR`). Drivers without support fail with
/// `ENOTTY` or `EINVAL`.
pub fn is_transmitter_empty(terminal: impl AsFd) -> io::Result<bool> {
    const TIOCSER_TEMT: libc::c_uint = 1;
    let mut state: libc::c_uint = 0;
    // SAFETY: the argument is a pointer to an int that lives through the call; the kernel writes it.
    check(unsafe { libc::ioctl(terminal.as_fd().as_raw_fd(), libc::TIOCSERGETLSR, &mut state) })?;
    Ok(state & TIOCSER_TEMT != 0)
}

/// Ends a break of the serial port, if any (`TIOCCBRK`).
pub fn clear_break(terminal: impl AsFd) -> io::Result<()> {
    // SAFETY: the request takes no argument.
    check(unsafe { libc::ioctl(terminal.as_fd().as_raw_fd(), libc::TIOCCBRK) })
}

fn check(result: libc::c_int) -> io::Result<()> {
    match result {
        0.. => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
