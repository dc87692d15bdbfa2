//! Items of the extent tree, and the references inside them.

use super::{key::KeyText, key::Objectid, padded};
use crate::items::{ExtentDataRef, ExtentItem, TreeBlockInfo, extent_flags};
use crate::key::{Key, KeyType};
use std::io::{self, Write};
use zerocopy::FromBytes;
use zerocopy::little_endian::{U32, U64};

pub(super) fn extent_item(out: &mut dyn Write, key: Key, data: &[u8]) -> io::Result<()> {
    let Ok((extent, rest)) = ExtentItem::ref_from_prefix(data) else { return Ok(()) };
    let flags = extent.flags.get();
    writeln!(out, "\t\trefs {} gen {} flags {}", extent.refs, extent.generation, flags_text(flags))?;
    let refs = if key.kind == KeyType::METADATA_ITEM {
        // The offset is printed as a signed level.
        writeln!(out, "\t\ttree block skinny level {}", key.offset as i32)?;
        rest
    } else if flags & extent_flags::TREE_BLOCK != 0 {
        let info: TreeBlockInfo = padded(rest);
        writeln!(out, "\t\ttree block {} level {}", KeyText(info.key.into()), info.level)?;
        rest.get(TreeBlockInfo::LEN..).unwrap_or_default()
    } else {
        rest
    };
    inline_refs(out, refs)
}

fn flags_text(flags: u64) -> String {
    let mut text = super::joined(flags, &[(extent_flags::DATA, "DATA"), (extent_flags::TREE_BLOCK, "TREE_BLOCK")]);
    if flags & extent_flags::FULL_BACKREF != 0 {
        text.push_str("|FULL_BACKREF");
    }
    text
}

/// Prints references up to the first one of unknown type, behind which nothing can be found.
fn inline_refs(out: &mut dyn Write, mut rest: &[u8]) -> io::Result<()> {
    while let Some((&kind, body)) = rest.split_first() {
        let Some(after) = inline_ref(out, KeyType(kind), body)? else { break };
        rest = after;
    }
    Ok(())
}

fn inline_ref<'a>(out: &mut dyn Write, kind: KeyType, body: &'a [u8]) -> io::Result<Option<&'a [u8]>> {
    if kind == KeyType::EXTENT_DATA_REF {
        let Ok((_, after)) = ExtentDataRef::ref_from_prefix(body) else { return Ok(None) };
        data_ref(out, body)?;
        return Ok(Some(after));
    }
    let Ok((offset, after)) = U64::ref_from_prefix(body) else { return Ok(None) };
    match kind {
        KeyType::TREE_BLOCK_REF => {
            writeln!(out, "\t\ttree block backref root {}", Objectid::plain(offset.get()))?;
            Ok(Some(after))
        }
        KeyType::SHARED_BLOCK_REF => {
            writeln!(out, "\t\tshared block backref parent {offset}")?;
            Ok(Some(after))
        }
        KeyType::SHARED_DATA_REF => {
            let Ok((count, after)) = U32::ref_from_prefix(after) else { return Ok(None) };
            writeln!(out, "\t\tshared data backref parent {offset} count {count}")?;
            Ok(Some(after))
        }
        _ => Ok(None),
    }
}

pub(super) fn data_ref(out: &mut dyn Write, data: &[u8]) -> io::Result<()> {
    let ExtentDataRef { root, objectid, offset, count } = padded(data);
    let root = Objectid::plain(root.get());
    writeln!(out, "\t\textent data backref root {root} objectid {objectid} offset {offset} count {count}")
}

pub(super) fn shared_data_ref(out: &mut dyn Write, data: &[u8]) -> io::Result<()> {
    writeln!(out, "\t\tshared data backref count {}", padded::<U32>(data))
}
