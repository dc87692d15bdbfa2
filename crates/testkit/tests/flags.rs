//! `chattr` through our mount beside the kernel's btrfs: every pair of flags in a row, on empty files, on files with
//! content and on folders, gives the same answers, the same flags and the same compression property.

use butterfs_testkit::kernel::{self, KernelMount, check_all};
use butterfs_testkit::requirement;
use butterfs_testkit::scratch::Scratch;
use butterfs_testkit::serve::{self, Served};
use butterfs_testkit::watchdog::Watchdog;
use rustix::fs::{IFlags, Mode, OFlags};
use std::path::Path;

const KINDS: [&str; 3] = ["file", "full", "folder"];

/// Flags and combinations: asked for compression, forbidden, without copy on write, and the plain ones.
const FLAGS: [u32; 16] = [
    0, 0x4, 0x400, 0x80_0000, 0x404, 0x80_0004, 0x80_0400, 0x8, 0x40, 0x80, 0xc0, 0x1_0000, 0x44, 0x440, 0x1, 0x8_0000,
];

/// The visible effect of a call.
#[derive(Debug, PartialEq, Eq)]
struct Seen {
    answer: Result<(), rustix::io::Errno>,
    flags: u32,
    property: Option<Vec<u8>>,
}

fn set(path: &Path, flags: u32) -> Seen {
    let file = rustix::fs::open(path, OFlags::RDONLY, Mode::empty()).expect("our own file");
    let answer = rustix::fs::ioctl_setflags(&file, IFlags::from_bits_retain(flags));
    let mut value = [0; 32];
    let property = rustix::fs::fgetxattr(&file, "btrfs.compression", &mut value).ok().map(|len| value[..len].to_vec());
    Seen { answer, flags: rustix::fs::ioctl_getflags(&file).expect("readable").bits(), property }
}

fn make(kind: &str, path: &Path) {
    match kind {
        "folder" => std::fs::create_dir(path).expect("room"),
        _ => std::fs::write(path, []).expect("room"),
    }
}

fn sequence(root: &Path, kind: &str, first: u32, second: u32) -> [Seen; 2] {
    let path = root.join(format!("{kind}-{first:x}-{second:x}"));
    make(kind, &path);
    let before = set(&path, first);
    if kind == "full" {
        std::fs::write(&path, vec![b'x'; 5000]).expect("room");
    }
    [before, set(&path, second)]
}

#[test]
fn chattr_answers_as_the_kernel_does() {
    const TEST: &str = "chattr_answers_as_the_kernel_does";
    if !requirement::kernel_btrfs(TEST) || !requirement::fuse(TEST) {
        return;
    }
    let _watchdog = Watchdog::new(TEST, 120);
    for options in ["", "compress=zstd:5", "nodatacow"] {
        let scratch = Scratch::new(TEST);
        let (image, other) = (scratch.sparse_file("image", 512 << 20), scratch.sparse_file("other", 512 << 20));
        serve::mkfs(&image, &[]);
        kernel::mkfs(&other, &[]);
        let (ours, kernels) =
            (Served::mount(&image, &scratch.folder("mnt"), options), KernelMount::new(&other, options));
        let roots = [ours.path(), kernels.path()];
        let mut wrong = Vec::new();
        for kind in KINDS {
            for (first, second) in FLAGS.iter().flat_map(|first| FLAGS.map(|second| (*first, second))) {
                let [ours, kernels] = roots.map(|root| sequence(root, kind, first, second));
                if ours != kernels {
                    wrong.push(format!("{kind}, {first:#x} then {second:#x}: {ours:x?}, the kernel {kernels:x?}"));
                }
            }
        }
        assert!(wrong.is_empty(), "'{options}': {} differences: {wrong:#?}", wrong.len());
        // What folders hand down.
        for flags in [0x4, 0x400, 0x80_0000, 0xc8] {
            let [ours, kernels] = roots.map(|root| {
                let folder = root.join(format!("parent-{flags:x}"));
                make("folder", &folder);
                set(&folder, flags);
                ["file", "folder"].map(|kind| {
                    make(kind, &folder.join(kind));
                    set(&folder.join(kind), 0x1)
                })
            });
            assert_eq!(ours, kernels, "'{options}': in a folder with {flags:#x}");
        }
        ours.unmount();
        check_all(&image);
        assert_eq!(kernels.finish(), [""; 0]);
    }
}
