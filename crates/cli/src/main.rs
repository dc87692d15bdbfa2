//! The `butterfs` command.
fn main() {}
