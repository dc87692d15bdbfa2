//! One wrong field at a time, in every profile.

use super::*;
use butterfs_ondisk::TreeId;
use butterfs_ondisk::key::objectid;
use butterfs_ondisk::profile::PROFILES;
use zerocopy::{FromZeros, IntoBytes};

const START: u64 = 1 << 30;
const LIMITS: ChunkLimits = ChunkLimits { sectorsize: 4096, incompat: 0 };

fn chunk(profile: &Profile) -> Chunk {
    let devices = profile.min_devices.max(profile.parity + 2).max(profile.device_multiple * profile.min_devices);
    let devices = profile.max_devices.map_or(devices, |most| devices.min(most));
    let devices = if profile.bit == bits::RAID10 { 4 } else { devices };
    let stripes = (0..devices * profile.stripes_per_device).map(|number| {
        let device = number / profile.stripes_per_device + 1;
        let physical = Physical((8 + 64 * (number % profile.stripes_per_device) as u64 + device as u64) << 20);
        ChunkStripe { device: DeviceId(device as u64), physical, dev_uuid: [device as u8; 16] }
    });
    let stripes: Vec<ChunkStripe> = stripes.collect();
    let length = profile.data_stripes(stripes.len()) as u64 * (32 << 20);
    Chunk::new(Logical(START), length, bits::METADATA | profile.bit, 4096, stripes)
}

fn witnesses(chunk: &Chunk) -> Witnesses {
    let mut witnesses = Witnesses::default();
    for stripe in &chunk.stripes {
        witnesses.learn_device(stripe.device, stripe.dev_uuid);
        let mut extent = DevExtent::new_zeroed();
        (extent.chunk_tree, extent.chunk_offset) = (TreeId::CHUNK.get().into(), chunk.start.0.into());
        extent.length = chunk.stripe_length().into();
        let key = Key::new(stripe.device.0, KeyType::DEV_EXTENT, stripe.physical.0);
        witnesses.learn_item(key, extent.as_bytes());
    }
    let mut group = BlockGroupItem::new_zeroed();
    (group.chunk_objectid, group.flags) = (objectid::FIRST_CHUNK_TREE.into(), chunk.kind.into());
    witnesses.learn_item(Key::new(chunk.start.0, KeyType::BLOCK_GROUP_ITEM, chunk.length), group.as_bytes());
    witnesses
}

#[test]
fn one_wrong_field_is_put_right_in_every_profile() {
    let changes: [(&str, fn(&mut Chunk)); 6] = [
        ("nothing", |_| {}),
        ("length", |chunk| chunk.length *= 2),
        ("device", |chunk| chunk.stripes[0].device = DeviceId(77)),
        ("place", |chunk| chunk.stripes[0].physical = Physical(5 << 30)),
        ("UUID", |chunk| chunk.stripes[0].dev_uuid = [9; 16]),
        ("start", |chunk| chunk.start = Logical(START ^ 1 << 20)),
    ];
    for profile in &PROFILES {
        let right = chunk(profile);
        let known = witnesses(&right);
        for (what, change) in changes {
            let mut wrong = right.clone();
            change(&mut wrong);
            assert_eq!(known.corrected(&wrong, Kind::Known).as_ref(), Some(&right), "{}: {what}", profile.name);
        }
    }
}

#[test]
fn witnesses_that_disagree_change_nothing() {
    let right = chunk(Profile::named("DUP").unwrap());
    let mut known = witnesses(&right);
    known.groups.insert(START, (right.length + (1 << 20), right.kind));
    assert_eq!(known.corrected(&right, Kind::Known), None);
    let mut known = witnesses(&right);
    known.extents.get_mut(&START).unwrap().pop();
    assert_eq!(known.corrected(&right, Kind::Known), None);
    let mut known = witnesses(&right);
    let places = known.extents.remove(&START).unwrap();
    known.extents.insert(START + 4096, places);
    assert_eq!(known.corrected(&right, Kind::Known), None, "the block group confirms the address");
    let striped = chunk(Profile::named("RAID0").unwrap());
    let mut wrong = striped.clone();
    wrong.stripes.iter_mut().for_each(|stripe| stripe.physical = Physical(5 << 30));
    assert_eq!(witnesses(&striped).corrected(&wrong, Kind::Known), None, "two stripes, and their order");
}

#[test]
fn an_item_that_breaks_a_rule_can_be_read() {
    for profile in &PROFILES {
        let right = chunk(profile);
        for (byte, mask) in [(18, 1), (31, 0x80), (24, 4), (41, 0x20), (44, 2)] {
            let mut payload = right.encode();
            payload[byte] ^= mask;
            let found = lenient_chunk(right.start, &payload, &LIMITS).unwrap();
            assert_eq!(found.stripes, right.stripes, "{} {byte}", profile.name);
            assert_eq!(witnesses(&right).corrected(&found, Kind::Doubtful), Some(right.clone()), "{}", profile.name);
        }
    }
}

#[test]
fn tree_blocks_say_where_a_chunk_begins() {
    for profile in &PROFILES {
        let right = chunk(profile);
        let mut wrong = right.clone();
        wrong.start = Logical(START ^ 1 << 16);
        // Each fourth block is one.
        let layout = Layout::of(&right).unwrap();
        let mut blocks = BTreeMap::new();
        for at in (right.start.0..right.end().0).step_by(4 * 16384) {
            let piece = layout.pieces(Logical(at), 1).next().unwrap();
            for mirror in 0..layout.mirrors() {
                let address = layout.stripe_address(&piece, mirror);
                blocks.insert((right.stripes[address.stripe].device, address.physical), Logical(at));
            }
        }
        let found = claimed_start(&wrong, 16384, &mut |device, at| blocks.get(&(device, at)).copied());
        assert_eq!(found, Some(right.start), "{}", profile.name);
    }
}
