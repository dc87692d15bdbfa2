//! Where the content of an image comes from.

mod composefs;
mod filesystem;
mod folder;
mod oci;
mod ranges;
mod stream;
pub mod tar;

pub use composefs::ComposefsSource;
pub use filesystem::FilesystemSource;
pub(crate) use filesystem::as_path;
pub use folder::FolderSource;
pub use oci::{Layers, OciSource};
pub use stream::StreamSource;
pub use tar::TarSource;

use crate::assembly::Target;
use crate::error::Result;

/// Something that has files: a folder, an archive, or whatever a program generates.
///
/// ```
/// use butterfs_image::{Attributes, Builder, Content, Source, Target};
///
/// struct Greeting;
///
/// impl Source for Greeting {
///     fn name(&self) -> String {
///         "greeting".to_owned()
///     }
///
///     fn read(&mut self, into: &mut dyn Target) -> butterfs_image::Result<()> {
///         let attributes = Attributes { mode: 0o644, ..Attributes::default() };
///         into.file(b"etc/motd", attributes, Content::whole(6, &mut b"hello\n".as_slice()))
///     }
/// }
///
/// # fn main() -> butterfs_image::Result<()> {
/// let device = butterfs_device::MemoryDevice::new(256 << 20);
/// Builder::new().source("/", Greeting)?.build_on(std::sync::Arc::new(device))?;
/// # Ok(())
/// # }
/// ```
pub trait Source {
    /// The name in messages.
    fn name(&self) -> String;

    /// Puts everything that it has into the assembly, in an order that depends on nothing but its content.
    fn read(&mut self, into: &mut dyn Target) -> Result<()>;
}
