//! Outboard: the sans-IO state machines between two hosts
