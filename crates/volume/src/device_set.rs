//! The devices of a volume as a value: whoever changes the set makes a new one and swaps it in. Requests go on with the
//! set that they took.

use crate::member::Member;
use crate::twins::Target;
use butterfs_ondisk::DeviceId;
use std::sync::Arc;

/// The devices that are there, ascending by number.
#[derive(Clone, Debug, Default)]
pub(crate) struct DeviceSet {
    members: Vec<Arc<Member>>,
    /// Devices of the filesystem that are not there.
    pub absent: u64,
    /// The device that takes over from a device, by the number of that device: it gets every write that the device
    /// gets.
    twins: Vec<(DeviceId, Arc<Member>)>,
    /// A device with number 0 that takes over from none yet.
    pub target: Option<Target>,
}

impl DeviceSet {
    pub fn new(mut members: Vec<Member>) -> DeviceSet {
        members.sort_by_key(|member| member.id);
        DeviceSet { members: members.into_iter().map(Arc::new).collect(), ..DeviceSet::default() }
    }

    pub fn iter(&self) -> impl DoubleEndedIterator<Item = &Arc<Member>> + ExactSizeIterator + Clone {
        self.members.iter()
    }

    pub fn get(&self, id: DeviceId) -> Option<&Arc<Member>> {
        self.members.binary_search_by_key(&id, |member| member.id).ok().map(|index| &self.members[index])
    }

    /// The same set with one more device, in place of one with the same number.
    pub fn with(&self, member: Arc<Member>) -> DeviceSet {
        let mut set = self.without(member.id);
        let at = set.members.partition_point(|other| other.id < member.id);
        set.members.insert(at, member);
        set
    }

    /// The same set without a device.
    pub fn without(&self, id: DeviceId) -> DeviceSet {
        let mut set = self.clone();
        set.members.retain(|member| member.id != id);
        set
    }

    /// The same set where so many devices are not there.
    pub fn with_absent(&self, absent: u64) -> DeviceSet {
        DeviceSet { absent, ..self.clone() }
    }

    /// The same set with this device that takes over from none yet.
    pub fn with_target(&self, target: Option<Target>) -> DeviceSet {
        DeviceSet { target, ..self.clone() }
    }

    /// The device that takes over from a device.
    pub fn twin(&self, id: DeviceId) -> Option<&Arc<Member>> {
        self.twins.iter().find(|(of, _)| *of == id).map(|(_, twin)| twin)
    }

    /// Each that takes over, with the number of the other one.
    pub fn pairs(&self) -> impl Iterator<Item = (DeviceId, &Arc<Member>)> {
        self.twins.iter().map(|(id, twin)| (*id, twin))
    }

    /// All that take over from a device.
    pub fn twins(&self) -> impl Iterator<Item = &Arc<Member>> {
        self.twins.iter().map(|(_, twin)| twin)
    }

    /// The same set with a device that takes over from `id`, or without one.
    pub fn with_twin(&self, id: DeviceId, twin: Option<Arc<Member>>) -> DeviceSet {
        let mut set = self.clone();
        set.twins.retain(|(of, _)| *of != id);
        set.twins.extend(twin.map(|twin| (id, twin)));
        set
    }
}

#[cfg(test)]
impl std::ops::Index<usize> for DeviceSet {
    type Output = Member;

    fn index(&self, index: usize) -> &Member {
        &self.members[index]
    }
}
