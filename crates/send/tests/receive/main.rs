//! Receiving: the kernel's streams give what the kernel has, what they and `btrfs receive` lose is kept, and hostile
//! streams harm nothing.

mod conduct;
mod directories;
mod durable;
mod hostile;
mod kernel;
mod losses;
mod rounds;
mod world;
