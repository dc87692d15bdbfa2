//! snapper, which works by ioctls of btrfs: on the kernel's btrfs everything that it does; on our mount each step at
//! which it finds out that it cannot, without a trace left behind. docs/compatibility.md names the ioctls.

use crate::{can_run, image, script};
use butterfs_testkit::kernel::KernelMount;
use butterfs_testkit::scratch::Scratch;
use butterfs_testkit::serve::{Served, binary};

/// snapper without its daemon, with a configuration of its own.
const SNAPPER: &str = r#"
unshare -m bash -euo pipefail -s "$at" "$scratch" "$B" << 'END'
at="$1" scratch="$2" B="$3"
mount --make-rprivate /; mount -t tmpfs none /etc/snapper; mkdir /etc/snapper/configs
echo 'SNAPPER_CONFIGS=""' > "$scratch/default"; mount --bind "$scratch/default" /etc/default/snapper
s() { snapper --no-dbus -c test "$@" 2>&1; }
"#;

/// Snapshots before and after a change, what it was, taking it back, deleting and cleaning up.
const ALL: &str = r#"
btrfs -q subvolume create "$at/home"; echo one > "$at/home/file"
s create-config "$at/home"; s create -d before
echo two >> "$at/home/file"; touch "$at/home/new"; s create -d after
s status 1..2 | sed "s#$at/##"; s diff 1..2 | grep '^[+-][^+-]'
s undochange 1..2; cat "$at/home/file"; [ ! -e "$at/home/new" ]
for n in $(seq 60); do s create -c number; done; s set-config NUMBER_MIN_AGE=0 NUMBER_LIMIT=5
s cleanup number; s --csvout list --columns number | wc -l
s delete 1-2; s delete-config; [ ! -e "$at/home/.snapshots" ]
END
"#;

const HERE: &str = r#"
"$B" subvolume create "$at/home" > /dev/null
! s create-config "$at/home"; ! s create-config -f btrfs "$at/home"
[ -z "$(ls -A "$at/home")" ]; "$B" subvolume delete "$at/home" > /dev/null
END
"#;

#[test]
fn snapper_on_the_kernel_and_here() {
    const TEST: &str = "snapper_on_the_kernel_and_here";
    if !can_run(TEST, &["snapper", "unshare", "btrfs"]) {
        return;
    }
    let scratch = Scratch::new(TEST);
    let text = |body: &str| format!("B='{}'\n{SNAPPER}{}", binary().display(), body.trim_start());
    let kernel = KernelMount::new(&image(&scratch, "theirs"), "");
    let theirs = script(kernel.path(), &scratch.folder("theirs.d"), &text(ALL), 120);
    assert_eq!(theirs.code, Some(0), "{}", theirs.output);
    assert!(theirs.output.contains("c..... home/file\n+..... home/new\n+two\n"), "{}", theirs.output);
    kernel.finish();
    let served = Served::mount(&image(&scratch, "ours"), &scratch.folder("mnt"), "");
    let ours = script(served.path(), &scratch.folder("ours.d"), &text(HERE), 60);
    assert_eq!(ours.code, Some(0), "{}", ours.output);
    // The type in the mount table; then the inode number of a subvolume, which is 256 only for the one that is mounted.
    for step in ["do not know about fstype 'fuseblk.butterfs'", "subvolume is not a btrfs subvolume"] {
        assert!(ours.output.contains(step), "{}", ours.output);
    }
    served.unmount();
    // The third step: where the subvolume itself is mounted, making another one in it by an ioctl.
    let served = Served::mount(&scratch.join("ours"), &scratch.folder("mnt"), "");
    let make = format!("'{}' subvolume create \"$at/../home\"", binary().display());
    assert_eq!(script(served.path(), &scratch.folder("ours.d"), &make, 60).code, Some(0));
    served.unmount();
    let served = Served::mount(&scratch.join("ours"), &scratch.folder("mnt"), "subvol=home");
    let refused = text("! s create-config -f btrfs \"${at%/work}\"\nEND\n");
    let third = script(served.path(), &scratch.folder("ours.d"), &refused, 60);
    assert!(third.output.contains("BTRFS_IOC_SUBVOL_CREATE) failed, errno:25"), "{}", third.output);
    served.unmount();
}
