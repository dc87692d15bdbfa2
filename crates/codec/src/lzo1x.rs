//! LZO1X blocks: a decoder that trusts nothing, and a fast encoder.
//!
//! An instruction is one byte and its operands. `S` is the number of literals (0 to 3) that follow the match; how the
//! lowest opcodes read depends on how many literals came just before.
//!
//! ```text
//! 1LLDDDSS H     match of 5-8, distance (H << 3 | D) + 1
//! 01LDDDSS H     match of 3-4, distance (H << 3 | D) + 1
//! 001LLLLL LE16  match of L + 2, distance (LE16 >> 2) + 1, S = LE16 & 3         (L = 0: 33 and more)
//! 0001HLLL LE16  match of L + 2, distance (H << 14 | LE16 >> 2) + 16384, S = …  (L = 0: 9 and more); 16384 ends
//! 0000LLLL       after a match without literals: L + 3 literals                 (L = 0: 18 and more)
//! 0000DDSS H     after 1-3 literals: match of 2, distance (H << 2 | D) + 1
//! 0000DDSS H     after a literal run: match of 3, distance (H << 2 | D) + 2049
//! ```
//!
//! "And more": zero bytes count 255 each, the first other byte counts itself. A block may begin with a byte above 17,
//! which stands for that many literals plus 17.
//!
//! Blocks are hostile input, therefore this decoder is our own: it has no unsafe code, allocates nothing, never writes
//! beyond the buffer that the caller has bounded, and returns every error as a value. The pure Rust crate
//! `lzokay-native` returns a new vector instead, so it serves as the oracle in tests, in both directions.

/// The instruction before.
#[derive(Clone, Copy, PartialEq)]
enum Before {
    /// A match without literals after it.
    Match,
    /// One to three literals after a match.
    FewLiterals,
    /// A run of four or more literals.
    Run,
}

impl Before {
    const fn after_literals(count: usize) -> Before {
        if count == 0 { Before::Match } else { Before::FewLiterals }
    }
}

/// A match and the literals after it; `None` for the end of the block.
struct Match {
    distance: usize,
    len: usize,
    literals: usize,
}

/// Bytes that are copied at a time.
const STEP: usize = 16;

type Fault = &'static str;
const ENDS_EARLY: Fault = "ends early";

struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    fn byte(&mut self) -> Result<usize, Fault> {
        let (&byte, rest) = self.rest.split_first().ok_or(ENDS_EARLY)?;
        self.rest = rest;
        Ok(usize::from(byte))
    }

    fn le16(&mut self) -> Result<usize, Fault> {
        Ok(self.byte()? | self.byte()? << 8)
    }

    /// Passes over `len` bytes; returns them and what follows.
    fn take(&mut self, len: usize) -> Result<&'a [u8], Fault> {
        let taken = self.rest;
        self.rest = taken.get(len..).ok_or(ENDS_EARLY)?;
        Ok(taken)
    }

    /// `short` when the instruction holds it, else `base` and the bytes that extend it.
    fn length(&mut self, short: usize, base: usize, offset: usize) -> Result<usize, Fault> {
        if short != 0 {
            return Ok(short + offset);
        }
        let mut len = base;
        loop {
            match self.byte()? {
                0 => len += 255,
                last => return Ok(len + last),
            }
        }
    }

    fn match_of(&mut self, code: usize, before: Before) -> Result<Option<Match>, Fault> {
        Ok(Some(match code {
            64.. => {
                let distance = (self.byte()? << 3 | (code >> 2 & 7)) + 1;
                Match { distance, len: (code >> 5) + 1, literals: code & 3 }
            }
            32.. => {
                let len = self.length(code & 31, 33, 2)?;
                let operand = self.le16()?;
                Match { distance: (operand >> 2) + 1, len, literals: operand & 3 }
            }
            16.. => {
                let len = self.length(code & 7, 9, 2)?;
                let operand = self.le16()?;
                let distance = ((code & 8) << 11) + (operand >> 2);
                if distance == 0 {
                    return Ok(None);
                }
                Match { distance: distance + 16384, len, literals: operand & 3 }
            }
            _ => {
                let near = self.byte()? << 2 | (code >> 2);
                let (distance, len) = if before == Before::Run { (near + 2049, 3) } else { (near + 1, 2) };
                Match { distance, len, literals: code & 3 }
            }
        }))
    }
}

/// Output of which only the part that fits is kept.
struct Writer<'a> {
    out: &'a mut [u8],
    len: usize,
}

impl Writer<'_> {
    /// The first `count` of `bytes`, which has at least as many.
    fn literals(&mut self, bytes: &[u8], count: usize) {
        let fits = count.min(self.out.len() - self.len);
        // A copy of fixed length is much cheaper; what it brings too much is overwritten later.
        match (self.out[self.len..].first_chunk_mut::<STEP>(), bytes.first_chunk::<STEP>()) {
            (Some(to), Some(from)) if fits <= STEP => *to = *from,
            _ => self.out[self.len..self.len + fits].copy_from_slice(&bytes[..fits]),
        }
        self.len += fits;
    }

    fn copy(&mut self, found: &Match) -> Result<(), Fault> {
        let from = self.len.checked_sub(found.distance).ok_or("a match before the block's start")?;
        let len = found.len.min(self.out.len() - self.len);
        if found.distance >= STEP && self.out.len() - self.len >= len + STEP {
            for at in (0..len).step_by(STEP) {
                let step: [u8; STEP] = *self.out[from + at..].first_chunk().expect("it lies before the end");
                *self.out[self.len + at..].first_chunk_mut().expect("there is room") = step;
            }
        } else if found.distance >= len {
            self.out.copy_within(from..from + len, self.len);
        } else {
            // The match repeats its beginning: whatever is copied is there to be copied too.
            let mut done = 0;
            while done < len {
                let step = (found.distance + done).min(len - done);
                self.out.copy_within(from..from + step, self.len + done);
                done += step;
            }
        }
        self.len += len;
        Ok(())
    }

    fn is_full(&self) -> bool {
        self.len == self.out.len()
    }
}

/// Decodes one block into `out`; returns the bytes produced. A block that holds more than `out` is cut.
pub fn decompress(block: &[u8], out: &mut [u8]) -> Result<usize, Fault> {
    let mut reader = Reader { rest: block };
    let mut writer = Writer { out, len: 0 };
    let mut before = Before::Match;
    if let Some(&first) = block.first()
        && first > 17
    {
        let count = reader.byte()? - 17;
        writer.literals(reader.take(count)?, count);
        before = if count < 4 { Before::FewLiterals } else { Before::Run };
    }
    while !writer.is_full() {
        let code = reader.byte()?;
        if code < 16 && before == Before::Match {
            let count = reader.length(code, 18, 3)?;
            writer.literals(reader.take(count)?, count);
            before = Before::Run;
            continue;
        }
        let Some(found) = reader.match_of(code, before)? else { break };
        writer.copy(&found)?;
        writer.literals(reader.take(found.literals)?, found.literals);
        before = Before::after_literals(found.literals);
    }
    Ok(writer.len)
}

const HASH_BITS: u32 = 13;
const SHORTEST_MATCH: usize = 4;
const FARTHEST_M2: usize = 0x800;
const FARTHEST_M3: usize = 0x4000;
const FARTHEST: usize = 0xbfff;

/// Finds matches; kept from block to block for its memory only.
pub struct Matcher {
    /// Last position of each hash, in a numbering that goes on from block to block, so that older entries miss.
    last: Vec<u32>,
    base: u32,
}

impl Default for Matcher {
    fn default() -> Matcher {
        Matcher { last: vec![0; 1 << HASH_BITS], base: 1 }
    }
}

impl Matcher {
    /// Appends `input` as one block to `out`.
    pub fn compress(&mut self, input: &[u8], out: &mut Vec<u8>) {
        let start = out.len();
        let (mut at, mut literals_from) = (0, 0);
        while at + SHORTEST_MATCH <= input.len() {
            let Some(from) = self.candidate(input, at) else {
                // Text without matches is stepped over ever faster.
                at += 1 + ((at - literals_from) >> 5);
                continue;
            };
            let len = SHORTEST_MATCH + common_prefix(&input[from + SHORTEST_MATCH..], &input[at + SHORTEST_MATCH..]);
            put_literals(&input[literals_from..at], out, start);
            put_match(at - from, len, out);
            at += len;
            literals_from = at;
        }
        put_literals(&input[literals_from..], out, start);
        out.extend_from_slice(&[17, 0, 0]);
        self.base = self.base.checked_add(input.len() as u32).unwrap_or_else(|| {
            self.last.fill(0);
            1
        });
    }

    /// Remembers the position and returns the one before with the same four bytes.
    fn candidate(&mut self, input: &[u8], at: usize) -> Option<usize> {
        let four = input[at..].first_chunk::<4>()?;
        let hash = u32::from_le_bytes(*four).wrapping_mul(0x9e37_79b1) >> (32 - HASH_BITS);
        let before = std::mem::replace(&mut self.last[hash as usize], self.base + at as u32);
        let from = before.checked_sub(self.base)? as usize;
        (at - from <= FARTHEST && input[from..].first_chunk::<4>() == Some(four)).then_some(from)
    }
}

/// The length of their common prefix in bytes; `ahead` is the shorter.
fn common_prefix(behind: &[u8], ahead: &[u8]) -> usize {
    let word = |bytes: &[u8], at: usize| bytes.get(at..)?.first_chunk().map(|bytes| u64::from_le_bytes(*bytes));
    let mut same = 0;
    while let (Some(a), Some(b)) = (word(behind, same), word(ahead, same)) {
        if a != b {
            return same + (a ^ b).trailing_zeros() as usize / 8;
        }
        same += 8;
    }
    same + behind[same..].iter().zip(&ahead[same..]).take_while(|(a, b)| a == b).count()
}

fn put_literals(bytes: &[u8], out: &mut Vec<u8>, start: usize) {
    let count = bytes.len();
    let is_first = out.len() == start;
    match count {
        0 => return,
        1..=238 if is_first => out.push(count as u8 + 17),
        1..=3 => {
            // The operand of the match before has room for them in the low bits of its last byte but one.
            let at = out.len() - 2;
            out[at] |= count as u8;
        }
        4..=18 => out.push(count as u8 - 3),
        _ => {
            out.push(0);
            put_extension(count - 18, out);
        }
    }
    out.extend_from_slice(bytes);
}

fn put_match(distance: usize, len: usize, out: &mut Vec<u8>) {
    if len <= 8 && distance <= FARTHEST_M2 {
        let d = distance - 1;
        out.extend_from_slice(&[((len - 1) << 5 | (d & 7) << 2) as u8, (d >> 3) as u8]);
    } else if distance <= FARTHEST_M3 {
        put_length(32, len, 33, out);
        put_operand(distance - 1, out);
    } else {
        let d = distance - FARTHEST_M3;
        put_length(16 | (d >> 11 & 8) as u8, len, 9, out);
        put_operand(d & 0x3fff, out);
    }
}

fn put_length(code: u8, len: usize, longest_short: usize, out: &mut Vec<u8>) {
    if len <= longest_short {
        out.push(code | (len - 2) as u8);
    } else {
        out.push(code);
        put_extension(len - longest_short, out);
    }
}

fn put_operand(distance: usize, out: &mut Vec<u8>) {
    out.extend_from_slice(&((distance << 2) as u16).to_le_bytes());
}

fn put_extension(mut len: usize, out: &mut Vec<u8>) {
    while len > 255 {
        out.push(0);
        len -= 255;
    }
    out.push(len as u8);
}
