//! The situations.

/// The situation, and the shell line that runs `$act` in it, in the folder `$at`. `$other` is an empty folder on
/// another filesystem; `{ro}` and `{rw}` remount the whole filesystem.
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
    (
        "user in a folder of hers",
        "chown -R 54321:54321 $at 2>/dev/null; cd $at; setpriv --reuid 54321 --regid 54321 --clear-groups sh \
         -c \"$act\"",
    ),
    (
        "user in a folder of hers and a user namespace",
        "chown -R 54321:54321 $at 2>/dev/null; cd $at; setpriv --reuid 54321 --regid 54321 --clear-groups unshare -Ur \
         sh -c \"$act\"",
    ),
    ("remounted read-only", "cd $at; {ro} || exit; sh -c \"$act\"; code=$?; {rw}; exit $code"),
    ("cannot be remounted read-only", "cd $at; exec 3>>f2; {ro} 2>/dev/null && { {rw}; exit 77; }; sh -c \"$act\""),
    ("chroot", "mount --rbind / $other; chroot $other sh -c 'cd $at; sh -c \"$act\"'"),
    (
        "chroot with another path",
        "mount --rbind / $other; mount --bind $at $other/mnt; chroot $other sh -c 'cd /mnt; sh -c \"$act\"'",
    ),
    (
        "chroot without /proc",
        "mount --rbind / $other; umount -l $other/proc; chroot $other sh -c 'cd $at; sh -c \"$act\"'",
    ),
    ("/run of its own", "mount -t tmpfs none /run; cd $at; sh -c \"$act\""),
    ("covered by another mount", "cd $at; mount -t tmpfs none $top; sh -c \"$act\""),
    ("path to a covered place", "mount -t tmpfs none $top; mkdir $at; cd $at; sh -c \"$act\""),
    ("deleted working directory", "mkdir $at/left; cd $at/left; rmdir $at/left; sh -c \"$act\""),
];
