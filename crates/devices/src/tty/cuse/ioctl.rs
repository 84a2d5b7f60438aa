//! Numbers of the ioctls of a terminal, and the memory that they use (`asm-generic/ioctls.h`, `ioctl_tty(2)`).

use super::termios::{TERMIOS_BYTES, TERMIOS2_BYTES};

pub(super) const TCGETS: u32 = 0x5401;
pub(super) const TCSETS: u32 = 0x5402;
pub(super) const TCSETSW: u32 = 0x5403;
pub(super) const TCSETSF: u32 = 0x5404;
pub(super) const TCSBRK: u32 = 0x5409;
pub(super) const TCXONC: u32 = 0x540a;
pub(super) const TCFLSH: u32 = 0x540b;
pub(super) const TIOCEXCL: u32 = 0x540c;
pub(super) const TIOCNXCL: u32 = 0x540d;
pub(super) const TIOCOUTQ: u32 = 0x5411;
pub(super) const TIOCGWINSZ: u32 = 0x5413;
pub(super) const TIOCSWINSZ: u32 = 0x5414;
pub(super) const TIOCMGET: u32 = 0x5415;
pub(super) const TIOCMBIS: u32 = 0x5416;
pub(super) const TIOCMBIC: u32 = 0x5417;
pub(super) const TIOCMSET: u32 = 0x5418;
pub(super) const TIOCINQ: u32 = 0x541b;
pub(super) const TIOCGSERIAL: u32 = 0x541e;
pub(super) const TIOCSSERIAL: u32 = 0x541f;
pub(super) const TIOCGETD: u32 = 0x5424;
pub(super) const TCSBRKP: u32 = 0x5425;
pub(super) const TIOCSBRK: u32 = 0x5427;
pub(super) const TIOCCBRK: u32 = 0x5428;
pub(super) const TCGETS2: u32 = 0x802c_542a;
pub(super) const TCSETS2: u32 = 0x402c_542b;
pub(super) const TCSETSW2: u32 = 0x402c_542c;
pub(super) const TCSETSF2: u32 = 0x402c_542d;
pub(super) const TIOCGEXCL: u32 = 0x8004_5440;
pub(super) const TIOCSERGETLSR: u32 = 0x5459;
pub(super) const TIOCMIWAIT: u32 = 0x545c;
pub(super) const TIOCGICOUNT: u32 = 0x545d;

/// Bits of the lines in TIOCMGET and its family.
pub(super) const TIOCM_DTR: u32 = 0x2;
pub(super) const TIOCM_RTS: u32 = 0x4;
pub(super) const TIOCM_CTS: u32 = 0x20;
pub(super) const TIOCM_CD: u32 = 0x40;
pub(super) const TIOCM_RI: u32 = 0x80;
pub(super) const TIOCM_DSR: u32 = 0x100;

/// Bytes of `struct serial_struct` of a 64-bit program, of `struct serial_icounter_struct`, and of `struct winsize`.
pub(super) const SERIAL_BYTES: usize = 72;
pub(super) const COUNTS_BYTES: usize = 80;
pub(super) const WINDOW_BYTES: usize = 8;

/// Returns the bytes that an ioctl reads from the program's memory and writes to it, or `None` if terminals have no such ioctl.
pub(super) fn memory(command: u32) -> Option<(usize, usize)> {
    Some(match command {
        TCGETS => (0, TERMIOS_BYTES),
        TCSETS | TCSETSW | TCSETSF => (TERMIOS_BYTES, 0),
        TCGETS2 => (0, TERMIOS2_BYTES),
        TCSETS2 | TCSETSW2 | TCSETSF2 => (TERMIOS2_BYTES, 0),
        TIOCMGET | TIOCOUTQ | TIOCINQ | TIOCGETD | TIOCGEXCL | TIOCSERGETLSR => (0, 4),
        TIOCMBIS | TIOCMBIC | TIOCMSET => (4, 0),
        TIOCGWINSZ => (0, WINDOW_BYTES),
        TIOCSWINSZ => (WINDOW_BYTES, 0),
        TIOCGSERIAL => (0, SERIAL_BYTES),
        TIOCSSERIAL => (SERIAL_BYTES, 0),
        TIOCGICOUNT => (0, COUNTS_BYTES),
        TCSBRK | TCSBRKP | TIOCSBRK | TIOCCBRK | TCXONC | TCFLSH | TIOCEXCL | TIOCNXCL | TIOCMIWAIT => (0, 0),
        _ => return None,
    })
}
