//! The application's node: the partner that represents a device on the application host.

use crate::joint::JointPort;
use crate::origin::PartnerOrigin;
use contract::ServiceError;
use contract::{Description, DeviceSpec, Opened, Partner, Role};
use flow::nodes::{self, Claim, Claimant, Conflict};
use modules::registry;
use rustix::stdio::stdout;
use rustix::termios::isatty;

/// The choice of a node for a device.
pub enum ApplicationChoice {
    /// The default of the device's class.
    Suitable,
    /// A device specification, `kind:rest`.
    Spec(String, Conflict),
    /// A node that the program has claimed ([`ApplicationChoice::claim`]).
    Claimed(DeviceSpec),
    /// A partner that this program provides, such as a measuring instrument.
    Partner(Box<dyn Partner>),
    /// A joint with other devices.
    Joint(JointPort),
}

impl ApplicationChoice {
    /// Returns the class of the node; empty if the device or this program chooses it.
    pub fn class(&self) -> String {
        match self {
            ApplicationChoice::Spec(text, _) => registry::device_spec(text, Role::Application)
                .map_or_else(|_| String::new(), |spec| spec.class),
            ApplicationChoice::Claimed(spec) => spec.class.clone(),
            _ => String::new(),
        }
    }

    /// Claims the node of a specification, which can be done before the device is requested: the process that has the node
    /// also has the device, and a device for one host is refused to the next one.
    pub fn claim(self, service: String) -> Result<(ApplicationChoice, Option<Claim>), ServiceError> {
        let ApplicationChoice::Spec(text, conflict) = self else { return Ok((self, None)) };
        let spec = registry::device_spec(&text, Role::Application)?;
        let (spec, claim) = nodes::claim_node(&spec, &Claimant { service, conflict, yields: true })?;
        Ok((ApplicationChoice::Claimed(spec), claim))
    }
}

/// The node of an application.
pub struct ApplicationNode {
    /// The partner.
    pub origin: PartnerOrigin,
    /// Its description, one line of text.
    pub summary: String,
    /// The claim to its name, which must outlive the partner; `None` if it needs none.
    pub claim: Option<Claim>,
}

impl ApplicationNode {
    fn of(opened: Opened, claim: Option<Claim>) -> ApplicationNode {
        let summary = opened.description.summary.clone();
        ApplicationNode { origin: PartnerOrigin::Opened(Box::new(opened)), summary, claim }
    }
}

/// Creates the node for a device of this description. `service` uses it: [`Claimant::service`].
pub fn make_node(
    choice: ApplicationChoice,
    suitable: &str,
    description: &Description,
    service: String,
) -> Result<ApplicationNode, ServiceError> {
    let (text, conflict) = match choice {
        ApplicationChoice::Partner(partner) => {
            let (origin, summary) = (PartnerOrigin::Ready(partner), "this program".into());
            return Ok(ApplicationNode { origin, summary, claim: None });
        }
        ApplicationChoice::Joint(port) => return port.join(description),
        ApplicationChoice::Claimed(spec) => {
            let opened = registry::open(&spec, Role::Application, Some(description))?;
            return Ok(ApplicationNode::of(opened, None));
        }
        ApplicationChoice::Spec(text, conflict) => (text, conflict),
        ApplicationChoice::Suitable if suitable == "stdout" && isatty(stdout()) => {
            return Err(ServiceError::Usage(format!(
                "{}: the bytes of this device are not written to the terminal by default: add `--as stdout`, or redirect \
                 standard output",
                description.summary
            )));
        }
        ApplicationChoice::Suitable => (suitable.into(), Conflict::Refuse),
    };
    let spec = registry::device_spec(&text, Role::Application)?;
    let claimant = Claimant { service, conflict, yields: true };
    let (opened, claim) = nodes::open(&spec, Some(description), &claimant)?;
    Ok(ApplicationNode::of(opened, claim))
}
