//! The computer's suspend: `vhci_hcd` refuses it while an adapter is plugged in (`vhci_hcd_suspend` in `drivers/usb/usbip/vhci_hcd.c`). So
//! each adapter leaves its port before, and is plugged in again afterwards.
//!
//! systemd-logind announces both, and waits for the holders of a lock ("Inhibitor Locks" on systemd.io, `PrepareForSleep`).
//! Without logind, or in a program without the feature `media`, nothing is announced.

use super::uplink::Ended;
use rustix::io::Errno;
#[cfg(any(test, feature = "media"))]
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use rustix::net::{RecvFlags, SendFlags, recv, send};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
#[cfg(feature = "media")]
use std::time::Duration;

#[cfg(feature = "media")]
pub(super) use watch::announcements;

/// The longest wait for an adapter's answer. logind waits for 5 s by default.
#[cfg(feature = "media")]
const ANSWER_TIMEOUT: Duration = Duration::from_secs(1);

/// An announcement to an adapter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Announced {
    Suspend,
    Awake,
}

/// The watch's end of a connection.
#[cfg(any(test, feature = "media"))]
#[derive(Debug)]
pub(super) struct Announcer(OwnedFd);

/// An adapter's end.
#[derive(Debug)]
pub(super) struct Announcements(OwnedFd);

/// Returns the announcements for a further adapter.
#[cfg(not(feature = "media"))]
pub(super) fn announcements() -> io::Result<Option<Announcements>> {
    Ok(None)
}

/// Returns both ends of a connection.
#[cfg(any(test, feature = "media"))]
pub(super) fn pair() -> io::Result<(Announcer, Announcements)> {
    let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    Ok((Announcer(ours), Announcements(theirs)))
}

#[cfg(any(test, feature = "media"))]
impl Announcer {
    /// Announces, and waits for the adapter's answer. Returns false if the adapter has ended, or does not answer.
    pub(super) fn announce(&self, what: Announced) -> bool {
        let byte = [u8::from(what == Announced::Suspend)];
        send(&self.0, &byte, SendFlags::NOSIGNAL).is_ok()
            && recv(&self.0, &mut [0][..], RecvFlags::empty()).is_ok_and(|(count, _)| count == 1)
    }
}

impl Announcements {
    pub(super) fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }

    /// Returns the next announcement, if there is one. [`Announcements::answer`] is due then.
    pub(super) fn next(&self) -> Result<Option<Announced>, Ended> {
        let mut byte = [0];
        match recv(&self.0, &mut byte[..], RecvFlags::DONTWAIT) {
            Ok((0, _)) => Err(Ended),
            Ok(_) => Ok(Some(if byte == [0] { Announced::Awake } else { Announced::Suspend })),
            Err(Errno::AGAIN | Errno::INTR) => Ok(None),
            Err(_) => Err(Ended),
        }
    }

    /// Answers an announcement.
    pub(super) fn answer(&self) {
        // Without a watch nobody waits.
        let _ = send(&self.0, &[0], SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
    }
}

#[cfg(feature = "media")]
mod watch {
    use super::super::vhci;
    use super::*;
    use crate::signals;
    use rustix::net::sockopt::{self, Timeout};
    use std::sync::{Mutex, Once, PoisonError};
    use std::thread;
    use std::time::Instant;
    use zbus::connection::Builder;
    use zbus::message::Type;
    use zbus::{Connection, MatchRule, MessageStream, block_on};

    const DESTINATION: &str = "org.freedesktop.login1";
    const OBJECT: &str = "/org/freedesktop/login1";
    const MANAGER: &str = "org.freedesktop.login1.Manager";
    const CALL_TIMEOUT: Duration = Duration::from_secs(10);
    /// The longest wait for the kernel to take the adapters out of their ports, and the interval of the looks.
    const OUT_TIMEOUT: Duration = Duration::from_secs(2);
    const OUT_INTERVAL: Duration = Duration::from_millis(10);

    /// The adapters of this process.
    static ADAPTERS: Mutex<Vec<Announcer>> = Mutex::new(Vec::new());
    static WATCH: Once = Once::new();

    /// Returns the announcements for a further adapter.
    pub(in super::super) fn announcements() -> io::Result<Option<Announcements>> {
        let (announcer, announcements) = pair()?;
        sockopt::set_socket_timeout(&announcer.0, Timeout::Recv, Some(ANSWER_TIMEOUT))?;
        ADAPTERS.lock().unwrap_or_else(PoisonError::into_inner).push(announcer);
        WATCH.call_once(|| {
            // Without the thread, the computer stays awake as without logind.
            let _ = thread::Builder::new().name("suspend".into()).spawn(|| watch(Builder::system()));
        });
        Ok(Some(announcements))
    }

    /// Waits for announcements of logind. Ends with its bus.
    fn watch(bus: Builder<'_>) -> zbus::Result<()> {
        let connection = block_on(bus.method_timeout(CALL_TIMEOUT).build())?;
        let rule = MatchRule::builder().msg_type(Type::Signal).sender(DESTINATION);
        let rule = rule.interface(MANAGER).member("PrepareForSleep").build()?;
        let mut stream = block_on(MessageStream::for_match_rule(rule, &connection, None))?;
        let mut lock = lock(&connection);
        while let Some(message) = signals::next(&mut stream) {
            let Ok(is_before) = message.body().deserialize::<bool>() else { continue };
            let what = if is_before { Announced::Suspend } else { Announced::Awake };
            ADAPTERS.lock().unwrap_or_else(PoisonError::into_inner).retain(|adapter| adapter.announce(what));
            match what {
                Announced::Suspend => {
                    let until = Instant::now() + OUT_TIMEOUT;
                    while vhci::has_own_adapter() && Instant::now() < until {
                        thread::sleep(OUT_INTERVAL);
                    }
                    lock = None;
                }
                Announced::Awake => lock = self::lock(&connection),
            }
        }
        drop(lock);
        Ok(())
    }

    /// Takes the lock that delays a suspend until it is dropped. Without it the adapters may be too late.
    fn lock(connection: &Connection) -> Option<zbus::OwnedFd> {
        let wish = ("sleep", "Outboard", "pulls serial adapters out", "delay");
        let call = connection.call_method(Some(DESTINATION), OBJECT, Some(MANAGER), "Inhibit", &wish);
        block_on(call).ok()?.body().deserialize().ok()
    }

    #[cfg(test)]
    mod tests {
        use super::*;
        use std::fs;
        use std::io::Read;
        use std::os::unix::net::UnixStream;
        use std::process::{Child, Command};
        use testkit::skip::has_program;

        const PATIENCE: Duration = Duration::from_secs(60);

        struct Bus(Child);

        impl Drop for Bus {
            fn drop(&mut self) {
                let _ = self.0.kill();
                let _ = self.0.wait();
            }
        }

        /// Answers the next request for a lock. Returns the end that closes when the lock is dropped.
        fn grant(logind: &Connection, calls: &mut MessageStream) -> UnixStream {
            loop {
                let call = signals::next(calls).unwrap();
                let header = call.header();
                if header.member().is_some_and(|name| name.as_str() == "Inhibit") {
                    let wish: (String, String, String, String) = call.body().deserialize().unwrap();
                    assert_eq!((wish.0.as_str(), wish.3.as_str()), ("sleep", "delay"));
                    let (ours, theirs) = UnixStream::pair().unwrap();
                    ours.set_read_timeout(Some(PATIENCE)).unwrap();
                    let lock = zbus::OwnedFd::from(OwnedFd::from(theirs));
                    block_on(logind.reply(&header, &lock)).unwrap();
                    return ours;
                }
            }
        }

        #[test]
        fn logind_waits_until_the_adapters_have_left_their_ports() {
            if !has_program("dbus-daemon", "dbus") {
                return;
            }
            let path = std::env::temp_dir().join(format!("outboard-suspend-{}", std::process::id()));
            let address = format!("unix:path={}", path.display());
            let daemon = Command::new("dbus-daemon")
                .args(["--session", "--nofork", "--nopidfile", &format!("--address={address}")])
                .spawn();
            let bus = Bus(daemon.unwrap());
            let begun = Instant::now();
            while !path.exists() && begun.elapsed() < PATIENCE {
                thread::sleep(OUT_INTERVAL);
            }
            let logind = block_on(Builder::address(address.as_str()).build()).unwrap();
            block_on(logind.request_name(DESTINATION)).unwrap();
            let mut calls = MessageStream::from(&logind);
            let announce = |is_before: bool| {
                let signal = logind.emit_signal(None::<&str>, OBJECT, MANAGER, "PrepareForSleep", &is_before);
                block_on(signal).unwrap();
            };

            let adapter = announcements().unwrap().unwrap();
            let watching = thread::spawn(move || watch(Builder::address(address.as_str())));
            let mut lock = grant(&logind, &mut calls);
            announce(true);
            let next = || loop {
                if let Some(announced) = adapter.next().unwrap() {
                    break announced;
                }
                assert!(begun.elapsed() < PATIENCE, "nothing is announced");
                thread::sleep(OUT_INTERVAL);
            };
            assert_eq!(next(), Announced::Suspend);
            lock.set_nonblocking(true).unwrap();
            assert!(lock.read(&mut [0]).is_err(), "the lock was dropped before the adapter has left");
            lock.set_nonblocking(false).unwrap();
            adapter.answer();
            assert_eq!(lock.read(&mut [0]).unwrap(), 0, "the lock is dropped");

            announce(false);
            assert_eq!(next(), Announced::Awake);
            adapter.answer();
            let _next_lock = grant(&logind, &mut calls);
            drop(bus);
            let _ = watching.join().unwrap();
            let _ = fs::remove_file(path);
        }
    }
}
