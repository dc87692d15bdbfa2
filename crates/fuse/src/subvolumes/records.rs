//! Values of the engine as records.

use butterfs_control::{
    Compression, DeviceRecord, ExtentKind, FileExtentRecord, NewExtent, Stamp, SubvolumeRecord, WorkCounts,
};
use butterfs_fs::file_extent::{self, FileExtent};
use butterfs_fs::subvolume::SubvolumeInfo;
use butterfs_fs::{Algorithm, DeviceId, DeviceStats, Filesystem};

/// The properties of a subvolume; `directory_path` leads to its entry inside the subvolume that holds it.
pub fn subvolume(info: &SubvolumeInfo, directory_path: Vec<u8>) -> SubvolumeRecord {
    let (parent, directory, name) = match &info.backref {
        Some((tree, ino, name)) => (tree.0, ino.0, name.clone()),
        None => (0, 0, Vec::new()),
    };
    let stamp = |index: usize| Stamp { transid: info.transids[index], seconds: info.times[index].sec };
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
        changed: stamp(0),
        created: stamp(1),
        sent: stamp(2),
        received: stamp(3),
    }
}

fn kind(extent: &FileExtent) -> ExtentKind {
    match extent.kind {
        file_extent::ExtentKind::Inline => ExtentKind::Inline,
        _ if extent.is_hole() => ExtentKind::Hole,
        file_extent::ExtentKind::Regular => ExtentKind::Data,
        file_extent::ExtentKind::Prealloc => ExtentKind::Preallocated,
    }
}

/// An extent that is new, of a file with a path.
pub fn new_extent(ino: u64, extent: &FileExtent, path: Vec<u8>) -> NewExtent {
    let kind = kind(extent);
    let inline = kind == ExtentKind::Inline;
    NewExtent {
        ino,
        start: extent.start,
        len: if inline { extent.ram_bytes } else { extent.len },
        address: if inline { 0 } else { extent.at.0 },
        offset: if inline { 0 } else { extent.offset },
        generation: extent.generation,
        kind,
        compressed: extent.compression != 0,
        path,
    }
}

/// An extent of a file.
pub fn file_extent(extent: &FileExtent, shared: bool) -> FileExtentRecord {
    let compression = Algorithm::from_raw(extent.compression).map(|algorithm| match algorithm {
        Algorithm::Zlib => Compression::Zlib,
        Algorithm::Lzo => Compression::Lzo,
        Algorithm::Zstd => Compression::Zstd,
    });
    FileExtentRecord {
        start: extent.start,
        len: extent.len,
        address: extent.at.0,
        disk_len: extent.disk_len,
        ram_bytes: extent.ram_bytes,
        offset: extent.offset,
        generation: extent.generation,
        kind: kind(extent),
        compression,
        shared,
    }
}

/// The error counters of a device.
pub fn device((id, name, stats): (DeviceId, String, DeviceStats)) -> DeviceRecord {
    let DeviceStats { write_errors, read_errors, flush_errors, corruption_errors, generation_errors } = stats;
    let id = id.0;
    DeviceRecord { id, name, write_errors, read_errors, flush_errors, corruption_errors, generation_errors }
}

/// Counters of the engine's work.
pub fn work(filesystem: &Filesystem) -> WorkCounts {
    let (work, (longest_stop_steps, longest_stop_reads)) = (filesystem.work(), filesystem.take_longest_stop());
    WorkCounts { nodes: work.nodes, items: work.items, reads: work.reads, longest_stop_steps, longest_stop_reads }
}
