//! The far host: shares the experiments' devices, and does with bare sockets what they do.

use super::instruments::{Answer, noise};
use super::network::{CPUS, limits};
use crate::Failure;
use clap::Args;
use contract::{Description, FlowClass, FlowDirection, FlowOffer, Format};
use runtime::{DeviceChoice, Pipelines, ShareDevice, ShareRequest, Sharer, Stop};
use serde::{Deserialize, Serialize};
use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::thread;

/// Where it is to be.
#[derive(Args, Debug, Clone)]
pub(crate) struct FarSetting {
    /// Where it listens
    #[arg(long)]
    address: IpAddr,
    /// What happens to the flows of its devices, each way
    #[arg(long, default_value = "")]
    via: String,
    /// Sides of the square frames it has
    #[arg(long = "side", value_delimiter = ',')]
    sides: Vec<usize>,
    /// The display whose screen it has
    #[arg(long)]
    screen: Option<String>,
}

/// The name of the screen that the far host has.
pub(crate) const SCREEN: &str = "screen";

/// Where the far host listens.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Ports {
    pub(crate) address: IpAddr,
    /// Of the sharer.
    pub(crate) share: u16,
    /// Of the bare services.
    pub(crate) bare: u16,
}

impl Default for Ports {
    fn default() -> Self {
        Ports { address: Ipv4Addr::LOCALHOST.into(), share: 0, bare: 0 }
    }
}

/// What a bare connection asks for: one byte, and a number of bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Service {
    /// Messages of so many bytes come back.
    Echo = 1,
    /// A byte comes when so many have come.
    Acknowledge = 2,
    /// Frames of so many bytes come, as fast as they are taken.
    Frames = 3,
    /// Everything is read.
    Drain = 4,
}

/// Says what a bare connection is for.
pub(crate) fn ask(socket: &mut TcpStream, service: Service, bytes: u64) -> Result<(), Failure> {
    let mut request = [service as u8; 9];
    request[1..].copy_from_slice(&bytes.to_le_bytes());
    Ok(socket.write_all(&request)?)
}

fn serve(mut socket: TcpStream) -> Result<(), Failure> {
    socket.set_nodelay(true)?;
    let mut request = [0; 9];
    socket.read_exact(&mut request)?;
    let [service, bytes @ ..] = request;
    let bytes = u64::from_le_bytes(bytes);
    let memory = usize::try_from(bytes)?;
    match service {
        1 => crate::bare::echo(socket, memory),
        2 => {
            let mut buffer = vec![0; 1 << 20];
            let mut left = bytes;
            while left > 0 {
                let most = buffer.len().min(usize::try_from(left)?);
                match socket.read(&mut buffer[..most])? {
                    0 => return Ok(()),
                    count => left -= count as u64,
                }
            }
            Ok(socket.write_all(&[0])?)
        }
        3 => {
            // A frame is painted anew each time, as the device's is.
            let (scene, mut frame) = (noise(memory), vec![0; memory]);
            loop {
                frame.copy_from_slice(&scene);
                socket.write_all(&frame)?;
            }
        }
        4 => {
            let mut buffer = vec![0; 1 << 20];
            while socket.read(&mut buffer)? > 0 {}
            Ok(())
        }
        other => Err(format!("there is no service {other}").into()),
    }
}

/// Names of the devices that answer, and whether with the whole message.
const ANSWERING: [(&str, bool); 2] = [("echo", true), ("acknowledge", false)];

/// Whether a device has a flow back.
pub(crate) fn answers(device: &str) -> bool {
    ANSWERING.iter().any(|(name, _)| *name == device)
}

/// The same way for both flows, or for the one there is.
pub(crate) fn pipelines(pipeline: &str, both: bool) -> Result<Pipelines, Failure> {
    Ok(Pipelines::parse(Some(pipeline), both.then_some(pipeline), None)?)
}

/// A device that answers.
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

/// The spec of a camera whose pictures are squares.
pub(crate) fn camera(side: usize) -> String {
    format!("pattern:format=video,pixels=rgb,rate=0,width={side},height={side}")
}

/// Is the far host, until its standard input ends.
pub(crate) fn run(setting: &FarSetting) -> Result<(), Failure> {
    super::use_outboard()?;
    sys::thread::pin_to_cpu(CPUS[1]);
    let devices = ANSWERING.iter().map(|(name, whole)| (name.to_string(), answering(*whole)));
    let cameras =
        setting.sides.iter().map(|side| (format!("camera-{side}"), DeviceChoice::Spec(camera(*side))));
    // As many pictures as are taken: how many that are is measured.
    let screen = setting.screen.iter().map(|display| format!("x11:{display},rate=0,delay=0ms,cursor=false"));
    let screen = screen.map(|spec| (SCREEN.to_string(), DeviceChoice::Spec(spec)));
    let share = |(name, device): (String, DeviceChoice)| {
        let pipelines = pipelines(&setting.via, answers(&name))?;
        Ok(ShareDevice {
            device,
            name: Some(name),
            pipelines,
            hub: Default::default(),
            allow: Vec::new(),
            transport: None,
        })
    };
    let request = ShareRequest {
        devices: devices.chain(cameras).chain(screen).map(share).collect::<Result<_, Failure>>()?,
        listen: SocketAddr::new(setting.address, 0),
        trust: None,
        limits: limits(),
        host: "far".into(),
        announce: false,
    };
    let sharer = Sharer::start(request)?;
    let bare = TcpListener::bind((setting.address, 0))?;
    let ports =
        Ports { address: setting.address, share: sharer.address().port(), bare: bare.local_addr()?.port() };
    println!("{}", serde_json::to_string(&ports)?);
    let stop = Arc::new(Stop::new()?);
    let stopped = stop.clone();
    thread::spawn(move || {
        // Whatever comes, or if nothing can: the near host is gone.
        let _ = std::io::stdin().read(&mut [0]);
        stopped.stop();
    });
    thread::spawn(move || {
        for socket in bare.incoming().flatten() {
            // Its peer sees what became of it.
            thread::spawn(move || drop(serve(socket)));
        }
    });
    Ok(sharer.run(&stop, &mut |_| {})?)
}
