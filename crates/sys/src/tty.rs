//! Terminal ioctls beyond `termios(3)` (`ioctl_tty(2)`, `pty(7)`).

use crate::ioctl::{READ, WRITE, code};
use std::io;
use std::os::fd::{AsFd, AsRawFd};

/// The first byte of a read in packet mode: data follows.
pub const PACKET_DATA: u8 = 0;

/// A bit of the first byte: the settings of the slave changed while `EXTPROC` was on (`TIOCPKT_IOCTL`,
/// asm-generic/ioctls.h; libc lacks it).
pub const PACKET_SETTINGS: u8 = 64;

/// The question for the settings with any speed (`asm-generic/ioctls.h`; libc lacks it on some architectures).
pub const TCGETS2: u32 = code(READ, b'T', 0x2a);

/// The ioctls of an open terminal: settings, lines, queues and breaks (`asm-generic/ioctls.h`). None types into it, takes it
/// over or sends signals.
pub const IOCTLS: [u32; 26] = [
    libc::TCGETS as u32,
    libc::TCSETS as u32,
    libc::TCSETSW as u32,
    libc::TCSETSF as u32,
    TCGETS2,
    code(WRITE, b'T', 0x2b),
    code(WRITE, b'T', 0x2c),
    code(WRITE, b'T', 0x2d),
    libc::TCSBRK as u32,
    libc::TCSBRKP as u32,
    libc::TCXONC as u32,
    libc::TCFLSH as u32,
    libc::TIOCMGET as u32,
    libc::TIOCMBIS as u32,
    libc::TIOCMBIC as u32,
    libc::TIOCMSET as u32,
    libc::TIOCOUTQ as u32,
    libc::TIOCPKT as u32,
    libc::TIOCSBRK as u32,
    libc::TIOCCBRK as u32,
    libc::TIOCSERGETLSR as u32,
    libc::TIOCEXCL as u32,
    libc::TIOCNXCL as u32,
    libc::TIOCGWINSZ as u32,
    libc::TIOCINQ as u32,
    // TIOCGPTN, the number of a pseudo-terminal.
    code(READ, b'T', 0x30),
];

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

/// Begins or ends a break of the serial port (`TIOCSBRK`, `TIOCCBRK`).
pub fn set_break(terminal: impl AsFd, on: bool) -> io::Result<()> {
    let request = if on { libc::TIOCSBRK } else { libc::TIOCCBRK };
    // SAFETY: neither request takes an argument.
    check(unsafe { libc::ioctl(terminal.as_fd().as_raw_fd(), request) })
}

/// The modem lines of a serial port (`TIOCMGET`).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ModemLines {
    /// Data terminal ready, an output.
    pub dtr: bool,
    /// Request to send, an output.
    pub rts: bool,
    /// Clear to send.
    pub cts: bool,
    /// Data set ready.
    pub dsr: bool,
    /// Data carrier detect.
    pub dcd: bool,
    /// Ring indicator.
    pub ri: bool,
}

/// Reads the modem lines.
pub fn modem_lines(terminal: impl AsFd) -> io::Result<ModemLines> {
    let mut bits: libc::c_int = 0;
    // SAFETY: the argument is a pointer to an int that lives through the call; the kernel writes it.
    check(unsafe { libc::ioctl(terminal.as_fd().as_raw_fd(), libc::TIOCMGET, &mut bits) })?;
    let has = |bit| bits & bit != 0;
    Ok(ModemLines {
        dtr: has(libc::TIOCM_DTR),
        rts: has(libc::TIOCM_RTS),
        cts: has(libc::TIOCM_CTS),
        dsr: has(libc::TIOCM_DSR),
        dcd: has(libc::TIOCM_CAR),
        ri: has(libc::TIOCM_RNG),
    })
}

/// An output among the modem lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ModemOutput {
    /// Data terminal ready.
    Dtr,
    /// Request to send.
    Rts,
}

/// Sets one output (`TIOCMBIS`, `TIOCMBIC`).
pub fn set_modem_output(terminal: impl AsFd, output: ModemOutput, on: bool) -> io::Result<()> {
    let bits: libc::c_int = match output {
        ModemOutput::Dtr => libc::TIOCM_DTR,
        ModemOutput::Rts => libc::TIOCM_RTS,
    };
    let request = if on { libc::TIOCMBIS } else { libc::TIOCMBIC };
    // SAFETY: the argument is a pointer to an int that lives through the call; the kernel only reads it.
    check(unsafe { libc::ioctl(terminal.as_fd().as_raw_fd(), request, &bits) })
}

/// Sets DTR and RTS at the same time, and keeps the other outputs (`TIOCMSET`).
pub fn set_dtr_rts(terminal: impl AsFd, dtr: bool, rts: bool) -> io::Result<()> {
    let mut bits: libc::c_int = 0;
    // SAFETY: the argument is a pointer to an int that lives through the call; the kernel writes it.
    check(unsafe { libc::ioctl(terminal.as_fd().as_raw_fd(), libc::TIOCMGET, &mut bits) })?;
    for (bit, is_on) in [(libc::TIOCM_DTR, dtr), (libc::TIOCM_RTS, rts)] {
        bits = if is_on { bits | bit } else { bits & !bit };
    }
    // SAFETY: the argument is a pointer to an int that lives through the call; the kernel only reads it.
    check(unsafe { libc::ioctl(terminal.as_fd().as_raw_fd(), libc::TIOCMSET, &bits) })
}

fn check(result: libc::c_int) -> io::Result<()> {
    match result {
        0.. => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
