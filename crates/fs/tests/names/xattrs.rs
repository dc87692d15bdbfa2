//! Extended attributes, ACLs, properties.

use crate::world::{ROOT, USER, World, errno};
use butterfs_fs::inode::attr::mode;
use butterfs_fs::{Errno, InodeId, SetAttr};
use butterfs_ondisk::items::inode_flags;

const ACCESS: &[u8] = b"system.posix_acl_access";
const DEFAULT: &[u8] = b"system.posix_acl_default";

fn names(world: &World, id: InodeId) -> Vec<String> {
    let list = world.fs.list_xattrs(id).unwrap();
    let mut names: Vec<String> = list
        .split(|byte| *byte == 0)
        .filter(|name| !name.is_empty())
        .map(|n| String::from_utf8_lossy(n).into())
        .collect();
    names.sort();
    names
}

#[test]
fn values_of_all_sizes() {
    let world = World::new();
    let (fs, root) = (&world.fs, world.root());
    let file = world.file(root, "file");
    let largest = 16258 - 30;
    for len in [0, 1, 255, 4000, largest - 6] {
        let value = vec![7; len];
        fs.set_xattr(&USER, file, b"user.a", &value, 0).unwrap();
        assert_eq!(fs.get_xattr(file, b"user.a").unwrap(), value);
    }
    assert_eq!(errno(fs.set_xattr(&USER, file, b"user.a", &vec![7; largest - 5], 0)), Some(Errno::ENOSPC));
    assert_eq!(fs.get_xattr(file, b"user.a").unwrap().len(), largest - 6);
    let world = world.reopen();
    assert_eq!(world.fs.get_xattr(file, b"user.a").unwrap().len(), largest - 6);
    assert_eq!(names(&world, file), ["user.a"]);
    world.fs.remove_xattr(&USER, file, b"user.a").unwrap();
    assert_eq!(names(&world, file), [""; 0]);
    world.finish();
}

#[test]
fn preconditions_of_setting_an_attribute() {
    let world = World::new();
    let (fs, root) = (&world.fs, world.root());
    let file = world.file(root, "file");
    let link = fs.symlink(&ROOT, root, b"link", b"x").unwrap().id;
    let long = [&b"user."[..], &[b'x'; 251]].concat();
    let cases: [(InodeId, &[u8], u32, Option<Errno>); 11] = [
        (file, b"user.a", 2, Some(Errno::ENODATA)),
        (file, b"user.a", 1, None),
        (file, b"user.a", 1, Some(Errno::EEXIST)),
        (file, b"user.a", 2, None),
        (file, b"user.a", 3, Some(Errno::EINVAL)),
        (file, b"user.", 0, Some(Errno::EINVAL)),
        (file, b"other.a", 0, Some(Errno::EOPNOTSUPP)),
        (file, b"system.a", 0, Some(Errno::EOPNOTSUPP)),
        (file, &long, 0, Some(Errno::ERANGE)),
        (link, b"user.a", 0, Some(Errno::EPERM)),
        (link, b"trusted.a", 0, None),
    ];
    for (id, name, flags, want) in cases {
        assert_eq!(errno(fs.set_xattr(&ROOT, id, name, b"value", flags)), want, "{name:?} {flags}");
    }
    assert_eq!(errno(fs.get_xattr(file, b"user.b")), Some(Errno::ENODATA));
    assert_eq!(errno(fs.remove_xattr(&ROOT, file, b"user.b")), Some(Errno::ENODATA));
    assert_eq!(errno(fs.get_xattr(file, b"")), Some(Errno::EINVAL));
    world.finish();
}

#[test]
fn colliding_names_share_an_item() {
    let suffixes = crate::creation::colliding_names(3);
    // The directory hash and the attribute hash are one function; a common prefix keeps the collision, since the
    // register is at the same value behind it.
    let names: Vec<Vec<u8>> = suffixes.iter().map(|name| colliding_attribute(name)).collect();
    let world = World::new();
    let (fs, root) = (&world.fs, world.root());
    let file = world.file(root, "file");
    for (at, name) in names.iter().enumerate() {
        fs.set_xattr(&ROOT, file, name, &[at as u8; 10], 1).unwrap();
    }
    fs.set_xattr(&ROOT, file, &names[0], &[9; 100], 2).unwrap();
    assert_eq!(fs.get_xattr(file, &names[0]).unwrap(), [9; 100]);
    assert_eq!(fs.get_xattr(file, &names[1]).unwrap(), [1; 10]);
    assert_eq!(errno(fs.set_xattr(&ROOT, file, &names[1], &[1; 16000], 0)), Some(Errno::EOVERFLOW));
    fs.remove_xattr(&ROOT, file, &names[1]).unwrap();
    assert_eq!(errno(fs.get_xattr(file, &names[1])), Some(Errno::ENODATA));
    assert_eq!(fs.get_xattr(file, &names[2]).unwrap(), [2; 10]);
    world.reopen().finish();
}

/// A name of at most 255 bytes in `user.` that has the hash of the others made this way.
fn colliding_attribute(name: &[u8]) -> Vec<u8> {
    use butterfs_ondisk::checksum::name_hash;
    let wanted = name_hash(b"user.aaaaaaaaaaaaaaaa");
    let mut candidate = [&b"user."[..], &name[..8], b"aaaa"].concat();
    let at = candidate.len();
    candidate.extend_from_slice(&[0; 4]);
    let base = name_hash(&candidate);
    let mut rows: Vec<(u64, u32)> = Vec::new();
    for bit in 0..32 {
        let mut probe = candidate.clone();
        probe[at + bit / 8] |= 1 << (bit % 8);
        let (mut effect, mut from) = (name_hash(&probe) ^ base, 1u32 << bit);
        for (other, with) in &rows {
            if effect ^ other < effect {
                effect ^= other;
                from ^= with;
            }
        }
        if effect != 0 {
            rows.push((effect, from));
            rows.sort_unstable_by_key(|row| std::cmp::Reverse(row.0));
        }
    }
    let (mut rest, mut bytes) = (base ^ wanted, 0u32);
    for (effect, from) in &rows {
        if rest ^ effect < rest {
            rest ^= effect;
            bytes ^= from;
        }
    }
    candidate[at..].copy_from_slice(&bytes.to_le_bytes());
    assert_eq!(name_hash(&candidate), wanted);
    candidate
}

fn acl(entries: &[(u16, u16, u32)]) -> Vec<u8> {
    let mut bytes = 2u32.to_le_bytes().to_vec();
    for (tag, permissions, id) in entries {
        bytes.extend_from_slice(&tag.to_le_bytes());
        bytes.extend_from_slice(&permissions.to_le_bytes());
        bytes.extend_from_slice(&id.to_le_bytes());
    }
    bytes
}

const NO_ID: u32 = u32::MAX;

#[test]
fn the_mode_and_the_access_acl_follow_each_other() {
    let world = World::new();
    let (fs, root) = (&world.fs, world.root());
    let file = world.file(root, "file");
    let named = |user, group, mask, other| {
        acl(&[(1, user, NO_ID), (2, 7, 1000), (4, group, NO_ID), (0x10, mask, NO_ID), (0x20, other, NO_ID)])
    };
    fs.set_xattr(&ROOT, file, ACCESS, &named(6, 4, 5, 0), 0).unwrap();
    assert_eq!(fs.getattr(file).unwrap().mode, 0o100650);
    assert_eq!(fs.get_xattr(file, ACCESS).unwrap(), named(6, 4, 5, 0));
    fs.setattr(&ROOT, file, &SetAttr { mode: Some(0o721), ..SetAttr::default() }).unwrap();
    assert_eq!(fs.get_xattr(file, ACCESS).unwrap(), named(7, 4, 2, 1));
    let minimal = acl(&[(1, 6, NO_ID), (4, 4, NO_ID), (0x20, 4, NO_ID)]);
    fs.set_xattr(&ROOT, file, ACCESS, &minimal, 0).unwrap();
    assert_eq!(fs.getattr(file).unwrap().mode, 0o100644);
    assert_eq!(errno(fs.get_xattr(file, ACCESS)), Some(Errno::ENODATA));
    assert_eq!(errno(fs.set_xattr(&ROOT, file, ACCESS, b"nonsense", 0)), Some(Errno::EOPNOTSUPP));
    assert_eq!(errno(fs.set_xattr(&ROOT, file, DEFAULT, &minimal, 0)), Some(Errno::EACCES));
    fs.remove_xattr(&ROOT, file, ACCESS).unwrap();
    world.finish();
}

#[test]
fn a_default_acl_is_inherited_instead_of_the_umask() {
    let world = World::new();
    let (fs, root) = (&world.fs, world.root());
    let dir = world.dir(root, "dir");
    let default = acl(&[(1, 7, NO_ID), (2, 5, 1000), (4, 7, NO_ID), (0x10, 7, NO_ID), (0x20, 0, NO_ID)]);
    fs.set_xattr(&ROOT, dir, DEFAULT, &default, 0).unwrap();
    let file = fs.create(&USER, dir, b"file", 0o666).unwrap();
    assert_eq!(file.mode, 0o100660);
    let access = acl(&[(1, 6, NO_ID), (2, 5, 1000), (4, 7, NO_ID), (0x10, 6, NO_ID), (0x20, 0, NO_ID)]);
    assert_eq!(fs.get_xattr(file.id, ACCESS).unwrap(), access);
    assert_eq!(names(&world, file.id), ["system.posix_acl_access"]);
    let below = fs.mkdir(&USER, dir, b"below", 0o777).unwrap();
    assert_eq!(below.mode, 0o040770);
    assert_eq!(fs.get_xattr(below.id, DEFAULT).unwrap(), default);
    let link = fs.symlink(&USER, dir, b"link", b"x").unwrap();
    assert_eq!((link.mode, names(&world, link.id).len()), (0o120777, 0));
    let world = world.reopen();
    let (fs, below) = (&world.fs, below.id);
    // Now read back from the tree.
    assert_eq!(fs.create(&USER, below, b"file", 0o666).unwrap().mode, 0o100660);
    fs.remove_xattr(&ROOT, below, DEFAULT).unwrap();
    assert_eq!(fs.create(&USER, below, b"second", 0o666).unwrap().mode, 0o100644);
    world.finish();
}

#[test]
fn the_compression_property() {
    let world = World::new();
    let (fs, root) = (&world.fs, world.root());
    let dir = world.dir(root, "dir");
    let name = b"btrfs.compression";
    let flags = |id| world.fs.getattr(id).unwrap().flags & (inode_flags::COMPRESS | inode_flags::NOCOMPRESS);
    fs.set_xattr(&ROOT, dir, name, b"zstd:3", 0).unwrap();
    assert_eq!(flags(dir), inode_flags::COMPRESS);
    let below = fs.mkdir(&ROOT, dir, b"below", 0o755).unwrap().id;
    assert_eq!(fs.get_xattr(below, name).unwrap(), b"zstd");
    let file = fs.create(&ROOT, below, b"file", 0o644).unwrap().id;
    assert_eq!((fs.get_xattr(file, name).unwrap(), flags(file)), (b"zstd".to_vec(), inode_flags::COMPRESS));
    assert_eq!(errno(fs.set_xattr(&ROOT, file, name, b"lz4", 0)), Some(Errno::EINVAL));
    assert_eq!(fs.get_xattr(file, name).unwrap(), b"zstd");
    fs.set_xattr(&ROOT, dir, name, b"none", 0).unwrap();
    assert_eq!(flags(dir), inode_flags::NOCOMPRESS);
    let second = fs.create(&ROOT, dir, b"second", 0o644).unwrap().id;
    assert_eq!(flags(second), inode_flags::NOCOMPRESS);
    assert_eq!(errno(fs.get_xattr(second, name)), Some(Errno::ENODATA));
    fs.set_xattr(&ROOT, dir, name, b"", 0).unwrap();
    assert_eq!((flags(dir), errno(fs.get_xattr(dir, name))), (0, Some(Errno::ENODATA)));
    assert_eq!(errno(fs.set_xattr(&ROOT, dir, b"btrfs.other", b"x", 0)), Some(Errno::EINVAL));
    let fifo = fs.mknod(&ROOT, root, b"fifo", mode::S_IFIFO | 0o600, (0, 0)).unwrap().id;
    assert_eq!(errno(fs.set_xattr(&ROOT, fifo, name, b"zlib", 0)), None);
    assert_eq!(errno(fs.get_xattr(fifo, name)), Some(Errno::ENODATA));
    let plain = world.file(root, "plain");
    fs.set_flags(plain, inode_flags::NODATACOW | inode_flags::NODATASUM, u64::MAX).unwrap();
    assert_eq!(errno(fs.set_xattr(&ROOT, plain, name, b"zlib", 0)), Some(Errno::EINVAL));
    world.finish();
}
