//! Outboard: a seeded model of a network link, and the relay that carries it
