//! The program `outboard`.
fn main() {}
