//! The six networks of the sweep, as what one direction of a link does from each moment on.

use netsim::Params;

/// A network.
pub(super) struct Network {
    pub(super) name: &'static str,
    /// Bytes that each packet costs beyond its record: headers, and air time where the air is shared.
    pub(super) packet_bytes: u32,
    kind: Kind,
}

enum Kind {
    Steady(&'static str),
    /// What it does between bursts, and in them.
    Bursts(&'static str, &'static str),
    /// One of these for ten seconds, then another.
    Changing(&'static [&'static str]),
}

const LAN: &str = "delay=100us,jitter=100us,rate=1gbit";
// Losses come in bursts whose lengths have a heavy tail (Carvalho, Angeja, Navarro: A New Packet Loss Model of the IEEE
// 802.11g Wireless Network for Multimedia Communications, IEEE Trans. Consumer Electronics 51(3), 2005): short ones
// always, and long ones while others are on the air, when messages wait too. All numbers are chosen.
const WIFI: &str = "delay=2ms,jitter=4ms,burst=0.5%/3,rate=20mbit";
const WIFI_BURST: &str = "delay=2ms,jitter=60ms,burst=10%/5,rate=20mbit";
// Retransmission in MAC and acknowledged RLC makes jitter of nearly all loss (3GPP TS 36.322). The numbers are chosen.
const LTE: &str = "delay=25ms,jitter=15ms,loss=0.01%,rate=500kbit";
// Within what Verizon guarantees between New York and London: 90 ms for both ways, and 99.5 % of packets. Jitter and
// rate are chosen.
const TRANSATLANTIC: &str = "delay=40ms,jitter=3ms,loss=0.3%,rate=50mbit";
// Geostationary: 35 786 km up and down take 240 ms, the rest is access to the channel. Loss and rate are chosen.
const SATELLITE: &str = "delay=300ms,jitter=15ms,burst=0.4%/3,rate=400kbit";

/// IPv4 and UDP, behind an Ethernet frame with its gap.
const WIRED_BYTES: u32 = 28 + 38;

pub(super) static NETWORKS: [Network; 6] = [
    Network { name: "LAN", packet_bytes: WIRED_BYTES, kind: Kind::Steady(LAN) },
    // A frame's preamble and acknowledgement take the air for about 100 us.
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

/// Draws numbers (SplitMix64).
pub(super) struct Draw(pub(super) u64);

impl Draw {
    /// Uniform in 0 to 1.
    pub(super) fn share(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ (mixed >> 31)) >> 11) as f64 / (1u64 << 53) as f64
    }
}

impl Network {
    /// What it does, from when on (milliseconds), for so many seconds; the first is of 0.
    pub(super) fn course(&self, seconds: u64, seed: u64) -> Vec<(u64, Params)> {
        let read = |text: &str| text.parse::<Params>().expect("the networks are well written");
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
                    // Never twice the same.
                    let others: Vec<usize> = (0..texts.len()).filter(|index| *index != last).collect();
                    last = others[(draw.share() * others.len() as f64) as usize];
                    (at_ms, read(texts[last]))
                };
                (0..end_ms).step_by(10_000).map(one).collect()
            }
        }
    }
}
