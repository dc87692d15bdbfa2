//! Answering a question with the engine.

use super::{Access, Capabilities, Inodes, Peer, ReachedInode, Refused, Sink, records};
use butterfs_control::{
    Ask, DeletedSubvolume, DeviceRecord, ExtentUser, InodePath, InodeRef, NewSince, Nothing, Question, ReadOnly,
    Refusal, SubvolumeId, SubvolumeRecord, question,
};
use butterfs_fs::subvolume::SubvolumeInfo;
use butterfs_fs::subvolume::uuid_tree::UuidKind;
use butterfs_fs::{Caller, Errno, Filesystem, Generation, Ino, InodeId, Logical, TreeId};

/// How many subvolumes, or extents, are in memory at a time.
pub(super) const AT_ONCE: usize = 512;

/// The number of times that others may exchange names under a deletion before it gives up.
const EXCHANGES: usize = 100;

/// The stage of a question.
pub struct Stage<'a> {
    /// The filesystem.
    pub filesystem: &'a Filesystem,
    /// The asker.
    pub peer: &'a Peer,
    /// The inodes that the question names.
    pub inodes: Inodes<'a>,
    /// Told of each directory entry that was made or removed.
    pub changed: &'a dyn Fn(InodeId, &[u8]),
    /// Told of an entry that nobody may follow while what it leads to is filled (true), and when they may again.
    pub closed: &'a dyn Fn(InodeId, &[u8], bool),
}

/// Answers a question; the records go to `sink`, one by one where there can be many.
pub fn perform(stage: &Stage<'_>, question: &Question, sink: Sink<'_>) -> Result<(), Refusal> {
    let answering = Answering(stage);
    if let Inodes::Reached([]) = stage.inodes {
        answering.access().must_be_privileged()?;
    }
    Ok(answer(&answering, question, sink)?)
}

fn answer(answering: &Answering<'_>, question: &Question, sink: Sink<'_>) -> Result<(), Refused> {
    match question {
        Question::CreateSubvolume(question) => one(question, answering.create(question)?, sink),
        Question::Snapshot(question) => one(question, answering.snapshot(question)?, sink),
        Question::DeleteSubvolume(question) => one(question, answering.delete(question)?, sink),
        Question::DeleteSubvolumeById(question) => one(question, answering.delete_by_id(question)?, sink),
        Question::ListSubvolumes(question) => answering.list(&mut each(question, sink)),
        Question::ListDeleted(question) => answering.deleted(&mut each(question, sink)),
        Question::DescribeSubvolume(question) => one(question, answering.describe(question)?, sink),
        Question::DescribeSubvolumeById(question) => one(question, answering.describe_by_id(question)?, sink),
        Question::DescribeSubvolumeByUuid(question) => one(question, answering.describe_by_uuid(question)?, sink),
        Question::ListSnapshots(question) => answering.snapshots(question, &mut each(question, sink)),
        Question::FindSubvolume(question) => one(question, answering.subvolume_of(question)?, sink),
        Question::GetDefault(question) => one(question, answering.get_default()?, sink),
        Question::SetDefault(question) => one(question, answering.set_default(question)?, sink),
        Question::GetReadOnly(question) => one(question, answering.get_read_only(question)?, sink),
        Question::SetReadOnly(question) => none(question, answering.set_read_only(question)),
        Question::FindNew(question) => answering.new_extents(question, &mut each(question, sink)),
        Question::FindSubvolumePath(question) => one(question, answering.subvolume_path(question)?, sink),
        Question::FindPaths(question) => answering.paths(question, &mut each(question, sink)),
        Question::FindPathsById(question) => answering.paths_by_id(question, &mut each(question, sink)),
        Question::FindUsers(question) => answering.users(question, &mut each(question, sink)),
        Question::ListExtents(question) => answering.extents(question, &mut each(question, sink)),
        Question::AskToShare(question) => one(question, answering.may_share(question)?, sink),
        Question::Dedupe(question) => one(question, answering.dedupe(question)?, sink),
        Question::Defragment(question) => one(question, answering.defragment(question)?, sink),
        Question::GetLabel(question) => one(question, answering.get_label(), sink),
        Question::SetLabel(question) => none(question, answering.set_label(question)),
        Question::StoreData(question) => none(question, answering.store_data(question)),
        Question::CountDeviceErrors(question) => answering.device_errors(&mut each(question, sink)),
        Question::SyncAll(question) => none(question, answering.filesystem().sync().map_err(Refused::from)),
        Question::DescribeFilesystem(question) => one(question, answering.filesystem_record()?, sink),
        Question::ListChunks(question) => answering.chunks(&mut each(question, sink)),
        Question::ListMembers(question) => answering.members(&mut each(question, sink)),
        Question::MeasureFile(question) => answering.measure(question, &mut each(question, sink)),
        Question::CountWork(question) => {
            answering.access().must_be_privileged()?;
            one(question, records::work(answering.filesystem()), sink)
        }
        Question::StartScrub(question) => answering.start_scrub(question, &mut each(question, sink)),
        Question::GetScrub(question) => one(question, answering.scrub_state()?, sink),
        Question::CancelScrub(question) => none(question, answering.cancel_scrub(question)),
        Question::LimitScrub(question) => none(question, answering.limit_scrub(question)),
        Question::ResetDeviceErrors(question) => answering.reset_errors(question, &mut each(question, sink)),
        Question::GetHealth(question) => one(question, answering.health()?, sink),
        Question::ListDevices(question) => answering.devices(&mut each(question, sink)),
        Question::ResizeDevice(question) => answering.resize(question, &mut each(question, sink)),
        Question::AddDevice(question) => answering.add_device(question, &mut each(question, sink)),
        Question::RemoveDevice(question) => answering.remove_device(question, &mut each(question, sink)),
        Question::CancelDeviceWork(question) => none(question, answering.cancel_work(question)),
        Question::StartReplace(question) => none(question, answering.start_replace(question)),
        Question::DescribeReplace(question) => one(question, answering.replace_status()?, sink),
        Question::StartBalance(question) => answering.start_balance(question, &mut each(question, sink)),
        Question::ResumeBalance(question) => answering.resume_balance(question, &mut each(question, sink)),
        Question::StopBalance(question) => none(question, answering.stop_balance(question)),
        Question::GetBalance(question) => answering.get_balance(&mut each(question, sink)),
    }
}

/// The answer to a question of this type that is one record.
fn one<Q: Ask>(question: &Q, record: Q::Record, sink: Sink<'_>) -> Result<(), Refused> {
    each(question, sink)(record)
}

/// The answer to a question without records.
fn none<Q: Ask<Record = Nothing>>(_: &Q, outcome: Result<(), Refused>) -> Result<(), Refused> {
    outcome
}

/// Takes the records of a question of this type.
fn each<'s, Q: Ask>(_: &Q, sink: Sink<'s>) -> impl FnMut(Q::Record) -> Result<(), Refused> + use<'s, Q> {
    move |record| Ok(sink(record.into())?)
}

/// Takes records of one type; an error when nobody wants more.
pub(super) type Each<'a, T> = &'a mut dyn FnMut(T) -> Result<(), Refused>;

/// The directory that a question names, which is to be changed by those who may do everything.
pub fn changed_inode_of(stage: &Stage<'_>, directory: InodeRef) -> Result<InodeId, Refusal> {
    let answering = Answering(stage);
    answering.access().must_be_privileged()?;
    Ok(answering.changed(directory)?)
}

/// The subvolume that a question names, for those who may do everything.
pub fn subvolume_of(stage: &Stage<'_>, subvolume: InodeRef) -> Result<TreeId, Refusal> {
    let answering = Answering(stage);
    answering.access().must_be_privileged()?;
    Ok(answering.subvolume(subvolume)?.tree)
}

pub(super) fn must_be_subvolume(id: InodeId) -> Result<InodeId, Refused> {
    if id.ino != Ino::ROOT_DIR || !id.tree.is_subvolume() {
        return Err(Refused::new(Errno::EINVAL.0, "not a subvolume"));
    }
    Ok(id)
}

pub(super) fn malformed() -> Refused {
    Refused::new(Errno::EINVAL.0, "the question makes no sense")
}

/// The top level goes by 0, too.
fn tree(id: u64) -> TreeId {
    if id == 0 { TreeId::FS } else { TreeId(id) }
}

/// A question that is being answered.
pub(super) struct Answering<'a>(&'a Stage<'a>);

impl Answering<'_> {
    pub(super) fn filesystem(&self) -> &Filesystem {
        self.0.filesystem
    }

    pub(super) fn access(&self) -> Access<'_> {
        Access { filesystem: self.0.filesystem, peer: self.0.peer }
    }

    /// The inode behind a descriptor of the question.
    fn reached(&self, index: u8) -> Result<&ReachedInode, Refused> {
        match self.0.inodes {
            Inodes::Reached(all) => all.get(usize::from(index)).ok_or_else(malformed),
            Inodes::Numbered => Err(malformed()),
        }
    }

    pub(super) fn inode(&self, inode: InodeRef) -> Result<InodeId, Refused> {
        match (inode, self.0.inodes) {
            (InodeRef::Descriptor(index), _) => Ok(self.reached(index)?.id),
            (InodeRef::Number { tree, ino }, Inodes::Numbered) => Ok(InodeId { tree: TreeId(tree), ino: Ino(ino) }),
            (InodeRef::Number { .. }, Inodes::Reached(_)) => Err(malformed()),
        }
    }

    /// An inode that is changed, or stands for the filesystem that is.
    pub(super) fn changed(&self, inode: InodeRef) -> Result<InodeId, Refused> {
        if let InodeRef::Descriptor(index) = inode {
            self.reached(index)?.must_be_writable()?;
        }
        self.inode(inode)
    }

    /// An inode that must be the root directory of a subvolume.
    fn subvolume(&self, inode: InodeRef) -> Result<InodeId, Refused> {
        must_be_subvolume(self.inode(inode)?)
    }

    fn create(&self, question: &question::CreateSubvolume) -> Result<SubvolumeId, Refused> {
        let (parent, umask) = (self.changed(question.directory)?, question.umask & 0o777);
        self.access().must_change_entries(parent)?;
        let Peer { uid, gid, .. } = *self.0.peer;
        let caller = Caller { uid, gid, umask, privileged: self.0.peer.has(Capabilities::SET_ID) };
        let id = self.filesystem().create_subvolume(&caller, parent, &question.name)?;
        (self.0.changed)(parent, &question.name);
        Ok(SubvolumeId(id.0))
    }

    fn snapshot(&self, question: &question::Snapshot) -> Result<SubvolumeId, Refused> {
        let question::Snapshot { name, read_only, .. } = question;
        let (source, parent) = (self.subvolume(question.source)?, self.changed(question.directory)?);
        self.access().must_own(&self.filesystem().getattr(source)?)?;
        self.access().must_change_entries(parent)?;
        let id = self.filesystem().snapshot(source.tree, parent, name, *read_only)?;
        (self.0.changed)(parent, name);
        Ok(SubvolumeId(id.0))
    }

    fn delete(&self, question: &question::DeleteSubvolume) -> Result<SubvolumeId, Refused> {
        let (parent, name) = (self.changed(question.directory)?, &question.name);
        let mut attempt = self.delete_found(parent, name);
        for _ in 0..EXCHANGES {
            match &attempt {
                // Somebody has exchanged names: what is there now is looked at.
                Err(Refused(refusal)) if refusal.errno == Errno::ESTALE.0 => attempt = self.delete_found(parent, name),
                _ => break,
            }
        }
        let deleted = attempt?;
        (self.0.changed)(parent, name);
        Ok(SubvolumeId(deleted.0))
    }

    /// Deletes the subvolume whose permissions it has looked at, and no other; `ESTALE` when the name has got another
    /// one meanwhile.
    fn delete_found(&self, parent: InodeId, name: &[u8]) -> Result<TreeId, Refused> {
        self.access().must_search(parent)?;
        let found = self.filesystem().lookup(parent, name)?.id;
        let allowed = self.access().must_delete(parent, found);
        self.filesystem().forget(found, 1);
        allowed?;
        self.filesystem().delete_expected_subvolume(parent, name, found.tree)?;
        Ok(found.tree)
    }

    fn delete_by_id(&self, question: &question::DeleteSubvolumeById) -> Result<SubvolumeId, Refused> {
        self.changed(question.through)?;
        let id = tree(question.id);
        self.access().must_be_privileged()?;
        let (parent, name) = self.filesystem().delete_subvolume_by_id(id)?;
        (self.0.changed)(parent, &name);
        Ok(SubvolumeId(id.0))
    }

    fn list(&self, each: Each<'_, SubvolumeRecord>) -> Result<(), Refused> {
        self.access().must_be_privileged()?;
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
                each(records::subvolume(info, path))?;
            }
            match infos.last() {
                Some(info) if infos.len() == AT_ONCE => at = TreeId(info.id.0 + 1),
                _ => return Ok(()),
            }
        }
    }

    fn device_errors(&self, each: Each<'_, DeviceRecord>) -> Result<(), Refused> {
        self.access().must_be_privileged()?;
        self.filesystem().device_stats().into_iter().map(records::device).try_for_each(each)
    }

    fn deleted(&self, each: Each<'_, DeletedSubvolume>) -> Result<(), Refused> {
        self.access().must_be_privileged()?;
        self.filesystem().deleted_subvolumes()?.into_iter().try_for_each(|id| {
            let generation = self.filesystem().deleted_generation(id)?;
            each(DeletedSubvolume { id: id.0, generation: generation.0 })
        })
    }

    fn describe(&self, question: &question::DescribeSubvolume) -> Result<SubvolumeRecord, Refused> {
        let id = self.subvolume(question.subvolume)?;
        let mut info = self.filesystem().subvolume_info(id.tree)?;
        if self.access().must_be_privileged().is_err() {
            // The path has names of directories that others may not read.
            info.backref = None;
        }
        self.described(&info)
    }

    fn describe_by_id(&self, question: &question::DescribeSubvolumeById) -> Result<SubvolumeRecord, Refused> {
        self.access().must_be_privileged()?;
        self.described(&self.filesystem().subvolume_info(tree(question.id))?)
    }

    fn describe_by_uuid(&self, question: &question::DescribeSubvolumeByUuid) -> Result<SubvolumeRecord, Refused> {
        self.access().must_be_privileged()?;
        let found = self.filesystem().subvolumes_by_uuid(UuidKind::Subvolume, &question.uuid)?;
        let none = || Refused::new(Errno::ENOENT.0, "there is no subvolume with this UUID");
        self.described(&self.filesystem().subvolume_info(*found.first().ok_or_else(none)?)?)
    }

    fn snapshots(&self, question: &question::ListSnapshots, each: Each<'_, InodePath>) -> Result<(), Refused> {
        self.access().must_be_privileged()?;
        let uuid = self.filesystem().subvolume_info(tree(question.of))?.uuid;
        for snapshot in self.filesystem().snapshots_of(&uuid)? {
            match self.filesystem().subvolume_path(snapshot) {
                // It was deleted meanwhile.
                Err(error) if error.is(Errno::ENOENT) => {}
                path => each(InodePath(path?))?,
            }
        }
        Ok(())
    }

    fn described(&self, info: &SubvolumeInfo) -> Result<SubvolumeRecord, Refused> {
        let path = match &info.backref {
            Some((tree, ino, _)) => self.filesystem().directory_path(InodeId { tree: *tree, ino: *ino })?,
            None => Vec::new(),
        };
        Ok(records::subvolume(info, path))
    }

    fn subvolume_of(&self, question: &question::FindSubvolume) -> Result<SubvolumeId, Refused> {
        Ok(SubvolumeId(self.inode(question.inode)?.tree.0))
    }

    fn get_default(&self) -> Result<SubvolumeId, Refused> {
        self.access().must_be_privileged()?;
        Ok(SubvolumeId(self.filesystem().default_subvolume_id()?.0))
    }

    fn set_default(&self, question: &question::SetDefault) -> Result<SubvolumeId, Refused> {
        self.changed(question.through)?;
        let id = tree(question.id);
        self.access().must_be_privileged()?;
        if !id.is_subvolume() {
            return Err(Refused::new(Errno::ENOENT.0, "there is no such subvolume"));
        }
        self.filesystem().set_default_subvolume(id)?;
        Ok(SubvolumeId(id.0))
    }

    fn get_read_only(&self, question: &question::GetReadOnly) -> Result<ReadOnly, Refused> {
        let id = self.subvolume(question.subvolume)?;
        Ok(ReadOnly(self.filesystem().subvolume_info(id.tree)?.is_readonly()))
    }

    fn set_read_only(&self, question: &question::SetReadOnly) -> Result<(), Refused> {
        let id = must_be_subvolume(self.changed(question.subvolume)?)?;
        self.access().must_own(&self.filesystem().getattr(id)?)?;
        Ok(self.filesystem().set_subvolume_readonly(id.tree, question.read_only)?)
    }

    fn new_extents(&self, question: &question::FindNew, each: Each<'_, NewSince>) -> Result<(), Refused> {
        let id = self.subvolume(question.subvolume)?;
        self.access().must_be_privileged()?;
        // What is written while the answer is made is new to the next one.
        self.filesystem().sync()?;
        each(NewSince::UpTo(self.filesystem().subvolume_info(id.tree)?.generation.0))?;
        let mut last: Option<(Ino, Vec<u8>)> = None;
        let mut refused = None;
        let shown = self.filesystem().new_extents(id.tree, Generation(question.since), &mut |ino, extent| {
            let mut tell = || {
                let path = match last.take() {
                    Some((of, path)) if of == ino => path,
                    _ => self.first_path(InodeId { tree: id.tree, ino })?,
                };
                last = Some((ino, path.clone()));
                each(NewSince::Extent(records::new_extent(ino.0, extent, path)))
            };
            tell().map_err(|why| {
                refused = Some(why);
                butterfs_fs::Error::refused(Errno::EINTR, "the answer has ended")
            })
        });
        refused.map_or(Ok(()), Err)?;
        Ok(shown?)
    }

    /// An unlinked file that is still open has none.
    fn first_path(&self, id: InodeId) -> Result<Vec<u8>, Refused> {
        match self.filesystem().inode_paths(id).next() {
            Some(Err(error)) if error.is(Errno::ENOENT) => Ok(Vec::new()),
            Some(path) => Ok(path?),
            None => Ok(Vec::new()),
        }
    }

    fn subvolume_path(&self, question: &question::FindSubvolumePath) -> Result<InodePath, Refused> {
        self.access().must_be_privileged()?;
        Ok(InodePath(self.filesystem().subvolume_path(tree(question.id))?))
    }

    fn paths(&self, question: &question::FindPaths, each: Each<'_, InodePath>) -> Result<(), Refused> {
        let tree = self.inode(question.within)?.tree;
        self.paths_of(InodeId { tree, ino: Ino(question.ino) }, each)
    }

    fn paths_by_id(&self, question: &question::FindPathsById, each: Each<'_, InodePath>) -> Result<(), Refused> {
        self.paths_of(InodeId { tree: tree(question.subvolume), ino: Ino(question.ino) }, each)
    }

    fn paths_of(&self, id: InodeId, each: Each<'_, InodePath>) -> Result<(), Refused> {
        self.access().must_see_all_paths()?;
        let mut paths = self.filesystem().inode_paths(id).peekable();
        if paths.peek().is_none() {
            return Err(Refused::new(Errno::ENOENT.0, "there is no such inode, or it has no name"));
        }
        paths.try_for_each(|path| each(InodePath(path?)))
    }

    fn users(&self, question: &question::FindUsers, each: Each<'_, ExtentUser>) -> Result<(), Refused> {
        self.access().must_be_privileged()?;
        let whole = question.scope == question::UserScope::WholeExtent;
        for user in self.filesystem().users_of(Logical(question.address), whole)? {
            let user = user?;
            each(ExtentUser { subvolume: user.tree.0, ino: user.ino.0, offset: user.offset })?;
        }
        Ok(())
    }
}
