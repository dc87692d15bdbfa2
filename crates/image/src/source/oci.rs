//! Images of containers as a source: an OCI layout, as a folder or in an archive, and what `docker save` writes.
//!
//! # Invariants
//! 1. Every blob is verified by its digest and its size, and every layer by the digest of what it decodes to.
//! 2. The order inside a layer does not matter: what a layer deletes is what earlier layers have.
//! 3. Names of blobs come from digests and from the manifest, and lead nowhere outside of the layout.

use super::Source;
use super::tar::{Archive, Entry, EntryKind, decoded, put};
use crate::assembly::Target;
use crate::entry::Attributes;
use crate::error::{Error, Result};
use serde_json::Value;
use sha2::{Digest, Sha256};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufReader, Read};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::rc::Rc;

/// Most bytes of a document.
const MAX_DOCUMENT: u64 = 4 << 20;
/// Most levels of indexes inside indexes.
const MAX_DEPTH: usize = 4;
/// Most layers of an image.
const MAX_LAYERS: usize = 1000;
const OPAQUE: &[u8] = b".wh..wh..opq";
const WHITEOUT: &[u8] = b".wh.";
/// The mode of a base layer's root, as container engines make it.
const ROOT_MODE: u32 = 0o755;

/// The form that layers take.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Layers {
    /// One tree.
    #[default]
    Flat,
    /// One tree, at `@`, and a read-only snapshot of it after each layer, at `layers/NN-DIGEST`.
    Snapshots,
}

/// An image of a container.
pub struct OciSource {
    path: PathBuf,
    layers: Layers,
    platform: (String, String),
}

impl OciSource {
    /// The image in a layout's folder or archive, for the platform of this machine.
    pub fn new(path: impl Into<PathBuf>, layers: Layers) -> OciSource {
        let architecture = match std::env::consts::ARCH {
            "x86_64" => "amd64",
            "aarch64" => "arm64",
            other => other,
        };
        OciSource { path: path.into(), layers, platform: ("linux".to_owned(), architecture.to_owned()) }
    }

    /// Chooses the image for another platform, such as `linux/arm64`.
    pub fn platform(mut self, platform: &str) -> Result<OciSource> {
        let pair = platform.split_once('/').map(|(os, architecture)| (os.to_owned(), architecture.to_owned()));
        self.platform =
            pair.ok_or_else(|| Error::source(format!("'{platform}' is no platform such as linux/arm64")))?;
        Ok(self)
    }

    /// Whether there is an image of a container at `path`.
    ///
    /// Files of these names are common, so what is in them counts.
    pub fn is_at(path: &Path) -> bool {
        let Ok(layout) = Layout::open(path) else { return false };
        let document = |name: &str| {
            let blob = Blob { name: name.to_owned(), digest: None, size: None };
            layout.has(name).then(|| layout.document(&blob).ok()).flatten()
        };
        let is_index = |document: Value| document.get("manifests").is_some_and(Value::is_array);
        let is_docker = |document: Value| document.pointer("/0/Layers").is_some_and(Value::is_array);
        layout.has("oci-layout") && document("index.json").is_some_and(is_index)
            || document("manifest.json").is_some_and(is_docker)
    }

    /// Whether the first names in a compressed archive at `path` are those of an image of a container.
    pub fn is_compressed_at(path: &Path) -> bool {
        /// Folders come before the first name that says something.
        const NAMES: usize = 4;
        let is_compressed = File::open(path).is_ok_and(|file| is_compressed(&file).unwrap_or(false));
        let file = File::open(path).ok().filter(|_| is_compressed);
        let Some(Ok(reader)) = file.map(|file| decoded(Box::new(BufReader::new(file)))) else { return false };
        let mut archive = Archive::new(reader);
        let mut names = std::iter::from_fn(|| archive.next().ok().flatten()).take(NAMES);
        names.any(|entry| {
            let path = entry.path.strip_prefix(b"./").unwrap_or(&entry.path);
            let first = path.split(|byte| *byte == b'/').next().unwrap_or_default();
            let is_digest = first.len() == 64 && first.iter().all(u8::is_ascii_hexdigit);
            path == b"oci-layout" || path.starts_with(b"blobs/sha256/") || is_digest
        })
    }
}

impl Source for OciSource {
    fn name(&self) -> String {
        self.path.display().to_string()
    }

    fn read(&mut self, into: &mut dyn Target) -> Result<()> {
        let layout = Layout::open(&self.path)?;
        let image = match layout.has("index.json") {
            true => self.by_index(&layout)?,
            false => by_docker(&layout)?,
        };
        let top: &[u8] = if self.layers == Layers::Snapshots { b"@" } else { b"" };
        into.folder(top, Attributes { mode: ROOT_MODE, ..Attributes::default() })?;
        for (number, layer) in image.layers.iter().enumerate() {
            if number > 0 {
                into.next_layer();
            }
            let diff = image.diffs.get(number).map(String::as_str);
            read_layer(&layout, layer, diff, top, into)?;
            if self.layers == Layers::Snapshots {
                let digest = layer.digest.as_deref().or(diff).unwrap_or_default();
                let short: String = digest.trim_start_matches("sha256:").chars().take(12).collect();
                into.snapshot(top, format!("layers/{number:02}-{short}").as_bytes())?;
            }
        }
        Ok(())
    }
}

/// The layers of an image, from the base upwards, and the digests of what they decode to.
struct Image {
    layers: Vec<Blob>,
    diffs: Vec<String>,
}

/// A file of the layout.
struct Blob {
    name: String,
    digest: Option<String>,
    size: Option<u64>,
}

impl OciSource {
    fn by_index(&self, layout: &Layout) -> Result<Image> {
        let mut document = layout.document(&Blob { name: "index.json".to_owned(), digest: None, size: None })?;
        for _ in 0..MAX_DEPTH {
            let Some(manifests) = document.get("manifests").and_then(Value::as_array) else { break };
            let blob = blob_of(self.choose(manifests)?)?;
            document = layout.document(&blob)?;
        }
        let layers = document.get("layers").and_then(Value::as_array);
        let layers = layers.ok_or_else(|| Error::content("the index leads to no manifest with layers"))?;
        let config = document.get("config").ok_or_else(|| Error::content("the manifest has no config"))?;
        image(layers.iter().map(blob_of).collect::<Result<_>>()?, layout.document(&blob_of(config)?)?)
    }

    /// The manifest for the platform, of several; the only one is taken whatever it says.
    fn choose<'a>(&self, manifests: &'a [Value]) -> Result<&'a Value> {
        if let [only] = manifests {
            return Ok(only);
        }
        let text = |manifest: &Value, key: &str| {
            manifest.get("platform").and_then(|platform| platform.get(key)).and_then(Value::as_str).map(str::to_owned)
        };
        let (os, architecture) = &self.platform;
        let fits = |manifest: &&Value| {
            text(manifest, "os").as_ref() == Some(os) && text(manifest, "architecture").as_ref() == Some(architecture)
        };
        let mut fitting = manifests.iter().filter(fits);
        match (fitting.next(), fitting.next()) {
            (Some(one), None) => Ok(one),
            (None, _) => Err(Error::content(format!("the index has no image for {os}/{architecture}"))),
            (Some(_), Some(_)) => Err(Error::content(format!("the index has several images for {os}/{architecture}"))),
        }
    }
}

/// The image of an archive of `docker save` without an index.
fn by_docker(layout: &Layout) -> Result<Image> {
    let plain = |name: &str| Blob { name: name.to_owned(), digest: None, size: None };
    let document = layout.document(&plain("manifest.json"))?;
    let images = document.as_array().map(Vec::as_slice).unwrap_or_default();
    let [only] = images else {
        return Err(Error::content(format!("the archive has {} images, one is needed", images.len())));
    };
    let text =
        |value: &Value| value.as_str().map(plain).ok_or_else(|| Error::content("a name in manifest.json is no text"));
    let layers = only.get("Layers").and_then(Value::as_array);
    let layers = layers.ok_or_else(|| Error::content("manifest.json has no layers"))?;
    let config = only.get("Config").ok_or_else(|| Error::content("manifest.json has no config"))?;
    image(layers.iter().map(text).collect::<Result<_>>()?, layout.document(&text(config)?)?)
}

fn image(layers: Vec<Blob>, config: Value) -> Result<Image> {
    let diffs = config.pointer("/rootfs/diff_ids").and_then(Value::as_array);
    let diffs: Vec<String> = diffs.into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect();
    if layers.len() > MAX_LAYERS {
        return Err(Error::content(format!(
            "the image has {} layers, at most {MAX_LAYERS} are possible",
            layers.len()
        )));
    }
    if diffs.len() != layers.len() {
        let sentence = format!("the manifest has {} layers, the config names {}", layers.len(), diffs.len());
        return Err(Error::content(sentence));
    }
    Ok(Image { layers, diffs })
}

/// The digits of a digest, which must be one of sha256.
fn sha256_of(digest: &str) -> Result<&str> {
    let hex = digest.strip_prefix("sha256:");
    let hex = hex.filter(|hex| hex.len() == 64 && hex.bytes().all(|it| it.is_ascii_hexdigit()));
    hex.ok_or_else(|| Error::content(format!("the digest '{digest}' is none of sha256")))
}

/// The blob that a descriptor names.
fn blob_of(descriptor: &Value) -> Result<Blob> {
    let digest = descriptor.get("digest").and_then(Value::as_str);
    let digest = digest.ok_or_else(|| Error::content("a descriptor has no digest"))?;
    Ok(Blob {
        name: format!("blobs/sha256/{}", sha256_of(digest)?),
        digest: Some(digest.to_owned()),
        size: descriptor.get("size").and_then(Value::as_u64),
    })
}

/// Puts what a layer has over what is there.
fn read_layer(layout: &Layout, blob: &Blob, diff: Option<&str>, top: &[u8], into: &mut dyn Target) -> Result<()> {
    let about = |error: Error| error.of(&blob.name);
    let stored = Hashing::new(layout.open_file(&blob.name).map_err(about)?);
    let stored_sum = stored.sum.clone();
    let content = Hashing::new(decoded(Box::new(BufReader::with_capacity(1 << 18, stored))).map_err(about)?);
    let content_sum = content.sum.clone();
    let mut archive = Archive::new(Box::new(content));
    while let Some(entry) = archive.next().map_err(about)? {
        put_entry(entry, top, &mut archive, into).map_err(about)?;
    }
    archive.drain().map_err(about)?;
    check_sum(&content_sum, diff, None).map_err(about)?;
    check_sum(&stored_sum, blob.digest.as_deref(), blob.size).map_err(about)
}

fn put_entry(mut entry: Entry, top: &[u8], archive: &mut Archive<'_>, into: &mut dyn Target) -> Result<()> {
    let below = |path: &[u8]| if top.is_empty() { path.to_vec() } else { [top, b"/", path].concat() };
    let path = entry.path.clone();
    let slash = path.iter().rposition(|byte| *byte == b'/');
    let (folder, name) = slash.map_or((&b""[..], &path[..]), |at| (&path[..at], &path[at + 1..]));
    if name == OPAQUE {
        return into.make_opaque(&below(folder));
    }
    if let Some(hidden) = name.strip_prefix(WHITEOUT) {
        // Other names of this kind are notes of one storage driver.
        return match hidden {
            _ if hidden.starts_with(WHITEOUT) => Ok(()),
            b"" | b"." | b".." => Err(Error::content(format!("'{}' hides no name", path.escape_ascii()))),
            hidden => into.white_out(&below(&[folder, b"/", hidden].concat())),
        };
    }
    entry.path = below(&path);
    if let EntryKind::HardLink(original) = &mut entry.kind {
        *original = below(original);
    }
    put(entry, archive, into)
}

/// A digest and a length that grow while something is read.
#[derive(Clone, Default)]
struct Sum(Rc<RefCell<(Sha256, u64)>>);

struct Hashing<R> {
    reader: R,
    sum: Sum,
}

impl<R> Hashing<R> {
    fn new(reader: R) -> Hashing<R> {
        Hashing { reader, sum: Sum::default() }
    }
}

impl<R: Read> Read for Hashing<R> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let read = self.reader.read(out)?;
        let mut sum = self.sum.0.borrow_mut();
        sum.0.update(&out[..read]);
        sum.1 += read as u64;
        Ok(read)
    }
}

fn check_sum(sum: &Sum, digest: Option<&str>, size: Option<u64>) -> Result<()> {
    let (hasher, read) = sum.0.borrow().clone();
    let found: String = hasher.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
    let wanted = digest.map(sha256_of).transpose()?;
    if let Some(wanted) = wanted.filter(|it| !it.eq_ignore_ascii_case(&found)) {
        return Err(Error::content(format!("the digest is {found}, but should be {wanted}")));
    }
    match size.filter(|size| *size != read) {
        Some(size) => Err(Error::content(format!("there are {read} bytes, but should be {size}"))),
        None => Ok(()),
    }
}

fn is_compressed(file: &File) -> io::Result<bool> {
    let mut magic = [0; 6];
    let is_long = file.metadata()?.is_file() && file.read_at(&mut magic, 0)? > 4;
    Ok(is_long && [&b"\x1f\x8b"[..], b"\x28\xb5\x2f\xfd", b"\xfd7zXZ"].iter().any(|it| magic.starts_with(it)))
}

/// The files of a layout.
enum Layout {
    Folder(PathBuf),
    /// An archive that is not compressed: where each file begins, and how long it is.
    Archive(File, BTreeMap<String, (u64, u64)>),
}

impl Layout {
    fn open(path: &Path) -> Result<Layout> {
        if path.is_dir() {
            return Ok(Layout::Folder(path.to_owned()));
        }
        let failed = |error: io::Error| Error::source(format!("cannot open {}: {error}", path.display()));
        let file = File::open(path).map_err(failed)?;
        if is_compressed(&file).map_err(failed)? {
            return Err(Error::source("the archive of an image must not be compressed as a whole"));
        }
        let files = index(&file)?;
        Ok(Layout::Archive(file, files))
    }

    fn has(&self, name: &str) -> bool {
        match self {
            Layout::Folder(folder) => folder.join(name).is_file(),
            Layout::Archive(_, files) => files.contains_key(name),
        }
    }

    fn open_file(&self, name: &str) -> Result<Box<dyn Read + '_>> {
        let missing = || Error::source(format!("the layout has no file {name}"));
        match self {
            Layout::Folder(folder) => {
                // Names of docker's manifest are any text.
                crate::path::components(name.as_bytes())?;
                let path = folder.join(name.trim_start_matches('/'));
                // A FIFO would wait for somebody, and a device has no end.
                let flags = rustix::fs::OFlags::NONBLOCK.bits() as i32;
                let file = File::options().read(true).custom_flags(flags).open(&path).map_err(|_| missing())?;
                match file.metadata() {
                    Ok(metadata) if metadata.is_file() => Ok(Box::new(file)),
                    _ => Err(Error::source("it is no regular file")),
                }
            }
            Layout::Archive(file, files) => {
                let (at, len) = *files.get(name.trim_start_matches("./")).ok_or_else(missing)?;
                Ok(Box::new(Part { file, at, end: at + len }))
            }
        }
    }

    fn document(&self, blob: &Blob) -> Result<Value> {
        let about = |error: Error| error.of(&blob.name);
        let mut reader = Hashing::new(self.open_file(&blob.name)?.take(MAX_DOCUMENT + 1));
        let mut bytes = Vec::new();
        reader.read_to_end(&mut bytes).map_err(|error| Error::source(format!("cannot read {}: {error}", blob.name)))?;
        if bytes.len() as u64 > MAX_DOCUMENT {
            return Err(about(Error::content(format!("it has more than {MAX_DOCUMENT} bytes"))));
        }
        check_sum(&reader.sum, blob.digest.as_deref(), blob.size).map_err(about)?;
        serde_json::from_slice(&bytes).map_err(|error| about(Error::content(format!("it is no JSON: {error}"))))
    }
}

/// A part of a file.
struct Part<'a> {
    file: &'a File,
    at: u64,
    end: u64,
}

impl Read for Part<'_> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let wanted = out.len().min(usize::try_from(self.end - self.at).unwrap_or(usize::MAX));
        let read = self.file.read_at(&mut out[..wanted], self.at)?;
        self.at += read as u64;
        Ok(read)
    }
}

/// The files of an archive, by name: where each begins, and how long it is.
fn index(file: &File) -> Result<BTreeMap<String, (u64, u64)>> {
    /// Most files of a layout.
    const MAX_FILES: usize = 100_000;
    let len = file.metadata().map_or(0, |metadata| metadata.len());
    let mut archive = Archive::seekable(file, len);
    let mut files = BTreeMap::new();
    let mut links = Vec::new();
    while let Some(entry) = archive.next()? {
        let name = String::from_utf8_lossy(&entry.path).trim_start_matches("./").to_owned();
        match entry.kind {
            EntryKind::File { size, .. } => drop(files.insert(name, (archive.position(), size))),
            EntryKind::HardLink(target) => links.push((name, String::from_utf8_lossy(&target).into_owned())),
            EntryKind::Symlink(target) => {
                let folder = name.rsplit_once('/').map_or("", |(folder, _)| folder);
                let target = format!("{folder}/{}", String::from_utf8_lossy(&target));
                links.push((name, target));
            }
            _ => {}
        }
        if files.len() + links.len() > MAX_FILES {
            return Err(Error::content(format!("the archive has more than {MAX_FILES} files")));
        }
    }
    // Equal layers are links to one file in archives of older versions of docker.
    for (name, target) in links {
        if let Some(place) = lexical(&target).and_then(|target| files.get(&target)).copied() {
            files.insert(name, place);
        }
    }
    Ok(files)
}

/// The path without `.` and `..`; `None` if it leads out.
fn lexical(path: &str) -> Option<String> {
    let mut names = Vec::new();
    for name in path.split('/').filter(|name| !matches!(*name, "" | ".")) {
        match name {
            ".." => drop(names.pop()?),
            name => names.push(name),
        }
    }
    Some(names.join("/"))
}
