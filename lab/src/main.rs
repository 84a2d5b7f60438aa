//! Emulated hosts in network namespaces.
fn main() {}
