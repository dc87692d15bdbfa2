//! Answers that are not the kernel's.

const APPLIED: &str = "the serving process applies a stream, with all its rights";

/// Act, situation, our answer, the kernel's, and the reason. `*` is any.
pub const DIFFERENCES: &[(&str, &str, &str, &str, &str)] = &[
    ("receive", "root without CAP_SYS_ADMIN", "EPERM", "done", APPLIED),
    ("receive", "root without capabilities", "EPERM", "done", APPLIED),
    ("receive", "root in a user namespace", "EPERM", "done", APPLIED),
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
];

/// The place of a difference in the list.
pub fn is_listed(act: &str, situation: &str, ours: &str, theirs: &str) -> Option<usize> {
    let is = |pattern: &str, what: &str| pattern == "*" || pattern == what;
    DIFFERENCES.iter().position(|&(a, s, o, t, _)| is(a, act) && is(s, situation) && is(o, ours) && is(t, theirs))
}
