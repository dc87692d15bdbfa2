//! Contents, attributes and extended attributes of files.

use super::judge;

const APPENDS: &[(&str, &str)] = &[
    ("create f; write f 0 4096; fsync f", "log; all"),
    ("create f; write f 0 100; fsync f; write f 100 50; fsync f; write f 0 9000; fsync f", "log; all"),
    (
        "create f; write f 0 8192; sync; write f 8192 4096; fsync f; write f 12288 4096; fsync f; write f 16384 99; \
         fsync f",
        "log; all",
    ),
    ("create f; write f 0 100000; fsync f; write f 5000 3000; fsync f; write f 5000 100 77; fsync f", "log; all"),
    (
        "create f; create g; sync; write f 0 5000; write g 0 5000; fsync f; fsync g; write f 9000 5000; fsync f",
        "log; all",
    ),
];

const SIZES: &[(&str, &str)] = &[
    ("create f; write f 0 32768; sync; trunc f 10000; fsync f", "log; all"),
    ("create f; write f 0 32768; sync; trunc f 100000; fsync f", "log; all"),
    ("create f; write f 0 128000; sync; trunc f 65536; trunc f 128000; fsync f", "log; all"),
    ("create f; write f 0 128000; sync; trunc f 0; trunc f 259072; fsync f", "log; all"),
    (
        "create f; write f 0 128000; fsync f; trunc f 60000; fsync f; trunc f 70000; write f 80000 10; fsync f",
        "log; all",
    ),
    ("create f; write f 0 1000; sync; trunc f 10; fsync f; trunc f 2000; fsync f", "log; all"),
    ("create f; write f 0 5000; sync; write f 1048576 100; fsync f; trunc f 0; fsync f", "log; all"),
    // What an earlier log cut off does not come back when the file grows.
    ("create f; write f 0 20000; sync; trunc f 0; fsync f; trunc f 5000; fsync f", "log; all"),
    ("create f; write f 0 20000; sync; trunc f 0; fsync f; write f 12288 4096; fsync f", "log; all"),
    ("create f; write f 0 65536; sync; trunc f 10000; fsync f; trunc f 100000; fsync f", "log; all"),
];

const HOLES: &[(&str, &str)] = &[
    ("create f; write f 0 16384; fsync f; sync; punch f 8000 4096; punch f 15000 100; fsync f", "log; all"),
    (
        "create f; trunc f 12582912; write f 2097152 8388608; sync; punch f 2097152 2097152; punch f 8388608 2097152; \
         fsync f",
        "log; all",
    ),
    ("create f; write f 0 65536; sync; punch f 0 65536; fsync f", "log; all"),
    (
        "create f; write f 0 65536; sync; punch f 8192 4096; fsync f; write f 8192 100; fsync f; punch f 0 32768; \
         fsync f",
        "log; all",
    ),
    ("create f; write f 0 65536; sync; zero f 4096 20000; fsync f; write f 5000 100; fsync f", "log; all"),
];

const PREALLOCATED: &[(&str, &str)] = &[
    // generic/512, btrfs/211, generic/677.
    ("create f; write f 0 21; sync; falloc f 40 40; fsync f", "log; all; size f 80"),
    (
        "create f; keep f 0 131072; keep f 131072 131072; fsync f; falloc f 0 65536; fsync f; trunc f 262144; fsync f",
        "log; all",
    ),
    (
        "create f; write f 0 1048576; keep f 1048576 1048576; keep f 3145728 1048576; sync; write f 0 4096; fsync f",
        "log; all",
    ),
    (
        "create f; falloc f 0 65536; sync; write f 8192 4096; fsync f; write f 20480 8192; fsync f; write f 12288 \
         4096; fsync f",
        "log; all",
    ),
    ("create f; write f 0 4096; sync; keep f 32768 1081344; fsync f; write f 1048576 4096; fsync f", "log; all"),
];

const SHARED: &[(&str, &str)] = &[
    ("create f; create g; write f 0 262144; sync; clone f 0 g 0 262144; fsync g", "log; all"),
    ("create f; create g; sync; write f 0 65536; clone f 16384 g 131072 4096; fsync g; fsync f", "log; all"),
    ("create f; write f 0 131072; write f 819200 102400; fsync f; clone f 839680 f 409600 20480; fsync f", "log; all"),
    (
        "create f; write f 0 65536; sync; clone f 32768 f 65536 32768; write f 32768 4096; fsync f; clone f 0 f 131072 \
         65536; fsync f",
        "log; all",
    ),
];

const ATTRIBUTES: &[(&str, &str)] = &[
    ("create f; sync; chmod f 755; chown f 7 8; fsync f", "log; all"),
    ("create f; write f 0 10; setx f user.a 10; setx f user.b 20; sync; rmx f user.a; fsync f", "log; all"),
    (
        "create f; fsync f; setx f user.a 10; fsync f; setx f user.a 200; fsync f; rmx f user.a; setx f user.b 9; \
         fsync f",
        "log; all",
    ),
    ("mkdir d; setx d user.x 40; sync; setx d user.y 20; chmod d 700; fsync d", "log; all"),
    // Logged again, for its new name, by an fsync of another file.
    (
        "create f; setx f user.a 10; setx f user.b 20; sync; write f 0 10; fsync f; rmx f user.a; link f g; create q; \
         fsync q",
        "log; all",
    ),
    (
        "create f; setx f user.a 10; sync; write f 0 10; fsync f; chmod f 600; setx f user.a 30; mv f g; create q; \
         fsync q",
        "log; all",
    ),
    (
        "mkdir d; sync; create d/f; setx d/f user.a 10; setx d/f user.b 10; fsync d; rmx d/f user.b; link d/f g; \
         create q; fsync q",
        "log; all",
    ),
    (
        "create f; setx f user.a 10; sync; write f 0 10; fsync f; rmx f user.a; mv f g; create q; fsync q; fsync g; \
         setx g user.c 7; fsync g",
        "log; all",
    ),
    (
        "create f; setx f user.long 3000; setx f user.other 3000; sync; write f 0 5000; fsync f; chmod f 600; \
         fdatasync f",
        "log; all",
    ),
];

#[test]
fn appends() {
    judge("appends", 0, APPENDS);
    judge("appends", 2, &APPENDS[3..]);
}

#[test]
fn sizes() {
    judge("sizes", 0, SIZES);
    judge("sizes", 2, &SIZES[1..4]);
}

#[test]
fn holes() {
    judge("holes", 0, HOLES);
    judge("holes", 2, &HOLES[1..4]);
}

#[test]
fn preallocated() {
    judge("preallocated", 0, PREALLOCATED);
}

#[test]
fn shared() {
    judge("shared", 0, SHARED);
}

#[test]
fn attributes() {
    judge("attributes", 0, ATTRIBUTES);
}
