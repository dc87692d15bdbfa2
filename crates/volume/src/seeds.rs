//! Devices of a seed filesystem, from which this one has sprouted: they are only read, and everything new goes to the
//! others.
//!
//! # Invariants
//! 1. Nothing is ever written to a seed device, its superblocks neither.
//! 2. A chunk lies on seed devices as a whole, or on none.

use crate::member::Seed;
use crate::volume::Volume;
use butterfs_ondisk::DeviceId;
use butterfs_ondisk::chunk::Chunk;

impl Volume {
    /// The seed devices.
    pub fn seeds(&self) -> Vec<(DeviceId, Seed)> {
        self.members().iter().filter_map(|member| Some((member.id, *member.seed()?))).collect()
    }

    /// Whether it is a seed device.
    pub fn is_seed(&self, id: DeviceId) -> bool {
        self.member(id).is_some_and(|member| member.seed().is_some())
    }

    /// Whether a chunk lies on seed devices.
    pub fn is_on_seed(&self, chunk: &Chunk) -> bool {
        chunk.stripes.iter().any(|stripe| self.is_seed(stripe.device))
    }

    /// The UUIDs in blocks of the seed filesystems, each once.
    pub fn seed_fsids(&self) -> Vec<[u8; 16]> {
        let mut all: Vec<[u8; 16]> = self.seeds().into_iter().map(|(_, seed)| seed.fsid).collect();
        all.sort_unstable();
        all.dedup();
        all
    }

    /// All devices that are there become seed devices: a filesystem sprouts from the one that they have.
    pub fn become_seeds(&self, fsid: [u8; 16]) {
        self.members().iter().for_each(|member| member.make_seed(Seed { fsid, generation: None }));
    }
}
