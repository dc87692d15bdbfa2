//! Volumes in object stores: what was flushed is there, whatever ends the writer, and there is one writer.

mod fencing;
mod hostile;
mod managed;
mod model;
mod on_the_way;
mod ranged;
