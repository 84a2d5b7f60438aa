//! HID devices as the kernel passes them on, without a driver's interpretation (`/dev/hidraw*`, `Documentation/hid/hidraw.rst`).
//!
//! Reports are read and written as bytes. This module has the requests of the control channel, each with the number of the report in the
//! first byte, 0 for a device without numbers.

use crate::ioctl::{READ, WRITE, code, ioctl_number, ioctl_value};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

const GROUP: u8 = b'H';
/// The longest report with its number: the length of an ioctl's argument has 14 bits.
pub const REPORT_BYTES_MAX: usize = (1 << 14) - 1;
/// Ends the access of a descriptor (`HIDIOCREVOKE`, Linux 6.12).
const REVOKE: libc::Ioctl = ioctl_number(WRITE, GROUP, 0x0d, size_of::<libc::c_int>());

/// A request of the control channel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Request {
    /// `HIDIOCSFEATURE`.
    SetFeature,
    /// `HIDIOCGFEATURE`.
    GetFeature,
    /// `HIDIOCGINPUT`, Linux 5.11.
    GetInput,
    /// `HIDIOCSOUTPUT`, Linux 5.11.
    SetOutput,
    /// `HIDIOCGOUTPUT`, Linux 5.11.
    GetOutput,
}

impl Request {
    const fn number(self) -> u32 {
        match self {
            Request::SetFeature => 0x06,
            Request::GetFeature => 0x07,
            Request::GetInput => 0x0a,
            Request::SetOutput => 0x0b,
            Request::GetOutput => 0x0c,
        }
    }
}

const fn code_of(request: Request) -> u32 {
    code(READ | WRITE, GROUP, request.number())
}

/// The ioctls of an open device that is in use.
pub const IOCTLS: [u32; 5] = [
    code_of(Request::SetFeature),
    code_of(Request::GetFeature),
    code_of(Request::GetInput),
    code_of(Request::SetOutput),
    code_of(Request::GetOutput),
];

/// Makes a request. `report` starts with the number of the report; a request that gets one replaces it. Returns the length of the
/// report. It blocks until the device has answered, which the kernel limits to some seconds.
pub fn request(device: BorrowedFd<'_>, request: Request, report: &mut [u8]) -> io::Result<usize> {
    if report.is_empty() || report.len() > REPORT_BYTES_MAX {
        return Err(io::Error::from(io::ErrorKind::InvalidInput));
    }
    let number = ioctl_number(READ | WRITE, GROUP, request.number(), report.len());
    // SAFETY: the kernel reads and writes at most as many bytes as the number of the ioctl says, the length of the slice.
    let length = unsafe { libc::ioctl(device.as_raw_fd(), number, report.as_mut_ptr()) };
    match usize::try_from(length) {
        Ok(length) => Ok(length.min(report.len())),
        Err(_) => Err(io::Error::last_os_error()),
    }
}

/// Ends the access of this descriptor and of its duplicates, in every process. Kernels before 6.12 cannot.
pub fn revoke(device: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: HIDIOCREVOKE takes a number, which must be 0.
    unsafe { ioctl_value(device, REVOKE, 0) }.map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The numbers that a C program prints: `HIDIOCGFEATURE(64)`, `HIDIOCSFEATURE(64)`, `HIDIOCGINPUT(64)`.
    #[test]
    fn ioctl_numbers_match_the_kernels() {
        for (request, number) in [
            (Request::GetFeature, 0xc040_4807_u32),
            (Request::SetFeature, 0xc040_4806),
            (Request::GetInput, 0xc040_480a),
        ] {
            assert_eq!(ioctl_number(READ | WRITE, GROUP, request.number(), 64) as u32, number, "{request:?}");
        }
    }
}
