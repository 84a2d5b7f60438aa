//! The six networks of the sweep: the parameters of one direction of a link over time.

use netsim::Params;

/// A network.
pub(super) struct Network {
    pub(super) name: &'static str,
    /// Bytes of a packet besides its record: headers, and the air time of a shared medium.
    pub(super) packet_bytes: u32,
    kind: Kind,
}

enum Kind {
    Steady(&'static str),
    /// Parameters between bursts and in bursts.
    Bursts(&'static str, &'static str),
    /// One of these for ten seconds, then another one.
    Changing(&'static [&'static str]),
}

const LAN: &str = "delay=100us,jitter=100us,rate=1gbit";
// Losses are bursts with heavy-tailed lengths (Carvalho, Angeja, Navarro: A New Packet Loss Model of the IEEE
// 802.11g Wireless Network for Multimedia Communications, IEEE Trans. Consumer Electronics 51(3), 2005): short ones
// always, and long ones with queueing while other stations send. All numbers are assumptions.
const WIFI: &str = "delay=2ms,jitter=4ms,burst=0.5%/3,rate=20mbit";
const WIFI_BURST: &str = "delay=2ms,jitter=60ms,burst=10%/5,rate=20mbit";
// Retransmission in MAC and acknowledged RLC turns nearly all loss into jitter (3GPP TS 36.322). Numbers are assumptions.
const LTE: &str = "delay=25ms,jitter=15ms,loss=0.01%,rate=500kbit";
// Within Verizon's guarantee between New York and London: a round trip of 90 ms and 99.5 % of packets. Jitter and rate are
// assumptions.
const TRANSATLANTIC: &str = "delay=40ms,jitter=3ms,loss=0.3%,rate=50mbit";
// Geostationary: 35 786 km up and down take 240 ms, the rest is channel access. Loss and rate are assumptions.
const SATELLITE: &str = "delay=300ms,jitter=15ms,burst=0.4%/3,rate=400kbit";

/// IPv4, UDP, and an Ethernet frame with its gap.
const WIRED_BYTES: u32 = 28 + 38;

pub(super) static NETWORKS: [Network; 6] = [
    Network { name: "LAN", packet_bytes: WIRED_BYTES, kind: Kind::Steady(LAN) },
    // A frame's preamble and acknowledgement take about 100 us of air time.
    Network { name: "Wi-Fi with bursts", packet_bytes: 28 + 250, kind: Kind::Bursts(WIFI, WIFI_BURST) },
    Network { name: "LTE", packet_bytes: 28, kind: Kind::Steady(LTE) },
    Network { name: "transatlantic", packet_bytes: WIRED_BYTES, kind: Kind::Steady(TRANSATLANTIC) },
    Network { name: "satellite", packet_bytes: 28, kind: Kind::Steady(SATELLITE) },
    Network {
        name: "changes every 10 s",
        packet_bytes: 28,
        kind: Kind::Changing(&[LAN, WIFI, LTE, TRANSATLANTIC, SATELLITE]),
    },
];

/// Random numbers (SplitMix64).
pub(super) struct Draw(pub(super) u64);

impl Draw {
    /// Draws a number from 0 to 1.
    pub(super) fn share(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ (mixed >> 31)) >> 11) as f64 / (1u64 << 53) as f64
    }
}

impl Network {
    /// Returns the parameters with their start times in milliseconds. The first one starts at 0.
    pub(super) fn course(&self, seconds: u64, seed: u64) -> Vec<(u64, Params)> {
        let read = |text: &str| text.parse::<Params>().expect("valid parameters");
        let end_ms = seconds * 1000;
        let mut draw = Draw(seed);
        match self.kind {
            Kind::Steady(text) => vec![(0, read(text))],
            Kind::Bursts(calm, burst) => {
                let (mut at_ms, mut course) = (0, Vec::new());
                while at_ms < end_ms {
                    course.push((at_ms, read(calm)));
                    // A burst every 1.5 s on average, 100 to 300 ms long.
                    at_ms += (-1500.0 * (1.0 - draw.share()).ln()) as u64;
                    course.push((at_ms, read(burst)));
                    at_ms += 100 + (200.0 * draw.share()) as u64;
                }
                course
            }
            Kind::Changing(texts) => {
                let mut last = texts.len();
                let one = |at_ms: u64| {
                    // Never the same one again.
                    let others: Vec<usize> = (0..texts.len()).filter(|index| *index != last).collect();
                    last = others[(draw.share() * others.len() as f64) as usize];
                    (at_ms, read(texts[last]))
                };
                (0..end_ms).step_by(10_000).map(one).collect()
            }
        }
    }
}
