//! Operations on the content of files, and content with holes.

use super::{Answer, ModelFs};
use crate::operation::{AllocateHow, Object, Op, Outcome, RelPath, Reply};
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::sync::Arc;

const BLOCK: u64 = 4096;
type Block = [u8; BLOCK as usize];

/// Bytes of which only the written blocks are kept; the rest reads as zeros.
///
/// Invariant: no byte at or after the size is other than zero.
#[derive(Clone, Debug, Default)]
pub struct Sparse {
    size: u64,
    blocks: BTreeMap<u64, Arc<Block>>,
}

impl Sparse {
    /// The length in bytes.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// The bytes of the blocks that were ever written.
    pub fn stored_bytes(&self) -> u64 {
        self.blocks.len() as u64 * BLOCK
    }

    /// The blocks that were written, as `(offset, bytes below the size)`, ascending.
    pub fn written(&self) -> impl Iterator<Item = (u64, &[u8])> {
        self.blocks.iter().filter(|(index, _)| **index * BLOCK < self.size).map(|(index, block)| {
            let offset = index * BLOCK;
            (offset, &block[..(self.size - offset).min(BLOCK) as usize])
        })
    }

    /// Up to `len` bytes from `offset`, ending at the size.
    pub fn read(&self, offset: u64, len: usize) -> Vec<u8> {
        let len = self.size.saturating_sub(offset).min(len as u64);
        let mut bytes = vec![0; len as usize];
        if len > 0 {
            for (index, block) in self.blocks.range(offset / BLOCK..=(offset + len - 1) / BLOCK) {
                let (start, end) = (offset.max(index * BLOCK), (offset + len).min((index + 1) * BLOCK));
                let from = &block[(start - index * BLOCK) as usize..(end - index * BLOCK) as usize];
                bytes[(start - offset) as usize..(end - offset) as usize].copy_from_slice(from);
            }
        }
        bytes
    }

    /// Writes and grows.
    pub fn write(&mut self, offset: u64, mut data: &[u8]) {
        if data.is_empty() {
            return;
        }
        self.size = self.size.max(offset + data.len() as u64);
        let mut at = offset;
        while !data.is_empty() {
            let inside = (at % BLOCK) as usize;
            let (now, rest) = data.split_at(data.len().min(BLOCK as usize - inside));
            let block = self.blocks.entry(at / BLOCK).or_insert_with(|| Arc::new([0; BLOCK as usize]));
            Arc::make_mut(block)[inside..inside + now.len()].copy_from_slice(now);
            at += now.len() as u64;
            data = rest;
        }
    }

    /// Makes a range read as zeros, without growing.
    pub fn zero(&mut self, offset: u64, len: u64) {
        let end = (offset + len).min(self.size);
        if offset >= end {
            return;
        }
        let touched: Vec<u64> =
            self.blocks.range(offset / BLOCK..=(end - 1) / BLOCK).map(|(index, _)| *index).collect();
        for index in touched {
            let (start, stop) =
                (offset.max(index * BLOCK) - index * BLOCK, end.min((index + 1) * BLOCK) - index * BLOCK);
            if (start, stop) == (0, BLOCK) {
                self.blocks.remove(&index);
            } else if let Some(block) = self.blocks.get_mut(&index) {
                Arc::make_mut(block)[start as usize..stop as usize].fill(0);
            }
        }
    }

    /// Cuts off or grows with zeros.
    pub fn truncate(&mut self, size: u64) {
        if size < self.size {
            drop(self.blocks.split_off(&size.div_ceil(BLOCK)));
            if let Some(block) = self.blocks.get_mut(&(size / BLOCK)) {
                Arc::make_mut(block)[(size % BLOCK) as usize..].fill(0);
            }
        }
        self.size = size;
    }
}

impl ModelFs {
    /// The answer, when `op` is about the content of files.
    pub(super) fn content(&mut self, op: &Op) -> Option<Outcome> {
        Some(match op {
            Op::Read { object, offset, len } => {
                self.file_object(object).map(|id| Reply::Bytes(self.file(id).read(*offset, *len)))
            }
            Op::Write { object, offset, content } => self.write(object, *offset, &content.bytes()),
            Op::Truncate { object, size } => self.truncate(object, *size),
            Op::Allocate { object, how, offset, len } => self.allocate(object, *how, *offset, *len),
            Op::CopyRange { from, from_offset, to, to_offset, len } => {
                self.copy_range(from, *from_offset, to, *to_offset, *len).map(Reply::Count)
            }
            _ => return None,
        })
    }

    fn write(&mut self, object: &Object, offset: u64, data: &[u8]) -> Outcome {
        let id = self.file_object(object)?;
        if !data.is_empty() {
            self.change_file(id).write(offset, data);
        }
        Ok(Reply::Count(data.len() as u64))
    }

    fn truncate(&mut self, object: &Object, size: u64) -> Outcome {
        let id = self.file_object(object)?;
        self.change_file(id).truncate(size);
        Ok(Reply::Done)
    }

    fn allocate(&mut self, object: &Object, how: AllocateHow, offset: u64, len: u64) -> Outcome {
        let id = self.file_object(object)?;
        if len == 0 {
            return Err(Errno::INVAL);
        }
        let file = self.change_file(id);
        let end = offset + len;
        if matches!(how, AllocateHow::Extend | AllocateHow::ZeroRange) && file.size() < end {
            file.truncate(end);
        }
        if matches!(how, AllocateHow::PunchHole | AllocateHow::ZeroRange) {
            file.zero(offset, len);
        }
        Ok(Reply::Done)
    }

    fn copy_range(&mut self, from: &RelPath, from_offset: u64, to: &RelPath, to_offset: u64, len: u64) -> Answer<u64> {
        let source = self.file_object(&Object::Path(from.clone()))?;
        let target = self.file_object(&Object::Path(to.clone()))?;
        let data = self.file(source).read(from_offset, len as usize);
        let len = data.len() as u64;
        if len == 0 {
            return Ok(0);
        }
        if source == target && from_offset < to_offset + len && to_offset < from_offset + len {
            return Err(Errno::INVAL);
        }
        self.change_file(target).write(to_offset, &data);
        Ok(len)
    }
}
