//! Every kind of inode, its first attributes, and what it inherits.

use crate::world::{ROOT, USER, World, errno};
use butterfs_fs::inode::attr::mode;
use butterfs_fs::{Caller, Errno};

#[test]
fn every_kind_is_found_again_after_reopening() {
    let world = World::new();
    let (fs, root) = (&world.fs, world.root());
    let dir = fs.mkdir(&USER, root, b"dir", 0o777).unwrap();
    assert_eq!((dir.mode, dir.uid, dir.gid, dir.nlink, dir.size), (0o040755, 1000, 1000, 1, 0));
    assert_eq!((dir.atime, dir.mtime, dir.ctime), (dir.btime, dir.btime, dir.btime));
    let file = fs.create(&USER, dir.id, b"file", 0o666).unwrap();
    assert_eq!((file.mode, file.size, file.blocks), (0o100644, 0, 0));
    let link = fs.symlink(&ROOT, dir.id, b"symlink", b"../target").unwrap();
    assert_eq!((link.mode, link.size), (0o120777, 9));
    for (name, kind, rdev) in [
        (&b"fifo"[..], mode::S_IFIFO, (0, 0)),
        (b"socket", mode::S_IFSOCK, (0, 0)),
        (b"char", mode::S_IFCHR, (259, 1048575)),
        (b"block", mode::S_IFBLK, (8, 1)),
    ] {
        let made = fs.mknod(&ROOT, dir.id, name, kind | 0o600, rdev).unwrap();
        assert_eq!((made.mode, made.rdev), (kind | 0o600, rdev), "{name:?}");
    }
    let names = ["file", "symlink", "fifo", "socket", "char", "block"];
    assert_eq!(world.list(dir.id), names);
    assert_eq!(world.stat("dir").unwrap().size, 2 * names.concat().len() as u64);
    let before = names.map(|name| world.stat(&format!("dir/{name}")).unwrap());
    let world = world.reopen();
    assert_eq!(names.map(|name| world.stat(&format!("dir/{name}")).unwrap()), before);
    assert_eq!(world.fs.readlink(link.id).unwrap(), b"../target");
    assert_eq!(world.list(dir.id), names);
    world.finish();
}

#[test]
fn refusals_of_making() {
    let world = World::new();
    let (fs, root) = (&world.fs, world.root());
    let file = world.file(root, "file");
    let gone = world.dir(root, "gone");
    fs.rmdir(root, b"gone").unwrap();
    let make = |parent, name: &[u8]| errno(fs.create(&ROOT, parent, name, 0o644));
    assert_eq!(make(root, b"file"), Some(Errno::EEXIST));
    assert_eq!(make(file, b"below"), Some(Errno::ENOTDIR));
    assert_eq!(make(gone, b"below"), Some(Errno::ENOENT));
    assert_eq!(make(root, &[b'x'; 256]), Some(Errno::ENAMETOOLONG));
    assert_eq!(make(root, &[b'x'; 255]), None);
    assert_eq!(errno(fs.symlink(&ROOT, root, b"l", b"")), Some(Errno::ENOENT));
    assert_eq!(errno(fs.symlink(&ROOT, root, b"l", &[b'x'; 4096])), Some(Errno::ENAMETOOLONG));
    assert_eq!(errno(fs.symlink(&ROOT, root, b"l", &[b'x'; 4095])), None);
    assert_eq!(errno(fs.mknod(&ROOT, root, b"d", mode::S_IFDIR | 0o755, (0, 0))), Some(Errno::EPERM));
    assert_eq!(errno(fs.lookup(root, b"nothing")), Some(Errno::ENOENT));
    assert_eq!(errno(fs.lookup(file, b"nothing")), Some(Errno::ENOTDIR));
    assert_eq!(errno(fs.lookup(root, &[b'x'; 256])), Some(Errno::ENAMETOOLONG));
    fs.forget(gone, 1);
    world.finish();
}

#[test]
fn a_directory_passes_its_group_and_its_set_group_id_bit_on() {
    let world = World::new();
    let (fs, root) = (&world.fs, world.root());
    let shared = fs.mkdir(&Caller { gid: 50, ..ROOT }, root, b"shared", 0o2775).unwrap();
    assert_eq!(shared.mode, 0o042775);
    let below = fs.mkdir(&USER, shared.id, b"dir", 0o777).unwrap();
    assert_eq!((below.gid, below.mode), (50, 0o042755));
    let file = fs.create(&USER, below.id, b"file", 0o2777).unwrap();
    assert_eq!((file.gid, file.mode), (50, 0o100755));
    world.finish();
}

#[test]
fn names_with_one_hash_share_an_item() {
    // Appending the 4-byte patch makes CRC-32C of any name equal; these were found by birthday search at run time.
    let colliding = colliding_names(60);
    let world = World::new();
    let dir = world.dir(world.root(), "dir");
    let mut made = Vec::new();
    for name in &colliding {
        match world.fs.create(&ROOT, dir, name, 0o600) {
            Ok(attr) => made.push((name, attr.id)),
            Err(error) => assert_eq!(error.errno(), Errno::EOVERFLOW),
        }
    }
    // 16258 bytes of payload, 30 bytes and the name for each.
    assert_eq!(made.len(), 16258 / (30 + 255));
    let world = world.reopen();
    for (name, id) in &made {
        assert_eq!(world.fs.lookup(dir, name).unwrap().id, *id);
    }
    assert_eq!(errno(world.fs.lookup(dir, &colliding[59])), Some(Errno::ENOENT));
    for (name, id) in made.iter().step_by(2) {
        world.fs.unlink(dir, name).unwrap();
        world.fs.forget(*id, 1);
    }
    for (at, (name, id)) in made.iter().enumerate() {
        assert_eq!(world.fs.lookup(dir, name).map(|attr| attr.id).ok(), (at % 2 == 1).then_some(*id));
    }
    assert_eq!(world.fs.getattr(dir).unwrap().size, (made.len() / 2 * 255 * 2) as u64);
    world.finish();
}

/// Names of 255 bytes whose directory hash is the same: CRC-32C is linear, so that any 4 bytes can be chosen to bring
/// the register to a wanted value.
pub fn colliding_names(count: usize) -> Vec<Vec<u8>> {
    use butterfs_ondisk::checksum::name_hash;
    let wanted = name_hash(&[b'a'; 255]) as u32;
    let mut names = vec![vec![b'a'; 255]];
    let mut seed = 0u64;
    while names.len() < count {
        seed += 1;
        let mut name = vec![b'a'; 255];
        name[..8].copy_from_slice(&(0x6161_6161_6161_6161 + (seed << 20)).to_be_bytes());
        if let Some(patched) = patch(name, wanted)
            && !patched.iter().any(|byte| matches!(byte, 0 | b'/'))
        {
            assert_eq!(name_hash(&patched) as u32, wanted);
            names.push(patched);
        }
    }
    names
}

/// Solves for the last four bytes over GF(2).
fn patch(mut name: Vec<u8>, wanted: u32) -> Option<Vec<u8>> {
    use butterfs_ondisk::checksum::name_hash;
    let at = name.len() - 4;
    name[at..].fill(0);
    let base = name_hash(&name) as u32;
    let mut rows: Vec<(u32, u32)> = Vec::new();
    for bit in 0..32 {
        let mut probe = name.clone();
        probe[at + bit / 8] |= 1 << (bit % 8);
        let (mut effect, mut combination) = (name_hash(&probe) as u32 ^ base, 1u32 << bit);
        for (other, from) in &rows {
            if effect ^ other < effect {
                effect ^= other;
                combination ^= from;
            }
        }
        if effect != 0 {
            rows.push((effect, combination));
            rows.sort_unstable_by_key(|row| std::cmp::Reverse(row.0));
        }
    }
    let (mut rest, mut bytes) = (base ^ wanted, 0u32);
    for (effect, combination) in &rows {
        if rest ^ effect < rest {
            rest ^= effect;
            bytes ^= combination;
        }
    }
    (rest == 0).then(|| {
        name[at..].copy_from_slice(&bytes.to_le_bytes());
        name
    })
}
