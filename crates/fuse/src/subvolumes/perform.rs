//! Answering a question with the engine.

use super::records::{ExtentRecord, SubvolumeRecord, uuid_from_text};
use super::{Access, Answer, Capabilities, Peer, Place, Places, Record, Refusal, Sink};
use butterfs_fs::subvolume::SubvolumeInfo;
use butterfs_fs::subvolume::uuid_tree::UuidKind;
use butterfs_fs::{Caller, DeviceId, DeviceStats, Errno, Filesystem, Generation, Ino, InodeId, Logical, TreeId};

/// How many subvolumes, or extents, are in memory at a time.
pub(super) const AT_ONCE: usize = 512;

/// How often others may exchange names under a deletion before it gives up.
const EXCHANGES: usize = 100;

/// Where a question is asked.
pub struct Stage<'a> {
    /// The filesystem.
    pub filesystem: &'a Filesystem,
    /// Who asks.
    pub peer: &'a Peer,
    /// What the words of the question name.
    pub places: Places<'a>,
    /// Told of each directory entry that was made or removed.
    pub changed: &'a dyn Fn(InodeId, &[u8]),
    /// Told of an entry that nobody may follow while what it leads to is filled (true), and when they may again.
    pub closed: &'a dyn Fn(InodeId, &[u8], bool),
}

/// Answers a question; the records go to `sink`, one by one where there can be many.
pub fn perform(stage: &Stage<'_>, question: &[Vec<u8>], sink: Sink<'_>) -> Result<(), Refusal> {
    let Some((verb, words)) = question.split_first() else { return Err(malformed()) };
    let mut asked = Asked { stage, words: words.iter() };
    if let Places::Reached([]) = stage.places {
        asked.access().must_be_privileged()?;
    }
    match verb.as_slice() {
        b"list" => asked.list(sink),
        b"new" => asked.new_extents(sink),
        b"extents" => asked.extents(sink),
        b"users" => asked.users(sink),
        b"paths" => asked.paths(sink),
        b"paths-in" => asked.paths_in(sink),
        b"snapshots-of" => asked.snapshots_of(sink),
        _ => asked.brief(verb)?.into_iter().try_for_each(sink),
    }
}

fn device_record((id, name, stats): &(DeviceId, String, DeviceStats)) -> Record {
    let DeviceStats { write_errors, read_errors, flush_errors, corruption_errors, generation_errors } = *stats;
    let numbers = [write_errors, read_errors, flush_errors, corruption_errors, generation_errors];
    let words = [id.to_string(), name.clone()].into_iter().chain(numbers.iter().map(u64::to_string));
    words.map(String::into_bytes).collect()
}

/// The directory that a word of a question names, which is to be changed by those who may do everything.
pub fn changed_inode_of(stage: &Stage<'_>, word: &[u8]) -> Result<InodeId, Refusal> {
    let words = [word.to_vec()];
    let mut asked = Asked { stage, words: words.iter() };
    asked.access().must_be_privileged()?;
    asked.changed()
}

/// The subvolume that a word of a question names, for those who may do everything.
pub fn subvolume_of(stage: &Stage<'_>, word: &[u8]) -> Result<TreeId, Refusal> {
    let words = [word.to_vec()];
    let mut asked = Asked { stage, words: words.iter() };
    asked.access().must_be_privileged()?;
    asked.subvolume().map(|id| id.tree)
}

pub(super) fn must_be_subvolume(id: InodeId) -> Result<InodeId, Refusal> {
    if id.ino != Ino::ROOT_DIR || !id.tree.is_subvolume() {
        return Err(Refusal::new(Errno::EINVAL.0, "not a subvolume"));
    }
    Ok(id)
}

pub(super) fn malformed() -> Refusal {
    Refusal::new(Errno::EINVAL.0, "the question makes no sense")
}

pub(super) fn one(value: impl ToString) -> Vec<Record> {
    vec![vec![value.to_string().into_bytes()]]
}

/// The place that a word names by its index.
fn reached<'p>(places: &'p [Place], word: &[u8]) -> Result<&'p Place, Refusal> {
    let index = word.strip_prefix(b"@").and_then(|index| std::str::from_utf8(index).ok()?.parse::<usize>().ok());
    index.and_then(|index| places.get(index)).ok_or_else(malformed)
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

    /// Answers a question whose answer is short.
    fn brief(&mut self, verb: &[u8]) -> Answer {
        match verb {
            b"create" => self.create(),
            b"snapshot" => self.snapshot(),
            b"delete" => self.delete(),
            b"delete-id" => self.delete_by_id(),
            b"deleted" => self.deleted(),
            b"info" => self.info(),
            b"info-id" => self.info_by_id(),
            b"info-uuid" => self.info_by_uuid(),
            b"rootid" => self.rootid(),
            b"get-default" => self.get_default(),
            b"set-default" => self.set_default(),
            b"get-readonly" => self.get_readonly(),
            b"set-readonly" => self.set_readonly(),
            b"subvolume-path" => self.subvolume_path(),
            b"store-data" => self.store_data(),
            b"may-clone" => self.may_clone(),
            b"dedupe" => self.dedupe(),
            b"defragment" => self.defragment(),
            b"get-label" => self.get_label(),
            b"set-label" => self.set_label(),
            b"device-stats" => self.device_stats(),
            b"sync" => self.filesystem().sync().map(|()| Vec::new()).map_err(Refusal::from),
            b"work" => self.work(),
            _ => Err(malformed()),
        }
    }

    fn work(&self) -> Answer {
        self.access().must_be_privileged()?;
        let (work, (steps, reads)) = (self.filesystem().work(), self.filesystem().take_longest_stop());
        let numbers = [work.nodes, work.items, work.reads, steps, reads];
        Ok(vec![numbers.iter().map(|number| number.to_string().into_bytes()).collect()])
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
        let places = self.stage.places;
        let word = self.word()?;
        let number = |text: &str| text.parse::<u64>().map_err(|_| malformed());
        match places {
            Places::Reached(places) => reached(places, word).map(|place| place.id),
            Places::Numbered => {
                let text = std::str::from_utf8(word).map_err(|_| malformed())?;
                let (tree, ino) = text.split_once(':').ok_or_else(malformed)?;
                Ok(InodeId { tree: TreeId(number(tree)?), ino: Ino(number(ino)?) })
            }
        }
    }

    /// An inode that is changed, or stands for the filesystem that is.
    pub(super) fn changed(&mut self) -> Result<InodeId, Refusal> {
        if let (Places::Reached(places), Some(word)) = (self.stage.places, self.words.as_slice().first()) {
            reached(places, word)?.must_be_writable()?;
        }
        self.inode()
    }

    /// An inode that must be the root directory of a subvolume.
    fn subvolume(&mut self) -> Result<InodeId, Refusal> {
        let id = self.inode()?;
        must_be_subvolume(id)
    }

    fn create(&mut self) -> Answer {
        let parent = self.changed()?;
        let umask = self.number()? as u32 & 0o777;
        let name = self.word()?.to_vec();
        self.access().must_change_entries(parent)?;
        let Peer { uid, gid, .. } = *self.stage.peer;
        let caller = Caller { uid, gid, umask, privileged: self.stage.peer.has(Capabilities::SET_ID) };
        let id = self.filesystem().create_subvolume(&caller, parent, &name)?;
        (self.stage.changed)(parent, &name);
        Ok(one(id.0))
    }

    fn snapshot(&mut self) -> Answer {
        let source = self.subvolume()?;
        let parent = self.changed()?;
        let name = self.word()?.to_vec();
        let read_only = self.flag("ro", "rw")?;
        self.access().must_own(&self.filesystem().getattr(source)?)?;
        self.access().must_change_entries(parent)?;
        let id = self.filesystem().snapshot(source.tree, parent, &name, read_only)?;
        (self.stage.changed)(parent, &name);
        Ok(one(id.0))
    }

    fn delete(&mut self) -> Answer {
        let parent = self.changed()?;
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
        self.access().must_search(parent)?;
        let found = self.filesystem().lookup(parent, name)?.id;
        let allowed = self.access().must_delete(parent, found);
        self.filesystem().forget(found, 1);
        allowed?;
        self.filesystem().delete_expected_subvolume(parent, name, found.tree)?;
        Ok(found.tree)
    }

    fn delete_by_id(&mut self) -> Answer {
        self.changed()?;
        let id = self.tree()?;
        self.access().must_be_privileged()?;
        let (parent, name) = self.filesystem().delete_subvolume_by_id(id)?;
        (self.stage.changed)(parent, &name);
        Ok(one(id.0))
    }

    fn list(&mut self, sink: Sink<'_>) -> Result<(), Refusal> {
        let id = self.inode()?;
        self.access().must_be_privileged()?;
        one(id.tree.0).into_iter().try_for_each(&mut *sink)?;
        // Many lie in one directory.
        let mut last: Option<(InodeId, Vec<u8>)> = None;
        let mut at = TreeId::FS;
        loop {
            let infos = self.filesystem().some_subvolumes(at, AT_ONCE)?;
            for info in &infos {
                let path = match &info.backref {
                    Some((tree, ino, _)) => {
                        let directory = InodeId { tree: *tree, ino: *ino };
                        let path = match last.take().filter(|(of, _)| *of == directory) {
                            Some((_, path)) => path,
                            None => match self.filesystem().directory_path(directory) {
                                // Deleted meanwhile.
                                Err(error) if error.is(Errno::ENOENT) => continue,
                                path => path?,
                            },
                        };
                        last = Some((directory, path.clone()));
                        path
                    }
                    None => Vec::new(),
                };
                sink(SubvolumeRecord::of(info, path).to_words())?;
            }
            match infos.last() {
                Some(info) if infos.len() == AT_ONCE => at = TreeId(info.id.0 + 1),
                _ => return Ok(()),
            }
        }
    }

    fn device_stats(&self) -> Answer {
        self.access().must_be_privileged()?;
        Ok(self.filesystem().device_stats().iter().map(device_record).collect())
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
        let mut info = self.filesystem().subvolume_info(id.tree)?;
        if self.access().must_be_privileged().is_err() {
            // The path has names of directories that others may not read.
            info.backref = None;
        }
        self.described(&info)
    }

    fn info_by_id(&mut self) -> Answer {
        let id = self.tree()?;
        self.access().must_be_privileged()?;
        self.described(&self.filesystem().subvolume_info(id)?)
    }

    fn info_by_uuid(&mut self) -> Answer {
        let uuid = std::str::from_utf8(self.word()?).ok().and_then(uuid_from_text).ok_or_else(malformed)?;
        self.access().must_be_privileged()?;
        let found = self.filesystem().subvolumes_by_uuid(UuidKind::Subvolume, &uuid)?;
        let none = || Refusal::new(Errno::ENOENT.0, "there is no subvolume with this UUID");
        self.described(&self.filesystem().subvolume_info(*found.first().ok_or_else(none)?)?)
    }

    /// The path of a subvolume from the top level, then those of its snapshots.
    fn snapshots_of(&mut self, sink: Sink<'_>) -> Result<(), Refusal> {
        let id = self.tree()?;
        self.access().must_be_privileged()?;
        let uuid = self.filesystem().subvolume_info(id)?.uuid;
        sink(vec![self.filesystem().subvolume_path(id)?])?;
        for snapshot in self.filesystem().snapshots_of(&uuid)? {
            match self.filesystem().subvolume_path(snapshot) {
                // It was deleted meanwhile.
                Err(error) if error.is(Errno::ENOENT) => {}
                path => sink(vec![path?])?,
            }
        }
        Ok(())
    }

    fn described(&self, info: &SubvolumeInfo) -> Answer {
        let path = match &info.backref {
            Some((tree, ino, _)) => self.filesystem().directory_path(InodeId { tree: *tree, ino: *ino })?,
            None => Vec::new(),
        };
        Ok(vec![SubvolumeRecord::of(info, path).to_words()])
    }

    fn rootid(&mut self) -> Answer {
        let id = self.inode()?;
        Ok(one(id.tree.0))
    }

    fn get_default(&mut self) -> Answer {
        self.access().must_be_privileged()?;
        Ok(one(self.filesystem().default_subvolume_id()?.0))
    }

    fn set_default(&mut self) -> Answer {
        self.changed()?;
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
        Ok(one(self.filesystem().subvolume_info(id.tree)?.is_readonly()))
    }

    fn set_readonly(&mut self) -> Answer {
        let id = must_be_subvolume(self.changed()?)?;
        let read_only = self.flag("true", "false")?;
        self.access().must_own(&self.filesystem().getattr(id)?)?;
        self.filesystem().set_subvolume_readonly(id.tree, read_only)?;
        Ok(Vec::new())
    }

    fn new_extents(&mut self, sink: Sink<'_>) -> Result<(), Refusal> {
        let id = self.subvolume()?;
        let since = Generation(self.number()?);
        self.access().must_be_privileged()?;
        // What is written while the answer is made is new to the next one.
        self.filesystem().sync()?;
        one(self.filesystem().subvolume_info(id.tree)?.generation.0).into_iter().try_for_each(&mut *sink)?;
        let mut last: Option<(Ino, Vec<u8>)> = None;
        let mut refusal = None;
        let shown = self.filesystem().new_extents(id.tree, since, &mut |ino, extent| {
            let mut tell = || {
                let path = match last.take() {
                    Some((of, path)) if of == ino => path,
                    _ => self.first_path(InodeId { tree: id.tree, ino })?,
                };
                last = Some((ino, path.clone()));
                sink(ExtentRecord::of(ino.0, extent, path).to_words())
            };
            tell().map_err(|why| {
                refusal = Some(why);
                butterfs_fs::Error::refused(Errno::EINTR, "the answer has ended")
            })
        });
        refusal.map_or(Ok(()), Err)?;
        Ok(shown?)
    }

    /// An unlinked file that is still open has none.
    fn first_path(&self, id: InodeId) -> Result<Vec<u8>, Refusal> {
        match self.filesystem().inode_paths(id).next() {
            Some(Err(error)) if error.is(Errno::ENOENT) => Ok(Vec::new()),
            Some(path) => Ok(path?),
            None => Ok(Vec::new()),
        }
    }

    fn subvolume_path(&mut self) -> Answer {
        let id = self.tree()?;
        self.access().must_be_privileged()?;
        Ok(vec![vec![self.filesystem().subvolume_path(id)?]])
    }

    fn paths(&mut self, sink: Sink<'_>) -> Result<(), Refusal> {
        let within = self.inode()?;
        self.paths_of(within.tree, sink)
    }

    fn paths_in(&mut self, sink: Sink<'_>) -> Result<(), Refusal> {
        let tree = self.tree()?;
        self.paths_of(tree, sink)
    }

    fn paths_of(&mut self, tree: TreeId, sink: Sink<'_>) -> Result<(), Refusal> {
        let ino = Ino(self.number()?);
        self.access().must_see_all_paths()?;
        let mut paths = self.filesystem().inode_paths(InodeId { tree, ino }).peekable();
        if paths.peek().is_none() {
            return Err(Refusal::new(Errno::ENOENT.0, "there is no such inode, or it has no name"));
        }
        paths.try_for_each(|path| sink(vec![path?]))
    }

    fn users(&mut self, sink: Sink<'_>) -> Result<(), Refusal> {
        let at = Logical(self.number()?);
        let whole = self.flag("whole", "exact")?;
        self.access().must_be_privileged()?;
        let words = |numbers: [u64; 3]| numbers.map(|number| number.to_string().into_bytes()).to_vec();
        for user in self.filesystem().users_of(at, whole)? {
            let user = user?;
            sink(words([user.tree.0, user.ino.0, user.offset]))?;
        }
        Ok(())
    }
}
