//! The broker's side of [`super::launch`]: starts, waits for and kills the processes of a locked worker, and passes
//! descriptors for it.

use super::launch::{ENDED, REFUSED, REPLY_BYTES, STARTED, SpawnRequest, receive, spawn};
use rustix::io::Errno;
use rustix::net::sockopt::socket_domain;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, Shutdown, SocketFlags, SocketType, recv, send, shutdown, socketpair,
};
use rustix::process::{Pid, Signal, kill_process_group};
use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::ExitStatusExt;
use std::process::Child;
use std::sync::{Arc, Mutex, PoisonError};
use sys::poller::Poller;

/// Most allowed programs; the oldest ones are removed.
const ALLOWED_MAX: usize = 4096;
/// Most processes at once.
const PROCESSES_MAX: usize = 256;

/// A command with its environment (`None`: that of the broker).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AllowedProgram {
    /// Program and arguments.
    pub words: Vec<OsString>,
    /// Environment.
    pub environment: Option<Vec<(OsString, OsString)>>,
}

/// The broker's handle to a spawner thread. Dropping it ends the thread and kills its processes.
#[derive(Debug)]
pub struct Spawner {
    allowed: Arc<Mutex<Vec<AllowedProgram>>>,
    socket: OwnedFd,
}

impl Spawner {
    /// Starts a spawner thread that has no allowed programs yet.
    pub fn begin() -> io::Result<Spawner> {
        let (ours, socket) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        let allowed = Arc::<Mutex<Vec<AllowedProgram>>>::default();
        let (allowed_too, poller) = (allowed.clone(), Poller::new()?);
        let spawner = SpawnerThread { socket: ours, allowed: allowed_too, processes: Vec::new(), poller };
        std::thread::Builder::new().name("spawner".into()).spawn(move || spawner.run())?;
        Ok(Spawner { allowed, socket })
    }

    /// Allows these programs from now on.
    pub fn allow(&self, programs: Vec<AllowedProgram>) {
        let mut allowed = self.allowed.lock().unwrap_or_else(PoisonError::into_inner);
        for program in programs {
            allowed.retain(|known| *known != program);
            allowed.push(program);
        }
        let more = allowed.len().saturating_sub(ALLOWED_MAX);
        allowed.drain(..more);
    }

    /// Socket for the worker, an argument of [`use_spawner`](super::use_spawner).
    pub fn socket(&self) -> io::Result<OwnedFd> {
        self.socket.try_clone()
    }
}

impl Drop for Spawner {
    /// Also closes the worker's copy of the socket.
    fn drop(&mut self) {
        let _ = shutdown(&self.socket, Shutdown::Both);
    }
}

/// A process that a worker requested.
struct Spawned {
    child: Child,
    pidfd: OwnedFd,
    handle: OwnedFd,
    /// The worker has closed the handle, and the process was killed.
    is_released: bool,
}

pub(super) struct SpawnerThread {
    socket: OwnedFd,
    allowed: Arc<Mutex<Vec<AllowedProgram>>>,
    processes: Vec<Spawned>,
    poller: Poller,
}

impl SpawnerThread {
    /// Runs until the socket is closed. The processes are killed when this thread ends
    /// ([`sys::process::start_with`]).
    fn run(mut self) {
        // Like the threads whose messages these processes handle.
        sys::thread::be_prompt();
        loop {
            loop {
                match receive(&self.socket) {
                    Ok(Some((request, descriptors))) => self.on_request(request, descriptors),
                    Ok(None) => break,
                    Err(_) => return self.end(),
                }
            }
            let mut number = 0;
            while number < self.processes.len() {
                match self.serve(number) {
                    true => number += 1,
                    false => {
                        let spawned = self.processes.swap_remove(number);
                        self.poller.forget(spawned.pidfd.as_fd());
                        self.poller.forget(spawned.handle.as_fd());
                    }
                }
            }
            self.poller.register(self.socket.as_fd(), true, false);
            for spawned in &self.processes {
                self.poller.register(spawned.pidfd.as_fd(), true, false);
                if !spawned.is_released {
                    self.poller.register(spawned.handle.as_fd(), true, false);
                }
            }
            if self.poller.wait(None).is_err() {
                return self.end();
            }
        }
    }

    /// Starts a process if its program is allowed, or passes descriptors.
    fn on_request(&mut self, request: Option<SpawnRequest>, descriptors: Vec<OwnedFd>) {
        let mut descriptors = descriptors.into_iter();
        // Without a handle there is no way to reply.
        let Some(handle) = descriptors.next() else { return };
        let done = match request {
            None => Err(Errno::INVAL.into()),
            Some(SpawnRequest::Pass(bytes)) => {
                pass(&bytes, descriptors).map(|sent| (i32::try_from(sent).unwrap_or(i32::MAX), None))
            }
            Some(SpawnRequest::Start { has_input, has_output, words }) => self
                .start([has_input, has_output], &words, descriptors)
                .map(|started| (started.0.id().cast_signed(), Some(started))),
        };
        let (answer, started) = match done {
            Ok((number, started)) => (reply(STARTED, number), started),
            Err(error) => (reply(REFUSED, error.raw_os_error().unwrap_or(Errno::PERM.raw_os_error())), None),
        };
        // If the worker has closed its end, the next `serve` finds that.
        let _ = send(&handle, &answer, SendFlags::NOSIGNAL | SendFlags::DONTWAIT);
        let spawned = started.map(|(child, pidfd)| Spawned { child, pidfd, handle, is_released: false });
        self.processes.extend(spawned);
    }

    fn start(
        &self,
        [has_input, has_output]: [bool; 2],
        words: &[OsString],
        mut descriptors: impl Iterator<Item = OwnedFd>,
    ) -> io::Result<(Child, OwnedFd)> {
        let errors = descriptors.next().ok_or(Errno::BADF)?;
        let input = has_input.then(|| descriptors.next().ok_or(Errno::BADF)).transpose()?;
        let output = has_output.then(|| descriptors.next().ok_or(Errno::BADF)).transpose()?;
        if self.processes.len() >= PROCESSES_MAX {
            return Err(Errno::AGAIN.into());
        }
        let allowed = self.allowed.lock().unwrap_or_else(PoisonError::into_inner);
        let program = allowed.iter().find(|program| program.words == words).cloned();
        drop(allowed);
        let AllowedProgram { words, environment } = program.ok_or(Errno::ACCESS)?;
        spawn(&words, environment.as_deref(), [input, output, Some(errors)], descriptors.collect())
    }

    /// Handles the messages on a handle, and reports the end of the process. Returns false after the end.
    fn serve(&mut self, number: usize) -> bool {
        let Spawned { child, handle, is_released, .. } = &mut self.processes[number];
        if has_ended(child) {
            // Kill the children first: once the process is reaped, its id may be reused.
            let _ = kill_process_group(Pid::from_child(child), Signal::KILL);
            let status = child.wait().map_or(0, ExitStatusExt::into_raw);
            let _ = send(&*handle, &reply(ENDED, status), SendFlags::NOSIGNAL | SendFlags::DONTWAIT);
            return false;
        }
        while !*is_released {
            match recv(&*handle, &mut [0; 1][..], RecvFlags::DONTWAIT) {
                Err(Errno::AGAIN) => break,
                Err(Errno::INTR) => {}
                _ => {
                    *is_released = true;
                    let _ = kill_process_group(Pid::from_child(child), Signal::KILL);
                }
            }
        }
        true
    }

    fn end(self) {
        for mut spawned in self.processes {
            let _ = kill_process_group(Pid::from_child(&spawned.child), Signal::KILL);
            let _ = spawned.child.wait();
        }
    }
}

/// Sends bytes over the first descriptor, with the others. Only a Unix socket takes descriptors (`unix(7)`), and the message
/// has no address: the worker reaches nothing that it could not reach itself.
fn pass(bytes: &[u8], mut descriptors: impl Iterator<Item = OwnedFd>) -> io::Result<usize> {
    let socket = descriptors.next().ok_or(Errno::BADF)?;
    if socket_domain(&socket)? != AddressFamily::UNIX {
        return Err(Errno::AFNOSUPPORT.into());
    }
    sys::descriptor::send_with(&socket, bytes, &descriptors.collect::<Vec<_>>())
}

/// Returns true if the process has ended. Does not reap it.
fn has_ended(child: &Child) -> bool {
    use rustix::process::{WaitId, WaitIdOptions, waitid};
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    !matches!(waitid(WaitId::Pid(Pid::from_child(child)), options), Ok(None))
}

fn reply(kind: u8, number: i32) -> [u8; REPLY_BYTES] {
    let mut bytes = [kind; REPLY_BYTES];
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

    fn start(spawner: &Spawner, text: &str) -> io::Result<(Started, OwnedFd)> {
        let words = words(text);
        let start =
            Start { words: &words, environment: None, input: None, output: None, descriptors: Vec::new() };
        Started::request(spawner.socket.as_fd(), start, Vec::new())
    }

    fn wait(started: &mut Started) -> std::process::ExitStatus {
        loop {
            let mut poller = Poller::new().unwrap();
            poller.register(started.end(), true, false);
            assert!(
                poller.wait(Some(std::time::Duration::from_secs(60))).unwrap(),
                "the process does not end"
            );
            if let Some(status) = started.reap() {
                return status;
            }
        }
    }

    #[test]
    fn only_allowed_programs_start_and_their_end_is_reported() {
        let spawner = Spawner::begin().unwrap();
        let program = "echo it >&2; exit 7";
        let refused =
            |program| start(&spawner, program).err().expect("the program is not allowed").raw_os_error();
        assert_eq!(refused(program), Some(Errno::ACCESS.raw_os_error()));
        spawner.allow(vec![AllowedProgram { words: words(program), environment: None }]);
        let (mut started, errors) = start(&spawner, program).unwrap();
        assert_eq!(wait(&mut started).code(), Some(7));
        let mut text = String::new();
        std::fs::File::from(errors).read_to_string(&mut text).unwrap();
        assert_eq!(text, "it\n");
        assert_eq!(refused("echo other"), Some(Errno::ACCESS.raw_os_error()));
    }

    #[test]
    fn a_released_process_is_killed_with_its_children() {
        let spawner = Spawner::begin().unwrap();
        // The second process holds the pipe, too.
        let program = "sleep 600 & echo up >&2; sleep 600";
        spawner.allow(vec![AllowedProgram { words: words(program), environment: None }]);
        let (mut started, errors) = start(&spawner, program).unwrap();
        started.kill();
        assert_eq!(wait(&mut started).signal(), Some(9));
        let (second, mut errors) = (start(&spawner, program).unwrap(), std::fs::File::from(errors));
        errors.read_to_end(&mut Vec::new()).unwrap();
        // As if the worker was killed.
        drop(second.0);
        std::fs::File::from(second.1).read_to_end(&mut Vec::new()).unwrap();
    }

    #[test]
    fn a_spawner_ends_with_its_handle_even_if_a_worker_holds_the_socket() {
        let spawner = Spawner::begin().unwrap();
        let program = "echo up >&2; sleep 600";
        spawner.allow(vec![AllowedProgram { words: words(program), environment: None }]);
        let (_started, errors) = start(&spawner, program).unwrap();
        let workers = spawner.socket().unwrap();
        drop(spawner);
        std::fs::File::from(errors).read_to_end(&mut Vec::new()).unwrap();
        assert!(send(&workers, b"?", SendFlags::NOSIGNAL).is_err(), "the socket is still open");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn requests_are_parsed_as_emitted_and_other_bytes_are_rejected(
            words in prop::collection::vec(any::<Vec<u8>>(), 0..4),
            flags in any::<[bool; 2]>(),
            bytes in any::<Vec<u8>>(),
        ) {
            let [has_input, has_output] = flags;
            let words = words.into_iter().map(OsString::from_vec).collect();
            let request = SpawnRequest::Start { has_input, has_output, words };
            let emitted = request.emit();
            prop_assert_eq!(SpawnRequest::parse(&emitted), Some(request));
            prop_assert!(emitted.len() == 1 || SpawnRequest::parse(&emitted[..emitted.len() - 1]).is_none_or(|o| o.emit().len() < emitted.len()));
            let _ = SpawnRequest::parse(&bytes);
        }
    }
}
