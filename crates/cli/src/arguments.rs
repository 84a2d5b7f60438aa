//! The command line, as DESIGN says it: names, options and help, declared once.

use clap::builder::{PossibleValue, PossibleValuesParser};
use clap::{Args, Parser, Subcommand};
use clap_complete::Shell;
use experiments::EXPERIMENTS;
use runtime::config::DEFAULT_LISTEN;
use std::ffi::OsString;
use std::num::NonZeroU32;
use std::path::PathBuf;

/// Use any I/O device from any machine, with applications that don't know.
///
/// `outboard share DEVICE` where the device is, `outboard attach HOST/NAME` where the application is.
#[derive(Debug, Parser)]
#[command(name = "outboard", version, propagate_version = true, disable_help_subcommand = true)]
#[command(after_help = "Exit status: 0 done, 1 failed, 2 wrong usage.")]
pub(crate) struct Arguments {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// List what this host can share, or what another shares with it
    Devices(Devices),
    /// Find hosts on the local network that announce themselves (`share --announce`)
    Find {
        /// How long to listen
        #[arg(long, value_name = "SECONDS", default_value_t = 3.0)]
        seconds: f64,
        #[command(flatten)]
        json: Json,
    },
    /// Offer a device to other hosts
    Share(Share),
    /// Use devices of another host
    Attach(Attach),
    /// Make two hosts known to each other, by a code that one shows and the other is told
    Pair(Pair),
    /// List, rename, restrict and remove the hosts that this one knows
    Peers(Peers),
    /// Join two partners of this host, without a network
    Connect(Connect),
    /// Do what a TOML file says, in the words of the command line, as a service
    Run(Run),
    /// Have `outboard run` read its file again: what is unchanged goes on untouched
    Reload {
        /// The process, if several run
        #[arg(long, value_name = "PID")]
        process: Option<i32>,
        #[command(flatten)]
        json: Json,
    },
    /// Say whether what runs here does what it is to do: exit status 0 if it does
    Health {
        /// Only this process
        #[arg(long, value_name = "PID")]
        process: Option<i32>,
        #[command(flatten)]
        json: Json,
    },
    /// Describe pairs, devices and transports, with their options
    Modules {
        /// Only this one, with its documentation
        name: Option<String>,
        #[command(flatten)]
        json: Json,
    },
    /// Show what runs on this host, live: every flow, and what its adaptive pairs chose and why
    Top {
        /// Show it once
        #[arg(long)]
        once: bool,
        #[command(flatten)]
        json: Json,
    },
    /// Show where the time of messages goes inside this host: each stage, system call and wait, live
    Trace(Trace),
    /// Give a flow another pipeline while it runs: no message is lost, repeated or mixed
    Change(Change),
    /// Show or set what an attached device has to be set, such as a camera's brightness
    Control(Control),
    /// Run one module as a process: containers in, containers out
    Module(Module),
    /// Become another program, with nothing but what it needs
    #[command(hide = true)]
    Confined(Confined),
    /// Run paths for the broker at the other end of descriptor 3, with nothing but what that hands over
    #[command(hide = true)]
    Worker {
        /// What is seen of it in the list of processes
        name: String,
    },
    /// Say what this host lacks and how to mend it
    Doctor {
        #[command(flatten)]
        json: Json,
    },
    /// Show two hosts with a bad network between them, live
    Demo(Demo),
    /// Repeat the papers' experiments on this machine, beside the bare mechanism and the papers' figures
    Bench(Bench),
    /// Print a completion script
    Completions {
        /// For this shell
        shell: Shell,
    },
    /// Print the manual page, roff
    Man,
}

#[derive(Debug, Args)]
pub(crate) struct Devices {
    /// Another host that knows this one: HOST[:PORT]
    pub(crate) host: Option<String>,
    /// Go on, and list them again whenever one comes or goes
    #[arg(long, requires = "host")]
    pub(crate) watch: bool,
    /// Ask nobody who they are. Said on both sides
    #[arg(long, requires = "host")]
    pub(crate) insecure: bool,
    #[command(flatten)]
    pub(crate) json: Json,
}

/// SIGHUP, or `outboard reload`, has it read the file again; one that is wrong changes nothing. What cannot be had now
/// is tried again by itself.
#[derive(Debug, Args)]
pub(crate) struct Run {
    /// The file; `-` is standard input
    pub(crate) file: PathBuf,
    /// Only say what is wrong with it
    #[arg(long)]
    pub(crate) check: bool,
    /// Read what other hosts say in processes alone that can open no file, device or socket, or refuse (as for `share`)
    #[arg(long)]
    pub(crate) require_sandbox: bool,
    /// Serve metrics for Prometheus at http://ADDRESS:PORT/metrics; a port alone is one of loopback
    #[arg(long, value_name = "[ADDRESS:]PORT")]
    pub(crate) metrics: Option<String>,
    /// How events are told: `text`; `json`, an object a line with time and level
    #[arg(long, value_name = "FORMAT", default_value = "text", value_enum)]
    pub(crate) log: Log,
    #[command(flatten)]
    pub(crate) report: Report,
}

/// How events are told.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Log {
    /// One line for people
    Text,
    /// An object a line, with time and level
    Json,
    /// An object a line, as `--json` has it
    #[value(skip)]
    Events,
}

/// A sample of the messages is stamped at every hand-over, and the table says how long what lies between took:
/// p50, p90, p99 and longest, microseconds, by the messages' size.
#[derive(Debug, Args)]
pub(crate) struct Trace {
    /// Only this device's flows (`outboard top` lists them)
    pub(crate) name: Option<String>,
    /// Which messages: one in so many
    #[arg(long, value_name = "1/N", default_value = "1/64", value_parser = one_in)]
    pub(crate) sample: NonZeroU32,
    /// Trace this long, then show it once [default: until q is pressed; 10 with --perfetto]
    #[arg(long, value_name = "N")]
    pub(crate) seconds: Option<f64>,
    /// Write a trace file for https://ui.perfetto.dev or chrome://tracing: each message, each part of its way
    #[arg(long, value_name = "FILE")]
    pub(crate) perfetto: Option<PathBuf>,
    /// Put the other host's trace file into this one's too, its times by this host's clock
    #[arg(long, value_name = "FILE", requires = "perfetto")]
    pub(crate) with: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) json: Json,
}

/// `1/64`.
fn one_in(text: &str) -> Result<NonZeroU32, String> {
    let count = text.strip_prefix("1/").and_then(|count| count.parse().ok());
    count.ok_or_else(|| format!("`{text}` is not 1/N with N from 1 to {}, such as 1/64", u32::MAX))
}

#[derive(Debug, Args)]
pub(crate) struct Change {
    /// Name of the device, as it is shared and attached (`outboard top` lists them); where both hosts are this one, the
    /// attacher is asked
    pub(crate) name: String,
    /// The flow from the application to the device, not the other
    #[arg(long)]
    pub(crate) back: bool,
    #[command(flatten)]
    pub(crate) edit: Edit,
    /// With --insert: in front of which pair, from 0
    #[arg(long, value_name = "NUMBER", requires = "insert")]
    pub(crate) at: Option<usize>,
    #[command(flatten)]
    pub(crate) json: Json,
}

#[derive(Debug, Args)]
pub(crate) struct Control {
    /// Name of the device, as it is attached here (`outboard top` lists them)
    pub(crate) name: String,
    /// What it is set to: brightness=128; without any, what there is to be set is shown
    #[arg(value_name = "NAME=VALUE")]
    pub(crate) settings: Vec<String>,
    #[command(flatten)]
    pub(crate) json: Json,
}

#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
pub(crate) struct Edit {
    /// The whole pipeline, in source order
    #[arg(long, value_name = "PIPELINE")]
    pub(crate) via: Option<String>,
    /// A pair that comes in, behind all others or where --at says
    #[arg(long, value_name = "PAIR")]
    pub(crate) insert: Option<String>,
    /// A pair that goes: the first of this name
    #[arg(long, value_name = "NAME")]
    pub(crate) remove: Option<String>,
    /// New options for the first pair of this name
    #[arg(long, value_name = "PAIR")]
    pub(crate) set: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct Json {
    /// Report in JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Report {
    /// Report in JSON, one object a line
    #[arg(long)]
    pub(crate) json: bool,
    /// Report figures every second
    #[arg(short = 'v', long)]
    pub(crate) stats: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Share {
    /// What to share: `kind:rest`, such as evdev:/dev/input/event3 (`outboard devices` lists them); with `*` in it
    /// whatever is like that, whenever it is plugged in: 'evdev:*', 'evdev:name=Logitech*', 'serial:/dev/ttyUSB*'
    pub(crate) device: String,
    /// Its name for other hosts [default: the last part of the device]
    #[arg(long)]
    pub(crate) name: Option<String>,
    #[command(flatten)]
    pub(crate) via: Via,
    /// The only pipeline, device to application, that a peer may ask for
    #[arg(long, value_name = "PIPELINE")]
    pub(crate) require: Option<String>,
    /// Who may use it at once: `exclusive`, or `copy`, with ways=N, queue=N, slow=wait|drop, patience=TIME
    /// behind it [default: as its pipeline says]
    #[arg(long, value_name = "POLICY")]
    pub(crate) hub: Option<String>,
    /// A peer that may see and open it, once for each [default: all that are paired (`outboard peers`)]
    #[arg(long, value_name = "PEER")]
    pub(crate) allow: Vec<String>,
    /// Where to listen, for TCP and UDP alike
    #[arg(long, value_name = "[TRANSPORT://]ADDRESS[:PORT]", default_value = DEFAULT_LISTEN)]
    pub(crate) listen: String,
    /// Options of that transport (`quic` if none is named) for peers that come by it, such as congestion=bbr
    /// (`outboard modules quic` lists them)
    #[arg(long, value_name = "NAME=VALUE,...")]
    pub(crate) transport: Option<String>,
    /// Say on the local network that this host shares: its name and port, and nothing of what (`outboard find`)
    #[arg(long)]
    pub(crate) announce: bool,
    #[command(flatten)]
    pub(crate) session: Session,
    #[command(flatten)]
    pub(crate) report: Report,
}

/// `outboard pair` shows a code, `outboard pair CODE@HOST` on the other host completes it. From then on each knows
/// the other's key.
#[derive(Debug, Args)]
pub(crate) struct Pair {
    /// What the other host shows: CODE@HOST[:PORT]
    #[arg(value_name = "CODE@HOST")]
    pub(crate) with: Option<String>,
    /// Where to wait for the other host [default: [::]:7845, or another port where that is taken]
    #[arg(long, value_name = "ADDRESS[:PORT]", conflicts_with = "with")]
    pub(crate) listen: Option<String>,
    #[command(flatten)]
    pub(crate) json: Json,
}

#[derive(Debug, Args)]
pub(crate) struct Peers {
    #[command(subcommand)]
    pub(crate) action: Option<PeersAction>,
    #[command(flatten)]
    pub(crate) json: Json,
}

#[derive(Debug, Subcommand)]
pub(crate) enum PeersAction {
    /// List them (so does `outboard peers` alone)
    List,
    /// Call one otherwise
    Rename {
        /// Its name
        name: String,
        /// Its new name
        new: String,
    },
    /// Let one see and open only these devices of this host, by their names; none: nothing
    Restrict {
        /// Its name
        name: String,
        /// The devices
        #[arg(value_name = "DEVICE")]
        devices: Vec<String>,
        /// All that is shared with it again
        #[arg(long, conflicts_with = "devices")]
        all: bool,
    },
    /// Know one no longer: its sessions end
    Remove {
        /// Its name
        name: String,
    },
}

#[derive(Debug, Args)]
pub(crate) struct Attach {
    /// Which devices: [TRANSPORT://]HOST[:PORT]/NAME; several are joined by --via
    /// 'NAME:(PIPELINE), ..., synchronize | PIPELINE', where NAME is a device's or HOST[:PORT]/NAME
    #[arg(required = true, value_name = "HOST/NAME")]
    pub(crate) from: Vec<String>,
    /// What stands in for the device here: `kind:rest`, once for each device [default: what suits it]
    #[arg(long = "as", value_name = "APPLICATION")]
    pub(crate) applications: Vec<String>,
    #[command(flatten)]
    pub(crate) via: Via,
    /// Options of the transport, such as congestion=bbr (`outboard modules quic` lists them)
    #[arg(long, value_name = "NAME=VALUE,...")]
    pub(crate) transport: Option<String>,
    #[command(flatten)]
    pub(crate) session: Session,
    #[command(flatten)]
    pub(crate) report: Report,
}

#[derive(Debug, Args)]
pub(crate) struct Connect {
    /// Where it comes from: `kind:rest`, as for `share`
    pub(crate) source: String,
    /// Where it goes: `kind:rest`, as for `attach --as`
    pub(crate) sink: String,
    #[command(flatten)]
    pub(crate) via: Via,
    #[command(flatten)]
    pub(crate) json: Json,
}

/// How pairs with `isolate` are started.
#[derive(Debug, Args)]
pub(crate) struct Confined {
    /// Most memory, bytes
    #[arg(long)]
    pub(crate) memory: u64,
    /// A file or directory that it may read besides its own
    #[arg(long = "read", value_name = "PATH")]
    pub(crate) reads: Vec<PathBuf>,
    /// Do without what the kernel cannot
    #[arg(long)]
    pub(crate) possible: bool,
    /// The program and its arguments
    #[arg(last = true, required = true)]
    pub(crate) program: Vec<String>,
}

/// `mkfifo a b; outboard module compress -r a -w b`. Without -r and -w: standard input and output.
#[derive(Debug, Args)]
pub(crate) struct Module {
    /// A pair, such as compress; a device, such as pattern:rate=10; or TRANSPORT://HOST:PORT
    pub(crate) name: String,
    /// Its options (`outboard modules NAME` lists them); a pair's first may stand without its name
    #[arg(value_name = "OPTION=VALUE")]
    pub(crate) options: Vec<String>,
    /// Where containers come from: a FIFO or a file; once for each port [default: standard input]
    #[arg(short = 'r', long, value_name = "PIPE")]
    pub(crate) read: Vec<PathBuf>,
    /// Where containers go: a FIFO or a file; once for each port [default: standard output]
    #[arg(short = 'w', long, value_name = "PIPE")]
    pub(crate) write: Vec<PathBuf>,
    /// Where the two halves of a pair meet: who comes first listens on this Unix socket, the other connects
    #[arg(short = 'c', long, value_name = "SOCKET")]
    pub(crate) control: Option<PathBuf>,
    /// The half that undoes it; of a device, the application's side
    #[arg(long)]
    pub(crate) undo: bool,
    /// What the messages mean, for a pair that reads them: evdev, motion, video... [default: bytes]
    #[arg(long)]
    pub(crate) format: Option<String>,
    /// The device that an application's node is made like, such as evdev:/dev/input/event3
    #[arg(long, value_name = "DEVICE")]
    pub(crate) like: Option<String>,
    /// The key of a pair that seals: 32 bytes that only you may read, the same for both halves
    #[arg(long, value_name = "FILE")]
    pub(crate) key_file: Option<PathBuf>,
    /// A transport: wait for a peer instead of calling it
    #[arg(long)]
    pub(crate) listen: bool,
    /// A transport: go beyond this machine although a bare transport knows no peers and hides nothing
    #[arg(long)]
    pub(crate) insecure: bool,
    /// Be run by another program: control frames on this descriptor, data on 0 and 1 (docs/modules.md)
    #[arg(long, value_name = "NUMBER", conflicts_with_all = ["read", "write", "control", "key_file"])]
    pub(crate) fd_control: Option<i32>,
    /// With it: data not on 0 and 1, but in shared memory, at place NUMBER of a run, the descriptors of which begin at 4
    #[arg(long, value_name = "NUMBER", requires = "fd_control", value_parser = clap::value_parser!(u16).range(1..=32))]
    pub(crate) place: Option<u16>,
    /// With it: words between the containers on 0 and 1, in place of what is said to be done
    #[arg(long, requires = "fd_control", conflicts_with = "place")]
    pub(crate) chain: bool,
    /// With it: at real-time priority, as long as it never computes for half a second without a pause
    #[arg(long, requires = "fd_control")]
    pub(crate) realtime: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Via {
    /// Pairs on the way from device to application, in source order: 'bundle(10) | compress(zstd)'
    #[arg(long, value_name = "PIPELINE")]
    pub(crate) via: Option<String>,
    /// Pairs on the way from application to device, in source order
    #[arg(long, value_name = "PIPELINE")]
    pub(crate) via_back: Option<String>,
    /// The key of pairs that seal, beside the session's own: 32 bytes that only you may read, the same at both hosts
    #[arg(long, value_name = "FILE")]
    pub(crate) key_file: Option<PathBuf>,
    /// Where what leaves pairs by side ports goes on this host: record=file:/tmp/x.rec,frame=container
    #[arg(long = "port", value_name = "PAIR[.PORT]=APPLICATION")]
    pub(crate) ports: Vec<String>,
}

#[derive(Debug, Args)]
pub(crate) struct Session {
    /// Ask nobody who they are, and hide nothing: anyone who reaches the port may use what is shared, anyone on the
    /// way may read and change it. Said on both sides
    #[arg(long)]
    pub(crate) insecure: bool,
    /// Read what other hosts say in processes alone that can open no file, device or socket, or refuse: a kernel that
    /// cannot lock them up, and what would run elsewhere (devices that are joined, or that several hosts write to)
    #[arg(long)]
    pub(crate) require_sandbox: bool,
    /// Silence of the other host after which what depends on it goes neutral: keys up, axes centred
    #[arg(long, value_name = "DURATION", default_value = "700ms")]
    pub(crate) silence: String,
    /// Other bounds (`outboard modules limits` lists them)
    #[arg(long = "limit", value_name = "NAME=VALUE")]
    pub(crate) limits: Vec<String>,
}

#[derive(Debug, Args)]
pub(crate) struct Demo {
    /// What the network does, both ways
    #[arg(long, default_value = "delay=20ms,jitter=30ms", value_name = "WORDS")]
    pub(crate) link: String,
    /// What undoes it
    #[arg(long, default_value = "buffer(play, delay=40ms)", value_name = "PIPELINE")]
    pub(crate) via: String,
    /// How records travel
    #[arg(long, default_value = "tcp")]
    pub(crate) transport: String,
    /// How long to run [default: until q is pressed; 8 without a terminal]
    #[arg(long)]
    pub(crate) seconds: Option<f64>,
    #[command(flatten)]
    pub(crate) json: Json,
}

/// Options follow the experiment: `outboard bench EXPERIMENT --help` lists them.
#[derive(Debug, Args)]
pub(crate) struct Bench {
    /// Which
    #[arg(value_parser = experiments())]
    pub(crate) experiment: String,
    /// Its options, such as --json FILE or --svg DIRECTORY
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "OPTION")]
    pub(crate) options: Vec<OsString>,
}

fn experiments() -> PossibleValuesParser {
    PossibleValuesParser::new(EXPERIMENTS.iter().map(|one| PossibleValue::new(one.name).help(one.summary)))
}
