//! Answers that are not the kernel's.

const APPLIED: &str = "the serving process applies a stream, with all its rights";

/// Act, situation, our answer, the kernel's, and the reason. `*` is any.
pub type Difference = (&'static str, &'static str, &'static str, &'static str, &'static str);

pub const DIFFERENCES: &[Difference] = &[
    ("receive", "root without CAP_SYS_ADMIN", "EPERM", "done", APPLIED),
    ("receive", "root without capabilities", "EPERM", "done", APPLIED),
    ("receive", "root in a user namespace", "EPERM", "done", APPLIED),
    ("*", "/run of its own", "unreachable", "done", "the socket of the serving process lies in another /run"),
    ("*", "chroot without /proc", "no /proc", "done", "the mount is looked for in /proc/self/mountinfo"),
    ("send", "chroot without /proc", "no /proc", "ENOENT", "the same"),
    ("receive", "chroot without /proc", "no /proc", "ENOENT", "the same"),
    ("mount", "chroot without /proc", "no /proc", "ENOENT", "the same"),
    ("mount", "user", "EACCES", "EPERM", "fusermount3 mounts for users where they may write"),
    ("mount", "user in a folder of hers", "no name", "EPERM", "fusermount3 mounts for users that have a name"),
    ("umount", "user", "no name", "EPERM", "the same"),
    ("remount", "covered by another mount", "ENOTTY", "done", "the path leads to the other mount"),
    ("umount", "covered by another mount", "ENOTTY", "done", "the same"),
    ("remount", "path to a covered place", "ENOTTY", "done", "the same"),
    (
        "subvolume show",
        "covered by another mount",
        "done",
        "ENOENT",
        "btrfs-progs looks for the path in the list of mounts",
    ),
    ("send", "covered by another mount", "done", "ENOENT", "btrfs-progs looks for the path in the list of mounts"),
    ("receive", "covered by another mount", "done", "ENOENT", "btrfs-progs looks for the path in the list of mounts"),
    (
        "property list",
        "path to a covered place",
        "ENOENT",
        "done",
        "btrfs-progs lists names without looking at the object",
    ),
    ("property list", "deleted working directory", "ENOENT", "done", "the same"),
    (
        "device stats -z",
        "read-only bind mount",
        "EROFS",
        "done",
        "the counters that are set to zero are written with a commit",
    ),
    ("device stats -z", "remounted read-only", "EROFS", "done", "the same"),
];

/// The place of a difference in a list.
pub fn place_of(list: &[Difference], act: &str, situation: &str, ours: &str, theirs: &str) -> Option<usize> {
    let is = |pattern: &str, what: &str| pattern == "*" || pattern == what;
    list.iter().position(|&(a, s, o, t, _)| is(a, act) && is(s, situation) && is(o, ours) && is(t, theirs))
}

/// Differences of a list that did not occur.
pub fn unseen(list: &[Difference], used: &[usize]) -> String {
    let unseen = list.iter().enumerate().filter(|(number, _)| !used.contains(number));
    unseen.map(|(_, difference)| format!("listed and not seen: {difference:?}\n")).collect()
}
