//! Outboard: virtual clock, two peers in one process, conformance suites
