//! All modules there are: the tables of `stages`, `devices` and `transports`, seen together.

use contract::{
    DeviceClass, DeviceError, DeviceSpec, Opened, Pair, Partner, PartnerError, Role, TransportClass,
};

/// Every pair.
pub fn pairs() -> &'static [&'static dyn Pair] {
    stages::PAIRS
}

/// Every device class.
pub fn device_classes() -> &'static [&'static dyn DeviceClass] {
    devices::DEVICES
}

/// Every transport.
pub fn transports() -> &'static [&'static dyn TransportClass] {
    transports::TRANSPORTS
}

/// The transport of this name.
pub fn transport(name: &str) -> Option<&'static dyn TransportClass> {
    transports().iter().find(|class| class.name() == name).copied()
}

/// The device class of this name.
pub fn device_class(name: &str) -> Option<&'static dyn DeviceClass> {
    device_classes().iter().find(|class| class.name() == name).copied()
}

/// Reads `kind:rest` for one side of a driver.
pub fn device_spec(text: &str, role: Role) -> Result<DeviceSpec, DeviceError> {
    devices::spec::parse(text, role).map(|(_, spec)| spec)
}

/// Opens what a spec stands for.
pub(crate) fn open(
    spec: &DeviceSpec,
    role: Role,
    like: Option<&contract::Description>,
) -> Result<Opened, DeviceError> {
    class_of(spec)?.open(spec, role, like)
}

/// Finds again what a spec stood for.
pub(crate) fn reopen(
    spec: &DeviceSpec,
    role: Role,
    known: &contract::Description,
) -> Result<Opened, DeviceError> {
    class_of(spec)?.reopen(spec, role, known)
}

fn class_of(spec: &DeviceSpec) -> Result<&'static dyn DeviceClass, DeviceError> {
    device_class(&spec.class).ok_or_else(|| DeviceError::Spec {
        what: spec.class.clone(),
        problem: "there is no such kind of device; `outboard modules` lists them".into(),
    })
}

/// The partner that runs on opened descriptors.
pub(crate) fn partner(opened: Opened) -> Result<Box<dyn Partner>, PartnerError> {
    let class = class_of(&opened.spec).map_err(|error| PartnerError::Message(error.to_string()))?;
    let name = opened.description.summary.clone();
    class.partner(opened).map_err(|error| PartnerError::Message(format!("{name}: {error}")))
}
