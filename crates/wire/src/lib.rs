//! Outboard: bytes to containers, records and control messages, and back; no I/O, no clock
