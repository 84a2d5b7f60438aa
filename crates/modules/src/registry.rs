//! All modules: the tables of `stages`, `devices` and `transports`.

use contract::{
    Description, DeviceClass, DeviceError, DeviceSpec, FlowOffer, Kind, Opened, Pair, Partner, PartnerError,
    PartnerResult, Role, TransportClass,
};
use std::borrow::Cow;
use std::os::fd::OwnedFd;

pub use devices::find as device_class;
pub use transports::find as transport;

/// All pairs.
pub fn pairs() -> &'static [&'static dyn Pair] {
    stages::PAIRS
}

/// All device classes.
pub fn device_classes() -> &'static [&'static dyn DeviceClass] {
    devices::DEVICES
}

/// All transports.
pub fn transports() -> &'static [&'static dyn TransportClass] {
    transports::TRANSPORTS
}

/// Returns the kind of a device that a peer describes.
pub fn kind(described: &Description) -> Result<Kind, DeviceError> {
    match device_class(&described.class) {
        Some(class) => class.kind(described),
        None => Ok(Kind::of_flows(described)),
    }
}

/// Parses `kind:rest` for one side of a driver.
pub fn device_spec(text: &str, role: Role) -> Result<DeviceSpec, DeviceError> {
    devices::spec::parse(text, role).map(|(_, spec)| spec)
}

/// Returns `kind:rest` for a device that is written as an obvious address, such as `/dev/ttyUSB0`; any other text
/// unchanged.
pub fn with_class(text: &str, role: Role) -> Cow<'_, str> {
    devices::address::with_class(text, role)
}

/// The device class that users call `word`, if that is not its name.
pub fn class_called(word: &str) -> Option<&'static str> {
    devices::address::other_name(word, Role::Device)
}

/// Returns the flows that the spec of a device alone determines, and checks its options.
pub fn flows(spec: &DeviceSpec) -> Result<Vec<FlowOffer>, DeviceError> {
    class_of(spec)?.flows(spec)
}

/// Returns the question that [`open`] asks in a dialog of this host; `None` if it asks none.
pub fn question(spec: &DeviceSpec) -> Option<String> {
    class_of(spec).ok().and_then(|class| class.question(spec))
}

/// Closes the dialog of an [`open`] that waits for its answer, which then returns an error.
pub fn withdraw(spec: &DeviceSpec) {
    if let Ok(class) = class_of(spec) {
        class.withdraw(spec);
    }
}

/// Returns whether [`open`] waits for another host.
pub fn waits_for_host(spec: &DeviceSpec) -> bool {
    class_of(spec).is_ok_and(|class| class.waits_for_host())
}

/// Opens the device that a spec names.
pub fn open(spec: &DeviceSpec, role: Role, like: Option<&Description>) -> Result<Opened, DeviceError> {
    class_of(spec)?.open(spec, role, like)
}

/// Finds the device of a spec again after it was unplugged, by its identity in `known`.
pub fn reopen(spec: &DeviceSpec, role: Role, known: &Description) -> Result<Opened, DeviceError> {
    class_of(spec)?.reopen(spec, role, known)
}

/// Makes one more connection to a device that several connections serve. The call may wait.
pub fn connect(spec: &DeviceSpec, known: &Description) -> Result<OwnedFd, DeviceError> {
    class_of(spec)?.connect(spec, known)
}

fn class_of(spec: &DeviceSpec) -> Result<&'static dyn DeviceClass, DeviceError> {
    device_class(&spec.class).ok_or_else(|| DeviceError::Spec {
        what: spec.class.clone(),
        problem: "there is no such kind of device; `outboard modules` lists them".into(),
    })
}

/// Removes the leftovers of an opened device ([`DeviceClass::release`]), after its partner is dropped.
pub fn release(opened: &Opened) {
    if let Some(class) = device_class(&opened.spec.class) {
        class.release(opened);
    }
}

/// Creates the partner of an opened device.
pub fn partner(opened: Opened) -> PartnerResult<Box<dyn Partner>> {
    let class = class_of(&opened.spec).map_err(|error| PartnerError::Message(error.to_string()))?;
    let name = opened.description.summary.clone();
    class.partner(opened).map_err(|error| PartnerError::Message(format!("{name}: {error}")))
}
