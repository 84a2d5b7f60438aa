//! Outboard: network modules, one folder a transport
