//! The experiments there are: `outboard-bench` runs them, and `outboard bench` offers them. Help, completions and the
//! manual page of both derive from this list.

/// The program that runs them. It stands beside `outboard`.
pub const PROGRAM: &str = "outboard-bench";

/// One experiment.
#[derive(Debug, Clone, Copy)]
pub struct Experiment {
    /// As it is named on the command line.
    pub name: &'static str,
    /// One line.
    pub summary: &'static str,
}

const fn experiment(name: &'static str, summary: &'static str) -> Experiment {
    Experiment { name, summary }
}

/// All of them: those of the dissertation's chapter 6 first, in its order. Sections are the dissertation's.
pub const EXPERIMENTS: &[Experiment] = &[
    experiment(
        "all",
        "Chapter 6 of the dissertation, whole: tables, pictures and a page, in some 20 minutes",
    ),
    experiment("end-to-end", "Section 6.1: a message from one host to another, 1,000 to 1,024,000 bytes"),
    experiment(
        "single-machine",
        "Section 6.2: from a message's making until right before it is written to the network",
    ),
    experiment(
        "throughput",
        "Section 6.3: megabytes a second of the whole system, timed by one acknowledgement",
    ),
    experiment(
        "device",
        "Section 6.4: a 3D mouse at 62.5 Hz; the device's side, the network, the application's side",
    ),
    experiment(
        "screen",
        "Sections 6.5 and 6.6: a screen's pictures a second, beside TigerVNC, x11vnc and GStreamer",
    ),
    experiment(
        "jitter",
        "Section 6.7: a device's rhythm over a network with jitter, with and without pairs (needs root)",
    ),
    experiment(
        "stages",
        "Section 6.8: what pairs cost, 0 to 8, as calls and as processes on pipes and shared memory",
    ),
    experiment("video", "Section 6.9.1: time between frames of 100 to 700 pixels, 0 to 8 pairs"),
    experiment("video-single", "Section 6.9.2: a frame's time on a single machine, 0 to 8 pairs"),
    experiment(
        "batching",
        "Section 6.9.2: a frame's time on a single machine, 1 to 10 slots of shared memory",
    ),
    experiment(
        "viewer",
        "A VNC viewer far from its desktop: how soon keys and clicks are answered, beside TigerVNC's server",
    ),
    experiment("latency", "One-way time of a message over loopback TCP, beside a bare ping-pong"),
    experiment("flood", "Messages of 1 MB as fast as they go, over TCP and UDP, beside bare sockets"),
    experiment(
        "trace-cost",
        "What `outboard trace` costs: off, one message in 64, and every message, in turns",
    ),
    experiment(
        "seal-cost",
        "What sealing costs: TCP and UDP between hosts that know each other, and bare, in turns",
    ),
    experiment(
        "tunnels",
        "What others' tunnels cost: a port that OpenSSH forwards and WireGuard in user space, beside ours and bare TCP",
    ),
    experiment(
        "congestion",
        "QUIC and UDP over a thin and lossy link: a flood and small records beside it, by congestion control",
    ),
    experiment(
        "reliability",
        "What faults cost: cut links, killed processes, full disks and more, for each class of device (needs root)",
    ),
    experiment(
        "chaos",
        "Sequences of faults, drawn from a seed, on random devices, pipelines and transports (needs root for the emulated network)",
    ),
    experiment(
        "attacks",
        "What attacks on a sharer reach, and what a running flow feels of them (needs root for the emulated network)",
    ),
    experiment("partner", "Tables 3 and 4 of the Partner paper: what the partner vector costs"),
    experiment("isolate", "What a stage in a process of its own costs, isolated or not, beside a call"),
    experiment(
        "links",
        "What handing a message on costs: by a call, through pipes, in shared memory, and bare",
    ),
    experiment(
        "soak-shm",
        "Messages through stages on shared memory that are killed at random, each byte checked",
    ),
    experiment(
        "multiplex",
        "One device of 62.5 updates a second at four hosts far and near, beside one host alone",
    ),
    experiment(
        "pairs",
        "Every pair × what it must stand: undo, loss, reordering, corruption, sizes, restart",
    ),
    experiment("compose", "Random pipelines of pairs over two hosts and a bad network"),
    experiment("skew", "Figure 4.5 of the dissertation: two devices whose clocks drift, at one sink"),
    experiment("auto", "What `auto` costs beside every fixed setting, on six networks, in virtual time"),
    experiment(
        "efforts",
        "What each level of `compress` takes, by content: the constants that its `auto` goes by",
    ),
    experiment(
        "load",
        "1,000 flows like keyboards from 100 peers, then 500 Mbit/s beside them, and one flow alone",
    ),
];
