//! Where it is done.

/// The situation, and the shell line that runs `$act` in it, in the folder `$at`; `$other` is another place of the mount.
pub const SITUATIONS: &[(&str, &str)] = &[
    ("plain", "cd $at; sh -c \"$act\""),
    ("bind mount", "mount --bind $at $other; cd $other; sh -c \"$act\""),
    ("read-only bind mount", "mount --bind $at $other; mount -o remount,bind,ro $other; cd $other; sh -c \"$act\""),
    ("user", "cd $at; setpriv --reuid 54321 --regid 54321 --clear-groups sh -c \"$act\""),
    ("root without CAP_SYS_ADMIN", "cd $at; setpriv --bounding-set -sys_admin --inh-caps -sys_admin sh -c \"$act\""),
    ("root without capabilities", "cd $at; setpriv --bounding-set -all --inh-caps -all sh -c \"$act\""),
    ("process namespace", "cd $at; unshare -pf --mount-proc sh -c \"$act\""),
    ("network namespace", "cd $at; unshare -n sh -c \"$act\""),
    ("root in a user namespace", "cd $at; unshare -Ur sh -c \"$act\""),
    (
        "user in a user namespace",
        "cd $at; setpriv --reuid 54321 --regid 54321 --clear-groups unshare -Ur sh -c \"$act\"",
    ),
    ("covered by another mount", "cd $at; mount -t tmpfs none $top; sh -c \"$act\""),
    ("path to a covered place", "mount -t tmpfs none $top; mkdir $at; cd $at; sh -c \"$act\""),
    ("deleted working directory", "mkdir $at/left; cd $at/left; rmdir $at/left; sh -c \"$act\""),
];
