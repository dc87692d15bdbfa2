//! The commands that write to a damaged filesystem, each by name.
