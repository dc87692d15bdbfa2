//! What is done: commands of the program, and system calls.

/// The act, our command line, and the kernel's; `{t}` stands for `butterfs` or `btrfs`. An empty one: the same line.
/// Where the kernel's tools lack the command, another one that needs the same rights stands beside it.
pub const ACTS: &[(&str, &str, &str)] = &[
    ("subvolume create", "{t} subvolume create new1", ""),
    ("subvolume snapshot", "{t} subvolume snapshot s new2", ""),
    ("subvolume delete", "{t} subvolume delete victim", ""),
    ("subvolume list", "{t} subvolume list .", ""),
    ("subvolume show", "{t} subvolume show s", ""),
    ("subvolume get-default", "{t} subvolume get-default .", ""),
    ("subvolume set-default", "{t} subvolume set-default s", ""),
    ("subvolume find-new", "{t} subvolume find-new s 0", ""),
    ("subvolume sync", "{t} subvolume sync .", ""),
    ("property get", "{t} property get -t subvol s ro", ""),
    ("property set", "{t} property set -t subvol p ro true", ""),
    ("property list", "{t} property list -t subvol s", ""),
    ("filesystem sync", "{t} filesystem sync .", ""),
    ("filesystem defragment", "{t} filesystem defragment f", ""),
    ("filesystem extents", "{t} filesystem extents f", "cat f"),
    ("device stats", "{t} device stats .", ""),
    ("device stats -z", "{t} device stats -z .", ""),
    ("scrub start", "{t} scrub start -B .", ""),
    ("send", "{t} send -q -f /dev/null ro", ""),
    ("receive", "{t} receive -q . < $stream", ""),
    ("reflink clone", "{t} reflink clone f clone", "cp --reflink=always f clone"),
    ("reflink range", "{t} reflink range f g", "xfs_io -c 'reflink f' g"),
    ("dedupe", "{t} dedupe f h", "xfs_io -c 'dedupe f 0 0 65536' h"),
    ("inspect-internal rootid", "{t} inspect-internal rootid .", ""),
    ("inspect-internal subvolid-resolve", "{t} inspect-internal subvolid-resolve 256 .", ""),
    ("inspect-internal inode-resolve", "{t} inspect-internal inode-resolve 257 .", ""),
    ("write", "echo more >> f2", ""),
    ("unlink", "rm -f gone", ""),
    ("rename", "mv from to", ""),
    ("setxattr", "setfattr -n user.a -v b f", ""),
    ("chattr", "chattr +d f", ""),
    ("remount", "{ro} && {rw}", ""),
    ("mount", "{mount} $aside/more.img mp && {umount} mp", ""),
    ("umount", "cd /; {umount} {top}", ""),
];

/// Whether an act is asked in a situation. Unmounting one of several places takes seconds.
pub fn is_asked(act: &str, situation: &str) -> bool {
    const UMOUNT: [&str; 6] = [
        "plain",
        "user",
        "root without CAP_SYS_ADMIN",
        "root in a user namespace",
        "chroot",
        "covered by another mount",
    ];
    act != "umount" || UMOUNT.contains(&situation)
}

/// Subcommands that are asked elsewhere.
pub const ELSEWHERE: &[(&str, &str)] = &[
    ("scrub resume", "as scrub start"),
    ("scrub status", "reads what scrub start has written down: tests/scrub.rs"),
    ("scrub cancel", "needs a scrub: tests/scrub.rs"),
    ("scrub limit", "btrfs-progs writes to sysfs: tests/scrub.rs"),
    ("health", "the kernel's tools have nothing like it: tests/scrub.rs"),
    ("check", "of devices that are not mounted"),
    ("mkfs", "of devices that are not mounted"),
    ("inspect-internal dump-super", "of devices"),
    ("inspect-internal dump-tree", "of devices"),
    ("inspect-internal logical-resolve", "needs an address: tests/inspect_internal.rs"),
];
