//! USB/IP between the kernel's virtual host controller and a device (`Documentation/usb/usbip_protocol.rst`).
//!
//! | packet | 48 bytes, big-endian | then |
//! |---|---|---|
//! | submit, 1 | command, sequence, device, direction, endpoint, flags, length, frame, packets, interval, setup\[8\] | the bytes of a transfer out |
//! | unlink, 2 | command, sequence, device, direction, endpoint, sequence of the transfer | |
//! | submitted, 3 | command, sequence, 0, 0, 0, status, length, 0, 0, 0 | the bytes of a transfer in |
//! | unlinked, 4 | command, sequence, 0, 0, 0, status | |

use wire::WireError;

/// Bytes of a packet without the data behind it.
pub(super) const HEADER_BYTES: usize = 48;
/// The longest transfer that the adapter takes. The driver's are 512 bytes.
pub(super) const TRANSFER_BYTES_MAX: usize = 64 << 10;

const SUBMIT: u32 = 1;
const UNLINK: u32 = 2;
const SUBMITTED: u32 = 3;
const UNLINKED: u32 = 4;

/// Status of a transfer that the device refuses (`EPIPE`).
pub(super) const STALL: i32 = -rustix::io::Errno::PIPE.raw_os_error();
/// Status of a transfer that was unlinked (`ECONNRESET`).
pub(super) const WAS_UNLINKED: i32 = -rustix::io::Errno::CONNRESET.raw_os_error();

/// A packet of the kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Request {
    Submit(Transfer),
    /// Cancels the transfer with the number `target`.
    Unlink {
        sequence: u32,
        target: u32,
    },
}

/// A transfer of the kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Transfer {
    pub(super) sequence: u32,
    pub(super) endpoint: u32,
    pub(super) is_in: bool,
    /// Bytes that the kernel sends or has room for.
    pub(super) length: usize,
    pub(super) setup: [u8; 8],
    /// The bytes of a transfer out.
    pub(super) data: Vec<u8>,
}

impl Request {
    /// Takes the first packet out of `bytes`. Returns `None` if it is not complete.
    pub(super) fn take(bytes: &mut Vec<u8>) -> Result<Option<Request>, WireError> {
        let Some(header) = bytes.first_chunk::<HEADER_BYTES>() else { return Ok(None) };
        let word = |at: usize| {
            u32::from_be_bytes([header[4 * at], header[4 * at + 1], header[4 * at + 2], header[4 * at + 3]])
        };
        let sequence = word(1);
        match word(0) {
            SUBMIT => {
                let (is_in, length) = (word(3) != 0, word(6) as usize);
                if length > TRANSFER_BYTES_MAX {
                    return Err(WireError::Value { what: "USB transfer length", value: word(6).into() });
                }
                let end = HEADER_BYTES + if is_in { 0 } else { length };
                if bytes.len() < end {
                    return Ok(None);
                }
                let mut setup = [0; 8];
                setup.copy_from_slice(&header[40..]);
                let (endpoint, data) = (word(4), bytes[HEADER_BYTES..end].to_vec());
                bytes.drain(..end);
                Ok(Some(Request::Submit(Transfer { sequence, endpoint, is_in, length, setup, data })))
            }
            UNLINK => {
                let target = word(5);
                bytes.drain(..HEADER_BYTES);
                Ok(Some(Request::Unlink { sequence, target }))
            }
            other => Err(WireError::Value { what: "USB/IP command", value: other.into() }),
        }
    }
}

fn emit(words: [u32; 7], into: &mut Vec<u8>) {
    let start = into.len();
    into.extend(words.iter().flat_map(|word| word.to_be_bytes()));
    into.resize(start + HEADER_BYTES, 0);
}

/// Appends the end of a transfer in, with its bytes.
pub(super) fn finish_in(sequence: u32, data: &[u8], into: &mut Vec<u8>) {
    emit([SUBMITTED, sequence, 0, 0, 0, 0, data.len() as u32], into);
    into.extend_from_slice(data);
}

/// Appends the end of a transfer out of `length` bytes, or of a transfer that failed.
pub(super) fn finish(sequence: u32, status: i32, length: usize, into: &mut Vec<u8>) {
    emit([SUBMITTED, sequence, 0, 0, 0, status.cast_unsigned(), length as u32], into);
}

/// Appends the reply to an unlink: [`WAS_UNLINKED`], or 0 if the transfer has ended before.
pub(super) fn finish_unlink(sequence: u32, status: i32, into: &mut Vec<u8>) {
    emit([UNLINKED, sequence, 0, 0, 0, status.cast_unsigned(), 0], into);
}
