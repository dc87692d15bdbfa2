//! Commands about two places: two mounts of subvolumes of one filesystem, and two filesystems, on which the same
//! numbers mean other things.

use crate::common::butterfs_ok;
use crate::differences::{Difference, place_of, unseen};
use crate::mounted::{Bed, shell, text};
use crate::sides::{Side, is_unknown, umount};
use crate::state::FolderState;
use crate::{BINARY, on_both};
use butterfs_testkit::kernel::{KernelMount, check_all, mkfs, run_ok};
use butterfs_testkit::requirement;
use std::collections::BTreeSet;
use std::path::Path;

/// The setting of the second place, `{b}`: the first one is `{a}`.
const SETTINGS: [&str; 3] = ["two folders", "two mounts of two subvolumes", "two filesystems"];

/// The act, our command line, and the kernel's; an empty one: the same line. `{n}` is the number of the subvolume
/// `{a}/s`. Printed paths go into a file, which is compared with the tree.
const ACTS: &[(&str, &str, &str)] = &[
    ("snapshot", "{t} subvolume snapshot {a}/s {b}/new", ""),
    ("snapshot into a folder", "{t} subvolume snapshot {a}/s {b}/folder", ""),
    ("send with a parent", "{t} send -q -f /dev/null -p {a}/ro {b}/ro2", ""),
    ("send with a clone source", "{t} send -q -f /dev/null -c {a}/ro {b}/ro2", ""),
    ("send of two", "{t} send -q -e -f /dev/null {a}/ro {b}/ro2", ""),
    ("send into the other", "{t} send -q -f {b}/stream {a}/ro && truncate -s 0 {b}/stream", ""),
    ("receive from the other", "cp $stream {a}/full; {t} receive -q -f {a}/full {b}/folder && rm {a}/full", ""),
    ("clone", "{t} reflink clone {a}/f {b}/clone", "cp --reflink=always {a}/f {b}/clone || { rm {b}/clone; false; }"),
    (
        "range",
        "{t} reflink range {a}/f {b}/g",
        "xfs_io -c 'reflink {a}/f' {b}/g 2>&1 | tee $aside/out; grep -q ops $aside/out",
    ),
    (
        "dedupe",
        "{t} dedupe {a}/f {b}/h",
        "xfs_io -c 'dedupe {a}/f 0 0 65536' {b}/h 2>&1 | tee $aside/out; grep -q ops $aside/out",
    ),
    ("copy", "cp --reflink=never {a}/f {b}/copy", ""),
    ("link", "ln {a}/f {b}/link", ""),
    ("rename", "{rename} {a}/from {b}/to", ""),
    ("rename of a subvolume", "{rename} {a}/victim {b}/moved", ""),
    ("rename of a read-only subvolume", "{rename} {a}/ro {b}/moved-ro", ""),
    ("defragment both", "{t} filesystem defragment {a}/f {b}/g", ""),
    ("delete both", "{t} subvolume delete {a}/gone {b}/gone", ""),
    ("number to path", "{t} inspect-internal subvolid-resolve {n} {b} > {b}/path", ""),
    ("inode to path", "{t} inspect-internal inode-resolve 258 {b} > {b}/name && sed -i s,{b},, {b}/name", ""),
    ("default by number", "{t} subvolume set-default {n} {b}", ""),
    ("default again", "{t} subvolume set-default 5 {b}", ""),
    ("delete by number", "{t} subvolume delete -i {n} {b}", ""),
];

/// `mv` would copy.
const RENAME: &str = "perl -e 'rename(shift, shift) or die \\$!'";

/// Act, setting, our answer, the kernel's, and the reason.
const DIFFERENCES: &[Difference] = &[
    ("send with a parent", "two mounts of two subvolumes", "done", "EXDEV", "btrfs-progs asks for one mount"),
    ("send of two", "two mounts of two subvolumes", "done", "EXDEV", "the same"),
    ("delete by number", "two filesystems", "ENOENT", "EINVAL", "the number has no subvolume"),
    ("send with a clone source", "two filesystems", "EXDEV", "no parent", "btrfs-progs looks for a parent first"),
];

const FILL: &str = "mkdir -p $at/folder; cd $at
    for name in s victim gone; do $tool subvolume create $name; done >/dev/null; echo $(basename $at) > s/inside
    for name in ro ro2; do $tool subvolume snapshot -r s $name; done >/dev/null
    for name in f g h; do head -c 65536 /dev/zero | tr '\\0' x > $name; done; touch from; sync -f .";

/// Both filesystems of one side.
struct Pair {
    first: Side,
    second: Side,
}

fn fill(side: &Side, folder: &str) {
    shell(FILL, &[("tool", Path::new(side.tool)), ("at", &side.top.join(folder))]);
}

impl Pair {
    fn new(first: Side, second: Side) -> Pair {
        let tool = Path::new(first.tool);
        fill(&first, "source");
        let source = [("tool", tool), ("from", &first.top.join("source/ro")), ("stream", &first.stream())];
        shell("$tool send -q -f $stream $from", &source);
        for folder in ["0a", "0b", "1a", "1b"] {
            shell("$tool subvolume create $at >/dev/null", &[("tool", tool), ("at", &first.top.join(folder))]);
            fill(&first, folder);
        }
        fill(&first, "2a");
        // Numbers mean something else there.
        shell("$tool subvolume create $top/more >/dev/null", &[("tool", tool), ("top", &second.top)]);
        fill(&second, "2b");
        Pair { first, second }
    }

    /// The side and the folder of each place in a setting.
    fn places(&self, setting: usize) -> [(&Side, String); 2] {
        let second = if setting == 2 { &self.second } else { &self.first };
        [(&self.first, format!("{setting}a")), (second, format!("{setting}b"))]
    }

    fn ask(&self, other: &Path, setting: usize, line: &str) -> String {
        let [a, b] = self.places(setting).map(|(side, folder)| side.top.join(folder));
        let number = run_ok(20, self.first.tool, &["inspect-internal", "rootid", text(&a.join("s"))]);
        let mount = |place: &str, at: &Path| match self.first.is_ours() {
            // One process serves the filesystem.
            true => format!("mount --bind {} {place}", text(at)),
            false => format!(
                "mount -o subvol={} $(findmnt -no SOURCE {}) {place}",
                at.file_name().unwrap().display(),
                text(&self.first.top)
            ),
        };
        let (to_a, to_b) = (other.join("a"), other.join("b"));
        let mounts = format!("{} && {} && ", mount(text(&to_a), &a), mount(text(&to_b), &b));
        let (shown, prepared) = if setting == 1 { ([to_a, to_b], mounts.as_str()) } else { ([a, b], "") };
        let values = [("{rename}", RENAME), ("{a}", text(&shown[0])), ("{b}", text(&shown[1])), ("{n}", number.trim())];
        let line = values.iter().fold(line.to_owned(), |line, (name, value)| line.replace(name, value));
        self.first.ask(other, "", &line, &format!("{prepared} sh -c \"$act\""))
    }

    fn states(&self, setting: usize) -> [FolderState; 2] {
        self.places(setting).map(|(side, folder)| FolderState::of(side, &folder))
    }
}

#[test]
fn commands_about_two_places_do_as_with_the_kernel() {
    const TEST: &str = "everywhere_across";
    if !requirement::kernel_btrfs(TEST)
        || !requirement::programs(TEST, &["btrfs", "xfs_io", "unshare", "findmnt", "perl"])
    {
        return;
    }
    let Some(beds) = [0; 2].map(|_| Bed::for_root(TEST)).into_iter().collect::<Option<Vec<_>>>() else { return };
    let beds: Vec<Bed> = beds.into_iter().map(Bed::with_image).collect();
    beds.iter().for_each(|bed| bed.mount_ok("rw"));
    let images: Vec<_> = beds.iter().map(|bed| bed.scratch.sparse_file("kernel.img", 512 << 20)).collect();
    images.iter().for_each(|image| mkfs(image, &[]));
    let kernels: Vec<_> = images.iter().map(|image| KernelMount::new(image, "")).collect();
    let aside = |name: &str| beds[0].scratch.folder(name);
    let [ours, theirs] = [
        [0, 1].map(|number| Side::new(BINARY, aside("ours"), &beds[number].at, &beds[number].image)),
        [0, 1].map(|number| Side::new("btrfs", aside("kernels"), kernels[number].path(), &images[number])),
    ];
    let pairs = [ours, theirs].map(|[first, second]| Pair::new(first, second));
    let other = aside("other");
    ["a", "b"].iter().for_each(|name| std::fs::create_dir(other.join(name)).unwrap());
    let (mut table, mut wrong, mut used) = (String::new(), String::new(), Vec::new());
    for (setting, name) in SETTINGS.iter().enumerate() {
        let mut differ = BTreeSet::new();
        for (act, ours, theirs) in ACTS {
            let [(mine, my_states), (kernels, kernels_states)] = on_both(&pairs, |pair| {
                let line = if pair.first.is_ours() || theirs.is_empty() { ours } else { theirs };
                (pair.ask(&other, setting, line), pair.states(setting))
            });
            table += &format!("{name:28} {act:34} {mine:10} {kernels}\n");
            let listed = place_of(DIFFERENCES, act, name, &mine, &kernels);
            used.extend(listed);
            if is_unknown(&mine) || mine != kernels && listed.is_none() {
                wrong += &format!("{name}: {act}: {mine}, kernel: {kernels}\n");
            }
            for ((place, mine), kernels) in ["a", "b"].iter().zip(&my_states).zip(&kernels_states) {
                let now = mine.differences(kernels).into_iter().map(|what| format!("{place}: {what}"));
                let new: Vec<_> = now.filter(|what| !differ.contains(what)).collect();
                new.iter().for_each(|new| wrong += &format!("{name}: {act}: afterwards {new}\n"));
                differ.extend(new);
            }
        }
    }
    wrong += &unseen(DIFFERENCES, &used);
    assert!(wrong.is_empty(), "{table}\n{wrong}");
    for bed in &beds {
        butterfs_ok(&["subvolume", "set-default", "5", text(&bed.at)]);
        umount(bed);
        check_all(&bed.image);
    }
    kernels.into_iter().for_each(|kernel| assert_eq!(kernel.finish(), [""; 0]));
}
