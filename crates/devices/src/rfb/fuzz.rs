//! What the fuzzer calls: both sides' parsers, as a stranger reaches them.
