//! The worker's end of an adapter: passes messages between the flows and the thread.

use super::uplink::{PACKET_BYTES_MAX, PIECE_BYTES, SNAPSHOT};
use crate::flows::{Endpoint, FlowPartner};
use crate::serial::{Fault, Inputs, SerialMessage};
use contract::{
    Body, Bytes, Ctl, CtlReply, Direction, FlowKey, Format, Interest, Message, Next, PartnerError,
    PartnerResult, PullSlot, Readiness, RecoveryCtl, Report, Time,
};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};
use std::collections::VecDeque;
use std::os::fd::{AsFd, OwnedFd};

/// Figures of [`Ctl::Report`].
#[derive(Debug, Default)]
struct Counts {
    read_bytes: u64,
    written_bytes: u64,
    outputs: u64,
    inputs: u64,
    faults: u64,
}

/// An adapter as a partner.
#[derive(Debug)]
pub(super) struct Terminal {
    name: String,
    socket: OwnedFd,
    /// The rest of the data that are being sent, their fault if they have one, and how many of their bytes were sent.
    data: Body,
    fault: Option<Fault>,
    sent_bytes: u64,
    /// Bytes of the next data that a worker before this one has sent.
    skip_bytes: u64,
    /// Other packets to send, behind the data.
    packets: VecDeque<Vec<u8>>,
    /// Lines of the port that the adapter has.
    inputs: Inputs,
    counts: Counts,
}

impl Terminal {
    pub(super) fn new(name: String, socket: OwnedFd) -> FlowPartner<Self> {
        let terminal = Terminal {
            name,
            socket,
            data: Body::new(),
            fault: None,
            sent_bytes: 0,
            skip_bytes: 0,
            packets: VecDeque::new(),
            inputs: Inputs::default(),
            counts: Counts::default(),
        };
        FlowPartner::new(terminal, Some(Format::Serial), Some(Format::Serial))
    }

    fn error(&self, verb: &str, error: Errno) -> PartnerError {
        match error {
            Errno::PIPE | Errno::CONNRESET => PartnerError::Gone(self.name.clone()),
            _ => PartnerError::os(format!("{verb} {}", self.name), error),
        }
    }

    /// Sends as much as there is room for. Returns true if nothing is left.
    fn flush(&mut self) -> PartnerResult<bool> {
        let mut rest = self.data.clone();
        while let Some(piece) =
            rest.split_off_front(rest.len().min(PIECE_BYTES)).filter(|piece| !piece.is_empty())
        {
            let count = piece.len() as u64;
            let packet = match self.fault {
                Some(fault) => SerialMessage::Fault(fault, piece),
                None => SerialMessage::Data(piece),
            };
            if !self.send(&packet.emit().into_bytes())? {
                return Ok(false);
            }
            self.data = rest.clone();
            self.sent_bytes += count;
            self.counts.written_bytes += count;
        }
        self.sent_bytes = 0;
        while let Some(packet) = self.packets.pop_front() {
            if !self.send(&packet)? {
                self.packets.push_front(packet);
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn send(&self, packet: &[u8]) -> PartnerResult<bool> {
        match send(&self.socket, packet, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
            Ok(_) => Ok(true),
            Err(Errno::AGAIN | Errno::INTR) => Ok(false),
            Err(error) => Err(self.error("writing to", error)),
        }
    }

    /// Sends the bytes of a message, without those that a worker before this one has sent.
    fn set_data(&mut self, mut data: Body, fault: Option<Fault>) {
        self.sent_bytes = std::mem::take(&mut self.skip_bytes).min(data.len() as u64);
        data.skip_front(self.sent_bytes as usize);
        (self.data, self.fault) = (data, fault);
    }

    fn set_inputs(&mut self, inputs: Inputs) {
        self.inputs = inputs;
        self.counts.inputs += 1;
        // Of lines that wait, the last state counts.
        self.packets.retain(|packet| packet[0] == SNAPSHOT);
        self.packets.push_back(SerialMessage::Inputs(inputs).emit().into_bytes().to_vec());
    }

    fn has_output(&self) -> bool {
        !self.data.is_empty() || !self.packets.is_empty()
    }
}

impl Endpoint for Terminal {
    fn accept(&mut self, message: &mut Message) -> PartnerResult<bool> {
        if !self.flush()? {
            return Ok(false);
        }
        match SerialMessage::parse(&message.body).map_err(|error| PartnerError::Message(error.to_string()))? {
            SerialMessage::Data(data) => self.set_data(data, None),
            SerialMessage::Fault(fault, data) => {
                self.counts.faults += data.len() as u64;
                self.set_data(data, Some(fault));
            }
            SerialMessage::Inputs(inputs) => self.set_inputs(inputs),
            // The program has its own settings; those of the port are the port's.
            SerialMessage::Settings(_) => {}
            SerialMessage::Outputs(_) => {
                return Err(PartnerError::Message("only a program's terminal sends such a message".into()));
            }
        }
        self.flush()?;
        Ok(true)
    }

    fn next(&mut self, _now: Time) -> PartnerResult<Next> {
        self.flush()?;
        let mut packet = [0; PACKET_BYTES_MAX];
        let count = match recv(&self.socket, &mut packet[..], RecvFlags::DONTWAIT) {
            Ok((0, _)) => return Err(PartnerError::Gone(self.name.clone())),
            Ok((count, _)) => count,
            Err(Errno::AGAIN | Errno::INTR) => return Ok(Next::Nothing),
            Err(error) => return Err(self.error("reading", error)),
        };
        let Some((created, message)) = packet[..count].split_first_chunk::<8>() else {
            return Ok(Next::Nothing);
        };
        let body = Body::from(Bytes::copy_from_slice(message));
        match SerialMessage::parse(&body) {
            Ok(SerialMessage::Outputs(_)) => self.counts.outputs += 1,
            Ok(message) => self.counts.read_bytes += message.data_bytes() as u64,
            Err(error) => return Err(PartnerError::Message(error.to_string())),
        }
        Ok(Next::Message(Message::new(Time(u64::from_le_bytes(*created)), body)))
    }

    fn ctl(&mut self, _flow: FlowKey, operation: Ctl<'_>, _slot: &mut PullSlot) -> PartnerResult<CtlReply> {
        match operation {
            Ctl::Flush | Ctl::Finish => match self.flush()? {
                true => Ok(CtlReply::Done),
                false => Ok(CtlReply::Pending),
            },
            // As if the cable were pulled out.
            Ctl::Neutral => {
                self.set_inputs(Inputs::default());
                self.flush()?;
                Ok(CtlReply::Done)
            }
            Ctl::IsNeutral => Ok(CtlReply::Count((self.inputs == Inputs::default()).into())),
            Ctl::Snapshot => {
                if !self.packets.iter().any(|packet| packet == &[SNAPSHOT]) {
                    self.packets.push_back(vec![SNAPSHOT]);
                }
                self.flush()?;
                Ok(CtlReply::Done)
            }
            Ctl::Recovery(RecoveryCtl::PartialWrite) => Ok(match self.data.len() {
                0 => CtlReply::Done,
                _ => CtlReply::Count(self.sent_bytes),
            }),
            Ctl::Recovery(RecoveryCtl::Skip(bytes)) => {
                self.skip_bytes = bytes;
                Ok(CtlReply::Done)
            }
            Ctl::Report => {
                let counts = &self.counts;
                let report: Vec<Report> = vec![
                    ("read bytes", counts.read_bytes as f64),
                    ("written bytes", counts.written_bytes as f64),
                    ("line changes of the program", counts.outputs as f64),
                    ("line changes of the port", counts.inputs as f64),
                    ("bytes with a fault", counts.faults as f64),
                ];
                Ok(CtlReply::Report(report))
            }
            _ => Err(PartnerError::Unsupported("this operation")),
        }
    }

    fn readiness(&self, direction: Direction) -> Readiness<'_> {
        let socket = self.socket.as_fd();
        match (direction, self.has_output()) {
            (Direction::In, false) => Readiness::now(),
            (Direction::In, true) => Readiness::descriptor(socket, Interest::Write),
            (Direction::Out, false) => Readiness::descriptor(socket, Interest::Read),
            (Direction::Out, true) => Readiness {
                descriptors: [Some((socket, Interest::Read)), Some((socket, Interest::Write))],
                ..Readiness::default()
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flows::IN;
    use contract::{Attributes, FlowClass, FlowTemplate, Partner, Pushed};
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

    fn next_packet(socket: &OwnedFd) -> Option<SerialMessage> {
        let mut packet = [0; PACKET_BYTES_MAX];
        let (count, _) = recv(socket, &mut packet[..], RecvFlags::DONTWAIT).ok()?;
        Some(SerialMessage::parse(&Body::from(packet[..count].to_vec())).unwrap())
    }

    /// The adapter has no room, because no program reads.
    #[test]
    fn bytes_with_a_fault_that_wait_survive_silence_and_a_killed_worker() {
        let (adapter, socket) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        let filler = SerialMessage::Data(Body::from(vec![b'x'; PIECE_BYTES])).emit().into_bytes();
        while send(&socket, &filler, SendFlags::DONTWAIT | SendFlags::NOSIGNAL).is_ok() {}
        let worker = || {
            let mut worker = Terminal::new("terminal".into(), socket.try_clone().unwrap());
            let template =
                FlowTemplate { direction: Direction::In, format: Format::Serial, class: FlowClass::Reliable };
            worker.open(&template, &Attributes::default()).unwrap();
            worker
        };
        let message = || {
            let faulty = SerialMessage::Fault(Fault::Corrupt, Body::from(&b"ab"[..]));
            Message::new(Time(1), faulty.emit())
        };
        let mut killed = worker();
        assert!(matches!(killed.push(IN, message()), Ok(Pushed::Taken)));
        killed.ctl(IN, Ctl::Neutral).unwrap();
        let written = killed.ctl(IN, Ctl::Recovery(RecoveryCtl::PartialWrite)).unwrap();
        assert!(matches!(written, CtlReply::Count(0)), "{written:?}");
        drop(killed);

        let mut next = worker();
        next.ctl(IN, Ctl::Recovery(RecoveryCtl::Skip(0))).unwrap();
        assert!(matches!(next.push(IN, message()), Ok(Pushed::Taken)));
        next.ctl(IN, Ctl::Neutral).unwrap();
        let fillers = std::iter::from_fn(|| next_packet(&adapter)).count();
        assert!(fillers > 0);
        assert!(matches!(next.ctl(IN, Ctl::Flush), Ok(CtlReply::Done)));
        let faulty = SerialMessage::Fault(Fault::Corrupt, Body::from(&b"ab"[..]));
        assert_eq!(next_packet(&adapter), Some(faulty));
        assert_eq!(next_packet(&adapter), Some(SerialMessage::Inputs(Inputs::default())));
    }
}
