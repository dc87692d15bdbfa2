//! Questions about the contents of files: where they lie, sharing what is equal, defragmenting; and the label.

use super::perform::{AT_ONCE, Asked, malformed, one};
use super::{Answer, Record, Refusal, Sink};
use butterfs_fs::file::Defragment;
use butterfs_fs::file_extent::{ExtentKind, FileExtent};
use butterfs_fs::{Errno, InodeId, Method};

/// An extent of a file, as the question `extents` tells of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileExtentRecord {
    /// Position in the file, bytes of the file, address of the extent, its bytes on disk, uncompressed bytes of the
    /// whole extent, where in it the used part begins, generation.
    pub numbers: [u64; 7],
    /// `inline`, `data`, `hole` or `prealloc`.
    pub kind: String,
    /// `none`, `zlib`, `lzo` or `zstd`.
    pub compression: String,
    /// Whether others may use the same data.
    pub shared: bool,
}

impl FileExtentRecord {
    fn of(extent: &FileExtent, shared: bool) -> FileExtentRecord {
        let kind = match extent.kind {
            ExtentKind::Inline => "inline",
            _ if extent.is_hole() => "hole",
            ExtentKind::Regular => "data",
            ExtentKind::Prealloc => "prealloc",
        };
        let compression = butterfs_fs::Algorithm::from_raw(extent.compression).map_or("none", |known| known.name());
        let FileExtent { start, len, at, disk_len, ram_bytes, offset, generation, .. } = *extent;
        FileExtentRecord {
            numbers: [start, len, at.0, disk_len, ram_bytes, offset, generation],
            kind: kind.to_owned(),
            compression: compression.to_owned(),
            shared,
        }
    }

    fn to_words(&self) -> Record {
        let numbers = self.numbers.iter().map(u64::to_string);
        let words = numbers.chain([self.kind.clone(), self.compression.clone(), self.shared.to_string()]);
        words.map(String::into_bytes).collect()
    }

    /// Reads what `extents` answered.
    pub fn from_words(words: &[Vec<u8>]) -> Option<FileExtentRecord> {
        let text = |index: usize| Some(std::str::from_utf8(words.get(index)?).ok()?.to_owned());
        let mut numbers = [0; 7];
        for (index, number) in numbers.iter_mut().enumerate() {
            *number = text(index)?.parse().ok()?;
        }
        Some(FileExtentRecord { numbers, kind: text(7)?, compression: text(8)?, shared: text(9)?.parse().ok()? })
    }
}

/// Bytes that one question is about, so that work goes on only while somebody asks for more.
pub const MOST_DEDUPED: u64 = 64 << 20;
/// The same for defragmenting.
pub const MOST_DEFRAGMENTED: u64 = 1 << 30;

impl Asked<'_, '_> {
    fn at_most(&mut self, most: u64) -> Result<u64, Refusal> {
        let len = self.number()?;
        let refuse = || Refusal::new(Errno::EINVAL.0, format!("one question is about at most {most} bytes"));
        (len <= most).then_some(len).ok_or_else(refuse)
    }

    fn readable(&mut self) -> Result<InodeId, Refusal> {
        let id = self.inode()?;
        self.access().must_read(&self.filesystem().getattr(id)?)?;
        Ok(id)
    }

    fn writable(&mut self) -> Result<InodeId, Refusal> {
        let id = self.changed()?;
        self.access().must_write(&self.filesystem().getattr(id)?)?;
        self.filesystem().check_writable(id, false)?;
        Ok(id)
    }

    /// A file to be stored anew. Its content stays, so that the kernel takes a lack of permission for a lack of privilege.
    fn rewritable(&mut self) -> Result<InodeId, Refusal> {
        let id = self.changed()?;
        self.filesystem().check_writable(id, false)?;
        let attr = self.filesystem().getattr(id)?;
        let may = self.access().must_be_privileged().or_else(|_| self.access().must_write(&attr));
        may.map(|()| id).map_err(|refusal| match refusal.errno {
            errno if errno == Errno::EACCES.0 => {
                Refusal::new(Errno::EPERM.0, "only those who may write the file may do this")
            }
            _ => refusal,
        })
    }

    pub(super) fn extents(&mut self, sink: Sink<'_>) -> Result<(), Refusal> {
        let id = self.readable()?;
        let mut at = 0;
        loop {
            let extents = self.filesystem().some_extents(id, at..u64::MAX / 2, AT_ONCE)?;
            for extent in &extents {
                let shared = self.filesystem().is_shared(id, extent)?;
                sink(FileExtentRecord::of(extent, shared).to_words())?;
            }
            match extents.last() {
                Some(extent) if extents.len() == AT_ONCE => at = extent.end(),
                _ => return Ok(()),
            }
        }
    }

    pub(super) fn may_clone(&mut self) -> Answer {
        let (source, target) = (self.readable()?, self.writable()?);
        Ok(one(self.filesystem().may_share(source, target)?))
    }

    pub(super) fn dedupe(&mut self) -> Answer {
        let source = (self.readable()?, self.number()?);
        let target = (self.writable()?, self.number()?);
        let len = self.at_most(MOST_DEDUPED)?;
        let same = self.filesystem().dedupe_range(source, target, len)?;
        Ok(one(if same { "same" } else { "differs" }))
    }

    pub(super) fn defragment(&mut self) -> Answer {
        let id = self.rewritable()?;
        let (start, len, threshold) = (self.number()?, self.at_most(MOST_DEFRAGMENTED)?, self.number()?);
        let compress = match self.word()? {
            b"-" => None,
            text => {
                let method = std::str::from_utf8(text).ok().and_then(Method::parse);
                Some(method.ok_or_else(|| Refusal::new(Errno::EINVAL.0, "there is no such compression"))?)
            }
        };
        let how = Defragment { range: start..start.saturating_add(len), threshold, compress };
        Ok(one(self.filesystem().defragment(id, &how)?))
    }

    pub(super) fn get_label(&mut self) -> Answer {
        Ok(vec![vec![self.filesystem().superblock().label().to_vec()]])
    }

    pub(super) fn set_label(&mut self) -> Answer {
        self.changed()?;
        let label = self.word()?.to_vec();
        self.access().must_be_privileged()?;
        self.filesystem().set_label(&label)?;
        Ok(Vec::new())
    }

    pub(super) fn store_data(&mut self) -> Answer {
        self.access().must_be_privileged()?;
        let mut policy = self.filesystem().data_policy();
        while let Ok(option) = self.word() {
            let applied = std::str::from_utf8(option).ok().and_then(|option| policy.apply(option));
            applied.ok_or_else(malformed)?.map_err(|why| Refusal::new(Errno::EINVAL.0, why))?;
        }
        self.filesystem().set_data_policy(policy);
        Ok(Vec::new())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extents_survive() {
        let record = FileExtentRecord {
            numbers: [1, 2, 3, 4, 5, 6, u64::MAX],
            kind: "data".into(),
            compression: "zstd".into(),
            shared: true,
        };
        assert_eq!(FileExtentRecord::from_words(&record.to_words()).as_ref(), Some(&record));
        assert_eq!(FileExtentRecord::from_words(&record.to_words()[..9]), None);
    }
}
