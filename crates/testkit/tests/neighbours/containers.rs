//! Containers: podman and buildah with their store on our mount, over the storage drivers `overlay` (of the kernel) and
//! `vfs`. No network: the image is made from a folder.
//!
//! Their driver `btrfs` asks `statfs` for the filesystem's type, which is FUSE's here, and refuses.

use crate::{both, can_run, image, script};
use butterfs_testkit::scratch::Scratch;
use butterfs_testkit::serve::Served;

/// `store` is where the graph lies: a bind mount, because podman remembers its path. `show` prints a tree without what
/// differs from run to run.
const STORE: &str = r#"
store="$scratch/store"; mkdir -p "$store"; mount --bind "$at" "$store"
# At most 50 characters, and the same each time: podman remembers it.
run=/tmp/pod-$(echo "$scratch" | md5sum | cut -c1-16)
trap 'cd /; umount -l "$store"; rm -rf "$run"' EXIT
pod() {
    podman --root "$store/$driver" --runroot "$run/$driver" --storage-driver $driver --events-backend=none \
        --cgroup-manager=cgroupfs "$@"
}
show() { (
    cd "$1"
    find . -mindepth 1 \( -type d -printf '%p %y %m\n' -o -printf '%p %y %m %n %s %l\n' \) | sort
    find . -type f | sort | xargs -d '\n' md5sum
    getfattr -Rd . 2>/dev/null
); }
"#;

/// Import, build with removals and renames of what lower layers have, change a container, commit, export.
const MAKE: &str = r#"
tree="$scratch/tree"; rm -rf "$tree"; mkdir -p "$tree/bin" "$tree/etc/deep" "$tree/gone"
cp /bin/sh "$tree/bin/"; ln "$tree/bin/sh" "$tree/bin/link"; ln -s sh "$tree/bin/symlink"; echo x > "$tree/etc/passwd"
echo y > "$tree/gone/file"
mkfifo "$tree/pipe"; setfattr -n user.colour -v blue "$tree/etc/passwd"; chmod 4755 "$tree/bin/sh"
for n in $(seq 1 $((100 * rounds))); do echo $n > "$tree/etc/deep/n$n"; done
tar --xattrs -C "$tree" -c . > "$scratch/tree.tar"
for driver in $drivers; do
  echo "driver $driver"
  pod import -q "$scratch/tree.tar" base:1 > /dev/null
  work=$(pod create base:1 /bin/sh); m=$(pod mount $work)
  rm -r "$m/gone"; mkdir "$m/gone"; echo new > "$m/gone/new"; mv "$m/etc/deep" "$m/etc/deeper"
  rm "$m/pipe"; echo more >> "$m/etc/passwd"
  pod diff $work | sort
  pod commit -q $work second > /dev/null; pod umount $work > /dev/null; pod rm $work > /dev/null
  printf 'FROM second\nCOPY n1 /etc/copied\nCOPY n2 /etc/passwd\n' > "$scratch/Containerfile"
  (cd "$tree/etc/deep"; pod build -q --isolation=chroot -t third -f "$scratch/Containerfile" . > /dev/null 2>&1)
  pod images --format '{{.Repository}}' | sort
  work=$(pod create --name kept third /bin/sh); m=$(pod mount $work); show "$m"; pod umount $work > /dev/null
  pod save -q third | tar -t | wc -l
done
"#;

/// The created objects are there; then everything is removed.
const AGAIN: &str = r#"
for driver in $drivers; do
  echo "driver $driver"
  m=$(pod mount kept); show "$m"; pod umount kept > /dev/null
  pod export kept | tar -t | sort | md5sum
  pod rm kept > /dev/null; pod rmi -a -f > /dev/null 2>&1; pod images -q | wc -l
  find "$store/$driver" -type f -path '*/diff/*' -o -type f -path '*/dir/*' | wc -l
done
"#;

fn containers(test: &str, drivers: &str) {
    let with = |text: &str| format!("drivers='{drivers}'\n{STORE}\n{text}");
    both(test, &["podman", "setfattr", "getfattr"], (&with(MAKE), &with(AGAIN)), 600);
}

#[test]
fn containers_in_layers() {
    containers("containers_in_layers", "overlay");
}

#[test]
#[ignore = "long: cargo xtask soak containers"]
fn containers_with_each_driver() {
    containers("containers_with_each_driver", "overlay vfs");
}

/// The driver that makes subvolumes says what it misses, and leaves nothing behind that the others would stumble over.
#[test]
fn the_driver_of_btrfs_refuses() {
    const TEST: &str = "the_driver_of_btrfs_refuses";
    if !can_run(TEST, &["podman"]) {
        return;
    }
    let scratch = Scratch::new(TEST);
    let served = Served::mount(&image(&scratch, "image"), &scratch.folder("mnt"), "");
    let text = format!("driver=btrfs\n{STORE}\npod images");
    let said = script(served.path(), &scratch.folder("work"), &text, 60);
    assert!(said.code != Some(0) && said.output.contains("is not on a btrfs filesystem"), "{}", said.output);
    served.unmount();
}
