//! Properties of every message and of every input: parsing reverses emitting, each message has one encoding,
//! and invalid input is refused without any other effect.
//!
//! No test shows that parsers never over-allocate; the code does. Every allocation copies the bytes of a field
//! that was found in the input, or holds one element of a list whose earlier elements were parsed. So
//! allocations are bounded by a small multiple of the input.

use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use wire::control::*;
use wire::module::{MODULE_FRAME_BYTES_MAX, MODULE_HEADER_BYTES};
use wire::preamble::SessionToken;
use wire::ticket::{FlowTicket, SinkTicket, SourceTicket};
use wire::{
    BODY_BYTES_MAX, Container, Control, FlowControl, ModuleFeedback, ModuleFrame, ModuleHeader, ModuleKey,
    ModuleReport, PROTOCOL_VERSION, Preamble, Reader, RecordHeader, WireError, Writer,
};

/// A text of at most `max` bytes: mostly short, sometimes of maximum length.
fn text(max: usize) -> impl Strategy<Value = String> {
    prop_oneof![9 => "\\PC{0,12}".boxed(), 1 => Just("x".repeat(max)).boxed()]
}

fn blob(max: usize) -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![9 => vec(any::<u8>(), 0..40).boxed(), 1 => Just(vec![7; max]).boxed()]
}

fn token() -> impl Strategy<Value = SessionToken> {
    any::<[u8; 16]>().prop_map(SessionToken)
}

fn entry() -> impl Strategy<Value = CatalogueEntry> {
    let texts = (text(NAME_BYTES_MAX), text(NAME_BYTES_MAX), text(SUMMARY_BYTES_MAX));
    (texts, any::<bool>()).prop_map(|((name, class, summary), present)| CatalogueEntry {
        name,
        class,
        summary,
        present,
    })
}

fn flow() -> impl Strategy<Value = AgreedFlow> {
    let direction =
        prop_oneof![Just(FlowDirection::DeviceToApplication), Just(FlowDirection::ApplicationToDevice)];
    let class = prop_oneof![Just(FlowClass::Reliable), Just(FlowClass::Timely), Just(FlowClass::State)];
    (any::<u32>(), direction, class, text(NAME_BYTES_MAX), text(PIPELINE_BYTES_MAX)).prop_map(
        |(flow, direction, class, format, pipeline)| AgreedFlow { flow, direction, class, format, pipeline },
    )
}

fn module_frame() -> impl Strategy<Value = ModuleFrame> {
    let options = vec((text(64), text(4096)), 0..4);
    prop_oneof![
        (any::<u16>(), "[a-z]{0,16}", text(64), options).prop_map(|(version, role, format, options)| {
            ModuleFrame::Hello { version, role, format, options }
        }),
        blob(MODULE_FRAME_BYTES_MAX).prop_map(ModuleFrame::Peer),
        Just(ModuleFrame::Flush),
        any::<(u64, u64)>().prop_map(|(inputs, outputs)| ModuleFrame::Done { inputs, outputs }),
        text(4096).prop_map(ModuleFrame::Error),
        Just(ModuleFrame::Gap),
        any::<[u8; 32]>().prop_map(|key| ModuleFrame::Key(ModuleKey(key))),
        any::<[u64; 7]>().prop_map(
            |[received, lost, delay_ns, jitter_ns, round_trip_ns, rate_bytes, waiting_bytes]| {
                ModuleFrame::Feedback(ModuleFeedback {
                    received,
                    lost,
                    delay_ns,
                    jitter_ns,
                    round_trip_ns,
                    rate_bytes,
                    waiting_bytes,
                })
            }
        ),
        (any::<u64>(), text(256)).prop_map(|(count, reason)| ModuleFrame::Drop { count, reason }),
        (vec((text(64), -1e9..1e9f64), 0..4), vec((text(64), text(64), text(256)), 0..4), text(256))
            .prop_map(|(figures, choices, problem)| ModuleFrame::Report(ModuleReport {
                figures,
                choices,
                problem
            })),
        Just(ModuleFrame::Neutral),
        Just(ModuleFrame::Snapshot),
        text(256).prop_map(ModuleFrame::Absent),
        Just(ModuleFrame::Present),
        (15u8..).prop_map(ModuleFrame::Unknown),
    ]
}

fn features() -> impl Strategy<Value = Vec<Feature>> {
    let feature = (text(NAME_BYTES_MAX), any::<bool>());
    vec(feature.prop_map(|(name, is_needed)| Feature { name, is_needed }), 0..4)
}

/// `Hello` and `Welcome`.
fn greeting() -> impl Strategy<Value = Control> {
    let (name, n32, n64) = (|| text(NAME_BYTES_MAX), any::<u32>(), any::<u64>);
    prop_oneof![
        (name(), option::of(token()), n64(), n32, features()).prop_map(
            |(host, resume, received, attempt, features)| Control::Hello {
                host,
                resume,
                received,
                attempt,
                features
            }
        ),
        (name(), token(), any::<bool>(), n64(), features()).prop_map(
            |(host, session, resumed, received, features)| Control::Welcome {
                host,
                session,
                resumed,
                received,
                features
            }
        ),
    ]
}

fn control() -> impl Strategy<Value = Control> {
    let (name, reason) = (|| text(NAME_BYTES_MAX), || text(REASON_BYTES_MAX));
    let (n32, n64, body) = (any::<u32>, any::<u64>, || blob(CONTROL_BODY_BYTES_MAX));
    let pipeline = || option::of(text(PIPELINE_BYTES_MAX));
    let key = || any::<[u8; 32]>().prop_map(PublicKey);
    prop_oneof![
        greeting(),
        reason().prop_map(|reason| Control::Goodbye { reason }),
        (n32(), n64(), n64()).prop_map(|(id, sent, received)| Control::Ping { id, sent, received }),
        (n32(), n64(), n64(), n64()).prop_map(|(id, sent, received, replied)| Control::Pong {
            id,
            sent,
            received,
            replied
        }),
        Just(Control::List),
        vec(entry(), 0..5).prop_map(|entries| Control::Catalogue { entries }),
        (n32(), name(), name(), name(), pipeline(), pipeline(), key()).prop_map(
            |(driver, name, application, transport, via, via_back, key)| Control::Open {
                driver,
                name,
                application,
                transport,
                via,
                via_back,
                key,
            }
        ),
        (n32(), name(), blob(DESCRIPTION_BYTES_MAX), vec(flow(), 0..=FLOWS_MAX), key()).prop_map(
            |(driver, class, description, flows, key)| Control::Opened {
                driver,
                class,
                description,
                flows,
                key
            }
        ),
        (n32(), reason()).prop_map(|(driver, reason)| Control::Refused { driver, reason }),
        (n32(), reason()).prop_map(|(driver, reason)| Control::Close { driver, reason }),
        (n32(), n32(), n64()).prop_map(|(flow, epoch, next)| Control::Flow {
            flow,
            message: FlowControl::Acknowledge { epoch, next }
        }),
        (n32(), n32(), vec((n64(), n64()), 0..MISSING_RANGES_MAX)).prop_map(|(flow, epoch, ranges)| {
            Control::Flow { flow, message: FlowControl::Missing { epoch, ranges } }
        }),
        (n32(), n32())
            .prop_map(|(flow, epoch)| Control::Flow { flow, message: FlowControl::Resync { epoch } }),
        (n32(), n32(), (n32(), n64()), any::<bool>()).prop_map(|(flow, epoch, prev, continues)| {
            Control::Flow { flow, message: FlowControl::Epoch { epoch, prev, continues } }
        }),
        (n32(), text(PIPELINE_BYTES_MAX))
            .prop_map(|(flow, pipeline)| Control::Flow { flow, message: FlowControl::Propose { pipeline } }),
        (n32(), n32(), text(PIPELINE_BYTES_MAX)).prop_map(|(flow, epoch, pipeline)| Control::Flow {
            flow,
            message: FlowControl::Change { epoch, pipeline }
        }),
        (n32(), n32(), option::of(reason())).prop_map(|(flow, epoch, refusal)| Control::Flow {
            flow,
            message: FlowControl::Changed { epoch, refusal }
        }),
        (n32(), n32())
            .prop_map(|(flow, epoch)| Control::Flow { flow, message: FlowControl::Begun { epoch } }),
        (n32(), n32(), n64()).prop_map(|(flow, epoch, sequence)| Control::Flow {
            flow,
            message: FlowControl::Trimmed { epoch, sequence }
        }),
        (n32(), n32(), n64()).prop_map(|(flow, epoch, sequence)| Control::Flow {
            flow,
            message: FlowControl::End { epoch, sequence }
        }),
        (n32(), n32(), any::<u16>(), body()).prop_map(|(flow, epoch, pair, body)| Control::Flow {
            flow,
            message: FlowControl::Pair { epoch, pair, body }
        }),
        (n32(), any::<bool>(), reason()).prop_map(|(driver, present, reason)| Control::Presence {
            driver,
            present,
            reason
        }),
        (n32(), n64(), n64(), n32(), n32()).prop_map(|(flow, received, lost, delay_us, jitter_us)| {
            Control::Flow { flow, message: FlowControl::Feedback { received, lost, delay_us, jitter_us } }
        }),
        n32().prop_map(|driver| Control::Linked { driver }),
        n32().prop_map(|driver| Control::Unlinked { driver }),
        (n32(), n64(), reason()).prop_map(|(driver, messages, reason)| Control::Lost {
            driver,
            messages,
            reason
        }),
    ]
}

fn preamble() -> impl Strategy<Value = Preamble> {
    let data = (token(), any::<u32>()).prop_map(|(session, driver)| Preamble::Data { session, driver });
    let way = (token(), any::<u32>()).prop_map(|(session, driver)| Preamble::Way { session, driver });
    prop_oneof![Just(Preamble::Control), data, way]
}

fn ticket() -> impl Strategy<Value = FlowTicket> {
    let (n32, n64) = (any::<u32>, any::<u64>);
    let source = (n32(), n32(), n64(), (n32(), n64()), any::<bool>()).prop_map(
        |(flow, epoch, next, prev, continues)| {
            FlowTicket::Source(SourceTicket { flow, epoch, next, prev, continues })
        },
    );
    let upcoming = option::of((n32(), option::of(n64())));
    let sink = (n32(), n32(), n32(), n64(), n64(), upcoming, (n32(), n64())).prop_map(
        |(flow, epoch, abandoned, next, lost, upcoming, trimmed_to)| {
            FlowTicket::Sink(SinkTicket { flow, epoch, abandoned, next, lost, upcoming, trimmed_to })
        },
    );
    prop_oneof![source, sink]
}

fn emit_ticket(ticket: &FlowTicket) -> Vec<u8> {
    let mut w = Writer::new();
    ticket.write(&mut w);
    w.finish()
}

fn parse_ticket(bytes: &[u8]) -> Result<FlowTicket, WireError> {
    let mut r = Reader::new(bytes);
    let ticket = FlowTicket::read(&mut r)?;
    r.end("ticket").map(|()| ticket)
}

fn record() -> impl Strategy<Value = RecordHeader> {
    (any::<u32>(), any::<u32>(), any::<u64>(), 0..=BODY_BYTES_MAX as u32, any::<u64>()).prop_map(
        |(flow, epoch, sequence, length, created)| RecordHeader {
            flow,
            epoch,
            sequence,
            container: Container { length, created },
        },
    )
}

proptest! {
    #[test]
    fn control_messages_survive_their_bytes(message in control(), behind in vec(any::<u8>(), 0..9)) {
        let mut bytes = message.emit();
        let length = bytes.len();
        bytes.extend(behind);
        prop_assert_eq!(Control::parse_frame(&bytes), Ok(Some((message, length))));
    }

    #[test]
    fn part_of_a_frame_waits_and_part_of_a_message_is_refused(message in control(), cut in any::<prop::sample::Index>()) {
        let bytes = message.emit();
        let cut = cut.index(bytes.len());
        prop_assert_eq!(Control::parse_frame(&bytes[..cut]), Ok(None));
        if let Some(half) = bytes[4..].get(..cut).filter(|half| half.len() < bytes.len() - 4) {
            let refused = Control::parse(half);
            prop_assert!(matches!(refused, Err(WireError::Short { .. })), "{refused:?}");
        }
    }

    #[test]
    fn a_changed_message_is_refused_or_is_another_message(
        message in control(),
        at in any::<prop::sample::Index>(),
        bit in 0..8u32,
    ) {
        let mut bytes = message.emit();
        let at = 4 + at.index(bytes.len() - 4);
        bytes[at] ^= 1u8 << bit;
        if let Ok(other) = Control::parse(&bytes[4..]) {
            prop_assert_ne!(&other, &message);
            prop_assert_eq!(other.emit(), bytes);
        }
    }

    #[test]
    fn any_bytes_are_refused_or_canonical(bytes in vec(any::<u8>(), 0..300), limit in any::<usize>()) {
        if let Ok(message) = Control::parse(&bytes) {
            prop_assert_eq!(&message.emit()[4..], &bytes[..]);
        }
        if let Ok(Some((message, length))) = Control::parse_frame(&bytes) {
            prop_assert_eq!(&message.emit()[..], &bytes[..length]);
        }
        if let Ok(preamble) = Preamble::parse(&bytes) {
            prop_assert_eq!(&preamble.emit()[..], &bytes[..Preamble::BYTES]);
        }
        if let Ok(ticket) = parse_ticket(&bytes) {
            prop_assert_eq!(emit_ticket(&ticket), &bytes[..]);
        }
        if let Ok(header) = RecordHeader::parse(&bytes, limit) {
            prop_assert!(header.container.length as usize <= limit);
            prop_assert_eq!(&header.emit()[..], &bytes[..RecordHeader::BYTES]);
        }
        if let Ok(container) = Container::parse(&bytes, limit) {
            prop_assert_eq!(&container.emit()[..], &bytes[..Container::BYTES]);
        }
    }

    #[test]
    fn preambles_survive_their_bytes(preamble in preamble(), cut in 0..Preamble::BYTES) {
        let bytes = preamble.emit();
        prop_assert_eq!(Preamble::parse(&bytes), Ok(preamble));
        let refused = Preamble::parse(&bytes[..cut]);
        prop_assert!(matches!(refused, Err(WireError::Short { .. })), "{refused:?}");
    }

    #[test]
    fn tickets_survive_their_bytes(ticket in ticket(), cut in any::<prop::sample::Index>(), flip in any::<prop::sample::Index>()) {
        let bytes = emit_ticket(&ticket);
        prop_assert!(parse_ticket(&bytes[..cut.index(bytes.len())]).is_err());
        let mut other = bytes.clone();
        other[flip.index(bytes.len())] ^= 1;
        prop_assert_ne!(parse_ticket(&other).ok(), Some(ticket.clone()));
        prop_assert_eq!(parse_ticket(&bytes), Ok(ticket));
    }

    #[test]
    fn a_version_error_names_both_versions(preamble in preamble(), theirs in any::<u16>()) {
        prop_assume!(theirs != PROTOCOL_VERSION);
        let mut bytes = preamble.emit();
        bytes[4..6].copy_from_slice(&theirs.to_le_bytes());
        let error = Preamble::parse(&bytes).unwrap_err().to_string();
        prop_assert_eq!(error, format!("protocol version {theirs}, this program speaks {PROTOCOL_VERSION}"));
        // A later version may have any bytes after its number.
        let refused = Preamble::parse(&bytes[..6]);
        prop_assert!(matches!(refused, Err(WireError::Version { .. })), "{refused:?}");
    }

    #[test]
    fn records_survive_their_bytes(record in record(), cut in 0..RecordHeader::BYTES) {
        let bytes = record.emit();
        prop_assert_eq!(RecordHeader::parse(&bytes, BODY_BYTES_MAX), Ok(record));
        let refused = RecordHeader::parse(&bytes[..cut], BODY_BYTES_MAX);
        prop_assert!(matches!(refused, Err(WireError::Short { .. })), "{refused:?}");
    }

    #[test]
    fn a_body_over_the_limit_is_refused_by_its_length_alone(limit in 0..u32::MAX, over in 1..=u32::MAX) {
        let length = limit.saturating_add(over);
        let refused = Container::parse(&length.to_le_bytes(), limit as usize);
        let expected = WireError::TooLong { what: "container length", length: length.into(), limit: limit.into() };
        prop_assert_eq!(refused, Err(expected));
    }

    #[test]
    fn a_frame_over_the_limit_is_refused_by_its_length_alone(length in FRAME_BYTES_MAX as u32 + 1..) {
        let refused = Control::parse_frame(&length.to_le_bytes());
        prop_assert!(matches!(refused, Err(WireError::TooLong { .. })), "{refused:?}");
    }

    #[test]
    fn module_frames_survive_their_bytes(frame in module_frame(), at in any::<u64>()) {
        let bytes = frame.emit(at);
        let header = ModuleHeader::parse(&bytes).unwrap();
        let body = &bytes[MODULE_HEADER_BYTES..];
        prop_assert_eq!((header.length as usize, header.at), (body.len(), at));
        prop_assert_eq!(ModuleFrame::parse(header.kind, body), Ok(frame));
    }

    #[test]
    fn any_bytes_are_a_module_frame_or_refused(kind in 0u8..16, body in vec(any::<u8>(), 0..80)) {
        if let Ok(frame) = ModuleFrame::parse(kind, &body)
            && !matches!(frame, ModuleFrame::Unknown(_))
        {
            prop_assert_eq!(&frame.emit(0)[MODULE_HEADER_BYTES..], &body[..]);
        }
    }

    #[test]
    fn a_long_text_is_truncated_to_the_limit(text in "\\PC{200,2000}") {
        let cut = |max: usize| &text[..text.floor_char_boundary(max)];
        let parse = |message: Control| Control::parse(&message.emit()[4..]);
        let reason = text.repeat(3);
        let expected = reason[..reason.floor_char_boundary(REASON_BYTES_MAX)].to_string();
        prop_assert_eq!(parse(Control::Goodbye { reason }), Ok(Control::Goodbye { reason: expected }));
        let entry = |summary: &str| CatalogueEntry {
            name: "n".into(),
            class: "c".into(),
            summary: summary.into(),
            present: true,
        };
        prop_assert_eq!(
            parse(Control::Catalogue { entries: vec![entry(&text)] }),
            Ok(Control::Catalogue { entries: vec![entry(cut(SUMMARY_BYTES_MAX))] })
        );
    }
}

/// The longest message of each kind with lists or several long fields fits a frame.
#[test]
fn messages_within_the_limits_fit_a_frame() {
    let long = |bytes: usize| "x".repeat(bytes);
    let entry = CatalogueEntry {
        name: long(NAME_BYTES_MAX),
        class: long(NAME_BYTES_MAX),
        summary: long(SUMMARY_BYTES_MAX),
        present: true,
    };
    let flow = AgreedFlow {
        flow: 1,
        direction: FlowDirection::DeviceToApplication,
        class: FlowClass::State,
        format: long(NAME_BYTES_MAX),
        pipeline: long(PIPELINE_BYTES_MAX),
    };
    let body = vec![0; CONTROL_BODY_BYTES_MAX];
    for message in [
        Control::Catalogue { entries: vec![entry; CATALOGUE_ENTRIES_MAX] },
        Control::Opened {
            key: PublicKey::default(),
            driver: 1,
            class: long(NAME_BYTES_MAX),
            description: vec![0; DESCRIPTION_BYTES_MAX],
            flows: vec![flow; FLOWS_MAX],
        },
        Control::Flow {
            flow: 1,
            message: FlowControl::Missing { epoch: 1, ranges: vec![(0, 1); MISSING_RANGES_MAX] },
        },
        Control::Flow { flow: 1, message: FlowControl::Pair { epoch: 1, pair: 0, body: body.clone() } },
    ] {
        let bytes = message.emit();
        assert_eq!(Control::parse_frame(&bytes), Ok(Some((message, bytes.len()))));
    }
}
