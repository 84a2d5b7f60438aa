//! Metrics for Prometheus, over a minimal HTTP/1.1 server: `GET /metrics` and `GET /health`.
//!
//! One thread answers one request after the other. A request has at most [`REQUEST_BYTES_MAX`] bytes and must arrive
//! within [`PATIENCE`]. The metrics come from the consoles of this process ([`console`]) and contain names
//! of devices and peers, but no keys, pairing codes or payload. There is no authentication, so the default address
//! is loopback.

mod exposition;

use console::{self, Answer, Operation, Status, ask, own_consoles};
use contract::ServiceError;
use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use sys::event::Event;
use sys::poller::Poller;

/// Most bytes of a request.
const REQUEST_BYTES_MAX: usize = 8 << 10;
/// Timeout of a request, and of its answer.
const PATIENCE: Duration = Duration::from_secs(1);

/// Parses `[ADDRESS:]PORT`; without an address, loopback.
pub fn address(text: &str) -> Result<SocketAddr, ServiceError> {
    let port = || text.parse().ok().map(|port| SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port));
    text.parse().ok().or_else(port).ok_or_else(|| {
        ServiceError::Usage(format!("metrics: `{text}` is not [ADDRESS:]PORT, such as 9845 or [::1]:9845"))
    })
}

/// A metrics server; it stops on drop.
pub struct Endpoint {
    asked: SocketAddr,
    address: SocketAddr,
    end: Event,
    thread: Option<JoinHandle<()>>,
}

impl Endpoint {
    /// Starts a server.
    pub fn start(at: SocketAddr) -> Result<Endpoint, ServiceError> {
        let failed = |error| ServiceError::os(format!("serving metrics on {at}"), error);
        let bound = TcpListener::bind(at).map_err(|error| sys::port_user::explain(at, error));
        let listener = bound.map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        listener.set_nonblocking(true).map_err(failed)?;
        let end = Event::new().map_err(failed)?;
        let poller = Poller::new().map_err(failed)?;
        let until = end.clone();
        let serve = move || serve(&listener, poller, &until);
        let thread = std::thread::Builder::new().name("metrics".into()).spawn(serve).map_err(failed)?;
        Ok(Endpoint { asked: at, address, end, thread: Some(thread) })
    }

    /// Returns the address that was requested.
    pub fn asked(&self) -> SocketAddr {
        self.asked
    }

    /// Returns the address that it listens on.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        self.end.signal();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn serve(listener: &TcpListener, mut poller: Poller, end: &Event) {
    loop {
        poller.register(listener.as_fd(), true, false);
        poller.register(end.as_fd(), true, false);
        // Waiting fails only if memory has run out; pause and try again.
        if poller.wait(None).is_err() {
            std::thread::sleep(Duration::from_millis(10));
        }
        if poller.is_ready(end.as_fd()) {
            return;
        }
        // One client a turn: `end` is checked before the next one.
        if let Ok((stream, _)) = listener.accept() {
            // An error affects this client only.
            let _ = attend(&stream, &mut poller, end);
            poller.forget(stream.as_fd());
        }
    }
}

fn attend(stream: &TcpStream, poller: &mut Poller, end: &Event) -> io::Result<()> {
    stream.set_nonblocking(true)?;
    let mut client = Client { stream, poller, end, until: Instant::now() + PATIENCE };
    let answer = match client.read_head()? {
        Some(head) => answer(&head),
        None => response("431 Request Header Fields Too Large", "the request is too long\n"),
    };
    client.until = Instant::now() + PATIENCE;
    client.write(answer.as_bytes())
}

/// A client. Each step fails after `until`, and once the server ends.
struct Client<'a> {
    stream: &'a TcpStream,
    poller: &'a mut Poller,
    end: &'a Event,
    until: Instant,
}

impl Client<'_> {
    /// Repeats `step` until it does not block.
    fn step(
        &mut self,
        is_write: bool,
        step: &mut dyn FnMut(&TcpStream) -> io::Result<usize>,
    ) -> io::Result<usize> {
        loop {
            match step(self.stream) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                done => return done,
            }
            let left = self.until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(io::ErrorKind::TimedOut.into());
            }
            self.poller.register(self.stream.as_fd(), !is_write, is_write);
            self.poller.register(self.end.as_fd(), true, false);
            self.poller.wait(Some(left))?;
            if self.poller.is_ready(self.end.as_fd()) {
                return Err(io::Error::other("the server ends"));
            }
        }
    }

    /// Reads the head of a request; returns `None` if it is too long.
    fn read_head(&mut self) -> io::Result<Option<String>> {
        let mut head = Vec::new();
        let mut bytes = [0; 1024];
        loop {
            match self.step(false, &mut |mut stream| stream.read(&mut bytes))? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                count => head.extend_from_slice(&bytes[..count]),
            }
            if head.windows(4).any(|end| end == b"\r\n\r\n") {
                return Ok(Some(String::from_utf8_lossy(&head).into_owned()));
            }
            if head.len() > REQUEST_BYTES_MAX {
                return Ok(None);
            }
        }
    }

    fn write(&mut self, mut left: &[u8]) -> io::Result<()> {
        while !left.is_empty() {
            match self.step(true, &mut |mut stream| stream.write(left))? {
                0 => return Err(io::ErrorKind::WriteZero.into()),
                count => left = &left[count..],
            }
        }
        Ok(())
    }
}

fn answer(head: &str) -> String {
    let mut words = head.lines().next().unwrap_or_default().split(' ');
    let (method, target, version) = (words.next(), words.next().unwrap_or_default(), words.next());
    if !version.is_some_and(|version| version.starts_with("HTTP/1.")) {
        return response("400 Bad Request", "this is not an HTTP/1.1 request\n");
    }
    if method != Some("GET") {
        return response("405 Method Not Allowed", "only GET is supported\n");
    }
    match target.split('?').next().unwrap_or_default() {
        "/metrics" => response("200 OK", &exposition::emit(&survey(own_consoles(), &mut stats).0)),
        "/health" => match health(own_consoles(), &mut stats) {
            problems if problems.is_empty() => response("200 OK", "ok\n"),
            problems => response("503 Service Unavailable", &format!("{}\n", problems.join("\n"))),
        },
        _ => response("404 Not Found", "the paths are /metrics and /health\n"),
    }
}

fn response(status: &str, body: &str) -> String {
    let length = body.len();
    format!(
        "HTTP/1.1 {status}\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\nContent-Length: \
         {length}\r\nConnection: close\r\n\r\n{body}"
    )
}

fn stats(console: &Path) -> io::Result<Answer> {
    ask(console, &Operation::Stats {})
}

/// Asks the consoles of this process. Returns their statuses, and a problem for each one that does not answer in time.
fn survey(
    consoles: io::Result<Vec<PathBuf>>,
    ask: &mut dyn FnMut(&Path) -> io::Result<Answer>,
) -> (Vec<Status>, Vec<String>) {
    let (mut statuses, mut problems) = (Vec::new(), Vec::new());
    let consoles = consoles.unwrap_or_else(|error| {
        problems.push(format!("the consoles of this process cannot be listed: {error}"));
        Vec::new()
    });
    for path in consoles {
        match ask(&path) {
            Ok(Answer::Status(status)) => statuses.push(status),
            Err(error) if error.kind() == io::ErrorKind::TimedOut => {
                let name = path.file_name().unwrap_or_default().display();
                problems.push(format!("{name}: no answer for {} s: it hangs", console::PATIENCE.as_secs()));
            }
            // Its share or attach has ended meanwhile.
            _ => {}
        }
    }
    (statuses, problems)
}

/// Returns the problems of this process.
fn health(
    consoles: io::Result<Vec<PathBuf>>,
    ask: &mut dyn FnMut(&Path) -> io::Result<Answer>,
) -> Vec<String> {
    let (statuses, mut problems) = survey(consoles, ask);
    problems.extend(statuses.into_iter().flat_map(|status| status.problems));
    problems
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(at: SocketAddr, request: &[u8]) -> String {
        let mut stream = TcpStream::connect(at).unwrap();
        stream.write_all(request).unwrap();
        let mut answer = String::new();
        // A client that sends too much is cut off.
        let _ = stream.read_to_string(&mut answer);
        answer
    }

    #[test]
    fn a_request_is_answered_and_garbage_is_refused() {
        let endpoint = Endpoint::start(address("0").unwrap()).unwrap();
        let at = endpoint.address();
        assert!(at.ip().is_loopback());
        let metrics = said(at, b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n");
        assert!(metrics.starts_with("HTTP/1.1 200 OK\r\n"), "{metrics}");
        assert!(metrics.contains("\noutboard_build_info{version=\""), "{metrics}");
        for (request, status) in [
            (&b"GET /nothing HTTP/1.1\r\n\r\n"[..], "404"),
            (b"POST /metrics HTTP/1.1\r\n\r\n", "405"),
            (b"hello\r\n\r\n", "400"),
            (b"\xff\xfe\r\n\r\n", "400"),
        ] {
            assert!(said(at, request).starts_with(&format!("HTTP/1.1 {status} ")), "{request:?}");
        }
        // Clients that send nothing or too much delay the next answer only briefly.
        let silent = TcpStream::connect(at).unwrap();
        drop(said(at, &[b'a'; 64 << 10]));
        assert!(said(at, b"GET /health HTTP/1.0\r\n\r\n").contains("\r\n\r\nok\n"));
        drop(silent);
    }

    #[test]
    fn silent_clients_do_not_delay_the_end() {
        let endpoint = Endpoint::start(address("0").unwrap()).unwrap();
        let mut first = TcpStream::connect(endpoint.address()).unwrap();
        let silent: Vec<_> = (0..8).map(|_| TcpStream::connect(endpoint.address()).unwrap()).collect();
        first.write_all(b"GET /nothing HTTP/1.1\r\n\r\n").unwrap();
        first.read_to_end(&mut Vec::new()).unwrap();
        drop(endpoint);
        // The others wait behind the first one. The server ends before the turn of the last one.
        let error = (&silent[7]).read(&mut [0]).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
    }

    #[test]
    fn the_end_interrupts_a_request() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let silent = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (stream, _) = listener.accept().unwrap();
        stream.set_nonblocking(true).unwrap();
        let (mut poller, end) = (Poller::new().unwrap(), Event::new().unwrap());
        end.signal();
        let until = Instant::now() + Duration::from_secs(3600);
        let mut client = Client { stream: &stream, poller: &mut poller, end: &end, until };
        assert!(client.read_head().is_err());
        drop(silent);
    }

    #[test]
    fn a_console_that_hangs_is_a_problem() {
        let of = |names: &[&str]| Ok(names.iter().map(PathBuf::from).collect());
        let mut ask = |path: &Path| match path.to_str() {
            Some("hangs") => Err(io::ErrorKind::TimedOut.into()),
            Some("has-ended") => Err(io::ErrorKind::ConnectionRefused.into()),
            _ => {
                Ok(Answer::Status(Status { problems: vec!["share: no device".into()], ..Status::default() }))
            }
        };
        assert!(health(of(&["has-ended"]), &mut ask).is_empty());
        let problems = health(of(&["hangs", "runs"]), &mut ask);
        assert_eq!(problems, ["hangs: no answer for 5 s: it hangs", "share: no device"]);
        let unlisted = health(Err(io::ErrorKind::PermissionDenied.into()), &mut ask);
        assert!(unlisted[0].contains("cannot be listed"), "{unlisted:?}");
    }

    #[test]
    fn a_port_without_an_address_is_on_loopback() {
        assert_eq!(address("9845").unwrap(), "127.0.0.1:9845".parse().unwrap());
        assert_eq!(address("[::]:1").unwrap(), "[::]:1".parse().unwrap());
        for wrong in ["", "host:1", "70000", "1.2.3.4"] {
            assert!(matches!(address(wrong), Err(ServiceError::Usage(_))), "{wrong}");
        }
    }
}
