//! Scans of devices in memory.
