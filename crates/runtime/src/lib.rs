//! Outboard: clocks, threads, registry, supervision; runs paths and drives sessions
