//! Questions about the contents of files: where they lie, sharing what is equal, defragmenting; and the label.

use super::perform::{AT_ONCE, Answering, Each, malformed};
use super::{Refused, records};
use butterfs_control::question::{self, MOST_DEDUPED, MOST_DEFRAGMENTED};
use butterfs_control::{
    Comparison, Compression, CompressionMethod, FileExtentRecord, InodeRef, Label, MayShare, Rewritten,
};
use butterfs_fs::file::Defragment;
use butterfs_fs::{Algorithm, DiscardMode, Errno, InodeId, Method};

fn at_most(len: u64, most: u64) -> Result<u64, Refused> {
    let refuse = || Refused::new(Errno::EINVAL.0, format!("one question is about at most {most} bytes"));
    (len <= most).then_some(len).ok_or_else(refuse)
}

fn method(asked: CompressionMethod) -> Method {
    let algorithm = match asked.algorithm {
        Compression::Zlib => Algorithm::Zlib,
        Compression::Lzo => Algorithm::Lzo,
        Compression::Zstd => Algorithm::Zstd,
    };
    Method::new(algorithm, asked.level)
}

impl Answering<'_> {
    fn readable(&self, file: InodeRef) -> Result<InodeId, Refused> {
        let id = self.inode(file)?;
        self.access().must_read(&self.filesystem().getattr(id)?)?;
        Ok(id)
    }

    fn writable(&self, file: InodeRef) -> Result<InodeId, Refused> {
        let id = self.changed(file)?;
        self.access().must_write(&self.filesystem().getattr(id)?)?;
        self.filesystem().check_writable(id, false)?;
        Ok(id)
    }

    /// A file to be stored anew. Its content stays, so that the kernel takes a lack of permission for a lack of
    /// privilege.
    fn rewritable(&self, file: InodeRef) -> Result<InodeId, Refused> {
        let id = self.changed(file)?;
        self.filesystem().check_writable(id, false)?;
        let attr = self.filesystem().getattr(id)?;
        let may = self.access().must_be_privileged().or_else(|_| self.access().must_write(&attr));
        may.map(|()| id).map_err(|refused| match refused.0.errno {
            errno if errno == Errno::EACCES.0 => {
                Refused::new(Errno::EPERM.0, "only those who may write the file may do this")
            }
            _ => refused,
        })
    }

    pub(super) fn extents(
        &self,
        question: &question::ListExtents,
        each: Each<'_, FileExtentRecord>,
    ) -> Result<(), Refused> {
        let id = self.readable(question.file)?;
        let mut at = 0;
        loop {
            let extents = self.filesystem().some_extents(id, at..u64::MAX / 2, AT_ONCE)?;
            for extent in &extents {
                each(records::file_extent(extent, self.filesystem().is_shared(id, extent)?))?;
            }
            match extents.last() {
                Some(extent) if extents.len() == AT_ONCE => at = extent.end(),
                _ => return Ok(()),
            }
        }
    }

    pub(super) fn may_share(&self, question: &question::AskToShare) -> Result<MayShare, Refused> {
        let (source, into) = (self.readable(question.source)?, self.writable(question.into)?);
        Ok(MayShare(self.filesystem().may_share(source, into)?))
    }

    pub(super) fn dedupe(&self, question: &question::Dedupe) -> Result<Comparison, Refused> {
        let source = (self.readable(question.source)?, question.source_start);
        let into = (self.writable(question.into)?, question.into_start);
        let same = self.filesystem().dedupe_range(source, into, at_most(question.len, MOST_DEDUPED)?)?;
        Ok(if same { Comparison::Same } else { Comparison::Differs })
    }

    pub(super) fn defragment(&self, question: &question::Defragment) -> Result<Rewritten, Refused> {
        let id = self.rewritable(question.file)?;
        let end = question.start.saturating_add(at_most(question.len, MOST_DEFRAGMENTED)?);
        let (threshold, compress) = (question.threshold, question.compress.map(method));
        let how = Defragment { range: question.start..end, threshold, compress };
        Ok(Rewritten(self.filesystem().defragment(id, &how)?))
    }

    pub(super) fn get_label(&self) -> Label {
        Label(self.filesystem().superblock().label().to_vec())
    }

    pub(super) fn set_label(&self, question: &question::SetLabel) -> Result<(), Refused> {
        self.changed(question.through)?;
        self.access().must_be_privileged()?;
        Ok(self.filesystem().set_label(&question.label)?)
    }

    pub(super) fn store_data(&self, question: &question::StoreData) -> Result<(), Refused> {
        self.access().must_be_privileged()?;
        let mut policy = self.filesystem().data_policy();
        let mut discard = None;
        for option in &question.options {
            if let Some(mode) = DiscardMode::parse(option) {
                discard = Some(mode);
                continue;
            }
            policy.apply(option).ok_or_else(malformed)?.map_err(|why| Refused::new(Errno::EINVAL.0, why))?;
        }
        self.filesystem().set_data_policy(policy);
        discard.into_iter().for_each(|mode| self.filesystem().set_discard_mode(mode));
        Ok(())
    }
}
