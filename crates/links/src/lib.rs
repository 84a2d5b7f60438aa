//! Outboard: how neighbours in one host hand messages on
