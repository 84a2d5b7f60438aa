//! Packets between the kernel and a character device in user space (`include/uapi/linux/fuse.h`). No I/O.
//!
//! Numbers are in the byte order of the host. A read of `/dev/cuse` returns one request, a write of it is one reply.
//!
//! | packet | layout |
//! |---|---|
//! | request | length: u32, operation: u32, number: u64, node: u64, uid: u32, gid: u32, pid: u32, padding: u32, the operation's fields |
//! | reply | length: u32, negative error: i32, number: u64, the operation's results |
//! | wakeup of a poll | length: u32, 1: i32, 0: u64, the number in the poll: u64 |
//!
//! The kernel does not know the arguments of an ioctl. It sends the request without them at first; the reply [`retry`] names the
//! memory of the program that it has to read and write, and the kernel sends the request again.

use rustix::io::Errno;
use wire::WireError;

/// Bytes of a request without its fields, and of a reply without its results.
pub(super) const REQUEST_BYTES: usize = 40;
const REPLY_BYTES: usize = 16;
/// The most bytes of the line in a write, which is the least that the kernel takes for a limit.
pub(super) const WRITE_BYTES_MAX: usize = 4096;
/// The most bytes of the line in a read: a read that asks for more is never filled, so the kernel does not read twice.
pub(super) const READ_BYTES_MAX: u32 = 128 << 10;
/// Room for the longest request. The kernel demands at least 8 KiB (`FUSE_MIN_READ_BUFFER`).
pub(super) const BUFFER_BYTES: usize = 16 << 10;

/// Version of the protocol, and the first minor version with the layout of [`retry`].
const MAJOR: u32 = 7;
const MINOR: u32 = 31;
const MINOR_MIN: u32 = 23;
/// The device may name memory for any ioctl.
const UNRESTRICTED_IOCTL: u32 = 1;
const IOCTL_RETRY: u32 = 4;
const POLL_SCHEDULE_NOTIFY: u32 = 1;
const NOTIFY_POLL: i32 = 1;

const OPEN: u32 = 14;
const READ: u32 = 15;
const WRITE: u32 = 16;
const RELEASE: u32 = 18;
const INTERRUPT: u32 = 36;
const IOCTL: u32 = 39;
const POLL: u32 = 40;
const INIT: u32 = 4096;

/// A request of the kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Request {
    /// The number that the reply repeats.
    pub(super) number: u64,
    /// The user that asks.
    pub(super) uid: u32,
    pub(super) call: Call,
}

/// An operation of a program on the device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Call {
    /// The kernel asks for the device's name.
    Init {
        major: u32,
        minor: u32,
    },
    Open {
        flags: u32,
    },
    Release {
        handle: u64,
    },
    Read {
        handle: u64,
        size: usize,
        flags: u32,
    },
    Write {
        handle: u64,
        flags: u32,
        data: Vec<u8>,
    },
    Ioctl(Ioctl),
    /// `wakeup` is the number for [`wakeup`], if a program waits.
    Poll {
        handle: u64,
        wakeup: Option<u64>,
    },
    /// A signal interrupts the program that waits for the request with the number `target`.
    Interrupt {
        target: u64,
    },
    /// An operation that is no character device's.
    Other(u32),
}

/// An ioctl, with the memory that the kernel has read and has room for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Ioctl {
    pub(super) handle: u64,
    /// Bit 0: of a 32-bit program.
    pub(super) flags: u32,
    pub(super) command: u32,
    pub(super) argument: u64,
    pub(super) input: Vec<u8>,
    pub(super) output_room: usize,
}

/// The fields of a request, one after the other.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn take<const N: usize>(&mut self, what: &'static str) -> Result<[u8; N], WireError> {
        let short = WireError::Short { what, needed: N, left: self.0.len() };
        let (field, rest) = self.0.split_first_chunk::<N>().ok_or(short)?;
        self.0 = rest;
        Ok(*field)
    }

    fn u32(&mut self) -> Result<u32, WireError> {
        Ok(u32::from_ne_bytes(self.take("field of a CUSE request")?))
    }

    fn u64(&mut self) -> Result<u64, WireError> {
        Ok(u64::from_ne_bytes(self.take("field of a CUSE request")?))
    }

    /// Returns the remaining bytes, which have this length.
    fn rest(self, length: u32, limit: usize) -> Result<&'a [u8], WireError> {
        let (needed, left) = (length as usize, self.0.len());
        match needed {
            _ if needed > limit => Err(WireError::TooLong {
                what: "data of a CUSE request",
                length: length.into(),
                limit: limit as u64,
            }),
            _ => {
                self.0.get(..needed).ok_or(WireError::Short { what: "data of a CUSE request", needed, left })
            }
        }
    }
}

impl Request {
    /// Decodes a request.
    pub(super) fn parse(bytes: &[u8]) -> Result<Request, WireError> {
        let mut fields = Fields(bytes);
        let (length, operation, number) = (fields.u32()?, fields.u32()?, fields.u64()?);
        if length as usize != bytes.len() {
            return Err(WireError::Value { what: "length of a CUSE request", value: length.into() });
        }
        let (_node, uid) = (fields.u64()?, fields.u32()?);
        fields.take::<12>("head of a CUSE request")?;
        let call = match operation {
            INIT => Call::Init { major: fields.u32()?, minor: fields.u32()? },
            OPEN => Call::Open { flags: fields.u32()? },
            RELEASE => Call::Release { handle: fields.u64()? },
            READ | WRITE => {
                let (handle, _offset, size) = (fields.u64()?, fields.u64()?, fields.u32()?);
                let (_flags, _owner, flags) = (fields.u32()?, fields.u64()?, fields.u32()?);
                fields.u32()?;
                if operation == READ {
                    Call::Read { handle, size: size.min(READ_BYTES_MAX) as usize, flags }
                } else {
                    Call::Write { handle, flags, data: fields.rest(size, WRITE_BYTES_MAX)?.to_vec() }
                }
            }
            IOCTL => {
                let (handle, flags, command) = (fields.u64()?, fields.u32()?, fields.u32()?);
                let (argument, input_bytes, output_room) =
                    (fields.u64()?, fields.u32()?, fields.u32()? as usize);
                let input = fields.rest(input_bytes, WRITE_BYTES_MAX)?.to_vec();
                Call::Ioctl(Ioctl { handle, flags, command, argument, input, output_room })
            }
            POLL => {
                let (handle, wakeup, flags) = (fields.u64()?, fields.u64()?, fields.u32()?);
                Call::Poll { handle, wakeup: (flags & POLL_SCHEDULE_NOTIFY != 0).then_some(wakeup) }
            }
            INTERRUPT => Call::Interrupt { target: fields.u64()? },
            other => Call::Other(other),
        };
        Ok(Request { number, uid, call })
    }
}

/// Returns a reply with an error, or with none and results.
fn emit(number: u64, error: i32, results: &[u8]) -> Vec<u8> {
    let length = (REPLY_BYTES + results.len()) as u32;
    [&length.to_ne_bytes()[..], &error.to_ne_bytes(), &number.to_ne_bytes(), results].concat()
}

/// Returns a reply with results.
pub(super) fn reply(number: u64, results: &[u8]) -> Vec<u8> {
    emit(number, 0, results)
}

/// Returns the reply to a request that fails.
pub(super) fn fail(number: u64, error: Errno) -> Vec<u8> {
    emit(number, -error.raw_os_error(), &[])
}

fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_ne_bytes()).collect()
}

/// Returns the reply to the kernel's first request: the device gets this name, and any number.
pub(super) fn name_device(number: u64, name: &str) -> Vec<u8> {
    let mut results = words(&[MAJOR, MINOR, 0, UNRESTRICTED_IOCTL, READ_BYTES_MAX, WRITE_BYTES_MAX as u32]);
    // The device's number, which the kernel chooses, and reserved fields.
    results.extend([0; 48]);
    results.extend(format!("DEVNAME={name}\0").bytes());
    reply(number, &results)
}

/// Returns true if the kernel's version has the packets of this module.
pub(super) fn is_supported(major: u32, minor: u32) -> bool {
    major == MAJOR && minor >= MINOR_MIN
}

/// Returns the reply to an open.
pub(super) fn opened(number: u64, handle: u64) -> Vec<u8> {
    reply(number, &[&handle.to_ne_bytes()[..], &[0; 8]].concat())
}

/// Returns the reply to a write that took `count` bytes.
pub(super) fn written(number: u64, count: usize) -> Vec<u8> {
    reply(number, &words(&[count as u32, 0]))
}

/// Returns the reply to a poll.
pub(super) fn polled(number: u64, events: u32) -> Vec<u8> {
    reply(number, &words(&[events, 0]))
}

/// Returns the reply to an ioctl that succeeds, with the memory that it returns.
pub(super) fn controlled(number: u64, output: &[u8]) -> Vec<u8> {
    reply(number, &[&words(&[0; 4]), output].concat())
}

/// Returns the reply to an ioctl that needs memory of the program, at its argument.
pub(super) fn retry(number: u64, argument: u64, input_bytes: usize, output_bytes: usize) -> Vec<u8> {
    let is_used = |bytes: usize| u32::from(bytes > 0);
    let mut results = words(&[0, IOCTL_RETRY, is_used(input_bytes), is_used(output_bytes)]);
    for bytes in [input_bytes, output_bytes].into_iter().filter(|bytes| *bytes > 0) {
        results.extend(argument.to_ne_bytes());
        results.extend((bytes as u64).to_ne_bytes());
    }
    reply(number, &results)
}

/// Returns the packet that makes the kernel poll again.
pub(super) fn wakeup(wakeup: u64) -> Vec<u8> {
    emit(0, NOTIFY_POLL, &wakeup.to_ne_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Returns a request with these fields.
    pub(super) fn request(operation: u32, number: u64, fields: &[u8]) -> Vec<u8> {
        let mut packet = words(&[(REQUEST_BYTES + fields.len()) as u32, operation]);
        packet.extend(number.to_ne_bytes());
        packet.extend([0; 8]);
        packet.extend(words(&[1000, 1000, 7, 0]));
        packet.extend(fields);
        packet
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_request_or_an_error(bytes: Vec<u8>) {
            let _ = Request::parse(&bytes);
        }

        #[test]
        fn any_fields_are_a_request_or_an_error(operation in 0_u32..64, fields: Vec<u8>) {
            let _ = Request::parse(&request(operation, 1, &fields));
        }

        #[test]
        fn a_write_arrives_whole(handle: u64, flags: u32, data in proptest::collection::vec(any::<u8>(), 0..WRITE_BYTES_MAX)) {
            let head = [&handle.to_ne_bytes()[..], &[0; 8], &words(&[data.len() as u32, 0, 0, 0, flags, 0])].concat();
            let packet = request(WRITE, 5, &[&head[..], &data].concat());
            let call = Call::Write { handle, flags, data: data.clone() };
            prop_assert_eq!(Request::parse(&packet).unwrap(), Request { number: 5, uid: 1000, call });
            // A cut packet is refused.
            prop_assert!(Request::parse(&packet[..packet.len() - 1]).is_err());
        }

        #[test]
        fn an_ioctl_arrives_whole(handle: u64, command: u32, argument: u64, input in proptest::collection::vec(any::<u8>(), 0..100)) {
            let head = [
                &handle.to_ne_bytes()[..], &words(&[2, command]), &argument.to_ne_bytes(), &words(&[input.len() as u32, 4]),
            ].concat();
            let packet = request(IOCTL, 6, &[&head[..], &input].concat());
            let call = Call::Ioctl(Ioctl { handle, flags: 2, command, argument, input, output_room: 4 });
            prop_assert_eq!(Request::parse(&packet).unwrap().call, call);
        }
    }

    #[test]
    fn replies_have_the_layout_of_the_kernel() {
        assert_eq!(fail(3, Errno::INTR), [&words(&[16, (-4_i32).cast_unsigned(), 3, 0])[..]].concat());
        assert_eq!(written(1, 9).len(), 24);
        assert_eq!(opened(1, 9).len(), 32);
        assert_eq!(wakeup(8), words(&[24, 1, 0, 0, 8, 0]));
        assert_eq!(retry(1, 0x1000, 0, 36), words(&[48, 0, 1, 0, 0, 4, 0, 1, 0x1000, 0, 36, 0]));
        let named = name_device(1, "x");
        assert_eq!((named.len(), &named[88..]), (98, &b"DEVNAME=x\0"[..]));
    }
}
