//! The application's node: the partner that represents a device on the application host.

use crate::joint::JointPort;
use crate::origin::PartnerOrigin;
use contract::ServiceError;
use contract::{Description, Partner, Role};
use modules::registry;
use rustix::stdio::stdout;
use rustix::termios::isatty;

/// The choice of a node for a device.
pub enum ApplicationChoice {
    /// The default of the device's class.
    Suitable,
    /// A device specification, `kind:rest`.
    Spec(String),
    /// A partner that this program provides, such as a measuring instrument.
    Partner(Box<dyn Partner>),
    /// A joint with other devices.
    Joint(JointPort),
}

/// Creates the node for a device of this description; returns it with its description.
pub fn make_node(
    choice: ApplicationChoice,
    suitable: &str,
    description: &Description,
) -> Result<(PartnerOrigin, String), ServiceError> {
    let text = match choice {
        ApplicationChoice::Partner(partner) => {
            return Ok((PartnerOrigin::Ready(partner), "this program".into()));
        }
        ApplicationChoice::Joint(port) => return port.join(description),
        ApplicationChoice::Spec(text) => text,
        ApplicationChoice::Suitable if suitable == "stdout" && isatty(stdout()) => {
            return Err(ServiceError::Usage(format!(
                "{}: the bytes of this device are not written to the terminal by default: add `--as stdout`, or redirect \
                 standard output",
                description.summary
            )));
        }
        ApplicationChoice::Suitable => suitable.into(),
    };
    let spec = registry::device_spec(&text, Role::Application)?;
    let opened = registry::open(&spec, Role::Application, Some(description))?;
    let node = opened.description.summary.clone();
    Ok((PartnerOrigin::Opened(Box::new(opened)), node))
}
