//! Which files use an address: what btrfs-progs say on the kernel's mount, ours say on ours. By inodes, because btrfs
//! resolves paths only in subvolumes that are mounted themselves.

use super::open_with;
use super::text::{answer, ask};
use butterfs_fs::options::{DataPolicy, Method};
use butterfs_fs::{Caller, InodeId, Options, TreeId};
use butterfs_testkit::engine::{FORMATS, device};
use butterfs_testkit::kernel::{KernelMount, check_all};
use butterfs_testkit::requirement;
use butterfs_testkit::rng::Rng;
use butterfs_testkit::scratch::Scratch;
use butterfs_testkit::serve::{self, Served};
use butterfs_testkit::watchdog::Watchdog;
use std::collections::BTreeSet;
use std::path::Path;

const TOP: InodeId = InodeId::root_of(TreeId::FS);
const CALLER: Caller = Caller { uid: 0, gid: 0, umask: 0o022, privileged: true };

/// Data that is shared in each way: by snapshots, by clones in one and in another subvolume, in parts, compressed.
fn plant_shared(image: &Path) {
    let data = DataPolicy { compress: Method::parse("zstd"), ..DataPolicy::default() };
    let filesystem = open_with(image, Options { data, ..Options::default() });
    let a = InodeId::root_of(filesystem.create_subvolume(&CALLER, TOP, b"a").expect("room"));
    let b = InodeId::root_of(filesystem.create_subvolume(&CALLER, TOP, b"b").expect("room"));
    let file = |parent, name: &[u8]| filesystem.create(&CALLER, parent, name, 0o644).expect("room").id;
    let fill = |id, random: bool| {
        let mut content: Vec<u8> = (0..300_000).map(|at| (at / 50) as u8).collect();
        if random {
            Rng::new(7).fill(&mut content);
        }
        filesystem.write(id, 0, &content, false).expect("room");
        filesystem.sync().expect("a good device");
    };
    let (plain, packed) = (file(a, b"plain"), file(a, b"packed"));
    fill(plain, true);
    fill(packed, false);
    filesystem.link(plain, a, b"hard").expect("room");
    let (inside, outside) = (file(a, b"inside"), file(b, b"outside"));
    for (from, name) in [(plain, inside), (packed, outside), (plain, outside)] {
        let at = filesystem.getattr(name).expect("it is there").size.next_multiple_of(4096);
        filesystem.copy_range((from, 65_536), (name, at + 4096), 131_072).expect("room");
    }
    filesystem.sync().expect("a good device");
    filesystem.snapshot(a.tree, TOP, b"before", true).expect("room");
    // What the snapshot keeps and the source no longer has, and an extent of which only parts are used.
    filesystem.write(plain, 8192, &[9; 4096], false).expect("room");
    filesystem.unlink(a, b"packed").expect("it is there");
    filesystem.sync().expect("a good device");
    filesystem.snapshot(a.tree, b, b"after", false).expect("room");
    filesystem.shutdown().unwrap_or_else(|error| panic!("{error}"));
}

/// The lines of an answer in order, because the kernel's is that of its references; `None` when it is refused.
fn resolved(program: &Path, question: &str, at: &Path) -> Option<Vec<String>> {
    let (code, output) = answer(program, question, at);
    let mut lines: Vec<String> = output.lines().map(str::to_owned).collect();
    lines.sort_unstable();
    (code == Some(0)).then_some(lines)
}

#[test]
fn addresses_resolve_to_the_files_that_btrfs_names() {
    const TEST: &str = "addresses_resolve_to_the_files_that_btrfs_names";
    if !requirement::kernel_btrfs(TEST) || !requirement::fuse(TEST) {
        return;
    }
    let _watchdog = Watchdog::new(TEST, 200);
    let scratch = Scratch::new(TEST);
    let image = scratch.sparse_file("image", 1 << 30);
    FORMATS[0].make(&device(&image));
    plant_shared(&image);
    check_all(&image);
    let btrfs = requirement::program("btrfs").expect("required above");
    let mount = KernelMount::new(&image, "ro,subvolid=5");
    let mut addresses = BTreeSet::new();
    for at in ["@/a", "@/b", "@/before", "@/b/after"] {
        let found = ask(&btrfs, &format!("subvolume find-new {at} 0"), mount.path());
        let starts =
            found.lines().filter_map(|line| line.split(" disk start ").nth(1)?.split(' ').next()?.parse().ok());
        addresses.extend(starts.filter(|start: &u64| *start != 0).flat_map(|start| [start, start + 8192]));
    }
    assert!(addresses.len() > 6, "{addresses:?}");
    let questions: Vec<String> = addresses
        .iter()
        .flat_map(|at| ["-P ", "-P -o "].map(|flags| format!("inspect-internal logical-resolve {flags}{at} @")))
        .collect();
    let expected: Vec<_> = questions.iter().map(|question| resolved(&btrfs, question, mount.path())).collect();
    assert_eq!(mount.finish(), [""; 0]);
    assert!(expected.iter().flatten().any(|lines| lines.len() > 5), "{expected:?}");
    assert!(expected.contains(&None), "{expected:?}");
    let at = scratch.folder("mnt");
    let served = Served::mount(&image, &at, "ro,subvolid=5");
    for (question, expected) in questions.iter().zip(&expected) {
        assert_eq!(resolved(&serve::binary(), question, &at), *expected, "{question}");
    }
    served.unmount();
}
