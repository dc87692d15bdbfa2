//! Places for what sources have, besides an image that is being built: a filesystem, a folder of this machine, an
//! archive.

mod filesystem;
mod host;
mod tar;

pub use filesystem::FilesystemTarget;
pub use host::HostTarget;
pub use tar::TarTarget;
