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
use crate::path::check_len;

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

/// The names in a folder, with what is known of each.
type Names<K> = Vec<(Vec<u8>, K)>;

/// Visits everything below a folder that has these names: in the order of names, and each folder's entries behind it,
/// as tar has it. `visit` gets the path of a folder and a name in it, and returns the names in that if it is a folder.
fn in_order<K: Ord>(names: Names<K>, mut visit: impl FnMut(&[u8], &[u8], K) -> Result<Option<Names<K>>>) -> Result<()> {
    let mut folder = Vec::new();
    let mut open = vec![(0, sorted(names))];
    while let Some((len, names)) = open.last_mut() {
        folder.truncate(*len);
        let Some((name, kind)) = names.next() else {
            open.pop();
            continue;
        };
        if let Some(below) = visit(&folder, &name, kind)? {
            folder = child(&folder, &name)?;
            open.push((folder.len(), sorted(below)));
        }
    }
    Ok(())
}

fn sorted<K: Ord>(mut names: Names<K>) -> std::vec::IntoIter<(Vec<u8>, K)> {
    names.sort_unstable();
    names.into_iter()
}

/// The path of something in a folder. Trees that are deeper than an image can be end here.
fn child(folder: &[u8], name: &[u8]) -> Result<Vec<u8>> {
    let path = if folder.is_empty() { name.to_vec() } else { [folder, b"/", name].concat() };
    check_len(&path)?;
    Ok(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_in_a_folder_comes_behind_it() {
        let below = |path: &[u8]| -> Option<Names<()>> {
            let names: &[&str] = match path {
                b"" => &["b", "a-", "a"],
                b"a" => &["y", "x"],
                b"a/x" => &["1"],
                _ => return None,
            };
            Some(names.iter().map(|name| (name.as_bytes().to_vec(), ())).collect())
        };
        let mut visited = Vec::new();
        in_order(below(b"").unwrap(), |folder, name, ()| {
            let path = child(folder, name)?;
            visited.push(String::from_utf8(path.clone()).unwrap());
            Ok(below(&path))
        })
        .unwrap();
        assert_eq!(visited, ["a", "a/x", "a/x/1", "a/y", "a-", "b"]);
    }
}
