//! Outboard: partner vectors, pools and rings
