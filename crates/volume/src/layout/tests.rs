//! Every profile with every small stripe count, against a model that lays the elements down one after the other.

use super::*;
use butterfs_ondisk::DeviceId;
use butterfs_ondisk::chunk::ChunkStripe;
use butterfs_ondisk::profile::PROFILES;
use std::collections::{BTreeSet, VecDeque};

const START: u64 = 5 << 20;

/// A chunk of `rows` rows; stripe `i` is on device `i + 1` from `(i + 1)` GiB.
fn chunk(profile: &Profile, stripes: usize, rows: u64) -> Chunk {
    let stripe = |i: usize| ChunkStripe {
        device: DeviceId(i as u64 + 1),
        physical: Physical((i as u64 + 1) << 30),
        dev_uuid: [i as u8; 16],
    };
    let length = rows * profile.data_stripes(stripes) as u64 * STRIPE_LEN;
    Chunk::new(Logical(START), length, bits::DATA | profile.bit, 4096, (0..stripes).map(stripe).collect())
}

/// The stripe counts up to 7 that a profile can have.
fn legal_counts(profile: &Profile) -> Vec<usize> {
    (0..8).filter(|&count| Layout::of(&chunk(profile, count, 2)).is_ok()).collect()
}

/// The place of an element of the model: for each mirror, stripe and element of the stripe. Parity likewise.
struct Element {
    mirrors: Vec<(usize, u64)>,
    parity: Vec<(usize, u64)>,
}

/// Lays down the elements of a chunk one after the other.
fn model(profile: &Profile, stripes: usize, rows: u64) -> Vec<Element> {
    let mut elements = Vec::new();
    let mut order: VecDeque<usize> = (0..stripes).collect();
    for row in 0..rows {
        let at = |stripes: &[usize]| stripes.iter().map(|&stripe| (stripe, row)).collect::<Vec<_>>();
        let hands: Vec<usize> = order.iter().copied().collect();
        let (data, parity) = hands.split_at(stripes - profile.parity);
        let groups: Vec<&[usize]> = data.chunks(profile.copies).collect();
        elements.extend(groups.into_iter().map(|group| Element { mirrors: at(group), parity: at(parity) }));
        if profile.parity != 0 {
            order.rotate_left(1);
        }
    }
    elements
}

#[test]
fn every_byte_is_where_the_model_has_it() {
    let mut checked = 0;
    for profile in &PROFILES {
        for stripes in legal_counts(profile) {
            for rows in 1..=5 {
                checked += check_against_model(profile, stripes, rows);
            }
        }
    }
    assert!(checked > 1000, "{checked}");
}

fn check_against_model(profile: &Profile, stripes: usize, rows: u64) -> usize {
    let chunk = chunk(profile, stripes, rows);
    let layout = Layout::of(&chunk).unwrap();
    let elements = model(profile, stripes, rows);
    assert_eq!(elements.len() as u64 * STRIPE_LEN, chunk.length, "{} x{stripes}", profile.name);
    let mut used = BTreeSet::new();
    for (index, element) in elements.iter().enumerate() {
        let at = Logical(START + index as u64 * STRIPE_LEN + 4096);
        let piece = layout.pieces(at, 512).next().unwrap();
        let found = |address: StripeAddress| {
            let depth = address.physical.0 - chunk.stripes[address.stripe].physical.0;
            assert_eq!(depth % STRIPE_LEN, 4096);
            (address.stripe, depth / STRIPE_LEN)
        };
        let mirrors: Vec<_> =
            (0..layout.mirrors()).map(|mirror| found(layout.stripe_address(&piece, mirror))).collect();
        let parity: Vec<_> = (0..layout.parity()).map(|which| found(layout.parity_address(&piece, which))).collect();
        assert_eq!((&mirrors, &parity), (&element.mirrors, &element.parity), "{} x{stripes} {index}", profile.name);
        used.extend(mirrors.into_iter().chain(parity));
    }
    let elements_on_disk = stripes as u64 * rows;
    assert_eq!(used.len() as u64, elements_on_disk, "{} x{stripes}: every element on disk is used", profile.name);
    elements.len()
}

#[test]
fn pieces_make_up_the_request() {
    let requests = [(0, 1), (0, 65536), (1, 65536), (65535, 2), (4096, 131_072), (0, 262_144), (100, 200_000), (7, 0)];
    for profile in &PROFILES {
        for stripes in legal_counts(profile) {
            let chunk = chunk(profile, stripes, 4);
            let layout = Layout::of(&chunk).unwrap();
            for (offset, len) in requests.iter().filter(|&&(offset, len)| offset + len <= chunk.length) {
                let pieces: Vec<Piece> = layout.pieces(Logical(START + offset), *len as usize).collect();
                check_pieces(&chunk, &layout, *offset, *len, &pieces);
            }
        }
    }
}

fn check_pieces(chunk: &Chunk, layout: &Layout<'_>, offset: u64, len: u64, pieces: &[Piece]) {
    let ends = pieces.iter().map(|piece| piece.range.end);
    let starts = pieces.iter().map(|piece| piece.range.start);
    assert!(starts.eq([0].into_iter().chain(ends.clone()).take(pieces.len())), "contiguous: {pieces:?}");
    assert_eq!(ends.max().unwrap_or(0) as u64, len);
    for piece in pieces {
        let single = layout.pieces(Logical(START + offset + piece.range.start as u64), 1).next().unwrap();
        assert_eq!((single.row, single.column, single.depth), (piece.row, piece.column, piece.depth));
        for mirror in 0..layout.mirrors() {
            let address = layout.stripe_address(piece, mirror);
            let end = address.physical.0 + piece.range.len() as u64;
            assert!(end <= chunk.stripes[address.stripe].physical.0 + chunk.stripe_length());
        }
        assert!(layout.columns() == 1 || piece.depth % STRIPE_LEN + piece.range.len() as u64 <= STRIPE_LEN);
    }
}

#[test]
fn the_table_of_stripe_counts() {
    let cases: [(&str, &[usize]); 9] = [
        ("single", &[1]),
        ("DUP", &[2]),
        ("RAID1", &[2]),
        ("RAID1C3", &[3]),
        ("RAID1C4", &[4]),
        ("RAID0", &[1, 2, 3, 4, 5, 6, 7]),
        ("RAID10", &[2, 4, 6]),
        ("RAID5", &[2, 3, 4, 5, 6, 7]),
        ("RAID6", &[3, 4, 5, 6, 7]),
    ];
    for (name, counts) in cases {
        assert_eq!(legal_counts(Profile::named(name).unwrap()), counts, "{name}");
    }
}

#[test]
fn hostile_shapes_are_refused() {
    let raid0 = Profile::named("RAID0").unwrap();
    let good = chunk(raid0, 2, 2);
    type Break = fn(&mut Chunk);
    let broken: [(&str, Break); 8] = [
        ("no stripes", |chunk| chunk.stripes.clear()),
        ("no length", |chunk| chunk.length = 0),
        ("half a row", |chunk| chunk.length += STRIPE_LEN),
        ("logical overflow", |chunk| chunk.start = Logical(u64::MAX - 4096)),
        ("physical overflow", |chunk| chunk.stripes[1].physical = Physical(u64::MAX - 4096)),
        ("stripe length 0", |chunk| chunk.stripe_len = 0),
        ("other stripe length", |chunk| chunk.stripe_len = 4096),
        ("two profiles", |chunk| chunk.kind |= bits::DUP),
    ];
    assert!(Layout::of(&good).is_ok());
    for (what, breaks) in broken {
        let mut chunk = good.clone();
        breaks(&mut chunk);
        assert!(Layout::of(&chunk).is_err(), "{what}");
    }
}

#[test]
fn addresses_beyond_four_gibibytes_of_stripes_do_not_wrap() {
    let profile = Profile::named("RAID0").unwrap();
    let chunk = chunk(profile, 3, 1 << 21);
    let layout = Layout::of(&chunk).unwrap();
    let piece = layout.pieces(Logical(chunk.end().0 - 10), 10).next().unwrap();
    assert_eq!((piece.row, piece.column, piece.depth), ((1 << 21) - 1, 2, (1 << 21) * STRIPE_LEN - 10));
}
