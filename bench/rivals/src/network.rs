//! zenoh: two peers on loopback with one key for each direction, like zenoh's own ping-pong example. With shared memory, zenoh
//! itself copies messages into it.

use crate::{Answerer, Ask, Failure, Library, report_ready};
use std::net::TcpListener;
use std::time::{Duration, Instant};
use zenoh::bytes::ZBytes;
use zenoh::handlers::FifoChannelHandler;
use zenoh::pubsub::{Publisher, Subscriber};
use zenoh::qos::CongestionControl;
use zenoh::sample::Sample;
use zenoh::{Config, Session, Wait};

const THERE: &str = "outboard/rivals/there";
const BACK: &str = "outboard/rivals/back";
/// The longest wait for an answer.
const PATIENCE: Duration = Duration::from_secs(30);
/// The interval of messages until both peers have received each other's subscription.
const TRY: Duration = Duration::from_millis(200);

/// Opens a session with only the given peer.
fn session(library: Library, endpoints: &str, address: &str) -> Result<Session, Failure> {
    let shares = matches!(library, Library::ZenohShared).to_string();
    let mut config = Config::default();
    for (key, value) in [
        ("mode", r#""peer""#),
        ("scouting/multicast/enabled", "false"),
        ("listen/endpoints", "[]"),
        (endpoints, &format!(r#"["tcp/{address}"]"#)),
        ("transport/shared_memory/enabled", &shares),
        // Messages of every size.
        ("transport/shared_memory/transport_optimization/message_size_threshold", "1"),
    ] {
        config.insert_json5(key, value)?;
    }
    zenoh::open(config).wait()
}

fn publisher(session: &Session, key: &'static str) -> Result<Publisher<'static>, Failure> {
    session.declare_publisher(key).congestion_control(CongestionControl::Block).express(true).wait()
}

/// Answers each message with one of its size.
pub(crate) fn answer(address: &str, size: usize, library: Library) -> Result<(), Failure> {
    let session = session(library, "listen/endpoints", address)?;
    let publisher = publisher(&session, BACK)?;
    let body = ZBytes::from(vec![7; size]);
    let back = move |_: Sample| {
        if let Err(error) = publisher.put(body.clone()).wait() {
            eprintln!("outboard-rivals: {error}");
        }
    };
    let _subscriber = session.declare_subscriber(THERE).callback(back).wait()?;
    report_ready()?;
    loop {
        std::thread::park();
    }
}

/// The asking end.
pub(crate) struct Asker {
    publisher: Publisher<'static>,
    subscriber: Subscriber<FifoChannelHandler<Sample>>,
    body: ZBytes,
    _session: Session,
    _answerer: Answerer,
}

impl Asker {
    pub(crate) fn new(
        size: usize,
        library: Library,
        start: impl FnOnce(&str) -> Result<Answerer, Failure>,
    ) -> Result<Asker, Failure> {
        let address = TcpListener::bind("127.0.0.1:0")?.local_addr()?.to_string();
        let answerer = start(&address)?;
        let session = session(library, "connect/endpoints", &address)?;
        let mut asker = Asker {
            publisher: publisher(&session, THERE)?,
            subscriber: session.declare_subscriber(BACK).wait()?,
            body: ZBytes::from(vec![7; size]),
            _session: session,
            _answerer: answerer,
        };
        asker.meet()?;
        Ok(asker)
    }

    /// Sends until an answer arrives, then discards all further answers.
    fn meet(&mut self) -> Result<(), Failure> {
        let until = Instant::now() + PATIENCE;
        while Instant::now() < until {
            self.publisher.put(self.body.clone()).wait()?;
            if self.subscriber.recv_timeout(TRY)?.is_some() {
                while self.subscriber.recv_timeout(TRY)?.is_some() {}
                return Ok(());
            }
        }
        Err("the peers found no connection".into())
    }
}

impl Ask for Asker {
    fn pass(&mut self) -> Result<(), Failure> {
        self.publisher.put(self.body.clone()).wait()?;
        let answer = self.subscriber.recv_timeout(PATIENCE)?.ok_or("no answer")?;
        match answer.payload().len() == self.body.len() {
            true => Ok(()),
            false => Err("a message returned with another length".into()),
        }
    }
}
