//! The applications' nodes on this host: each has one process at a time.
//!
//! A process claims the name of a node ([`NodeName`]) before it makes or opens the node, and keeps the [`Claim`] as long as
//! the node exists. All classes use this one mechanism; a class only returns its names ([`DeviceClass::nodes`]).
//!
//! A claim is a listening socket whose abstract name (`unix(7)`) is a hash of the node's identity. The kernel gives the name to
//! one process, and frees it when that process exits in any way, so a killed process leaves no claim. A thread of the
//! holder answers other processes, one line for a line:
//!
//! | request | answer | consequence |
//! |---|---|---|
//! | `ask` | `yields SERVICE` or `keeps SERVICE` | none |
//! | `take SERVICE` | `yields SERVICE` | the holder's service ends with an error ([`Claim::check`]), and then the connection |
//! | `take SERVICE` | `keeps SERVICE` | none: the holder cannot end this service alone |
//!
//! Any user can listen at any abstract name. A claim counts only if its holder is this user, root, or the owner of the file.
//!
//! [`DeviceClass::nodes`]: contract::DeviceClass::nodes

use contract::{Description, DeviceError, DeviceSpec, FlowDirection, Format, NodeName, Opened, Role};
use modules::registry;
use ring::digest::{SHA256, digest};
use rustix::net::sockopt::socket_peercred;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, UCred};
use rustix::process::{Uid, getpid, getuid};
use std::fs;
use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::thread::{Builder, JoinHandle, sleep};
use std::time::{Duration, Instant};
use sys::event::Event;

/// Most bytes of a request or an answer.
const LINE_BYTES_MAX: u64 = 4096;
/// Most processes that wait for the end of a service.
const TAKERS_MAX: usize = 16;
/// Time limit of a request and of an answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(1);
/// Time limit of a service to end after its node was taken over.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(10);
/// Interval between two attempts to claim a node whose holder starts or exits.
const RETRY_INTERVAL: Duration = Duration::from_millis(10);

/// The decision about a node that another process has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Conflict {
    /// The other process keeps it.
    #[default]
    Refuse,
    /// The service of the other process ends (`--replace`).
    Replace,
}

/// A service that uses a node.
#[derive(Debug, Clone)]
pub struct Claimant {
    /// The service in the words of the user: `attach laptop/plc`.
    pub service: String,
    /// The decision about a node that another process has.
    pub conflict: Conflict,
    /// The service checks its claims, and can end alone.
    pub yields: bool,
}

/// Opens the node of `spec`, and claims it first. The claim must outlive the node.
pub fn open(
    spec: &DeviceSpec,
    like: Option<&Description>,
    claimant: &Claimant,
) -> Result<(Opened, Option<Claim>), DeviceError> {
    let (spec, claim) = claim_node(spec, claimant)?;
    Ok((registry::open(&spec, Role::Application, like)?, claim))
}

/// The reason why a node does not suit a device.
pub enum Misfit {
    /// The node copies devices of this class only.
    Class(&'static str),
    /// The node takes the first format, and the device sends the second.
    Format(Format, Format),
}

/// Returns the reason why a node of the class `application` does not suit the device, if there is one.
pub fn misfit(application: &str, device: &Description) -> Option<Misfit> {
    let node = registry::device_class(application)?;
    if let Some(copied) = node.copies().filter(|copied| *copied != device.class) {
        return Some(Misfit::Class(copied));
    }
    let out = device.flows.iter().find(|flow| flow.direction == FlowDirection::DeviceToApplication)?;
    node.takes().filter(|taken| *taken != out.format).map(|taken| Misfit::Format(taken, out.format.clone()))
}

/// Returns the class of node that suits the device.
pub fn suitable(device: &Description) -> &'static str {
    registry::device_class(&device.class).map_or("stdout", |class| class.application())
}

/// Claims the node of `spec`. Returns the spec with the claimed name.
pub fn claim_node(
    spec: &DeviceSpec,
    claimant: &Claimant,
) -> Result<(DeviceSpec, Option<Claim>), DeviceError> {
    let names = registry::device_class(&spec.class).map(|class| class.nodes(spec)).unwrap_or_default();
    let mut spec = spec.clone();
    let claim = match claim(names, claimant)? {
        Some((name, claim)) => {
            if let Some(path) = name.path().and_then(Path::to_str) {
                spec.target = path.into();
            }
            claim
        }
        None => None,
    };
    Ok((spec, claim))
}

/// Claims a node that the previous program has left open.
pub fn claim_again(opened: &Opened, service: String) -> Result<Option<Claim>, DeviceError> {
    let names = match (opened.role, registry::device_class(&opened.spec.class)) {
        (Role::Application, Some(class)) => class.nodes(&opened.spec),
        _ => Vec::new(),
    };
    let claimant = Claimant { service, conflict: Conflict::Refuse, yields: true };
    Ok(claim(names, &claimant)?.and_then(|(_, claim)| claim))
}

/// A process that has a claim.
struct Holder {
    stream: UnixStream,
    credentials: UCred,
}

/// The answer of a holder.
enum Answer {
    /// The service can end alone.
    Yields(String),
    Keeps(String),
}

/// The claim to a node. Dropping it frees the name.
#[derive(Debug)]
pub struct Claim {
    node: String,
    held: Arc<Held>,
    /// The socket, and the thread that answers; `None` after the end.
    server: Option<(Arc<UnixListener>, JoinHandle<Vec<UnixStream>>)>,
}

/// The part of a claim that its thread uses.
#[derive(Debug)]
struct Held {
    service: String,
    yields: bool,
    /// The process that takes the node over.
    taker: OnceLock<String>,
    wake: Event,
}

/// Claims the first free one of `names`. If there is none, takes over the first one, or returns the error of the last one.
/// A name may need no claim.
fn claim(
    names: Vec<NodeName>,
    claimant: &Claimant,
) -> Result<Option<(NodeName, Option<Claim>)>, DeviceError> {
    let mut result = Ok(None);
    for name in &names {
        match Claim::new(name, claimant, Conflict::Refuse) {
            Ok(claim) => return Ok(Some((name.clone(), claim))),
            Err(error) => result = Err(error),
        }
    }
    match names.into_iter().next().filter(|_| claimant.conflict == Conflict::Replace) {
        Some(name) => Claim::new(&name, claimant, Conflict::Replace).map(|claim| Some((name, claim))),
        None => result,
    }
}

impl Claim {
    /// Claims a name; `None` if other processes cannot be kept away.
    fn new(
        name: &NodeName,
        claimant: &Claimant,
        mut conflict: Conflict,
    ) -> Result<Option<Claim>, DeviceError> {
        // Opening a file without a directory fails, with a better error.
        let Some(identity) = identity(name) else { return Ok(None) };
        let digest = digest(&SHA256, &identity);
        let hash: String = digest.as_ref()[..16].iter().map(|byte| format!("{byte:02x}")).collect();
        let address = format!("outboard-node-{hash}");
        let failed =
            |error: io::Error| DeviceError::Os { operation: format!("claiming {name}"), error, advice: None };
        let mut until = Instant::now() + ANSWER_TIMEOUT;
        loop {
            if !matches!(name, NodeName::Appended(_)) {
                let bound = SocketAddr::from_abstract_name(&address)
                    .and_then(|address| UnixListener::bind_addr(&address));
                match bound {
                    Ok(listener) => return Claim::serve(name, listener, claimant).map(Some).map_err(failed),
                    Err(error) if error.kind() == ErrorKind::AddrInUse => {}
                    Err(error) => return Err(failed(error)),
                }
            }
            let holder = match Holder::connect(&address) {
                Ok(holder) => holder,
                Err(error) if error.kind() == ErrorKind::ConnectionRefused => match name {
                    NodeName::Appended(_) => return Ok(None),
                    // The holder exits, or does not listen yet.
                    _ if Instant::now() < until => {
                        sleep(RETRY_INTERVAL);
                        continue;
                    }
                    _ => return Err(failed(error)),
                },
                Err(error) => return Err(failed(error)),
            };
            if !holder.counts(name) {
                return Ok(None);
            }
            let in_use = |holder, advice| DeviceError::InUse { node: name.to_string(), holder, advice };
            if !holder.answers_us() {
                let process = format!("process {} of another user", holder.process());
                return Err(in_use(process, "end that process, or choose another one"));
            }
            if holder.process() == getpid().as_raw_nonzero().get() {
                conflict = Conflict::Refuse;
            }
            match holder.request(conflict, &claimant.service) {
                Ok(Answer::Yields(_)) if conflict == Conflict::Replace => {
                    holder.await_end();
                    // A process that claims the node now has replaced the same service.
                    (conflict, until) = (Conflict::Refuse, Instant::now() + ANSWER_TIMEOUT);
                }
                Ok(Answer::Yields(service)) => {
                    let advice =
                        "end that process, choose another one, or let `attach` take it over with --replace";
                    return Err(in_use(holder.named(&service), advice));
                }
                Ok(Answer::Keeps(service)) => {
                    return Err(in_use(holder.named(&service), "end that process, or choose another one"));
                }
                Err(error) if is_end(&error) && Instant::now() < until => sleep(RETRY_INTERVAL),
                Err(_) => {
                    let process = format!("process {}, which does not answer", holder.process());
                    return Err(in_use(process, "end that process, or choose another one"));
                }
            }
        }
    }

    /// Starts to answer other processes.
    fn serve(name: &NodeName, listener: UnixListener, claimant: &Claimant) -> io::Result<Claim> {
        let held = Arc::new(Held {
            service: claimant.service.replace('\n', " "),
            yields: claimant.yields,
            taker: OnceLock::new(),
            wake: Event::new()?,
        });
        let listener = Arc::new(listener);
        let (listens, shared) = (listener.clone(), held.clone());
        let thread = Builder::new().name("node".into()).spawn(move || shared.answer(&listens))?;
        Ok(Claim { node: name.to_string(), held, server: Some((listener, thread)) })
    }

    /// Readable once another process takes the node over.
    pub fn wakes(&self) -> BorrowedFd<'_> {
        self.held.wake.as_fd()
    }

    /// Returns an error once another process takes the node over. The service must then end.
    pub fn check(&self) -> Result<(), DeviceError> {
        match self.held.taker.get() {
            Some(taker) => Err(DeviceError::TakenOver { node: self.node.clone(), taker: taker.clone() }),
            None => Ok(()),
        }
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        let Some((listener, thread)) = self.server.take() else { return };
        // Ends the thread: `accept` fails with EINVAL.
        let _ = rustix::net::shutdown(&listener, rustix::net::Shutdown::Both);
        let takers = thread.join();
        // The takers continue at the end of their connections; the name is free then.
        drop(listener);
        drop(takers);
    }
}

impl Held {
    /// Answers other processes until the claim is dropped. Returns the connections of the takers.
    fn answer(&self, listener: &UnixListener) -> Vec<UnixStream> {
        let mut takers = Vec::new();
        loop {
            match listener.accept() {
                Ok((stream, _)) => {
                    if let Ok(true) = self.answer_one(&stream)
                        && takers.len() < TAKERS_MAX
                    {
                        takers.push(stream);
                    }
                }
                Err(error) if error.kind() == ErrorKind::InvalidInput => return takers,
                // Descriptors may have run out for a while.
                Err(_) => sleep(RETRY_INTERVAL),
            }
        }
    }

    /// Answers one request. Returns whether it takes the node over.
    fn answer_one(&self, mut stream: &UnixStream) -> io::Result<bool> {
        let client = socket_peercred(stream)?;
        if client.uid != getuid() && !client.uid.is_root() {
            return Ok(false);
        }
        stream.set_read_timeout(Some(ANSWER_TIMEOUT))?;
        stream.set_write_timeout(Some(ANSWER_TIMEOUT))?;
        let request = read_line(stream)?;
        let word = if self.yields { "yields" } else { "keeps" };
        writeln!(stream, "{word} {}", self.service)?;
        let taker = request.strip_prefix("take ").filter(|_| self.yields);
        if let Some(service) = taker {
            let _ = self.taker.set(named(client, service));
            self.wake.signal();
        }
        Ok(taker.is_some())
    }
}

impl Holder {
    fn connect(address: &str) -> io::Result<Holder> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        rustix::net::connect(&socket, &SocketAddrUnix::new_abstract_name(address.as_bytes())?)?;
        let stream = UnixStream::from(socket);
        stream.set_nonblocking(false)?;
        stream.set_write_timeout(Some(ANSWER_TIMEOUT))?;
        let credentials = socket_peercred(&stream)?;
        Ok(Holder { stream, credentials })
    }

    fn process(&self) -> i32 {
        self.credentials.pid.as_raw_nonzero().get()
    }

    fn named(&self, service: &str) -> String {
        named(self.credentials, service)
    }

    /// Returns whether this user may have given the claim: any user can listen at its address.
    fn counts(&self, name: &NodeName) -> bool {
        let uid = self.credentials.uid;
        let owner = name.path().and_then(|path| fs::symlink_metadata(path).ok()).map(|found| found.uid());
        uid == getuid() || uid.is_root() || owner.map(Uid::from_raw) == Some(uid)
    }

    /// Returns whether the holder answers requests of this user.
    fn answers_us(&self) -> bool {
        getuid() == self.credentials.uid || getuid().is_root()
    }

    fn request(&self, conflict: Conflict, service: &str) -> io::Result<Answer> {
        self.stream.set_read_timeout(Some(ANSWER_TIMEOUT))?;
        let mut stream = &self.stream;
        match conflict {
            Conflict::Refuse => writeln!(stream, "ask")?,
            Conflict::Replace => writeln!(stream, "take {}", service.replace('\n', " "))?,
        }
        let line = read_line(stream)?;
        match (line.strip_prefix("yields "), line.strip_prefix("keeps ")) {
            (Some(service), _) => Ok(Answer::Yields(service.into())),
            (_, Some(service)) => Ok(Answer::Keeps(service.into())),
            _ => Err(ErrorKind::InvalidData.into()),
        }
    }

    /// Waits until the holder has ended, or for the time limit.
    fn await_end(&self) {
        let _ = self.stream.set_read_timeout(Some(RELEASE_TIMEOUT));
        let _ = (&self.stream).read(&mut [0]);
    }
}

fn named(process: UCred, service: &str) -> String {
    format!("process {} ({service})", process.pid.as_raw_nonzero())
}

fn read_line(stream: &UnixStream) -> io::Result<String> {
    let mut line = String::new();
    BufReader::new(stream.take(LINE_BYTES_MAX)).read_line(&mut line)?;
    let line = line.strip_suffix('\n').ok_or(ErrorKind::UnexpectedEof)?;
    Ok(line.into())
}

/// Returns whether the other end of a connection has closed it.
fn is_end(error: &io::Error) -> bool {
    use ErrorKind::{BrokenPipe, ConnectionReset, UnexpectedEof};
    matches!(error.kind(), BrokenPipe | ConnectionReset | UnexpectedEof)
}

/// Returns bytes that are equal for all names of one node: of a device its number, of another file its directory and name. `None`
/// for a file without a directory.
///
/// Two mount namespaces may have different directories of one name, and a new directory may get the number of a removed one.
/// So the identity of a directory is its number and its name.
fn identity(name: &NodeName) -> Option<Vec<u8>> {
    let in_directory = |path: &Path| {
        let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
        let parent = fs::canonicalize(parent.unwrap_or(Path::new("."))).ok()?;
        let directory = fs::metadata(&parent).ok()?;
        let number = format!("file {} {} ", directory.dev(), directory.ino());
        Some([number.as_bytes(), parent.join(path.file_name()?).as_os_str().as_bytes()].concat())
    };
    match name {
        NodeName::Link(path) => in_directory(path),
        NodeName::File(path) | NodeName::Appended(path) => match fs::metadata(path) {
            Ok(found) if found.file_type().is_char_device() || found.file_type().is_block_device() => {
                Some(format!("device {:?} {}", found.file_type(), found.rdev()).into_bytes())
            }
            _ => in_directory(&fs::canonicalize(path).unwrap_or(path.clone())),
        },
        NodeName::Listener(address) => Some(format!("port {address}").into_bytes()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;
    use std::sync::Barrier;

    struct Scratch(PathBuf);

    impl Scratch {
        fn new(name: &str) -> Scratch {
            let path = std::env::temp_dir().join(format!("outboard-nodes-{}-{name}", std::process::id()));
            fs::create_dir_all(&path).unwrap();
            Scratch(path)
        }

        fn path(&self, name: &str) -> PathBuf {
            self.0.join(name)
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn claimant(conflict: Conflict) -> Claimant {
        Claimant { service: "attach laptop/plc".into(), conflict, yields: true }
    }

    fn replace(name: NodeName) -> Result<Option<Claim>, DeviceError> {
        Claim::new(&name, &claimant(Conflict::Replace), Conflict::Replace)
    }

    fn try_claim(name: NodeName) -> Result<Option<Claim>, String> {
        let claim = Claim::new(&name, &claimant(Conflict::Refuse), Conflict::Refuse);
        claim.map_err(|error| error.to_string())
    }

    #[test]
    fn a_second_claim_is_refused_with_the_holder_until_the_first_ends() {
        let scratch = Scratch::new("second");
        let name = || NodeName::Link(scratch.path("tty0"));
        let first = try_claim(name()).unwrap().unwrap();
        let refused = try_claim(name()).unwrap_err();
        for part in [&scratch.path("tty0").display().to_string(), "attach laptop/plc", "--replace"] {
            assert!(refused.contains(part), "{refused}");
        }
        assert!(refused.contains(&format!("process {}", std::process::id())), "{refused}");
        // A process does not replace its own service.
        assert!(replace(name()).is_err() && first.check().is_ok());
        drop(first);
        assert!(try_claim(name()).unwrap().is_some());
    }

    #[test]
    fn of_many_claims_at_once_one_wins() {
        let scratch = Scratch::new("race");
        for round in 0..50 {
            let barrier = Barrier::new(8);
            let claims: Vec<_> = std::thread::scope(|scope| {
                let claim = || {
                    barrier.wait();
                    try_claim(NodeName::File(scratch.path("out")))
                };
                let threads: Vec<_> = (0..8).map(|_| scope.spawn(claim)).collect();
                threads.into_iter().map(|thread| thread.join().unwrap()).collect()
            });
            let won = claims.iter().filter(|claim| claim.is_ok()).count();
            assert_eq!(won, 1, "round {round}: {claims:?}");
        }
    }

    #[test]
    fn all_names_of_a_node_are_one_node() {
        let scratch = Scratch::new("names");
        fs::create_dir(scratch.path("directory")).unwrap();
        std::os::unix::fs::symlink(scratch.path("directory"), scratch.path("alias")).unwrap();
        fs::write(scratch.path("directory/film"), "").unwrap();
        std::os::unix::fs::symlink(scratch.path("directory/film"), scratch.path("link")).unwrap();
        let first = try_claim(NodeName::File(scratch.path("directory/film"))).unwrap();
        for same in ["alias/film", "link", "directory/../directory/film"] {
            assert!(try_claim(NodeName::File(scratch.path(same))).is_err(), "{same}");
        }
        assert!(try_claim(NodeName::Appended(scratch.path("link"))).is_err(), "it would be overwritten");
        // The link is another name than its target.
        for other in [NodeName::Link(scratch.path("link")), NodeName::File(scratch.path("directory/other"))] {
            assert!(try_claim(other).unwrap().is_some());
        }
        drop(first);
        let appended = || try_claim(NodeName::Appended(scratch.path("link"))).unwrap();
        assert!(appended().is_none() && appended().is_none(), "several may append");
        let missing = try_claim(NodeName::File(scratch.path("missing/film"))).unwrap();
        assert!(missing.is_none(), "opening it fails");
    }

    #[test]
    fn the_first_free_name_is_claimed() {
        let scratch = Scratch::new("free");
        let names = || ["a", "b"].map(|name| NodeName::File(scratch.path(name))).to_vec();
        let mut claims = Vec::new();
        for expected in ["a", "b"] {
            let (name, claim) = claim(names(), &claimant(Conflict::Refuse)).unwrap().unwrap();
            assert_eq!(name, NodeName::File(scratch.path(expected)));
            claims.push(claim.unwrap());
        }
        // A free name is better than one of another process.
        claims.pop();
        let (name, _claim) = claim(names(), &claimant(Conflict::Replace)).unwrap().unwrap();
        assert_eq!(name, NodeName::File(scratch.path("b")));
        assert!(claim(names(), &claimant(Conflict::Refuse)).is_err());
        assert!(claim(Vec::new(), &claimant(Conflict::Refuse)).unwrap().is_none());
    }

    /// A process of this user that sends rubbish, or nothing, stops no one else.
    #[test]
    fn rubbish_is_not_answered() {
        let scratch = Scratch::new("rubbish");
        let name = NodeName::Link(scratch.path("tty0"));
        let first = try_claim(name.clone()).unwrap().unwrap();
        let digest = digest(&SHA256, &identity(&name).unwrap());
        let hash: String = digest.as_ref()[..16].iter().map(|byte| format!("{byte:02x}")).collect();
        for rubbish in [&b""[..], b"\n", b"take", b"\xff\xfe\n", &[b'a'; 10_000]] {
            let holder = Holder::connect(&format!("outboard-node-{hash}")).unwrap();
            // The holder may close the connection before it has read everything.
            let _ = (&holder.stream).write_all(rubbish);
        }
        assert!(try_claim(name).unwrap_err().contains("attach laptop/plc"));
        assert!(first.check().is_ok());
    }
}
