//! The control channel over connections that break anywhere, and the handshake.

use proptest::collection::vec;
use proptest::prelude::*;
use session::{ChannelError, ControlChannel, Handshake, HandshakeError, Welcomed};
use wire::control::{FEATURES_MAX, FRAME_BYTES_MAX, Feature, HELLO_BYTES_MAX, NAME_BYTES_MAX};
use wire::preamble::SessionToken;
use wire::{Control, FlowControl, WireError};

const LIMIT_BYTES: usize = 4 << 20;

#[derive(Debug, Clone)]
enum Event {
    /// One side (0 or 1) sends a message, numbered or not.
    Send(usize, bool),
    /// The connection carries this many bytes of one side.
    Carry(usize, usize),
    /// One side sends its count of received messages.
    Ping(usize),
    /// The connection breaks, these sides send messages, and the session resumes.
    Break(Vec<usize>),
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        6 => (0..2usize, any::<bool>()).prop_map(|(side, numbered)| Event::Send(side, numbered)),
        6 => (0..2usize, 0..60usize).prop_map(|(side, bytes)| Event::Carry(side, bytes)),
        1 => (0..2usize).prop_map(Event::Ping),
        1 => vec(0..2usize, 0..4).prop_map(Event::Break),
    ]
}

/// Two ends of a channel, and the messages that each received.
struct Ends {
    ends: [ControlChannel; 2],
    sent: [u32; 2],
    heard: [Vec<u32>; 2],
}

impl Ends {
    fn numbered(&mut self, side: usize) -> Control {
        self.sent[side] += 1;
        Control::Linked { driver: self.sent[side] - 1 }
    }

    fn carry(&mut self, from: usize, mut bytes: usize) {
        while bytes > 0 && !self.ends[from].front().is_empty() {
            let count = self.ends[from].front().len().min(bytes);
            let piece = self.ends[from].front()[..count].to_vec();
            self.ends[from].handle_sent(count);
            bytes -= count;
            self.ends[1 - from].handle_bytes(&piece);
            while let Some(message) = self.ends[1 - from].poll().expect("both keep to the protocol") {
                match message {
                    Control::Linked { driver } => self.heard[1 - from].push(driver),
                    Control::Ping { received, .. } => {
                        self.ends[1 - from].handle_received(received).expect("the count is true");
                    }
                    other => assert_eq!(other, Control::Goodbye { reason: "unnumbered".into() }),
                }
            }
        }
    }
}

proptest! {
    #[test]
    fn each_numbered_message_arrives_once_and_in_order(events in vec(event(), 0..150)) {
        let new = || ControlChannel::new(LIMIT_BYTES);
        let mut both = Ends { ends: [new(), new()], sent: [0; 2], heard: [Vec::new(), Vec::new()] };
        for event in events {
            match event {
                Event::Send(side, true) => {
                    let message = both.numbered(side);
                    both.ends[side].send(&message).expect("there is room");
                }
                Event::Send(side, false) => {
                    both.ends[side].send(&Control::Goodbye { reason: "unnumbered".into() }).expect("there is room");
                }
                Event::Carry(from, bytes) => both.carry(from, bytes),
                Event::Ping(side) => {
                    let received = both.ends[side].received();
                    both.ends[side].send(&Control::Ping { id: 0, sent: 0, received }).expect("there is room");
                }
                Event::Break(says) => {
                    for side in says {
                        let message = both.numbered(side);
                        both.ends[side].keep(&message).expect("there is room");
                    }
                    let received = [both.ends[0].received(), both.ends[1].received()];
                    let first = Control::Goodbye { reason: "unnumbered".into() };
                    both.ends[0].resume(received[1], Some(&first)).expect("the count is true");
                    both.ends[1].resume(received[0], None).expect("the count is true");
                }
            }
        }
        both.carry(0, usize::MAX);
        both.carry(1, usize::MAX);
        for side in 0..2 {
            let all: Vec<u32> = (0..both.sent[1 - side]).collect();
            prop_assert_eq!(&both.heard[side], &all);
            prop_assert_eq!(both.ends[side].received(), all.len() as u64);
            prop_assert!(both.ends[side].front().is_empty());
        }
    }

    /// Any bytes, in any pieces, yield messages or an error. The channel never buffers more than a frame and a
    /// piece.
    #[test]
    fn any_bytes_are_messages_or_an_error(pieces in vec(vec(any::<u8>(), 0..50), 0..20)) {
        let mut channel = ControlChannel::new(LIMIT_BYTES);
        'pieces: for piece in pieces {
            if !channel.has_room() {
                break;
            }
            channel.handle_bytes(&piece);
            loop {
                match channel.poll() {
                    Ok(Some(_)) => {}
                    Ok(None) => break,
                    Err(error) => {
                        let again = channel.poll();
                        prop_assert_eq!(again, Err(error));
                        break 'pieces;
                    }
                }
            }
        }
    }

    #[test]
    fn an_impossible_count_is_refused(sent in 0..20u64, taken in 0..20u64, theirs in any::<u64>()) {
        let mut channel = ControlChannel::new(LIMIT_BYTES);
        (0..sent).for_each(|_| channel.send(&Control::List).expect("there is room"));
        let taken = taken.min(sent);
        channel.handle_received(taken).expect("so many were sent");
        let expected = match (taken..=sent).contains(&theirs) {
            true => Ok(()),
            false => Err(ChannelError::Numbers { theirs, kept_from: taken, kept_to: sent }),
        };
        prop_assert_eq!(channel.handle_received(theirs), expected.clone());
        // A refused count changes nothing.
        if expected.is_err() {
            prop_assert_eq!(channel.handle_received(taken), Ok(()));
        }
    }
}

#[test]
fn a_peer_that_stops_reading_fills_the_queue() {
    let mut channel = ControlChannel::new(100);
    let ping = Control::Ping { id: 0, sent: 0, received: 0 };
    let fitting = 100 / ping.emit().len();
    (0..fitting).for_each(|_| channel.send(&ping).expect("there is room"));
    assert_eq!(channel.send(&ping), Err(ChannelError::Full(100)));
    channel.handle_sent(usize::MAX);
    assert_eq!(channel.send(&ping), Ok(()));
}

#[test]
fn messages_retained_without_a_connection_are_bounded() {
    let mut channel = ControlChannel::new(100);
    // The queue of the broken connection was full. It does not limit the retained messages.
    while channel.send(&Control::Ping { id: 0, sent: 0, received: 0 }).is_ok() {}
    let fitting = 100 / Control::List.emit().len();
    (0..fitting).for_each(|_| channel.keep(&Control::List).expect("there is room"));
    assert_eq!(channel.keep(&Control::List), Err(ChannelError::Full(100)));
}

#[test]
fn a_frame_too_long_is_refused_before_it_is_buffered() {
    let mut channel = ControlChannel::new(LIMIT_BYTES);
    channel.handle_bytes(&u32::MAX.to_le_bytes());
    assert!(matches!(channel.poll(), Err(ChannelError::Wire(WireError::TooLong { .. }))));
    // A frame of the maximum length passes in any pieces.
    let mut channel = ControlChannel::new(LIMIT_BYTES);
    let longest = Control::Flow {
        flow: 0,
        message: FlowControl::Pair { epoch: 0, pair: 0, body: vec![1; FRAME_BYTES_MAX - 16] },
    };
    for piece in longest.emit().chunks(1000) {
        assert!(channel.has_room());
        channel.handle_bytes(piece);
    }
    assert_eq!(channel.poll(), Ok(Some(longest)));
}

#[test]
fn a_host_that_is_not_authenticated_yet_can_send_only_a_hello() {
    let name = |index| format!("{index:0>width$}", width = NAME_BYTES_MAX);
    let feature = |index| Feature { name: name(index), is_needed: true };
    let longest = Control::Hello {
        host: name(0),
        resume: Some(TOKEN),
        received: u64::MAX,
        attempt: u32::MAX,
        features: (0..FEATURES_MAX).map(feature).collect(),
    };
    let mut channel = ControlChannel::for_hello(LIMIT_BYTES);
    channel.handle_bytes(&longest.emit());
    assert_eq!(channel.poll(), Ok(Some(longest)));
    // A longer frame is refused by its length alone.
    let mut channel = ControlChannel::for_hello(LIMIT_BYTES);
    channel.handle_bytes(&(HELLO_BYTES_MAX as u32 + 1).to_le_bytes());
    assert!(matches!(channel.poll(), Err(ChannelError::Wire(WireError::TooLong { .. }))));
    // A shorter one that never ends fills no more than that.
    let mut channel = ControlChannel::for_hello(LIMIT_BYTES);
    channel.handle_bytes(&(HELLO_BYTES_MAX as u32).to_le_bytes());
    channel.handle_bytes(&[0; HELLO_BYTES_MAX + 1]);
    assert!(!channel.has_room());
}

const TOKEN: SessionToken = SessionToken([7; 16]);

#[test]
fn a_welcome_opens_a_session() {
    let new = Handshake::new("attic", None, 0, 1);
    assert_eq!(
        new.hello(),
        Control::Hello {
            host: "attic".into(),
            resume: None,
            received: 0,
            attempt: 1,
            features: session::features::offered()
        }
    );
    let welcome = |resumed| Control::Welcome {
        host: "workshop".into(),
        session: TOKEN,
        resumed,
        received: 3,
        features: vec![],
    };
    let welcomed = |resumed| Welcomed { host: "workshop".into(), session: TOKEN, resumed, received: 3 };
    assert_eq!(new.handle(welcome(false)), Ok(welcomed(false)));
    // Nothing was to be resumed, so nothing resumes, even if the device host claims it.
    assert_eq!(new.handle(welcome(true)), Ok(welcomed(false)));
    let again = Handshake::new("attic", Some(TOKEN), 9, 2);
    assert_eq!(
        again.hello(),
        Control::Hello {
            host: "attic".into(),
            resume: Some(TOKEN),
            received: 9,
            attempt: 2,
            features: session::features::offered()
        }
    );
    assert_eq!(again.handle(welcome(true)), Ok(welcomed(true)));
    let other = Handshake::new("attic", Some(SessionToken([8; 16])), 9, 3);
    assert_eq!(other.handle(welcome(true)), Ok(welcomed(false)));
}

#[test]
fn an_unknown_feature_is_ignored_and_a_needed_one_is_named() {
    let handshake = Handshake::new("attic", None, 0, 1);
    let welcome = |is_needed| Control::Welcome {
        host: "workshop".into(),
        session: TOKEN,
        resumed: false,
        received: 0,
        features: vec![Feature { name: "smoke".into(), is_needed }],
    };
    assert!(handshake.handle(welcome(false)).is_ok());
    let error = handshake.handle(welcome(true)).unwrap_err().to_string();
    let words = "of the application host does not have the feature `smoke`, which the device host needs";
    assert!(error.contains(words), "{error}");
}

#[test]
fn any_other_reply_is_an_error() {
    let handshake = Handshake::new("attic", None, 0, 1);
    let refused = handshake.handle(Control::Goodbye { reason: "full".into() });
    assert_eq!(refused, Err(HandshakeError::Refused("full".into())));
    for (message, name) in [(Control::List, "List"), (Control::Linked { driver: 1 }, "Linked")] {
        assert_eq!(handshake.handle(message), Err(HandshakeError::OutOfTurn(format!("`{name}`"))));
    }
}

#[test]
fn invalid_bytes_are_discarded_with_their_connection() {
    let mut channel = ControlChannel::new(LIMIT_BYTES);
    channel.handle_bytes(&Control::Linked { driver: 1 }.emit());
    channel.handle_bytes(&u32::MAX.to_le_bytes());
    assert_eq!(channel.poll().unwrap(), Some(Control::Linked { driver: 1 }));
    assert!(channel.poll().is_err());
    channel.handle_disconnect();
    assert_eq!(
        (channel.poll().unwrap(), channel.received()),
        (None, 1),
        "and it is not found again and again"
    );
}
