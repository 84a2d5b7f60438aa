//! A transport as a module: containers over a connection of its own, one record each, without a session.
//!
//! There is no authentication, so a connection to another machine requires `--insecure`.

use contract::ServiceError;
use contract::{
    Attributes, Body, Ctl, CtlReply, Direction, End, FlowClass, FlowDirection, FlowKey, FlowOffer,
    FlowTemplate, Format, Message, Next, Partner, PartnerError, PartnerResult, Pull, PullSlot, Pulled,
    Pushed, Readiness, Time,
};
use modules::TransportPlan;
use modules::transport_plan;
use rustix::net::sockopt;
use std::io;
use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::os::fd::{AsFd, OwnedFd};
use sys::poller::Poller;
use sys::stop::Stop;
use wire::{Container, RecordHeader};

/// The flow number of all records: there is one flow in each direction, with one epoch.
const FLOW: u32 = 1;
const EPOCH: u32 = 1;

/// Returns the flows of a connection: one from it, one to it.
pub(super) fn flows(class: FlowClass) -> [FlowOffer; 2] {
    [FlowDirection::DeviceToApplication, FlowDirection::ApplicationToDevice].map(|direction| FlowOffer {
        direction,
        format: Format::Bytes,
        class,
    })
}

/// Connects to `text`, `TRANSPORT://HOST:PORT`, or accepts the first peer if it is to listen. Returns `None` if
/// `stop` is raised first.
pub(super) fn connect(
    text: &str,
    options: &str,
    listen: bool,
    insecure: bool,
    stop: &Stop,
) -> Result<Option<Records>, ServiceError> {
    let (name, place) = text.split_once("://").unwrap_or((text, ""));
    let plan = transport_plan(name, Some(options))?;
    let address = address(text, place, listen)?;
    if !address.ip().is_loopback() && !insecure {
        return Err(ServiceError::Usage(format!(
            "`{text}` leaves this machine, and a bare transport has no authentication and no encryption: use \
             --insecure to accept that, 127.0.0.1 with a tunnel, or `outboard share` and `attach`"
        )));
    }
    let end = if listen { End::Accepted } else { End::Dialled };
    let socket = match listen {
        true => match accept(&plan, address, stop)? {
            Some(socket) => socket,
            None => return Ok(None),
        },
        false => dial(&plan, text, address)?,
    };
    let transport = plan.class.partner(socket, end, &plan.options, None);
    let transport = transport.map_err(|error| ServiceError::Unreachable(format!("{text}: {error}")))?;
    Ok(Some(Records { transport, slot: PullSlot::default(), sequence: 0 }))
}

fn address(text: &str, place: &str, listen: bool) -> Result<SocketAddr, ServiceError> {
    let place = match place.strip_prefix(':') {
        Some(port) if listen => format!("127.0.0.1:{port}"),
        _ => place.to_string(),
    };
    let wrong = |why: String| ServiceError::Usage(format!("`{text}`: {why}; write TRANSPORT://HOST:PORT"));
    Ok(sys::address::resolve(&place).map_err(|error| wrong(error.to_string()))?[0])
}

fn dial(plan: &TransportPlan, text: &str, address: SocketAddr) -> Result<OwnedFd, ServiceError> {
    let unreachable = |error: io::Error| {
        ServiceError::Unreachable(format!(
            "{text} cannot be reached: {error} (does `outboard module {text} --listen` run there?)"
        ))
    };
    let socket = plan.class.dial(address, &plan.options);
    let socket = socket.map_err(|error| ServiceError::Unreachable(format!("{text}: {error}")))?;
    // Connecting continues in the background; wait for it.
    let mut poller = Poller::new().map_err(|error| ServiceError::os("epoll", error))?;
    poller.register(socket.as_fd(), false, true);
    poller.wait(None).map_err(|error| ServiceError::os("waiting", error))?;
    match sockopt::socket_error(&socket) {
        Ok(Ok(())) => Ok(socket),
        Ok(Err(error)) | Err(error) => Err(unreachable(error.into())),
    }
}

/// Waits for one peer. A datagram transport takes the first sender.
fn accept(plan: &TransportPlan, address: SocketAddr, stop: &Stop) -> Result<Option<OwnedFd>, ServiceError> {
    let failed = |error: io::Error| ServiceError::os(format!("listening on {address}"), error);
    let mut poller = Poller::new().map_err(|error| ServiceError::os("epoll", error))?;
    let mut await_one = |descriptor: std::os::fd::BorrowedFd<'_>| -> Result<bool, ServiceError> {
        poller.register(descriptor, true, false);
        poller.register(stop.wakes(), true, false);
        poller.wait(None).map_err(|error| ServiceError::os("waiting", error))?;
        Ok(!stop.is_requested())
    };
    let is_datagram = plan.class.is_datagram();
    let listener: OwnedFd = match is_datagram {
        true => UdpSocket::bind(address).map_err(failed)?.into(),
        false => TcpListener::bind(address).map_err(failed)?.into(),
    };
    if !await_one(listener.as_fd())? {
        return Ok(None);
    }
    if is_datagram {
        let socket = UdpSocket::from(listener);
        let (_, peer) = socket.peek_from(&mut [0; 1]).map_err(failed)?;
        socket.connect(peer).map_err(failed)?;
        socket.set_nonblocking(true).map_err(failed)?;
        return Ok(Some(socket.into()));
    }
    let (stream, _) = TcpListener::from(listener).accept().map_err(failed)?;
    stream.set_nonblocking(true).map_err(failed)?;
    Ok(Some(stream.into()))
}

/// Messages over a transport, one record each.
pub(super) struct Records {
    transport: Box<dyn Partner>,
    slot: PullSlot,
    /// The sequence number of the next record.
    sequence: u64,
}

impl Records {
    fn next(transport: &mut dyn Partner) -> PartnerResult<Next> {
        Ok(match transport.pull(FlowKey::DEFAULT, Pull::Yours)? {
            Pulled::Message(_, record) => Next::Message(message(record.body)?),
            Pulled::End => Next::End,
            _ => Next::Nothing,
        })
    }
}

/// Unpacks a record.
fn message(mut record: Body) -> PartnerResult<Message> {
    let broken = |problem: String| PartnerError::Peer(format!("invalid record: {problem}"));
    let header = record.take_front::<{ RecordHeader::BYTES }>();
    let header = header.ok_or_else(|| broken("its header is cut short".into()))?;
    let header =
        RecordHeader::parse(&header, wire::BODY_BYTES_MAX).map_err(|error| broken(error.to_string()))?;
    Ok(Message::new(Time(header.container.created), record))
}

impl Partner for Records {
    fn open(&mut self, template: &FlowTemplate, attributes: &Attributes) -> PartnerResult<FlowKey> {
        self.transport.open(template, attributes)
    }

    fn close(&mut self, flow: FlowKey) -> PartnerResult {
        self.transport.close(flow)
    }

    fn push(&mut self, flow: FlowKey, message: Message) -> Result<Pushed, (PartnerError, Message)> {
        // A message from a pipe does not exceed the limit of a container.
        let container = Container { length: message.body.len() as u32, created: message.created.0 };
        let header = RecordHeader { flow: FLOW, epoch: EPOCH, sequence: self.sequence, container };
        let mut record = message.clone();
        record.body.push_front(&header.emit());
        match self.transport.push(flow, record) {
            Ok(Pushed::Taken) => {
                self.sequence += 1;
                Ok(Pushed::Taken)
            }
            Ok(Pushed::Full(_)) => Ok(Pushed::Full(message)),
            Err((error, _)) => Err((error, message)),
        }
    }

    fn pull(&mut self, flow: FlowKey, request: Pull<'_>) -> PartnerResult<Pulled> {
        let transport = self.transport.as_mut();
        self.slot.answer(flow, request, || Records::next(transport))
    }

    fn ctl(&mut self, flow: FlowKey, operation: Ctl<'_>) -> PartnerResult<CtlReply> {
        match operation {
            Ctl::Neutral => Ok(CtlReply::Done),
            operation => self.transport.ctl(flow, operation),
        }
    }

    fn readiness(&self, flow: FlowKey, direction: Direction) -> Readiness<'_> {
        match direction {
            Direction::Out if self.slot.is_held() => Readiness::now(),
            direction => self.transport.readiness(flow, direction),
        }
    }

    fn upkeep(&self) -> Readiness<'_> {
        self.transport.upkeep()
    }
}
