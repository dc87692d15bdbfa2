//! Quotas, balance, device statistics, headers of the version 1 space cache, and the odd rest.

use super::{key::KeyText, key::Objectid, padded};
use crate::items::{BalanceArgs, BalanceItem, DevStats, FreeSpaceHeader, QgroupInfo, QgroupLimit, QgroupStatus};
use crate::key::{Key, KeyType, objectid};
use std::io::{self, Write};
use zerocopy::FromBytes;
use zerocopy::little_endian::U64;

pub(super) fn print(out: &mut dyn Write, key: Key, data: &[u8]) -> io::Result<()> {
    match key.kind {
        KeyType(0) if key.objectid == objectid::FREE_SPACE => free_space_header(out, data),
        KeyType::QGROUP_STATUS => qgroup_status(out, data),
        KeyType::QGROUP_INFO => qgroup_info(out, data),
        KeyType::QGROUP_LIMIT => qgroup_limit(out, data),
        KeyType::TEMPORARY_ITEM => temporary_item(out, key, data),
        KeyType::PERSISTENT_ITEM => persistent_item(out, key, data),
        KeyType(120) => writeln!(out, "\t\tcsum item"),
        KeyType(180) => writeln!(out, "\t\textent ref v0 (deprecated)"),
        KeyType::STRING_ITEM => string_item(out, data),
        _ => Ok(()),
    }
}

fn free_space_header(out: &mut dyn Write, data: &[u8]) -> io::Result<()> {
    let FreeSpaceHeader { location, generation, num_entries, num_bitmaps } = padded(data);
    writeln!(out, "\t\tlocation {}", KeyText(location.into()))?;
    writeln!(out, "\t\tcache generation {generation} entries {num_entries} bitmaps {num_bitmaps}")
}

fn qgroup_status(out: &mut dyn Write, data: &[u8]) -> io::Result<()> {
    let QgroupStatus { version, generation, flags, rescan } = padded(data);
    let has = |bit| flags.get() & bit != 0;
    let mut text = String::from(if has(QgroupStatus::ON) { "ON" } else { "OFF" });
    if has(QgroupStatus::RESCAN) {
        text.push_str("|SCANNING");
    }
    if has(QgroupStatus::INCONSISTENT) {
        text.push_str("|INCONSISTENT");
    }
    writeln!(out, "\t\tversion {version} generation {generation} flags {text} scan {rescan}")
}

fn qgroup_info(out: &mut dyn Write, data: &[u8]) -> io::Result<()> {
    let QgroupInfo { generation, referenced, referenced_compressed, exclusive, exclusive_compressed } = padded(data);
    writeln!(out, "\t\tgeneration {generation}")?;
    writeln!(out, "\t\treferenced {referenced} referenced_compressed {referenced_compressed}")?;
    writeln!(out, "\t\texclusive {exclusive} exclusive_compressed {exclusive_compressed}")
}

fn qgroup_limit(out: &mut dyn Write, data: &[u8]) -> io::Result<()> {
    let QgroupLimit { flags, max_referenced, max_exclusive, rsv_referenced, rsv_exclusive } = padded(data);
    writeln!(out, "\t\tflags {:x}", flags.get())?;
    writeln!(out, "\t\tmax_referenced {max_referenced} max_exclusive {max_exclusive}")?;
    writeln!(out, "\t\trsv_referenced {rsv_referenced} rsv_exclusive {rsv_exclusive}")
}

fn temporary_item(out: &mut dyn Write, key: Key, data: &[u8]) -> io::Result<()> {
    let id = Objectid { id: key.objectid, kind: key.kind };
    writeln!(out, "\t\ttemporary item objectid {id} offset {}", key.offset)?;
    if key.objectid != objectid::BALANCE {
        return writeln!(out, "\t\tunknown temporary item objectid {}", key.objectid);
    }
    let balance: BalanceItem = padded(data);
    writeln!(out, "\t\tbalance status flags {}", balance.flags)?;
    for (label, args) in [("DATA", balance.data), ("METADATA", balance.metadata), ("SYSTEM", balance.system)] {
        writeln!(out, "\t\t{label}")?;
        balance_args(out, &args)?;
    }
    Ok(())
}

fn balance_args(out: &mut dyn Write, args: &BalanceArgs) -> io::Result<()> {
    let BalanceArgs { profiles, usage_min, usage_max, devid, pstart, pend, vstart, vend, target, flags, .. } = args;
    let BalanceArgs { limit_min, limit_max, stripes_min, stripes_max, .. } = args;
    writeln!(out, "\t\tprofiles {profiles} devid {devid} target {target} flags {flags}")?;
    writeln!(out, "\t\tusage_min {usage_min} usage_max {usage_max} pstart {pstart} pend {pend}")?;
    writeln!(out, "\t\tvstart {vstart} vend {vend} limit_min {limit_min} limit_max {limit_max}")?;
    writeln!(out, "\t\tstripes_min {stripes_min} stripes_max {stripes_max}")
}

fn persistent_item(out: &mut dyn Write, key: Key, data: &[u8]) -> io::Result<()> {
    let id = Objectid { id: key.objectid, kind: key.kind };
    writeln!(out, "\t\tpersistent item objectid {id} offset {}", key.offset)?;
    if key.objectid != objectid::DEV_STATS {
        return writeln!(out, "\t\tunknown persistent item objectid {}", key.objectid);
    }
    let DevStats { values: [write, read, flush, corruption, generation] } = padded(data);
    writeln!(out, "\t\tdevice stats")?;
    write!(out, "\t\twrite_errs {write} read_errs {read} flush_errs {flush} ")?;
    writeln!(out, "corruption_errs {corruption} generation {generation}")?;
    unknown_stats(out, data.get(DevStats::LEN..).unwrap_or_default())
}

/// Counters that a newer kernel may have added.
fn unknown_stats(out: &mut dyn Write, rest: &[u8]) -> io::Result<()> {
    if rest.is_empty() {
        return Ok(());
    }
    write!(out, "\t\tunknown stats item bytes {}", rest.len())?;
    let known = DevStats::LEN / size_of::<U64>();
    for (index, value) in rest.chunks(size_of::<U64>()).enumerate() {
        let (number, value) = (known + index, U64::read_from_bytes(value).unwrap_or_default());
        writeln!(out, "\t\tunknown item {number} offset {} value {value}", number * size_of::<U64>())?;
    }
    Ok(())
}

fn string_item(out: &mut dyn Write, data: &[u8]) -> io::Result<()> {
    let end = data.iter().position(|&byte| byte == 0).unwrap_or(data.len());
    out.write_all(b"\t\titem data ")?;
    out.write_all(&data[..end])?;
    out.write_all(b"\n")
}
