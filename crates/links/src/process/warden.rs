//! The broker's side of [`super::launch`]: starts the processes that a locked worker asks for, waits for them, ends them.

use super::launch::{ANYWHERE, ENDED, Order, REFUSED, SAID_BYTES, STARTED, here, place, receive};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, Shutdown, SocketFlags, SocketType, recv, send, shutdown, socketpair,
};
use rustix::process::{Pid, Signal, kill_process_group};
use rustix::thread::{CpuSet, sched_getaffinity};
use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::ExitStatusExt;
use std::process::Child;
use std::sync::{Arc, Mutex, PoisonError};
use sys::poller::Poller;

/// Most programs that are allowed; of more, the oldest are no longer.
const ALLOWED_MAX: usize = 4096;
/// Most processes at once.
const PROCESSES_MAX: usize = 256;

/// A program with its arguments, and its environment (`None`: that of the broker).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Allowed {
    /// The program and its arguments.
    pub words: Vec<OsString>,
    /// Its environment.
    pub environment: Option<Vec<(OsString, OsString)>>,
}

/// What a broker has of a warden; once it is dropped, the warden ends, with all processes.
#[derive(Debug)]
pub struct Wardship {
    allowed: Arc<Mutex<Vec<Allowed>>>,
    socket: OwnedFd,
}

impl Wardship {
    /// Starts a warden that starts nothing yet.
    pub fn begin() -> io::Result<Wardship> {
        let (ours, socket) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        let allowed = Arc::<Mutex<Vec<Allowed>>>::default();
        let (poller, anywhere) = (Poller::new()?, sched_getaffinity(None)?);
        let warden =
            Warden { socket: ours, allowed: allowed.clone(), processes: Vec::new(), poller, anywhere };
        std::thread::Builder::new().name("warden".into()).spawn(move || warden.run())?;
        Ok(Wardship { allowed, socket })
    }

    /// These may be started from here on.
    pub fn allow(&self, programs: Vec<Allowed>) {
        let mut allowed = self.allowed.lock().unwrap_or_else(PoisonError::into_inner);
        for program in programs {
            allowed.retain(|known| *known != program);
            allowed.push(program);
        }
        let more = allowed.len().saturating_sub(ALLOWED_MAX);
        allowed.drain(..more);
    }

    /// For the worker: what [`start_by`](super::start_by) takes.
    pub fn socket(&self) -> io::Result<OwnedFd> {
        self.socket.try_clone()
    }
}

impl Drop for Wardship {
    /// For the worker's end, too.
    fn drop(&mut self) {
        let _ = shutdown(&self.socket, Shutdown::Both);
    }
}

/// One process that a worker asked for.
struct Ward {
    child: Child,
    pidfd: OwnedFd,
    leash: OwnedFd,
    /// The worker has let it go, and it was killed.
    is_let_go: bool,
}

pub(super) struct Warden {
    socket: OwnedFd,
    allowed: Arc<Mutex<Vec<Allowed>>>,
    processes: Vec<Ward>,
    poller: Poller,
    /// Where processes may run.
    anywhere: CpuSet,
}

impl Warden {
    /// Until nobody can ask any more. Its processes are killed when its thread ends ([`sys::process::start_with`]).
    fn run(mut self) {
        // As the threads whose work these processes do.
        sys::thread::be_prompt();
        loop {
            loop {
                match receive(&self.socket) {
                    Ok(Some((order, given))) => self.obey(order, given),
                    Ok(None) => break,
                    Err(_) => return self.end(),
                }
            }
            let mut number = 0;
            while number < self.processes.len() {
                match self.attend(number) {
                    true => number += 1,
                    false => {
                        let ward = self.processes.swap_remove(number);
                        self.poller.forget(ward.pidfd.as_fd());
                        self.poller.forget(ward.leash.as_fd());
                    }
                }
            }
            self.poller.want(self.socket.as_fd(), true, false);
            for ward in &self.processes {
                self.poller.want(ward.pidfd.as_fd(), true, false);
                if !ward.is_let_go {
                    self.poller.want(ward.leash.as_fd(), true, false);
                }
            }
            if self.poller.wait(None).is_err() {
                return self.end();
            }
        }
    }

    /// Starts a process, if it may be.
    fn obey(&mut self, order: Option<Order>, given: Vec<OwnedFd>) {
        let mut given = given.into_iter();
        // Who sends no leash hears no answer.
        let Some(leash) = given.next() else { return };
        let (said, started) = match self.start(order, given) {
            Ok(started) => (say(STARTED, started.0.id().cast_signed()), Some(started)),
            Err(error) => (say(REFUSED, error.raw_os_error().unwrap_or(Errno::PERM.raw_os_error())), None),
        };
        // Who does not listen is found to have let go.
        let _ = send(&leash, &said, SendFlags::NOSIGNAL | SendFlags::DONTWAIT);
        let ward = started.map(|(child, pidfd)| Ward { child, pidfd, leash, is_let_go: false });
        self.processes.extend(ward);
    }

    fn start(
        &self,
        order: Option<Order>,
        mut given: impl Iterator<Item = OwnedFd>,
    ) -> io::Result<(Child, OwnedFd)> {
        let Order { has_input, has_output, words } = order.ok_or(Errno::INVAL)?;
        let errors = given.next().ok_or(Errno::BADF)?;
        let input = has_input.then(|| given.next().ok_or(Errno::BADF)).transpose()?;
        let output = has_output.then(|| given.next().ok_or(Errno::BADF)).transpose()?;
        if self.processes.len() >= PROCESSES_MAX {
            return Err(Errno::AGAIN.into());
        }
        let allowed = self.allowed.lock().unwrap_or_else(PoisonError::into_inner);
        let program = allowed.iter().find(|program| program.words == words).cloned();
        drop(allowed);
        let Allowed { words, environment } = program.ok_or(Errno::ACCESS)?;
        here(&words, environment.as_deref(), [input, output, Some(errors)], given.collect())
    }

    /// Does what is asked of a process, and tells its end; whether it lives.
    fn attend(&mut self, number: usize) -> bool {
        let Ward { child, leash, is_let_go, .. } = &mut self.processes[number];
        if has_ended(child) {
            // Before its number can be another's.
            let _ = kill_process_group(Pid::from_child(child), Signal::KILL);
            let status = child.wait().map_or(0, ExitStatusExt::into_raw);
            let _ = send(&*leash, &say(ENDED, status), SendFlags::NOSIGNAL | SendFlags::DONTWAIT);
            return false;
        }
        while !*is_let_go {
            let mut word = [0; 2];
            match recv(&*leash, &mut word[..], RecvFlags::DONTWAIT) {
                Ok((2, _)) => {
                    let number = u16::from_le_bytes(word);
                    let _ =
                        place(Pid::from_child(child), (number != ANYWHERE).then_some(number), &self.anywhere);
                }
                Err(Errno::AGAIN) => break,
                Err(Errno::INTR) => {}
                _ => {
                    *is_let_go = true;
                    let _ = kill_process_group(Pid::from_child(child), Signal::KILL);
                }
            }
        }
        true
    }

    fn end(self) {
        for mut ward in self.processes {
            let _ = kill_process_group(Pid::from_child(&ward.child), Signal::KILL);
            let _ = ward.child.wait();
        }
    }
}

/// Whether it has ended; it is not reaped yet.
fn has_ended(child: &Child) -> bool {
    use rustix::process::{WaitId, WaitIdOptions, waitid};
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    !matches!(waitid(WaitId::Pid(Pid::from_child(child)), options), Ok(None))
}

fn say(kind: u8, number: i32) -> [u8; SAID_BYTES] {
    let mut bytes = [kind; SAID_BYTES];
    bytes[1..].copy_from_slice(&number.to_le_bytes());
    bytes
}

#[cfg(test)]
mod tests {
    use super::super::launch::Started;
    use super::super::member::Start;
    use super::*;
    use proptest::prelude::*;
    use std::io::Read;
    use std::os::unix::ffi::OsStringExt;

    fn words(text: &str) -> Vec<OsString> {
        ["/bin/sh", "-c", text].map(OsString::from).into()
    }

    fn start(wardship: &Wardship, text: &str) -> io::Result<(Started, OwnedFd)> {
        let words = words(text);
        let start = Start { words: &words, environment: None, input: None, output: None, given: Vec::new() };
        Started::there(wardship.socket.as_fd(), start, Vec::new())
    }

    fn wait(started: &mut Started) -> std::process::ExitStatus {
        loop {
            let mut poller = Poller::new().unwrap();
            poller.want(started.end(), true, false);
            assert!(poller.wait(Some(std::time::Duration::from_secs(60))).unwrap(), "it does not end");
            if let Some(status) = started.reap() {
                return status;
            }
        }
    }

    #[test]
    fn what_is_allowed_is_started_and_its_end_is_told_and_nothing_else_is() {
        let wardship = Wardship::begin().unwrap();
        let program = "echo it >&2; exit 7";
        let refused = |program| start(&wardship, program).err().expect("it is not allowed").raw_os_error();
        assert_eq!(refused(program), Some(Errno::ACCESS.raw_os_error()));
        wardship.allow(vec![Allowed { words: words(program), environment: None }]);
        let (mut started, errors) = start(&wardship, program).unwrap();
        assert_eq!(wait(&mut started).code(), Some(7));
        let mut text = String::new();
        std::fs::File::from(errors).read_to_string(&mut text).unwrap();
        assert_eq!(text, "it\n");
        assert_eq!(refused("echo other"), Some(Errno::ACCESS.raw_os_error()));
    }

    #[test]
    fn what_is_let_go_is_killed_with_all_that_it_started() {
        let wardship = Wardship::begin().unwrap();
        // The second holds the pipe as well.
        let program = "sleep 600 & echo up >&2; sleep 600";
        wardship.allow(vec![Allowed { words: words(program), environment: None }]);
        let (mut started, errors) = start(&wardship, program).unwrap();
        started.run_on(Some(0), &CpuSet::new());
        started.run_on(None, &CpuSet::new());
        started.kill();
        assert_eq!(wait(&mut started).signal(), Some(9));
        let (second, mut errors) = (start(&wardship, program).unwrap(), std::fs::File::from(errors));
        errors.read_to_end(&mut Vec::new()).unwrap();
        // A worker that is killed.
        drop(second.0);
        std::fs::File::from(second.1).read_to_end(&mut Vec::new()).unwrap();
    }

    #[test]
    fn a_warden_ends_with_its_broker_s_part_whatever_a_worker_still_holds() {
        let wardship = Wardship::begin().unwrap();
        let program = "echo up >&2; sleep 600";
        wardship.allow(vec![Allowed { words: words(program), environment: None }]);
        let (_started, errors) = start(&wardship, program).unwrap();
        let workers = wardship.socket().unwrap();
        drop(wardship);
        std::fs::File::from(errors).read_to_end(&mut Vec::new()).unwrap();
        assert!(send(&workers, b"?", SendFlags::NOSIGNAL).is_err(), "it still listens");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn orders_cross_and_no_bytes_of_a_worker_harm_a_warden(
            words in prop::collection::vec(any::<Vec<u8>>(), 0..4),
            flags in any::<[bool; 2]>(),
            bytes in any::<Vec<u8>>(),
        ) {
            let [has_input, has_output] = flags;
            let words = words.into_iter().map(OsString::from_vec).collect();
            let order = Order { has_input, has_output, words };
            let emitted = order.emit();
            prop_assert_eq!(Order::parse(&emitted), Some(order));
            prop_assert!(emitted.len() == 1 || Order::parse(&emitted[..emitted.len() - 1]).is_none_or(|o| o.emit().len() < emitted.len()));
            let _ = Order::parse(&bytes);
        }
    }
}
