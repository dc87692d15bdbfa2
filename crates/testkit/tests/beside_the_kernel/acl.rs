//! Random ACLs as attribute values, some of them not valid.

use butterfs_testkit::rng::Rng;

const NO_ID: u32 = u32::MAX;
const USER_OBJ: u16 = 1;
const USER: u16 = 2;
const GROUP_OBJ: u16 = 4;
const GROUP: u16 = 8;
const MASK: u16 = 0x10;
const OTHER: u16 = 0x20;

/// The tags and ids of the ACLs that are tried.
const SHAPES: [&[(u16, u32)]; 6] = [
    &[(USER_OBJ, NO_ID), (GROUP_OBJ, NO_ID), (OTHER, NO_ID)],
    &[(USER_OBJ, NO_ID), (USER, 1000), (GROUP_OBJ, NO_ID), (MASK, NO_ID), (OTHER, NO_ID)],
    &[(USER_OBJ, NO_ID), (GROUP_OBJ, NO_ID), (GROUP, 77), (GROUP, 78), (MASK, NO_ID), (OTHER, NO_ID)],
    // Not valid: named entries without a mask; no entry for others; in disorder.
    &[(USER_OBJ, NO_ID), (USER, 1000), (GROUP_OBJ, NO_ID), (OTHER, NO_ID)],
    &[(USER_OBJ, NO_ID), (GROUP_OBJ, NO_ID)],
    &[(OTHER, NO_ID), (GROUP_OBJ, NO_ID), (USER_OBJ, NO_ID)],
];

/// The value of an ACL attribute: a random ACL, one without entries, or nothing.
pub fn random(rng: &mut Rng) -> Vec<u8> {
    let choice = rng.index(SHAPES.len() + 2);
    let Some(shape) = SHAPES.get(choice) else {
        return if choice == SHAPES.len() { Vec::new() } else { 2u32.to_le_bytes().to_vec() };
    };
    let mut value = 2u32.to_le_bytes().to_vec();
    for (tag, id) in *shape {
        value.extend_from_slice(&tag.to_le_bytes());
        value.extend_from_slice(&(rng.below(8) as u16).to_le_bytes());
        value.extend_from_slice(&id.to_le_bytes());
    }
    value
}
