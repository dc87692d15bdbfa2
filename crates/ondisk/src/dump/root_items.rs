//! Items of trees and subvolumes: roots, references between them, the UUID tree.

use super::{DumpOptions, joined_or_none, key::KeyText, padded, printable, time, up_to, uuid};
use crate::items::{RootItem, RootRef};
use std::io::{self, Write};
use zerocopy::FromBytes;
use zerocopy::little_endian::U64;

pub(super) fn root_item(out: &mut dyn Write, data: &[u8], options: &DumpOptions) -> io::Result<()> {
    let root: RootItem = padded(data);
    let RootItem { generation, root_dirid, bytenr, byte_limit, bytes_used, last_snapshot, refs, .. } = root;
    let flags = root.flags.get();
    write!(out, "\t\tgeneration {generation} root_dirid {root_dirid} bytenr {bytenr} ")?;
    writeln!(out, "byte_limit {byte_limit} bytes_used {bytes_used}")?;
    let names = joined_or_none(flags, &[(RootItem::RDONLY, "RDONLY")]);
    writeln!(out, "\t\tlast_snapshot {last_snapshot} flags {flags:#x}({names}) refs {refs}")?;
    writeln!(out, "\t\tdrop_progress {} drop_level {}", KeyText(root.drop_progress.into()), root.drop_level)?;
    writeln!(out, "\t\tlevel {} generation_v2 {}", root.level, root.generation_v2)?;
    // With another generation the rest was written by a kernel that did not know these fields.
    if root.generation_v2 == generation { subvolume_fields(out, &root, options) } else { Ok(()) }
}

fn subvolume_fields(out: &mut dyn Write, root: &RootItem, options: &DumpOptions) -> io::Result<()> {
    writeln!(out, "\t\tuuid {}", uuid(root.uuid))?;
    writeln!(out, "\t\tparent_uuid {}", uuid(root.parent_uuid))?;
    writeln!(out, "\t\treceived_uuid {}", uuid(root.received_uuid))?;
    let RootItem { ctransid, otransid, stransid, rtransid, .. } = root;
    writeln!(out, "\t\tctransid {ctransid} otransid {otransid} stransid {stransid} rtransid {rtransid}")?;
    for (label, value) in [("ctime", root.ctime), ("otime", root.otime), ("stime", root.stime), ("rtime", root.rtime)] {
        time::line(out, label, &value, options)?;
    }
    Ok(())
}

/// A ROOT_REF or ROOT_BACKREF. Its name is printed even when names are hidden, as btrfs-progs does.
pub(super) fn root_ref(out: &mut dyn Write, label: &str, data: &[u8]) -> io::Result<()> {
    let head: RootRef = padded(data);
    let rest = data.get(RootRef::LEN..).unwrap_or_default();
    let (name, _) = up_to(rest, head.name_len.get().into());
    write!(out, "\t\t{label} key dirid {} sequence {} name ", head.dirid, head.sequence)?;
    out.write_all(printable(name))?;
    out.write_all(b"\n")
}

pub(super) fn uuid_item(out: &mut dyn Write, data: &[u8]) -> io::Result<()> {
    match <[U64]>::ref_from_bytes(data) {
        Ok(subvolumes) => subvolumes.iter().try_for_each(|id| writeln!(out, "\t\tsubvol_id {id}")),
        Err(_) => writeln!(out, "btrfs: uuid item with illegal size {}!", data.len()),
    }
}
