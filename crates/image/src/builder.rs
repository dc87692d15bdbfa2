//! The description of an image, and making it: sources into a tree, the tree into chunks, trees and a superblock.

use crate::assembly::{Assembly, Policy, Snapshot};
use crate::blocks::{Fill, Items};
use crate::compressed;
use crate::data::{Data, Room};
use crate::entry::{Sent, Time};
use crate::error::{Error, ErrorKind, Result, shown};
use crate::output::ImageFile;
use crate::owners::Owners;
use crate::path::{components, joined};
use crate::plan::{Plan, Slack, SubvolumeRoot, Total, data_start};
use crate::pool::{Encoding, MAX_INLINE};
use crate::reflink::SharingFile;
use crate::rules::{Rule, Rules};
use crate::seed::Seed;
use crate::source::Source;
use crate::spool::Spool;
use crate::subvolumes::{Context, Numbered, longest};
use crate::tree::{Body, IMPLIED, Id, ROOT, Replace, Tree};
use butterfs_device::BlockDevice;
use butterfs_fs::mkfs::{FilesystemSpec, MemberDevice, MkfsOptions, MkfsReport, Settings, usable_metadata};
use butterfs_ondisk::features::incompat;
use butterfs_ondisk::{DeviceId, TreeId};
use butterfs_volume::Volume;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A folder that is going to be a subvolume.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Subvolume {
    path: Vec<u8>,
    is_read_only: bool,
    origin: Origin,
    /// The subvolume that it is a copy of.
    sent: Option<Sent>,
}

/// The origin of a subvolume's content.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Origin {
    /// The sources.
    Sources,
    /// The subvolume or folder at this path.
    SnapshotOf(Vec<u8>),
    /// A copy that a source has made, after an earlier one.
    Copied(Option<Vec<u8>>),
}

/// How large an image becomes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Size {
    /// As small as can be while files can still be made after the kernel has mounted it.
    #[default]
    Usable,
    /// As small as can be; only good for reading.
    Minimal,
    /// So many bytes.
    Exactly(u64),
    /// So many bytes, or more where the content needs them.
    AtLeast(u64),
}

/// Bounds for what sources may ask for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Bytes of memory for names and attributes, about.
    pub memory: u64,
    /// Bytes of the image.
    pub size: u64,
}

impl Default for Limits {
    /// 2 GiB of memory, an image of 1 TiB.
    fn default() -> Limits {
        Limits { memory: 2 << 30, size: 1 << 40 }
    }
}

/// A description of the image that was made.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Report {
    /// The filesystem's UUID.
    pub fsid: [u8; 16],
    /// Bytes of the image.
    pub total_bytes: u64,
    /// Files, folders and everything else that has an inode, in all subvolumes.
    pub inodes: u64,
    /// The subvolumes' numbers and paths, without the top level.
    pub subvolumes: Vec<(u64, Vec<u8>)>,
    /// The filesystem, as `mkfs` reports it.
    pub filesystem: MkfsReport,
}

/// See the [module](self). The default is what mkfs.btrfs makes by default, as small as is useful.
#[derive(Default)]
pub struct Builder {
    sources: Vec<(Vec<u8>, Box<dyn Source>)>,
    subvolumes: Vec<Subvolume>,
    default: Option<Vec<u8>>,
    owners: Owners,
    rules: Rules,
    mkfs: MkfsOptions,
    epoch: Option<Time>,
    seed: Option<Vec<u8>>,
    device_uuid: Option<[u8; 16]>,
    threads: Option<usize>,
    size: Size,
    free: u64,
    limits: Limits,
    replace: Replace,
    keep_times: bool,
    form: Form,
    reflink: Reflink,
    /// The folder for a temporary file: that of the image, because a `/tmp` in memory can be too small.
    spool: Option<PathBuf>,
}

/// The form of the file that holds an image.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Form {
    /// The image itself, with holes where nothing is.
    #[default]
    Raw,
    /// Compressed with zstd at this level, in frames that can be read alone (the seekable form).
    Zstd(i32),
}

/// Whether contents share their place on the host with the files that they come from.
#[derive(Default)]
enum Reflink {
    #[default]
    No,
    Wanted,
    /// With this image.
    With(SharingFile),
}

/// Bytes of data that are free in a usable image.
const USABLE_DATA: u64 = 1 << 20;

impl Builder {
    /// An empty image.
    pub fn new() -> Builder {
        Builder::default()
    }

    /// Adds a source below the folder `at`, over what earlier ones have put there.
    pub fn source(mut self, at: impl AsRef<[u8]>, source: impl Source + 'static) -> Result<Builder> {
        self.sources.push((joined(&components(at.as_ref())?), Box::new(source)));
        Ok(self)
    }

    /// Makes the folder at `path` a subvolume; one that no source has is made.
    pub fn subvolume(mut self, path: impl AsRef<[u8]>, is_read_only: bool) -> Result<Builder> {
        let path = joined(&components(path.as_ref())?);
        self.subvolumes.push(Subvolume { path, is_read_only, origin: Origin::Sources, sent: None });
        Ok(self)
    }

    /// Makes a snapshot of the subvolume (or folder) `from` at `to`.
    pub fn snapshot(mut self, from: impl AsRef<[u8]>, to: impl AsRef<[u8]>, is_read_only: bool) -> Result<Builder> {
        let (from, path) = (joined(&components(from.as_ref())?), joined(&components(to.as_ref())?));
        self.subvolumes.push(Subvolume { path, is_read_only, origin: Origin::SnapshotOf(from), sent: None });
        Ok(self)
    }

    /// Makes the subvolume at `path` the one that is mounted where nobody says which.
    pub fn default_subvolume(mut self, path: impl AsRef<[u8]>) -> Result<Builder> {
        let path = joined(&components(path.as_ref())?);
        if self.default.as_ref().is_some_and(|other| *other != path) {
            return Err(Error::new(ErrorKind::Options, "there is one default subvolume, and two were named"));
        }
        self.default = Some(path);
        Ok(self)
    }

    /// Whose everything is.
    pub fn owners(self, owners: Owners) -> Builder {
        Builder { owners, ..self }
    }

    /// Adds a rule for `path` and everything below it; later rules come before earlier ones.
    pub fn rule(mut self, path: impl AsRef<[u8]>, rule: Rule) -> Result<Builder> {
        self.rules.add(path.as_ref(), rule)?;
        Ok(self)
    }

    /// Adds a rule for `path`, in which `*` and `?` stand for themselves, and everything below it.
    pub fn path_rule(mut self, path: impl AsRef<[u8]>, rule: Rule) -> Result<Builder> {
        self.rules.add_path(path.as_ref(), rule)?;
        Ok(self)
    }

    /// Label, UUID, features, checksum, node size and profiles.
    pub fn format(self, mkfs: MkfsOptions) -> Builder {
        Builder { mkfs, ..self }
    }

    /// No time in the image is later than this, in seconds since 1970: `SOURCE_DATE_EPOCH`.
    pub fn epoch(self, seconds: i64) -> Builder {
        Builder { epoch: Some(Time { sec: seconds, nsec: 0 }), ..self }
    }

    /// All UUIDs follow from these bytes. Without them they are random; with an [epoch](Self::epoch) they follow from
    /// the content.
    pub fn seed(self, seed: impl Into<Vec<u8>>) -> Builder {
        Builder { seed: Some(seed.into()), ..self }
    }

    /// The device's UUID.
    pub fn device_uuid(self, uuid: [u8; 16]) -> Builder {
        Builder { device_uuid: Some(uuid), ..self }
    }

    /// Threads that work; the image does not depend on it. The default is what the machine has.
    pub fn threads(self, threads: usize) -> Builder {
        Builder { threads: Some(threads), ..self }
    }

    /// How large the image becomes.
    pub fn size(self, size: Size) -> Builder {
        Builder { size, ..self }
    }

    /// Bytes that are free for new data.
    pub fn free(self, bytes: u64) -> Builder {
        Builder { free: bytes, ..self }
    }

    /// Bounds for what sources may ask for.
    pub fn limits(self, limits: Limits) -> Builder {
        Builder { limits, ..self }
    }

    /// Access, change and birth as the sources have them, where they say so. Without this they are the time of the last
    /// change of the content, because reading changes one, and nothing can set another.
    pub fn keep_times(self) -> Builder {
        Builder { keep_times: true, ..self }
    }

    /// Says whether a later source may replace a folder that is not empty.
    pub fn replace(self, replace: Replace) -> Builder {
        Builder { replace, ..self }
    }

    /// The form of the file at the end.
    pub fn form(self, form: Form) -> Builder {
        Builder { form, ..self }
    }

    /// Contents of folders that are not compressed share their place on the host with the files that they come from.
    /// Both must be on one filesystem that can do that.
    pub fn reflink(self) -> Builder {
        Builder { reflink: Reflink::Wanted, ..self }
    }

    /// Makes the image at `path`. A file that stood there is replaced when the image is complete; anything else that
    /// is there is refused.
    pub fn build(mut self, path: impl AsRef<Path>) -> Result<Report> {
        let file = Arc::new(ImageFile::create(path.as_ref(), self.limits.size)?);
        self.share_with(&file)?;
        let (form, threads) = (self.form, self.thread_count());
        self.spool = Some(file.folder().to_owned());
        let report = self.build_on(file.clone())?;
        match form {
            Form::Raw => file.publish()?,
            Form::Zstd(level) => {
                let out = ImageFile::create(path.as_ref(), u64::MAX)?;
                compressed::write(&file, &out, level, threads)?;
                out.publish()?;
            }
        }
        Ok(report)
    }

    fn share_with(&mut self, file: &ImageFile) -> Result<()> {
        if matches!(self.reflink, Reflink::Wanted) {
            self.reflink = Reflink::With(SharingFile::new(file.file())?);
        }
        Ok(())
    }

    fn thread_count(&self) -> usize {
        self.threads.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, usize::from))
    }

    /// Makes the image in a file that exists, as long as it has to be. Until the end it holds nothing that looks like a
    /// filesystem, but what stood there is gone.
    pub fn build_in_place(mut self, path: impl AsRef<Path>) -> Result<Report> {
        let file = Arc::new(ImageFile::open(path.as_ref(), self.limits.size)?);
        self.share_with(&file)?;
        let report = self.build_on(file.clone())?;
        file.complete()?;
        Ok(report)
    }

    /// Makes the image on a device whose bytes do not matter any more and, apart from what the image uses, are left as
    /// they are.
    pub fn build_on(mut self, device: Arc<dyn BlockDevice>) -> Result<Report> {
        let settings = self.mkfs.settings(1).map_err(|error| Error::new(ErrorKind::Options, error.to_string()))?;
        if settings.data.stripes_per_device > 1 {
            let sentence = format!("an image cannot be built with the data profile {}", settings.data.name);
            return Err(Error::new(ErrorKind::Options, sentence));
        }
        let mut tree = Tree::new(self.limits.memory);
        let mut data = self.data(&settings, device.clone());
        match std::mem::take(&mut self.reflink) {
            Reflink::No => {}
            Reflink::With(image) => data.share_with(image),
            Reflink::Wanted => {
                let sentence = "content can only be shared with a file that is the image as a whole";
                return Err(Error::new(ErrorKind::Options, sentence));
            }
        }
        self.read_sources(&settings, &mut tree, &mut data)?;
        let tops = self.mark_subvolumes(&mut tree)?;
        data.finish()?;
        let epoch = self.epoch.unwrap_or_else(|| newest(&tree));
        self.write(settings, &tree, &data, &tops, epoch, device)
    }

    fn data(&self, settings: &Settings, device: Arc<dyn BlockDevice>) -> Data {
        let end = match self.size {
            Size::Exactly(bytes) => bytes.min(self.limits.size),
            _ => self.limits.size,
        };
        let memory = self.limits.memory;
        let room = Room { start: data_start(settings), end: end.min(device.len()), device, memory };
        let encoding = Encoding { checksum: settings.checksum, max_inline: MAX_INLINE };
        let folder = self.spool.clone().unwrap_or_else(std::env::temp_dir);
        Data::new(room, self.thread_count(), encoding, Spool::new(&folder))
    }

    fn read_sources(&mut self, settings: &Settings, tree: &mut Tree, data: &mut Data) -> Result<()> {
        let (max_target, max_xattr) = longest(settings.nodesize);
        let rules = std::mem::take(&mut self.rules);
        let policy = Policy { epoch: self.epoch, keep_times: self.keep_times, rules, max_xattr, max_target };
        let mut snapshots = Vec::new();
        let mut layer = 0;
        for (base, source) in &mut self.sources {
            let mut assembly = Assembly {
                tree,
                data,
                policy: &policy,
                owners: &self.owners,
                base,
                replace: self.replace,
                layer,
                snapshots: &mut snapshots,
            };
            source.read(&mut assembly).map_err(|error| error.of(&source.name()))?;
            layer = assembly.layer + 1;
        }
        for Snapshot { path, parent, sent } in snapshots {
            self.subvolumes.push(Subvolume { path, is_read_only: true, origin: Origin::Copied(parent), sent });
        }
        Ok(())
    }

    /// Makes subvolumes of folders. Returns the roots of all subvolumes, the top level first, then in the order of
    /// their paths.
    fn mark_subvolumes(&mut self, tree: &mut Tree) -> Result<Vec<Id>> {
        self.subvolumes.sort_by(|one, other| one.path.cmp(&other.path));
        let twice = self.subvolumes.windows(2).find(|pair| pair[0].path == pair[1].path);
        if let Some([one, _]) = twice {
            return Err(Error::new(ErrorKind::Options, format!("the subvolume {} is named twice", shown(&one.path))));
        }
        let mut tops = vec![ROOT];
        for (index, subvolume) in (1..).zip(&self.subvolumes) {
            let names = components(&subvolume.path)?;
            if names.is_empty() {
                return Err(Error::new(ErrorKind::Options, "the top level is a subvolume already"));
            }
            let top = match &subvolume.origin {
                Origin::Sources | Origin::Copied(_) => tree.make_folders(&names, 0)?,
                Origin::SnapshotOf(from) => copy(tree, from, &names)?,
            };
            if let Body::Folder(folder) = &mut tree.get_mut(top).body {
                folder.subvolume = Some(index);
            }
            tops.push(top);
        }
        Ok(tops)
    }

    fn default_index(&self) -> Result<usize> {
        match self.default.as_deref() {
            None | Some(b"") => Ok(0),
            Some(path) => {
                let found = self.subvolumes.iter().position(|subvolume| subvolume.path == path);
                let missing = || Error::new(ErrorKind::Options, format!("the default {} is no subvolume", shown(path)));
                found.map(|index| index + 1).ok_or_else(missing)
            }
        }
    }

    fn write(
        &self,
        mut settings: Settings,
        tree: &Tree,
        data: &Data,
        tops: &[Id],
        epoch: Time,
        device: Arc<dyn BlockDevice>,
    ) -> Result<Report> {
        let id_of = |index: usize| if index == 0 { TreeId::FS } else { TreeId(255 + index as u64) };
        let ids: Vec<TreeId> = (0..tops.len()).map(id_of).collect();
        let keeps = self.subvolumes.iter().any(|it| matches!(it.origin, Origin::Copied(_)));
        let numbered: Vec<Numbered<'_>> =
            tops.iter().zip(&ids).map(|(top, id)| Numbered::new(tree, *id, *top, keeps)).collect::<Result<_>>()?;
        let default = ids[self.default_index()?];
        settings.incompat |= data.incompat();
        settings.incompat |= if default == TreeId::FS { 0 } else { incompat::DEFAULT_SUBVOL };
        let context = Context {
            data,
            roots: &ids,
            epoch,
            nodesize: settings.nodesize,
            no_holes: settings.incompat & incompat::NO_HOLES != 0,
        };
        let seed = self.make_seed(&numbered, context)?;
        let roots = self.roots(&seed, self.is_unchanged(tree));
        let mut references = Vec::new();
        numbered.iter().for_each(|numbered| numbered.references(data, &mut references));
        references.sort_unstable();
        let slack = self.slack(&settings);
        let spec = self.spec(settings, &seed, roots[0].uuid, epoch);
        let sized = Plan { spec, numbered: &numbered, roots: &roots, context, default, references, slack }.size()?;
        let total_bytes = sized.total_bytes();
        if total_bytes > device.len() {
            let sentence = format!("the image needs {total_bytes} bytes, but {} has {}", device.name(), device.len());
            return Err(Error::new(ErrorKind::NoSpace, sentence));
        }
        // Only a file that was made for this image gets another length.
        let _ = device.set_len(total_bytes);
        let name = device.name();
        let volume = Volume::of_devices(vec![(sized.spec().device_items()[0], device)]);
        sized.write(&volume)?;
        Ok(Report {
            fsid: sized.spec().fsid,
            total_bytes,
            inodes: numbered.iter().map(Numbered::len).sum(),
            filesystem: mkfs_report(sized.spec(), name),
            subvolumes: ids
                .iter()
                .skip(1)
                .map(|id| id.0)
                .zip(self.subvolumes.iter().map(|it| it.path.clone()))
                .collect(),
        })
    }

    fn make_seed(&self, numbered: &[Numbered<'_>], context: Context<'_>) -> Result<Seed> {
        Ok(match (&self.seed, self.epoch) {
            (Some(seed), _) => Seed::of(seed),
            (None, None) => Seed::random(),
            (None, Some(_)) => {
                let mut digest = Digest(Seed::hasher());
                numbered.iter().try_for_each(|numbered| numbered.items(context, &mut digest))?;
                Seed::from_hasher(digest.0)
            }
        })
    }

    /// Whether subvolumes have the attributes that their sources have, so that streams can go on from them.
    fn is_unchanged(&self, tree: &Tree) -> bool {
        self.owners == Owners::default() && self.epoch.is_none_or(|epoch| newest(tree) < epoch)
    }

    fn roots(&self, seed: &Seed, is_unchanged: bool) -> Vec<SubvolumeRoot> {
        let uuid = |path: &[u8]| seed.uuid(b"subvolume", path);
        let top = SubvolumeRoot { uuid: uuid(b""), parent_uuid: [0; 16], is_read_only: false, sent: None };
        let root = |subvolume: &Subvolume| {
            let is_subvolume = |path: &&Vec<u8>| path.is_empty() || self.subvolumes.iter().any(|it| it.path == **path);
            let parent = match &subvolume.origin {
                Origin::Sources => None,
                Origin::SnapshotOf(from) => Some(from),
                Origin::Copied(earlier) => earlier.as_ref(),
            };
            let parent = parent.filter(is_subvolume);
            SubvolumeRoot {
                uuid: uuid(&subvolume.path),
                parent_uuid: parent.map_or([0; 16], |path| uuid(path)),
                is_read_only: subvolume.is_read_only,
                sent: subvolume.sent.filter(|_| is_unchanged),
            }
        };
        std::iter::once(top).chain(self.subvolumes.iter().map(root)).collect()
    }

    fn spec(&self, settings: Settings, seed: &Seed, subvolume_uuid: [u8; 16], now: Time) -> FilesystemSpec {
        let device = MemberDevice {
            id: DeviceId(1),
            uuid: self.device_uuid.unwrap_or_else(|| seed.uuid(b"device", b"1")),
            total_bytes: 0,
            name: String::new(),
        };
        FilesystemSpec {
            fsid: self.mkfs.fsid.unwrap_or_else(|| seed.uuid(b"filesystem", &settings.label)),
            chunk_tree_uuid: seed.uuid(b"chunk tree", b""),
            settings,
            subvolume_uuid,
            now,
            devices: vec![device],
            chunks: Vec::new(),
        }
    }

    fn slack(&self, settings: &Settings) -> Slack {
        let usable = usable_metadata(settings.nodesize);
        let sectors = |bytes: u64| bytes / u64::from(settings.sectorsize) * u64::from(settings.sectorsize);
        let slack = Slack { data: self.free, metadata: usable, least_metadata: usable, total: Total::Least };
        match self.size {
            Size::Minimal => Slack { metadata: 0, least_metadata: 0, ..slack },
            Size::Usable => Slack { data: self.free.max(USABLE_DATA), ..slack },
            Size::Exactly(bytes) => Slack { least_metadata: 0, total: Total::Exactly(sectors(bytes)), ..slack },
            Size::AtLeast(bytes) => Slack { total: Total::AtLeast(sectors(bytes)), ..slack },
        }
    }
}

fn mkfs_report(spec: &FilesystemSpec, name: String) -> MkfsReport {
    MkfsReport {
        fsid: spec.fsid,
        label: spec.settings.label.clone(),
        nodesize: spec.settings.nodesize,
        sectorsize: spec.settings.sectorsize,
        total_bytes: spec.total_bytes(),
        chunks: spec.chunks.clone(),
        incompat: spec.settings.incompat,
        compat_ro: spec.settings.compat_ro,
        checksum: spec.settings.checksum,
        devices: vec![(DeviceId(1), spec.total_bytes(), name)],
        warnings: Vec::new(),
    }
}

/// The latest time that a source has given.
fn newest(tree: &Tree) -> Time {
    let times = tree.iter().map(|inode| inode.mtime).filter(|time| *time != IMPLIED);
    times.max().map_or(Time::default(), |time| Time { nsec: 0, ..time })
}

fn copy(tree: &mut Tree, from: &[u8], to: &[&[u8]]) -> Result<Id> {
    let source = tree.find(&components(from)?).filter(|id| tree.get(*id).folder().is_some());
    let source = source.ok_or_else(|| Error::new(ErrorKind::Options, format!("{} is no folder", shown(from))))?;
    if tree.find(to).is_some() {
        let sentence = format!("a snapshot cannot be made at {}, which exists", shown(&joined(to)));
        return Err(Error::new(ErrorKind::Options, sentence));
    }
    tree.copy(source, to)
}

/// Items that are only hashed.
struct Digest(sha2::Sha256);

impl Items for Digest {
    fn item(&mut self, key: butterfs_ondisk::Key, len: usize, fill: &mut Fill<'_>) -> Result<()> {
        use sha2::Digest as _;
        let mut bytes = vec![0; len];
        fill(&mut bytes)?;
        self.0.update(key.objectid.to_le_bytes());
        self.0.update([key.kind.0]);
        self.0.update(key.offset.to_le_bytes());
        self.0.update((len as u64).to_le_bytes());
        self.0.update(&bytes);
        Ok(())
    }
}
