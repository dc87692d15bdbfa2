//! The arithmetic of P and Q: bytes are elements of GF(2^8) with the polynomial x^8 + x^4 + x^3 + x^2 + 1.
//!
//! ```text
//! P = D0 + D1 + …        Q = 2^0 D0 + 2^1 D1 + …        + is exclusive or
//! ```

/// The polynomial without its highest term.
const POLYNOMIAL: u8 = 0x1d;

/// Powers of 2 and their logarithms.
struct Tables {
    power: [u8; 255],
    logarithm: [u8; 256],
}

static TABLES: Tables = tables();

const fn tables() -> Tables {
    let (mut power, mut logarithm) = ([0; 255], [0; 256]);
    let (mut value, mut exponent) = (1u8, 0);
    while exponent < 255 {
        power[exponent] = value;
        logarithm[value as usize] = exponent as u8;
        let carry = value & 0x80 != 0;
        value = (value << 1) ^ if carry { POLYNOMIAL } else { 0 };
        exponent += 1;
    }
    Tables { power, logarithm }
}

/// 2 to this power.
fn power(exponent: usize) -> u8 {
    TABLES.power[exponent % 255]
}

/// The exponent of the inverse of a non-zero element.
fn inverse_exponent(element: u8) -> usize {
    255 - usize::from(TABLES.logarithm[usize::from(element)])
}

/// `value` times 2 to this power.
fn scaled(value: u8, exponent: usize) -> u8 {
    match value {
        0 => 0,
        value => power(usize::from(TABLES.logarithm[usize::from(value)]) + exponent),
    }
}

/// P and Q of these columns, in one pass. Q where there is one.
///
/// Q is computed from the last column to the first, each step doubling what there is: `Q = D0 + 2 (D1 + 2 (D2 + …))`.
/// Eight bytes are doubled at once in a word, in which no byte carries into the next one.
pub fn compute(columns: &[&[u8]], p: &mut [u8], q: Option<&mut [u8]>) {
    let Some((last, rest)) = columns.split_last() else { return };
    p.copy_from_slice(last);
    rest.iter().for_each(|column| add(p, column));
    if let Some(q) = q {
        q.copy_from_slice(last);
        rest.iter().rev().for_each(|column| double_and_add(q, column));
    }
}

/// Doubles every byte of `sum`, and adds `data`.
fn double_and_add(sum: &mut [u8], data: &[u8]) {
    let (words, tail) = sum.as_chunks_mut::<8>();
    let (data_words, data_tail) = data.as_chunks::<8>();
    for (sum, data) in words.iter_mut().zip(data_words) {
        *sum = (doubled(u64::from_le_bytes(*sum)) ^ u64::from_le_bytes(*data)).to_le_bytes();
    }
    tail.iter_mut().zip(data_tail).for_each(|(sum, data)| *sum = scaled(*sum, 1) ^ data);
}

/// Eight bytes, each doubled.
fn doubled(word: u64) -> u64 {
    const HIGH: u64 = 0x8080_8080_8080_8080;
    const LOW: u64 = 0x7f7f_7f7f_7f7f_7f7f;
    let carries = word & HIGH;
    // 0xff in each byte that carries.
    let mask = (carries << 1).wrapping_sub(carries >> 7);
    ((word & LOW) << 1) ^ (mask & (u64::from(POLYNOMIAL) * 0x0101_0101_0101_0101))
}

/// Adds a column to P.
pub fn add(sum: &mut [u8], data: &[u8]) {
    sum.iter_mut().zip(data).for_each(|(sum, data)| *sum ^= data);
}

/// Adds the data of a column to Q.
pub fn add_scaled(sum: &mut [u8], data: &[u8], column: usize) {
    let row = multiples(column);
    sum.iter_mut().zip(data).for_each(|(sum, &data)| *sum ^= row[usize::from(data)]);
}

/// The data of a column from Q without the other columns.
pub fn from_q(q: &[u8], column: usize, out: &mut [u8]) {
    let row = multiples(255 - column % 255);
    out.iter_mut().zip(q).for_each(|(out, &q)| *out = row[usize::from(q)]);
}

/// The data of column `x` when column `y` is missing too, from P and Q without the other columns.
///
/// With P' = Dx + Dy and Q' = 2^x Dx + 2^y Dy: Dx = (Q' + 2^y P') / (2^x + 2^y).
pub fn from_both(p: &[u8], q: &[u8], x: usize, y: usize, out: &mut [u8]) {
    let scaled_p = multiples(y);
    let divided = multiples(inverse_exponent(power(x) ^ power(y)));
    for ((out, &p), &q) in out.iter_mut().zip(p).zip(q) {
        *out = divided[usize::from(q ^ scaled_p[usize::from(p)])];
    }
}

/// Every byte times 2 to this power.
fn multiples(exponent: usize) -> [u8; 256] {
    std::array::from_fn(|value| scaled(value as u8, exponent))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn column(seed: usize) -> Vec<u8> {
        (0..256).map(|i| (i * 7 + seed * 31 + seed * seed) as u8).collect()
    }

    #[test]
    fn powers_of_two_have_the_known_values() {
        assert_eq!([0, 1, 7, 8, 9, 254, 255].map(power), [1, 2, 0x80, 0x1d, 0x3a, 0x8e, 1]);
    }

    #[test]
    fn one_pass_makes_what_single_steps_make() {
        for (count, len) in [(1, 256), (2, 13), (7, 256), (31, 255)] {
            let data: Vec<Vec<u8>> = (0..count).map(|seed| column(seed)[..len].to_vec()).collect();
            let (mut p, mut q, mut whole_p, mut whole_q) = (vec![0; len], vec![0; len], vec![1; len], vec![1; len]);
            for (number, column) in data.iter().enumerate() {
                add(&mut p, column);
                add_scaled(&mut q, column, number);
            }
            let columns: Vec<&[u8]> = data.iter().map(Vec::as_slice).collect();
            compute(&columns, &mut whole_p, Some(&mut whole_q));
            assert!((whole_p, whole_q) == (p, q), "{count} columns of {len} bytes");
        }
    }

    #[test]
    fn any_two_columns_come_back() {
        let data: Vec<Vec<u8>> = (0..7).map(column).collect();
        for x in 0..7 {
            let (mut only_q, mut out) = (vec![0; 256], vec![0; 256]);
            (0..7).for_each(|c| add_scaled(&mut only_q, &data[c], c));
            (0..7).filter(|&c| c != x).for_each(|c| add_scaled(&mut only_q, &data[c], c));
            from_q(&only_q, x, &mut out);
            assert_eq!(out, data[x], "{x} from Q");
            for y in (0..7).filter(|&y| y != x) {
                let (mut p, mut q) = (vec![0; 256], vec![0; 256]);
                for c in [x, y] {
                    add(&mut p, &data[c]);
                    add_scaled(&mut q, &data[c], c);
                }
                from_both(&p, &q, x, y, &mut out);
                assert_eq!(out, data[x], "{x} without {y}");
            }
        }
    }
}
