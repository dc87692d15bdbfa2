//! Records with fields, to words and back.

use super::Record;
use butterfs_fs::file_extent::{ExtentKind, FileExtent};
use butterfs_fs::subvolume::SubvolumeInfo;

/// A subvolume and where it is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SubvolumeRecord {
    /// Its id.
    pub id: u64,
    /// The subvolume that holds its entry; 0 for the top level, and when it is deleted.
    pub parent: u64,
    /// The directory there.
    pub directory: u64,
    /// The directory's path inside its subvolume.
    pub directory_path: Vec<u8>,
    /// Its name.
    pub name: Vec<u8>,
    /// Generation of its root node.
    pub generation: u64,
    /// Its root item's flags.
    pub flags: u64,
    /// Its UUID.
    pub uuid: [u8; 16],
    /// The UUID of what it is a snapshot of.
    pub parent_uuid: [u8; 16],
    /// The UUID it was received as.
    pub received_uuid: [u8; 16],
    /// Transactions of the last change, of creation, when sent, when received.
    pub transids: [u64; 4],
    /// Seconds of the same.
    pub times: [i64; 4],
}

impl SubvolumeRecord {
    /// Words in a record.
    const WORDS: usize = 18;

    /// What is known about a subvolume; `directory_path` leads to its entry inside the subvolume that holds it.
    pub fn of(info: &SubvolumeInfo, directory_path: Vec<u8>) -> SubvolumeRecord {
        let (parent, directory, name) = match &info.backref {
            Some((tree, ino, name)) => (tree.0, ino.0, name.clone()),
            None => (0, 0, Vec::new()),
        };
        SubvolumeRecord {
            id: info.id.0,
            parent,
            directory,
            directory_path,
            name,
            generation: info.generation.0,
            flags: info.flags,
            uuid: info.uuid,
            parent_uuid: info.parent_uuid,
            received_uuid: info.received_uuid,
            transids: info.transids,
            times: info.times.map(|time| time.sec),
        }
    }

    /// As words.
    pub fn to_words(&self) -> Record {
        let number = |value: u64| value.to_string().into_bytes();
        let mut words = vec![number(self.id), number(self.parent), number(self.directory)];
        words.extend([self.directory_path.clone(), self.name.clone()]);
        words.extend([number(self.generation), number(self.flags)]);
        words.extend([self.uuid, self.parent_uuid, self.received_uuid].map(|uuid| uuid_text(&uuid).into_bytes()));
        words.extend(self.transids.map(number));
        words.extend(self.times.map(|time| time.to_string().into_bytes()));
        words
    }

    /// From words.
    pub fn from_words(words: &[Vec<u8>]) -> Option<SubvolumeRecord> {
        if words.len() != Self::WORDS {
            return None;
        }
        let text = |index: usize| std::str::from_utf8(&words[index]).ok();
        let number = |index: usize| text(index)?.parse().ok();
        let uuid = |index: usize| uuid_from_text(text(index)?);
        let time = |index: usize| text(index)?.parse().ok();
        Some(SubvolumeRecord {
            id: number(0)?,
            parent: number(1)?,
            directory: number(2)?,
            directory_path: words[3].clone(),
            name: words[4].clone(),
            generation: number(5)?,
            flags: number(6)?,
            uuid: uuid(7)?,
            parent_uuid: uuid(8)?,
            received_uuid: uuid(9)?,
            transids: [number(10)?, number(11)?, number(12)?, number(13)?],
            times: [time(14)?, time(15)?, time(16)?, time(17)?],
        })
    }
}

/// A file extent that is new, and its file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExtentRecord {
    /// Inode number, offset in the file, length there, address on disk, offset in the extent, generation.
    pub numbers: [u64; 6],
    /// How it is stored, as `btrfs subvolume find-new` says it.
    pub flags: String,
    /// A path of the file inside its subvolume.
    pub path: Vec<u8>,
}

impl ExtentRecord {
    /// What is told about an extent.
    pub fn of(ino: u64, extent: &FileExtent, path: Vec<u8>) -> ExtentRecord {
        let inline = extent.kind == ExtentKind::Inline;
        let len = if inline { extent.ram_bytes } else { extent.len };
        let (at, offset) = if inline { (0, 0) } else { (extent.at.0, extent.offset) };
        let kinds = [
            (extent.compression != 0, "COMPRESS"),
            (extent.kind == ExtentKind::Prealloc, "PREALLOC"),
            (inline, "INLINE"),
        ];
        let flags: Vec<&str> = kinds.iter().filter(|(is, _)| *is).map(|(_, name)| *name).collect();
        let flags = if flags.is_empty() { "NONE".to_owned() } else { flags.join("|") };
        ExtentRecord { numbers: [ino, extent.start, len, at, offset, extent.generation], flags, path }
    }

    /// As words.
    pub fn to_words(&self) -> Record {
        let mut words: Record = self.numbers.iter().map(|number| number.to_string().into_bytes()).collect();
        words.extend([self.flags.clone().into_bytes(), self.path.clone()]);
        words
    }

    /// From words.
    pub fn from_words(words: &[Vec<u8>]) -> Option<ExtentRecord> {
        let (numbers, [flags, path]) = words.split_first_chunk::<6>()? else { return None };
        let mut parsed = [0; 6];
        for (value, word) in parsed.iter_mut().zip(numbers) {
            *value = std::str::from_utf8(word).ok()?.parse().ok()?;
        }
        Some(ExtentRecord { numbers: parsed, flags: String::from_utf8(flags.clone()).ok()?, path: path.clone() })
    }
}

/// A UUID as it is written.
pub fn uuid_text(uuid: &[u8; 16]) -> String {
    let hex: String = uuid.iter().map(|byte| format!("{byte:02x}")).collect();
    [&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]].join("-")
}

/// Reads a UUID.
pub fn uuid_from_text(text: &str) -> Option<[u8; 16]> {
    let dashes = [8, 13, 18, 23];
    let placed = text.len() == 36 && text.is_ascii() && dashes.iter().all(|&at| text.as_bytes()[at] == b'-');
    let hex: Vec<u8> = text.bytes().filter(|byte| byte.is_ascii_hexdigit()).collect();
    if !placed || hex.len() != 32 {
        return None;
    }
    let mut uuid = [0; 16];
    for (byte, digits) in uuid.iter_mut().zip(hex.chunks_exact(2)) {
        *byte = u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?;
    }
    Some(uuid)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_survive() {
        let record = SubvolumeRecord {
            id: 300,
            name: b"n \xff".to_vec(),
            uuid: [0xab; 16],
            transids: [1, 2, 3, 4],
            times: [-1, 2, 3, 4],
            ..SubvolumeRecord::default()
        };
        assert_eq!(SubvolumeRecord::from_words(&record.to_words()), Some(record.clone()));
        assert_eq!(SubvolumeRecord::from_words(&record.to_words()[1..]), None);
        let extent = ExtentRecord { numbers: [1, 2, 3, 4, 5, 6], flags: "INLINE".into(), path: b"a/b".to_vec() };
        assert_eq!(ExtentRecord::from_words(&extent.to_words()), Some(extent));
    }

    #[test]
    fn uuids_survive() {
        let uuid = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 255];
        assert_eq!(uuid_text(&uuid), "00010203-0405-0607-0809-0a0b0c0d0eff");
        assert_eq!(uuid_from_text(&uuid_text(&uuid)), Some(uuid));
        for text in ["", "00010203-0405-0607-0809-0a0b0c0d0ef", "0001020304050607-0809-0a0b0c0d0eff--"] {
            assert_eq!(uuid_from_text(text), None);
        }
    }
}
