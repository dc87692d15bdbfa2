//! Names: links, renames, removals, names that others take over, directories. The numbers are those of the generic
//! scenarios that the steps are known by.

use super::judge;

const LINKS: &[(&str, &str)] = &[
    // 056, 065, 104, 107, 343, 376.
    (
        "create foo; write foo 0 4096; fsync foo; link foo foo_link; create bar; fsync bar",
        "log; same foo; same bar; same foo_link",
    ),
    (
        "create foo; write foo 0 8192; mkdir d; sync; link foo d/foo_2; link foo d/foo_3; create hello; write hello 0 \
         65536; link hello d/hello_2; mkdir d/x; mkdir d/x/y; mkdir d/x/y/z; link foo d/x/y/foo_4; link foo \
         d/x/y/z/foo_5; create d/x/y/z/q; fsync d; fsync hello",
        "log; all; links foo 5",
    ),
    ("mkdir d; create d/foo; create d/bar; sync; link d/bar d/bar_2; link d/foo d/foo_2; fsync d/bar", "log; all"),
    (
        "mkdir x; create x/foo; mkdir y; mkdir y/z; create y/foo2; sync; link x/foo x/bar; mv y/z x/z; mv y/foo2 \
         x/foo2; fsync x/bar",
        "all; empty y",
    ),
    ("mkdir d; tmp d 1; write 1 0 5000; linkfd 1 d/f; fsync d/f", "log; all"),
    ("mkdir d; tmp d 1; write 1 0 5000; sync; linkfd 1 d/f; fsync d/f", "commit; all"),
    ("mkdir d; sync; tmp d 1; write 1 0 5000; fsync 1; linkfd 1 d/f; fsync d/f", "log; all"),
    ("create foo; mkdir d; link foo d/foo2; link foo d/foo3; sync; rm d/foo3; fsync foo", "log; all"),
    ("mkdir d; create d/foo; link d/foo d/bar; sync; rm d/bar; fsync d/foo", "log; all"),
    ("mkdir d; create d/foo; sync; mv d/foo d/bar; create d/foo; fsync d/bar", "log; all"),
    ("create ha; sync; link ha ha2; fsync ha; link ha ha3; rm ha; fsync ha2", "log; all"),
    ("create a; write a 0 4096; sync; mkdir n; mkdir n/s; link a n/s/b; fsync a", "log; all"),
];

const RENAMES: &[(&str, &str)] = &[
    // 322, 335, 341, 479, 502, 526, 527, 779, 782, 784, 785, btrfs/236.
    ("create foo; write foo 0 1048576; fsync foo; mv foo bar; fsync bar", "log; all"),
    ("mkdir a; mkdir a/b; mkdir c; create a/b/foo; sync; mv a/b/foo c/foo; create a/bar; fsync a; fsync c/foo", "all"),
    (
        "mkdir a; mkdir a/x; create a/x/foo; write a/x/foo 0 9000; create a/x/bar; sync; mv a/x a/y; mkdir a/x; fsync \
         a/x",
        "log; all; empty a/x",
    ),
    (
        "mkdir d; symlink d/foo target; sync; create d/f1; fsync d/f1; mv d/foo d/bar; link d/bar d/foo; create f2; \
         fsync f2",
        "log; same d/f1; same f2",
    ),
    (
        "mkdir d; fifo d/foo; sync; create d/f1; fsync d/f1; mv d/foo d/bar; link d/bar d/foo; fsync d/bar",
        "log; same d/bar; same d/foo",
    ),
    (
        "mkdir d; create d/foo; write d/foo 0 100; create d/bar; write d/bar 0 5000; sync; mv d/foo d/qwerty; mv d/bar \
         d/foo; create d/bar; fsync d/bar",
        "log; all",
    ),
    (
        "mkdir t; create t/1; write t/1 0 10; create t/2; write t/2 0 20; sync; mv t/1 t/3; mv t/2 t/4; link t/3 t/2; \
         create t/1; write t/1 0 30; fsync t/1",
        "log; all",
    ),
    (
        "mkdir t; create t/a; write t/a 0 10; create t/zz; write t/zz 0 20; link t/zz t/zz_link; sync; mv t/a t/tmp; \
         link t/zz_link t/a; rm t/zz_link; mv t/tmp t/zz_link; mv t/zz t/a2; create t/zz; write t/zz 0 5; fsync t/zz",
        "log; all",
    ),
    ("mkdir d; symlink d/old foobar; fsync d; mv d/old d/new; fsync d", "log; all"),
    ("create foo; sync; mkdir dir; write foo 0 5000; fsync foo; link foo dir/bar; fsync /", "log; all"),
    (
        "mkdir dir1; mkdir dir2; sync; mv dir1 dir2/dir1; create dir1; fsync dir1; mv dir1 dir2/foo; fsync dir2/foo",
        "all",
    ),
    (
        "create file1; sync; write file1 0 9000; fsync file1; mkdir dir; create dir/foo; mv file1 file2; fsync /",
        "log; all",
    ),
    (
        "create bar; create baz; write baz 0 1048576; fsync baz; mv baz foo; write foo 0 1048576 5; fsync bar; fsync \
         foo",
        "log; all",
    ),
    ("create a; write a 0 10; create b; write b 0 20; sync; swap a b; fsync a", "log; all"),
    ("mkdir d; create d/a; write d/a 0 10; create b; write b 0 20; sync; swap d/a b; fsync b", "log; all"),
    ("create a; write a 0 5000; sync; whiteout a b; fsync b", "log; all"),
];

const REMOVALS: &[(&str, &str)] = &[
    // 034, 106, 341, 557, 764.
    ("mkdir d; create d/foo; sync; create d/bar; fsync d; fsync d/bar", "log; all"),
    ("mkdir d; create d/foo; fsync d/foo; rm d/foo; fsync d", "log; all"),
    ("create foo; write foo 0 100; open foo 1; rm foo; fsync 1", "gone foo"),
    ("create foo; write foo 0 100; sync; open foo 1; rm foo; fsync 1", "gone foo"),
    (
        "mkdir d; create d/1; create d/2; create d/3; create d/4; create d/5; create d/6; sync; rm d/2; rm d/3; rm \
         d/6; create d/new; fsync d",
        "log; all",
    ),
    (
        "mkdir d; create d/1; create d/2; create d/3; sync; rm d/2; create d/new; fsync d; rm d/1; fsync d; rm d/new; \
         fsync d",
        "log; all",
    ),
    (
        "mkdir d; mkdir d/e; create d/e/f; mkdir d/e/g; create d/e/g/h; sync; rm d/e/g/h; rmdir d/e/g; rm d/e/f; rmdir \
         d/e; fsync d",
        "log; all",
    ),
    ("mkdir d; mkdir d/e; create d/e/f; write d/e/f 0 5000; sync; mv d/e/f f; rmdir d/e; fsync d", "all"),
    ("mkdir d; mkdir d/e; create d/e/f; sync; mv d/e/f f; rmdir d/e; create d/e; fsync d/e", "same d/e; one f d/e/f"),
    ("create a; write a 0 9; fsync a; rm a; create b; fsync b", "same b; gone a"),
    ("create a; write a 0 9; fsync a; mv a c; create a; write a 0 5000; fsync a", "log; all"),
];

const DIRECTORIES: &[(&str, &str)] = &[
    ("mkdir n; mkdir n/s; mkdir n/s/t; create n/f; create n/s/t/z; setx n/s/t/z user.a 30; fsync n", "log; all"),
    ("symlink l target; fifo p; create f; write f 0 5000; fsync /", "log; same l; same p; size f 0"),
    ("mkdir n; mkdir n/s; create n/s/f; write n/s/f 0 5000; fsync n/s/f", "log; all"),
    (
        "mkdir d; sync; create d/a; create d/b; fsync d; create d/c; mkdir d/e; create d/e/f; fsync d; mv d/a d/z; \
         fsync d",
        "log; all",
    ),
    // 640, 239 and the moves that 6.18 leaves in two places.
    (
        "mkdir A; mkdir B; create A/foo; sync; create A/bar; fsync A; mv A/foo B/foo; create baz; fsync baz",
        "one A/foo B/foo; same baz",
    ),
    (
        "mkdir d; mkdir d/sub; sync; chmod d 700; fsync d; mv d/sub sub; create d/f; fsync d/f",
        "one sub d/sub; same d/f",
    ),
    ("tmp / 1; write 1 0 5000; fsync 1", "log"),
];

/// Cases in which 6.18's own log or replay destroys or doubles something.
const BETTER: &[(&str, &str)] = &[
    // Names taken over one after another by links of one new file.
    (
        "mkdir d; create d/a1; write d/a1 0 10; create d/a2; write d/a2 0 20; create d/a3; write d/a3 0 30; sync; \
         create d/n; mv d/a1 d/b1; link d/n d/a1; mv d/a2 d/b2; link d/n d/a2; mv d/a3 d/b3; link d/n d/a3; fsync d/n",
        "log; all",
    ),
    // A moved file when only its new directory is synced.
    ("mkdir d1; mkdir d2; create d1/f; write d1/f 0 5000; sync; mv d1/f d2/f; fsync d2", "log; all; links d2/f 1"),
    // Space behind the end of a file that is logged for its name.
    ("create f; write f 0 4096; keep f 4096 1048576; sync; mv f g; create f; fsync f", "log; all"),
    // A name overwritten by a rename, then fsync of another link.
    ("create a; write a 0 10; create v; write v 0 20; link v w; sync; mv a v; fsync w", "log; all"),
];

#[test]
fn links() {
    judge("links", 0, LINKS);
}

#[test]
fn renames() {
    judge("renames", 0, RENAMES);
}

#[test]
fn removals() {
    judge("removals", 0, REMOVALS);
}

#[test]
fn directories() {
    judge("directories", 0, DIRECTORIES);
}

#[test]
fn better_than_the_kernel() {
    judge("better_than_the_kernel", 0, BETTER);
}
