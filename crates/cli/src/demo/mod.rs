//! `outboard demo`: two hosts with a bad network between them. An application uses one device without a pair and with a
//! pair, side by side. The hosts are brokers in this process and the network is a relay with `netsim`, so the demo
//! needs no installation and no privileges.

mod application;
mod mouse;
mod screen;

use crate::arguments;
use crate::output::{Failure, print, print_json};
use crate::services::stop_on_signals;
use crate::terminal::Terminal;
use application::{Figures, Notes, application};
use broker::{
    ApplicationHost, AttachRequest, AttachTarget, DeviceChoice, DeviceHost, Event, ShareDevice, ShareRequest,
};
use contract::ServiceError;
use contract::{Partner, Time};
use hub::{ApplicationChoice, HubPolicy};
use modules::Pipelines;
use modules::transport_plan;
use mouse::{Mouse, now};
use netsim::Params;
use netsim::relay::Relay;
use screen::{Palette, Panel, View};
use serde::Serialize;
use session::Limits;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;
use sys::address::host_name;
use sys::stop::Stop;

/// Seed of both links, so that both flows see the same network.
const SEED: u64 = 1;
/// Duration without a terminal.
const UNATTENDED: Duration = Duration::from_secs(8);
/// Start of the run that the summary excludes, because the pair adapts to the network.
const SETTLING: Duration = Duration::from_millis(1500);
/// Time window of the figures on the screen.
const WINDOW: Duration = Duration::from_secs(10);
const FRAME: Duration = Duration::from_millis(100);
const JITTER_STEP_NS: u64 = 10_000_000;
const JITTER_MAX_NS: u64 = 500_000_000;
const ANY_PORT: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 0);
const KEYS: &str = "q quits   c cuts and restores the link   + and - change the jitter";

/// One use of the device: a link, and an application at its end.
struct Flow {
    title: String,
    relay: Relay,
    notes: Notes,
    silent: Arc<AtomicBool>,
}

/// The running demo.
struct Demo {
    flows: [Flow; 2],
    link: Params,
    cut: bool,
    transport: String,
    stop: Stop,
    threads: Vec<JoinHandle<Result<(), ServiceError>>>,
    began: Time,
}

/// `outboard demo`.
pub(crate) fn demo(words: &arguments::Demo) -> Result<(), Failure> {
    let limit = words.seconds.map(Duration::try_from_secs_f64).transpose();
    let limit = limit.map_err(|error| Failure::Usage(format!("--seconds: {error}")))?;
    let mut demo = Demo::start(words)?;
    let terminal = if words.json.json { None } else { Terminal::take(&demo.stop)? };
    match terminal {
        Some(mut terminal) => demo.show(&mut terminal, limit)?,
        None => demo.wait(limit.unwrap_or(UNATTENDED)),
    }
    let seconds = now().since(demo.began).as_secs_f64();
    let summary = demo.summary(seconds);
    demo.end()?;
    if words.json.json { print_json(&summary) } else { print(&summary.text()) }
}

impl Demo {
    fn start(words: &arguments::Demo) -> Result<Demo, Failure> {
        let link: Params = words.link.parse().map_err(|error| Failure::Usage(format!("--link: {error}")))?;
        let pipelines = Pipelines::parse(Some(&words.via), None, None)
            .map_err(|problem| Failure::Usage(format!("--via: {problem}")))?;
        let stop = Stop::new()?;
        stop_on_signals(&stop)?;
        let device_host = share(["plain", "corrected"])?;
        let address = device_host.address();
        let mut threads = vec![spawn(&stop, |stop| device_host.run(stop, &mut |_| ()))?];
        let mut flow = |name: &str, title: String, pipelines: Pipelines| -> Result<Flow, Failure> {
            let relay = Relay::start(ANY_PORT, address, link.clone(), SEED)?;
            let (notes, silent) = (Notes::default(), Arc::new(AtomicBool::new(false)));
            let request = AttachRequest {
                peer: None,
                address: relay.address().to_string(),
                transport: transport_plan(&words.transport, None)?,
                fallback: None,
                targets: vec![AttachTarget {
                    name: name.into(),
                    application: ApplicationChoice::Partner(application(&notes)),
                    pipelines,
                    expect: None,
                }],
                trust: None,
                limits: Limits::default(),
                host: host_name(),
            };
            let silent_flag = silent.clone();
            threads.push(spawn(&stop, move |stop| {
                ApplicationHost::start(request)?.run(stop, &mut |event| match event {
                    Event::LinkLost { .. } => silent_flag.store(true, Ordering::Relaxed),
                    Event::LinkBack { .. } => silent_flag.store(false, Ordering::Relaxed),
                    _ => {}
                })
            })?);
            Ok(Flow { title, relay, notes, silent })
        };
        let flows = [
            flow("plain", "without a pair".into(), Pipelines::default())?,
            flow("corrected", words.via.clone(), pipelines)?,
        ];
        Ok(Demo { flows, link, cut: false, transport: words.transport.clone(), stop, threads, began: now() })
    }

    /// Waits until the limit or a failure.
    fn wait(&self, limit: Duration) {
        while !self.stop.is_requested() && now().since(self.began) < limit {
            std::thread::sleep(FRAME.min(limit.saturating_sub(now().since(self.began))));
        }
    }

    /// Draws until `q` is pressed.
    fn show(&mut self, terminal: &mut Terminal, limit: Option<Duration>) -> Result<(), Failure> {
        let palette = match std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty()) {
            true => Palette::NONE,
            false => Palette::COLOURS,
        };
        let keys = screen::keys(KEYS, &palette);
        while !self.stop.is_requested() && limit.is_none_or(|limit| now().since(self.began) < limit) {
            let columns = terminal.columns();
            let lines = screen::draw(&self.view(columns), columns, &palette);
            match terminal.show(&lines, &keys, FRAME)? {
                Some('q') => break,
                Some('c') => self.toggle_cut(),
                Some('+') => {
                    self.set_jitter(self.link.jitter_ns.saturating_add(JITTER_STEP_NS).min(JITTER_MAX_NS))
                }
                Some('-') => self.set_jitter(self.link.jitter_ns.saturating_sub(JITTER_STEP_NS)),
                _ => {}
            }
        }
        Ok(())
    }

    fn toggle_cut(&mut self) {
        self.cut = !self.cut;
        for flow in &self.flows {
            if self.cut { flow.relay.cut() } else { flow.relay.restore() }
        }
    }

    fn set_jitter(&mut self, jitter_ns: u64) {
        self.link.jitter_ns = jitter_ns;
        let params = Params { down: self.cut, ..self.link.clone() };
        self.flows.iter().for_each(|flow| flow.relay.set_both(params.clone()));
    }

    fn view(&self, columns: usize) -> View {
        let now = now();
        let panel = |flow: &Flow| {
            let record = flow.notes.lock();
            let silent = flow.silent.load(Ordering::Relaxed);
            Panel {
                title: flow.title.clone(),
                messages: record.messages,
                axes: record.axes(now).filter(|_| !silent),
                figures: record.figures(now.before(WINDOW)),
                spacings_ms: record.spacings_ms(screen::plot_messages(columns)),
                silent,
            }
        };
        View {
            link: self.link.to_string(),
            transport: self.transport.clone(),
            cut: self.cut,
            panels: [panel(&self.flows[0]), panel(&self.flows[1])],
        }
    }

    fn summary(&self, seconds: f64) -> Summary {
        let since = self.began.after(SETTLING);
        let flow = |flow: &Flow| {
            let record = flow.notes.lock();
            FlowSummary {
                pipeline: flow.title.clone(),
                messages: record.messages,
                figures: record.figures(since),
                spacings_ms: record.spacings_ms(2 * SUMMARY_COLUMNS),
            }
        };
        Summary {
            link: self.link.to_string(),
            transport: self.transport.clone(),
            seconds,
            without: flow(&self.flows[0]),
            with: flow(&self.flows[1]),
        }
    }

    /// Stops all hosts and returns their first failure.
    fn end(self) -> Result<(), Failure> {
        self.stop.stop();
        for thread in self.threads {
            match thread.join() {
                Ok(result) => result?,
                Err(_) => return Err(Failure::Failed("a host panicked: please report this".into())),
            }
        }
        Ok(())
    }
}

/// Runs a host in a new thread. A failure stops all hosts.
fn spawn(
    stop: &Stop,
    host: impl FnOnce(&Stop) -> Result<(), ServiceError> + Send + 'static,
) -> Result<JoinHandle<Result<(), ServiceError>>, Failure> {
    let stop = stop.clone();
    let run = move || {
        let result = host(&stop);
        if result.is_err() {
            stop.stop();
        }
        result
    };
    Ok(std::thread::Builder::new().name("host".into()).spawn(run)?)
}

/// Starts a device host that shares a mouse under each of these names.
fn share(names: [&str; 2]) -> Result<DeviceHost, ServiceError> {
    let device = |name: &str| ShareDevice {
        device: DeviceChoice::Own(
            mouse::description(),
            Arc::new(|| Ok(Box::new(Mouse::default()) as Box<dyn Partner>)),
        ),
        name: Some(name.into()),
        pipelines: Pipelines::default(),
        hub: HubPolicy::Exclusive,
        allow: Vec::new(),
        transport: None,
    };
    DeviceHost::start(ShareRequest {
        devices: names.map(device).into(),
        listen: ANY_PORT,
        trust: None,
        limits: Limits::default(),
        host: host_name(),
        announce: false,
    })
}

/// Columns of a plot in the summary.
const SUMMARY_COLUMNS: usize = 34;

/// Figures of a whole run.
#[derive(Serialize)]
struct Summary {
    link: String,
    transport: String,
    seconds: f64,
    without: FlowSummary,
    with: FlowSummary,
}

#[derive(Serialize)]
struct FlowSummary {
    pipeline: String,
    messages: u64,
    #[serde(flatten)]
    figures: Figures,
    #[serde(skip)]
    spacings_ms: Vec<f64>,
}

impl Summary {
    fn text(&self) -> String {
        let row = |name: &str, of: &dyn Fn(&FlowSummary) -> String| {
            format!("  {name:<26}{:<36}{}\n", of(&self.without), of(&self.with))
        };
        let figure =
            |figure: application::Figure| format!("{:.2} ms (99 %: {:.2} ms)", figure.mean, figure.p99);
        let mut text = format!(
            "A simulated 3D mouse on host A sends 62.5 messages a second to an application on host B.\nNetwork in both \
             directions: {} over {}, for {:.1} s.\n\n",
            self.link, self.transport, self.seconds
        );
        text += &row("", &|flow| flow.pipeline.clone());
        text += &row("messages", &|flow| flow.messages.to_string());
        text += &row("delay, mean", &|flow| figure(flow.figures.delay_ms));
        text += &row("spacing error, mean", &|flow| figure(flow.figures.spacing_error_ms));
        text += "\n  ms between messages (16 is correct)\n";
        let plots = [&self.without, &self.with].map(|flow| screen::plot(&flow.spacings_ms, SUMMARY_COLUMNS));
        for (index, (left, right)) in plots[0].iter().zip(&plots[1]).enumerate() {
            let label = screen::plot_label(index);
            text += format!("  {label:>24} │{left} │{right}").trim_end();
            text.push('\n');
        }
        text += "\nNow with your own device (`outboard devices` lists them):\n  \
                 device host:       outboard share DEVICE\n  application host:  outboard attach HOST/NAME\n";
        text
    }
}
