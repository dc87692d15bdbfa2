//! A leaf's items: reading them, and the edits that keep the leaf packed.
//!
//! Every edit moves item data by [`Node::shift_data`], once, and item headers by one `copy_within`.

use super::{Node, at};
use butterfs_ondisk::Key;
use butterfs_ondisk::header::{HEADER_LEN, ITEM_LEN};
use std::ops::Range;

/// The byte where the header of item `slot` begins.
const fn header_at(slot: usize) -> usize {
    HEADER_LEN + slot * ITEM_LEN
}

impl Node {
    /// The data of item `slot`.
    pub fn item(&self, slot: usize) -> &[u8] {
        let range = self.item_range(slot);
        &self.bytes[range]
    }

    /// The data of item `slot`, to change in place.
    pub fn item_mut(&mut self, slot: usize) -> &mut [u8] {
        let range = self.item_range(slot);
        &mut self.bytes[range]
    }

    /// Bytes of data of item `slot`.
    pub fn item_len(&self, slot: usize) -> usize {
        self.u32_at(header_at(slot) + at::ITEM_SIZE) as usize
    }

    /// Bytes of item `slot` with its header.
    pub fn item_bytes(&self, slot: usize) -> usize {
        ITEM_LEN + self.item_len(slot)
    }

    /// Keys and data of all items, ascending.
    pub fn items(&self) -> impl Iterator<Item = (Key, &[u8])> {
        (0..self.nritems()).map(|slot| (self.key(slot), self.item(slot)))
    }

    /// The number of items, from `slot` on, that are the same, key and data, as those of another leaf from `other_slot`
    /// on.
    pub fn same_items(&self, slot: usize, other: &Node, other_slot: usize) -> usize {
        let most = (self.nritems() - slot).min(other.nritems() - other_slot);
        let key_bytes = |node: &Node, slot: usize| -> [u8; at::ITEM_OFFSET] {
            let start = header_at(slot);
            node.bytes[start..start + at::ITEM_OFFSET].try_into().expect("a key")
        };
        let is_same = |&index: &usize| {
            key_bytes(self, slot + index) == key_bytes(other, other_slot + index)
                && self.item(slot + index) == other.item(other_slot + index)
        };
        (0..most).take_while(is_same).count()
    }

    /// Inserts an item. There must be room: [`ITEM_LEN`] and the data.
    pub fn insert_item(&mut self, slot: usize, key: Key, data: &[u8]) {
        let range = self.open_item(slot, key, data.len());
        self.bytes[range].copy_from_slice(data);
    }

    /// Inserts an item of `len` zero bytes and returns them. There must be room.
    pub fn insert_space(&mut self, slot: usize, key: Key, len: usize) -> &mut [u8] {
        let range = self.open_item(slot, key, len);
        let space = &mut self.bytes[range];
        space.fill(0);
        space
    }

    /// Inserts items, ascending, none of whose keys is here. There must be room for all. Every byte that is already
    /// here moves at most once.
    pub fn insert_items(&mut self, items: &[(Key, &[u8])]) {
        let count = self.nritems();
        let mut added_bytes: usize = items.iter().map(|(_, data)| data.len()).sum();
        assert!(added_bytes + items.len() * ITEM_LEN <= self.free_space(), "items do not fit into the leaf");
        let mut run_end = count;
        // From the last item to the first, so that what moves never lands on what still has to move.
        for (before, &(key, data)) in items.iter().enumerate().rev() {
            let slot = self.count_below(key, run_end);
            let upper = self.data_end(slot);
            if slot < run_end {
                let lower = self.data_end(run_end);
                self.bytes.copy_within(lower..upper, lower - added_bytes);
                self.bytes.copy_within(header_at(slot)..header_at(run_end), header_at(slot + before + 1));
                for moved in slot + before + 1..run_end + before + 1 {
                    self.add_to_offset(moved, added_bytes.wrapping_neg());
                }
            }
            added_bytes -= data.len();
            let end = upper - added_bytes;
            self.put_header(slot + before, key, end - data.len(), data.len());
            self.bytes[end - data.len()..end].copy_from_slice(data);
            run_end = slot;
        }
        self.set_nritems(count + items.len());
    }

    /// Removes items.
    pub fn remove_items(&mut self, slots: Range<usize>) {
        if slots.is_empty() {
            return;
        }
        let (count, start) = (self.nritems(), self.data_start());
        let (lower, upper) = (self.data_end(slots.end), self.data_end(slots.start));
        self.shift_data(slots.end, lower, upper - lower);
        self.bytes[start..start + (upper - lower)].fill(0);
        self.bytes.copy_within(header_at(slots.end)..header_at(count), header_at(slots.start));
        self.bytes[header_at(count - slots.len())..header_at(count)].fill(0);
        self.set_nritems(count - slots.len());
    }

    /// Changes the length of item `slot`: cuts its end off, or appends zeros. There must be room.
    pub fn resize_item(&mut self, slot: usize, len: usize) {
        let (start, range) = (self.data_start(), self.item_range(slot));
        let old_len = range.len();
        assert!(len <= old_len + self.free_space(), "item does not fit into the leaf");
        if len <= old_len {
            let cut = old_len - len;
            self.shift_data(slot, range.start + len, cut);
            self.bytes[start..start + cut].fill(0);
        } else {
            let grown = len - old_len;
            self.shift_data(slot, range.end, grown.wrapping_neg());
            self.bytes[range.end - grown..range.end].fill(0);
        }
        self.put_u32(header_at(slot) + at::ITEM_SIZE, len as u32);
    }

    /// Gives item `slot` other data, of any length that has room.
    pub fn replace_item(&mut self, slot: usize, data: &[u8]) {
        self.resize_item(slot, data.len());
        self.item_mut(slot).copy_from_slice(data);
    }

    /// Moves the items from `slot` on to `right`, which must be empty.
    pub(super) fn split_leaf(&mut self, slot: usize, right: &mut Node) {
        let count = self.nritems();
        let (start, end, len) = (self.data_start(), self.data_end(slot), self.bytes.len());
        right.bytes[len - (end - start)..].copy_from_slice(&self.bytes[start..end]);
        right.bytes[HEADER_LEN..header_at(count - slot)]
            .copy_from_slice(&self.bytes[header_at(slot)..header_at(count)]);
        right.set_nritems(count - slot);
        for moved in 0..count - slot {
            right.add_to_offset(moved, len - end);
        }
        self.bytes[start..end].fill(0);
        self.bytes[header_at(slot)..header_at(count)].fill(0);
        self.set_nritems(slot);
    }

    /// Appends the items of `right`, all of which are larger. There must be room.
    pub(super) fn append_leaf(&mut self, right: &Node) {
        let (count, added) = (self.nritems(), right.nritems());
        let (start, from, len) = (self.data_start(), right.data_start(), self.bytes.len());
        self.bytes[start - (len - from)..start].copy_from_slice(&right.bytes[from..]);
        self.bytes[header_at(count)..header_at(count + added)]
            .copy_from_slice(&right.bytes[HEADER_LEN..header_at(added)]);
        self.set_nritems(count + added);
        for moved in count..count + added {
            self.add_to_offset(moved, (len - start).wrapping_neg());
        }
    }

    /// Puts the items of `left`, all of which are smaller, before this leaf's own. There must be room.
    pub(super) fn prepend_leaf(&mut self, left: &Node) {
        let (count, added) = (self.nritems(), left.nritems());
        let (from, len) = (left.data_start(), self.bytes.len());
        self.shift_data(0, len, (len - from).wrapping_neg());
        self.bytes[from..].copy_from_slice(&left.bytes[from..]);
        self.bytes.copy_within(HEADER_LEN..header_at(count), header_at(added));
        self.bytes[HEADER_LEN..header_at(added)].copy_from_slice(&left.bytes[HEADER_LEN..header_at(added)]);
        self.set_nritems(count + added);
    }

    /// The byte where the leaf's data begins.
    pub(super) fn data_start(&self) -> usize {
        self.data_end(self.nritems())
    }

    /// The byte after the data of item `slot`; for the slot after the last, the byte where the data begins.
    fn data_end(&self, slot: usize) -> usize {
        match slot.checked_sub(1) {
            None => self.bytes.len(),
            Some(previous) => HEADER_LEN + self.u32_at(header_at(previous) + at::ITEM_OFFSET) as usize,
        }
    }

    fn item_range(&self, slot: usize) -> Range<usize> {
        debug_assert!(slot < self.nritems());
        let start = HEADER_LEN + self.u32_at(header_at(slot) + at::ITEM_OFFSET) as usize;
        start..start + self.item_len(slot)
    }

    /// Makes room for an item and writes its header; the item's bytes keep what lay there.
    fn open_item(&mut self, slot: usize, key: Key, len: usize) -> Range<usize> {
        let count = self.nritems();
        assert!(slot <= count && len + ITEM_LEN <= self.free_space(), "item does not fit into the leaf");
        let end = self.data_end(slot);
        self.shift_data(slot, end, len.wrapping_neg());
        self.bytes.copy_within(header_at(slot)..header_at(count), header_at(slot + 1));
        self.put_header(slot, key, end - len, len);
        self.set_nritems(count + 1);
        end - len..end
    }

    /// Moves all data before byte `end` by `delta` (wrapping: towards the front when "negative"), and lets the items
    /// from `slot` on know.
    pub(super) fn shift_data(&mut self, slot: usize, end: usize, delta: usize) {
        let (count, start) = (self.nritems(), self.data_start());
        self.bytes.copy_within(start..end, start.wrapping_add(delta));
        for moved in slot..count {
            self.add_to_offset(moved, delta);
        }
    }

    fn add_to_offset(&mut self, slot: usize, delta: usize) {
        let field = header_at(slot) + at::ITEM_OFFSET;
        self.put_u32(field, self.u32_at(field).wrapping_add(delta as u32));
    }

    fn put_header(&mut self, slot: usize, key: Key, start: usize, len: usize) {
        self.put_key(header_at(slot), key);
        self.put_u32(header_at(slot) + at::ITEM_OFFSET, (start - HEADER_LEN) as u32);
        self.put_u32(header_at(slot) + at::ITEM_SIZE, len as u32);
    }
}
