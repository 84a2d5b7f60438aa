//! A film from one program to another over a link that is too thin for its pictures, with the real program and its workers.

mod support;

#[cfg(not(feature = "media"))]
#[test]
fn a_build_without_the_codec_refuses_to_encode_and_says_so() {
    let source = "pattern:format=video,rate=0,count=1";
    support::outboard(&["connect", source, "null", "--via", "encode"])
        .refused(2, &["`encode`", "without the feature `media`", "pictures are sent as they are"]);
    let checks = support::outboard(&["doctor", "--json"]).done().json_lines();
    let codec = checks.iter().find(|check| check["name"] == "video codec").expect("a check of the codec");
    assert_eq!(codec["state"], "limited", "{codec}");
}

#[cfg(feature = "media")]
mod with_codec {
    use super::support::{Scratch, Service, figure, outboard};
    use netsim::Params;
    use netsim::relay::Relay;
    use std::net::SocketAddr;

    const WIDTH: usize = 320;
    const HEIGHT: usize = 240;
    const PICTURES: usize = 60;
    const PICTURE_BYTES: usize = WIDTH * HEIGHT * 3 / 2;
    /// Least PSNR of a picture, decibels; without its reference a picture has less than 20.
    const PSNR_MIN_DB: f64 = 26.0;

    /// A film in YUV4MPEG2 whose shapes move.
    fn film() -> Vec<u8> {
        let mut film = format!("YUV4MPEG2 W{WIDTH} H{HEIGHT} F30:1 C420jpeg\n").into_bytes();
        for number in 0..PICTURES {
            film.extend(b"FRAME\n");
            let wave = |at: usize, period: usize| (at % period).abs_diff(period / 2) * 180 / period;
            let pixel = |at: usize| {
                (30 + wave(at % WIDTH + 4 * number, 80) + wave(at / WIDTH + 3 * number, 64)) as u8
            };
            film.extend((0..WIDTH * HEIGHT).map(pixel));
            film.extend([128; WIDTH * HEIGHT / 2]);
        }
        film
    }

    fn pictures(film: &[u8]) -> Vec<&[u8]> {
        let start = film.iter().position(|byte| *byte == b'\n').expect("a header") + 1;
        film[start..]
            .chunks_exact(b"FRAME\n".len() + PICTURE_BYTES)
            .map(|picture| &picture[b"FRAME\n".len()..])
            .collect()
    }

    fn psnr_db(one: &[u8], other: &[u8]) -> f64 {
        let square = |(one, other): (&u8, &u8)| f64::from(one.abs_diff(*other)).powi(2);
        let mean = one.iter().zip(other).map(square).sum::<f64>() / one.len() as f64;
        10.0 * (255.0 * 255.0 / mean.max(1e-9)).log10()
    }

    /// As they are, the pictures take 28 Mbit/s. The flow of a film is reliable, so each picture has to arrive.
    #[test]
    fn every_picture_of_a_film_crosses_a_thin_and_lossy_link() {
        let scratch = Scratch::new();
        let (from, to) = (scratch.path("film.y4m"), scratch.path("seen.y4m"));
        let film = film();
        std::fs::write(&from, &film).unwrap();
        let (mut share, address) =
            Service::share(&format!("y4m:{from}"), &["--name", "film", "--via", "encode", "--stats"]);
        let link =
            Params { delay_ns: 10_000_000, loss_ppm: 20_000, rate_bps: 2_000_000, ..Params::default() };
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        let relay = Relay::start(any, address.parse().unwrap(), link, 1).unwrap();
        let mut attach =
            Service::start(&["attach", &format!("{}/film", relay.address()), "--as", &format!("y4m:{to}")]);
        attach.wait("flow-ended");
        assert_eq!(attach.child.wait().unwrap().code(), Some(0));
        let seen = std::fs::read(&to).unwrap();
        let (sent, seen) = (pictures(&film), pictures(&seen));
        assert_eq!(seen.len(), PICTURES);
        for (number, (sent, seen)) in sent.iter().zip(seen).enumerate() {
            let psnr = psnr_db(sent, seen);
            assert!(psnr > PSNR_MIN_DB, "picture {number}: {psnr} dB");
        }
        let pending = share.pending();
        let stages = share
            .seen
            .iter()
            .chain(&pending)
            .filter_map(|event| event["stats"]["outgoing"]["stages"].as_array().cloned())
            .next_back()
            .expect("statistics");
        assert!(figure(&stages[0]["figures"], "coded") > 0.0, "{stages:?}");
        let attach_pending = attach.pending();
        for events in [&share.seen, &pending, &attach.seen, &attach_pending] {
            let warning = events.iter().find(|event| event["event"] == "warning");
            assert_eq!(warning, None, "the codec needs no call that the sandbox refuses");
        }
    }

    #[test]
    fn it_takes_only_video_and_its_doctor_is_content() {
        outboard(&["connect", "pattern", "null", "--via", "encode"])
            .refused(2, &["the flow is bytes", "`encode`", "takes only video"]);
        let checks = outboard(&["doctor", "--json"]).done().json_lines();
        let codec = checks.iter().find(|check| check["name"] == "video codec").expect("a check of the codec");
        assert_eq!(codec["state"], "ok", "{codec}");
    }
}
