//! Files, locks, loop devices.
