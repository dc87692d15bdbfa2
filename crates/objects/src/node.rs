//! Nodes of the index: sorted entries, each key cut by what it shares with the one before.
//!
//! ```text
//! node  = level:u8 count:varint entry…
//! entry = shared:varint rest:varint value:varint bytes-of-rest bytes-of-value
//! ```
//! In level 0 the values are those of the index; above, a key is the first key of a child, and the value its reference.

/// One entry.
pub type Entry = (Vec<u8>, Vec<u8>);

/// See the [module](self).
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Node {
    /// 0 at the leaves.
    pub level: u8,
    /// In the order of their keys, each key once.
    pub entries: Vec<Entry>,
}

impl Node {
    /// The node's bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = vec![self.level];
        put_varint(self.entries.len() as u64, &mut out);
        let mut before: &[u8] = &[];
        for (key, value) in &self.entries {
            let shared = before.iter().zip(key).take_while(|(a, b)| a == b).count();
            put_varint(shared as u64, &mut out);
            put_varint((key.len() - shared) as u64, &mut out);
            put_varint(value.len() as u64, &mut out);
            out.extend_from_slice(&key[shared..]);
            out.extend_from_slice(value);
            before = key;
        }
        out
    }

    /// The node of these bytes; `None` where they are none. Keys must rise.
    pub fn decode(mut bytes: &[u8]) -> Option<Node> {
        let level = *bytes.split_off_first()?;
        let count = take_varint(&mut bytes)?;
        let mut entries: Vec<Entry> = Vec::new();
        for _ in 0..count {
            let before: &[u8] = entries.last().map_or(&[], |(key, _)| key);
            let shared = before.get(..usize::try_from(take_varint(&mut bytes)?).ok()?)?;
            let rest = usize::try_from(take_varint(&mut bytes)?).ok()?;
            let len = usize::try_from(take_varint(&mut bytes)?).ok()?;
            let key = [shared, bytes.split_off(..rest)?].concat();
            let value = bytes.split_off(..len)?.to_vec();
            if !entries.is_empty() && before >= &key[..] {
                return None;
            }
            entries.push((key, value));
        }
        bytes.is_empty().then_some(Node { level, entries })
    }
}

fn put_varint(mut value: u64, out: &mut Vec<u8>) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

fn take_varint(bytes: &mut &[u8]) -> Option<u64> {
    let mut value = 0;
    for shift in (0..63).step_by(7) {
        let byte = *bytes.split_off_first()?;
        value |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return Some(value);
        }
    }
    None
}
