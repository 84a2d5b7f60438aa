//! TUN devices: the program reads the IP packets that the kernel sends through it, and the kernel receives the
//! packets that the program writes (`Documentation/networking/tuntap.rst`).

use rustix::fs::{Mode, OFlags, open};
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

/// The length of the `struct virtio_net_hdr` before each packet (`IFF_VNET_HDR`).
pub const HEADER_BYTES: usize = 10;

/// Makes a device with this name in the calling thread's network namespace; needs `CAP_NET_ADMIN`. It exists
/// until the file is closed. Reads do not block. With `large_segments` the kernel passes segments of up to 64 KiB, each
/// in place of many packets: TCP's, and from Linux 6.2 on UDP's (UDP_SEGMENT). In both modes the reader must complete
/// checksums.
pub fn open_device(name: &str, large_segments: bool) -> io::Result<File> {
    let tun = open("/dev/net/tun", OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC, Mode::empty())?;
    // SAFETY: a zeroed ifreq is valid: an empty name, no flags.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    if name.is_empty() || name.len() >= request.ifr_name.len() {
        let most = request.ifr_name.len() - 1;
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            format!("device name {name:?} must be 1 to {most} bytes long"),
        ));
    }
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    request.ifr_ifru.ifru_flags = (libc::IFF_TUN | libc::IFF_NO_PI | libc::IFF_VNET_HDR) as libc::c_short;
    // SAFETY: TUNSETIFF reads and writes an ifreq, which lives through the call.
    if unsafe { libc::ioctl(tun.as_raw_fd(), libc::TUNSETIFF as libc::Ioctl, &mut request) } < 0 {
        return Err(io::Error::last_os_error());
    }
    let tcp = libc::TUN_F_TSO4 | libc::TUN_F_TSO6;
    match large_segments {
        // An older kernel refuses UDP's.
        true => accept(&tun, tcp | libc::TUN_F_USO4 | libc::TUN_F_USO6).or_else(|_| accept(&tun, tcp))?,
        false => accept(&tun, 0)?,
    }
    Ok(File::from(tun))
}

/// Accepts packets without checksums and these segments from the kernel.
fn accept(tun: &impl AsRawFd, segments: libc::c_uint) -> io::Result<()> {
    let offloads = libc::c_ulong::from(libc::TUN_F_CSUM | segments);
    // SAFETY: TUNSETOFFLOAD takes a number and touches no memory.
    match unsafe { libc::ioctl(tun.as_raw_fd(), libc::TUNSETOFFLOAD as libc::Ioctl, offloads) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_must_fit() {
        for name in ["", "a-name-of-16-byte"] {
            let error = open_device(name, false).unwrap_err();
            // On a machine without TUN, the open fails first.
            assert!(
                error.to_string().contains(name) || error.kind() != io::ErrorKind::InvalidInput,
                "{error}"
            );
        }
    }
}
