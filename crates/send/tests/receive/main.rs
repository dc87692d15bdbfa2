//! Receiving: the kernel's streams give what the kernel has, what they and `btrfs receive` lose is kept, and hostile
//! streams harm nothing.

mod absurd;
mod conduct;
mod depth;
mod directories;
mod durable;
mod hostile;
mod kernel;
mod losses;
mod neighbours;
mod rounds;
mod world;
