//! Our commands print about an image, on a mount and without one, the text that btrfs-progs print on the kernel's
//! mount.

use super::{open_top, same};
use butterfs_fs::{Caller, InodeId, RenameMode, TreeId};
use butterfs_testkit::engine::{FORMATS, device};
use butterfs_testkit::fingerprint::{Compare, Fingerprint};
use butterfs_testkit::kernel::{KernelMount, check_all, run};
use butterfs_testkit::requirement;
use butterfs_testkit::scratch::Scratch;
use butterfs_testkit::serve::{self, Served};
use butterfs_testkit::watchdog::Watchdog;
use std::path::Path;

const TOP: InodeId = InodeId::root_of(TreeId::FS);
const CALLER: Caller = Caller { uid: 0, gid: 0, umask: 0o022, privileged: true };

/// Commands of both programs; `@` is the mount.
const QUESTIONS: &[&str] = &[
    "subvolume list @",
    "subvolume list -p @",
    "subvolume list -a @",
    "subvolume list -a @/a",
    "subvolume list -c @/a",
    "subvolume list -g @/a/in",
    "subvolume list -o @",
    "subvolume list -o @/a",
    "subvolume list -ot @/a/in",
    "subvolume list -puqR @",
    "subvolume list -s @",
    "subvolume list -r @",
    "subvolume list -d @",
    "subvolume list -t -pcguqR @",
    "subvolume list -ts @",
    "subvolume list --sort=-rootid @",
    "subvolume list --sort=path @",
    "subvolume list --sort=gen,-ogen @",
    "subvolume list -G +3 @",
    "subvolume list -G -3 @",
    "subvolume list -C 3 @",
    "subvolume show @",
    "subvolume show @/a",
    "subvolume show @/a/in",
    "subvolume show @/snap",
    "subvolume show @/d/e/moved",
    "subvolume show -r 257 @",
    "subvolume get-default @",
    "subvolume find-new @/a 0",
    "subvolume find-new @/a 3",
    "subvolume find-new @/snap 0",
    "property get @/a ro",
    "property get @/snap ro",
    "inspect-internal rootid @",
    "inspect-internal rootid @/a/dir",
    "inspect-internal rootid @/snap",
    "inspect-internal subvolid-resolve 5 @",
    "inspect-internal subvolid-resolve 257 @",
    "inspect-internal inode-resolve 258 @/a",
    "inspect-internal inode-resolve 257 @/a/dir",
];

/// The answer of a program to a question: the code that it ended with, and its words with `@` for the mount.
pub fn answer(program: &Path, question: &str, at: &Path) -> (Option<i32>, String) {
    let at = at.to_string_lossy();
    let words: Vec<String> = question.split(' ').map(|word| word.replace('@', &at)).collect();
    let finished = run(60, program, &words.iter().map(String::as_str).collect::<Vec<_>>());
    (finished.code, finished.output.replace(&*at, "@"))
}

/// The words of an answer that must come.
pub fn ask(program: &Path, question: &str, at: &Path) -> String {
    let (code, output) = answer(program, question, at);
    assert_eq!(code, Some(0), "{} {question}: {output}", program.display());
    output
}

/// A forest with everything that the commands show.
fn plant(image: &Path) {
    let filesystem = open_top(image);
    let create = |parent, name: &[u8]| {
        let id = filesystem.create_subvolume(&CALLER, parent, name).expect("room");
        filesystem.sync().expect("a good device");
        InodeId::root_of(id)
    };
    let file = |parent, name: &[u8], content: &[u8]| {
        let id = filesystem.create(&CALLER, parent, name, 0o644).expect("room").id;
        filesystem.write(id, 0, content, false).expect("room");
        id
    };
    let a = create(TOP, b"a");
    let inner = create(a, b"in");
    let d = filesystem.mkdir(&CALLER, TOP, b"d", 0o755).expect("room").id;
    let e = filesystem.mkdir(&CALLER, d, b"e", 0o755).expect("room").id;
    create(TOP, b"was here");
    filesystem.rename(TOP, b"was here", e, b"moved", RenameMode::Replace).expect("a subvolume moves");
    filesystem.snapshot(a.tree, TOP, b"snap", true).expect("room");
    let small = file(a, b"small", b"hi");
    file(a, b"big", &(0..300_000).map(|at| (at / 7) as u8).collect::<Vec<u8>>());
    filesystem.link(small, a, b"hard").expect("room");
    filesystem.sync().expect("a good device");
    filesystem.snapshot(a.tree, d, b"a writable one", false).expect("room");
    create(inner, b"deep");
    let dir = filesystem.mkdir(&CALLER, a, b"dir", 0o755).expect("room").id;
    create(dir, b"x");
    create(TOP, b"gone");
    filesystem.delete_subvolume(TOP, b"gone").expect("it is there");
    filesystem.set_default_subvolume(inner.tree).expect("it is there");
    filesystem.clean_subvolumes().expect("a good device");
    filesystem.shutdown().unwrap_or_else(|error| panic!("{error}"));
}

#[test]
fn commands_print_what_btrfs_prints() {
    const TEST: &str = "commands_print_what_btrfs_prints";
    if !requirement::kernel_btrfs(TEST) || !requirement::fuse(TEST) {
        return;
    }
    let _watchdog = Watchdog::new(TEST, 300);
    let scratch = Scratch::new(TEST);
    let image = scratch.sparse_file("image", 1 << 30);
    FORMATS[0].make(&device(&image));
    plant(&image);
    check_all(&image);
    let btrfs = requirement::program("btrfs").expect("required above");
    let mount = KernelMount::new(&image, "ro,subvolid=5");
    let expected: Vec<String> = QUESTIONS.iter().map(|question| ask(&btrfs, question, mount.path())).collect();
    let shown = Fingerprint::of_tree(mount.path());
    assert_eq!(mount.finish(), [""; 0]);
    let at = scratch.folder("mnt");
    let served = Served::mount(&image, &at, "ro,subvolid=5");
    for (question, expected) in QUESTIONS.iter().zip(&expected) {
        assert_eq!(ask(&serve::binary(), question, &at), *expected, "{question}");
    }
    same("mount", &shown, &Fingerprint::of_tree(&at), Compare { atime: false, ..Compare::ALL });
    served.unmount();
    for (question, expected) in QUESTIONS.iter().zip(&expected) {
        let (group, rest) = question.split_once(' ').expect("two words at least");
        let question = format!("{group} {}", rest.replacen(' ', &format!(" --image {} ", image.display()), 1));
        // Paths inside the image begin at its root.
        let words: Vec<String> = question.split(' ').map(|word| word.replace('@', "/@").replace("/@/", "/")).collect();
        let words: Vec<&str> = words.iter().map(|word| word.strip_suffix("@").unwrap_or(word)).collect();
        let finished = run(60, serve::binary(), &words);
        assert_eq!(finished.code, Some(0), "{words:?}: {}", finished.output);
        assert_eq!(finished.output, expected.replace("@/", "/"), "{question}");
    }
}
