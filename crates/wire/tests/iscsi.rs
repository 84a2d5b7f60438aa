//! The iSCSI and SCSI codecs: vectors by the tables of RFC 7143, SPC-4 and SBC-3, and any bytes end in a value or an error.

use proptest::prelude::*;
use wire::WireError;
use wire::iscsi::{
    Agreed, DATA_BYTES_MAX, FromTarget, HEADER_BYTES, NO_TAG, Numbers, Received, Status, TEXT_BYTES_MAX,
    ToTarget, Transfer, login_refusal, lun_field, offer, padded, sense,
};
use wire::scsi::{self, Capacity, Inquiry, Mode, Sense, SenseKey};

const NUMBERS: Numbers = Numbers { command: 0x0102_0304, expected_status: 0x0506_0708 };

/// Returns 48 bytes that are zero but for these.
fn header(fields: &[(usize, &[u8])]) -> [u8; HEADER_BYTES] {
    let mut bytes = [0; HEADER_BYTES];
    for (at, field) in fields {
        bytes[*at..at + field.len()].copy_from_slice(field);
    }
    bytes
}

#[test]
fn requests_have_the_bytes_of_the_protocol() {
    let sequence: (usize, &[u8]) = (24, &[1, 2, 3, 4, 5, 6, 7, 8]);
    let isid = [0x80, 1, 2, 3, 0, 9];
    let login = ToTarget::Login { isid, is_final: true, text_bytes: 0x123 };
    let expected = header(&[(0, &[0x43, 0x87]), (5, &[0, 1, 0x23]), (8, &isid), sequence]);
    assert_eq!(login.to_bytes(NUMBERS), expected);
    let cdb = scsi::write(0x11, 8, true);
    let transfer = Transfer::Write { length: 4096, immediate: 512, continues: false };
    let command = ToTarget::Command { lun: 1 << 48, tag: 7, cdb: &cdb, transfer };
    let front: &[(usize, &[u8])] = &[
        (0, &[0x01, 0xa1]),
        (5, &[0, 2, 0]),
        (9, &[1]),
        (16, &[0, 0, 0, 7]),
        (20, &[0, 0, 16, 0]),
        sequence,
        (32, &[0x8a, 8, 0, 0, 0, 0, 0, 0, 0, 0x11, 0, 0, 0, 8]),
    ];
    assert_eq!(command.to_bytes(NUMBERS), header(front));
    let continued = Transfer::Write { length: 4096, immediate: 512, continues: true };
    let command = ToTarget::Command { lun: 0, tag: 0, cdb: &cdb, transfer: continued };
    assert_eq!(command.to_bytes(NUMBERS)[1], 0x21);
    let read = ToTarget::Command { lun: 0, tag: 0, cdb: &scsi::read(1, 1), transfer: Transfer::Read(512) };
    assert_eq!(read.to_bytes(NUMBERS)[..2], [0x01, 0xc1]);
    let data = ToTarget::Data {
        lun: 0,
        tag: 7,
        transfer_tag: 9,
        number: 2,
        offset: 512,
        length: 1024,
        is_final: true,
    };
    let expected = header(&[
        (0, &[0x05, 0x80]),
        (5, &[0, 4, 0]),
        (19, &[7]),
        (23, &[9]),
        (28, &[5, 6, 7, 8]),
        (39, &[2]),
        (42, &[2, 0]),
    ]);
    assert_eq!(data.to_bytes(NUMBERS), expected);
    let pong = ToTarget::Pong { lun: 3, transfer_tag: 5 };
    let expected = header(&[(0, &[0x40, 0x80]), (15, &[3]), (16, &[0xff; 4]), (23, &[5]), sequence]);
    assert_eq!(pong.to_bytes(NUMBERS), expected);
    let logout = ToTarget::Logout { tag: 6 };
    assert_eq!(logout.to_bytes(NUMBERS), header(&[(0, &[0x46, 0x80]), (19, &[6]), sequence]));
}

#[test]
fn responses_are_parsed() {
    let parse = |fields: &[(usize, &[u8])]| Received::parse(&header(fields)).unwrap();
    let counts: (usize, &[u8]) = (24, &[0, 0, 0, 5, 0, 0, 0, 6, 0, 0, 0, 7]);
    let found = parse(&[(0, &[0x21, 0x82, 0, 2]), (5, &[0, 0, 20]), (19, &[9]), counts]);
    let status = Some(Status { code: scsi::CHECK_CONDITION, has_residual: true });
    let kind = FromTarget::Response { tag: 9, status };
    assert_eq!(found, Received { kind, status_number: Some(5), command_max: 7, data_bytes: 20 });
    let failed = parse(&[(0, &[0x21, 0x80, 1]), counts]);
    assert_eq!(failed.kind, FromTarget::Response { tag: 0, status: None });
    let data = parse(&[(0, &[0x25, 0x81]), (5, &[4, 0, 0]), (19, &[9]), (42, &[2, 0]), counts]);
    let status = Some(Status { code: scsi::GOOD, has_residual: false });
    assert_eq!(data.kind, FromTarget::Data { tag: 9, offset: 512, status });
    let silent = parse(&[(0, &[0x25]), counts]);
    assert_eq!(
        (silent.kind, silent.status_number),
        (FromTarget::Data { tag: 0, offset: 0, status: None }, None)
    );
    let ready = parse(&[(0, &[0x31, 0x80]), (19, &[9]), (23, &[8]), (42, &[2, 0, 0, 0, 4, 0]), counts]);
    assert_eq!(ready.kind, FromTarget::Ready { tag: 9, transfer_tag: 8, offset: 512, length: 1024 });
    let ping = parse(&[(0, &[0x20, 0x80]), (16, &[0xff; 4]), (23, &[8]), counts]);
    assert_eq!((ping.kind, ping.status_number), (FromTarget::Ping { lun: 0, transfer_tag: 8 }, None));
    let login = parse(&[(0, &[0x23, 0x87]), (36, &[2, 1]), counts]);
    assert_eq!(login.kind, FromTarget::Login { is_final: true, continues: false, status: 0x0201 });
    assert!(login_refusal(0x0201).contains("CHAP"));
    assert_eq!(parse(&[(0, &[0x32, 0x80]), (36, &[3])]).kind, FromTarget::Event(3));
    assert_eq!(parse(&[(0, &[0x3f, 0x80, 4])]).kind, FromTarget::Reject(4));
    assert_eq!(parse(&[(0, &[0x26, 0x80])]).kind, FromTarget::Logout);
}

#[test]
fn headers_beyond_the_limits_are_refused() {
    let refused = |fields: &[(usize, &[u8])]| Received::parse(&header(fields)).unwrap_err();
    assert_eq!(refused(&[(0, &[0x24])]), WireError::Value { what: "kind of a PDU", value: 0x24 });
    let additional = WireError::Value { what: "additional header", value: 1 };
    assert_eq!(refused(&[(0, &[0x21, 0, 0, 0, 1])]), additional);
    let too_long = |length: usize, limit: usize| WireError::TooLong {
        what: "data segment",
        length: length as u64,
        limit: limit as u64,
    };
    assert_eq!(refused(&[(0, &[0x21]), (6, &[0x20, 1])]), too_long(TEXT_BYTES_MAX + 1, TEXT_BYTES_MAX));
    assert_eq!(refused(&[(0, &[0x25]), (5, &[4, 0, 1])]), too_long(DATA_BYTES_MAX + 1, DATA_BYTES_MAX));
}

#[test]
fn a_login_agrees_on_the_smaller_terms() {
    let text = String::from_utf8(offer("iqn.a", "iqn.b")).unwrap();
    assert!(
        text.starts_with("InitiatorName=iqn.a\0TargetName=iqn.b\0") && text.ends_with("InOrder=Yes\0"),
        "{text}"
    );
    let mut agreed = Agreed::default();
    let answer = b"MaxRecvDataSegmentLength=65536\0InitialR2T=No\0ImmediateData=No\0FirstBurstLength=4096\0\
        MaxBurstLength=16384\0HeaderDigest=None\0TargetAlias=x\0IFMarker=No\0";
    assert_eq!(agreed.handle(answer).unwrap(), b"IFMarker=NotUnderstood\0");
    let expected = Agreed {
        segment_bytes: 65_536,
        first_bytes: 4096,
        sends_first: true,
        sends_immediate: false,
        burst_bytes: 16_384,
    };
    assert_eq!(agreed, expected);
    for wrong in [
        "HeaderDigest=CRC32C",
        "MaxBurstLength=0",
        "MaxRecvDataSegmentLength=99",
        "AuthMethod=CHAP",
        "InitialR2T=1",
        "ErrorRecoveryLevel=1",
        "key",
    ] {
        assert!(Agreed::default().handle(wrong.as_bytes()).unwrap_err().contains(wrong), "{wrong}");
    }
    assert!(Agreed::default().handle(&b"a=b\0".repeat(100)).is_err());
}

#[test]
fn units_and_lengths_have_their_fields() {
    assert_eq!([lun_field(0), lun_field(255)], [Some(0), Some(0xff << 48)]);
    assert_eq!(
        [lun_field(256), lun_field(0x3fff), lun_field(0x4000)],
        [Some(0x4100 << 48), Some(0x7fff << 48), None]
    );
    assert_eq!([0, 1, 4, 5].map(padded), [0, 4, 4, 8]);
    assert_eq!(sense(&[0, 2, 0x70, 6, 0]), Some(&[0x70, 6][..]));
    assert_eq!([sense(&[0]), sense(&[0, 2, 1])], [None, None]);
    assert_eq!(NO_TAG, 0xffff_ffff);
}

#[test]
fn commands_and_answers_of_a_disk() {
    assert_eq!(scsi::synchronize_cache(), [&[0x35][..], &[0; 15]].concat()[..]);
    assert_eq!(scsi::inquiry()[..5], [0x12, 0, 0, 0, 252]);
    assert_eq!(scsi::limits()[..5], [0x12, 1, 0xb0, 0, 252]);
    assert_eq!(scsi::mode()[..5], [0x1a, 0, 8, 0, 252]);
    let capacity = scsi::capacity();
    assert_eq!((&capacity[..2], &capacity[10..14]), (&[0x9e, 0x10][..], &[0, 0, 0, 252][..]));
    let bytes = [0, 0, 0, 0, 0, 0, 7, 0xff, 0, 0, 2, 0, 0, 3];
    let expected = Capacity { blocks: 2048, block_bytes: 512, physical_exponent: 3, is_protected: false };
    assert_eq!(Capacity::parse(&bytes), Ok(expected));
    assert!(Capacity::parse(&[0xff; 14]).is_err());
    assert_eq!(Inquiry::parse(&[0x7f]), Ok(Inquiry { exists: false, device_type: 0x1f }));
    for (page, writes_through) in [
        (&[0, 8, 10, 0][..], true),
        (&[0, 0x88, 10, 4], false),
        (&[8, 1, 2, 3, 4, 5, 6, 7, 8, 8, 10, 1], true),
        (&[0, 10, 10, 0], false),
        (&[0], false),
    ] {
        let mode = Mode { is_read_only: true, can_force: true, writes_through };
        assert_eq!(Mode::parse(&[&[3, 0, 0x90], page].concat()), Ok(mode), "{page:?}");
    }
    assert!(scsi::has_limits(&[0, 0, 0, 2, 0, 0xb0]) && !scsi::has_limits(&[0, 0, 0, 1, 0, 0xb0]));
    assert_eq!(scsi::transfer_blocks_max(&[0, 0xb0, 0, 60, 0, 0, 0, 0, 0, 0, 1, 0]), Some(256));
    assert_eq!(scsi::transfer_blocks_max(&[0; 12]), None);
    let fixed = Sense { key: SenseKey::UnitAttention, code: (0x29, 1) };
    assert_eq!(Sense::parse(&[0xf0, 0, 6, 0, 0, 0, 0, 6, 0, 0, 0, 0, 0x29, 1]), Some(fixed));
    let described = Sense { key: SenseKey::DataProtect, code: (0x27, 7) };
    assert_eq!(Sense::parse(&[0x72, 7, 0x27, 7]), Some(described));
    assert_eq!((Sense::parse(&[]), Sense::parse(&[1, 2])), (None, None));
    assert_eq!(fixed.to_string(), "unit attention, code 29/01");
}

proptest! {
    #[test]
    fn any_header_is_parsed_or_refused(bytes: [u8; 32], rest: [u8; 16]) {
        let header: [u8; HEADER_BYTES] = [&bytes[..], &rest[..]].concat().try_into().unwrap();
        if let Ok(received) = Received::parse(&header) {
            prop_assert!(received.data_bytes <= DATA_BYTES_MAX);
        }
    }

    #[test]
    fn any_text_and_data_are_handled(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        let mut agreed = Agreed::default();
        if agreed.handle(&bytes).is_ok() {
            prop_assert!(agreed.segment_bytes >= 512 && agreed.first_bytes <= 262_144);
        }
        let _ = (sense(&bytes).and_then(Sense::parse), scsi::has_limits(&bytes), scsi::transfer_blocks_max(&bytes));
        let _ = (Capacity::parse(&bytes), Inquiry::parse(&bytes), Mode::parse(&bytes));
    }
}
