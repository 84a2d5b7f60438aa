//! The far host: shares the experiments' devices and offers the bare services.

use super::instruments::Answer;
use super::services::serve;
use super::setting::{CPUS, limits};
use crate::programs::use_outboard;
use crate::setting::Failure;
use broker::{DeviceChoice, DeviceHost, ShareDevice, ShareRequest};
use clap::Args;
use contract::{Description, FlowClass, FlowDirection, FlowOffer, Format};
use modules::Pipelines;
use serde::{Deserialize, Serialize};
use std::io::Read;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::path::PathBuf;
use std::sync::Arc;
use std::thread;
use sys::stop::Stop;
use trust::Trust;

/// The arguments of the far host.
#[derive(Args, Debug, Clone)]
pub(crate) struct FarSetting {
    /// Address to listen at
    #[arg(long)]
    address: IpAddr,
    /// Pipeline of its devices' flows, each way
    #[arg(long, default_value = "")]
    via: String,
    /// Sides of its cameras' square frames
    #[arg(long = "side", value_delimiter = ',')]
    sides: Vec<usize>,
    /// The display that it shares
    #[arg(long)]
    screen: Option<String>,
    /// Directory of the identity that both hosts use for sealed connections
    #[arg(long)]
    identity: PathBuf,
}

/// The name of the shared screen.
pub(super) const SCREEN: &str = "screen";

/// The address and ports of the far host.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Ports {
    pub(super) address: IpAddr,
    /// Of the devices without sealing.
    pub(super) insecure: u16,
    /// Of the devices with sealing.
    pub(super) sealed: u16,
    /// Of the bare services.
    pub(super) bare: u16,
}

impl Default for Ports {
    fn default() -> Self {
        Ports { address: Ipv4Addr::LOCALHOST.into(), insecure: 0, sealed: 0, bare: 0 }
    }
}

/// The devices with a flow back: name, and true if the answer is the whole message.
const ANSWERING: [(&str, bool); 2] = [("echo", true), ("acknowledge", false)];

/// Returns true if a device has a flow back.
pub(super) fn answers(device: &str) -> bool {
    ANSWERING.iter().any(|(name, _)| *name == device)
}

/// Returns the pipelines of a device whose flows, one or both, have the same.
pub(super) fn pipelines(pipeline: &str, both: bool) -> Result<Pipelines, Failure> {
    Ok(Pipelines::parse(Some(pipeline), both.then_some(pipeline), None)?)
}

/// Returns a device that answers.
fn answering(whole: bool) -> DeviceChoice {
    let flow = |direction| FlowOffer { direction, format: Format::Bytes, class: FlowClass::Reliable };
    let description = Description {
        class: "bench".into(),
        summary: "answers".into(),
        flows: vec![flow(FlowDirection::DeviceToApplication), flow(FlowDirection::ApplicationToDevice)],
        application: "null",
        properties: Vec::new(),
    };
    DeviceChoice::Own(description, Arc::new(move || Ok(Box::new(Answer::new(whole)))))
}

/// Returns the specification of a camera with square frames.
pub(super) fn camera(side: usize) -> String {
    format!("pattern:format=video,pixels=rgb,rate=0,width={side},height={side}")
}

impl FarSetting {
    /// Starts sharing all devices: sealed with `trust`, open to everybody without.
    fn share(&self, trust: Option<Trust>) -> Result<DeviceHost, Failure> {
        let devices = ANSWERING.iter().map(|(name, whole)| (name.to_string(), answering(*whole)));
        let cameras =
            self.sides.iter().map(|side| (format!("camera-{side}"), DeviceChoice::Spec(camera(*side))));
        // The receiver's pace decides the rate of the screen's pictures.
        let screen = self.screen.iter().map(|display| format!("x11:{display},rate=0,delay=0ms,cursor=false"));
        let screen = screen.map(|spec| (SCREEN.to_string(), DeviceChoice::Spec(spec)));
        let share = |(name, device): (String, DeviceChoice)| {
            let pipelines = pipelines(&self.via, answers(&name))?;
            Ok(ShareDevice {
                device,
                name: Some(name),
                pipelines,
                hub: Default::default(),
                allow: Vec::new(),
                transport: None,
            })
        };
        Ok(DeviceHost::start(ShareRequest {
            devices: devices.chain(cameras).chain(screen).map(share).collect::<Result<_, Failure>>()?,
            listen: SocketAddr::new(self.address, 0),
            trust,
            limits: limits(),
            host: "far".into(),
            announce: false,
        })?)
    }
}

/// Runs the far host until its standard input ends.
pub(crate) fn run(setting: &FarSetting) -> Result<(), Failure> {
    use_outboard()?;
    crate::setting::pin_to_cpu(CPUS[1]);
    let (insecure, sealed) = (setting.share(None)?, setting.share(Some(Trust::at(&setting.identity)?))?);
    let bare = TcpListener::bind((setting.address, 0))?;
    let ports = Ports {
        address: setting.address,
        insecure: insecure.address().port(),
        sealed: sealed.address().port(),
        bare: bare.local_addr()?.port(),
    };
    println!("{}", serde_json::to_string(&ports)?);
    let stop = Arc::new(Stop::new()?);
    let stopped = stop.clone();
    thread::spawn(move || {
        // Any result means that the near host is gone.
        let _ = std::io::stdin().read(&mut [0]);
        stopped.stop();
    });
    thread::spawn(move || {
        for socket in bare.incoming().flatten() {
            // The client sees a failure as a closed connection.
            thread::spawn(move || drop(serve(socket)));
        }
    });
    thread::scope(|scope| {
        let other = scope.spawn(|| sealed.run(&stop, &mut |_| {}));
        insecure.run(&stop, &mut |_| {})?;
        Ok(other.join().map_err(|_| "a thread panicked")??)
    })
}
