//! zenoh: two peers on loopback, one key each way, as its own ping-pong has it. It copies messages into shared memory
//! itself, where it may.

use crate::{Answerer, Asks, Failure, Means, tell_ready};
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
/// Longest wait for an answer.
const PATIENCE: Duration = Duration::from_secs(30);
/// Between tries, until the peers know of each other's subscriptions.
const TRY: Duration = Duration::from_millis(200);

/// A peer that finds nobody but whom it is told of.
fn session(means: Means, endpoints: &str, address: &str) -> Result<Session, Failure> {
    let shares = matches!(means, Means::ZenohShared).to_string();
    let mut config = Config::default();
    for (key, value) in [
        ("mode", r#""peer""#),
        ("scouting/multicast/enabled", "false"),
        ("listen/endpoints", "[]"),
        (endpoints, &format!(r#"["tcp/{address}"]"#)),
        ("transport/shared_memory/enabled", &shares),
        // Whatever a message's size.
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
pub(crate) fn answer(address: &str, size: usize, means: Means) -> Result<(), Failure> {
    let session = session(means, "listen/endpoints", address)?;
    let publisher = publisher(&session, BACK)?;
    let body = ZBytes::from(vec![7; size]);
    let back = move |_: Sample| {
        if let Err(error) = publisher.put(body.clone()).wait() {
            eprintln!("outboard-rivals: {error}");
        }
    };
    let _subscriber = session.declare_subscriber(THERE).callback(back).wait()?;
    tell_ready()?;
    loop {
        std::thread::park();
    }
}

/// Who asks.
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
        means: Means,
        start: impl FnOnce(&str) -> Result<Answerer, Failure>,
    ) -> Result<Asker, Failure> {
        let address = TcpListener::bind("127.0.0.1:0")?.local_addr()?.to_string();
        let answerer = start(&address)?;
        let session = session(means, "connect/endpoints", &address)?;
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

    /// Asks until there is an answer, and then waits until there is no other.
    fn meet(&mut self) -> Result<(), Failure> {
        let until = Instant::now() + PATIENCE;
        while Instant::now() < until {
            self.publisher.put(self.body.clone()).wait()?;
            if self.subscriber.recv_timeout(TRY)?.is_some() {
                while self.subscriber.recv_timeout(TRY)?.is_some() {}
                return Ok(());
            }
        }
        Err("the peers did not find each other".into())
    }
}

impl Asks for Asker {
    fn pass(&mut self) -> Result<(), Failure> {
        self.publisher.put(self.body.clone()).wait()?;
        let answer = self.subscriber.recv_timeout(PATIENCE)?.ok_or("no answer came")?;
        match answer.payload().len() == self.body.len() {
            true => Ok(()),
            false => Err("a message came back changed".into()),
        }
    }
}
