//! Random bytes of the system.

use rustix::rand::{GetRandomFlags, getrandom};
use std::io;

/// `N` bytes that nobody can guess.
pub fn bytes<const N: usize>() -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    let mut filled = 0;
    while filled < N {
        filled += getrandom(&mut bytes[filled..], GetRandomFlags::empty())?;
    }
    Ok(bytes)
}
