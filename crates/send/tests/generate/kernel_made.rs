//! Snapshots that the kernel made, with everything that it writes: compression, reflinks, shared tree blocks, deleted
//! originals. Ours sends them; the strict receiver and `btrfs receive` check the streams.

use crate::kernel::{received, same_tree};
use crate::receiver::Receiver;
use crate::scenarios::without_subvolumes;
use crate::world::World;
use butterfs_fs::TreeId;
use butterfs_send::generate::{Job, Options};
use butterfs_send::wire::Version;
use butterfs_testkit::fingerprint::Fingerprint;
use butterfs_testkit::kernel::{KernelMount, mkfs, run_ok};
use butterfs_testkit::scratch::Scratch;
use butterfs_testkit::watchdog::Watchdog;
use butterfs_testkit::{engine, requirement};
use std::path::Path;

/// The steps between the snapshots, in a subvolume `w`.
const STEPS: [&str; 3] = [
    r#"
mkdir -p d/e; seq 1 200000 > d/text; head -c 3000000 /dev/urandom > d/noise; echo small > d/e/small
cp --reflink=always d/text d/shared; cp --reflink=always d/noise d/e/shared
mknod fifo p; mknod dev c 259 300000; ln -s ../d/text d/e/link; ln d/text hard; : > empty
: > d/space; fallocate -n -l 1M d/space; truncate -s 10M d/hole
printf x | dd of=d/hole bs=1 seek=5000000 conv=notrunc status=none
setfattr -n user.a -v 1 d; setfattr -n trusted.b -v 2 hard; chown 5:6 d/e; chmod 2755 d/e
touch -d '1960-01-01 00:00:01.5' empty
for n in $(seq 1 300); do echo $n > d/e/f$n; done
btrfs property set d compression zlib; cp d/text d/zlib; mkdir lzo
btrfs property set lzo compression lzo; cp d/text lzo/text
btrfs subvolume create -q nested 2>/dev/null || btrfs subvolume create nested; echo inside > nested/file
"#,
    r#"
mv d/e d/E; mv d/E/f1 d/E/f2; rm d/E/f3; for n in $(seq 10 100); do mv d/E/f$n d/g$n; done
rm -r nested 2>/dev/null || btrfs subvolume delete nested
cp --reflink=always d/noise new; cp --reflink=always d/zlib lzo/zlib
dd if=/dev/urandom of=d/noise bs=4k seek=100 count=10 conv=notrunc status=none
fallocate -p -o 65536 -l 262144 d/text; truncate -s 1000000 d/shared; rm d/space; mkdir d/e; echo again > d/e/small
seq 1 100000 >> lzo/text; setfattr -x user.a d; chmod 600 hard; chown 7:8 d/E; touch d; ln d/E/f5 d/e/five
dd if=d/zlib of=d/zlib bs=1000 count=1 seek=50 conv=notrunc status=none
"#,
    r#"
mv d/E lzo/E; rm -r d/e; mv lzo x; mkdir lzo; mv x lzo/x; for n in $(seq 10 2 100); do rm d/g$n; done
cp --reflink=always lzo/x/zlib again; truncate -s 0 d/hole; seq 5 > d/hole; rm new; mv hard new; cat d/text > rewritten
"#,
];

fn make(image: &Path) {
    mkfs(image, &[]);
    let mount = KernelMount::new(image, "noatime,compress=zstd");
    let at = mount.path().display();
    let script = |number: usize| {
        let step = STEPS[number];
        format!("cd '{at}/w'; {step}\nsync; btrfs subvolume snapshot -r '{at}/w' '{at}/s{number}'")
    };
    run_ok(60, "bash", &["-ec", &format!("btrfs subvolume create '{at}/w'")]);
    for number in 0..STEPS.len() {
        run_ok(120, "bash", &["-ec", &script(number)]);
    }
    // References of what only snapshots hold are kept in another form.
    run_ok(60, "bash", &["-ec", &format!("cd '{at}/w'; rm -rf d lzo again; sync")]);
    assert!(mount.finish().is_empty());
}

fn prints(image: &Path) -> Vec<Fingerprint> {
    let mount = KernelMount::new(image, "ro,noatime");
    let print = |number: usize| Fingerprint::of_tree(&mount.path().join(format!("s{number}")));
    let prints = (0..STEPS.len()).map(|number| without_subvolumes(print(number))).collect();
    mount.finish();
    prints
}

#[test]
fn snapshots_of_the_kernel_travel() {
    const TEST: &str = "snapshots_of_the_kernel_travel";
    if !requirement::kernel_btrfs(TEST) || !requirement::programs(TEST, &["bash", "setfattr"]) {
        return;
    }
    let _watchdog = Watchdog::new(TEST, 300);
    let scratch = Scratch::new("send-kernel-made");
    let image = scratch.sparse_file("made.img", 2 << 30);
    make(&image);
    let prints = prints(&image);
    let world = World::open(engine::device(&image));
    let ids: Vec<TreeId> = (0..STEPS.len())
        .map(|number| world.fs.lookup(crate::world::TOP, format!("s{number}").as_bytes()).expect("it was made").id.tree)
        .collect();
    for (version, compressed_data) in [(Version::V1, false), (Version::V2, true)] {
        let options = Options { compressed_data, ..Options::default() };
        let full = Job { subvolumes: vec![ids[0]], version, options: options.clone(), ..Job::default() };
        let rest = Job { subvolumes: ids[1..].to_vec(), clone_sources: vec![ids[0]], one_stream: true, ..full.clone() };
        let stream = [world.send(&full), world.send(&rest)].concat();
        let mut receiver = Receiver::default();
        receiver.receive(&stream).unwrap_or_else(|why| panic!("{version:?}: {why}"));
        let count = |name: &str| receiver.counts.get(name).copied().unwrap_or(0);
        assert!(count("clone") >= 5, "{:?}", receiver.counts);
        assert_eq!(count("encoded_write") > 0, compressed_data, "{:?}", receiver.counts);
        received(&scratch, &stream, |top| {
            for (number, print) in prints.iter().enumerate() {
                same_tree(&format!("s{number}, {version:?}"), print, &top.join(format!("s{number}")));
            }
        });
    }
}
