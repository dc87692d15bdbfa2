//! Leaves with files that are lost on all copies: what other structures know of the files is put together again.

use crate::kernel::{judged, write_image};
use crate::{actions, devices, options, support, text};
use butterfs_device::MemoryDevice;
use butterfs_ondisk::{KeyType, TreeId};
use butterfs_repair::{apply, plan};
use butterfs_testkit::editor::Editor;
use butterfs_testkit::kernel::KernelMount;
use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Files of all kinds in a subvolume and a snapshot that shares its leaves.
const FILES: &str = r#"
set -e
btrfs subvolume create sv > /dev/null; mkdir sv/dir; cd sv/dir
for i in $(seq 24); do head -c $((4096 + 1700 * i)) /dev/urandom > plain-$i; chown 1000:1000 plain-$i; done
for kind in zlib lzo zstd; do for i in $(seq 5); do
    touch $kind-$i; btrfs property set $kind-$i compression $kind; seq $((1000 * i)) $((7000 * i)) > $kind-$i
done; done
for i in $(seq 3); do
    head -c 65536 /dev/urandom > parted-$i; sync
    head -c 9000 /dev/urandom | dd of=parted-$i bs=9000 seek=$i conv=notrunc status=none; sync
    head -c 20000 /dev/urandom | dd of=holes-$i bs=1 seek=$((40960 * i)) conv=notrunc status=none
    fallocate -l 65536 space-$i; head -c 8192 /dev/urandom | dd of=space-$i bs=4k seek=$i conv=notrunc status=none
    touch nocow-$i; chattr +C nocow-$i; head -c $((i * 30000)) /dev/urandom > nocow-$i
    python3 -c "import os, zlib; data = os.urandom(3000).hex().encode() * 3
open('stream-$i', 'wb').write(zlib.compress(data + os.urandom(3000), 1))"
    echo inline > inline-$i; head -c 5000 /dev/urandom > links-$i; ln links-$i ../also-$i
done
head -c 300000 /dev/zero | tr '\0' x > long; for i in $(seq 0 9); do
    head -c 4096 /dev/urandom | dd of=long bs=4096 seek=$((7 * i)) conv=notrunc status=none; sync
done
touch zlib-last; btrfs property set zlib-last compression zlib; seq 9000 > zlib-last
cd ../..; sync; btrfs subvolume snapshot sv snap > /dev/null; sync
"#;

/// The files of a mounted filesystem: the number of the inode, its owner and permissions, and the content.
type Files = BTreeMap<PathBuf, (u64, (u32, u32), Vec<u8>)>;

fn files(folder: &Path, top: &Path, found: &mut Files) {
    for entry in std::fs::read_dir(folder).expect("it is a folder") {
        let path = entry.expect("the folder can be read").path();
        let about = path.symlink_metadata().expect("it has attributes");
        if about.is_dir() {
            files(&path, top, found);
        } else if about.is_file() {
            let content = std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
            let name = path.strip_prefix(top).expect("it is below").to_owned();
            found.insert(name, (about.ino(), (about.uid(), about.mode() & 0o7777), content));
        }
    }
}

fn shown(image: &Path) -> Files {
    let mount = KernelMount::new(image, "ro,noatime");
    let mut found = Files::new();
    files(mount.path(), mount.path(), &mut found);
    let complaints = mount.finish();
    assert!(complaints.is_empty(), "{complaints:#?}");
    found
}

/// Whether a file's content is what it was, but for its exact end.
fn is_same(before: &[u8], after: &[u8]) -> bool {
    let common = before.len().min(after.len());
    let rest = |bytes: &[u8]| bytes[common..].iter().all(|byte| *byte == 0);
    before[..common] == after[..common] && rest(before) && rest(after) && after.len().abs_diff(before.len()) < 65536
}

/// Loses a leaf, repairs, and compares; returns how many files were put together and what is wrong.
fn lose(
    base: &Arc<MemoryDevice>,
    tree: TreeId,
    number: usize,
    before: &Files,
    image: &Path,
) -> Option<(usize, Vec<String>)> {
    let (editor, damaged) = Editor::of_copy(base);
    let mut leaves = Vec::new();
    editor.each_leaf(tree, &mut |leaf| {
        leaves.extend(leaf.items().any(|(key, _)| key.kind == KeyType::EXTENT_DATA).then_some(leaf.at()));
        false
    });
    let at = *leaves.get(number)?;
    editor.write_raw(at, &[0x5a; 4096]);
    let made = plan(&devices(&damaged), &options(""), &|_, _| {}).expect("there is a plan");
    assert!(made.is_clean(), "{:?}{}{}", made.trouble, text(&made.after), actions(&made));
    let undo = MemoryDevice::new(made.undo_len());
    apply(&made, &devices(&damaged), &undo).expect("it can be written");
    write_image(&damaged, image);
    let mut wrong: Vec<String> = judged(image, "after the repair").err().into_iter().collect();
    let after = shown(image);
    for (name, (inode, attributes, content)) in before {
        let subvolume = name.iter().next().expect("it is in a subvolume");
        let found = after.get(&Path::new(subvolume).join("lost+found").join(inode.to_string()));
        let is_inline = content.len() < 2048;
        let is_good = match found.or(after.get(name)) {
            None => is_inline,
            Some(_) if is_inline => true,
            Some((_, now, after)) if now == attributes => content == after,
            // Only root may see what may never have been written.
            Some((_, (0, 0o600), after)) if name.to_string_lossy().contains("nocow") => is_same(content, after),
            Some((_, (owner, _), after)) => {
                let is_owned = name.to_string_lossy().contains("plain") == (*owner == 1000);
                is_same(content, after) && (is_owned || *owner == 0)
            }
        };
        if !is_good {
            let said = found.or(after.get(name)).map(|(_, owner, after)| {
                let differs = content.iter().zip(after).position(|(one, other)| one != other);
                format!("{owner:?}, {} bytes, other from {differs:?}", after.len())
            });
            wrong.push(format!("{} (inode {inode}, {} bytes) is {said:?}", name.display(), content.len()));
        }
    }
    let together = made.actions.iter().filter(|action| action.what.contains("whose items are lost")).count();
    if std::env::var_os("SHOWN").is_some() || !wrong.is_empty() {
        let all: Vec<_> = made.actions.iter().map(|action| format!("\n    {}: {}", action.pass, action.what)).collect();
        println!("tree {tree}, leaf {number} of {}:{}", leaves.len(), all.concat());
    }
    Some((together, wrong))
}

/// Loses each leaf with files, one at a time.
fn lose_each(test: &str, script: &str, tree: TreeId) {
    let Some(base) = support::made(test, script) else { return };
    let scratch = support::Scratch::new(&format!("{test}-images"));
    let image = scratch.0.join("image");
    write_image(&base, &image);
    let before = shown(&image);
    let (mut all, mut failures) = (0, Vec::new());
    for number in 0.. {
        let Some((together, wrong)) = lose(&base, tree, number, &before, &image) else { break };
        all += together;
        failures.extend(wrong.into_iter().map(|reason| format!("leaf {number}: {reason}")));
    }
    println!("{test}: {all} files put together");
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    assert!(all >= 50, "only {all} files were put together");
}

#[test]
fn files_of_lost_leaves_are_put_together() {
    lose_each("lost-leaves", FILES, TreeId(256));
}

/// The snapshot's leaves refer to the extents by their addresses; the subvolume's own references say where they belong.
#[test]
fn files_of_lost_leaves_of_a_snapshot_are_put_together() {
    let script = format!("{FILES}\nfor i in sv/dir/*; do touch -d @$((1000000000 + RANDOM)) $i; done; sync");
    lose_each("lost-leaves-snapshot", &script, TreeId(257));
}
