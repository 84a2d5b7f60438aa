//! Outboard: pairs of transformation modules, one folder a pair
