//! The network path of a flow, as its sender sees it: for `outboard top`.

use serde::Serialize;

/// The path from this host to the peer.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct NetworkPath {
    /// Rate of sending, bits a second; `None` while the sender looks for it.
    pace_bits_per_second: Option<f64>,
    round_trip_ms: f64,
    /// Round trip without a queue.
    round_trip_min_ms: f64,
    loss_percent: f64,
    /// The part of the loss that no queue explains.
    random_loss_percent: f64,
    limited_by: Bottleneck,
}

/// The reason why a flow is not faster.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Bottleneck {
    /// There is nothing more to send.
    Device,
    /// The peer accepts no more: its application or its processor is slow.
    Peer,
    /// A processor, here or at the peer, is slower than the network.
    Processor,
    /// Another sender fills the queue of the link too.
    SharedLink,
    Link,
}

impl NetworkPath {
    /// Reads the figures of a transport's report; `None` if it has none about the path.
    pub(crate) fn from_figures(figures: &[(String, f64)]) -> Option<NetworkPath> {
        let figure = |key: &str| figures.iter().find(|(name, _)| name == key).map(|(_, value)| *value);
        let is = |key: &str| figure(key).is_some_and(|value| value > 0.0);
        let limited_by = match () {
            () if is("peer_window_full") => Bottleneck::Peer,
            () if is("sender_idle") => Bottleneck::Device,
            () if is("below_pace") => Bottleneck::Processor,
            () if is("contended") => Bottleneck::SharedLink,
            () => Bottleneck::Link,
        };
        Some(NetworkPath {
            pace_bits_per_second: figure("pace_bytes_per_s")
                .filter(|pace| *pace > 0.0)
                .map(|bytes| bytes * 8.0),
            round_trip_ms: figure("round_trip_us")? / 1e3,
            round_trip_min_ms: figure("round_trip_min_us")? / 1e3,
            loss_percent: figure("loss_ppm")? / 1e4,
            random_loss_percent: figure("random_loss_ppm")? / 1e4,
            limited_by,
        })
    }

    /// Describes the path, and the reaction to it, in a line each.
    pub(crate) fn describe(&self) -> [String; 2] {
        let pace = match self.pace_bits_per_second {
            Some(bits) => format!("paced at {:.1} Mbit/s", bits / 1e6),
            None => "not paced".into(),
        };
        let loss = match (self.loss_percent, self.random_loss_percent) {
            (loss, _) if loss < 0.005 => "no loss".into(),
            (loss, random) if random >= loss / 2.0 => {
                format!("{loss:.2} % random loss, compensated")
            }
            (loss, _) => format!("{loss:.2} % loss in a queue"),
        };
        let limit = match self.limited_by {
            Bottleneck::Device => "nothing more to send",
            Bottleneck::Peer => "limited by the peer",
            Bottleneck::Processor => "limited by a processor",
            Bottleneck::SharedLink => "limited by the link, which another sender fills too",
            Bottleneck::Link => "limited by the link",
        };
        let Self { round_trip_ms, round_trip_min_ms, .. } = self;
        [
            format!("path: {pace}, round trip {round_trip_ms:.1} ms (least {round_trip_min_ms:.1})"),
            format!("    {loss}; {limit}"),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(figures: &[(&str, f64)]) -> Option<NetworkPath> {
        let figures: Vec<_> = figures.iter().map(|(name, value)| (name.to_string(), *value)).collect();
        NetworkPath::from_figures(&figures)
    }

    const LOSSY: [(&str, f64); 5] = [
        ("pace_bytes_per_s", 5e6),
        ("round_trip_us", 104_200.0),
        ("round_trip_min_us", 100_000.0),
        ("loss_ppm", 10_000.0),
        ("random_loss_ppm", 9_000.0),
    ];

    #[test]
    fn a_path_names_its_loss_and_its_bottleneck() {
        let lossy = path(&LOSSY).unwrap();
        let text = [
            "path: paced at 40.0 Mbit/s, round trip 104.2 ms (least 100.0)",
            "    1.00 % random loss, compensated; limited by the link",
        ];
        assert_eq!(lossy.describe(), text);
        let with = |key| path(&[&LOSSY[..], &[(key, 1.0)]].concat()).unwrap().limited_by;
        assert_eq!(with("sender_idle"), Bottleneck::Device);
        assert_eq!(with("below_pace"), Bottleneck::Processor);
        assert_eq!(with("peer_window_full"), Bottleneck::Peer);
        assert_eq!(with("contended"), Bottleneck::SharedLink);
    }

    #[test]
    fn a_transport_without_figures_has_no_path() {
        assert_eq!(path(&[("sent", 1.0)]), None);
    }
}
