//! The command line: names, options and help, declared once.

use broker::DEFAULT_LISTEN;
use clap::builder::PossibleValuesParser;
use clap::{Args, Parser, Subcommand};
use clap_complete::Shell;
use contract::Kind;
use std::ffi::OsString;
use std::num::NonZeroU32;
use std::path::PathBuf;

/// Use any I/O device from any machine, with unchanged applications.
///
/// Run `outboard share DEVICE` on the device host, and `outboard attach HOST/NAME` on the application host.
#[derive(Debug, Parser)]
#[command(name = "outboard", version, propagate_version = true, disable_help_subcommand = true)]
#[command(after_help = "Exit status: 0 done, 1 failed, 2 wrong usage.")]
pub(crate) struct Arguments {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// List the devices of this host, or the devices that another host shares with it
    Devices(Devices),
    /// Find hosts on the local network that run `share --announce`
    Find {
        /// Time to listen
        #[arg(long, value_name = "SECONDS", default_value_t = 3.0)]
        seconds: f64,
        #[command(flatten)]
        json: Json,
    },
    /// Share a device with other hosts (runs on the device host)
    Share(Share),
    /// Use a device of another host (runs on the application host)
    Attach(Attach),
    /// Pair this host with another: one host shows a code, the other enters it
    ///
    /// `outboard pair` shows a code; `outboard pair CODE@HOST` on the other host completes the pairing. Each host then
    /// stores the other's key, for this user.
    Pair(Pair),
    /// List, add, rename, restrict and remove the paired hosts
    Peers(Peers),
    /// Connect a device to an application on this host, without a network
    Connect(Connect),
    /// Run the shares, attaches and connects of a TOML file as a service
    ///
    /// SIGHUP or `outboard reload` makes it read the file again; a file with an error changes nothing. An entry that
    /// cannot start is retried.
    Run(Run),
    /// Make `outboard run` of this user read its file again; unchanged entries keep running
    Reload {
        /// Process id, if several services run
        #[arg(long, value_name = "PID")]
        process: Option<i32>,
        #[command(flatten)]
        json: Json,
    },
    /// Check that the services of this user are healthy: exit status 0 if they are
    Health {
        /// Check this process only
        #[arg(long, value_name = "PID")]
        process: Option<i32>,
        #[command(flatten)]
        json: Json,
    },
    /// Describe the pairs, device classes, transports and limits, with their options
    Modules {
        /// Describe this one in full
        name: Option<String>,
        #[command(flatten)]
        json: Json,
    },
    /// Show every flow of this user, live, and the values that `auto` options chose
    Top {
        /// Print one table and exit
        #[arg(long)]
        once: bool,
        #[command(flatten)]
        json: Json,
    },
    /// Measure the time of this user's messages in each stage, system call and wait, live
    ///
    /// Records the time of sampled messages at each step inside this host. The table shows the duration of each step by
    /// message size: p50, p90, p99 and maximum, in microseconds.
    Trace(Trace),
    /// Change the pipeline of a running flow, without lost or repeated messages
    Change(Change),
    /// Show or change the settings of an attached device, such as a camera's brightness
    Control(Control),
    /// Run one module as a process that reads and writes containers
    ///
    /// Example: `mkfifo a b; outboard module compress -r a -w b`.
    Module(Module),
    /// Execute the program of a pair with `isolate` in a sandbox with the least rights
    #[command(hide = true)]
    Confined(Confined),
    /// Run the paths of a session in a sandbox, for the broker at descriptor 3
    #[command(hide = true)]
    Worker {
        /// Name to show in the process list
        name: String,
    },
    /// Check this host for missing kernel features and permissions, and show fixes
    Doctor {
        #[command(flatten)]
        json: Json,
    },
    /// Show two simulated hosts with a bad network between them, live
    Demo(Demo),
    /// Predict the gain of a faster cipher, compressor or other pair, for your pipeline and link
    ///
    /// Example: `outboard whatif --via 'compress | encrypt'`; on two hosts, first `outboard whatif --listen` on the other one.
    Whatif(Whatif),
    /// Run a benchmark (`outboard-bench`; --help lists the experiments)
    #[command(disable_help_flag = true)]
    Bench {
        /// An experiment and its options
        #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "EXPERIMENT")]
        words: Vec<OsString>,
    },
    /// Print a completion script
    Completions {
        /// Shell
        shell: Shell,
    },
    /// Print the manual page of all commands, in roff format
    Man {
        /// Write this page into a directory instead, with a page for each command
        directory: Option<PathBuf>,
    },
}

#[derive(Debug, Args)]
pub(crate) struct Devices {
    /// List the devices of this paired host: [PEER@]HOST[:PORT]
    pub(crate) host: Option<String>,
    /// List the devices again after each change, until interrupted
    #[arg(long, requires = "host")]
    pub(crate) watch: bool,
    /// Disable authentication and encryption (both hosts must specify this)
    #[arg(long, requires = "host")]
    pub(crate) insecure: bool,
    #[command(flatten)]
    pub(crate) json: Json,
}

#[derive(Debug, Args)]
pub(crate) struct Run {
    /// Path of the file; `-` reads standard input
    pub(crate) file: PathBuf,
    /// Check the file for errors and exit
    #[arg(long)]
    pub(crate) check: bool,
    /// Refuse every session that cannot run in a sandboxed worker process (see `share --help`)
    #[arg(long)]
    pub(crate) require_sandbox: bool,
    /// Serve Prometheus metrics at http://ADDRESS:PORT/metrics [default address: loopback]
    #[arg(long, value_name = "[ADDRESS:]PORT")]
    pub(crate) metrics: Option<String>,
    /// Format of the log: `text`, or `json` with one object a line
    #[arg(long, value_name = "FORMAT", default_value = "text", value_enum)]
    pub(crate) log: Log,
    #[command(flatten)]
    pub(crate) report: Report,
}

/// Format of the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Log {
    /// Prose, one line for each event
    Text,
    /// One JSON object a line, with time and level
    Json,
    /// One JSON object a line, without time and level (`--json`)
    #[value(skip)]
    Events,
}

#[derive(Debug, Args)]
pub(crate) struct Trace {
    /// Trace the flows of this device only (`outboard top` lists the devices)
    pub(crate) name: Option<String>,
    /// Fraction of the messages to sample
    #[arg(long, value_name = "1/N", default_value = "1/64", value_parser = one_in)]
    pub(crate) sample: NonZeroU32,
    /// Trace for N seconds, then print one table [default: until q is pressed; 10 with --perfetto]
    #[arg(long, value_name = "N")]
    pub(crate) seconds: Option<f64>,
    /// Write each step of each message to a trace file for https://ui.perfetto.dev or chrome://tracing
    #[arg(long, value_name = "FILE")]
    pub(crate) perfetto: Option<PathBuf>,
    /// Merge the other host's trace file into this one, with its times converted to this host's clock
    #[arg(long, value_name = "FILE", requires = "perfetto")]
    pub(crate) with: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) json: Json,
}

/// Parses `1/64`.
fn one_in(text: &str) -> Result<NonZeroU32, String> {
    let count = text.strip_prefix("1/").and_then(|count| count.parse().ok());
    count.ok_or_else(|| format!("`{text}` is not 1/N with N from 1 to {}, such as 1/64", u32::MAX))
}

#[derive(Debug, Args)]
pub(crate) struct Change {
    /// Name of the device (`outboard top` lists them)
    pub(crate) name: String,
    /// Change the flow from the application to the device [default: from the device to the application]
    #[arg(long)]
    pub(crate) back: bool,
    #[command(flatten)]
    pub(crate) edit: Edit,
    /// With --insert: position of the new pair, counted from 0 [default: last]
    #[arg(long, value_name = "NUMBER", requires = "insert")]
    pub(crate) at: Option<usize>,
    #[command(flatten)]
    pub(crate) json: Json,
}

#[derive(Debug, Args)]
pub(crate) struct Control {
    /// Name of the attached device (`outboard top` lists them)
    pub(crate) name: String,
    /// New values, such as brightness=128 [default: show all settings]
    #[arg(value_name = "NAME=VALUE")]
    pub(crate) settings: Vec<String>,
    #[command(flatten)]
    pub(crate) json: Json,
}

#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
pub(crate) struct Edit {
    /// Replace the whole pipeline; the pairs are in source order
    #[arg(long, value_name = "PIPELINE")]
    pub(crate) via: Option<String>,
    /// Insert this pair, at the end or at the position that --at specifies
    #[arg(long, value_name = "PAIR")]
    pub(crate) insert: Option<String>,
    /// Remove the first pair with this name
    #[arg(long, value_name = "NAME")]
    pub(crate) remove: Option<String>,
    /// Replace the options of the first pair with this name
    #[arg(long, value_name = "PAIR")]
    pub(crate) set: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct Json {
    /// Print JSON, one object a line
    #[arg(long, global = true)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Report {
    /// Print events as JSON, one object a line
    #[arg(long)]
    pub(crate) json: bool,
    /// Print statistics every second
    #[arg(short = 'v', long)]
    pub(crate) stats: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Share {
    /// Device to share, such as /dev/input/event3, /dev/ttyUSB0, :0 or film.y4m; in full CLASS:ADDRESS (`outboard devices`
    /// lists them). With `*`: every device that matches, as soon as it is plugged in: 'evdev:*', '/dev/ttyUSB*',
    /// 'evdev:name=Logitech*'
    pub(crate) device: String,
    /// Name of the device for other hosts [default: the last part of DEVICE]
    #[arg(long)]
    pub(crate) name: Option<String>,
    #[command(flatten)]
    pub(crate) via: Via,
    /// Refuse every other pipeline that a peer requests, from device to application
    #[arg(long, value_name = "PIPELINE")]
    pub(crate) require: Option<String>,
    /// Number of simultaneous users: `exclusive` for one, `copy` for several, with the options ways=N, queue=N,
    /// slow=wait|drop, patience=TIME [default: from the pipeline]
    #[arg(long, value_name = "POLICY")]
    pub(crate) hub: Option<String>,
    /// Peer that may see and open the device; repeat for several. The permit belongs to the key that the peer has when
    /// `share` starts [default: all paired hosts (`outboard peers`)]
    #[arg(long, value_name = "PEER")]
    pub(crate) allow: Vec<String>,
    /// Address to listen on, for TCP and UDP
    #[arg(long, value_name = "[TRANSPORT://]ADDRESS[:PORT]", default_value = DEFAULT_LISTEN)]
    pub(crate) listen: String,
    /// Options of the transport in --listen, `quic` by default, such as congestion=bbr (`outboard modules quic` lists
    /// them); or a program that carries the records for peers that name one too (`outboard modules exec`)
    #[arg(long, value_name = "NAME=VALUE,...|exec:COMMAND")]
    pub(crate) transport: Option<String>,
    /// Announce the name and port of this host, but no devices, on the local network (`outboard find`)
    #[arg(long)]
    pub(crate) announce: bool,
    #[command(flatten)]
    pub(crate) session: Session,
    #[command(flatten)]
    pub(crate) report: Report,
}

#[derive(Debug, Args)]
pub(crate) struct Pair {
    /// Code and address that the other host shows: CODE@HOST[:PORT], or HOST[:PORT] to type the code afterwards
    #[arg(value_name = "CODE@HOST")]
    pub(crate) with: Option<String>,
    /// Name of the other host on this one [default: the name that it claims, with a number if that name is taken]
    #[arg(long)]
    pub(crate) name: Option<String>,
    /// Address to listen on [default: [::]:7845, or another port if that one is in use]
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

/// The exit statuses of `peers add`, for scripts.
const ADD_STATUS: &str = "Exit status: 0 the list has the host as its line says, 1 the list cannot be written, 2 the line \
                          is wrong, or its name belongs to another host; then nothing has changed.";

#[derive(Debug, Subcommand)]
pub(crate) enum PeersAction {
    /// List the paired hosts (the default)
    List,
    /// Print the key line of this host: `outboard peers add` on another host takes it
    #[command(name = "self")]
    Own,
    /// Add or update a host by its key line, without a code
    ///
    /// A key line is `ed25519 KEY NAME [address=HOST] [may-open=DEVICE,...]`. `may-open` names the devices of this host that
    /// the other one may see and open, as `outboard peers restrict` does; a line without it changes no permit. This
    /// host's own line has no effect. The command prints `added`, `changed` or `unchanged` for each line.
    #[command(after_help = ADD_STATUS)]
    Add {
        /// Key line that `outboard peers self` prints on the other host; `-` reads lines from standard input
        #[arg(required = true, value_name = "KEYLINE")]
        line: Vec<String>,
        /// Name of the host on this one [default: the name in the line]
        #[arg(long)]
        name: Option<String>,
        /// Give the name to this key even if another host has it; that host is removed
        #[arg(long)]
        replace: bool,
    },
    /// Print the key lines of all paired hosts, with their permits
    Export,
    /// Rename a host
    Rename {
        /// Name of the host
        name: String,
        /// New name
        new: String,
    },
    /// Let a host see and open only the named devices of this host; without a name, no device
    Restrict {
        /// Name of the host
        name: String,
        /// Names of the devices
        #[arg(value_name = "DEVICE")]
        devices: Vec<String>,
        /// Remove the restriction
        #[arg(long, conflicts_with = "devices")]
        all: bool,
    },
    /// Remove a host and end its sessions
    Remove {
        /// Name of the host
        name: String,
    },
}

#[derive(Debug, Args)]
pub(crate) struct Attach {
    /// Device to use: [TRANSPORT://][PEER@]HOST[:PORT]/NAME. HOST is the name of a peer, or an address. PEER@ names the peer
    /// that must answer at an address. To join several devices, list all of them and specify --via
    /// 'NAME:(PIPELINE), ..., synchronize | PIPELINE', with NAME or HOST[:PORT]/NAME for each device
    #[arg(required = true, value_name = "HOST/NAME")]
    pub(crate) from: Vec<String>,
    /// Local stand-in for the device, such as pty:/tmp/plc, /dev/video10 or film.y4m; in full CLASS:ADDRESS. Repeat for each
    /// device. Without it, and with stdout, events go to standard error [default: from the device's class]
    #[arg(long = "as", value_name = "APPLICATION")]
    pub(crate) applications: Vec<String>,
    /// Take over the link, file, camera or port of --as that another process has; that process ends
    #[arg(long)]
    pub(crate) replace: bool,
    /// With --as stdout: write control characters to a terminal, too
    #[arg(long)]
    pub(crate) raw: bool,
    /// Refuse the device if it has another kind; repeat for each device [default: the kind that it had before]
    #[arg(long, value_name = "KIND", value_parser = PossibleValuesParser::new(Kind::names()))]
    pub(crate) expect: Vec<String>,
    #[command(flatten)]
    pub(crate) via: Via,
    /// Options of the transport, such as congestion=bbr (`outboard modules quic` lists them); or a program that carries the records,
    /// if the device host names one too (`outboard modules exec`)
    #[arg(long, value_name = "NAME=VALUE,...|exec:COMMAND")]
    pub(crate) transport: Option<String>,
    #[command(flatten)]
    pub(crate) session: Session,
    #[command(flatten)]
    pub(crate) report: Report,
}

#[derive(Debug, Args)]
pub(crate) struct Whatif {
    /// Host that runs `outboard whatif --listen` [default: both halves run on this host]
    #[arg(value_name = "HOST[:PORT]", conflicts_with = "listen")]
    pub(crate) host: Option<String>,
    /// Pipeline to measure
    #[arg(long, value_name = "PIPELINE", required_unless_present = "listen", conflicts_with = "listen")]
    pub(crate) via: Option<String>,
    /// Pairs that become faster; with `+`, those that do so together: encrypt,compress+encrypt. A pair that is there twice has a
    /// number: encrypt:2 [default: each, and all]
    #[arg(long, value_name = "PAIRS", value_delimiter = ',')]
    pub(crate) faster: Vec<String>,
    /// Speedups, separated by commas; `inf` leaves the work out
    #[arg(long, value_delimiter = ',', value_name = "TIMES", default_value = "2,4,8,inf")]
    pub(crate) by: Vec<String>,
    /// Bytes of a message [default: 64KiB]
    #[arg(long, value_name = "SIZE", conflicts_with = "sample")]
    pub(crate) message_size: Option<String>,
    /// File whose content is the message [default: text, which compresses well]
    #[arg(long, value_name = "FILE")]
    pub(crate) sample: Option<PathBuf>,
    /// Transport
    #[arg(long, default_value = "tcp")]
    pub(crate) transport: String,
    /// Duration of each run
    #[arg(long, default_value_t = 1.0)]
    pub(crate) seconds: f64,
    /// Runs of each setting, in turns; the median counts
    #[arg(long, default_value_t = 3)]
    pub(crate) rounds: usize,
    /// Be the other host: share the messages without keys, to every host that connects, until Ctrl-C
    #[arg(long, value_name = "ADDRESS[:PORT]", num_args = 0..=1, default_missing_value = DEFAULT_LISTEN)]
    pub(crate) listen: Option<String>,
    #[command(flatten)]
    pub(crate) json: Json,
}

#[derive(Debug, Args)]
pub(crate) struct Connect {
    /// Source, as CLASS:ADDRESS (see `share`)
    pub(crate) source: String,
    /// Sink, as CLASS:ADDRESS (see `attach --as`)
    pub(crate) sink: String,
    #[command(flatten)]
    pub(crate) via: Via,
    #[command(flatten)]
    pub(crate) json: Json,
}

#[derive(Debug, Args)]
pub(crate) struct Confined {
    /// Maximum memory, bytes
    #[arg(long)]
    pub(crate) memory: u64,
    /// Additional file or directory that the program may read
    #[arg(long = "read", value_name = "PATH")]
    pub(crate) reads: Vec<PathBuf>,
    /// Accept a kernel that cannot isolate completely
    #[arg(long)]
    pub(crate) possible: bool,
    /// Program and its arguments
    #[arg(last = true, required = true)]
    pub(crate) program: Vec<String>,
}

#[derive(Debug, Args)]
pub(crate) struct Module {
    /// Pair (compress), device (pattern:rate=10) or transport (TRANSPORT://HOST:PORT)
    pub(crate) name: String,
    /// Options of the module (`outboard modules NAME` lists them); the first option of a pair needs no name
    #[arg(value_name = "OPTION=VALUE")]
    pub(crate) options: Vec<String>,
    /// FIFO or file to read containers from; repeat for each port [default: standard input]
    #[arg(short = 'r', long, value_name = "PIPE")]
    pub(crate) read: Vec<PathBuf>,
    /// FIFO or file to write containers to; repeat for each port [default: standard output]
    #[arg(short = 'w', long, value_name = "PIPE")]
    pub(crate) write: Vec<PathBuf>,
    /// Unix socket between the two halves of a pair: the first process listens, the second connects
    #[arg(short = 'c', long, value_name = "SOCKET")]
    pub(crate) control: Option<PathBuf>,
    /// Run the inverse half of a pair, or the application side of a device
    #[arg(long)]
    pub(crate) undo: bool,
    /// Format of the messages, for a pair that reads them: evdev, motion, video... [default: bytes]
    #[arg(long)]
    pub(crate) format: Option<String>,
    /// Device to imitate: the application node gets its properties, such as evdev:/dev/input/event3
    #[arg(long, value_name = "DEVICE")]
    pub(crate) like: Option<String>,
    /// Key file of the pair `encrypt`, the same for both halves: 32 bytes, readable by its owner only
    #[arg(long, value_name = "FILE")]
    pub(crate) key_file: Option<PathBuf>,
    /// Transport: listen for a peer instead of connecting
    #[arg(long)]
    pub(crate) listen: bool,
    /// Transport: allow other machines, without authentication and encryption
    #[arg(long)]
    pub(crate) insecure: bool,
    /// Descriptor of the control frames, if another program runs the module; data on 0 and 1
    /// (docs/reference/modules.md)
    #[arg(long, value_name = "NUMBER", conflicts_with_all = ["read", "write", "control", "key_file"])]
    pub(crate) fd_control: Option<i32>,
    /// With --fd-control: data in shared memory instead of on 0 and 1, as number NUMBER of a chain of processes; its
    /// descriptors begin at 4
    #[arg(long, value_name = "NUMBER", requires = "fd_control", value_parser = clap::value_parser!(u16).range(1..=32))]
    pub(crate) place: Option<u16>,
    /// With --fd-control: chain words between the containers on 0 and 1, instead of `done` frames
    #[arg(long, requires = "fd_control", conflicts_with = "place")]
    pub(crate) chain: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Via {
    /// Pipeline from the device to the application, in source order: 'bundle(10) | compress(zstd)'
    #[arg(long, value_name = "PIPELINE")]
    pub(crate) via: Option<String>,
    /// Pipeline from the application to the device, in source order
    #[arg(long, value_name = "PIPELINE")]
    pub(crate) via_back: Option<String>,
    /// Key file of the pair `encrypt`, the same on both hosts: 32 bytes, readable by its owner only
    #[arg(long, value_name = "FILE")]
    pub(crate) key_file: Option<PathBuf>,
    /// Destination of a pair's side port on this host: record=file:/tmp/x.rec
    #[arg(long = "port", value_name = "PAIR[.PORT]=APPLICATION")]
    pub(crate) ports: Vec<String>,
}

#[derive(Debug, Args)]
pub(crate) struct Session {
    /// Disable authentication and encryption (both hosts must specify this): anyone who reaches the port can use the
    /// device, and anyone on the network path can read and change the data
    #[arg(long)]
    pub(crate) insecure: bool,
    /// Refuse every session that cannot run in a sandboxed worker process, which opens no file, device or socket. This
    /// excludes kernels without landlock or seccomp, joined devices, and devices that several hosts write to
    #[arg(long)]
    pub(crate) require_sandbox: bool,
    /// Time without a message from the other host after which devices go neutral: keys up, axes centred; the same as
    /// --limit silence=DURATION [default: 700ms]
    #[arg(long, value_name = "DURATION")]
    pub(crate) silence: Option<String>,
    /// Limits (`outboard modules limits` lists them)
    #[arg(long = "limit", value_name = "NAME=VALUE")]
    pub(crate) limits: Vec<String>,
}

#[derive(Debug, Args)]
pub(crate) struct Demo {
    /// Network simulation, in both directions
    #[arg(long, default_value = "delay=20ms,jitter=30ms", value_name = "WORDS")]
    pub(crate) link: String,
    /// Pipeline of the second flow
    #[arg(long, default_value = "buffer(play, delay=40ms)", value_name = "PIPELINE")]
    pub(crate) via: String,
    /// Transport of the records
    #[arg(long, default_value = "tcp")]
    pub(crate) transport: String,
    /// Duration [default: until q is pressed; 8 without a terminal]
    #[arg(long)]
    pub(crate) seconds: Option<f64>,
    #[command(flatten)]
    pub(crate) json: Json,
}
