//! Quota groups and balance.

use zerocopy::little_endian::{I64, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

layout! { 32,
/// `btrfs_qgroup_status_item`.
pub struct QgroupStatus {
    /// 1.
    pub version: U64,
    /// The transaction for which the numbers are right.
    pub generation: U64,
    /// [`QgroupStatus::ON`], [`QgroupStatus::RESCAN`], [`QgroupStatus::INCONSISTENT`].
    pub flags: U64,
    /// The point at which a rescan continues.
    pub rescan: U64,
}}

impl QgroupStatus {
    /// Flag: quotas are on.
    pub const ON: u64 = 1;
    /// Flag: a rescan runs.
    pub const RESCAN: u64 = 2;
    /// Flag: the numbers are not right.
    pub const INCONSISTENT: u64 = 4;
}

layout! { 40,
/// `btrfs_qgroup_info_item`.
pub struct QgroupInfo {
    /// The transaction that changed it.
    pub generation: U64,
    /// Bytes referenced.
    pub referenced: U64,
    /// The same, compressed.
    pub referenced_compressed: U64,
    /// Bytes that no other group references.
    pub exclusive: U64,
    /// The same, compressed.
    pub exclusive_compressed: U64,
}}

layout! { 40,
/// `btrfs_qgroup_limit_item`.
pub struct QgroupLimit {
    /// Which of the limits are set.
    pub flags: U64,
    /// Bytes that may be referenced.
    pub max_referenced: I64,
    /// Bytes that may be exclusive.
    pub max_exclusive: I64,
    /// Reserved referenced bytes.
    pub rsv_referenced: I64,
    /// Reserved exclusive bytes.
    pub rsv_exclusive: I64,
}}

layout! { 136,
/// `btrfs_disk_balance_args`: which chunks of one type a balance takes.
pub struct BalanceArgs {
    /// Profiles.
    pub profiles: U64,
    /// Lowest usage in percent.
    pub usage_min: U32,
    /// Highest usage in percent.
    pub usage_max: U32,
    /// Device.
    pub devid: U64,
    /// First physical address.
    pub pstart: U64,
    /// Last physical address.
    pub pend: U64,
    /// First logical address.
    pub vstart: U64,
    /// Last logical address.
    pub vend: U64,
    /// Profile to convert to.
    pub target: U64,
    /// Which of the filters are used.
    pub flags: U64,
    /// Fewest chunks.
    pub limit_min: U32,
    /// Most chunks.
    pub limit_max: U32,
    /// Fewest stripes.
    pub stripes_min: U32,
    /// Most stripes.
    pub stripes_max: U32,
    /// Zero.
    pub unused: [U64; 6],
}}

layout! { 448,
/// `btrfs_balance_item`.
pub struct BalanceItem {
    /// Which types are balanced, and what is converted.
    pub flags: U64,
    /// Of data chunks.
    pub data: BalanceArgs,
    /// Of metadata chunks.
    pub metadata: BalanceArgs,
    /// Of system chunks.
    pub system: BalanceArgs,
    /// Zero.
    pub unused: [U64; 4],
}}
