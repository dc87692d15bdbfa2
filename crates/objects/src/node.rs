//! Nodes of the index: sorted entries, each key cut by what it shares with the one before.
//!
//! ```text
//! node  = level:u8 count:varint entry…
//! entry = shared:varint rest:varint value:varint bytes-of-rest bytes-of-value
//! ```
//! In level 0 the values are those of the index; above, a key is the first key of a child, and the value its reference.

/// No key is longer: an inode, a kind, a directory and a name.
const MAX_KEY: usize = 9 + 8 + 255;
/// No node has more bytes of keys and values.
const MAX_BYTES: usize = 1 << 20;

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

    /// The node of these bytes; `None` where they are none. Keys must rise. Memory is bounded, whatever the bytes say.
    pub fn decode(mut bytes: &[u8]) -> Option<Node> {
        let level = *bytes.split_off_first()?;
        let count = take_varint(&mut bytes)?;
        let (mut entries, mut total): (Vec<Entry>, usize) = (Vec::new(), 0);
        for _ in 0..count {
            let before: &[u8] = entries.last().map_or(&[], |(key, _)| key);
            let shared = before.get(..usize::try_from(take_varint(&mut bytes)?).ok()?)?;
            let rest = usize::try_from(take_varint(&mut bytes)?).ok()?;
            let len = usize::try_from(take_varint(&mut bytes)?).ok()?;
            let key = [shared, bytes.split_off(..rest)?].concat();
            let value = bytes.split_off(..len)?.to_vec();
            total += key.len() + value.len();
            if key.len() > MAX_KEY || total > MAX_BYTES {
                return None;
            }
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

#[cfg(test)]
mod tests {
    use super::*;

    /// A small piece of bytes that claims to be very much.
    #[test]
    fn a_bomb_is_no_node() {
        // A long key, and then many that share all of it but add a byte at most.
        let mut bomb = vec![0];
        put_varint(200_000, &mut bomb);
        let key = vec![1; 200];
        [0, 200, 0].iter().for_each(|number| put_varint(*number, &mut bomb));
        bomb.extend_from_slice(&key);
        let is_node = Node::decode(&[&bomb[..1], &[1], &bomb[4..]].concat());
        assert_eq!(is_node, Some(Node { level: 0, entries: vec![(key, Vec::new())] }));
        for number in 0..199_999_u32 {
            [197, 4, 0].iter().for_each(|number| put_varint(*number, &mut bomb));
            bomb.extend_from_slice(&(number | 1 << 31).to_be_bytes());
        }
        assert_eq!(Node::decode(&bomb), None);
        // A key that is longer than any.
        let long = Node { level: 0, entries: vec![(vec![1; MAX_KEY + 1], Vec::new())] };
        assert_eq!(Node::decode(&long.encode()), None);
    }
}
