//! Outboard: the only room with unsafe code: system calls and ioctls without a safe wrapper elsewhere
