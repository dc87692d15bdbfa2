//! The sources of `butterfs image build`: what `[PATH=]SOURCE` stands for.

use super::build::split;
use super::place::{Place, said};
use crate::error::CliError;
use butterfs_device::BlockDevice;
use butterfs_image::{
    Builder, ComposefsSource, FilesystemSource, FolderSource, Layers, OciSource, StreamSource, TarSource,
    open_container,
};
use std::ffi::OsString;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// The kind of a source.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    Folder,
    Tar,
    Oci,
    OciLayers,
    /// One that is compressed as a whole, which cannot be read.
    CompressedOci,
    Btrfs,
    Send,
    Composefs,
}

/// The words that stand before a path.
const KINDS: &[(&str, Kind)] = &[
    ("dir", Kind::Folder),
    ("tar", Kind::Tar),
    ("oci", Kind::Oci),
    ("oci-layers", Kind::OciLayers),
    ("btrfs", Kind::Btrfs),
    ("send", Kind::Send),
    ("composefs", Kind::Composefs),
];

/// A source, and the folder of the image below which it goes.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Given {
    at: OsString,
    kind: Kind,
    place: String,
    path: PathBuf,
}

/// Adds all sources. Streams at one place that follow each other are one source: they go on from each other.
pub fn add(mut builder: Builder, texts: &[OsString], objects: Option<&Path>) -> Result<Builder, CliError> {
    let given: Vec<Given> = texts.iter().map(parse).collect();
    for group in given.chunk_by(|one, next| one.kind == Kind::Send && next.kind == Kind::Send && one.at == next.at) {
        builder = add_group(builder, group, objects)?;
    }
    Ok(builder)
}

fn add_group(builder: Builder, group: &[Given], objects: Option<&Path>) -> Result<Builder, CliError> {
    let [Given { at, kind, place, path }, ..] = group else { return Ok(builder) };
    let at = at.as_bytes();
    Ok(match kind {
        Kind::Folder => builder.source(at, FolderSource::new(path))?,
        Kind::Tar => builder.source(at, TarSource::open(path)?)?,
        Kind::Oci => builder.source(at, OciSource::new(path, Layers::Flat))?,
        Kind::OciLayers => builder.source(at, OciSource::new(path, Layers::Snapshots))?,
        Kind::CompressedOci => {
            let sentence = format!("{} is an image of a container that is compressed as a whole", path.display());
            let hint = "decompress it first, or say with 'tar:' that it is an archive";
            return Err(CliError::failed(sentence).hint(hint));
        }
        Kind::Btrfs => {
            let place = Place::parse(place);
            let filesystem = place.open(butterfs::Access::ReadOnly)?;
            // A default subvolume would hide the rest.
            let top = filesystem.subvolume_root(butterfs::SubvolumeId::TOP_LEVEL).map_err(said)?;
            builder.source(at, FilesystemSource::new(place.to_string(), top))?
        }
        Kind::Send => builder.source(at, StreamSource::new(group.iter().map(|given| &given.path)))?,
        Kind::Composefs => builder.source(at, ComposefsSource::open(path, objects)?)?,
    })
}

fn parse(text: &OsString) -> Given {
    let (at, source) = match Path::new(text).exists() {
        // A name with an equals sign.
        true => (OsString::new(), text.clone()),
        false => split(text),
    };
    let named = source.to_str().and_then(|text| text.split_once(':')).and_then(|(word, rest)| {
        let (_, kind) = KINDS.iter().find(|(name, _)| *name == word)?;
        Some((*kind, rest.to_owned()))
    });
    match named {
        Some((kind, rest)) => Given { at, kind, path: PathBuf::from(&rest), place: rest },
        None => {
            let path = PathBuf::from(&source);
            Given { at, kind: recognised(&path), place: source.to_string_lossy().into_owned(), path }
        }
    }
}

/// The kind that a source has by its content.
fn recognised(path: &Path) -> Kind {
    if path == Path::new("-") {
        return Kind::Tar;
    }
    if path.as_os_str().as_bytes().starts_with(b"nbd:") {
        return Kind::Btrfs;
    }
    if OciSource::is_at(path) {
        return Kind::Oci;
    }
    if path.is_dir() {
        return Kind::Folder;
    }
    match head(path) {
        Some(head) if StreamSource::begins(&head) => Kind::Send,
        Some(head) if ComposefsSource::begins(&head) => Kind::Composefs,
        _ if is_image(path) => Kind::Btrfs,
        _ if OciSource::is_compressed_at(path) => Kind::CompressedOci,
        _ => Kind::Tar,
    }
}

fn head(path: &Path) -> Option<Vec<u8>> {
    // Nothing is taken out of a pipe.
    let file = std::fs::File::open(path).ok().filter(|_| path.is_file())?;
    let mut head = Vec::new();
    file.take(64).read_to_end(&mut head).ok()?;
    Some(head)
}

/// Whether a file is a btrfs image, also inside of a container. Archives are compressed with zstd too, so that what is
/// must show a filesystem.
fn is_image(path: &Path) -> bool {
    if !path.is_file() {
        return false;
    }
    let is_zstd = || head(path).is_some_and(|head| head.starts_with(&[0x28, 0xb5, 0x2f, 0xfd]));
    match open_container(path) {
        Ok(Some(container)) => !is_zstd() || shows_btrfs(|out, at| container.read_at(at, out)),
        Ok(None) => std::fs::File::open(path).is_ok_and(|file| shows_btrfs(|out, at| file.read_exact_at(out, at))),
        // Opening it as an image says why that cannot be.
        Err(_) => !is_zstd(),
    }
}

fn shows_btrfs(read_at: impl Fn(&mut [u8], u64) -> std::io::Result<()>) -> bool {
    let mut magic = [0; 8];
    read_at(&mut magic, (64 << 10) + 64).is_ok() && magic == *b"_BHRfS_M"
}
