//! Outboard: device classes, one folder a class, both sides together
