//! The guarantees of an fsync, as scripts that end in a power cut: what must be there afterwards, and what must not.
//!
//! The situations are those that public test suites and bug reports of journaling filesystems describe; each was once a
//! bug somewhere. A scenario's paths in `keep` must be after the cut as they were before it: kind, links, size,
//! content, attributes. `gone` must not exist. Of each pair in `either` exactly one exists.

/// See the [module](self).
#[derive(Clone, Copy, Debug)]
pub struct Scenario {
    /// The name.
    pub name: &'static str,
    /// As after `mkfs -O`, with a node size in front where it matters: `4096 ^no-holes`.
    pub format: &'static str,
    /// See [`crate::script`].
    pub script: &'static str,
    /// Paths, separated by spaces.
    pub keep: &'static str,
    /// Paths, separated by spaces.
    pub gone: &'static str,
    /// Two paths.
    pub either: &'static str,
    /// Paths, separated by spaces: something has this name, be it old or new.
    pub exists: &'static str,
    /// Paths, separated by spaces: their content is somewhere.
    pub survives: &'static str,
    /// Linux 6.18 commits, so that there is no log.
    pub commits: bool,
    /// The objects that Linux 6.18 loses or doubles when it replays its own log; then its replay is no measure for
    /// ours.
    pub kernel_loses: Option<&'static str>,
}

const BASE: Scenario = Scenario {
    name: "",
    format: "",
    script: "",
    keep: "",
    gone: "",
    either: "",
    exists: "",
    survives: "",
    commits: false,
    kernel_loses: None,
};

macro_rules! scenarios {
    ($($name:literal: $script:literal $(, $field:ident = $value:expr)*;)*) => {
        &[$(Scenario { name: $name, script: $script, $($field: $value,)* ..BASE }),*]
    };
}

/// All scenarios.
pub const SCENARIOS: &[Scenario] = scenarios! {
    // The kernel commits in its middle, and what stands before it on one image has no log then.
    "moved, other things fsynced": "fill foo 0 8K 1; fsync foo; mkdir d1; touch d1/bar; mkdir d2; sync; fill foo 8K 8K \
                                    2; mv d1/bar d2/bar; fsync d1; fsync foo",
        keep = "foo", either = "d1/bar d2/bar";
    // Contents.
    "append": "fill a 0 16K 1; sync; fill a 16K 4K 2; fsync a", keep = "a";
    "new file": "mkdir d; sync; fill d/new 0 8K 3; fsync d/new", keep = "d/new";
    "two appends": "mkdir d; sync; fill d/new 0 8K 3; fsync d/new; fill d/new 8K 4K 4; fsync d/new; fill d/x 0 5 1; \
                    fsync d/x",
        keep = "d/new d/x";
    "holes punched in parts of blocks": "fill f 0 16K 7; fsync f; sync; punch f 8000 4096; punch f 15000 100; fsync \
        f", keep = "f";
    "shrunk and grown": "fill f 0 128000 1; fill g 0 128000 2; sync; trunc f 64000; trunc f 128000; fsync f; trunc g \
                         0; trunc g 259072; fsync g",
        keep = "f g";
    "shrunk and grown, hole items": "fill f 0 128000 1; fill g 0 128000 2; sync; trunc f 64000; trunc f 128000; fsync \
                                     f; trunc g 0; trunc g 259072; fsync g",
        format = "^no-holes", keep = "f g";
    "grown": "fill f 0 32K 1; sync; trunc f 100000; fsync f", keep = "f";
    "grown, hole items": "fill f 0 32K 1; sync; trunc f 100000; fsync f", format = "^no-holes", keep = "f";
    "truncated": "fill f 0 32K 1; sync; trunc f 10000; fsync f", keep = "f";
    "hole": "fill f 0 32K 1; sync; punch f 4K 8K; fsync f", keep = "f";
    "hole, hole items": "fill f 0 32K 1; sync; punch f 4K 8K; fsync f", format = "^no-holes", keep = "f";
    "holes beside a hole": "trunc f 12M; fill f 2M 8M 5; sync; punch f 2M 2M; punch f 8M 2M; fsync f", keep = "f";
    "holes beside a hole, hole items": "trunc f 12M; fill f 2M 8M 5; sync; punch f 2M 2M; punch f 8M 2M; fsync f",
        format = "^no-holes", keep = "f";
    "preallocated behind the end": "fill f 0 16M 1; sync; fallock f 16M 1M; fallock f 20M 1M; sync; fill f 0 4K 2; \
                                    fsync f", keep = "f", commits = true;
    "preallocated around the end": "fallock f 0 128K; fallock f 128K 128K; fsync f; falloc f 0 64K; fsync f; trunc f \
                                    256K; fsync f; fill f 0 128K 6; fsync f",
        keep = "f";
    "written into preallocated space": "falloc f 0 1M; sync; fill f 64K 8K 1; fsync f; fill f 128K 4K 2; fsync \
                                        f", keep = "f";
    "inline, then allocated in the same block": "fill f 0 21 9; falloc f 40 40; fsync f", keep = "f";
    "inline grows": "fill f 0 100 1; sync; fill f 100 9000 2; fsync f", keep = "f";
    "inline is rewritten": "fill f 0 100 1; sync; fill f 0 300 2; fsync f; fill f 5 9 3; fsync f", keep = "f";
    "cloned": "fill f 0 256K 1; sync; clone f 0 256K g 0; fsync g; clone f 64K 4K g 512K; fsync g; fsync f", keep = "f \
        g";
    "cloned from new data": "fill f 0 64K 1; fsync f; clone f 16K 4K g 128K; fsync g; fsync f", keep = "f g";
    "part cloned to a lower place": "fill f 800K 100K 1; fsync f; clone f 820K 20K f 400K; fsync f", keep = "f";
    "many references dropped and added": "fill f 0 400K 1; sync; clone f 0 40K f 40K; fill f 80K 40K 2; clone f 80K \
        40K f 0; fsync f", keep = "f", commits = true;
    "compressed": "touch f; setx f btrfs.compression zstd; sync; fill f 0 200000 7; fsync f; fill f 50000 300 8; fsync \
                   f", keep = "f";
    "not copied on write": "falloc f 0 64K; sync; fill f 0 64K 1; sync; fill f 8K 8K 2; fsync f", keep = "f";
    "many small extents": "touchs x 1 3; sync; fill f 0 4K 1; fill f 16K 4K 2; fill f 64K 4K 3; fsync f; fill f 32K 4K \
                           4; fill f 0 4K 5; fsync f; punch f 64K 4K; fsync f",
        format = "4096", keep = "f";
    // Attributes.
    "mode": "touch f; mkdir d; chmod f 777; chmod d 777; sync; chmod f 755; chmod d 755; fsync f; fsync d", keep = "f \
        d";
    "attributes removed": "touch f; setx f user.a 1; setx f user.b 2; sync; rmx f user.a; fsync f", keep = "f";
    "attribute removed, then a new name": "mkdir d; touch d/f; setx d/f user.a 1; setx d/f user.b 2; setx d/f user.c \
        3; sync; rmx d/f user.b; fsync d/f; ln d/f d/g; fsync d/g", keep = "d/f d/g";
    "attribute removed after fsync, then a new name": "mkdir d; touch d/f; setx d/f user.a 1; setx d/f user.b 2; sync; \
        fill d/f 0 4K 1; fsync d/f; rmx d/f user.a; ln d/f d/g; fsync d", keep = "d/f d/g";
    "attributes of a folder": "mkdir d; setx d user.a 1; setx d user.b 2; sync; rmx d user.a; setx d user.c 3; fsync \
                               d", keep = "d";
    "2000 attributes": "touch f; xattrs f 1 2000; sync; fill f 0 32K 1; fsync f", keep = "f";
    "owner": "touch f; sync; chown f 1000; chmod f 4755; fsync f", keep = "f";
    // Links.
    "3001 links": "touch foo; links foo l 1 3000; sync; ln foo l3001; fsync foo", keep = "foo l1 l3000 \
        l3001", commits = true;
    "links moved among their items": "touch foo; links foo l 1 3000; sync; rm l1; ln foo l3001; ln foo l1; rm l2; ln \
                                      foo l3002; ln foo l3003; fsync foo",
        keep = "foo l1 l3 l3000 l3001 l3002 l3003", gone = "l2", commits = true;
    "link after fsync": "fill foo 0 4K 1; fsync foo; ln foo bar; touch x; fsync x", keep = "foo";
    "links into new folders": "mkdir d; fill foo 0 8K 1; sync; ln foo d/foo_2; ln foo d/foo_3; fill hello 0 64K 2; ln \
                               hello d/hello_2; mkdir d/x; mkdir d/x/y; mkdir d/x/y/z; ln foo d/x/y/foo_4; ln foo \
                               d/x/y/z/foo_5; touch d/x/y/z/q; fsync d; fsync hello",
        keep = "foo hello d/foo_2 d/foo_3 d/hello_2 d/x d/x/y d/x/y/z d/x/y/foo_4 d/x/y/z/foo_5 d/x/y/z/q";
    "links to two, one fsynced": "mkdir d; touch d/foo; touch d/bar; sync; ln d/bar d/bar2; ln d/foo d/foo2; fsync \
                                  d/bar", keep = "d/bar d/bar2 d/foo d/foo2";
    "link removed": "mkdir d; touch d/foo; ln d/foo d/bar; sync; rm d/bar; fsync d/foo", keep = "d/foo", gone = "d/bar";
    "link removed, evicted": "mkdir d; touch d/foo; ln d/foo d/bar; sync; rm d/bar; evict; fsync \
                              d/foo", keep = "d/foo", gone = "d/bar", commits = true;
    "link removed in a folder that is logged": "mkdir d; touch d/foo; ln d/foo d/bar; sync; touch d/x; fsync d; rm \
        d/bar; fsync d/foo",
        keep = "d/foo d/x", gone = "d/bar";
    "link removed in another folder": "mkdir d; touch foo; ln foo d/foo2; ln foo d/foo3; sync; rm d/foo3; fsync \
                                       foo", keep = "foo d/foo2", gone = "d/foo3";
    "link in a new folder": "mkdir r; touch r/foo; sync; mkdir r/dir; fill r/foo 0 4K 1; fsync r/foo; ln r/foo \
                             r/dir/bar; fsync r", keep = "r/foo r/dir r/dir/bar";
    // Renames.
    "renamed": "fill foo 0 256K 1; fsync foo; mv foo bar; fsync bar", keep = "bar", gone = "foo";
    "renamed, committed before": "fill foo 0 1M 1; sync; fill foo 1M 1M 2; mv foo bar; fsync \
                                  bar", keep = "bar", gone = "foo";
    "old name used again": "mkdir d; fill d/foo 0 4K 1; sync; mv d/foo d/bar; touch d/foo; fsync d/bar", keep = "d/bar \
        d/foo";
    "old name used again, new file fsynced": "fill b 0 4K 1; sync; mv b bb; fill b 0 8K 2; fsync b", keep = "b bb";
    "folder renamed, new one with its name": "mkdir a; mkdir a/x; fill a/x/foo 0 4K 1; fill a/x/bar 0 4K 2; sync; mv \
        a/x a/y; mkdir a/x; fsync a/x",
        keep = "a/x a/y a/y/foo a/y/bar", gone = "a/x/foo";
    "moved into the folder of a link": "mkdir x; touch x/foo; mkdir y; mkdir y/z; touch y/foo2; sync; ln x/foo x/bar; \
                                        mv y/z x/z; mv y/foo2 x/foo2; fsync x/bar",
        keep = "x/bar x/foo x/foo2 x/z", gone = "y/z y/foo2", commits = true;
    "moved, old folder fsynced": "mkdir a; mkdir a/b; touch a/b/foo; mkdir c; sync; mv a/b/foo c/foo; touch a/bar; \
                                  fsync a; fsync c/foo", keep = "c/foo a/bar", gone = "a/b/foo", commits = true;
    "moved, new folder fsynced": "mkdir d1; mkdir d2; fill d1/f 0 4K 1; sync; mv d1/f d2/f; fsync \
                                  d2", keep = "d2/f", gone = "d1/f",
        kernel_loses = Some("the file is in both folders");
    "moved out of an fsynced folder": "mkdir A; mkdir B; touch A/foo; sync; touch A/bar; fsync A; mv A/foo B/foo; \
                                       touch baz; fsync baz",
        keep = "baz A/bar", either = "A/foo B/foo";
    "rotated names": "mkdir d; touch d/foo; ln d/foo d/bar; sync; mv d/foo d/qwerty; mv d/bar d/foo; touch d/bar; \
                      fsync d/bar", keep = "d/bar d/foo d/qwerty";
    "chain of names": "mkdir t; fill t/1 0 3 1; fill t/2 0 5 2; sync; mv t/1 t/3; mv t/2 t/4; ln t/3 t/2; fill t/1 0 7 \
                       3; fsync t/1", keep = "t/1 t/2 t/3 t/4";
    "chain of names with a removal": "mkdir t; fill t/1 0 3 1; fill t/2 0 5 2; sync; mv t/1 t/3; ln t/3 t/5; rm t/2; \
                                      ln t/3 t/2; fill t/1 0 7 3; fsync t/1", keep = "t/1 t/2 t/3 t/5";
    "three names rotated": "mkdir t; fill t/a 0 3 1; ln t/a t/zz_link; fill t/zz 0 5 2; sync; mv t/a t/tmp; mv \
                            t/zz_link t/a; mv t/tmp t/zz_link; mv t/zz t/a2; fill t/zz 0 7 3; fsync t/zz",
        keep = "t/a t/a2 t/zz t/zz_link";
    "exchanged": "mkdir d; fill d/a 0 4K 1; fill d/b 0 8K 2; sync; xchg d/a d/b; fsync d/a", keep = "d/a d/b";
    "exchanged between folders": "mkdir d; mkdir e; fill d/a 0 4K 1; fill e/b 0 8K 2; sync; xchg d/a e/b; fsync \
                                  d/a", keep = "d/a e/b", commits = true;
    "exchanged with a folder": "mkdir d; fill a 0 4K 1; touch d/x; sync; xchg a d; fsync d", keep = "a a/x d";
    "whiteout": "mkdir d; fill d/a 0 4K 1; sync; whiteout d/a d/b; fsync d/b", keep = "d/b d/a";
    "whiteout, folder fsynced": "mkdir d; fill d/a 0 4K 1; sync; touch d/x; fsync d; whiteout d/a d/b; fsync \
                                 d", keep = "d/a d/b d/x";
    "overwritten by a rename": "fill a 0 4K 1; fill b 0 8K 2; sync; mv a b; fsync b", keep = "b", gone = "a";
    "folder moved, file with its name": "mkdir dir1; mkdir dir2; sync; mv dir1 dir2/dir1; touch dir1; fsync dir1; mv \
        dir1 dir2/foo; fsync dir2/foo",
        keep = "dir2/foo dir2/dir1", gone = "dir1", commits = true;
    "renamed beside a new folder": "mkdir r; fill r/file1 0 4K 1; sync; fill r/file1 4K 4K 2; fsync r/file1; mkdir \
                                    r/dir; touch r/dir/foo; mv r/file1 r/file2; fsync r",
        keep = "r/file2 r/dir r/dir/foo", gone = "r/file1";
    "data, then rename, others fsynced between": "touch bar; fill baz 0 256K 1; fsync baz; mv baz foo; fill foo 0 256K \
        2; fsync bar; fsync foo", keep = "foo bar", gone = "baz";
    "special file renamed, old name linked": "mkdir d; device d/foo; fifo d/pipe; sync; touch d/f1; fsync d/f1; mv \
        d/foo d/bar; ln d/bar d/foo; touch f2; fsync f2", keep = "f2 d/f1";
    "symbolic link renamed between": "mkdir d; symlink foobar d/old; fsync d; mv d/old d/new; fsync \
                                      d", keep = "d/new", gone = "d/old";
    "symbolic link and pipe": "mkdir r; touch r/x; sync; symlink target r/s; fifo r/p; fsync r", keep = "r/s r/p";
    // Folders.
    "folder with an old and a new entry": "mkdir d; touch d/foo; sync; touch d/bar; fsync d; fsync d/bar", keep = "d \
        d/foo d/bar";
    "entries removed and added": "mkdir d; touchs d/f 1 8; sync; rm d/f3; rm d/f4; rm d/f7; touch d/new; fsync d; rm \
                                  d/f1; fsync d; rm d/new; fsync d",
        keep = "d d/f2 d/f5 d/f6 d/f8", gone = "d/f1 d/f3 d/f4 d/f7 d/new";
    "new tree": "touch x; sync; mkdir n; mkdir n/s; mkdir n/s/t; touch n/f; touch n/s/t/z; fsync n", keep = "n n/s \
        n/s/t n/f n/s/t/z";
    "many entries": "mkdir d; touchs d/old 1 500; sync; touchs d/new 1 1500; rms d/old 100 199; fsync \
                     d", format = "4096", keep = "d d/old1 d/new1500 d/new700", gone = "d/old100 d/old199";
    "removed after fsync": "mkdir d; touch d/foo; fsync d/foo; evict; rm d/foo; fsync \
                            d", keep = "d", gone = "d/foo", commits = true;
    "folder removed and made again": "mkdir d; mkdir d/x; touch d/x/f; sync; rm d/x/f; rmdir d/x; mkdir d/x; touch \
                                      d/x/g; fsync d/x/g", keep = "d/x d/x/g", gone = "d/x/f";
    "folder replaced by a file": "mkdir d; mkdir d/x; sync; rmdir d/x; fill d/x 0 4K 1; fsync d/x", keep = "d/x";
    "moved folder of a logged one": "mkdir t; touchs t/f 1 300; mkdir t/dira; touch t/dira/x; sync; chmod t 700; fsync \
                                     t; mv t/dira dira; fill t/f1 0 4K 1; fsync t/f1",
        keep = "t/f1", either = "t/dira dira", format = "65536";
    // Without a name.
    "unlinked while open": "mkdir d; fill d/f 0 4K 1; open d/f; rm d/f; fsync d/f", gone = "d/f";
    "unlinked while open, committed before": "mkdir d; fill d/f 0 4K 1; sync; open d/f; rm d/f; fsync d/f; fsync \
        d", keep = "d", gone = "d/f";
    "temporary file": "mkdir d; sync; tmpfile d t; fill t 0 4K 1; fsync t", keep = "";
    "temporary file that gets a name": "mkdir d; sync; tmpfile d t; fill t 0 4K 1; fsync t; lnopen t d/named; fsync \
                                        d/named", keep = "d/named";
    "temporary file, committed, gets a name": "mkdir d; tmpfile d t; fill t 0 4K 1; sync; lnopen t d/named; fsync \
        t", keep = "d/named";
    // Subvolumes.
    "several subvolumes": "subvol a; subvol b; fill a/x 0 4K 1; sync; fill a/f 0 4K 1; fsync a/f; fill b/f 0 8K 2; \
                           fsync b/f; fill f 0 9 3; fsync f", keep = "a/f b/f f a/x";
    "snapshot removed": "mkdir d; touch d/x; snap . d/s; sync; delsub d/s; fsync \
                         d", keep = "d/x", gone = "d/s", commits = true;
    "shared with a snapshot": "mkdir d; fill d/f 0 64K 1; touchs d/g 1 50; snap . s; sync; fill d/f 4K 4K 2; rm d/g7; \
                               mv d/g8 d/h; fsync d/f; fsync d", keep = "d/f d/h d s/d/g7 s/d/g8", gone = "d/g7 d/g8";
    // What Linux 6.18 loses.
    "names taken over by links of one new file": "mkdir d; fill d/a1 0 4K 1; fill d/a2 0 4K 2; fill d/a3 0 4K 3; sync; \
        fill d/n 0 8K 9; mv d/a1 d/b1; ln d/n d/a1; mv d/a2 d/b2; ln d/n d/a2; mv d/a3 d/b3; ln d/n d/a3; fsync d/n",
        keep = "d/n d/a1 d/a2 d/a3", survives = "d/b1 d/b2 d/b3", kernel_loses = Some("b2 and b3");
    "linked, with space preallocated behind the end": "mkdir d; fill d/f 0 4K 1; fallock d/f 1M 64K; fill d/x 0 9 1; \
        sync; ln d/f d/g; fsync d/x; fsync d", keep = "d/f d/g d/x",
        kernel_loses = Some("the preallocated space");
    "overwritten by a rename, other link fsynced": "mkdir d; fill d/a 0 4K 1; fill d/b 0 8K 2; ln d/b d/c; sync; mv \
        d/a d/b; fsync d/c", exists = "d/b", survives = "d/b d/c",
        kernel_loses = Some("the name b");
};
