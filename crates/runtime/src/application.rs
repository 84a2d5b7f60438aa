//! What stands in for a device at the application's side: which was chosen, and how it is made.

use crate::error::RuntimeError;
use crate::junction::joint::JointPort;
use crate::registry;
use crate::worker::PartnerOrigin;
use contract::{Description, Partner, Role};

/// What stands in for a device at the application's side.
pub enum ApplicationChoice {
    /// What suits the device's class.
    Suitable,
    /// `kind:rest`.
    Spec(String),
    /// A partner of this program's own (a measuring instrument).
    Partner(Box<dyn Partner>),
    /// A joint with other devices.
    Joint(JointPort),
}

/// Makes what stands in for a device of this description, and says what it is.
pub(crate) fn make_node(
    choice: ApplicationChoice,
    suitable: &str,
    description: &Description,
) -> Result<(PartnerOrigin, String), RuntimeError> {
    let text = match choice {
        ApplicationChoice::Partner(partner) => {
            return Ok((PartnerOrigin::Ready(partner), "this program".into()));
        }
        ApplicationChoice::Joint(port) => return port.join(description),
        ApplicationChoice::Spec(text) => text,
        ApplicationChoice::Suitable => suitable.into(),
    };
    let spec = registry::device_spec(&text, Role::Application)?;
    let opened = registry::open(&spec, Role::Application, Some(description))?;
    let node = opened.description.summary.clone();
    Ok((PartnerOrigin::Opened(Box::new(opened)), node))
}
