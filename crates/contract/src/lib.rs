//! Outboard: the few traits that everything implements
