//! The plan that follows from a seed before anything runs: the format, the sizes, the kind of workload.

use crate::faults::Faults;
use crate::maintenance;
use crate::members::{Aim, Attendance, Given};
use crate::objects::Objects;
use crate::objects::journal::StoreCanary;
use crate::parts;
use crate::split;
use butterfs_device::{BlockDevice, MemoryDevice};
use butterfs_fs::mkfs::{MkfsOptions, mkfs};
use butterfs_fs::options::{Booking, Canary, ParityWrites, Policies};
use butterfs_fs::{AccessTimes, DiscardMode, Env, Options, Subvolume, TreeId};
use butterfs_ondisk::ChecksumKind;
use butterfs_ondisk::profile::Profile;
use butterfs_testkit::rng::Rng;
use butterfs_testkit::workload::Shape;
use std::sync::Arc;

const MIB: u64 = 1 << 20;

/// Everything that is decided about a run before it begins.
#[derive(Clone, Debug)]
#[allow(missing_docs)]
pub struct Plan {
    pub seed: u64,
    pub nodesize: u32,
    pub checksum: ChecksumKind,
    pub features: &'static str,
    pub metadata: &'static str,
    pub data: &'static str,
    /// Devices.
    pub devices: usize,
    /// Bytes of each device.
    pub bytes: u64,
    /// Crashes from which the run goes on, and one more.
    pub lives: usize,
    /// Steps of each life.
    pub steps: usize,
    /// Crash states of each life besides those at flushes.
    pub cuts: usize,
    pub shape: Shape,
    /// Percent of steps that are about subvolumes.
    pub subvolume_percent: u64,
    /// Percent of commits beside which other threads work on.
    pub meanwhile_percent: u64,
    /// Operations may find the disk full.
    pub fills: bool,
    /// An fsync may write a log.
    pub logs: bool,
    /// The faults besides crashes.
    pub faults: Option<Faults>,
    /// Several steps become durable together, or are taken back.
    pub together: bool,
    /// Devices leave, return and fail, and keep data without checksums.
    pub members: bool,
    /// The target of their faults.
    pub aim: Option<Aim>,
    /// Two sides live on without each other.
    pub split: bool,
    /// Chunks move, and devices come and go.
    pub maintenance: bool,
    /// Devices that the filesystem does not have when it is made, the last ones.
    pub spare: usize,
    /// With [`maintenance`](Plan::maintenance): files are written in place and have no checksums.
    pub in_place: bool,
    /// When freed space is discarded. Where it is, free space is trimmed too, and what is discarded reads as garbage.
    pub discard: DiscardMode,
    /// The device is a volume in an object store, with several hosts one after the other.
    pub objects: Option<Objects>,
    pub canary: Option<Canary>,
}

/// Node sizes, small ones more often: they make deep trees of little data.
const NODESIZES: &[u32] = &[4096, 4096, 4096, 16384, 16384, 65536];
const CHECKSUMS: &[ChecksumKind] = &[
    ChecksumKind::Crc32c,
    ChecksumKind::Crc32c,
    ChecksumKind::Crc32c,
    ChecksumKind::Xxhash64,
    ChecksumKind::Sha256,
    ChecksumKind::Blake2b,
];
const FEATURES: &[&str] = &[
    "",
    "",
    "^block-group-tree",
    "^no-holes",
    "mixed-bg",
    "^free-space-tree,^block-group-tree",
    "^skinny-metadata",
    "^no-holes,^extref,^skinny-metadata,^block-group-tree",
];

/// Filesystems on several devices: how many, metadata, data.
const SEVERAL: &[(usize, &str, &str)] = &[
    (2, "raid1", "raid1"),
    (2, "raid1", "single"),
    (2, "dup", "raid0"),
    (3, "raid1", "raid1"),
    (3, "raid1c3", "raid1c3"),
    (4, "raid10", "raid10"),
    (4, "raid1c4", "raid1"),
];

/// Filesystems whose members leave, return and fail: all profiles that survive it, and some that survive less.
const MEMBERS: &[(usize, &str, &str)] = &[
    (2, "raid1", "raid1"),
    (2, "raid1", "raid1"),
    (2, "raid1", "single"),
    (3, "raid1", "raid1"),
    (3, "raid1c3", "raid1"),
    (3, "raid1c3", "raid1c3"),
    (3, "raid1", "raid0"),
    (4, "raid10", "raid10"),
    (4, "raid1c4", "raid1c3"),
    (4, "raid1c4", "raid1c4"),
    (4, "raid1", "raid10"),
    (1, "dup", "single"),
    (1, "single", "single"),
];

/// The same with parity.
const PARITY: &[(usize, &str, &str)] = &[
    (2, "raid5", "raid5"),
    (3, "raid5", "raid5"),
    (3, "raid5", "raid5"),
    (4, "raid5", "raid5"),
    (3, "raid1", "raid5"),
    (3, "raid6", "raid6"),
    (4, "raid6", "raid6"),
    (4, "raid6", "raid6"),
    (4, "raid1c3", "raid6"),
];

/// Those on which a device can fail to take superblocks while fsyncs go on.
const LOGS: &[(usize, &str, &str)] = &[(2, "raid1", "single"), (2, "raid1", "single"), (2, "raid1", "raid1")];

/// Those of which two parts can live without each other.
const SPLIT: &[(usize, &str, &str)] =
    &[(2, "raid1", "raid1"), (2, "raid1", "raid1"), (3, "raid1c3", "raid1c3"), (4, "raid1c4", "raid1c4")];

/// A few dozen inodes and small files, so that a state is checked in milliseconds.
const SHAPE: Shape = Shape {
    inodes_max: 48,
    depth_max: 3,
    data_max: MIB,
    write_max: 48 << 10,
    file_max: 160 << 10,
    xattr_max: 600,
    symlink_max: 100,
    handles_max: 2,
    sync_percent: 7,
    orphans: true,
};

impl Plan {
    /// The plan that follows from `seed`.
    pub fn of(seed: u64) -> Plan {
        let mut rng = Rng::new(seed ^ 0x5eed_0f00_0000_0000);
        let features = *rng.pick(FEATURES);
        let mixed = features.contains("mixed-bg");
        let nodesize = if mixed { 4096 } else { *rng.pick(NODESIZES) };
        let profile = |percent, rng: &mut Rng| if rng.chance(percent) { "dup" } else { "single" };
        let metadata = profile(if mixed { 30 } else { 60 }, &mut rng);
        let data = if mixed { metadata } else { profile(10, &mut rng) };
        let fills = rng.chance(10);
        let mut shape = SHAPE;
        if fills {
            (shape.data_max, shape.write_max, shape.file_max) = (24 * MIB, 2 * MIB, 8 * MIB);
        }
        shape.inodes_max += rng.index(60);
        Plan {
            seed,
            nodesize,
            checksum: *rng.pick(CHECKSUMS),
            features,
            metadata,
            data,
            devices: 1,
            bytes: smallest(nodesize, metadata, data, mixed) + if fills { 0 } else { rng.below(64) * MIB },
            lives: 1 + rng.index(3),
            steps: 30 + rng.index(60),
            cuts: if fills { 6 } else { 24 },
            shape,
            subvolume_percent: *rng.pick(&[0, 3, 8, 15]),
            meanwhile_percent: *rng.pick(&[0, 40, 80]),
            fills,
            logs: rng.chance(50),
            faults: None,
            together: false,
            members: false,
            aim: None,
            split: false,
            maintenance: false,
            spare: 0,
            in_place: false,
            discard: DiscardMode::Off,
            objects: None,
            canary: None,
        }
    }

    /// The plan that follows from `seed`, with discards: on one or several devices, with and without faults, members
    /// that leave and return, and steps that become durable together.
    pub fn with_discards(seed: u64) -> Plan {
        let plan = match seed % 5 {
            0 => Plan::with_faults(seed),
            1 => Plan::with_members(seed),
            2 => Plan::with_together(seed),
            _ => Plan::of(seed),
        };
        let discard = if (seed / 5).is_multiple_of(2) { DiscardMode::Sync } else { DiscardMode::Async };
        Plan { discard, ..plan }
    }

    /// The plan that follows from `seed`, with faults of the device. What those may strike is there more often.
    pub fn with_faults(seed: u64) -> Plan {
        let mut plan = Plan::of(seed);
        let mut rng = Rng::new(seed ^ 0xfa17_0f00_0000_0000);
        plan.never_fills();
        if !plan.features.contains("mixed-bg") {
            plan.metadata = if rng.chance(80) { "dup" } else { "single" };
            plan.data = if rng.chance(40) { "dup" } else { "single" };
        }
        let mixed = plan.features.contains("mixed-bg");
        plan.bytes = smallest(plan.nodesize, plan.metadata, plan.data, mixed) + rng.below(64) * MIB;
        if !mixed && rng.chance(50) {
            let (devices, metadata, data) = *rng.pick(SEVERAL);
            (plan.devices, plan.metadata, plan.data) = (devices, metadata, data);
            plan.bytes = (160 + rng.below(64)) * MIB;
        }
        plan.cuts = 12;
        plan.faults = Some(Faults::of(seed, plan.devices));
        plan
    }

    /// The plan that follows from `seed`, on a volume in an object store.
    pub fn with_objects(seed: u64) -> Plan {
        let mut plan = match seed % 6 {
            0 => Plan::with_together(seed),
            _ => Plan::of(seed),
        };
        plan.never_fills();
        let mut rng = Rng::new(seed ^ 0x0b1e_0f00_0000_0000);
        plan.discard = *rng.pick(&[DiscardMode::Off, DiscardMode::Off, DiscardMode::Sync, DiscardMode::Async]);
        // Small writes that are synced often; the data of others goes into segments.
        plan.shape.sync_percent = *rng.pick(&[7, 15, 25]);
        (plan.steps, plan.cuts, plan.lives) = (15 + rng.index(40), 10, 1 + rng.index(2));
        plan.objects = Some(Objects::of(&mut rng));
        plan
    }

    /// The same, where the store of the volume has a bug on purpose.
    pub fn with_store_canary(self, canary: Option<StoreCanary>) -> Plan {
        Plan { objects: self.objects.map(|objects| Objects { canary, ..objects }), ..self }
    }

    /// No operation finds the disk full.
    fn never_fills(&mut self) {
        self.fills = false;
        self.shape.data_max = self.shape.data_max.min(MIB);
        self.shape.write_max = self.shape.write_max.min(SHAPE.write_max);
        self.shape.file_max = self.shape.file_max.min(SHAPE.file_max);
    }

    /// The device that is away in the first life, and back in the next one: the one that faults strike, where the
    /// profiles survive that.
    fn absent(&self, life: usize) -> Option<usize> {
        let survives = |name: &str| Profile::named(name).is_some_and(|profile| profile.tolerated_failures > 0);
        let leaves = self.devices > 1 && survives(self.metadata) && survives(self.data) && self.seed.is_multiple_of(3);
        self.faults.filter(|_| leaves && life == 0).map(|faults| faults.device)
    }

    /// The plan that follows from `seed`, with members that leave, return and fail.
    pub fn with_members(seed: u64) -> Plan {
        let mut plan = Plan::of(seed);
        let mut rng = Rng::new(seed ^ 0x3e3b_0f00_0000_0000);
        plan.fills = false;
        if plan.features.contains("mixed-bg") {
            plan.features = "";
        }
        (plan.devices, plan.metadata, plan.data) = *rng.pick(MEMBERS);
        plan.bytes = (160 + rng.below(64)) * MIB;
        plan.shape = Shape { inodes_max: plan.shape.inodes_max, ..SHAPE };
        plan.lives = 2 + rng.index(3);
        (plan.steps, plan.cuts) = (20 + rng.index(40), 6);
        plan.members = true;
        plan.aim_at(*rng.pick(&[None, None, None, None, Some(Aim::Logs), Some(Aim::Repair)]), &mut rng);
        plan
    }

    /// The plan that follows from `seed`, with members of RAID5 or RAID6 that leave, return and fail.
    pub fn with_parity(seed: u64) -> Plan {
        let mut plan = Plan::with_members(seed);
        let mut rng = Rng::new(seed ^ 0x9a21_0f00_0000_0000);
        (plan.devices, plan.metadata, plan.data) = *rng.pick(PARITY);
        plan.aim = plan.aim.filter(|aim| *aim == Aim::Logs);
        plan.cuts = 12;
        plan
    }

    /// The plan that follows from `seed`, with work on chunks and devices.
    pub fn with_maintenance(seed: u64) -> Plan {
        let mut plan = Plan::of(seed);
        let mut rng = Rng::new(seed ^ 0x3a1f_0f00_0000_0000);
        plan.fills = false;
        if plan.features.contains("mixed-bg") {
            plan.features = "";
        }
        let (members, spare, metadata, data) = *rng.pick(maintenance::kinds());
        (plan.devices, plan.spare, plan.metadata, plan.data) = (members + spare, spare, metadata, data);
        // No device gets smaller than 256 MiB.
        plan.bytes = (272 + rng.below(80)) * MIB;
        plan.shape = Shape { inodes_max: plan.shape.inodes_max, ..SHAPE };
        plan.lives = 2 + rng.index(2);
        (plan.steps, plan.cuts) = (12 + rng.index(25), 8);
        plan.in_place = data != "dup" && rng.chance(30);
        // What is shared is what relocation can get wrong.
        plan.subvolume_percent = plan.subvolume_percent.max(8);
        if seed.is_multiple_of(3) {
            // Trees of many blocks, which snapshots share.
            plan.nodesize = 4096;
            plan.shape = Shape { inodes_max: 250, xattr_max: 1500, sync_percent: 15, ..plan.shape };
            (plan.steps, plan.subvolume_percent) = (plan.steps + 60, 15);
        }
        plan.maintenance = true;
        plan
    }

    /// The plan that follows from `seed`, in which several steps become durable together, or are taken back.
    pub fn with_together(seed: u64) -> Plan {
        let mut plan = Plan::of(seed);
        (plan.fills, plan.together) = (false, true);
        plan.subvolume_percent = plan.subvolume_percent.max(10);
        plan
    }

    /// Prepares the plan for an aim.
    fn aim_at(&mut self, aim: Option<Aim>, rng: &mut Rng) {
        self.aim = aim;
        let profiles = match aim {
            None => return,
            Some(Aim::Logs) => LOGS,
            Some(Aim::Repair) => SPLIT,
        };
        (self.devices, self.metadata, self.data) = *rng.pick(profiles);
        self.logs |= aim == Some(Aim::Logs);
    }

    /// The plan that follows from `seed`, with two sides that live on without each other.
    pub fn with_split(seed: u64) -> Plan {
        let mut plan = Plan::with_members(seed);
        let mut rng = Rng::new(seed ^ 0x5b11_0f00_0000_0000);
        (plan.devices, plan.metadata, plan.data) = *rng.pick(SPLIT);
        (plan.steps, plan.lives, plan.aim) = (5 + rng.index(25), usize::MAX, None);
        plan.split = true;
        plan
    }

    /// The attendance of the devices in a life.
    pub fn attendance(&self, life: usize) -> Attendance {
        if self.split {
            let whole = Attendance::of(self, life);
            return Attendance {
                given: split::given(self, life),
                troubles: Vec::new(),
                panics_at: whole.panics_at.filter(|_| life == 0),
                ..whole
            };
        }
        if self.members {
            return Attendance::of(self, life);
        }
        if self.maintenance {
            return Attendance::of_maintenance(self, life);
        }
        let away = self.absent(life).into_iter().collect();
        Attendance { given: Given::without(&away), ..Attendance::default() }
    }

    /// Whether the primary superblock may be torn: not where a secondary copy may be bad.
    pub fn tears_superblocks(&self) -> bool {
        self.has_second_superblock() && self.faults.is_none() && !self.members && !self.maintenance
    }

    /// Whether the device has a second superblock.
    pub fn has_second_superblock(&self) -> bool {
        self.bytes >= 64 * MIB + 4096
    }

    /// The devices of a disk, which are written.
    pub fn parts(&self, disk: &Arc<MemoryDevice>) -> Vec<Arc<dyn BlockDevice>> {
        parts::parts(Arc::clone(disk) as Arc<dyn BlockDevice>, self.devices)
    }

    /// An empty filesystem.
    pub fn make(&self, env: &Env) -> MemoryDevice {
        let memory = MemoryDevice::new(self.bytes * self.devices as u64);
        let memory = Arc::new(if self.discard == DiscardMode::Off { memory } else { memory.with_garbage() });
        self.make_on(&self.parts(&memory)[..self.devices - self.spare], env);
        memory.snapshot()
    }

    /// Makes an empty filesystem on devices.
    pub fn make_on(&self, devices: &[Arc<dyn BlockDevice>], env: &Env) {
        let mut options = MkfsOptions {
            nodesize: Some(self.nodesize),
            checksum: self.checksum,
            metadata: Profile::named(self.metadata),
            data: Profile::named(self.data),
            ..MkfsOptions::default()
        };
        options.features.apply(self.features).expect("known features");
        mkfs(devices, &options, env).unwrap_or_else(|error| panic!("{self:?}: {error}"));
    }

    /// How the filesystem is opened: with caches so small that what is rare happens.
    pub fn options(&self) -> Options {
        Options {
            // Whatever becomes the default.
            subvolume: Subvolume::Id(TreeId::FS),
            access_times: AccessTimes::Never,
            no_tree_log: !self.logs,
            // What is overwritten in place endangers other such data, which the checker would take for lost.
            parity_writes: ParityWrites::Copied,
            node_cache_bytes: 128 << 10,
            // Data that a device refuses is dropped when writers need the memory, which nobody here expects.
            dirty_data_bytes: if self.members { 64 << 20 } else { 1 << 20 },
            discard: self.discard,
            policies: Policies {
                canary: self.canary,
                // Most fsyncs are cheaper as a commit when everything is small.
                log_at_any_cost: !self.seed.is_multiple_of(4),
                // References are booked ahead of the commit in two of three runs, a few at a time.
                booking: match self.seed % 3 {
                    0 => Booking::default(),
                    more => Booking { early: 2 * more as usize, slice: more as usize, left: 1 },
                },
                ..Policies::default()
            },
            ..Options::default()
        }
    }
}

/// A device on which the filesystem just fits, with some room for the workload.
fn smallest(nodesize: u32, metadata: &str, data: &str, mixed: bool) -> u64 {
    let dup = metadata == "dup";
    let trees = match (mixed, nodesize, dup) {
        (true, ..) => return if dup { 96 * MIB } else { 24 * MIB },
        (_, 65536, true) => 2 * 42 * MIB,
        (_, 65536, false) => 42 * MIB,
        (_, _, true) => 64 * MIB,
        (_, _, false) => 16 * MIB,
    };
    let system = if dup { 16 } else { 4 } * MIB;
    let data = if data == "dup" { 16 } else { 8 } * MIB;
    MIB + system + trees + data
}
