//! Numbers of ioctls, and four ways to call one (`ioctl(2)`, `asm-generic/ioctl.h`).

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

/// The kernel writes through the argument.
pub(crate) const READ: u32 = 2;
/// The kernel reads through the argument.
pub(crate) const WRITE: u32 = 1;

/// The number of an ioctl (`asm-generic/ioctl.h`).
pub(crate) const fn ioctl_number(direction: u32, group: u8, number: u32, bytes: usize) -> libc::Ioctl {
    ((direction << 30) | ((bytes as u32) << 16) | ((group as u32) << 8) | number) as libc::Ioctl
}

/// Direction, group and number of an ioctl, without the size of its argument. An allow-list holds such codes.
pub const fn code(direction: u32, group: u8, number: u32) -> u32 {
    ioctl_number(direction, group, number, 0) as u32
}

/// The bits of [`code`] in the number of an ioctl.
pub const CODE_MASK: u32 = code(3, 0xff, 0xff);

/// Calls an ioctl that reads or writes one `T` through a pointer.
///
/// # Safety
/// The kernel must treat `number` as taking a pointer to a `T`, and any bytes must be a valid `T`. It must
/// neither retain the pointer nor follow another one inside of the `T`.
pub(crate) unsafe fn ioctl_struct<T>(
    descriptor: BorrowedFd<'_>,
    group: u8,
    direction: u32,
    number: u32,
    value: &mut T,
) -> io::Result<i32> {
    let request = ioctl_number(direction, group, number, size_of::<T>());
    // SAFETY: the pointer is to a live `T`, whose size is part of the request; the caller guarantees the rest.
    answer(unsafe { libc::ioctl(descriptor.as_fd().as_raw_fd(), request, std::ptr::from_mut(value)) })
}

/// Calls an ioctl that fills a slice. Returns the kernel's result, usually the number of bytes written.
///
/// # Safety
/// As [`ioctl_struct`], for a slice of `T`.
pub(crate) unsafe fn ioctl_fill<T>(
    descriptor: BorrowedFd<'_>,
    group: u8,
    number: u32,
    into: &mut [T],
) -> io::Result<i32> {
    let request = ioctl_number(READ, group, number, size_of_val(into));
    // SAFETY: the pointer is to live memory of the length in the request; the caller guarantees the rest.
    answer(unsafe { libc::ioctl(descriptor.as_fd().as_raw_fd(), request, into.as_mut_ptr()) })
}

/// Calls an ioctl whose argument is a number.
///
/// # Safety
/// The kernel must not treat the argument as an address.
pub(crate) unsafe fn ioctl_value(
    descriptor: BorrowedFd<'_>,
    request: libc::Ioctl,
    value: libc::c_ulong,
) -> io::Result<i32> {
    // SAFETY: the caller guarantees that no memory is involved.
    answer(unsafe { libc::ioctl(descriptor.as_fd().as_raw_fd(), request, value) })
}

/// Calls an ioctl that reads two numbers, and whose own number has no size.
///
/// # Safety
/// The kernel must treat the argument as a pointer to two numbers of 64 bits, and not write through it.
pub(crate) unsafe fn ioctl_pair(
    descriptor: BorrowedFd<'_>,
    request: libc::Ioctl,
    pair: &[u64; 2],
) -> io::Result<i32> {
    // SAFETY: the pointer is to two live numbers; the caller guarantees the rest.
    answer(unsafe { libc::ioctl(descriptor.as_fd().as_raw_fd(), request, pair.as_ptr()) })
}

/// Converts the result of a system call.
pub(crate) fn answer(result: libc::c_int) -> io::Result<i32> {
    match result {
        0.. => Ok(result),
        _ => Err(io::Error::last_os_error()),
    }
}
