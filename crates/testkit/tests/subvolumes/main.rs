//! Subvolumes and snapshots, with the kernel's btrfs and btrfs-progs as oracles.
//!
//! | file | proves |
//! |---|---|
//! | `forest` | random work in a forest of subvolumes, by us and the kernel in turn, mirrored on models |
//! | `cuts` | after a power cut anywhere, one of the committed states, and a right UUID tree |
//! | `dropped` | subvolumes half dropped by one side are finished by the other |
//! | `kills` | the serving process killed while snapshots come and go |
//! | `addresses` | which files use an address, as btrfs-progs say |
//! | `text` | our commands print what those of btrfs-progs print |
//! | `mounted` | commands on a mount: caches of the kernel, permissions, programs that look for links |

mod addresses;
mod cuts;
mod dropped;
mod forest;
mod kills;
mod mounted;
mod text;

use butterfs_device::{FileDevice, FileOptions};
use butterfs_fs::{Env, Filesystem, Options, Subvolume, TreeId};
use butterfs_testkit::fingerprint::{Compare, Fingerprint, differences};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// Opens an image at its top level. A filesystem that was dropped lets go of it when its cleaner has done its step.
fn open_top(image: &Path) -> Filesystem {
    open_with(image, Options::default())
}

/// The same with other options.
fn open_with(image: &Path, options: Options) -> Filesystem {
    let options = Options { subvolume: Subvolume::Id(TreeId::FS), ..options };
    let file = FileOptions { wait: Duration::from_secs(10), ..FileOptions::read_write() };
    let device = FileDevice::open(image, &file).unwrap_or_else(|error| panic!("{error}"));
    let opened = Filesystem::open(vec![Arc::new(device)], options, Env::system());
    opened.unwrap_or_else(|error| panic!("{}: {error}", image.display()))
}

fn same(what: &str, expected: &Fingerprint, actual: &Fingerprint, compare: Compare) {
    let found = differences(expected, actual, compare);
    assert!(found.is_empty(), "{what}: {} differences, first {:#?}", found.len(), &found[..found.len().min(10)]);
}

/// The fingerprint of the folder `name`, relative to it.
fn inside(print: &Fingerprint, name: &str) -> Fingerprint {
    let prefix = format!("{name}/").into_bytes();
    let mut inside = Fingerprint::default();
    for (path, entry) in &print.entries {
        let mut entry = entry.clone();
        if path == name.as_bytes() {
            inside.entries.insert(Vec::new(), entry);
        } else if let Some(rest) = path.strip_prefix(&prefix[..]) {
            entry.first_path = entry.first_path.map(|first| first[prefix.len()..].to_vec());
            inside.entries.insert(rest.to_vec(), entry);
        }
    }
    inside
}
