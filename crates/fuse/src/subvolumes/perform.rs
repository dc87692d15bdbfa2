//! Answering a question with the engine.

use super::records::{ExtentRecord, SubvolumeRecord, uuid_from_text};
use super::{Access, Answer, Peer, Record, Refusal};
use butterfs_fs::subvolume::SubvolumeInfo;
use butterfs_fs::subvolume::uuid_tree::UuidKind;
use butterfs_fs::{Caller, DeviceId, DeviceStats, Errno, Filesystem, Generation, Ino, InodeId, Logical, TreeId};
use std::collections::HashMap;

/// How often others may exchange names under a deletion before it gives up.
const EXCHANGES: usize = 100;

/// Where a question is asked.
pub struct Stage<'a> {
    /// The filesystem.
    pub filesystem: &'a Filesystem,
    /// Who asks.
    pub peer: &'a Peer,
    /// The inode of a number that `stat` shows.
    pub find: &'a dyn Fn(u64) -> Option<InodeId>,
    /// Told of each directory entry that was made or removed.
    pub changed: &'a dyn Fn(InodeId, &[u8]),
    /// Told of an entry that nobody may follow while what it leads to is filled (true), and when they may again.
    pub closed: &'a dyn Fn(InodeId, &[u8], bool),
}

/// Answers a question.
pub fn perform(stage: &Stage<'_>, question: &[Vec<u8>]) -> Answer {
    let Some((verb, words)) = question.split_first() else { return Err(malformed()) };
    let mut asked = Asked { stage, words: words.iter() };

    match verb.as_slice() {
        b"create" => asked.create(),
        b"snapshot" => asked.snapshot(),
        b"delete" => asked.delete(),
        b"delete-id" => asked.delete_by_id(),
        b"list" => asked.list(),
        b"deleted" => asked.deleted(),
        b"info" => asked.info(),
        b"info-id" => asked.info_by_id(),
        b"info-uuid" => asked.info_by_uuid(),
        b"snapshots-of" => asked.snapshots_of(),
        b"rootid" => asked.rootid(),
        b"get-default" => asked.get_default(),
        b"set-default" => asked.set_default(),
        b"get-readonly" => asked.get_readonly(),
        b"set-readonly" => asked.set_readonly(),
        b"new" => asked.new_extents(),
        b"subvolume-path" => asked.subvolume_path(),
        b"paths" => asked.paths(),
        b"users" => asked.users(),
        b"store-data" => asked.store_data(),
        b"extents" => asked.extents(),
        b"may-clone" => asked.may_clone(),
        b"dedupe" => asked.dedupe(),
        b"defragment" => asked.defragment(),
        b"get-label" => asked.get_label(),
        b"set-label" => asked.set_label(),
        b"device-stats" => Ok(asked.filesystem().device_stats().iter().map(device_record).collect()),
        b"sync" => asked.stage.filesystem.sync().map(|()| Vec::new()).map_err(Refusal::from),
        _ => Err(malformed()),
    }
}

fn device_record((id, name, stats): &(DeviceId, String, DeviceStats)) -> Record {
    let DeviceStats { write_errors, read_errors, flush_errors, corruption_errors, generation_errors } = *stats;
    let numbers = [write_errors, read_errors, flush_errors, corruption_errors, generation_errors];
    let words = [id.to_string(), name.clone()].into_iter().chain(numbers.iter().map(u64::to_string));
    words.map(String::into_bytes).collect()
}

/// The inode that a word of a question names, for those who may do everything.
pub fn inode_of(stage: &Stage<'_>, word: &[u8]) -> Result<InodeId, Refusal> {
    let words = [word.to_vec()];
    let mut asked = Asked { stage, words: words.iter() };
    asked.access().must_be_privileged()?;
    asked.inode()
}

/// The subvolume that a word of a question names, for those who may do everything.
pub fn subvolume_of(stage: &Stage<'_>, word: &[u8]) -> Result<TreeId, Refusal> {
    let words = [word.to_vec()];
    let mut asked = Asked { stage, words: words.iter() };
    asked.access().must_be_privileged()?;
    asked.subvolume().map(|id| id.tree)
}

pub(super) fn malformed() -> Refusal {
    Refusal::new(Errno::EINVAL.0, "the question makes no sense")
}

pub(super) fn one(value: impl ToString) -> Vec<Record> {
    vec![vec![value.to_string().into_bytes()]]
}

pub(super) struct Asked<'a, 'w> {
    stage: &'a Stage<'a>,
    words: std::slice::Iter<'w, Vec<u8>>,
}

impl Asked<'_, '_> {
    pub(super) fn filesystem(&self) -> &Filesystem {
        self.stage.filesystem
    }

    pub(super) fn access(&self) -> Access<'_> {
        Access { filesystem: self.stage.filesystem, peer: self.stage.peer }
    }

    pub(super) fn word(&mut self) -> Result<&[u8], Refusal> {
        self.words.next().map(Vec::as_slice).ok_or_else(malformed)
    }

    pub(super) fn number(&mut self) -> Result<u64, Refusal> {
        let text = std::str::from_utf8(self.word()?).ok();
        text.and_then(|text| text.parse().ok()).ok_or_else(malformed)
    }

    fn tree(&mut self) -> Result<TreeId, Refusal> {
        Ok(match self.number()? {
            0 => TreeId::FS,
            number => TreeId(number),
        })
    }

    fn flag(&mut self, yes: &str, no: &str) -> Result<bool, Refusal> {
        match self.word()? {
            word if word == yes.as_bytes() => Ok(true),
            word if word == no.as_bytes() => Ok(false),
            _ => Err(malformed()),
        }
    }

    pub(super) fn inode(&mut self) -> Result<InodeId, Refusal> {
        let find = self.stage.find;
        let text = std::str::from_utf8(self.word()?).map_err(|_| malformed())?;
        let number = |text: &str| text.parse::<u64>().map_err(|_| malformed());
        if let Some(shown) = text.strip_prefix('@') {
            let gone = || Refusal::new(Errno::ENOENT.0, "there is no such inode");
            return find(number(shown)?).ok_or_else(gone);
        }
        let (tree, ino) = text.split_once(':').ok_or_else(malformed)?;
        Ok(InodeId { tree: TreeId(number(tree)?), ino: Ino(number(ino)?) })
    }

    /// An inode that must be the root directory of a subvolume.
    fn subvolume(&mut self) -> Result<InodeId, Refusal> {
        let id = self.inode()?;
        if id.ino != Ino::ROOT_DIR || !id.tree.is_subvolume() {
            return Err(Refusal::new(Errno::EINVAL.0, "not a subvolume"));
        }
        Ok(id)
    }

    fn create(&mut self) -> Answer {
        let parent = self.inode()?;
        let umask = self.number()? as u32 & 0o777;
        let name = self.word()?.to_vec();
        self.access().must_change_entries(parent)?;
        let Peer { uid, gid, privileged, .. } = *self.stage.peer;
        let caller = Caller { uid, gid, umask, privileged };
        let id = self.filesystem().create_subvolume(&caller, parent, &name)?;
        (self.stage.changed)(parent, &name);
        Ok(one(id.0))
    }

    fn snapshot(&mut self) -> Answer {
        let source = self.subvolume()?;
        let parent = self.inode()?;
        let name = self.word()?.to_vec();
        let read_only = self.flag("ro", "rw")?;
        let attr = self.access().reach(source)?;
        self.access().must_own(&attr)?;
        self.access().must_change_entries(parent)?;
        let id = self.filesystem().snapshot(source.tree, parent, &name, read_only)?;
        (self.stage.changed)(parent, &name);
        Ok(one(id.0))
    }

    fn delete(&mut self) -> Answer {
        let parent = self.inode()?;
        let name = self.word()?.to_vec();
        let mut attempt = self.delete_found(parent, &name);
        for _ in 0..EXCHANGES {
            match &attempt {
                // Somebody has exchanged names: what is there now is looked at.
                Err(refusal) if refusal.errno == Errno::ESTALE.0 => attempt = self.delete_found(parent, &name),
                _ => break,
            }
        }
        let deleted = attempt?;
        (self.stage.changed)(parent, &name);
        Ok(one(deleted.0))
    }

    /// Deletes the subvolume whose permissions it has looked at, and no other; `ESTALE` when the name has got another
    /// one meanwhile.
    fn delete_found(&self, parent: InodeId, name: &[u8]) -> Result<TreeId, Refusal> {
        self.access().must_change_entries(parent)?;
        let found = self.filesystem().lookup(parent, name)?.id;
        let allowed = self.access().must_delete(parent, found);
        self.filesystem().forget(found, 1);
        allowed?;
        if found != InodeId::root_of(found.tree) {
            return Err(Refusal::new(Errno::EINVAL.0, "not a subvolume"));
        }
        self.filesystem().delete_expected_subvolume(parent, name, found.tree)?;
        Ok(found.tree)
    }

    fn delete_by_id(&mut self) -> Answer {
        let id = self.tree()?;
        self.access().must_be_privileged()?;
        let (parent, name) = self.filesystem().delete_subvolume_by_id(id)?;
        (self.stage.changed)(parent, &name);
        Ok(one(id.0))
    }

    fn list(&mut self) -> Answer {
        let id = self.inode()?;
        self.access().must_be_privileged()?;
        let mut records = one(id.tree.0);
        let mut paths: HashMap<InodeId, Vec<u8>> = HashMap::new();
        for info in self.filesystem().subvolumes()? {
            let path = match &info.place {
                Some((tree, ino, _)) => {
                    let directory = InodeId { tree: *tree, ino: *ino };
                    match paths.get(&directory) {
                        Some(path) => path.clone(),
                        None => {
                            let path = self.filesystem().directory_path(directory)?;
                            paths.insert(directory, path.clone());
                            path
                        }
                    }
                }
                None => Vec::new(),
            };
            records.push(SubvolumeRecord::of(&info, path).to_words());
        }
        Ok(records)
    }

    fn deleted(&mut self) -> Answer {
        self.access().must_be_privileged()?;
        let deleted = self.filesystem().deleted_subvolumes()?;
        deleted
            .into_iter()
            .map(|id| {
                let generation = self.filesystem().deleted_generation(id)?;
                Ok(vec![id.0.to_string().into_bytes(), generation.0.to_string().into_bytes()])
            })
            .collect()
    }

    fn info(&mut self) -> Answer {
        let id = self.subvolume()?;
        self.access().reach(id)?;
        self.described(id.tree)
    }

    fn info_by_id(&mut self) -> Answer {
        let id = self.tree()?;
        self.access().must_be_privileged()?;
        self.described(id)
    }

    fn info_by_uuid(&mut self) -> Answer {
        let uuid = std::str::from_utf8(self.word()?).ok().and_then(uuid_from_text).ok_or_else(malformed)?;
        self.access().must_be_privileged()?;
        let found = self.filesystem().subvolumes_by_uuid(UuidKind::Subvolume, &uuid)?;
        let none = || Refusal::new(Errno::ENOENT.0, "there is no subvolume with this UUID");
        self.described(*found.first().ok_or_else(none)?)
    }

    /// The path of a subvolume from the top level, then those of its snapshots.
    fn snapshots_of(&mut self) -> Answer {
        let id = self.tree()?;
        self.access().must_be_privileged()?;
        let uuid = self.filesystem().subvolume_info(id)?.uuid;
        let mut records = vec![vec![self.filesystem().subvolume_path(id)?]];
        for snapshot in self.filesystem().snapshots_of(&uuid)? {
            records.push(vec![self.filesystem().subvolume_path(snapshot.id)?]);
        }
        Ok(records)
    }

    fn described(&self, id: TreeId) -> Answer {
        let info: SubvolumeInfo = self.filesystem().subvolume_info(id)?;
        let path = match &info.place {
            Some((tree, ino, _)) => self.filesystem().directory_path(InodeId { tree: *tree, ino: *ino })?,
            None => Vec::new(),
        };
        Ok(vec![SubvolumeRecord::of(&info, path).to_words()])
    }

    fn rootid(&mut self) -> Answer {
        let id = self.inode()?;
        self.access().reach(id)?;
        Ok(one(id.tree.0))
    }

    fn get_default(&mut self) -> Answer {
        self.access().must_be_privileged()?;
        Ok(one(self.filesystem().default_subvolume_id()?.0))
    }

    fn set_default(&mut self) -> Answer {
        let id = self.tree()?;
        self.access().must_be_privileged()?;
        if !id.is_subvolume() {
            return Err(Refusal::new(Errno::ENOENT.0, "there is no such subvolume"));
        }
        self.filesystem().set_default_subvolume(id)?;
        Ok(one(id.0))
    }

    fn get_readonly(&mut self) -> Answer {
        let id = self.subvolume()?;
        self.access().reach(id)?;
        Ok(one(self.filesystem().subvolume_info(id.tree)?.is_readonly()))
    }

    fn set_readonly(&mut self) -> Answer {
        let id = self.subvolume()?;
        let read_only = self.flag("true", "false")?;
        let attr = self.access().reach(id)?;
        self.access().must_own(&attr)?;
        self.filesystem().set_subvolume_readonly(id.tree, read_only)?;
        Ok(Vec::new())
    }

    fn new_extents(&mut self) -> Answer {
        let id = self.subvolume()?;
        let since = Generation(self.number()?);
        self.access().must_be_privileged()?;
        let mut found = Vec::new();
        self.filesystem().new_extents(id.tree, since, &mut |ino, extent| {
            found.push((ino, *extent));
            Ok(())
        })?;
        let mut records = one(self.filesystem().subvolume_info(id.tree)?.generation.0);
        let mut last: Option<(Ino, Vec<u8>)> = None;
        for (ino, extent) in found {
            let path = match last.take() {
                Some((of, path)) if of == ino => path,
                _ => self.first_path(InodeId { tree: id.tree, ino })?,
            };
            records.push(ExtentRecord::of(ino.0, &extent, path.clone()).to_words());
            last = Some((ino, path));
        }
        Ok(records)
    }

    /// An unlinked file that is still open has none.
    fn first_path(&self, id: InodeId) -> Result<Vec<u8>, Refusal> {
        match self.filesystem().inode_paths(id, 1) {
            Ok(mut paths) => Ok(paths.pop().unwrap_or_default()),
            Err(error) if error.is(Errno::ENOENT) => Ok(Vec::new()),
            Err(error) => Err(error.into()),
        }
    }

    fn subvolume_path(&mut self) -> Answer {
        let id = self.tree()?;
        self.access().must_be_privileged()?;
        Ok(vec![vec![self.filesystem().subvolume_path(id)?]])
    }

    fn paths(&mut self) -> Answer {
        let within = self.inode()?;
        let ino = Ino(self.number()?);
        self.access().must_be_privileged()?;
        let found = self.filesystem().inode_paths(InodeId { tree: within.tree, ino }, usize::MAX)?;
        Ok(found.into_iter().map(|path| vec![path]).collect())
    }

    fn users(&mut self) -> Answer {
        let at = Logical(self.number()?);
        let whole = self.flag("whole", "exact")?;
        self.access().must_be_privileged()?;
        let users = self.filesystem().users_of(at, whole)?;
        let words = |numbers: [u64; 3]| numbers.map(|number| number.to_string().into_bytes()).to_vec();
        Ok(users.iter().map(|user| words([user.tree.0, user.ino.0, user.offset])).collect())
    }
}
