//! Internal to butterfs: this crate promises no stability. Depend on the crate `butterfs` instead.
//!
//! The checker: reads a whole filesystem that nobody is writing, and says what is wrong with it. It changes nothing.
//!
//! It shares no code with the engine above `tree`: what it believes about space, references and names it derives again
//! from the bytes. Everything that it can find is in one table ([`finding::TABLE`]).
//!
//! # Passes
//! 1. superblocks, chunk tree, root tree
//! 2. extent tree (what is in use), devices, block groups
//! 3. free space tree, or version 1 space cache
//! 4. all other trees: every block in every copy, and the inodes of each live subvolume
//! 5. checksums, and the data if asked
//! 6. names of subvolumes, UUID tree, log trees
//! 7. the references that the trees make against those in the extent tree
//!
//! # Memory
//! Bounded by [`Options::cache_bytes`] for blocks above the leaves, twice (the blocks, and what is known of shared
//! ones); 16 bytes for each fragment of used space, of free space and of checksummed data; 8 bytes for each shared tree
//! block, and 1 bit for each of its sectors. References and names are compared by sums of hashes. Only where a sum is
//! wrong are they collected: [`Options::reference_budget`] records of 56 bytes at a time, window by window of logical
//! addresses, each of which reads the trees again, and 40 bytes for each tree block; and in a subvolume whose names are
//! damaged, 8 bytes for each name.
//!
//! # Invariants
//! 1. Bytes from disk never make it panic or go on forever: blocks are verified before they are looked at, levels fall
//!    and keys ascend on every walk.
//! 2. Where blocks are missing, what would follow only from their absence (unused extents, missing references) is not
//!    reported; a note says that it was not compared.
//!
//! # Not here
//! Repair. Quotas are not checked; a note says so.

#![forbid(unsafe_code)]

mod block_set;
mod csums;
mod extents;
pub mod finding;
mod fold;
mod free_space;
mod inodes;
mod ledger;
mod logs;
mod mix;
mod names;
mod packing;
mod references;
mod roots;
mod session;
mod space;
mod space_cache;
mod superblocks;
mod trees;
mod walk;

pub use finding::{Finding, FindingInfo, Severity, TABLE, Tree, Value};
pub use names::is_possible_name;
pub use session::MAX_FINDINGS;

use butterfs_device::BlockDevice;
use butterfs_ondisk::features::compat_ro;
use butterfs_ondisk::key::objectid;
use butterfs_ondisk::{Admission, DeviceId, KeyType, TreeId, admission};
use butterfs_tree::NodePtr;
use butterfs_volume::Volume;
use extents::ExtentScan;
use inodes::Inodes;
use logs::Logs;
use references::References;
use roots::{Name, Root, Roots};
use session::{Session, Sink};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use trees::Trees;
use walk::DropPoint;

/// The scope of a check, and its limits.
#[derive(Clone, Debug)]
pub struct Options {
    /// Read all data and compare it with its checksums.
    pub check_data: bool,
    /// Which superblock copy to believe; 0 is the first one.
    pub super_copy: usize,
    /// References that are held at once, about: 56 bytes each.
    pub reference_budget: usize,
    /// Bytes of tree blocks that are kept for the next subvolume that shares them.
    pub cache_bytes: u64,
    /// Threads that read at the same time.
    pub threads: usize,
    /// Of the hashes by which both sides of a relation are compared; a secret one where content may have been chosen to
    /// deceive.
    pub seed: u64,
}

impl Default for Options {
    fn default() -> Options {
        let threads = std::thread::available_parallelism().map_or(2, usize::from);
        let (reference_budget, cache_bytes) = (4 << 20, 256 << 20);
        Options { check_data: false, super_copy: 0, reference_budget, cache_bytes, threads, seed: 0 }
    }
}

/// The passes, as they are told to the user.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Superblocks, chunk tree, root tree.
    Roots,
    /// Extent tree, devices, block groups.
    Extents,
    /// Free space tree or cache.
    FreeSpace,
    /// All trees, inodes.
    Blocks,
    /// Checksums.
    Checksums,
    /// Names of subvolumes, UUIDs, logs.
    RootReferences,
    /// References.
    References,
}

impl Stage {
    /// All, in order.
    pub const ALL: [Stage; 7] = [
        Stage::Roots,
        Stage::Extents,
        Stage::FreeSpace,
        Stage::Blocks,
        Stage::Checksums,
        Stage::RootReferences,
        Stage::References,
    ];

    /// Its description.
    pub fn title(self) -> &'static str {
        match self {
            Stage::Roots => "checking root items",
            Stage::Extents => "checking extents",
            Stage::FreeSpace => "checking free space",
            Stage::Blocks => "checking fs roots",
            Stage::Checksums => "checking csums",
            Stage::RootReferences => "checking root refs",
            Stage::References => "checking references",
        }
    }
}

/// Told when a stage begins, and from time to time.
#[derive(Clone, Copy, Debug)]
pub struct Progress {
    /// The stage.
    pub stage: Stage,
    /// Tree blocks read so far, in all stages.
    pub blocks: u64,
    /// Bytes of data read so far.
    pub data_bytes: u64,
    /// How much of this stage is done; none where that is not known beforehand.
    pub percent: Option<u8>,
    /// Whether the stage begins now.
    pub begins: bool,
}

/// The verdict.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// The findings, at most [`MAX_FINDINGS`].
    pub findings: Vec<Finding>,
    /// Parts that were not checked, one sentence each.
    pub notes: Vec<String>,
    /// All findings that are errors.
    pub errors: u64,
    /// All findings that are warnings.
    pub warnings: u64,
    /// The filesystem's UUID.
    pub fsid: [u8; 16],
    /// Bytes that its extents use.
    pub bytes_used: u64,
}

impl Report {
    /// Whether there is no error.
    pub fn is_clean(&self) -> bool {
        self.errors == 0
    }
}

/// Checks the filesystem on `devices`, which are all of its devices.
pub fn check(devices: Vec<Arc<dyn BlockDevice>>, options: &Options, progress: &(dyn Fn(Progress) + Sync)) -> Report {
    let mut sink = Sink::default();
    let (volume, sb) = match open(&devices, options, &mut sink) {
        Ok(opened) => opened,
        Err(reason) => {
            sink.add(Finding::CannotOpen { reason });
            return report(sink, [0; 16], 0);
        }
    };
    progress(Progress { stage: Stage::Roots, blocks: 0, data_bytes: 0, percent: None, begins: true });
    for (item, device) in volume.present_devices() {
        // Who asks for another copy knows that the first one is damaged.
        let first = usize::from(options.super_copy != 0);
        superblocks::check_copies(&*device, item.total_bytes.get(), first, &mut sink);
    }
    let volume = if volume.devices().len() > 1 { knowing_stale_devices(volume, sb, options) } else { volume };
    let session = Session::new(volume, sb, sink, options, progress);
    let used = Checker::new(&session).run();
    report(session.into_sink(), sb.fsid, used)
}

fn report(sink: Sink, fsid: [u8; 16], bytes_used: u64) -> Report {
    let Sink { findings, notes, errors, warnings } = sink;
    Report { findings, notes, errors, warnings, fsid, bytes_used }
}

fn open(
    devices: &[Arc<dyn BlockDevice>],
    options: &Options,
    sink: &mut Sink,
) -> Result<(Volume, butterfs_ondisk::Superblock), String> {
    let mut opened: Vec<Arc<dyn BlockDevice>> = Vec::new();
    for device in devices {
        // Read-only: reading must not repair anything while we look.
        let device: Arc<dyn BlockDevice> = match options.super_copy {
            0 => Arc::new(butterfs_device::ReadOnlyDevice::new(device.clone())),
            copy => Arc::new(superblocks::ByCopy::new(device.clone(), copy)?),
        };
        opened.push(device);
    }
    let (volume, sb, notes) = Volume::open(opened).map_err(|error| error.to_string())?;
    sink.notes.extend(notes.lines);
    match admission(&sb) {
        Admission::Refused(reason) => Err(reason),
        Admission::ReadOnly(reason) => {
            sink.notes.push(reason);
            Ok((volume, sb))
        }
        Admission::ReadWrite => Ok((volume, sb)),
    }
}

/// The volume, told which devices the device tree calls stale. That item is found on all devices that can be read
/// first: each mount's first commit writes it anew.
fn knowing_stale_devices(volume: Volume, sb: butterfs_ondisk::Superblock, options: &Options) -> Volume {
    let session = Session::new(volume, sb, Sink::default(), options, &|_| {});
    space::read_chunks(&session);
    let roots = roots::read(&session);
    let mut stale = Vec::new();
    if let Some(root) = roots.get(TreeId::DEV) {
        walk::items(&session, root.ptr(), &mut |key, _| {
            if key.objectid == objectid::STALE_DEVICE && key.kind == KeyType::PERSISTENT_ITEM {
                stale.push(DeviceId(key.offset));
            }
        });
    }
    session.volume.set_stale(&|id| stale.contains(&id));
    session.volume
}

/// The passes and what they hand to each other.
struct Checker<'s, 'a> {
    session: &'s Session<'a>,
    /// No block was missing in any tree so far.
    complete: AtomicBool,
}

impl<'s, 'a> Checker<'s, 'a> {
    fn new(session: &'s Session<'a>) -> Checker<'s, 'a> {
        Checker { session, complete: AtomicBool::new(true) }
    }

    fn expect(&self, complete: bool) {
        self.complete.fetch_and(complete, Ordering::Relaxed);
    }

    /// Runs all passes; returns the bytes in use.
    fn run(&self) -> u64 {
        let session = self.session;
        let devices = space::read_chunks(session);
        let roots = roots::read(session);
        self.expect(roots.complete);
        roots::check_present(session, &roots, &self.needed());

        session.stage(Stage::Extents);
        let mut scan = ExtentScan::default();
        if let Some(root) = roots.get(TreeId::EXTENT) {
            scan = extents::scan(session, root.ptr());
        }
        self.expect(scan.complete);
        // Without the feature nobody looks into that tree.
        let has_group_tree = session.sb.compat_ro_flags.get() & compat_ro::BLOCK_GROUP_TREE != 0;
        if let Some(root) = roots.get(TreeId::BLOCK_GROUP).filter(|_| has_group_tree) {
            scan.complete &= walk::items(session, root.ptr(), &mut |key, data| scan.add_group(key, data));
        }
        if let Some(root) = roots.get(TreeId::DEV) {
            space::check_devices(session, root.ptr(), &devices);
        }
        if roots.get(TreeId::EXTENT).is_some() && scan.complete {
            space::check_groups(session, &scan);
        }
        self.check_free_space(&roots, &scan);
        self.check_trees(&roots, &scan);
        scan.used.bytes_within(0..u64::MAX)
    }

    /// The trees that this filesystem must have.
    fn needed(&self) -> Vec<TreeId> {
        let mut needed = vec![TreeId::EXTENT, TreeId::DEV, TreeId::FS, TreeId::CSUM, TreeId::DATA_RELOC];
        let compat_ro = self.session.sb.compat_ro_flags.get();
        for (bit, tree) in
            [(compat_ro::FREE_SPACE_TREE, TreeId::FREE_SPACE), (compat_ro::BLOCK_GROUP_TREE, TreeId::BLOCK_GROUP)]
        {
            if compat_ro & bit != 0 {
                needed.push(tree);
            }
        }
        needed
    }

    fn check_free_space(&self, roots: &Roots, scan: &ExtentScan) {
        let session = self.session;
        session.stage(Stage::FreeSpace);
        if session.sb.compat_ro_flags.get() & compat_ro::FREE_SPACE_TREE == 0 {
            return space_cache::check(session, scan);
        }
        if let Some(root) = roots.get(TreeId::FREE_SPACE) {
            free_space::check(session, root.ptr(), scan);
        }
    }

    fn check_trees(&self, roots: &Roots, scan: &ExtentScan) {
        let session = self.session;
        let csum_root = roots.get(TreeId::CSUM);
        let checksums = csum_root.map(|root| csums::read(session, root.ptr())).unwrap_or_default();
        session.stage(Stage::Blocks);
        session.expect(scan.blocks);
        let trees = Trees::new(session, scan, &checksums);
        self.expect(trees.read(space::chunk_root(session), None, false).complete);
        self.expect(trees.read(roots::tree_root(session), None, false).complete);
        let mut nameless = Vec::new();
        for root in &roots.trees {
            // A deleted subvolume of which nothing is dropped yet is still whole.
            let has_inodes = root.id.is_subvolume() || root.id == TreeId::DATA_RELOC;
            let whole = has_inodes && root.drop_point().is_none();
            let mut part = trees.read(root.ptr(), root.drop_point(), whole);
            self.expect(part.complete);
            if whole {
                part.value.finish(session, root.id);
                root.check_orphans(session, part.value.orphans.len());
                if part.complete {
                    root.check_stale_orphans(session, &part.value);
                    self.check_names(roots, root, &part.value, &mut nameless);
                }
            }
        }
        session.stage(Stage::Checksums);
        csums::check_extents(session, &checksums, scan);
        if let Some(root) = csum_root.filter(|_| session.options.check_data) {
            session.expect(checksums.covered.bytes_within(0..u64::MAX));
            csums::check_data(session, root.ptr(), scan);
            packing::judge(session, root.ptr());
        }
        session.stage(Stage::RootReferences);
        nameless.sort();
        roots::check_references(session, roots, &nameless);
        if let Some(root) = roots.get(TreeId::UUID) {
            roots::check_uuids(session, root.ptr(), roots);
        }
        Logs::new(session, roots, scan, &checksums).check();
        self.compare(roots, &trees);
    }

    fn check_names(&self, roots: &Roots, root: &Root, found: &Inodes, nameless: &mut Vec<(u64, Name)>) {
        if found.sums.references != found.sums.entries {
            names::explain(self.session, root);
        }
        let mut wanted = roots.names.get(&root.id.get()).cloned().unwrap_or_default();
        found.subvolumes.iter().for_each(|name| {
            wanted.remove(name);
        });
        nameless.extend(wanted.into_iter().map(|name| (root.id.get(), name)));
    }

    /// Compares the references that the trees make with those of the extent tree.
    fn compare(&self, roots: &Roots, trees: &Trees<'_, '_>) {
        let (session, scan) = (self.session, trees.scan);
        session.stage(Stage::References);
        if roots.get(TreeId::QUOTA).is_some() {
            session.note("quota groups are not checked");
        }
        let Some(extent_root) = roots.get(TreeId::EXTENT) else { return };
        if !self.complete.load(Ordering::Relaxed) {
            return session.note("references were not compared, because tree blocks cannot be read");
        }
        let is_dying = |owner| roots.get(TreeId(owner)).is_some_and(Root::is_dead);
        if trees.sums() == scan.sums && !scan.doubtful && trees.unowned.is_balanced(is_dying) {
            return;
        }
        // Which they are: window by window, for each of which the trees are read again.
        let mut start = 0;
        for end in extents::windows(session, extent_root.ptr()) {
            let references = References::new(start..end, session.nodesize());
            self.collect(&space::chunk_root(session), None, scan, &references);
            self.collect(&roots::tree_root(session), None, scan, &references);
            for root in &roots.trees {
                self.collect(&root.ptr(), root.drop_point(), scan, &references);
            }
            extents::compare(session, extent_root.ptr(), roots, references);
            start = end;
        }
    }

    /// Collects the references that a tree makes.
    fn collect(&self, root: &NodePtr, from: Option<DropPoint>, scan: &ExtentScan, references: &References) {
        references.add_root(root.at, root.tree);
        walk::walk(self.session, *root, from, &mut |node, first| references.add(node, first, scan));
    }
}
