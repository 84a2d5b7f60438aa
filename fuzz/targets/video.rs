//! Pictures, parts of pictures, boxes in pictures, shapes of the pointer and texts, from the network.
#![no_main]

use libfuzzer_sys::fuzz_target;
use wire::BODY_BYTES_MAX;
use wire::formats::video::{Content, Header, emit_rectangles};

fuzz_target!(|bytes: &[u8]| {
    let Ok(header) = Header::parse(bytes) else { return };
    let (start, rest) = bytes.split_at(Header::BYTES);
    assert_eq!(header.emit(), start);
    let geometry = header.geometry;
    assert!(geometry.bytes() <= BODY_BYTES_MAX - Header::BYTES);
    assert!(geometry.tight().bytes() <= geometry.bytes());
    let again = match header.parse_content(rest) {
        Ok(Content::Frame(pixels)) => {
            if geometry.bytes() > 0 {
                let rows: usize =
                    (0..geometry.planes()).map(|number| geometry.plane(number).rows(pixels).count()).sum();
                assert!(rows >= geometry.height() as usize);
            }
            pixels.to_vec()
        }
        Ok(Content::Rectangles(rectangles, pixels)) => [&emit_rectangles(&rectangles), pixels].concat(),
        Ok(Content::Boxes(boxes)) => emit_rectangles(&boxes),
        Ok(Content::Cursor(cursor, pixels)) => [&cursor.emit(), pixels].concat(),
        Ok(Content::Clipboard(text)) => text.unwrap_or_default().into(),
        Err(_) => return,
    };
    assert_eq!(again, rest);
});
