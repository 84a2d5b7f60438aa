//! Origins of the partner of a driver or of a side port.

use crate::endpoint::FarEnd;
use contract::{Opened, Partner, PartnerError, PartnerResult, Port};
use modules::registry;
use std::fmt;

/// The resource from which a driver's partner is created.
pub enum PartnerOrigin {
    /// Descriptors of a device class.
    Opened(Box<Opened>),
    /// The path's endpoint of a junction in the broker.
    Hub(FarEnd),
    /// A partner that this program provides, such as a measuring instrument or a synthetic device.
    Ready(Box<dyn Partner>),
}

impl fmt::Debug for PartnerOrigin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            PartnerOrigin::Opened(_) => "Opened",
            PartnerOrigin::Hub(_) => "Hub",
            PartnerOrigin::Ready(_) => "Ready",
        })
    }
}

impl PartnerOrigin {
    /// Duplicates the descriptors; `None` for a partner that is not made of descriptors.
    pub fn try_clone(&self) -> Option<PartnerOrigin> {
        match self {
            PartnerOrigin::Opened(opened) => Some(PartnerOrigin::Opened(Box::new(opened.try_clone().ok()?))),
            PartnerOrigin::Hub(far) => far.try_clone().ok().map(PartnerOrigin::Hub),
            PartnerOrigin::Ready(_) => None,
        }
    }
}

/// The open target of a side port of a driver's pipelines.
pub struct OpenPort {
    /// The pair with the side port.
    pub pair: &'static str,
    /// The number of the port.
    pub port: Port,
    /// The open partner, or the endpoint that leads to it.
    pub origin: PartnerOrigin,
}

impl OpenPort {
    /// Duplicates the descriptors.
    pub fn try_clone(&self) -> Option<OpenPort> {
        let OpenPort { pair, port, origin } = self;
        Some(OpenPort { pair, port: *port, origin: origin.try_clone()? })
    }
}

/// Makes the partner of a device or node.
pub fn make_partner(origin: PartnerOrigin) -> PartnerResult<Box<dyn Partner>> {
    match origin {
        PartnerOrigin::Opened(opened) => registry::partner(*opened),
        PartnerOrigin::Hub(far) => {
            let end = far.open().map_err(|error| PartnerError::os("a junction's memory", error))?;
            Ok(Box::new(end))
        }
        PartnerOrigin::Ready(partner) => Ok(partner),
    }
}
